//! What the threads of a disk do beside commits.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_disk::Storage;
use embar_disk::format::{Before, SegmentIndex, index_name, segment_name};
use embar_meter::profile::Recorder;
use embar_order::Term;

use super::{File, Health, Open, Shared, lock};
use crate::profile::disk::Counter;

/// What there is to do.
pub(super) enum Chore {
    Remove(Vec<u64>),
    Index(SegmentIndex),
    /// Give back what these topics, which are gone, have in this segment.
    GiveBack(Term, Before, BTreeSet<u32>),
    /// See that there is a reserve of so many bytes.
    Reserve(u64),
    /// Make the file of the next segment, which has this number and so many bytes.
    Prepare(Term, (u64, u64)),
    /// Write zeros at a place in the file.
    Zeros(Term, Arc<File>, u64),
}

/// A thread has a chore until this is dropped, whatever becomes of the thread.
struct ChoresPlace<'a>(&'a Shared);

impl Drop for ChoresPlace<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).chores -= 1;
        // There may be more to do.
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Does what was counted as a chore when it was taken.
    pub(super) fn do_chore(&self, chore: Chore, recorder: &Recorder) {
        let _place = ChoresPlace(self);
        match chore {
            Chore::Remove(segments) => self.remove(&segments),
            Chore::Index(index) => self.store_index(&index, recorder),
            Chore::GiveBack(term, segment, gone) => self.give_back(term, &segment, &gone),
            Chore::Reserve(bytes) => self.keep_reserve(bytes),
            Chore::Prepare(term, next) => self.prepare(term, next),
            Chore::Zeros(term, file, at) => self.write_zeros(term, &file, at, recorder),
        }
    }

    /// Without it, readers go through the segment.
    pub(super) fn store_index(&self, index: &SegmentIndex, recorder: &Recorder) {
        match embar_disk::store_index(self.directory(), index) {
            Ok(bytes) => recorder.count(Counter::Bytes as usize, bytes as u64),
            Err(error) => {
                let segment = index.segment.number;
                tracing::warn!(
                    disk = self.number,
                    segment,
                    "cannot store the index of a segment: {error}"
                );
            }
        }
    }

    /// Removes segments and their indexes.
    pub(super) fn remove(&self, segments: &[u64]) {
        for segment in segments {
            for name in [segment_name(*segment), index_name(*segment)] {
                match self.directory().remove(&name) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!(
                            disk = self.number,
                            name,
                            "cannot remove a file that nobody needs: {error}"
                        );
                    }
                    _ => {}
                }
            }
        }
    }

    /// Gives back what topics that are gone have in a segment that is over.
    pub(super) fn give_back(&self, term: Term, segment: &Before, gone: &BTreeSet<u32>) {
        // What is not given back now, a successor gives back.
        let mut may_go_on = || term.lasts(&self.region);
        let given = embar_disk::give_back(self.directory(), segment, gone, &mut may_go_on);
        match &given {
            Ok(_) => {}
            // It was removed as a whole.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                if !self.says_no_holes.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        disk = self.number,
                        directory = %self.directory().path().display(),
                        "the file system cannot give back a part of a file: what deleted topics took comes back when their segments are the oldest"
                    );
                }
            }
            Err(error) => tracing::warn!(
                disk = self.number,
                segment = segment.number,
                "cannot give back what deleted topics took: {error}"
            ),
        }
        let mut state = lock(&self.state);
        if let Some(open) = state.open.as_mut().filter(|open| open.term == term) {
            open.gives_back = false;
            open.writer.gave_back(segment.number, given.unwrap_or(0));
        }
    }
}

impl Open {
    /// What is to be done beside gathering.
    pub(super) fn next_chore(&mut self) -> Option<Chore> {
        let removals = self.writer.take_removals();
        if !removals.is_empty() {
            return Some(Chore::Remove(removals));
        }
        if let Some(index) = self.writer.take_index() {
            return Some(Chore::Index(index));
        }
        if !self.gives_back
            && let Some((segment, gone)) = self.writer.take_gone()
        {
            self.gives_back = true;
            return Some(Chore::GiveBack(self.term, segment, gone));
        }
        let next = self.writer.next_segment();
        if self.health == Health::Good && self.file.is_some() && self.reserved != next.0 {
            self.reserved = next.0;
            return Some(Chore::Reserve(self.writer.reserve_bytes()));
        }
        if self.health == Health::Good
            && self.preparing != next.0
            && self.writer.wants_segment_soon()
        {
            (self.preparing, self.is_preparing) = (next.0, true);
            return Some(Chore::Prepare(self.term, next));
        }
        if self.health == Health::Good
            && let Some((file, at)) = self.next_zeros()
        {
            return Some(Chore::Zeros(self.term, file, at));
        }
        None
    }
}
