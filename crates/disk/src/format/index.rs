//! The index of a segment that is over: where the batches of which chain lie. It is a file of its own, made from the segment, and
//! can be made again.

use std::collections::BTreeMap;
use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::Layout;
use super::{Before, Chain, Run, VERSION, crc_without};

const MAGIC: [u8; 8] = *b"EMBARIDX";
/// Ends the names of indexes.
const SUFFIX: &str = ".index";

/// Bytes of an entry.
pub const INDEX_ENTRY_BYTES: usize = 40;

/// Batches of one chain that lie together in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The topic's id.
    pub topic: u32,
    /// The broker's row at orders 0 and 1, [`Run::ORDERED`] at orders 2 and 5.
    pub row: u16,
    /// Position of the first message, or where the chain goes on.
    pub first: u64,
    /// Messages; 0 where the chain only goes on elsewhere.
    pub count: u32,
    /// Bytes of the batches, with their headers.
    pub bytes: u32,
    /// Where they begin in the segment.
    pub at: u64,
    /// When their commit was made, in nanoseconds since the Unix epoch.
    pub time: u64,
}

/// What a segment has of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Position of the first message.
    pub first: u64,
    /// Position after the last.
    pub next: u64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// When the newest of their commits was made, in nanoseconds since the Unix epoch.
    pub newest: u64,
}

/// The index of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIndex {
    /// The segment, and how much of it counts.
    pub segment: Before,
    /// Where what counts ends in the segment.
    pub end: u64,
    /// All batches, in the order of the segment.
    pub entries: Vec<IndexEntry>,
}

crate::layout! {
    /// The first bytes of a file `NNNNNNNNNNNN.index`, made from the segment with this number once that is over. Entries
    /// follow.
    RawHeader, "index header", 64 {
        /// `EMBARIDX`.
        0 magic: [u8; 8],
        /// Version of the format.
        8 version: U32,
        /// Checksum of this header, in which it counts as zero, and all entries.
        12 crc: U32,
        /// The segment's number.
        16 number: U64,
        /// The segment's nonce.
        24 nonce: U64,
        /// How many of its commits count.
        32 commits: U32,
        /// Checksum of the last of these; 0 if none counts.
        36 last_crc: U32,
        /// Where what counts ends in the segment.
        40 end: U64,
        /// Entries.
        48 entries: U32,
        /// Zero.
        52 reserved: [u8; 12],
    }
}

crate::layout! {
    /// Batches of one chain that lie together in the segment.
    RawEntry, "index entry", 40 {
        /// Position of the first message, or where the chain goes on.
        0 first: U64,
        /// Where the batches begin in the segment.
        8 at: U64,
        /// The topic's id.
        16 topic: U32,
        /// Messages; 0 where the chain only goes on elsewhere.
        20 count: U32,
        /// Bytes of the batches, with their headers.
        24 bytes: U32,
        /// The row of the chain's broker at orders 0 and 1, 65535 at orders 2 and 5.
        28 row: U16,
        /// Zero.
        30 reserved: U16,
        /// When the commit was made that has them, in nanoseconds since the Unix epoch.
        32 time: U64,
    }
}

/// What lies where in an index.
pub(super) const LAYOUTS: [Layout; 2] = [RawHeader::LAYOUT, RawEntry::LAYOUT];

const HEADER_BYTES: usize = 64;
const CRC_AT: usize = offset_of!(RawHeader, crc);
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawEntry>() == INDEX_ENTRY_BYTES);

impl IndexEntry {
    /// A run of batches in a commit that begins at `commit_at`, and was made at `time`.
    #[must_use]
    pub fn new(run: &Run, commit_at: u64, time: u64) -> Self {
        Self {
            topic: run.chain,
            row: run.row,
            first: run.first,
            count: run.count,
            bytes: run.bytes,
            at: commit_at + u64::from(run.at),
            time,
        }
    }

    /// Position after the last message.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count.into())
    }
}

impl SegmentIndex {
    /// What the segment has of each chain.
    #[must_use]
    pub fn chains(&self) -> BTreeMap<Chain, Part> {
        parts_of(&self.entries)
    }

