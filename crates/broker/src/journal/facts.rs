//! The facts of a journal, byte by byte. All numbers are little-endian.
//!
//! | about | key | bytes |
//! | --- | --- | --- |
//! | [`ABOUT_TOPIC`] | the topic's id | the topic, as its record has it |
//! | [`ABOUT_SESSION`] | the session's place | [`SESSION_BYTES`] |
//! | [`ABOUT_TOPIC_IDS`] | 0 | the highest id that a topic of the journal ever had, 4 bytes |

use embar_fabric::{Secret, SessionOwner, SessionRow};

/// A topic that is on the disk.
pub const ABOUT_TOPIC: u16 = 1;
/// A publisher's session, as it is before the next batch of its chain that the journal has.
pub const ABOUT_SESSION: u16 = 2;
/// Which ids no other topic may get.
pub const ABOUT_TOPIC_IDS: u16 = 3;

/// Bytes of a session: producer, expected and instance (8 bytes each), what else is ordered (16), secret (16), chain, epoch,
/// first epoch and peer (4 each), order level (2), fenced (1), zero (1).
pub const SESSION_BYTES: usize = 76;

/// A session's bytes.
#[must_use]
pub fn encode_session(row: &SessionRow, owner: &SessionOwner) -> [u8; SESSION_BYTES] {
    let mut bytes = [0; SESSION_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    for long in [row.producer, row.expected, row.instance] {
        put(&long.to_le_bytes());
    }
    put(&row.ordered);
    put(&owner.secret.0);
    for number in [row.chain, row.epoch, row.first_epoch, owner.peer] {
        put(&number.to_le_bytes());
    }
    put(&row.order.to_le_bytes());
    put(&[row.fenced, 0]);
    bytes
}

/// The session that these bytes are.
#[must_use]
pub fn decode_session(bytes: &[u8]) -> Option<(SessionRow, SessionOwner)> {
    let bytes: &[u8; SESSION_BYTES] = bytes.try_into().ok()?;
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let row = SessionRow {
        producer: long(0),
        expected: long(8),
        instance: long(16),
        ordered: bytes[24..40].try_into().expect("16 bytes"),
        chain: number(56),
        epoch: number(60),
        first_epoch: number(64),
        in_use: 1,
        fenced: bytes[74],
        order: u16::from_le_bytes([bytes[72], bytes[73]]),
    };
    let owner = SessionOwner {
        secret: Secret(bytes[40..56].try_into().expect("16 bytes")),
        first_epoch: row.first_epoch,
        peer: number(68),
        ..SessionOwner::default()
    };
    Some((row, owner))
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
