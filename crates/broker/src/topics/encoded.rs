//! A topic in bytes, as its topic record has it, and the disks.

use embar_disk::format::Layout;
use embar_wire::time::WallNs;
use embar_wire::topic::{Order, check_topic_name};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::Topic;

embar_disk::layout! {
    /// A topic. Its name follows, up to the end.
    Raw, "topic", 39 {
        /// Bytes kept on each broker; 0 = as much as the log has room for.
        0 retention_bytes: U64,
        /// Milliseconds for which the disks keep a batch, at least; 0 = for as long as there is room.
        8 retention_ms: U64,
        /// When it was created, in nanoseconds since the Unix epoch.
        16 created: U64,
        /// Its id, which no other topic gets.
        24 id: U32,
        /// Bytes of its largest message: key, headers and value.
        28 max_message_bytes: U32,
        /// Its order level: 0, 1, 2 or 5.
        32 order: u8,
        /// The disks that it is on: bit n stands for disk n.
        33 disks: u8,
        /// The disks that others took the place of: bit n stands for disk n.
        34 former_disks: u8,
        /// How many times that happened.
        35 moves: U32,
    }
}

/// What lies where in the bytes of a topic.
pub const TOPIC_LAYOUT: Layout = Raw::LAYOUT;

impl Topic {
    /// The bytes that say on a disk what a topic is, as [`TOPIC_LAYOUT`] has them and then its name.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raw = Raw {
            retention_bytes: self.retention_bytes.into(),
            retention_ms: self.retention_ms.into(),
            created: self.created.0.into(),
            id: self.id.into(),
            max_message_bytes: self.max_message_bytes.into(),
            order: self.order.level(),
            disks: self.disks,
            former_disks: self.former_disks,
            moves: self.moves.into(),
        };
        [raw.as_bytes(), self.name.as_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (raw, name) = Raw::read_from_prefix(bytes).ok()?;
        let name = std::str::from_utf8(name).ok()?;
        let order = Order::try_from(u32::from(raw.order)).ok()?;
        check_topic_name(name).is_ok().then(|| Self {
            retention_bytes: raw.retention_bytes.get(),
            retention_ms: raw.retention_ms.get(),
            created: WallNs(raw.created.get()),
            id: raw.id.get(),
            max_message_bytes: raw.max_message_bytes.get(),
            order,
            disks: raw.disks,
            former_disks: raw.former_disks,
            moves: raw.moves.get(),
            name: name.to_owned(),
        })
    }
}
