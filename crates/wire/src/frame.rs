//! The header of every frame, and the ids that say what follows it.
//!
//! ```text
//! 0  u32  length   bytes that follow these 8
//! 4  u16  id       [`FrameId`]
//! 6  u16  flags    [`crate::checked::CHECKED`], else 0
//! ```

use crate::error::FrameError;
use crate::limits::{
    BATCH_HEADER_BYTES, FRAME_HEADER_BYTES, Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES,
    MAX_CONTROL_BYTES,
};

/// Version of the protocol, exchanged in the session's handshake.
pub const PROTOCOL_VERSION: u32 = 4;

/// Ids from here to `u16::MAX` belong to the layer that carries a protocol's frames (handshake,
/// heartbeats, endings); no [`Protocol`] is ever asked about them.
pub const FIRST_RESERVED_ID: u16 = 0xFF00;

/// Longest [`Protocol::NAME`].
pub const MAX_PROTOCOL_NAME_BYTES: usize = 32;

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
    /// Done, with nothing to tell.
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

/// The first 8 bytes of every frame, as they are: not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the frame after this header.
    pub length: u32,
    /// What it carries, as a raw number.
    pub id: u16,
    /// What else the frame says of itself.
    pub flags: u16,
}

impl FrameHeader {
    /// The header of a frame with `length` bytes of body.
    #[must_use]
    pub fn new(id: FrameId, length: u32) -> Self {
        Self {
            length,
            id: id as u16,
            flags: 0,
        }
    }

    /// Reads the fields; any 8 bytes are a header, [`FrameHeader::check`] says whether a good one.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, i0, i1, f0, f1] = *bytes;
        Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            id: u16::from_le_bytes([i0, i1]),
            flags: u16::from_le_bytes([f0, f1]),
        }
    }

    /// The 8 bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let word = u64::from(self.length) | u64::from(self.id) << 32 | u64::from(self.flags) << 48;
        word.to_le_bytes()
    }

    /// Bytes of the whole frame, this header included.
    #[inline]
    #[must_use]
    pub fn frame_bytes(self) -> usize {
        (self.length as usize).saturating_add(FRAME_HEADER_BYTES)
    }

    /// Checks id, flags and length, before anything of the body is read.
    ///
    /// # Errors
    /// [`FrameError`] for an id or flag that this version does not know and for a length outside
    /// of what that kind of frame may have.
    #[inline]
    pub fn check(self, limits: &Limits) -> Result<FrameId, FrameError> {
        let id = FrameId::try_from(self.id)?;
        if self.flags != 0 {
            let flags = self.flags;
            return Err(FrameError::UnknownFlags { id, flags });
        }
        let limit = match id {
            FrameId::Batch => limits.max_batch_bytes.min(MAX_BATCH_BYTES),
            FrameId::Ack => MAX_ACK_BYTES + FRAME_HEADER_BYTES as u32,
            _ => limits.max_control_bytes.min(MAX_CONTROL_BYTES) + FRAME_HEADER_BYTES as u32,
        };
        let bytes = self.frame_bytes();
        if bytes > limit as usize {
            return Err(FrameError::TooLarge { id, bytes, limit });
        }
        if id == FrameId::Batch && bytes < BATCH_HEADER_BYTES {
            return Err(FrameError::TooShort { id, bytes });
        }
        Ok(id)
    }
}

/// How a frame is received, told from its header alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All of it is shown to the receiver at once, as one slice.
    Whole,
    /// The first `head` bytes after the frame header are shown; the receiver says where the rest,
    /// the body, is to go.
    Body {
        /// Bytes after the frame header, never more than its length.
        head: u32,
    },
    /// As [`Shape::Body`], but the frame says itself how long the head is: `u32` LE in its first 4
    /// bytes after the frame header, which do not count as head.
    HeadThenBody,
}

/// What speakers of a protocol agree on about their frames, before anything of a frame but its
/// header is read. What the frames mean is not said here.
pub trait Protocol {
    /// Both ends must have the same; at most [`MAX_PROTOCOL_NAME_BYTES`].
    const NAME: &'static str;
    /// Both ends must have the same.
    const VERSION: u32;
    /// Whether frames that are shown whole, and those of the layer that carries them, end with a
    /// checksum, which is verified before anybody sees them: [`crate::checked`]. A frame with a body
    /// has none; its protocol knows how to check it. Both ends must have the same.
    const CHECKED: bool = false;

    /// Checks a header whose id is below [`FIRST_RESERVED_ID`]. Limits that do not depend on the
    /// kind of frame are checked by the caller.
    ///
    /// # Errors
    /// [`FrameError`] if no such frame may come: the stream cannot be followed any further.
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError>;
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
}

impl Protocol for LogProtocol {
    const NAME: &'static str = "embar-log";
    const VERSION: u32 = PROTOCOL_VERSION;
    // A flipped bit in an ack would be a false acknowledgement.
    const CHECKED: bool = true;

    #[inline]
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        Ok(match header.check(&self.limits)? {
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
            assert_eq!(log.shape(header).err(), header.check(&log.limits).err());
            assert!(log.shape(header).is_err());
        }
    }
}
