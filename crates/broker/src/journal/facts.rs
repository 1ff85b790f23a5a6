//! The facts of a journal, byte by byte. All numbers are little-endian.

pub use embar_disk::format::ABOUT_TOPIC;
use embar_disk::format::{ABOUT_SEGMENTS, FIRST_KEPT_LAYOUT, Layout};
use embar_fabric::{Secret, SessionOwner, SessionRow};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::topics::{TOPIC_LAYOUT, Topic};

/// A publisher's session, as it is before the next batch of its chain that the journal has.
pub const ABOUT_SESSION: u16 = 2;
/// Which ids no other topic may get.
pub const ABOUT_TOPIC_IDS: u16 = 3;
/// A topic that the disk is getting from another one: it has not all of it yet, or not all of its sessions.
pub const ABOUT_ARRIVING: u16 = 4;

/// What facts there are.
#[derive(Clone, Copy, Debug)]
pub struct FactKind {
    /// What they are about, as their runs say.
    pub about: u16,
    /// What their key is.
    pub key: &'static str,
    /// What lies where in their bytes.
    pub layout: Layout,
}

/// All of them.
pub const FACTS: [FactKind; 5] = [
    FactKind {
        about: ABOUT_TOPIC,
        key: "the topic's id",
        layout: TOPIC_LAYOUT,
    },
    FactKind {
        about: ABOUT_SESSION,
        key: "the session's place",
        layout: RawSession::LAYOUT,
    },
    FactKind {
        about: ABOUT_TOPIC_IDS,
        key: "0",
        layout: RawTopicIds::LAYOUT,
    },
    FactKind {
        about: ABOUT_ARRIVING,
        key: "the id of a topic that the disk is getting from another one",
        layout: TOPIC_LAYOUT,
    },
    FactKind {
        about: ABOUT_SEGMENTS,
        key: "0",
        layout: FIRST_KEPT_LAYOUT,
    },
];

embar_disk::layout! {
    /// A publisher's session, as it is before the next batch of its chain in the journal.
    RawSession, "session", 76 {
        /// The publisher's identity.
        0 producer: U64,
        /// Order 5: the batch expected next. Order 2: the lowest number that is not in the journal.
        8 expected: U64,
        /// The client's instance.
        16 instance: U64,
        /// Order 2: bit n stands for batch `expected` + 1 + n, which is in the journal. Order 5: in the first 8 bytes the
        /// number with which the epoch began.
        24 ordered: [u8; 16],
        /// Who knows it may open, renew and close the session.
        40 secret: [u8; 16],
        /// The topic's id.
        56 chain: U32,
        /// The session's epoch.
        60 epoch: U32,
        /// The epoch with which it began at its place: lower ones were of others.
        64 first_epoch: U32,
        /// Where it was opened from.
        68 peer: U32,
        /// The order level of the topic.
        72 order: U16,
        /// 1: its epoch is fenced.
        74 fenced: u8,
        /// Zero.
        75 reserved: u8,
    }
}

embar_disk::layout! {
    /// Which ids no other topic may get.
    RawTopicIds, "topic ids", 4 {
        /// The highest id that a topic of the journal ever had.
        0 highest: U32,
    }
}

/// Bytes of a session.
pub const SESSION_BYTES: usize = size_of::<RawSession>();

/// The topic that these bytes are.
#[must_use]
pub fn decode_topic(bytes: &[u8]) -> Option<Topic> {
    Topic::decode(bytes)
}

/// A session's bytes.
#[must_use]
pub fn encode_session(row: &SessionRow, owner: &SessionOwner) -> [u8; SESSION_BYTES] {
    zerocopy::transmute!(RawSession {
        producer: row.producer.into(),
        expected: row.expected.into(),
        instance: row.instance.into(),
        ordered: row.ordered,
        secret: owner.secret.0,
        chain: row.chain.into(),
        epoch: row.epoch.into(),
        first_epoch: row.first_epoch.into(),
        peer: owner.peer.into(),
        order: row.order.into(),
        fenced: row.fenced,
        reserved: 0,
    })
}

/// The session that these bytes are.
#[must_use]
pub fn decode_session(bytes: &[u8]) -> Option<(SessionRow, SessionOwner)> {
    let raw = RawSession::read_from_bytes(bytes).ok()?;
    let row = SessionRow {
        producer: raw.producer.get(),
        expected: raw.expected.get(),
        instance: raw.instance.get(),
        ordered: raw.ordered,
        chain: raw.chain.get(),
        epoch: raw.epoch.get(),
        first_epoch: raw.first_epoch.get(),
        in_use: 1,
        fenced: raw.fenced,
        order: raw.order.get(),
    };
    let owner = SessionOwner {
        secret: Secret(raw.secret),
        first_epoch: row.first_epoch,
        peer: raw.peer.get(),
        ..SessionOwner::default()
    };
    Some((row, owner))
}

/// The bytes that say which ids no other topic may get.
#[must_use]
pub fn encode_topic_ids(highest: u32) -> Vec<u8> {
    let highest = highest.into();
    RawTopicIds { highest }.as_bytes().to_vec()
}

/// The highest id that a topic of the journal ever had.
#[must_use]
pub fn decode_topic_ids(bytes: &[u8]) -> Option<u32> {
    let raw = RawTopicIds::read_from_bytes(bytes).ok()?;
    Some(raw.highest.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_what_was_encoded() {
        let row = SessionRow {
            producer: 1,
            expected: 2,
            instance: 3,
            ordered: [4; 16],
            chain: 5,
            epoch: 6,
            first_epoch: 7,
            in_use: 1,
            fenced: 1,
            order: 5,
        };
        let owner = SessionOwner {
            secret: Secret([8; 16]),
            first_epoch: 7,
            peer: 9,
            ..SessionOwner::default()
        };
        let bytes = encode_session(&row, &owner);
        assert_eq!(decode_session(&bytes), Some((row, owner)));
        assert_eq!(decode_session(&bytes[1..]), None);
    }
}
