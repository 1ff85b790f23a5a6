//! A disk that takes nothing, for now or for good.

use std::time::Instant;

use super::{Health, Open, Shared};

impl Shared {
    /// The disk has no room: what waits for it waits, and it is looked at again.
    pub(super) fn fill(&self, open: &mut Open) {
        if !matches!(open.health, Health::Full(_)) {
            open.writer.say_full();
            tracing::error!(
                disk = self.number,
                directory = %self.directory().path().display(),
                "the disk is full: publishers of its topics wait, and all others go on; remove what else is there, delete topics or let them retain less, and it goes on by itself"
            );
        }
        open.health = Health::Full(Instant::now());
    }

    pub(super) fn has_room(&self, open: &mut Open) {
        if matches!(open.health, Health::Full(_)) {
            tracing::info!(disk = self.number, "the disk has room again");
        }
        open.health = Health::Good;
    }

    /// The disk takes nothing any more in this term: what a failed write left nobody knows.
    pub(super) fn fail(&self, open: &mut Open, why: &str) {
        open.health = Health::Failed;
        open.writer.fail();
        tracing::error!(
            disk = self.number,
            directory = %self.directory().path().display(),
            "the disk has failed: {why}; batches of its topics are not acknowledged at acks 2 any more; replace it, and start the cluster again"
        );
    }
}
