//! How often a row was claimed: a number that must never be used twice.
//!
//! It is kept twice, each time with a check beside it in one word. A claimer that dies on the way
//! leaves the old number or the new one; where one word is damaged, the other counts.

use crate::crc::crc32c;
use crate::memory::{Damage, LINE_BYTES, Memory};
use crate::slot::Seen;

/// Where the words lie in the line of a row.
const WORDS: [u64; 2] = [0, 8];

/// The highest number that was stored; 0 when none was.
pub(super) fn read<M: Memory>(memory: &M, at: u64, nonce: u32) -> u32 {
    memory.invalidate(at, LINE_BYTES);
    let found = WORDS.map(|word| look(memory.load(at + word), at, nonce));
    if found.iter().any(Seen::is_damaged) {
        memory.note_damage(at, Damage::Lost);
    }
    found.into_iter().filter_map(Seen::found).max().unwrap_or(0)
}

/// On return every later reader sees it.
pub(super) fn store<M: Memory>(memory: &M, at: u64, nonce: u32, incarnation: u32) {
    for word in WORDS {
        memory.store(at + word, word_of(incarnation, at, nonce));
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
    use crate::memory::Device;

    #[test]
    fn a_number_outlives_the_loss_of_either_word() {
        let memory = Device::new(4096, 7).host(1);
        memory.write(64, &[0; 64]);
        assert_eq!(read(&memory, 64, 9), 0);
        for incarnation in [1, 2, u32::MAX] {
            store(&memory, 64, 9, incarnation);
            for word in WORDS {
                let was = memory.load(64 + word);
                for bit in 0..64 {
                    memory.store(64 + word, was ^ 1 << bit);
                    assert_eq!(read(&memory, 64, 9), incarnation);
                }
                memory.store(64 + word, 0);
                assert_eq!(read(&memory, 64, 9), incarnation);
                memory.store(64 + word, was);
            }
        }
    }
}
