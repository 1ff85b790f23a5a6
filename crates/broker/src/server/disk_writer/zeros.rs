//! Zeros that are written ahead of small commits.
//!
//! A segment's space is reserved when its file is made. The first write of each part of it changes what the file system says of
//! the file, and that has to be synced beside the bytes: a synced write of 4 KiB into reserved space took 153 us, and one over zeros 90
//! (ext4 on a virtual disk). So a thread that has nothing else to do writes zeros ahead of a commit that is small. What is behind
//! the end of a segment is zero in any case, so no reader can tell where it was done.

use std::ops::Range;
use std::sync::Arc;

use embar_disk::{AlignedBuffer, Commit, StoredFile};
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
    /// Where the last commit ends.
    commits_end: u64,
    /// Bytes of small commits since the last larger one.
    small_bytes: u64,
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

    /// A commit was made. True if it has to wait for zeros that are being written there.
    pub fn follow(&mut self, commit: &Commit) -> bool {
        self.commits_end = commit.at + commit.len as u64;
        // What only says that the last one counts comes at any load.
        if commit.payload_bytes > 0 {
            self.small_bytes = match commit.len <= SMALL_BYTES {
                true => self.small_bytes + commit.len as u64,
                false => 0,
            };
        }
        self.is_written(&(commit.at..self.commits_end))
    }

    /// Whether a thread writes zeros there.
    fn is_written(&self, range: &Range<u64>) -> bool {
        let writing = self.writing.as_ref();
        writing.is_some_and(|its| its.start < range.end && range.start < its.end)
    }

    /// Where zeros are to be written now, with so much room behind the commits.
    fn take(&mut self, room: u64) -> Option<u64> {
        let is_far = self.end >= self.commits_end + LEFT_BYTES;
        let is_small = self.small_bytes >= LEFT_BYTES;
        if self.is_given_up || self.writing.is_some() || is_far || !is_small {
            return None;
        }
        let start = match self.end > self.commits_end {
            true => self.end,
            // Small commits are written before that while the zeros are.
            false => self.commits_end + LEFT_BYTES,
        };
        let end = start + ZEROS_BYTES as u64;
        if end > self.commits_end + room {
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
    /// Whether the disk is still written as it was, in this file.
    fn writes_to(&self, term: Term, file: &Arc<File>) -> bool {
        self.term == term && self.file.as_ref().is_some_and(|it| Arc::ptr_eq(it, file))
    }

    /// Where zeros are to be written now.
    pub(super) fn next_zeros(&mut self) -> Option<(Arc<File>, u64)> {
        let file = self.file.as_ref().filter(|_| self.gains_by_zeros)?;
        let at = self.zeros.take(self.writer.room())?;
        Some((Arc::clone(file), at))
    }
}

impl Shared {
    /// Writes zeros at a place where no commit is, or is written.
    pub(super) fn write_zeros(&self, term: Term, file: &Arc<File>, at: u64, recorder: &Recorder) {
        let written = file.write_synced(at, &AlignedBuffer::new(ZEROS_BYTES), ZEROS_BYTES);
        recorder.count(Counter::Bytes as usize, ZEROS_BYTES as u64);
        let mut state = lock(&self.state);
        let open = state.open.as_mut();
        if let Some(open) = open.filter(|open| open.writes_to(term, file)) {
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

    /// Until nobody writes zeros in this part of a file any more. False if that cannot be known any more, as the disk is not written as it was when
    /// the zeros were begun: what is written there now could be lost by them later, and is not to be written.
    pub(super) fn wait_for_zeros(&self, term: Term, file: &Arc<File>, range: &Range<u64>) -> bool {
        let mut state = lock(&self.state);
        loop {
            let same = state
                .open
                .as_ref()
                .filter(|open| open.writes_to(term, file));
            let same = same.filter(|open| open.health != Health::Failed);
            match same.map(|open| open.zeros.is_written(range)) {
                Some(true) => state = self.wait(state),
                Some(false) => return true,
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: u64 = 4 << 20;
    const COMMIT: usize = 4 << 10;

    fn follow(zeros: &mut Zeros, at: u64, len: usize) -> bool {
        zeros.follow(&Commit {
            segment: 0,
            at,
            buffer: AlignedBuffer::new(0),
            len,
            payload_bytes: 1,
            ticket: 0,
        })
    }

    fn take(zeros: &mut Zeros) -> Option<u64> {
        let room = SEGMENT_BYTES.checked_sub(zeros.commits_end);
        zeros.take(room.unwrap_or(0))
    }

    /// A thread writes what is to be written, if anything is.
    fn write(zeros: &mut Zeros) -> Option<u64> {
        let at = take(zeros)?;
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
            assert!(!follow(&mut zeros, at, COMMIT), "nobody writes there");
            at += COMMIT as u64;
            if let Some(zeros) = write(&mut zeros) {
                assert!(zeros >= at && (writes == 0 || zeros == to), "{zeros} {at}");
                from = if writes == 0 { zeros } else { from };
                to = zeros + ZEROS_BYTES as u64;
                writes += 1;
            }
        }
        assert!(found > 470, "{found}");
        assert!(writes <= 512 * COMMIT / ZEROS_BYTES + 1, "{writes}");
    }

    #[test]
    fn where_large_commits_come_none_are_written() {
        let mut zeros = Zeros::default();
        let mut at = 0;
        for number in 0..64 {
            let len = match number % 4 {
                3 => SMALL_BYTES + COMMIT,
                _ => COMMIT,
            };
            follow(&mut zeros, at, len);
            at += len as u64;
            assert_eq!(write(&mut zeros), None, "small ones are between large ones");
        }
        for _ in 0..64 {
            zeros.follow(&Commit {
                segment: 0,
                at,
                buffer: AlignedBuffer::new(0),
                len: COMMIT,
                payload_bytes: 0,
                ticket: 0,
            });
            at += COMMIT as u64;
            assert_eq!(write(&mut zeros), None, "these are in no hurry");
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
                        let most = random.u32(1..8);
                        let len = COMMIT << random.u32(..most);
                        let is_behind = follow(&mut zeros, at, len);
                        let end = at + len as u64;
                        let overlaps =
                            writing.is_some_and(|its| its < end && at < its + ZEROS_BYTES as u64);
                        assert_eq!(is_behind, overlaps, "it waits where they would meet");
                        at = end;
                    }
                    1 if writing.is_none() => {
                        writing = take(&mut zeros);
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
