//! A candidate's life, turn by turn: it watches the one that sequences, takes over when that one is gone, and
//! sequences until a successor has raised a higher epoch; then it watches again.
//!
//! The time and who is alive go in; what a turn came to, whose brokers are to be woken, and when the next turn
//! is due come out. The thread of a candidate drives it, and so does the simulator.

mod chains;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_frame::Now;
use embar_memory::Memory;
use embar_order::{LeaderWatch, Limits, Sequencer, Step, TakeoverError};

use crate::config::BrokerConfig;
use crate::log::is_intact;
use chains::Chains;

/// How often a watch looks whether the one that sequences lives, at least.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the sequencer says that it lives, at least.
const BEAT_EVERY: Duration = Duration::from_millis(100);
/// Beats in the lease after which others take over.
const BEATS_PER_LEASE: u32 = 10;
/// How often chains whose topics were deleted are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Records in one step that show that more are on their way.
const BUSY_RECORDS: usize = 2;
/// How long a busy sequencer lets records gather before it looks again. It takes them with one step
/// then, nobody has to wake it, and brokers are woken once for many.
const GATHER: Duration = Duration::from_micros(50);
/// All rows' bits.
const EVERYBODY: u128 = u128::MAX;

/// What a turn came to, and when the next one is due.
#[derive(Debug)]
pub struct Turn {
    /// What it came to.
    pub outcome: Outcome,
    /// When the next one is due.
    pub due: Due,
}

/// What a turn came to.
#[derive(Debug)]
pub enum Outcome {
    /// Another one sequences.
    Watched,
    /// It was to take over and could not. Nothing is wrong where another candidate was faster.
    Failed(TakeoverError),
    /// It sequences from now on.
    TookOver {
        /// Bit by bit, the rows of data brokers that live.
        living: u128,
    },
    /// It sequenced.
    Stepped {
        /// What came of it.
        step: Step,
        /// Bit by bit, the rows of data brokers that live, if it was time to look.
        living: Option<u128>,
    },
    /// Another one sequences now, and this one watches.
    Deposed {
        /// Its own epoch, which is over.
        epoch: u32,
    },
}

/// When a turn is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// After that time: nobody rings before.
    After(Duration),
    /// When somebody rings, or [`Candidacy::rest`] is over.
    Rung,
}

impl Turn {
    /// Rows (bit by bit) whose brokers have something to look at.
    pub fn rings(&self) -> u128 {
        match &self.outcome {
            // Whoever waits for an answer of a predecessor is to submit again.
            Outcome::TookOver { .. } => EVERYBODY,
            Outcome::Stepped { step, .. } => rings(step),
            Outcome::Watched | Outcome::Failed(_) | Outcome::Deposed { .. } => 0,
        }
    }
}

/// What was ordered is news for all who export it.
fn rings(step: &Step) -> u128 {
    if step.ordered > 0 {
        EVERYBODY
    } else {
        step.notified
    }
}

/// See the module.
pub struct Candidacy<M: Memory> {
    region: Region<M>,
    claim: Arc<Claim>,
    limits: Limits,
    lease: Duration,
    look_every: Duration,
    chains: Chains<M>,
    state: State<M>,
}

enum State<M: Memory> {
    Watches(Watch),
    Leads(Box<Leader<M>>),
}

struct Watch {
    leader_watch: LeaderWatch,
    /// A takeover failed: it is not tried again before.
    not_before: Now,
}

struct Leader<M: Memory> {
    sequencer: Sequencer<M>,
    beat_every: Duration,
    next_beat: Now,
    next_sweep: Now,
}

