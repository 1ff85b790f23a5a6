//! The thread of a candidate: watches the one that sequences, takes over when that one is gone, and
//! sequences until a successor has raised a higher epoch.
//!
//! It shares nothing with the network threads but the region, so that it neither waits for them nor
//! holds them up, also in a head that is alone and takes data.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_fabric::Sleeper;
use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_order::{Candidate, Limits, Sequencer, Step, TakeoverError};
use embar_transport::{Epoll, Reactor, Waker};

use super::bells::{Bed, ToBrokers};
use super::{StopWord, stop};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::log::is_intact;
use crate::topics::TopicTable;

/// How often a watch looks whether the one that sequences lives, at least.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the sequencer says that it lives, at least.
const BEAT_EVERY: Duration = Duration::from_millis(100);
/// Beats in the lease after which others take over.
const BEATS_PER_LEASE: u32 = 10;
/// How often chains whose topics were deleted are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Steps without work after which the thread sleeps: sleeping and being woken costs about as much.
const EMPTY_STEPS: u32 = 8;
/// Records in one step that show that more are on their way.
const BUSY_RECORDS: usize = 2;
/// How long a busy sequencer lets records gather before it looks again. It takes them with one step
/// then, nobody has to wake it, and brokers are woken once for many.
const GATHER: Duration = Duration::from_micros(50);
/// All rows' bits.
const EVERYBODY: u128 = u128::MAX;

/// A thread that runs until this is dropped.
pub(super) struct Sequencing {
    stop: Arc<StopWord>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sequencing {
    fn drop(&mut self) {
        self.stop.say(stop::CUT);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

/// Starts the thread of the claimed candidate, and returns when it has looked once: then it
/// sequences, or another one does, or its log says why nobody can.
pub(super) fn start(
    region: &Region<Mapped>,
    claim: &Arc<Claim>,
    config: &BrokerConfig,
    stop: &Arc<StopWord>,
    clock: Clock,
) -> Result<Sequencing, StartError> {
    let bed = Bed::make(region, claim.row(), region.sequencer_sleeper())?;
    let mut reactor = Epoll::new()?;
    reactor.set_bell(bed.bell)?;
    let waker = Reactor::<Mapped>::waker(&reactor);
    let mut thread = Thread {
        chains: Chains::of(region),
        brokers: ToBrokers::new(region),
        region: region.clone(),
        claim: Arc::clone(claim),
        limits: config.order_limits(),
        lease: config.sequencer_lease,
        stop: Arc::clone(stop),
        clock,
        reactor,
        sleeper: bed.sleeper,
    };
    let (looked, first_look) = mpsc::channel();
    let name = format!("embar-order-{}", claim.row());
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _watch = thread.stop.watch();
        thread.run(&looked);
    })?;
    // A thread that ended without a word is noticed as those of the network are.
    let _told = first_look.recv();
    Ok(Sequencing {
        stop: Arc::clone(stop),
        waker,
        thread: Some(thread),
    })
}

/// Which chains there are.
struct Chains {
    topics: RefCell<TopicTable<Mapped>>,
}

impl Chains {
    fn of(region: &Region<Mapped>) -> Self {
        Self {
            topics: RefCell::new(TopicTable::attach(region, None)),
        }
    }

    /// Whether the topic of a chain exists. One that is not known may have been created since the
    /// table was read: only a look afterwards tells that it was deleted.
    fn exists(&self, chain: u32) -> bool {
        let mut topics = self.topics.borrow_mut();
        if topics.by_id(chain).is_none() {
            topics.refresh();
        }
        topics.by_id(chain).is_some()
    }

    fn name(&self, chain: u32) -> Option<String> {
        let topics = self.topics.borrow();
        topics.by_id(chain).map(|topic| topic.name.clone())
    }

    /// The chains that went since the last call.
    fn refresh(&self) -> Vec<u32> {
        let mut topics = self.topics.borrow_mut();
        topics.refresh();
        topics.take_gone()
    }
}

/// See the module.
struct Thread {
    region: Region<Mapped>,
    claim: Arc<Claim>,
    limits: Limits,
    lease: Duration,
    stop: Arc<StopWord>,
    clock: Clock,
    chains: Chains,
    brokers: ToBrokers,
    reactor: Epoll,
    sleeper: Sleeper<Mapped>,
}

impl Thread {
    fn run(&mut self, looked: &Sender<()>) {
        while let Some(sequencer) = self.watch(looked) {
            // Nobody waits any more after the first look.
            let _heard = looked.send(());
            self.reign(sequencer);
        }
    }

    fn is_over(&self) -> bool {
        self.stop.get() == stop::CUT
    }

    fn now(&self) -> u64 {
        self.clock.at().now.0
    }

    /// Waits until this candidate has taken over. `None` when the thread is to end.
    fn watch(&mut self, looked: &Sender<()>) -> Option<Sequencer<Mapped>> {
        let mut candidate = Candidate::new(nanos(self.lease), self.now());
        let nap = LOOK_EVERY.min(Duration::from_nanos(candidate.look_every_ns()));
        let mut not_before = Instant::now();
        while !self.is_over() {
            if Instant::now() >= not_before && self.should_take_over(&mut candidate) {
                match self.take_over() {
                    Ok(sequencer) => return Some(sequencer),
                    // Another candidate was faster.
                    Err(TakeoverError::Overtaken) => {}
                    Err(error) => {
                        tracing::error!("cannot take over as the sequencer: {error}");
                        not_before = Instant::now() + self.lease;
                    }
                }
            }
            let _heard = looked.send(());
            self.sleep(nap);
        }
        None
    }

