//! What keeps a broker in its cluster. With each beat it publishes that it lives, looks whether the sequencer lives,
//! refreshes its topic table, and takes a step of leaving if it leaves.

use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::records::ControlRow;
use embar_fabric::region::{IncarnationWriter, Region};
use embar_fabric::rows::RowWriter;
use embar_memory::Memory;

use crate::clock::Timestamp;
use crate::drain::{Drain, DrainStep};
use crate::node::Node;

/// Time between two beats.
const EVERY: Duration = Duration::from_millis(250);
/// Time between two beats of a broker that leaves.
const EVERY_LEAVING: Duration = Duration::from_millis(10);

/// The heartbeat of one broker.
pub struct Heartbeat<M: Memory> {
    control: RowWriter<M, ControlRow>,
    pid: u32,
    incarnation: u32,
    kept_incarnation: IncarnationWriter<M>,
    /// The highest epoch that any incarnation of this row has seen: where a sequencer's own row is lost, no
    /// successor takes a lower one.
    epoch_seen: u64,
    drain: Drain,
}

/// What a beat came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The broker goes on, or leaves. The next beat is due after that time.
    GoesOn(DrainStep, Duration),
    /// The others went on without it: it has to end, and to start again.
    Overtaken,
}

impl<M: Memory> Heartbeat<M> {
    /// Of the process `pid`. It has published nothing yet.
    pub fn new(region: &Region<M>, claim: &Claim, pid: u32) -> Self {
        Self {
            control: region.control_row_writer(claim),
            pid,
            incarnation: claim.incarnation(),
            kept_incarnation: region.incarnation_writer(claim),
            epoch_seen: region
                .control_row(claim.row())
                .found()
                .map_or(0, |row| row.epoch_seen),
            drain: Drain::default(),
        }
    }

    /// Publishes that a broker lives that is about to start.
    pub fn begin(&mut self, at: Timestamp) {
        self.publish(at);
    }

    fn publish(&mut self, at: Timestamp) {
        self.control.store(&ControlRow {
            pid: self.pid,
            incarnation: self.incarnation,
            epoch_seen: self.epoch_seen,
            heartbeat: at.wall.0,
            ..ControlRow::default()
        });
    }

    /// The next beat of a broker that serves. `is_alone` says whether all of its peers went.
    pub fn beat(&mut self, node: &Node<M>, at: Timestamp, is_alone: bool) -> Beat {
        let epoch = node.term().map_or(0, |term| term.epoch);
        self.epoch_seen = self.epoch_seen.max(epoch.into());
        self.publish(at);
        if self.kept_incarnation.restore() {
            tracing::warn!("memory had lost this broker's incarnation: it is stored again");
        }
        node.restore();
        node.release_held();
        node.watch_sequencer(at.now);
        node.refresh_topics();
        node.replace_failed_disks();
        if node.is_overtaken() {
            return Beat::Overtaken;
        }
        let drain = self.drain.step(node, at.now, is_alone);
        let next = match drain {
            DrainStep::None | DrainStep::Finish => EVERY,
            DrainStep::Begin | DrainStep::Wait => EVERY_LEAVING,
        };
        Beat::GoesOn(drain, next)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use embar_frame::Now;
    use embar_wire::time::WallNs;

    use super::*;
    use crate::test_region;

    #[test]
    fn the_next_incarnation_announces_the_seen_epoch_too() {
        let region = test_region::region(&test_region::geometry());
        let claim = region.claim_unlocked(1);
        region.control_row_writer(&claim).store(&ControlRow {
            epoch_seen: 7,
            ..ControlRow::default()
        });
        let at = Timestamp {
            now: Now(1),
            wall: WallNs(2),
        };
        Heartbeat::new(&region, &claim, 3).begin(at);
        let row = region.control_row(1).found().expect("it was stored");
        assert_eq!((row.pid, row.epoch_seen, row.heartbeat), (3, 7, 2));
    }
}
