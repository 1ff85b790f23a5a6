//! A candidate, turn by turn: it watches the sequencer, takes over when the sequencer is gone, and sequences until
//! a successor has raised a higher epoch. Then it watches again.
//!
//! The time and who is alive go in. The outcome of a turn, the brokers to wake, and the time of the next turn come
//! out. The thread of a candidate drives it, and so does the simulator.

mod chains;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_frame::Now;
use embar_memory::Memory;
use embar_order::{LeaderWatch, Leadership, Limits, Sequencer, Step, TakeoverError, Term};

use crate::config::BrokerConfig;
use crate::log::is_intact;
use chains::Chains;

/// How often the first of the living standbys looks whether the sequencer lives, at least.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often those behind it look, at least: they are needed only where it cannot take over.
const LOOK_BEHIND_EVERY: Duration = Duration::from_millis(100);
/// How often the sequencer stores its heartbeat, at least.
const BEAT_EVERY: Duration = Duration::from_millis(100);
/// Beats in the lease after which others take over.
const BEATS_PER_LEASE: u32 = 10;
/// How often the sequencer looks for chains whose topics were deleted.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Records in one step that show that more are on their way.
const BUSY_RECORDS: usize = 2;
/// How long a busy sequencer lets records gather before it looks again. Then one step takes them all. No broker has
/// to wake the sequencer, and it wakes brokers once for many records.
const GATHER: Duration = Duration::from_micros(50);
/// All rows' bits.
const ALL_ROWS: u128 = u128::MAX;

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
    /// It tried to take over and failed. Nothing is wrong if another candidate was faster.
    Failed(TakeoverError),
    /// It sequences from now on.
    TookOver {
        /// The rows of data brokers that live, a bit each.
        living: u128,
    },
    /// It sequenced.
    Stepped {
        /// What came of it.
        step: Step,
        /// The rows of data brokers that live, a bit each, if it was time to look.
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
    /// After that time. Nothing wakes the candidate before.
    After(Duration),
    /// When a broker wakes it, or [`Candidacy::rest`] is over.
    OnWakeup,
}

impl Turn {
    /// The rows of the brokers to wake, a bit each.
    pub fn to_wake(&self) -> u128 {
        match &self.outcome {
            // Brokers that wait for an answer of a predecessor have to submit again.
            Outcome::TookOver { .. } => ALL_ROWS,
            Outcome::Stepped { step, .. } => to_wake(step),
            Outcome::Watched | Outcome::Failed(_) | Outcome::Deposed { .. } => 0,
        }
    }
}

/// All rows if something was ordered, because every broker may have subscribers for it.
fn to_wake(step: &Step) -> u128 {
    if step.ordered > 0 {
        ALL_ROWS
    } else {
        step.notified
    }
}

/// One candidate: a watch over the sequencer, or the sequencer.
pub struct Candidacy<M: Memory> {
    region: Region<M>,
    claim: Arc<Claim>,
    limits: Limits,
    lease: Duration,
    chains: Chains<M>,
    state: State<M>,
}

enum State<M: Memory> {
    Watches(Watch),
    Leads(Box<Leader<M>>),
}

struct Watch {
    leader_watch: LeaderWatch,
    look_every: Duration,
    /// After a takeover that failed: when it may try again.
    not_before: Now,
}

struct Leader<M: Memory> {
    sequencer: Sequencer<M>,
    beat_every: Duration,
    next_beat: Now,
    next_sweep: Now,
}

