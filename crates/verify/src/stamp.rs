//! Messages that say who sent them, and prove that they are whole.
//!
//! Layout, little-endian: run u32, publisher u32, instance u32, checksum u32, number u64, filler. The checksum is that of
//! everything else before the filler xor that of the filler, so that a publisher, whose filler never changes, checksums
//! 20 bytes a message, while a reader checks all of them.

use std::fmt;

use embar_frame::crc32c;
use embar_meter::random::filler;

/// Smallest message that has room for a stamp.
pub const STAMP_BYTES: usize = 24;

/// A process that publishes, or published until it was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The publisher; one identity for all its processes.
    pub publisher: u32,
    /// Which process of that publisher, from 0.
    pub instance: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "publisher {}.{}", self.publisher, self.instance)
    }
}

/// Who sent a message, and which of its messages it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Who.
    pub origin: Origin,
    /// Which, from 0.
    pub number: u64,
}

impl Stamp {
    /// 64 bits that differ for different stamps, by all that can be expected.
    pub fn digest(self) -> u64 {
        let origin = u64::from(self.origin.publisher) << 32 | u64::from(self.origin.instance);
        embar_meter::random::SplitMix64::new(origin.rotate_left(17) ^ self.number).next_u64()
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of {}", self.number, self.origin)
    }
}

/// Writes one origin's messages, all in one buffer.
pub struct Writer {
    message: Vec<u8>,
    filler_crc: u32,
}

impl Writer {
    /// For messages of `bytes` bytes, at least [`STAMP_BYTES`], of the run `run`.
    pub fn new(run: u32, origin: Origin, bytes: usize) -> Self {
        assert!(bytes >= STAMP_BYTES, "the plan checks the size of messages");
        let mut message = filler(bytes);
        message[..4].copy_from_slice(&run.to_le_bytes());
        message[4..8].copy_from_slice(&origin.publisher.to_le_bytes());
        message[8..12].copy_from_slice(&origin.instance.to_le_bytes());
        let filler_crc = crc32c(&message[STAMP_BYTES..]);
        Self {
            message,
            filler_crc,
        }
    }

    /// The message with this number.
    pub fn stamp(&mut self, number: u64) -> &[u8] {
        self.message[16..24].copy_from_slice(&number.to_le_bytes());
        let crc = head_crc(&self.message) ^ self.filler_crc;
        self.message[12..16].copy_from_slice(&crc.to_le_bytes());
        &self.message
    }
}

/// The stamp of a message of this run; `None` if it is damaged or of somebody else.
pub fn read(run: u32, bytes: usize, message: &[u8]) -> Option<Stamp> {
    if message.len() != bytes || bytes < STAMP_BYTES {
        return None;
    }
    let u32_at = |at: usize| Some(u32::from_le_bytes(message[at..at + 4].try_into().ok()?));
    let crc = head_crc(message) ^ crc32c(&message[STAMP_BYTES..]);
    if u32_at(0)? != run || u32_at(12)? != crc {
        return None;
    }
    Some(Stamp {
        origin: Origin {
            publisher: u32_at(4)?,
            instance: u32_at(8)?,
        },
        number: u64::from_le_bytes(message[16..24].try_into().ok()?),
    })
}

fn head_crc(message: &[u8]) -> u32 {
    crc32c(&message[..12]) ^ crc32c(&message[16..STAMP_BYTES]).rotate_left(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin {
        publisher: 3,
        instance: 2,
    };

    #[test]
    fn what_was_written_is_read() {
        for bytes in [STAMP_BYTES, 25, 200] {
            let mut writer = Writer::new(7, ORIGIN, bytes);
            for number in [0, 1, u64::MAX] {
                let stamp = Stamp {
                    origin: ORIGIN,
                    number,
                };
                assert_eq!(read(7, bytes, writer.stamp(number)), Some(stamp));
            }
        }
    }

    #[test]
    fn no_changed_bit_and_no_other_run_passes() {
        let whole = Writer::new(7, ORIGIN, 40).stamp(9).to_vec();
        assert_eq!(read(8, 40, &whole), None, "another run");
        assert_eq!(read(7, 40, &whole[..39]), None, "shorter");
        for bit in 0..whole.len() * 8 {
            let mut message = whole.clone();
            message[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(7, 40, &message), None, "bit {bit}");
        }
    }

    #[test]
    fn digests_tell_neighbours_apart() {
        let digest = |publisher, instance, number| {
            let origin = Origin {
                publisher,
                instance,
            };
            Stamp { origin, number }.digest()
        };
        let mut all: Vec<u64> = (0..4)
            .flat_map(|p| (0..4).flat_map(move |i| (0..64).map(move |n| digest(p, i, n))))
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 * 4 * 64);
    }
}
