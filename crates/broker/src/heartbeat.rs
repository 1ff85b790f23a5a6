//! What keeps a broker in its cluster, beat by beat: it says that it lives, looks whether the one that
//! sequences does, takes in which topics there are, and sees to its own end.

use std::time::Duration;

use embar_fabric::memory::Memory;
use embar_fabric::owner::Claim;
use embar_fabric::records::ControlRow;
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;

use crate::departure::{Departure, Leaving};
use crate::node::Node;
use crate::shard::At;

/// Time between two beats.
const EVERY: Duration = Duration::from_millis(250);
/// Time between two beats of a broker that leaves.
const EVERY_LEAVING: Duration = Duration::from_millis(10);

/// See the module.
pub struct Heartbeat<M: Memory> {
    control: RowWriter<M, ControlRow>,
    pid: u32,
    incarnation: u32,
    departure: Departure,
}

/// What a beat came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The broker goes on, or leaves. The next beat is due after that time.
    GoesOn(Leaving, Duration),
    /// Others went on without it: it is to end, and to be started again.
    Overtaken,
}

impl<M: Memory> Heartbeat<M> {
    /// That of the process `pid`, which says nothing yet.
    pub fn new(region: &Region<M>, claim: &Claim, pid: u32) -> Self {
        Self {
            control: region.control_row_writer(claim),
            pid,
            incarnation: claim.incarnation(),
            departure: Departure::default(),
        }
    }

    /// Says that a broker lives that is about to start.
    pub fn begin(&mut self, at: At) {
        self.say(at, 0);
    }

    fn say(&mut self, at: At, epoch_seen: u32) {
        self.control.store(&ControlRow {
            pid: self.pid,
            incarnation: self.incarnation,
            epoch_seen: epoch_seen.into(),
            heartbeat: at.wall.0,
            ..ControlRow::default()
        });
    }

    /// The next beat of a broker that serves. `is_alone` says whether all of its peers went.
    pub fn beat(&mut self, node: &Node<M>, at: At, is_alone: bool) -> Beat {
        self.say(at, node.reign().map_or(0, |reign| reign.epoch));
        node.watch_sequencer(at.now);
        node.refresh_topics();
        if node.is_overtaken() {
            return Beat::Overtaken;
        }
        let leaving = self.departure.step(node, at.now, is_alone);
        let next = match leaving {
            Leaving::No | Leaving::Ends => EVERY,
            Leaving::Begins | Leaving::GoesOn => EVERY_LEAVING,
        };
        Beat::GoesOn(leaving, next)
    }
}
