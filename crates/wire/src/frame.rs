//! The log's own frames: the ids that say what follows a frame's header, and which frames may come.

use embar_frame::{
    FRAME_HEADER_BYTES, FrameError, FrameHeader, MAX_PROTOCOL_NAME_BYTES, Protocol, Shape,
};

use crate::limits::{
    BATCH_HEADER_BYTES, Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES,
};

/// Version of the protocol, exchanged in the session's handshake.
pub const PROTOCOL_VERSION: u32 = 5;

macro_rules! frame_ids {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// What a frame carries. Ids below 16 have a fixed layout, all others a Protobuf body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum FrameId {
            $($(#[$doc])* $name = $id,)*
        }

        impl FrameId {
            /// All ids, in ascending order.
            pub const ALL: &[FrameId] = &[$(FrameId::$name,)*];
        }

        impl TryFrom<u16> for FrameId {
            type Error = FrameError;

            #[inline]
            fn try_from(id: u16) -> Result<Self, FrameError> {
                match id {
                    $($id => Ok(FrameId::$name),)*
                    _ => Err(FrameError::UnknownId { id }),
                }
            }
        }
    };
}

// 16, 17, 19, 20 and 21 had a meaning in version 1.
frame_ids! {
    /// A batch of messages: [`crate::batch`].
    Batch = 1,
    /// Batches that were acknowledged: [`crate::ack`].
    Ack = 2,
    /// A request was refused, or the connection is about to be closed.
    Error = 18,
    /// Announces batches for one topic on this connection.
    OpenPublisher = 32,
    /// Answer to OpenPublisher.
    PublisherOpened = 33,
    /// Asks for a topic's batches.
    Subscribe = 34,
    /// Answer to Subscribe; batches follow.
    Subscribed = 35,
    /// Asks for the next epoch of a publisher's session.
    OpenSession = 36,
    /// Answer to OpenSession.
    SessionOpened = 37,
    /// Ends a publisher's session for good; answered by Done.
    CloseSession = 38,
    /// Instead of PublisherOpened: another instance has the producer.
    SessionHeld = 39,
    /// Creates a topic.
    CreateTopic = 48,
    /// Answer to CreateTopic.
    TopicCreated = 49,
    /// Deletes a topic and what it retains.
    DeleteTopic = 50,
    /// Answer to DeleteTopic.
    TopicDeleted = 51,
    /// Asks for topics, so many at a time.
    ListTopics = 52,
    /// Answer to ListTopics.
    Topics = 53,
    /// Asks for one topic with its partitions.
    DescribeTopic = 54,
    /// Answer to DescribeTopic.
    TopicDescription = 55,
    /// Asks who is in the cluster.
    Metadata = 64,
    /// Answer to Metadata.
    ClusterMetadata = 65,
    /// Asks for counters.
    Status = 66,
    /// Answer to Status.
    StatusReply = 67,
    /// Asks for the broker's stage profile.
    Profile = 68,
    /// Answer to Profile.
    ProfileReply = 69,
    /// Switches metering on or off.
    SetMetering = 70,
    /// Done, and nothing more to say.
    Done = 71,
    /// Asks a broker to leave the cluster for good; answered by Done.
    RemoveBroker = 72,
    /// A broker asks the head for its row.
    Join = 80,
    /// Answer to Join.
    Joined = 81,
}

impl FrameId {
    /// Whether the body is a Protobuf control message.
    #[inline]
    #[must_use]
    pub fn is_control(self) -> bool {
        self as u16 >= 16
    }
}

impl From<FrameId> for u16 {
    fn from(id: FrameId) -> Self {
        id as Self
    }
}

/// The log's own frames as a [`Protocol`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogProtocol {
    /// What this end accepts.
    pub limits: Limits,
}

impl LogProtocol {
    /// Bytes of a batch after its frame header that are shown; the payload follows.
    pub const BATCH_HEAD_BYTES: u32 = (BATCH_HEADER_BYTES - FRAME_HEADER_BYTES) as u32;

    /// Checks id, flags and length of a header, before anything of the body is read.
    ///
    /// # Errors
    /// [`FrameError`] for an id or flag that this version does not know and for a length outside
    /// of what that kind of frame may have.
    #[inline]
    pub fn check(&self, header: FrameHeader) -> Result<FrameId, FrameError> {
        let kind = FrameId::try_from(header.id)?;
        let FrameHeader { id, flags, .. } = header;
        if flags != 0 {
            return Err(FrameError::UnknownFlags { id, flags });
        }
        let limit = match kind {
            FrameId::Batch => self.limits.max_batch_bytes.min(MAX_BATCH_BYTES),
            FrameId::Ack => MAX_ACK_BYTES + FRAME_HEADER_BYTES as u32,
            _ => self.limits.max_control_bytes.min(MAX_CONTROL_BYTES) + FRAME_HEADER_BYTES as u32,
        };
        let bytes = header.frame_bytes();
        if bytes > limit as usize {
            return Err(FrameError::TooLarge { id, bytes, limit });
        }
        if kind == FrameId::Batch && bytes < BATCH_HEADER_BYTES {
            return Err(FrameError::TooShort { id, bytes });
        }
        Ok(kind)
    }
}

impl Protocol for LogProtocol {
    const NAME: &'static str = "embar-log";
    const VERSION: u32 = PROTOCOL_VERSION;
    // A flipped bit in an ack would be a false acknowledgement.
    const CHECKED: bool = true;

    #[inline]
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        Ok(match self.check(header)? {
            FrameId::Batch => Shape::Body {
                head: Self::BATCH_HEAD_BYTES,
            },
            _ => Shape::Whole,
        })
    }
}

const _: () = assert!(LogProtocol::NAME.len() <= MAX_PROTOCOL_NAME_BYTES);

#[cfg(test)]
mod tests {
    use embar_frame::FIRST_RESERVED_ID;

    use super::*;

    #[test]
    fn no_id_of_the_log_is_reserved() {
        assert!(
            FrameId::ALL
                .iter()
                .all(|id| (*id as u16) < FIRST_RESERVED_ID)
        );
    }

    #[test]
    fn only_batches_have_a_body_and_its_head_is_the_rest_of_a_line() {
        let log = LogProtocol::default();
        for id in FrameId::ALL {
            let expected = match id {
                FrameId::Batch => Shape::Body { head: 56 },
                _ => Shape::Whole,
            };
            assert_eq!(log.shape(FrameHeader::new(*id, 56)), Ok(expected));
        }
    }

    #[test]
    fn a_shape_is_given_only_to_what_the_header_check_accepts() {
        let log = LogProtocol {
            limits: Limits::new(100, 4096),
        };
        let too_long = FrameHeader::new(FrameId::Batch, 4096);
        let too_short = FrameHeader::new(FrameId::Batch, 55);
        let mut unknown = FrameHeader::new(FrameId::Done, 0);
        unknown.id = 999;
        for header in [too_long, too_short, unknown] {
            assert_eq!(log.shape(header).err(), log.check(header).err());
            assert!(log.shape(header).is_err());
        }
    }
}