    /// The whole file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            number: self.segment.number.into(),
            nonce: self.segment.nonce.into(),
            commits: self.segment.commits.into(),
            last_crc: self.segment.crc.into(),
            end: self.end.into(),
            entries: (self.entries.len() as u32).into(),
            reserved: [0; 12],
        };
        let mut file = header.as_bytes().to_vec();
        file.reserve_exact(self.entries.len() * INDEX_ENTRY_BYTES);
        for entry in &self.entries {
            let raw = RawEntry {
                first: entry.first.into(),
                at: entry.at.into(),
                topic: entry.topic.into(),
                count: entry.count.into(),
                bytes: entry.bytes.into(),
                row: entry.row.into(),
                reserved: U16::ZERO,
                time: entry.time.into(),
            };
            file.extend_from_slice(raw.as_bytes());
        }
        let crc = crc_without(&file, CRC_AT);
        file[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// What a file says, which may be longer; `None` if it is damaged, or of another version.
    #[must_use]
    pub fn decode(file: &[u8]) -> Option<Self> {
        let (header, _) = RawHeader::read_from_prefix(file).ok()?;
        if header.magic != MAGIC || header.version != VERSION {
            return None;
        }
        let bytes = HEADER_BYTES + header.entries.get() as usize * INDEX_ENTRY_BYTES;
        let file = file.get(..bytes)?;
        if header.crc != crc_without(file, CRC_AT) {
            return None;
        }
        let entries = file[HEADER_BYTES..].chunks_exact(INDEX_ENTRY_BYTES);
        let entries = entries.map(|entry| {
            let raw = RawEntry::read_from_bytes(entry).ok()?;
            Some(IndexEntry {
                topic: raw.topic.get(),
                row: raw.row.get(),
                first: raw.first.get(),
                count: raw.count.get(),
                bytes: raw.bytes.get(),
                at: raw.at.get(),
                time: raw.time.get(),
            })
        });
        Some(Self {
            segment: Before {
                number: header.number.get(),
                nonce: header.nonce.get(),
                commits: header.commits.get(),
                crc: header.last_crc.get(),
            },
            end: header.end.get(),
            entries: entries.collect::<Option<_>>()?,
        })
    }
}

/// What these entries have of each chain.
pub(crate) fn parts_of(entries: &[IndexEntry]) -> BTreeMap<Chain, Part> {
    let mut chains: BTreeMap<Chain, Part> = BTreeMap::new();
    entries.iter().for_each(|entry| add_to(&mut chains, entry));
    chains
}

/// Adds to what a segment has of each chain what an entry says.
pub(crate) fn add_to(chains: &mut BTreeMap<Chain, Part>, entry: &IndexEntry) {
    if entry.count == 0 {
        return;
    }
    let chain = Chain {
        topic: entry.topic,
        row: entry.row,
    };
    let part = chains.entry(chain).or_insert(Part {
        first: entry.first,
        next: entry.end(),
        bytes: 0,
        newest: entry.time,
    });
    part.first = part.first.min(entry.first);
    part.next = part.next.max(entry.end());
    part.bytes += u64::from(entry.bytes);
    // Clocks may go back: what is young by any of them is young.
    part.newest = part.newest.max(entry.time);
}

/// The name of the index of a segment.
#[must_use]
pub fn index_name(number: u64) -> String {
    format!("{number:012}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> SegmentIndex {
        let entry = |n: u32| IndexEntry {
            topic: n,
            row: 3,
            first: u64::from(n) * 10,
            count: 10,
            bytes: 640,
            at: 4096 * u64::from(n),
            time: 1 << 60,
        };
        SegmentIndex {
            segment: Before {
                number: 4,
                nonce: 5,
                commits: 6,
                crc: 7,
            },
            end: 1 << 20,
            entries: (1..4).map(entry).collect(),
        }
    }

    #[test]
    fn an_index_is_read_as_it_was_written_and_not_when_a_bit_is_wrong() {
        let file = index().encode();
        assert_eq!(SegmentIndex::decode(&file), Some(index()));
        let mut longer = file.clone();
        longer.extend([1; 100]);
        assert_eq!(SegmentIndex::decode(&longer), Some(index()));
        for bit in 0..8 * file.len() {
            let mut file = file.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentIndex::decode(&file), None, "bit {bit}");
        }
        for len in [0, 10, 64, file.len() - 1] {
            assert_eq!(SegmentIndex::decode(&file[..len]), None, "{len}");
        }
    }
}
