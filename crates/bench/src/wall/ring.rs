//! The memory of a receiving process: mapped and touched before a trial begins, and then handed out piece by piece.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use embar_fabric::{ClusterShape, Geometry, Region};
use embar_memory::payload::BLOCK_BYTES_MAX;
use embar_memory::{Coherence, Mapped, Reservation};

use super::wire::{BATCH_HEAD_BYTES, fill};
use crate::stamp::{STAMP_BYTES, Stamper};

/// A part of the ring: which block, and from where on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    block: usize,
    at: usize,
}

/// Mapped and prefaulted memory, handed out in turn.
pub struct Ring {
    blocks: Vec<Reservation<Mapped>>,
    next: Place,
    /// Bytes of a batch and of a message, while the ring holds what [`Ring::fill`] wrote.
    filled: Option<(usize, usize)>,
    _region: Region<Mapped>,
}

impl Ring {
    /// Maps about `bytes`. `dir` is where the files are made; they have no name any more when this returns, so that
    /// the kernel frees them however the process ends.
    pub fn new(dir: &Path, bytes: u64) -> Result<Self> {
        // A little more than the control file of one broker takes.
        let geometry = Geometry::for_cluster(ClusterShape {
            region_bytes: bytes + 2 * BLOCK_BYTES_MAX,
            ..ClusterShape::default()
        })?;
        let region = Region::create(dir, &geometry, Coherence::Coherent)?;
        let claim = region.claim(0);
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        let claim = claim?;
        region.prefault(
            0,
            std::thread::available_parallelism().map_or(1, usize::from),
            &|_, _| {},
        )?;
        let payload_file = region.payload_file(&claim);
        let mut blocks = Vec::new();
        while let Some(mut extent) = payload_file.allocate(BLOCK_BYTES_MAX as u32) {
            blocks.extend(extent.reserve(BLOCK_BYTES_MAX as u32));
        }
        anyhow::ensure!(
            !blocks.is_empty(),
            "a ring of {bytes} bytes has no room for a batch"
        );
        Ok(Self {
            blocks,
            next: Place { block: 0, at: 0 },
            filled: None,
            _region: region,
        })
    }

    /// The next `len` bytes; `None` when they exceed a block.
    pub fn take(&mut self, len: usize) -> Option<Place> {
        if len as u64 > BLOCK_BYTES_MAX {
            return None;
        }
        if self.next.at + len > BLOCK_BYTES_MAX as usize {
            self.next = Place {
                block: (self.next.block + 1) % self.blocks.len(),
                at: 0,
            };
        }
        let place = self.next;
        self.next.at += len;
        Some(place)
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES_MAX
    }

    /// Somebody else writes into the ring from now on.
    pub fn spoil(&mut self) {
        self.filled = None;
    }

    /// Has each batch of `batch_bytes` that is taken from now on be one of messages with stamps, its checksum in its
    /// head. `None` when no such batch fits.
    pub fn fill(&mut self, batch_bytes: usize, message_bytes: usize) -> Option<()> {
        let block_bytes = BLOCK_BYTES_MAX as usize;
        let body = batch_bytes.checked_sub(BATCH_HEAD_BYTES)?;
        if message_bytes < STAMP_BYTES || body < message_bytes || batch_bytes > block_bytes {
            return None;
        }
        // Batches begin where a block does.
        self.next = Place { block: 0, at: 0 };
        if self.filled == Some((batch_bytes, message_bytes)) {
            return Some(());
        }
        let (mut stamper, mut sequence) = (Stamper::new(message_bytes), 0);
        for block in &mut self.blocks {
            for batch in block.as_mut_slice()[..block_bytes].chunks_exact_mut(batch_bytes) {
                sequence = fill(batch, &mut stamper, message_bytes, sequence);
            }
        }
        self.filled = Some((batch_bytes, message_bytes));
        Some(())
    }

    /// `from..to` of what was taken.
    pub fn bytes(&mut self, place: Place, from: usize, to: usize) -> &mut [u8] {
        &mut self.blocks[place.block].as_mut_slice()[place.at + from..place.at + to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Verifier;
    use crate::wall::wire::Checker;

    #[test]
    fn a_filled_ring_hands_out_sound_batches() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ring = Ring::new(&dir.path().join("ring"), 32 << 20).expect("a ring");
        let (batch, message) = (3 << 20, 1000);
        // What was taken before does not shift the batches.
        ring.take(77).expect("fits");
        ring.fill(batch, message).expect("fits");
        let mut verifier = Verifier::new(message, ring.capacity() / message as u64);
        for _ in 0..2 * ring.blocks.len() {
            let place = ring.take(batch).expect("fits");
            let bytes = ring.bytes(place, 0, batch);
            let mut checker = Checker::default();
            checker.arrived(bytes, 0);
            assert!(checker.is_sound(bytes));
            for message in bytes[BATCH_HEAD_BYTES..].chunks_exact(message) {
                assert!(verifier.check(message).is_some());
            }
        }
        assert!(ring.fill(64 + 23, 23).is_none(), "no room for a stamp");
        assert!(ring.fill(100, 64).is_none(), "no room for a message");
    }

    #[test]
    fn the_ring_wraps_and_leaves_no_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ring");
        let mut ring = Ring::new(&path, 32 << 20).expect("a ring");
        assert!(!path.exists());
        let len = 6 << 20;
        let first = ring.take(len).expect("fits");
        ring.bytes(first, 0, len).fill(9);
        let places: Vec<_> = (0..2 * ring.blocks.len())
            .map(|_| ring.take(len).expect("fits"))
            .collect();
        assert!(places.contains(&first), "two in each block of 16 MiB");
        assert_eq!(ring.bytes(first, len - 1, len), [9]);
        assert_eq!(ring.take(17 << 20), None);
    }
}