impl<M: Memory> Candidacy<M> {
    /// The claimed candidate's, which watches from now on.
    pub fn new(region: &Region<M>, claim: &Arc<Claim>, config: &BrokerConfig, now: Now) -> Self {
        let lease = config.sequencer_lease;
        let watch = Watch::new(lease, now);
        let look_every = Duration::from_nanos(watch.leader_watch.look_every_ns());
        Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            limits: config.order_limits(),
            lease,
            look_every: LOOK_EVERY.min(look_every),
            chains: Chains::of(region),
            state: State::Watches(watch),
        }
    }

    /// The sequencer, while it is one.
    pub fn sequencer(&self) -> Option<&Sequencer<M>> {
        match &self.state {
            State::Leads(leader) => Some(&leader.sequencer),
            State::Watches(_) => None,
        }
    }

    /// The name of the topic that a chain is, as far as it is known.
    pub fn topic_name(&self, chain: u32) -> Option<String> {
        self.chains.name(chain)
    }

    /// Does what is due. `alive` tells of a row whether its process lives.
    pub fn turn(&mut self, now: Now, alive: &dyn Fn(u16) -> bool) -> Turn {
        match &mut self.state {
            State::Leads(leader) => {
                let turn = leader.turn(now, &self.region, &self.chains, alive);
                if let Outcome::Deposed { .. } = turn.outcome {
                    self.state = State::Watches(Watch::new(self.lease, now));
                }
                turn
            }
            State::Watches(watch) => {
                // A row of our own that shows the highest epoch is that of an incarnation before us.
                let others = |row| row != self.claim.row() && alive(row);
                let due = now >= watch.not_before
                    && watch
                        .leader_watch
                        .should_take_over(&self.region, now.0, &others);
                if due {
                    self.take_over(now, alive)
                } else {
                    self.watches_on(Outcome::Watched)
                }
            }
        }
    }

    /// Takes over from whoever sequences. [`Candidacy::turn`] does so when it is time.
    pub fn take_over(&mut self, now: Now, alive: &dyn Fn(u16) -> bool) -> Turn {
        let sequencer = match self.depose() {
            Ok(sequencer) => sequencer,
            Err(error) => {
                if let State::Watches(watch) = &mut self.state
                    && error != TakeoverError::Overtaken
                {
                    watch.not_before = now.after(self.lease);
                }
                return self.watches_on(Outcome::Failed(error));
            }
        };
        let living = living(&self.region, alive);
        self.state = State::Leads(Box::new(Leader {
            sequencer,
            beat_every: BEAT_EVERY.min(self.lease / BEATS_PER_LEASE),
            next_beat: now,
            next_sweep: now,
        }));
        Turn {
            outcome: Outcome::TookOver { living },
            due: Due::Now,
        }
    }

    fn depose(&self) -> Result<Sequencer<M>, TakeoverError> {
        let region = self.region.clone();
        let exists = |chain| self.chains.exists(chain);
        let intact = Box::new(move |row, record: &_| is_intact(&region, row, record));
        let mut sequencer =
            Sequencer::take_over(&self.region, &self.claim, &self.limits, &exists, intact)?;
        // Also what nobody has opened since it was deleted; later only what goes is looked after.
        drop(self.chains.refresh());
        sequencer.retain_chains(&exists);
        Ok(sequencer)
    }

    fn watches_on(&self, outcome: Outcome) -> Turn {
        Turn {
            outcome,
            due: Due::After(self.look_every),
        }
    }

    /// How long it rests if nobody rings: until a lease of the core's ends, or it is to say again that it
    /// lives.
    pub fn rest(&self, now: Now) -> Duration {
        match &self.state {
            State::Leads(leader) => leader.rest(now),
            State::Watches(_) => self.look_every,
        }
    }
}

impl Watch {
    fn new(lease: Duration, now: Now) -> Self {
        Self {
            leader_watch: LeaderWatch::new(nanos(lease), now.0),
            not_before: now,
        }
    }
}

impl<M: Memory> Leader<M> {
    fn turn(
        &mut self,
        now: Now,
        region: &Region<M>,
        chains: &Chains<M>,
        alive: &dyn Fn(u16) -> bool,
    ) -> Turn {
        let mut looked = None;
        if now >= self.next_beat {
            let living = living(region, alive);
            if !self.sequencer.beat(&|row| living & 1 << row != 0) {
                let epoch = self.sequencer.epoch();
                return Turn {
                    outcome: Outcome::Deposed { epoch },
                    due: Due::Now,
                };
            }
            looked = Some(living);
            self.next_beat = now.after(self.beat_every);
        }
        if now >= self.next_sweep {
            for gone in chains.refresh() {
                self.sequencer.close_chain(gone);
            }
            self.next_sweep = now.after(SWEEP_EVERY);
        }
        let step = self.sequencer.step(now.0, &|chain| chains.exists(chain));
        Turn {
            due: self.due_after(&step),
            outcome: Outcome::Stepped {
                step,
                living: looked,
            },
        }
    }

    fn due_after(&self, step: &Step) -> Due {
        if step.taken >= BUSY_RECORDS {
            Due::After(GATHER)
        } else if step.taken > 0 || rings(step) != 0 || self.sequencer.is_closing() {
            Due::Now
        } else {
            Due::Rung
        }
    }

    fn rest(&self, now: Now) -> Duration {
        let most = self.next_beat.min(self.next_sweep).since(now);
        let deadline = self.sequencer.core().next_deadline();
        deadline.map_or(most, |left| most.min(Duration::from_nanos(left)))
    }
}

/// Bit by bit, the rows of data brokers that live. To ask takes a look at a lock, so it is done once.
fn living<M: Memory>(region: &Region<M>, alive: &dyn Fn(u16) -> bool) -> u128 {
    let rows = region.geometry().data_rows();
    let living = rows.filter(|row| alive(*row));
    living.fold(0, |living, row| living | 1 << row)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