    /// A row of our own that shows the highest epoch is that of an incarnation before us.
    fn should_take_over(&self, candidate: &mut Candidate) -> bool {
        let alive = |row| row != self.claim.row() && is_alive(&self.region, row);
        candidate.should_take_over(&self.region, self.now(), &alive)
    }

    fn take_over(&mut self) -> Result<Sequencer<Mapped>, TakeoverError> {
        let began = Instant::now();
        let region = self.region.clone();
        let sequencer = Sequencer::take_over(
            &self.region,
            &self.claim,
            &self.limits,
            &|chain| self.chains.exists(chain),
            Box::new(move |row, record| is_intact(&region, row, record)),
        )?;
        for chain in sequencer.damaged() {
            tracing::error!(
                topic = self.chains.name(*chain),
                "the order of a topic is damaged and ends there: what comes before can be read, and nothing more is stored; delete the topic, or publish to another"
            );
        }
        if sequencer.lost_sessions() > 0 {
            tracing::error!(
                sessions = sequencer.lost_sessions(),
                "the rows of publishers' sessions are damaged: these publishers are told that nobody knows their session, and others go on"
            );
        }
        let found = sequencer.core().figures();
        tracing::info!(
            epoch = sequencer.epoch(),
            chains = found.chains,
            sessions = found.sessions,
            took = ?began.elapsed(),
            "sequences"
        );
        Ok(sequencer)
    }

    /// Sequences until a successor has taken over, or the thread is to end.
    fn reign(&mut self, mut sequencer: Sequencer<Mapped>) {
        let beat_every = nanos(BEAT_EVERY.min(self.lease / BEATS_PER_LEASE));
        let (mut next_beat, mut next_sweep) = (0, 0);
        let mut empty = 0;
        self.brokers.look(&|row| is_alive(&self.region, row));
        // Whoever waits for an answer of a predecessor is to submit again.
        self.brokers.ring(EVERYBODY);
        // Also what nobody has opened since it was deleted; later only what goes is looked after.
        drop(self.chains.refresh());
        sequencer.retain_chains(&|chain| self.chains.exists(chain));
        while !self.is_over() {
            let now = self.now();
            if now >= next_beat {
                let rows = self.region.geometry().data_rows();
                let living = rows.filter(|row| is_alive(&self.region, *row));
                let living = living.fold(0_u128, |living, row| living | 1 << row);
                let alive = |row: u16| living & 1 << row != 0;
                if !sequencer.beat(&alive) {
                    tracing::warn!(epoch = sequencer.epoch(), "another one sequences now");
                    return;
                }
                self.brokers.look(&alive);
                next_beat = now + beat_every;
            }
            if now >= next_sweep {
                for gone in self.chains.refresh() {
                    sequencer.close_chain(gone);
                }
                next_sweep = now + nanos(SWEEP_EVERY);
            }
            let taken = self.step(&mut sequencer, now);
            if taken >= BUSY_RECORDS {
                self.sleep(GATHER);
            }
            if taken > 0 {
                empty = 0;
                continue;
            }
            empty += 1;
            if empty < EMPTY_STEPS {
                std::hint::spin_loop();
                continue;
            }
            let until = next_beat.min(next_sweep).saturating_sub(now);
            self.rest(&mut sequencer, until);
            empty = 0;
        }
    }

    /// How many records were taken; one if there is something else to go on with.
    fn step(&mut self, sequencer: &mut Sequencer<Mapped>, now: u64) -> usize {
        let Step {
            taken,
            ordered,
            told,
        } = sequencer.step(now, &|chain| self.chains.exists(chain));
        // What was ordered is news for all who export it.
        let whom = if ordered > 0 { EVERYBODY } else { told };
        if whom != 0 {
            self.brokers.ring(whom);
        }
        taken.max(usize::from(whom != 0 || sequencer.is_closing()))
    }

    /// Sleeps until somebody rings, a lease of the core's ends, or `most` nanoseconds have passed.
    fn rest(&mut self, sequencer: &mut Sequencer<Mapped>, most: u64) {
        self.sleeper.set(true);
        if self.step(sequencer, self.now()) == 0 {
            let deadline = sequencer.core().next_deadline().unwrap_or(most);
            self.sleep(Duration::from_nanos(most.min(deadline)));
        }
        self.sleeper.set(false);
    }

    fn sleep(&mut self, most: Duration) {
        let mut woken = Vec::new();
        if let Err(error) = self.reactor.poll(Some(most), &mut woken) {
            // Without a bell it looks by itself.
            tracing::warn!("cannot wait for the bell: {error}");
            std::thread::sleep(most);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a live process holds a row. A lock that cannot be looked at (no file descriptor is free)
/// says nothing.
pub(super) fn is_alive(region: &Region<Mapped>, row: u16) -> bool {
    region.owner_alive(row).unwrap_or(true)
}
