//! Which disk a directory is, and whose.

use std::mem::offset_of;

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::Layout;
use super::{ALIGN_BYTES, VERSION, crc_without};

const MAGIC: [u8; 8] = *b"EMBARDSK";

/// Bytes of the file that says it: two copies, each at the start of its half.
pub const IDENTITY_BYTES: usize = 2 * ALIGN_BYTES;

/// Which disk a directory is, and of which log: stored once, when the directory is first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// This disk, unlike all others.
    pub disk: [u8; 16],
    /// The log whose data it keeps.
    pub log: [u8; 16],
    /// Its number among the disks of the log, from 0: topics name their disks by it.
    pub number: u16,
    /// When it was first used, in nanoseconds since the Unix epoch.
    pub created: u64,
}

crate::layout! {
    /// The file `identity`: which disk a directory is, and of which log. It has this twice, at 0 and at 4096, and zeros.
    Raw, "identity", 64 {
        /// `EMBARDSK`.
        0 magic: [u8; 8],
        /// Version of the format.
        8 version: U32,
        /// Checksum of these 64 bytes, in which it counts as zero.
        12 crc: U32,
        /// The disk, unlike all others: a random number.
        16 disk: [u8; 16],
        /// The log whose data it keeps: a random number.
        32 log: [u8; 16],
        /// When it was first used, in nanoseconds since the Unix epoch.
        48 created: U64,
        /// Its number among the disks of the log, from 0.
        56 number: U16,
        /// Zero.
        58 reserved: [u8; 6],
    }
}

/// What lies where in it.
pub(super) const LAYOUT: Layout = Raw::LAYOUT;

const CRC_AT: usize = offset_of!(Raw, crc);

/// Why a file does not say which disk a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// Neither copy can be read.
    #[error("both copies are damaged, or it is not a file of Embarcadero")]
    Damaged,
    /// A newer program wrote it, or an older one.
    #[error("it has version {0} of the format, and this program knows {VERSION}")]
    OtherVersion(u32),
}

impl Identity {
    /// The disk as two numbers, as a region knows it.
    #[must_use]
    pub fn halves(&self) -> [u64; 2] {
        let (low, high) = self.disk.split_at(8);
        [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes")))
    }

    /// The whole file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            disk: self.disk,
            log: self.log,
            created: self.created.into(),
            number: self.number.into(),
            reserved: [0; 6],
        };
        raw.crc = crc_without(raw.as_bytes(), CRC_AT).into();
        let mut file = vec![0; IDENTITY_BYTES];
        for copy in file.chunks_mut(ALIGN_BYTES) {
            copy[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        }
        file
    }

    /// What the file says.
    ///
    /// # Errors
    /// [`IdentityError`], of the copy that is in a better state.
    pub fn decode(file: &[u8]) -> Result<Self, IdentityError> {
        let mut worst = IdentityError::Damaged;
        for copy in file.chunks(ALIGN_BYTES).take(2) {
            match Self::decode_copy(copy) {
                Err(other @ IdentityError::OtherVersion(_)) => worst = other,
                Err(IdentityError::Damaged) => {}
                Ok(identity) => return Ok(identity),
            }
        }
        Err(worst)
    }

    /// How many of a file's two copies are damaged, or of another version.
    #[must_use]
    pub fn damaged_copies(file: &[u8]) -> usize {
        let copies = (0..2).map(|copy| file.get(copy * ALIGN_BYTES..).unwrap_or_default());
        copies
            .filter(|copy| Self::decode_copy(copy).is_err())
            .count()
    }

    fn decode_copy(copy: &[u8]) -> Result<Self, IdentityError> {
        let (raw, _) = Raw::read_from_prefix(copy).map_err(|_| IdentityError::Damaged)?;
        if raw.magic != MAGIC {
            return Err(IdentityError::Damaged);
        }
        // Only magic and version keep their place between versions.
        if raw.version != VERSION {
            return Err(IdentityError::OtherVersion(raw.version.get()));
        }
        if raw.crc != crc_without(raw.as_bytes(), CRC_AT) {
            return Err(IdentityError::Damaged);
        }
        Ok(Self {
            disk: raw.disk,
            log: raw.log,
            created: raw.created.get(),
            number: raw.number.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        disk: [1; 16],
        log: [2; 16],
        number: 1,
        created: 3,
    };

    #[test]
    fn either_copy_is_enough() {
        let file = IDENTITY.encode();
        assert_eq!(Identity::decode(&file), Ok(IDENTITY));
        for broken in [0, 20, ALIGN_BYTES + 9] {
            let mut file = file.clone();
            file[broken] ^= 0x10;
            assert_eq!(Identity::decode(&file), Ok(IDENTITY));
            assert_eq!(Identity::damaged_copies(&file), 1);
        }
        assert_eq!(Identity::damaged_copies(&file), 0);
        let mut both = file.clone();
        both[20] ^= 1;
        both[ALIGN_BYTES + 20] ^= 1;
        assert_eq!(Identity::decode(&both), Err(IdentityError::Damaged));
        assert_eq!(Identity::decode(&[]), Err(IdentityError::Damaged));
        assert_eq!(Identity::decode(&file[..30]), Err(IdentityError::Damaged));
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut file = IDENTITY.encode();
        for copy in 0..2 {
            file[copy * ALIGN_BYTES + 8] = 9;
        }
        assert_eq!(Identity::decode(&file), Err(IdentityError::OtherVersion(9)));
    }
}
