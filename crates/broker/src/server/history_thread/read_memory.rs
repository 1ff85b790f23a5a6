//! The memory that disks are read into. It is sent from, and used again once that is over.

use std::ops::Range;
use std::sync::Arc;

use embar_disk::AlignedBuffer;
use embar_disk::format::ALIGN_BYTES;
use embar_memory::Buffer;

use crate::disk_bytes::DiskBytes;

/// Buffers that are kept to be used again.
const KEPT_MAX: usize = 16;

/// Buffers that were used, some of which are still being sent from.
#[derive(Default)]
pub(super) struct ReadMemory {
    kept: Vec<Arc<Buffer>>,
}

impl ReadMemory {
    /// A buffer of so many bytes, whatever they are.
    pub fn take(&mut self, bytes: usize) -> AlignedBuffer {
        let free = { self.kept.iter().enumerate() }.filter(|(_, it)| Arc::strong_count(it) == 1);
        // One that just has room, so that a small piece does not hold what is large.
        let with_room = free
            .clone()
            .filter(|(_, it)| it.len() >= bytes + ALIGN_BYTES);
        let best = with_room.min_by_key(|(_, it)| it.len());
        let best = best.filter(|(_, it)| it.len() <= 2 * bytes + ALIGN_BYTES);
        // Others make room for it.
        let place = best.or_else(|| free.max_by_key(|(_, it)| it.len()));
        let free = place.map(|(place, it)| (place, it.len() <= 2 * bytes + ALIGN_BYTES));
        let free = free.map(|(place, fits)| (self.kept.swap_remove(place), fits));
        let free = free.filter(|(_, fits)| *fits).map(|(memory, _)| memory);
        let memory = free.and_then(Arc::into_inner).unwrap_or_default();
        AlignedBuffer::from(Vec::from(memory)).with_len(bytes)
    }

    /// Gives out a part of a buffer, which comes back when it is dropped.
    pub fn share(&mut self, buffer: AlignedBuffer, range: Range<usize>) -> DiskBytes {
        let (memory, all) = buffer.into_parts();
        let memory = Arc::new(Buffer::from(memory));
        self.keep(Arc::clone(&memory));
        DiskBytes::new(memory, all.start + range.start..all.start + range.end)
    }

    /// A buffer that nobody needs.
    pub fn give(&mut self, buffer: AlignedBuffer) {
        self.keep(Arc::new(Buffer::from(buffer.into_parts().0)));
    }

    fn keep(&mut self, memory: Arc<Buffer>) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(memory);
        }
    }

    /// Keeps nothing.
    pub fn forget(&mut self) {
        self.kept = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_nobody_has_it() {
        let mut memory = ReadMemory::default();
        let mut first = memory.take(8192);
        first[4096] = 7;
        let place = first.as_ptr();
        let shared = memory.share(first, 4096..4097);
        assert_ne!(memory.take(8192).as_ptr(), place, "it is being sent");
        drop(shared);
        let again = memory.take(4096);
        assert_eq!((again.as_ptr(), again.len()), (place, 4096));
        memory.give(again);
        assert_eq!(memory.take(8192).as_ptr(), place);
    }

    #[test]
    fn a_small_piece_holds_no_large_memory() {
        let mut memory = ReadMemory::default();
        let (large, small) = (memory.take(1 << 20), memory.take(8192));
        let place = small.as_ptr();
        memory.give(large);
        memory.give(small);
        assert_eq!(memory.take(8192).as_ptr(), place);
        let shared = memory.take(8192);
        let shared = memory.share(shared, 0..1);
        assert!(shared.memory_bytes() <= 4 * 8192);
    }
}
