//! The first page of the control file: what region this is and how it is laid out.
//!
//! Written once, when the region is created; its checksum is stored with it, so a region whose
//! creation was interrupted, or whose first page was damaged, is recognised.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use embar_memory::{Damage, LINE_BYTES, Memory};

use crate::crc::crc32c;
use crate::geometry::{Geometry, INDEX_PAGES_MAX};
use crate::layout::{Layout, SUPERBLOCK_BYTES, TABLES, VERSION};

/// Where the second copy lies, for when the first is damaged.
const COPY_AT: u64 = 2048;

const MAGIC: [u8; 8] = *b"EMBARREG";

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TableEntry {
    offset: u64,
    bytes: u64,
    entry_bytes: u64,
    entries: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: u32,
    /// CRC-32C of these bytes with this field zero.
    crc: u32,
    nonce: u32,
    tables_len: u32,
    created: u64,
    brokers: u16,
    topics: u16,
    lanes: u16,
    standbys: u16,
    lane_slots: u32,
    index_pages: u32,
    payload_bytes: u64,
    goi_pages: u32,
    sessions: u32,
    spares: u16,
    disks: u16,
    reserved: [u8; 4],
    tables: [TableEntry; TABLES],
}

const RAW_BYTES: usize = size_of::<Raw>();
const _: () = assert!(RAW_BYTES as u64 <= COPY_AT && RAW_BYTES == 72 + 32 * TABLES);
const _: () = assert!(COPY_AT + RAW_BYTES as u64 <= SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, version) == 8);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 12);
const _: () = assert!(std::mem::offset_of!(Raw, created) == 24);
const _: () = assert!(std::mem::offset_of!(Raw, payload_bytes) == 48);
const _: () = assert!(SUPERBLOCK_BYTES.is_multiple_of(LINE_BYTES));

/// What a region's superblock says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub nonce: u32,
    /// Nanoseconds since the Unix epoch.
    pub created: u64,
    pub geometry: Geometry,
}

/// Why a first page is not a superblock of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    OtherVersion(u32),
    Damaged(String),
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let g = &self.geometry;
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION;
        raw.nonce = self.nonce;
        raw.tables_len = TABLES as u32;
        raw.created = self.created;
        raw.brokers = g.brokers;
        raw.topics = g.topics;
        raw.lanes = g.lanes;
        raw.lane_slots = g.lane_slots;
        raw.index_pages = g.index_pages;
        raw.payload_bytes = g.payload_bytes;
        raw.standbys = g.standbys;
        raw.goi_pages = g.goi_pages;
        raw.sessions = g.sessions;
        raw.spares = g.spares;
        raw.disks = g.disks;
        raw.tables = tables_of(g);
        raw.crc = crc32c(raw.as_bytes());
        raw.as_bytes().to_vec()
    }

    /// Checks everything before it believes anything.
    pub(crate) fn decode(page: &[u8]) -> Result<Self, Invalid> {
        let damaged = |what: &str| Err(Invalid::Damaged(what.to_owned()));
        let Ok((mut raw, _rest)) = Raw::read_from_prefix(page) else {
            return damaged("the superblock is cut short");
        };
        if raw.magic != MAGIC {
            return damaged("no superblock: not a region, or its creation was interrupted");
        }
        // Only magic and version keep their place between versions.
        if raw.version != VERSION {
            return Err(Invalid::OtherVersion(raw.version));
        }
        let crc = std::mem::take(&mut raw.crc);
        if crc != crc32c(raw.as_bytes()) {
            return damaged("the superblock's checksum does not match");
        }
        let geometry = Geometry {
            brokers: raw.brokers,
            topics: raw.topics,
            lanes: raw.lanes,
            lane_slots: raw.lane_slots,
            index_pages: raw.index_pages,
            payload_bytes: raw.payload_bytes,
            standbys: raw.standbys,
            goi_pages: raw.goi_pages,
            sessions: raw.sessions,
            spares: raw.spares,
            disks: raw.disks,
        };
        if let Err(error) = geometry.validate() {
            return Err(Invalid::Damaged(error.to_string()));
        }
        if raw.nonce == 0 || raw.tables != tables_of(&geometry) {
            return damaged("the superblock's table list does not follow from its geometry");
        }
        Ok(Self {
            nonce: raw.nonce,
            created: raw.created,
            geometry,
        })
    }

    pub(crate) fn store<M: Memory>(&self, memory: &M) {
        let bytes = self.encode();
        for at in [0, COPY_AT] {
            memory.write(at, &bytes);
            memory.write_back(at, bytes.len() as u64);
        }
        memory.fence();
    }

    pub(crate) fn load<M: Memory>(memory: &M) -> Result<Self, Invalid> {
        let mut page = vec![0; SUPERBLOCK_BYTES.min(memory.len()) as usize];
        memory.invalidate(0, page.len() as u64);
        memory.read(0, &mut page);
        if Self::decode(&page).is_err() {
            memory.note_damage(0, Damage::Lost);
        }
        Self::decode_either(&page)
    }

    /// As [`Superblock::decode`], of a page with both copies.
    pub(crate) fn decode_either(page: &[u8]) -> Result<Self, Invalid> {
        // What the first says is wrong with it counts, unless the second is right.
        Self::decode(page).or_else(|wrong| {
            let copy = page.get(COPY_AT as usize..).unwrap_or_default();
            Self::decode(copy).map_err(|_| wrong)
        })
    }
}

fn tables_of(geometry: &Geometry) -> [TableEntry; TABLES] {
    Layout::new(geometry).tables().map(|table| TableEntry {
        offset: table.offset,
        bytes: table.bytes(),
        entry_bytes: table.entry_bytes,
        entries: table.entries,
    })
}

// The largest geometry must not overflow an offset.
const _: () = assert!((INDEX_PAGES_MAX as u64) * 4096 * 32 < 1 << 60);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use embar_memory::Device;

    fn sample() -> Superblock {
        Superblock {
            nonce: 77,
            created: 123,
            geometry: Geometry::default(),
        }
    }

    #[test]
    fn comes_back_as_it_was_stored() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let good = sample().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Superblock::decode(&good[..good.len() - 1]).is_err());
    }

    #[test]
    fn either_copy_is_enough() {
        let memory = Device::new(SUPERBLOCK_BYTES, 7).host(1);
        sample().store(&memory);
        for at in [0, COPY_AT] {
            let was = memory.load(at + 48);
            memory.store(at + 48, was ^ 4);
            assert_eq!(Superblock::load(&memory), Ok(sample()));
            memory.store(at + 48, was);
        }
        for at in [0, COPY_AT] {
            memory.store(at + 48, 4);
        }
        assert!(matches!(
            Superblock::load(&memory),
            Err(Invalid::Damaged(_))
        ));
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut other = sample().encode();
        other[8] = VERSION as u8 + 1;
        let refused = Invalid::OtherVersion(VERSION + 1);
        assert_eq!(Superblock::decode(&other), Err(refused));
    }
}
