//! What a thread that measures the wall and a receiving process tell each other beside payload.
//!
//! The thread begins a connection with a [`Hello`] of 24 bytes. With [`Kind::Take`] and [`Kind::Check`] it then sends
//! payload and shuts its side, and the receiving process answers with the number of bytes that it took. [`Kind::Relay`]
//! and [`Kind::RelayChecked`] are the same, and the batches go on to those who [follow](Kind::Follow). With [`Kind::Give`] and [`Kind::Follow`] the
//! receiving process sends as many bytes as the hello says, and closes.
//!
//! A batch is a head of 64 bytes, in which only the checksum of the rest has a meaning, and messages one after the other.

use embar_frame::Crc;

use crate::stamp::Stamper;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 24;
/// Bytes of a receiver's answer.
pub const ANSWER_BYTES: usize = 8;
/// Bytes at the head of a batch that hold its checksum and are not part of it.
pub const BATCH_HEAD_BYTES: usize = 64;

/// What a receiver shall do on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Take bytes.
    Take,
    /// Take batches and check their checksums.
    Check,
    /// Send bytes of the ring, whatever they are.
    Give,
    /// Fill the ring with batches whose checksums are right, of messages of so many bytes, and answer when that is done.
    Fill {
        /// Bytes of a message.
        message_bytes: u32,
    },
    /// Take batches and pass them on.
    Relay,
    /// As [`Kind::Relay`], and check their checksums.
    RelayChecked,
    /// Send the batches that others relay.
    Follow,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What to do.
    pub kind: Kind,
    /// Bytes of a batch, its head included.
    pub batch_bytes: u32,
    /// Bytes to send, for [`Kind::Give`] and [`Kind::Follow`].
    pub bytes: u64,
}

const MAGIC: [u8; 4] = *b"WALL";

impl Kind {
    /// Whether batches that come have their checksums checked.
    pub fn checks(self) -> bool {
        matches!(self, Self::Check | Self::RelayChecked)
    }

    /// Whether batches that come are passed on.
    pub fn relays(self) -> bool {
        matches!(self, Self::Relay | Self::RelayChecked)
    }
}

impl Hello {
    /// The hello as bytes.
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let kind = match self.kind {
            Kind::Take => 0u32,
            Kind::Check => 1,
            Kind::Give => 2,
            Kind::Fill { .. } => 3,
            Kind::Relay => 4,
            Kind::Follow => 5,
            Kind::RelayChecked => 6,
        };
        let message_bytes = match self.kind {
            Kind::Fill { message_bytes } => message_bytes,
            _ => 0,
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.batch_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&message_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The hello of these bytes; `None` if they are none.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        if bytes[..4] != MAGIC {
            return None;
        }
        let kind = match word(4)? {
            0 => Kind::Take,
            1 => Kind::Check,
            2 => Kind::Give,
            3 => Kind::Fill {
                message_bytes: word(12)?,
            },
            4 => Kind::Relay,
            5 => Kind::Follow,
            6 => Kind::RelayChecked,
            _ => return None,
        };
        let batch_bytes = word(8).filter(|bytes| *bytes as usize > BATCH_HEAD_BYTES)?;
        let bytes = bytes[16..24].try_into().ok().map(u64::from_le_bytes)?;
        Some(Self {
            kind,
            batch_bytes,
            bytes,
        })
    }
}

/// Writes messages into a batch, numbered from `sequence` on, and its checksum. Returns the number after the last one.
pub fn fill(
    batch: &mut [u8],
    stamper: &mut Stamper,
    message_bytes: usize,
    mut sequence: u64,
) -> u64 {
    for place in batch[BATCH_HEAD_BYTES..].chunks_exact_mut(message_bytes) {
        place.copy_from_slice(stamper.stamp(sequence, 0));
        sequence += 1;
    }
    seal(batch);
    sequence
}

/// Writes the checksum of a batch into its head.
pub fn seal(batch: &mut [u8]) {
    let (head, body) = batch.split_at_mut(BATCH_HEAD_BYTES);
    head[..4].copy_from_slice(&embar_frame::crc32c(body).to_le_bytes());
}

/// Checks a batch part by part, each while it is in the cache, as a good receiver would.
#[derive(Default)]
pub struct Checker {
    crc: Crc,
}

impl Checker {
    /// Bytes `from..to` of the batch have come.
    pub fn arrived(&mut self, part: &[u8], from: usize) {
        let head_left = BATCH_HEAD_BYTES.saturating_sub(from).min(part.len());
        self.crc.update(&part[head_left..]);
    }

    /// Whether the batch with this head is what was sealed. The next batch begins.
    pub fn is_sound(&mut self, head: &[u8]) -> bool {
        let crc = std::mem::take(&mut self.crc).value();
        head[..4] == crc.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_both_ways_and_nothing_else() {
        let fill = Kind::Fill { message_bytes: 99 };
        for kind in [
            Kind::Take,
            Kind::Check,
            Kind::Give,
            fill,
            Kind::Relay,
            Kind::Follow,
            Kind::RelayChecked,
        ] {
            let hello = Hello {
                kind,
                batch_bytes: 2 << 20,
                bytes: 77,
            };
            assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
        }
        assert_eq!(Hello::parse(&[0; HELLO_BYTES]), None);
        assert_eq!(
            Hello::parse(
                &Hello {
                    kind: Kind::Take,
                    batch_bytes: 64,
                    bytes: 0
                }
                .to_bytes()
            ),
            None
        );
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let mut batch = vec![7; 4096];
        seal(&mut batch);
        let sound = |batch: &[u8]| {
            let mut checker = Checker::default();
            for (from, part) in [(0, 1), (1, 40), (41, batch.len() - 41)] {
                checker.arrived(&batch[from..from + part], from);
            }
            checker.is_sound(batch)
        };
        assert!(sound(&batch));
        batch[100] ^= 1;
        assert!(!sound(&batch));
    }
}
