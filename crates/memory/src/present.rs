//! Which parts of a mapping this process has made present, so that each is asked for once.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mapping::Mapping;

/// Bytes that are made present at once: one call costs a few microseconds, a fault of each of its pages would cost many
/// times as much.
const PART_BYTES: u64 = 256 << 10;
/// Parts of which one word knows.
const PARTS_PER_WORD: u64 = u64::BITS as u64;

/// What is present of one mapping, as far as it was asked for. It says so for speed: pages that are not present after all come as they are
/// touched.
#[derive(Debug)]
pub(crate) struct Present {
    parts: Box<[AtomicU64]>,
}

impl Present {
    /// Nothing, of a mapping of so many bytes.
    pub fn none(len: u64) -> Self {
        let words = len.div_ceil(PART_BYTES * PARTS_PER_WORD);
        Self {
            parts: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Makes the parts present, for reading, that a range of `mapping` touches and that were not asked for before.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    #[inline]
    pub fn make(&self, mapping: &Mapping, at: u64, len: u64) {
        let parts = at / PART_BYTES..(at + len).div_ceil(PART_BYTES);
        for part in parts {
            let word = &self.parts[(part / PARTS_PER_WORD) as usize];
            let bit = 1 << (part % PARTS_PER_WORD);
            // Relaxed: two that ask at the same time do no harm, and what they ask for is the kernel's to order.
            if word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                let begin = part * PART_BYTES;
                let len = PART_BYTES.min(mapping.len() - begin);
                // Without it they come one by one.
                let _ = mapping.populate(begin, len, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::ProtFlags;

    use super::*;

    /// Pages of this thread's process that were mapped by faults.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("procfs");
        let behind_name = stat.rsplit(')').next().expect("a name");
        let minor = behind_name.split_whitespace().nth(7);
        minor.and_then(|it| it.parse().ok()).expect("minor faults")
    }

    #[test]
    fn what_is_present_costs_no_fault_and_is_asked_for_once() {
        let len = 4 * PART_BYTES + 4096;
        let file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file"));
        file.write_all_at(&vec![1; len as usize], 0).expect("room");
        let mapping = Mapping::new(&file, len, ProtFlags::READ).expect("mapped");
        let present = Present::none(len);
        present.make(&mapping, PART_BYTES - 1, 2);
        present.make(&mapping, 4 * PART_BYTES, 4096);
        let asked: Vec<u64> = present
            .parts
            .iter()
            .map(|it| it.load(Ordering::Relaxed))
            .collect();
        assert_eq!(asked, [0b10011]);
        let before = faults();
        let pages = (0..2 * PART_BYTES).step_by(4096).chain([4 * PART_BYTES]);
        let sum: u64 = pages
            .map(|page| mapping.word(page).load(Ordering::Relaxed) & 1)
            .sum();
        assert_eq!(sum, 2 * PART_BYTES / 4096 + 1);
        assert!(faults() - before < 4, "pages came one by one");
    }
}
