//! A disk that takes nothing, for now or for good.

use std::time::Instant;

use super::{Health, Open, Shared, State, is_full};

impl Shared {
    /// The disk has no room: what waits for it waits, and it is looked at again.
    pub(super) fn fill(&self, open: &mut Open) {
        if !matches!(open.health, Health::Full(_)) {
            open.writer.say_full();
            tracing::error!(
                disk = self.number,
                directory = %self.directory().path().display(),
                "the disk is full: publishers of its topics wait, and all others go on; remove what else is there, or delete topics, and it goes on by itself"
            );
        }
        open.health = Health::Full(Instant::now());
    }

    /// Goes on if there is room by now for the next segment.
    pub(super) fn look_for_room(&self, state: &mut State) {
        let Some(open) = &mut state.open else {
            return;
        };
        if open.is_torn {
            // What counts is to be found out first.
            state.open = None;
            return;
        }
        let prepared = open.prepared.take();
        let next = open.writer.next_segment().0;
        let made = match prepared.filter(|(number, _)| *number == next) {
            Some((_, file)) => Ok(file),
            None => open.writer.make_segment(self.directory()),
        };
        match made {
            Ok(file) => {
                open.prepared = Some((open.writer.next_segment().0, file));
                open.health = Health::Good;
                open.writer.say_room();
                tracing::info!(disk = self.number, "the disk has room again");
            }
            Err(error) if is_full(&error) => open.health = Health::Full(Instant::now()),
            Err(error) => self.fail(open, &format!("no segment can be made: {error}")),
        }
    }

    /// While there is room.
    pub(super) fn keep_reserve(&self, bytes: u64) {
        match embar_disk::keep_reserve(self.directory(), bytes) {
            // It is seen to again with the next segment.
            Err(error) if !is_full(&error) => {
                tracing::warn!(disk = self.number, "cannot keep a reserve: {error}");
            }
            _ => {}
        }
    }

    /// The disk takes nothing any more in this term: what a failed write left nobody knows.
    pub(super) fn fail(&self, open: &mut Open, why: &str) {
        open.health = Health::Failed;
        open.writer.fail();
        tracing::error!(
            disk = self.number,
            directory = %self.directory().path().display(),
            "the disk has failed: {why}; its topics are not acknowledged at acks 2 unless another disk takes its place; replace it, and start the cluster again"
        );
    }
}
