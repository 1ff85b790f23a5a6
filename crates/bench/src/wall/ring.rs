//! The memory of a receiving process: mapped and touched before a trial begins, and then handed out piece by piece.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use embar_fabric::geometry::Geometry;
use embar_fabric::region::Region;
use embar_memory::payload::BLOCK_BYTES_MAX;
use embar_memory::{Coherence, Mapped, Reservation};

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
    _region: Region<Mapped>,
}

impl Ring {
    /// Maps about `bytes`. `dir` is where the files are made; they have no name any more when this returns, so that
    /// the kernel frees them however the process ends.
    pub fn new(dir: &Path, bytes: u64) -> Result<Self> {
        // A little more than the control file of one broker takes.
        let geometry = Geometry::for_cluster(bytes + 2 * BLOCK_BYTES_MAX, 0, 0, 0, None)?;
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

    /// `from..to` of what was taken.
    pub fn bytes(&mut self, place: Place, from: usize, to: usize) -> &mut [u8] {
        &mut self.blocks[place.block].as_mut_slice()[place.at + from..place.at + to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
