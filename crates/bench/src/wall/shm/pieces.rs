//! Shared memory in pieces of one size.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use embar_memory::payload::BLOCK_BYTES_MAX;
use embar_memory::{Coherence, Mapped, PayloadFile, Reservation};

/// Pages of the machine; touching a byte of each makes all of them present.
const PAGE_BYTES: usize = 4096;

/// Memory of the kind that the log lives in, touched before it is used.
///
/// A piece is one thread's at a time. The threads agree by records on whose turn it is, so nobody ever waits for a lock
/// here: it costs less than a thousandth of what is done with a piece.
pub struct Pieces {
    pieces: Vec<Mutex<Reservation<Mapped>>>,
}

impl Pieces {
    /// About `bytes` in pieces of `piece` bytes, which is at most [`BLOCK_BYTES_MAX`].
    pub fn new(bytes: u64, piece: u32) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(BLOCK_BYTES_MAX);
        let memory = PayloadFile::anonymous(bytes, Coherence::Coherent)
            .with_context(|| format!("cannot map {bytes} bytes of shared memory"))?;
        let mut pieces = Vec::new();
        while let Some(mut extent) = memory.allocate(BLOCK_BYTES_MAX as u32) {
            while let Some(piece) = extent.reserve(piece) {
                pieces.push(Mutex::new(piece));
            }
        }
        ensure!(!pieces.is_empty(), "no piece of {piece} bytes fits");
        let pieces = Self { pieces };
        for number in 0..pieces.count() {
            pieces.with(number, |bytes| {
                bytes
                    .iter_mut()
                    .step_by(PAGE_BYTES)
                    .for_each(|byte| *byte = 1);
            });
        }
        Ok(pieces)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// Shows the piece of this number, counted on and on: after the last one comes the first one again.
    pub fn with<R>(&self, number: u64, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let piece = &self.pieces[(number % self.count()) as usize];
        let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
        f(piece.as_mut_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_come_again() {
        let pieces = Pieces::new(20 << 20, 5 << 20).expect("memory");
        assert_eq!(pieces.count(), 2 * 3, "three in each block of 16 MiB");
        for number in 0..pieces.count() {
            pieces.with(number, |bytes| bytes.fill(number as u8));
        }
        for number in 0..2 * pieces.count() {
            let expected = (number % pieces.count()) as u8;
            pieces.with(number, |bytes| {
                assert_eq!(bytes.len(), 5 << 20);
                assert!(bytes.iter().all(|byte| *byte == expected), "{number}");
            });
        }
    }
}
