//! The header of a segment, and the names of its file.

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::Layout;
use super::{ALIGN_BYTES, VERSION, crc_without};
use crate::bits::flipped_bit;

const MAGIC: [u8; 8] = *b"EMBARSEG";

/// Bytes before the first commit.
pub const SEGMENT_HEADER_BYTES: usize = ALIGN_BYTES;

/// What a segment says of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Its number.
    pub number: u64,
    /// Its nonce.
    pub nonce: u64,
    /// How many of its commits count, whatever comes behind them.
    pub commits: u32,
    /// Checksum of the last one that counts; 0 if none does.
    pub crc: u32,
}

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The disk.
    pub disk: [u8; 16],
    /// Its number, which is also that of its file. Numbers grow by one, and none comes twice on a disk.
    pub number: u64,
    /// A random number that its commits repeat: what was in the file's space before does not pass for a commit.
    pub nonce: u64,
    /// The term of the writer.
    pub epoch: u32,
    /// The region whose brokers it wrote for, by its nonce.
    pub region: u32,
    /// The segment before; none for the first of a disk.
    pub before: Option<Before>,
    /// When it was begun, in nanoseconds since the Unix epoch.
    pub created: u64,
}

crate::layout! {
    /// The first bytes of a file `NNNNNNNNNNNN.segment`. Zeros follow, and commits from 4096 on.
    Raw, "segment header", 88 {
        /// `EMBARSEG`.
        0 magic: [u8; 8],
        /// Version of the format.
        8 version: U32,
        /// Checksum of these 88 bytes, in which it counts as zero.
        12 crc: U32,
        /// The disk, as its identity says.
        16 disk: [u8; 16],
        /// The segment's number, which is also that of its file. Numbers grow, and none comes twice.
        32 number: U64,
        /// A random number, not 0, that the segment's commits repeat.
        40 nonce: U64,
        /// The term of the writer.
        48 epoch: U32,
        /// The nonce of the region whose brokers it wrote for.
        52 region: U32,
        /// The number of the segment before it in the journal.
        56 before_number: U64,
        /// Its nonce; 0 if there is none before.
        64 before_nonce: U64,
        /// How many of its commits count, whatever comes behind them.
        72 before_commits: U32,
        /// Checksum of the last of these; 0 if none counts.
        76 before_crc: U32,
        /// When the segment was begun, in nanoseconds since the Unix epoch.
        80 created: U64,
    }
}

/// What lies where in it.
pub(super) const LAYOUT: Layout = Raw::LAYOUT;

const CRC_AT: usize = offset_of!(Raw, crc);
const _: () = assert!(size_of::<Raw>() <= SEGMENT_HEADER_BYTES);

impl SegmentHeader {
    /// The bytes before the first commit.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let before = self.before.unwrap_or(Before {
            number: 0,
            nonce: 0,
            commits: 0,
            crc: 0,
        });
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            disk: self.disk,
            number: self.number.into(),
            nonce: self.nonce.into(),
            epoch: self.epoch.into(),
            region: self.region.into(),
            before_number: before.number.into(),
            before_nonce: before.nonce.into(),
            before_commits: before.commits.into(),
            before_crc: before.crc.into(),
            created: self.created.into(),
        };
        raw.crc = crc_without(raw.as_bytes(), CRC_AT).into();
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        bytes
    }

    /// What the first bytes of a file say; `None` when they are no header of this version. A segment that was never begun,
    /// because its writer died after it had made the file, has none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = Raw::read_from_prefix(bytes).ok()?;
        let is_ours = raw.magic == MAGIC
            && raw.version == VERSION
            && raw.crc == crc_without(raw.as_bytes(), CRC_AT)
            && raw.nonce != 0;
        is_ours.then(|| Self::of(&raw))
    }

    /// The header that these bytes were before one bit of them flipped.
    pub(crate) fn restored(bytes: &[u8]) -> Option<Self> {
        let (mut raw, _) = Raw::read_from_prefix(bytes).ok()?;
        (raw.magic, raw.version) = (MAGIC, VERSION.into());
        let crc = crc_without(raw.as_bytes(), CRC_AT);
        // Of the checksum itself, or of what it is made of.
        if (raw.crc.get() ^ crc).count_ones() > 1 {
            let said = std::mem::replace(&mut raw.crc, U32::ZERO).get();
            let bit = flipped_bit(raw.as_bytes(), said)?;
            raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            raw.crc = said.into();
            if crc_without(raw.as_bytes(), CRC_AT) != said {
                return None;
            }
        }
        (raw.magic == MAGIC && raw.version == VERSION && raw.nonce != 0).then(|| Self::of(&raw))
    }

    fn of(raw: &Raw) -> Self {
        Self {
            disk: raw.disk,
            number: raw.number.get(),
            nonce: raw.nonce.get(),
            epoch: raw.epoch.get(),
            region: raw.region.get(),
            before: (raw.before_nonce != 0).then(|| Before {
                number: raw.before_number.get(),
                nonce: raw.before_nonce.get(),
                commits: raw.before_commits.get(),
                crc: raw.before_crc.get(),
            }),
            created: raw.created.get(),
        }
    }
}

/// Ends the names of segments.
const SUFFIX: &str = ".segment";

/// The name of a segment's file.
#[must_use]
pub fn segment_name(number: u64) -> String {
    format!("{number:012}{SUFFIX}")
}

/// The number of the segment that has this name; `None` for other files.
#[must_use]
pub fn segment_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(SUFFIX)?.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_not_when_a_bit_is_wrong() {
        let first = SegmentHeader {
            disk: [7; 16],
            number: 0,
            nonce: 11,
            epoch: 3,
            region: 4,
            before: None,
            created: 5,
        };
        let second = SegmentHeader {
            number: 1,
            before: Some(Before {
                number: 0,
                nonce: 11,
                commits: 8,
                crc: 9,
            }),
            ..first
        };
        for header in [first, second] {
            let bytes = header.encode();
            assert_eq!(SegmentHeader::decode(&bytes), Some(header));
            for bit in 0..8 * size_of::<Raw>() {
                let mut bytes = bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SegmentHeader::decode(&bytes), None, "bit {bit}");
                assert_eq!(SegmentHeader::restored(&bytes), Some(header), "bit {bit}");
            }
        }
        assert_eq!(SegmentHeader::decode(&[0; SEGMENT_HEADER_BYTES]), None);
        assert_eq!(SegmentHeader::decode(&[]), None);
    }

    #[test]
    fn names_sort_as_numbers_do_and_other_files_have_none() {
        assert_eq!(segment_number(&segment_name(42)), Some(42));
        assert!(segment_name(9) < segment_name(10));
        for other in [
            "42.segment",
            "x.segment",
            "000000000042",
            "-00000000001.segment",
        ] {
            assert_eq!(segment_number(other), None, "{other}");
        }
    }
}
