//! Zeros that are written ahead of small commits.
//!
//! A segment's space is reserved when its file is made. The first write of each part of it changes what the file system says of
//! the file, and that has to be synced beside the bytes: a synced write of 4 KiB into reserved space took 153 us, and one over zeros 90
//! (ext4 on a virtual disk). So a thread that has nothing else to do writes zeros ahead of a commit that is small. What is behind
//! the end of a segment is zero in any case, so no reader can tell where it was done.

use std::ops::Range;
use std::sync::Arc;

use embar_disk::{AlignedBuffer, StoredFile};
use embar_meter::profile::Recorder;
use embar_order::Term;

use super::{File, Health, Open, Shared, is_full, lock};
use crate::profile::disk::Counter;

/// A larger commit takes longer than what is saved, and would make the zeros a large part of all that is written.
const SMALL_BYTES: usize = 16 << 10;
/// So much is written at once.
pub(super) const ZEROS_BYTES: usize = 256 << 10;
/// When so little of it is left, more is written.
const LEFT_BYTES: u64 = 64 << 10;

/// How far the present segment is written ahead of its commits.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    /// Where the last commit ends, if it was a small one.
    small_end: Option<u64>,
    /// Where the zeros end.
    end: u64,
    /// What a thread writes now.
    writing: Option<Range<u64>>,
    /// They cannot be written in this segment.
    is_given_up: bool,
}

impl Zeros {
    /// A segment was begun.
    pub fn begin(&mut self) {
        // What a thread writes now is in the file of the segment before.
        *self = Self::default();
    }

    /// A commit was made, of the bytes from `at` on. True if it has to wait for zeros that are being written there.
    pub fn follow(&mut self, at: u64, len: usize) -> bool {
        let end = at + len as u64;
        self.small_end = (len <= SMALL_BYTES).then_some(end);
        self.is_written(&(at..end))
    }

    /// Whether a thread writes zeros there.
    fn is_written(&self, range: &Range<u64>) -> bool {
        let writing = self.writing.as_ref();
        writing.is_some_and(|its| its.start < range.end && range.start < its.end)
    }

    /// Where zeros are to be written now, in a segment of so many bytes.
    fn take(&mut self, segment_bytes: u64) -> Option<u64> {
        let small_end = self.small_end?;
        if self.is_given_up || self.writing.is_some() || self.end >= small_end + LEFT_BYTES {
            return None;
        }
        let start = match self.end > small_end {
            true => self.end,
            // Small commits are written before that while the zeros are.
            false => small_end + LEFT_BYTES,
        };
        let end = start + ZEROS_BYTES as u64;
        if end > segment_bytes {
            return None;
        }
        self.writing = Some(start..end);
        Some(start)
    }

    /// They were written at this place.
    fn wrote(&mut self, at: u64) {
        self.writing = None;
        self.end = at + ZEROS_BYTES as u64;
    }

    /// They cannot be written.
    fn give_up(&mut self) {
        self.writing = None;
        self.is_given_up = true;
    }
}

impl Open {
    /// Where zeros are to be written now.
    pub(super) fn next_zeros(&mut self) -> Option<(Arc<File>, u64)> {
        let file = self.file.as_ref()?;
        let (_, bytes) = self.writer.next_segment();
        let at = self.zeros.take(bytes)?;
        Some((Arc::clone(file), at))
    }
}

impl Shared {
    /// Writes zeros at a place where no commit is, or is written.
    pub(super) fn write_zeros(&self, term: Term, file: &Arc<File>, at: u64, recorder: &Recorder) {
        let written = file.write_synced(at, &AlignedBuffer::new(ZEROS_BYTES), ZEROS_BYTES);
        recorder.count(Counter::Bytes as usize, ZEROS_BYTES as u64);
        let mut state = lock(&self.state);
        let is_same = |open: &&mut Open| {
            open.term == term && open.file.as_ref().is_some_and(|it| Arc::ptr_eq(it, file))
        };
        if let Some(open) = state.open.as_mut().filter(is_same) {
            match written {
                Ok(()) => open.zeros.wrote(at),
                // A file system that reserves nothing: the commits will find no room either, and say so.
                Err(error) if is_full(&error) => open.zeros.give_up(),
                Err(error) => self.fail(open, &format!("a write failed: {error}")),
            }
        }
        drop(state);
        // A commit may wait for that.
        self.changed.notify_all();
    }

    /// Until nobody writes zeros in this part of a file any more.
    pub(super) fn wait_for_zeros(&self, file: &Arc<File>, range: &Range<u64>) {
        let mut state = lock(&self.state);
        while state.open.as_ref().is_some_and(|open| {
            let is_same = open.file.as_ref().is_some_and(|it| Arc::ptr_eq(it, file));
            is_same && open.health != Health::Failed && open.zeros.is_written(range)
        }) {
            state = self.wait(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 4 << 20;
    const COMMIT: usize = 4 << 10;

    /// A thread writes what is to be written, if anything is.
    fn write(zeros: &mut Zeros) -> Option<u64> {
        let at = zeros.take(SEGMENT_BYTES)?;
        zeros.wrote(at);
        Some(at)
    }

    #[test]
    fn small_commits_find_zeros_and_one_in_many_asks_for_more() {
        let mut zeros = Zeros::default();
        let (mut at, mut writes, mut found) = (COMMIT as u64, 0, 0);
        let (mut from, mut to) = (0, 0);
        for _ in 0..512 {
            found += usize::from((from..to).contains(&at));
            assert!(!zeros.follow(at, COMMIT), "nobody writes there");
            at += COMMIT as u64;
            if let Some(zeros) = write(&mut zeros) {
                assert!(zeros >= at && (writes == 0 || zeros == to), "{zeros} {at}");
                from = if writes == 0 { zeros } else { from };
                to = zeros + ZEROS_BYTES as u64;
                writes += 1;
            }
        }
        assert!(found > 480, "{found}");
        assert!(writes <= 512 * COMMIT / ZEROS_BYTES + 1, "{writes}");
    }

    #[test]
    fn large_commits_are_left_alone() {
        let mut zeros = Zeros::default();
        for at in [0, SMALL_BYTES as u64 + 1] {
            zeros.follow(at, SMALL_BYTES + 1);
            assert_eq!(write(&mut zeros), None);
        }
    }

    #[test]
    fn whatever_comes_no_zeros_are_written_over_a_commit() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut zeros = Zeros::default();
            let (mut at, mut writing): (u64, Option<u64>) = (0, None);
            while at < SEGMENT_BYTES {
                match random.u8(..4) {
                    0 => {
                        let len = COMMIT << random.u32(..8);
                        let is_behind = zeros.follow(at, len);
                        let end = at + len as u64;
                        let overlaps =
                            writing.is_some_and(|its| its < end && at < its + ZEROS_BYTES as u64);
                        assert_eq!(is_behind, overlaps, "it waits where they would meet");
                        at = end;
                    }
                    1 if writing.is_none() => {
                        writing = zeros.take(SEGMENT_BYTES);
                        assert!(writing.is_none_or(|its| its >= at));
                        let end = writing.map(|its| its + ZEROS_BYTES as u64);
                        assert!(end.is_none_or(|end| end <= SEGMENT_BYTES));
                    }
                    _ => {
                        if let Some(its) = writing.take() {
                            zeros.wrote(its);
                        }
                    }
                }
            }
        }
    }
}
