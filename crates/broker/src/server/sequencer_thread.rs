//! The thread of a candidate: drives its [`Candidacy`], sleeps in between, and wakes the brokers for which
//! there is something.
//!
//! It shares nothing with the network threads but the region, so that it neither waits for them nor
//! holds them up, also in a head that is alone and takes data.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::SleepFlag;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_frame::Now;
use embar_memory::Mapped;
use embar_order::{Sequencer, TakeoverError};
use embar_transport::{Completion, Epoll, Reactor, Waker};

use super::start_error::StartError;
use super::stop::{Stop, StopSignal};
use super::wakeups::{BrokersNotifier, Parker};
use crate::candidacy::{Candidacy, Due, Outcome};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::node::counts_as_alive;

/// Turns without work after which the thread sleeps: to sleep and to be woken costs about as much.
const IDLE_TURNS: u32 = 8;

/// A candidate's thread, which runs until this is dropped.
pub(super) struct SequencerThread {
    stop: Arc<StopSignal>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SequencerThread {
    fn drop(&mut self) {
        self.stop.request(Stop::Cut);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

/// Starts the thread of the claimed candidate, and returns after its first turn: then it sequences, or another
/// candidate does, or its log says why none can.
pub(super) fn start(
    region: &Region<Mapped>,
    claim: &Arc<Claim>,
    config: &BrokerConfig,
    stop: &Arc<StopSignal>,
    clock: Clock,
) -> Result<SequencerThread, StartError> {
    let parker = Parker::new(region, claim.row(), region.sequencer_thread())?;
    let mut reactor = Epoll::new()?;
    reactor.set_wakeup(parker.wakeup)?;
    let waker = Reactor::<Mapped>::waker(&reactor);
    let mut thread = Thread {
        candidacy: Candidacy::new(region, claim, config, clock.read().now),
        brokers: BrokersNotifier::new(region),
        region: region.clone(),
        stop: Arc::clone(stop),
        clock,
        reactor,
        sleep_flag: parker.sleep_flag,
        woken: Vec::new(),
    };
    let (first, first_turn) = mpsc::channel();
    let name = format!("embar-order-{}", claim.row());
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _guard = thread.stop.guard();
        thread.run(first);
    })?;
    // The guard notices a thread that ended before.
    let _ = first_turn.recv();
    Ok(SequencerThread {
        stop: Arc::clone(stop),
        waker,
        thread: Some(thread),
    })
}

/// What the thread works with.
struct Thread {
    candidacy: Candidacy<Mapped>,
    region: Region<Mapped>,
    stop: Arc<StopSignal>,
    clock: Clock,
    brokers: BrokersNotifier,
    reactor: Epoll,
    sleep_flag: SleepFlag<Mapped>,
    /// Empty; kept for its memory.
    woken: Vec<Completion<Mapped>>,
}

impl Thread {
    /// Runs until the stop signal ends it. Sends to `first` after its first turn.
    fn run(&mut self, first: Sender<()>) {
        let mut first = Some(first);
        let mut idle = 0;
        while !self.is_over() {
            let due = self.turn();
            if let Some(first) = first.take() {
                // Whoever started the thread may have stopped to wait.
                let _ = first.send(());
            }
            if due != Due::OnWakeup {
                idle = 0;
                if let Due::After(wait) = due {
                    self.sleep(wait);
                }
                continue;
            }
            idle += 1;
            if idle < IDLE_TURNS {
                std::hint::spin_loop();
                continue;
            }
            self.rest();
            idle = 0;
        }
    }

    fn is_over(&self) -> bool {
        self.stop.get() == Stop::Cut
    }

    fn now(&self) -> Now {
        self.clock.read().now
    }

    /// Does what is due, and wakes the brokers for which there is something.
    fn turn(&mut self) -> Due {
        let now = self.now();
        let turn = self.candidacy.turn(now, &|row| is_alive(&self.region, row));
        match &turn.outcome {
            Outcome::Watched | Outcome::Failed(TakeoverError::Overtaken) => {}
            Outcome::Failed(error) => {
                tracing::error!("cannot take over as the sequencer: {error}");
            }
            Outcome::TookOver { living } => {
                self.refresh_brokers(*living);
                self.log_takeover(self.now().since(now));
            }
            Outcome::Stepped { living, .. } => {
                if let Some(living) = living {
                    self.refresh_brokers(*living);
                }
            }
            Outcome::Deposed { epoch } => tracing::warn!(epoch, "another one sequences now"),
        }
        let rows = turn.to_wake();
        if rows != 0 {
            self.brokers.notify(rows);
        }
        turn.due
    }

    fn refresh_brokers(&mut self, living: u128) {
        self.brokers.refresh(&|row| living & 1 << row != 0);
    }

    fn log_takeover(&self, took: Duration) {
        let Some(sequencer) = self.candidacy.sequencer() else {
            return;
        };
        self.log_damage(sequencer);
        let found = sequencer.core().figures();
        tracing::info!(
            epoch = sequencer.epoch(),
            chains = found.chains,
            sessions = found.sessions,
            ?took,
            "sequences"
        );
    }

    fn log_damage(&self, sequencer: &Sequencer<Mapped>) {
        for chain in sequencer.damaged() {
            tracing::error!(
                topic = self.candidacy.topic_name(*chain),
                "the order of a topic is damaged and ends there: what comes before can be read, and nothing more is stored; delete the topic, or publish to another"
            );
        }
        if sequencer.lost_sessions() > 0 {
            tracing::error!(
                sessions = sequencer.lost_sessions(),
                "the rows of publishers' sessions are damaged: these publishers are told that nobody knows their session, and others go on"
            );
        }
    }

    /// Sleeps until a broker wakes it, or something is due.
    fn rest(&mut self) {
        self.sleep_flag.set(true);
        // The last look: a broker that submits something after it sees that this thread sleeps.
        if self.turn() == Due::OnWakeup {
            self.sleep(self.candidacy.rest(self.now()));
        }
        self.sleep_flag.set(false);
    }

    fn sleep(&mut self, most: Duration) {
        let slept = self.reactor.poll(Some(most), &mut self.woken);
        self.woken.clear();
        if let Err(error) = slept {
            // Without wake-ups it looks by itself.
            tracing::warn!("cannot wait for a wake-up: {error}");
            std::thread::sleep(most);
        }
    }
}

/// Whether a live process holds a row, as far as its lock tells.
pub(super) fn is_alive(region: &Region<Mapped>, row: u16) -> bool {
    counts_as_alive(region.owner_alive(row))
}
