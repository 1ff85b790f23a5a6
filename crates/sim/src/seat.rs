//! A candidate of a host: it watches the one that sequences, takes over, and sequences until it is
//! deposed. What the broker's own thread does, without the thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use embar_broker::log::is_intact;
use embar_broker::topics::TopicTable;
use embar_fabric::{Claim, PbrRecord, Region, Simulated};
use embar_order::{Candidate, Limits, Sequencer, Step, TakeoverError};

use crate::lease::Patience;
use crate::violation::Violation;

/// Between two looks for topics that were deleted, in nanoseconds.
const SWEEP_EVERY_NS: u64 = 250_000_000;
/// Beats in the lease after which others take over.
const BEATS_PER_LEASE: u64 = 10;

/// What a turn came to.
#[derive(Debug)]
pub enum Turn {
    /// It watches.
    Watched,
    /// It sequences from now on.
    TookOver(u32),
    /// Its takeover failed.
    Failed(TakeoverError),
    /// It was deposed.
    Deposed,
    /// It sequenced.
    Stepped(Step),
    /// It did what it must not do.
    Broke(Violation),
}

/// See the module.
pub struct Seat {
    row: u16,
    claim: Arc<Claim>,
    region: Region<Simulated>,
    limits: Limits,
    lease_ns: u64,
    watch: Candidate,
    topics: Rc<RefCell<TopicTable<Simulated>>>,
    sequencer: Option<Box<Sequencer<Simulated>>>,
    next_beat: u64,
    next_sweep: u64,
    patience: Patience,
    /// It takes over at its next turn, whoever reigns.
    pub usurps: bool,
}

/// How a seat knows the others.
#[derive(Clone, Copy)]
pub struct Membership {
    /// Whether the process of a row lives.
    pub alive: fn(u16) -> bool,
}

impl Seat {
    /// A seat that watches from now on.
    pub fn new(
        region: &Region<Simulated>,
        claim: &Arc<Claim>,
        limits: Limits,
        lease: Duration,
        now: u64,
    ) -> Self {
        let lease_ns = lease.as_nanos() as u64;
        Self {
            row: claim.row(),
            claim: Arc::clone(claim),
            topics: Rc::new(RefCell::new(TopicTable::attach(region, None))),
            region: region.clone(),
            limits,
            lease_ns,
            watch: Candidate::new(lease_ns, now),
            sequencer: None,
            next_beat: 0,
            next_sweep: 0,
            patience: Patience::default(),
            usurps: false,
        }
    }

    /// The sequencer, while it is one.
    pub fn sequencer(&self) -> Option<&Sequencer<Simulated>> {
        self.sequencer.as_deref()
    }

    /// When its next turn is due, if nobody rings before.
    pub fn next_at(&self, now: u64) -> u64 {
        let Some(sequencer) = &self.sequencer else {
            return now + self.watch.look_every_ns();
        };
        let deadline = sequencer.core().next_deadline();
        let beat = self.next_beat.min(self.next_sweep);
        deadline.map_or(beat, |left| beat.min(now + left))
    }

    /// Does what is due.
    pub fn turn(&mut self, now: u64, membership: Membership) -> Turn {
        let Some(sequencer) = &mut self.sequencer else {
            return self.watch(now, membership);
        };
        if now >= self.next_beat {
            if !sequencer.beat(&membership.alive) {
                self.sequencer = None;
                return Turn::Deposed;
            }
            self.next_beat = now + self.lease_ns / BEATS_PER_LEASE;
        }
        if now >= self.next_sweep {
            let gone = {
                let mut topics = self.topics.borrow_mut();
                topics.refresh();
                topics.take_gone()
            };
            if self.next_sweep == 0 {
                sequencer.retain_chains(&exists(&self.topics));
            }
            gone.into_iter()
                .for_each(|chain| sequencer.close_chain(chain));
            self.next_sweep = now + SWEEP_EVERY_NS;
        }
        let before = sequencer.core().figures();
        let step = sequencer.step(now, &exists(&self.topics));
        let after = sequencer.core().figures();
        match self.patience.judge(before, after, self.limits.held) {
            Ok(()) => Turn::Stepped(step),
            Err(violation) => Turn::Broke(violation),
        }
    }

    fn watch(&mut self, now: u64, membership: Membership) -> Turn {
        let me = self.row;
        // A row of our own that shows the highest epoch is that of an incarnation before us.
        let alive = |row| row != me && (membership.alive)(row);
        let due = self.watch.should_take_over(&self.region, now, &alive);
        if !due && !self.usurps {
            return Turn::Watched;
        }
        match self.take_over() {
            Err(error) => Turn::Failed(error),
            Ok(sequencer) => {
                let epoch = sequencer.epoch();
                self.sequencer = Some(Box::new(sequencer));
                (self.next_beat, self.next_sweep, self.usurps) = (0, 0, false);
                self.patience = Patience::default();
                Turn::TookOver(epoch)
            }
        }
    }

    fn take_over(&self) -> Result<Sequencer<Simulated>, TakeoverError> {
        let region = self.region.clone();
        let intact = Box::new(move |row, record: &PbrRecord| is_intact(&region, row, record));
        let exists = exists(&self.topics);
        Sequencer::take_over(&self.region, &self.claim, &self.limits, &exists, intact)
    }
}

/// Whether the topic of a chain exists, as far as a look now tells.
fn exists(topics: &Rc<RefCell<TopicTable<Simulated>>>) -> impl Fn(u32) -> bool {
    let topics = Rc::clone(topics);
    move |chain| {
        let mut topics = topics.borrow_mut();
        if topics.by_id(chain).is_none() {
            topics.refresh();
        }
        topics.by_id(chain).is_some()
    }
}
