//! The header of every frame, and the ids that say what follows it.
//!
//! ```text
//! 0  u32  length   bytes that follow these 8
//! 4  u16  id       [`FrameId`]
//! 6  u16  flags    none is defined yet: 0
//! ```

use crate::error::FrameError;
use crate::limits::{
    BATCH_HEADER_BYTES, FRAME_HEADER_BYTES, Limits, MAX_ACK_BYTES, MAX_BATCH_BYTES,
    MAX_CONTROL_BYTES,
};

/// Version of the protocol, exchanged in Hello and Welcome.
pub const PROTOCOL_VERSION: u32 = 1;

/// The first bytes of a Hello's content: a peer that speaks another protocol is told so.
pub const MAGIC: [u8; 4] = *b"EMBR";

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

frame_ids! {
    /// A batch of messages: [`crate::batch`].
    Batch = 1,
    /// Batches that were acknowledged: [`crate::ack`].
    Ack = 2,
    /// First frame of the side that connected.
    Hello = 16,
    /// Answer to Hello.
    Welcome = 17,
    /// A request was refused, or the connection is about to be closed.
    Error = 18,
    /// The sender is draining and closes soon.
    Goodbye = 19,
    /// Are you there?
    Ping = 20,
    /// Answer to Ping.
    Pong = 21,
    /// Announces batches for one topic on this connection.
    OpenPublisher = 32,
    /// Answer to OpenPublisher.
    PublisherOpened = 33,
    /// Asks for a topic's batches.
    Subscribe = 34,
    /// Answer to Subscribe; batches follow.
    Subscribed = 35,
    /// Creates a topic.
    CreateTopic = 48,
    /// Answer to CreateTopic.
    TopicCreated = 49,
    /// Deletes a topic and what it retains.
    DeleteTopic = 50,
    /// Answer to DeleteTopic.
    TopicDeleted = 51,
    /// Asks for all topics.
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
    /// Always 0 in this version.
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
