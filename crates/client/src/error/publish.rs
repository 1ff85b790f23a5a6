//! Why a message was not published, or its outcome is not what the caller hoped for.

use std::time::Duration;

use embar_wire::message::PushError;

use super::ClientError;

/// Why a message was not published, or was not acknowledged.
///
/// [`may_be_stored`](PublishError::may_be_stored) tells whether it may be in the topic nevertheless. Publishing it again
/// never stores it twice if that is false.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The message does not fit into a batch of this size, or a part of it is longer than the format allows.
    #[error(transparent)]
    BadMessage(#[from] PushError),
    /// The topic takes no message of that size.
    #[error(
        "a message of {bytes} bytes exceeds the topic's limit of {limit}: create the topic with a larger one, or split the message"
    )]
    MessageTooLarge {
        /// Bytes of headers, key and value.
        bytes: usize,
        /// The topic's limit.
        limit: usize,
    },
    /// No buffer is free and the call may not wait.
    #[error("all batch buffers are in use: wait, or publish with a call that waits")]
    Full,
    /// No buffer became free within the delivery timeout.
    #[error("waiting for a free batch buffer took longer than {limit:?}: {source}")]
    NoBuffer {
        /// The delivery timeout.
        limit: Duration,
        /// Why earlier batches still have the buffers, as far as the publisher knows.
        source: ClientError,
    },
    /// No broker took the batch within the delivery timeout, so the publisher gave it up. It is not stored.
    #[error("finding a broker for a batch took longer than {limit:?}: it was not stored")]
    Expired {
        /// The delivery timeout.
        limit: Duration,
    },
    /// The call waited no longer. The message is still on its way; ask again.
    #[error("{what} took longer than {limit:?}{hint}")]
    Pending {
        /// What the call waited for.
        what: &'static str,
        /// The limit of the call.
        limit: Duration,
        /// What the publisher waits for; starts with punctuation, may be empty.
        hint: String,
    },
    /// The connection broke after these messages may have been stored, and the publisher's settings forbid to send them
    /// again.
    #[error(
        "the connection broke before the acknowledgement came: the messages may be stored or not; read the topic to find out"
    )]
    InDoubt,
    /// On a topic with a total order: the broker that took the message was lost. When the publisher sent it again the
    /// cluster knew that it is stored, but not where.
    #[error(
        "the message is stored exactly once, but its position is not known any more: read the topic to find it"
    )]
    PositionUnknown,
    /// The publisher was opened with [`Acks::None`](crate::Acks::None), so nothing is acknowledged.
    #[error(
        "opened with Acks::None, so nothing is acknowledged: open with Acks::Readable to wait for acknowledgements"
    )]
    NotAcknowledged,
    /// The publisher forgot the batch of this ticket, or the ticket belongs to another publisher.
    #[error(
        "the outcome of this ticket is not kept any longer (the last {kept} batches are): ask sooner, or use on_ack"
    )]
    ForgottenTicket {
        /// How many outcomes a publisher keeps.
        kept: usize,
    },
    /// Since the last flush, messages were published that are not, or may not be, stored.
    #[error("{messages} messages were not delivered for certain; the first: {source}")]
    Lost {
        /// How many.
        messages: u64,
        /// What happened to the first of them.
        source: Box<PublishError>,
    },
    /// The publisher ended before everything that a flush waited for was resolved. The receipts tell of each message.
    #[error(transparent)]
    Ended(ClientError),
    /// The cluster, the topic or this process is at fault.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl PublishError {
    /// Whether the same may succeed later: with this publisher, or with a new one if this error ended it. It may also
    /// store the message twice, where [`may_be_stored`](PublishError::may_be_stored) says so.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full
            | Self::NoBuffer { .. }
            | Self::Expired { .. }
            | Self::Pending { .. }
            | Self::InDoubt => true,
            Self::Ended(error) | Self::Client(error) => error.is_retryable(),
            Self::Lost { source, .. } => source.is_retryable(),
            Self::BadMessage(_)
            | Self::MessageTooLarge { .. }
            | Self::PositionUnknown
            | Self::NotAcknowledged
            | Self::ForgottenTicket { .. } => false,
        }
    }

    /// Whether the message, or one of them, may be stored, or is. False: it certainly is not.
    #[must_use]
    pub fn may_be_stored(&self) -> bool {
        match self {
            Self::Pending { .. }
            | Self::InDoubt
            | Self::PositionUnknown
            | Self::NotAcknowledged
            | Self::ForgottenTicket { .. }
            | Self::Ended(_)
            // The first of them says nothing of the others.
            | Self::Lost { .. } => true,
            Self::Client(error) => error.may_be_stored(),
            Self::BadMessage(_)
            | Self::MessageTooLarge { .. }
            | Self::Full
            | Self::NoBuffer { .. }
            | Self::Expired { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_stored_is_told_from_what_is_safe_to_repeat() {
        let topic = || "t".to_string();
        let lost = ClientError::SessionLost {
            topic: topic(),
            producer: 1,
        };
        let taken = ClientError::SessionTaken {
            topic: topic(),
            producer: 1,
        };
        let limit = Duration::ZERO;
        // Whether it is retryable, and whether it may be stored.
        let errors = [
            (PublishError::Full, true, false),
            (PublishError::Expired { limit }, true, false),
            (PublishError::InDoubt, true, true),
            (PublishError::PositionUnknown, false, true),
            (PublishError::NotAcknowledged, false, true),
            (lost.into(), true, true),
            (taken.into(), false, true),
            (ClientError::Closed.into(), false, false),
            // Of a flush nothing is known but that the publisher ended first.
            (PublishError::Ended(ClientError::Closed), false, true),
        ];
        for (error, retryable, stored) in errors {
            let told = (error.is_retryable(), error.may_be_stored());
            assert_eq!(told, (retryable, stored), "{error}");
        }
    }
}
