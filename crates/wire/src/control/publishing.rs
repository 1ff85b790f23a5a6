//! Messages of a publisher: to open its stream of batches, and to renew and close its session.
//!
//! Topics of orders 2 and 5 have a session for each producer. The session has a slot in the sequencer's table and an
//! epoch, and numbers its batches with one counter, over all of the producer's connections. A broker answers
//! a message about such a topic only when the sequencer has answered the broker.

use std::fmt;

use super::error::ControlError;
use super::field::{Field, message};
use crate::topic::Order;

/// Proves that a session is the sender's. It goes to brokers and never to subscribers, and nothing
/// prints it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Field for Secret {
    type Wire<'a> = &'a [u8];

    fn to_wire(&self) -> &[u8] {
        &self.0
    }

    fn from_wire(wire: &[u8], field: &'static str) -> Result<Self, ControlError> {
        match wire {
            // Topics of order 0 and 1 have no sessions.
            [] => Ok(Self::default()),
            _ => wire
                .try_into()
                .map(Self)
                .map_err(|_| ControlError::Field { field }),
        }
    }
}

message! {
    /// Announces batches for one topic on this connection.
    OpenPublisher as OpenPublisherView {
        /// Name of the topic.
        topic: String,
        /// Identity of the publishing session.
        producer: u64,
        /// Level of its [`Acks`](crate::acks::Acks). The broker says which there are.
        acks: u32,
        /// Drawn by the client, the same on all of its connections: it distinguishes two users of one
        /// producer.
        instance: u64,
        /// Whether a broker of this region answered this instance before. Then it takes the producer over from no other: if
        /// another instance has it by now, the answer is [`ErrorCode::SessionTaken`](super::ErrorCode).
        resumes: bool,
        /// The topic's id, for a client that has learned it; else 0. Then another topic of that name
        /// is [`ErrorCode::TopicReplaced`](super::ErrorCode).
        topic_id: u32,
        /// With orders 2 and 5: what only clients of this producer know.
        secret: Secret,
        /// The epoch in which another instance has the producer, from which this one takes it over: the
        /// answer before was [`SessionHeld`]. Else 0, and it takes it over from no other.
        takes_over: u32,
    }
}

message! {
    /// Instead of [`PublisherOpened`]: another instance, which knows the secret, too, has the producer.
    /// The connection is as before.
    SessionHeld as SessionHeldView {
        /// Its epoch: an instance that wants the producer asks again, and names it.
        session_epoch: u32,
    }
}

message! {
    /// Answer to [`OpenPublisher`].
    PublisherOpened as PublisherOpenedView {
        /// Number to put into batch headers.
        topic_id: u32,
        /// Largest batch frame the topic takes, in bytes.
        max_batch_bytes: u32,
        /// Largest message the topic takes, in bytes: headers, key and value.
        max_message_bytes: u32,
        /// The topic's order. Unless it is total there is no session, and what follows is 0.
        order: Order,
        /// Slot of the session.
        session: u32,
        /// Epoch to put into batch headers.
        session_epoch: u32,
        /// Number of the batch that is expected next.
        mark: u64,
        /// Numbers below the lowest unacknowledged one plus this may be sent.
        window: u32,
        /// Epoch with which the session began in its slot: another one is another session.
        first_epoch: u32,
    }
}

message! {
    /// Asks for the session's next epoch, on a connection that a publisher has opened.
    OpenSession as OpenSessionView {
        /// The epoch that is over for the publisher.
        gives_up: u32,
    }
}

message! {
    /// Answer to [`OpenSession`].
    SessionOpened as SessionOpenedView {
        /// Slot of the session.
        session: u32,
        /// Epoch to put into batch headers from now on.
        session_epoch: u32,
        /// Number of the batch that is expected next.
        mark: u64,
        /// As in [`PublisherOpened`].
        first_epoch: u32,
    }
}