impl<M: Memory> Candidacy<M> {
    /// Of the claimed candidate, which watches from now on.
    pub fn new(region: &Region<M>, claim: &Arc<Claim>, config: &BrokerConfig, now: Now) -> Self {
        let lease = config.sequencer_lease;
        let watch = Watch::new(lease, now);
        Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            limits: config.order_limits(),
            lease,
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

    /// The name of a chain's topic, if the topic table has it.
    pub fn topic_name(&self, chain: u32) -> Option<String> {
        self.chains.name(chain)
    }

    /// Does what is due. `alive` says whether a row's process lives.
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
                // If this candidate's own row shows the highest epoch, it is that of an earlier incarnation.
                let others = |row| row != self.claim.row() && alive(row);
                let due = now >= watch.not_before
                    && watch
                        .leader_watch
                        .should_take_over(&self.region, now.0, &others);
                if due {
                    return self.take_over(now, alive);
                }
                let is_behind = is_behind(&self.region, self.claim.row(), alive);
                watch.look_every(if is_behind {
                    LOOK_BEHIND_EVERY
                } else {
                    LOOK_EVERY
                });
                self.watches_on(now, Outcome::Watched)
            }
        }
    }

    /// Takes over from the sequencer. [`Candidacy::turn`] does so when it is time.
    pub fn take_over(&mut self, now: Now, alive: &dyn Fn(u16) -> bool) -> Turn {
        let sequencer = match self.depose() {
            Ok(sequencer) => sequencer,
            Err(error) => {
                if let State::Watches(watch) = &mut self.state
                    && error != TakeoverError::Overtaken
                {
                    watch.not_before = now.after(self.lease);
                }
                return self.watches_on(now, Outcome::Failed(error));
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
        // Brokers have windows of other topics, too, of which no sequencer knows anything.
        let exists = |chain| self.chains.is_ordered(chain);
        let intact = Box::new(move |row, record: &_| is_intact(&region, row, record));
        let mut sequencer =
            Sequencer::take_over(&self.region, &self.claim, &self.limits, &exists, intact)?;
        if self.region.geometry().disks > 0 {
            let area = self.region.geometry().area_of(self.claim.row());
            let term = Term {
                epoch: sequencer.epoch(),
                area: area.expect("only candidates sequence"),
            };
            sequencer.set_may_give_up(chains::may_give_up(&self.region, term));
        }
        // Chains whose topics were deleted before, too. Later, sweeps find those that go.
        drop(self.chains.refresh());
        sequencer.retain_chains(&exists);
        Ok(sequencer)
    }

    fn watches_on(&self, now: Now, outcome: Outcome) -> Turn {
        Turn {
            outcome,
            due: Due::After(self.rest(now)),
        }
    }

    /// How long it rests if no broker wakes it: until a lease in its core ends, or its next heartbeat is due.
    pub fn rest(&self, now: Now) -> Duration {
        match &self.state {
            State::Leads(leader) => leader.rest(now),
            State::Watches(watch) => watch.look_every,
        }
    }
}

impl Watch {
    fn new(lease: Duration, now: Now) -> Self {
        let mut watch = Self {
            leader_watch: LeaderWatch::new(nanos(lease), now.0),
            look_every: LOOK_EVERY,
            not_before: now,
        };
        watch.look_every(LOOK_EVERY);
        watch
    }

    /// Looks so often from now on, or as often as the lease needs.
    fn look_every(&mut self, most: Duration) {
        let needed = Duration::from_nanos(self.leader_watch.look_every_ns());
        self.look_every = most.min(needed);
    }
}

/// Whether a candidate before this one lives and does not sequence.
fn is_behind<M: Memory>(region: &Region<M>, row: u16, alive: &dyn Fn(u16) -> bool) -> bool {
    let leader = Leadership::observe(region).term;
    let candidates = region.geometry().candidates();
    let standbys = (0..).zip(candidates).filter(|(area, _)| {
        let leads = |term: &Term| term.area == *area;
        !leader.as_ref().is_some_and(leads)
    });
    let mut before = standbys
        .map(|(_, row)| row)
        .take_while(|other| *other != row);
    before.any(alive)
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
        } else if step.taken > 0 || to_wake(step) != 0 || self.sequencer.is_closing() {
            Due::Now
        } else {
            Due::OnWakeup
        }
    }

    fn rest(&self, now: Now) -> Duration {
        let most = self.next_beat.min(self.next_sweep).since(now);
        let deadline = self.sequencer.core().next_deadline();
        deadline.map_or(most, |left| most.min(Duration::from_nanos(left)))
    }
}

/// The rows of data brokers that live, a bit each. Each answer costs a look at a lock, so this asks once.
fn living<M: Memory>(region: &Region<M>, alive: &dyn Fn(u16) -> bool) -> u128 {
    let rows = region.geometry().data_rows();
    let living = rows.filter(|row| alive(*row));
    living.fold(0, |living, row| living | 1 << row)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
