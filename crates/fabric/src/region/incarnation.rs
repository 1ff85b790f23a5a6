//! How often a row was claimed: a number that must never be used twice.
//!
//! It is kept twice, in lines of their own, each time with a check beside it in one word. A claimer that
//! dies on the way leaves the old number or the new one; where one word is damaged, the other counts. Where
//! both are, the rows that its owners stored show which incarnation was theirs.

use std::sync::Arc;

use embar_memory::{Damage, LINE_BYTES, Memory};

use super::Region;
use crate::crc::crc32c;
use crate::owner::Claim;
use crate::slot::Seen;

/// Where the words lie in the entry of a row.
const WORDS: [u64; 2] = [0, LINE_BYTES];

impl<M: Memory> Region<M> {
    /// Incarnation of the last owner of a row; 0 before the first. Where it is lost, the last one of which
    /// anything is left.
    pub fn incarnation(&self, row: u16) -> u32 {
        match self.incarnation_kept(row) {
            Seen::Found(incarnation) => incarnation,
            Seen::Nothing => 0,
            Seen::Damaged => self.incarnation_said(row),
        }
    }

    /// Whether a row ever had an owner, as far as can be known. Where its incarnation reads as never stored, what the
    /// owner says of itself counts: a broker that serves must not pass for dead.
    pub(super) fn was_claimed(&self, row: u16) -> bool {
        self.incarnation_kept(row) != Seen::Nothing
            || self.broker_row(row) != Seen::Nothing
            || self.control_row(row) != Seen::Nothing
    }

    /// Keeps the incarnation of a claimed row where everybody reads it.
    pub fn incarnation_writer(&self, claim: &Claim) -> IncarnationWriter<M> {
        IncarnationWriter {
            memory: Arc::clone(&self.parts.control),
            at: self.parts.layout.owner(claim.row()),
            nonce: self.parts.nonce,
            incarnation: claim.incarnation(),
        }
    }

    pub(super) fn raise_incarnation(&self, row: u16) -> u32 {
        let last = self.incarnation(row).max(self.incarnation_said(row));
        let incarnation = last.wrapping_add(1).max(1);
        let at = self.parts.layout.owner(row);
        store(&*self.parts.control, at, self.parts.nonce, incarnation);
        incarnation
    }

    fn incarnation_kept(&self, row: u16) -> Seen<u32> {
        let at = self.parts.layout.owner(row);
        read(&*self.parts.control, at, self.parts.nonce)
    }

    /// The highest incarnation that wrote a row of its own.
    fn incarnation_said(&self, row: u16) -> u32 {
        let broker = self.broker_row(row).found().map(|it| it.incarnation);
        let control = self.control_row(row).found().map(|it| it.incarnation);
        let area = self.geometry().area_of(row);
        let sequencer = area.and_then(|area| self.sequencer_row(area).found());
        let sequencer = sequencer.map(|it| it.incarnation);
        let lanes = (0..self.geometry().lanes).map(|lane| self.lane_start(row, lane).found());
        let lanes = lanes.map(|start| start.map(|it| it.incarnation));
        let said = [broker, control, sequencer].into_iter().chain(lanes);
        said.flatten().max().unwrap_or(0)
    }
}

/// Stores the incarnation of one row again; its owner has it.
#[derive(Debug)]
pub struct IncarnationWriter<M> {
    memory: Arc<M>,
    at: u64,
    nonce: u32,
    incarnation: u32,
}

impl<M: Memory> IncarnationWriter<M> {
    /// Stores the number again if memory has lost one of its two words, or both. True if it had: a number that is
    /// stored once in a process's life would lose the second word some day, too.
    pub fn restore(&self) -> bool {
        let (memory, nonce) = (&*self.memory, self.nonce);
        let kept = WORDS.map(|word| {
            let at = self.at + word;
            memory.invalidate(at, LINE_BYTES);
            look(memory.load(at), at, nonce).found()
        });
        let is_lost = kept.contains(&None);
        if is_lost {
            store(memory, self.at, nonce, self.incarnation);
        }
        is_lost
    }
}

/// The highest number that was stored, if any was.
fn read<M: Memory>(memory: &M, at: u64, nonce: u32) -> Seen<u32> {
    let found = WORDS.map(|word| {
        memory.invalidate(at + word, LINE_BYTES);
        let found = look(memory.load(at + word), at + word, nonce);
        if found.is_damaged() {
            memory.note_damage(at + word, Damage::Lost);
        }
        found
    });
    match found.map(Seen::found) {
        [None, None] if found.iter().any(Seen::is_damaged) => Seen::Damaged,
        found => found
            .into_iter()
            .flatten()
            .max()
            .map_or(Seen::Nothing, Seen::Found),
    }
}

/// On return every later reader sees it.
fn store<M: Memory>(memory: &M, at: u64, nonce: u32, incarnation: u32) {
    for at in WORDS.map(|word| at + word) {
        memory.store(at, word_of(incarnation, at, nonce));
        memory.write_back(at, LINE_BYTES);
        memory.fence();
    }
}

fn look(word: u64, at: u64, nonce: u32) -> Seen<u32> {
    let incarnation = word as u32;
    if word.count_ones() <= 1 {
        Seen::Nothing
    } else if word == word_of(incarnation, at, nonce) {
        Seen::Found(incarnation)
    } else {
        Seen::Damaged
    }
}

fn word_of(incarnation: u32, at: u64, nonce: u32) -> u64 {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&incarnation.to_le_bytes());
    bytes[4..8].copy_from_slice(&nonce.to_le_bytes());
    bytes[8..].copy_from_slice(&at.to_le_bytes());
    u64::from(crc32c(&bytes)) << 32 | u64::from(incarnation)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use embar_memory::Device;

    #[test]
    fn a_number_outlives_the_loss_of_either_line() {
        let memory = Device::blank(4096).host(1);
        assert_eq!(read(&memory, 64, 9), Seen::Nothing);
        for incarnation in [1, 2, u32::MAX] {
            store(&memory, 64, 9, incarnation);
            for word in WORDS {
                let was = memory.load(64 + word);
                for bit in 0..64 {
                    memory.store(64 + word, was ^ 1 << bit);
                    assert_eq!(read(&memory, 64, 9), Seen::Found(incarnation));
                }
                memory.store(64 + word, 0);
                assert_eq!(read(&memory, 64, 9), Seen::Found(incarnation));
                memory.store(64 + word, was);
            }
        }
        for word in WORDS {
            memory.store(64 + word, 3 << 20);
        }
        assert_eq!(read(&memory, 64, 9), Seen::Damaged);
    }

    #[test]
    fn its_owner_stores_a_number_again() {
        let memory = Arc::new(Device::blank(4096).host(1));
        let writer = IncarnationWriter {
            memory: Arc::clone(&memory),
            at: 64,
            nonce: 9,
            incarnation: 3,
        };
        assert!(writer.restore());
        for (word, lost) in WORDS.into_iter().zip([0, 3 << 20]) {
            assert!(!writer.restore());
            memory.store(64 + word, lost);
            assert!(writer.restore());
            assert_eq!(memory.load(64 + word), word_of(3, 64 + word, 9));
        }
    }
}
