//! Computes the check of a slot's record. Tells whether a line that was read is the record as it was written, has one
//! wrong bit, which is put right, or is no record of its address.

use embar_memory::LINE_BYTES;
use embar_memory::canary::{Canary, injected};

use super::{BLANK, BODY_BYTES, Body, IN_PROGRESS};
use crate::crc;

/// Bits of a body.
const BODY_BITS: usize = BODY_BYTES * 8;
/// Changes a word that would read as a mark into one that does not.
const NOT_A_MARK: u64 = 0x0FF0_0FF0 << 32;

/// Where a record lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub nonce: u32,
    pub at: u64,
}

/// What came of reading a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sound {
    /// It is as it was written.
    Whole(Body),
    /// One bit was wrong: its lap, and its body.
    Repaired(u32, Body),
    /// It is no record of this place.
    Lost,
}

/// Whether a commit word is no record's.
#[inline]
pub(super) fn is_mark(commit: u64) -> bool {
    is_near(commit, BLANK) || is_near(commit, IN_PROGRESS)
}

/// Whether a word is a mark, with at most one bit wrong.
#[inline]
pub(super) fn is_near(commit: u64, mark: u64) -> bool {
    (commit ^ mark).count_ones() <= 1
}

impl Place {
    /// The commit word of a record of this lap.
    #[inline]
    pub fn word_of(self, lap: u32, body: &Body) -> u64 {
        let mut line = [0; LINE_BYTES as usize];
        line[..BODY_BYTES].copy_from_slice(body);
        line[BODY_BYTES..BODY_BYTES + 4].copy_from_slice(&lap.to_le_bytes());
        // An odd factor keeps places apart.
        let place = (self.at / LINE_BYTES) as u32;
        let mixed = self.nonce ^ place.wrapping_mul(0x9E37_79B1);
        line[BODY_BYTES + 4..].copy_from_slice(&mixed.to_le_bytes());
        let word = u64::from(crc::of_line(&line)) << 32 | u64::from(lap);
        if is_mark(word) {
            word ^ NOT_A_MARK
        } else {
            word
        }
    }

    /// What a line says whose commit word is no mark.
    #[inline]
    pub fn read(self, commit: u64, body: Body) -> Sound {
        if self.word_of(commit as u32, &body) == commit {
            return Sound::Whole(body);
        }
        if injected(Canary::BitRepair) {
            return Sound::Lost;
        }
        self.repair(commit, body)
    }

    /// Looks for the one bit that is wrong.
    #[cold]
    fn repair(self, commit: u64, mut body: Body) -> Sound {
        for bit in 0..64 {
            let word = commit ^ 1 << bit;
            if self.word_of(word as u32, &body) == word {
                return Sound::Repaired(word as u32, body);
            }
        }
        for bit in 0..BODY_BITS {
            body[bit / 8] ^= 1 << (bit % 8);
            if self.word_of(commit as u32, &body) == commit {
                return Sound::Repaired(commit as u32, body);
            }
            body[bit / 8] ^= 1 << (bit % 8);
        }
        Sound::Lost
    }
}
