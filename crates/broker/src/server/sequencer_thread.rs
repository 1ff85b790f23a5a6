//! The thread of a candidate: takes its [`Turns`], sleeps in between, and wakes the brokers for which
//! there is something.
//!
//! With network threads it shares the region, and, in a head that is alone and takes data, the turns: those never wait for one,
//! and it waits for a few of theirs at most.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::SleepFlag;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_transport::{Completion, Epoll, Reactor, Waker};

use super::disk_writer::DiskWriter;
use super::start_error::StartError;
use super::stop::{Stop, StopSignal};
use super::turns::Turns;
use super::wakeups::Parker;
use crate::candidacy::Due;
use crate::clock::Clock;
use crate::config::BrokerConfig;

/// Turns without work after which the thread sleeps: to sleep and to be woken costs about as much.
const IDLE_TURNS: u32 = 8;

/// A candidate's thread, which runs until this is dropped.
pub(super) struct SequencerThread {
    stop: Arc<StopSignal>,
    waker: Waker,
    turns: Arc<Turns>,
    thread: Option<JoinHandle<()>>,
}

impl SequencerThread {
    /// The candidate's turns, for others of this process that submit to it.
    pub fn turns(&self) -> Arc<Turns> {
        Arc::clone(&self.turns)
    }
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
    writers: Vec<DiskWriter>,
) -> Result<SequencerThread, StartError> {
    let parker = Parker::new(region, claim.row(), region.sequencer_thread())?;
    let mut reactor = Epoll::new()?;
    reactor.set_wakeup(parker.wakeup)?;
    let waker = Reactor::<Mapped>::waker(&reactor);
    let turns = Arc::new(Turns::new(
        region,
        claim,
        config,
        clock,
        (waker.clone(), writers),
    ));
    let mut thread = Thread {
        turns: Arc::clone(&turns),
        stop: Arc::clone(stop),
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
        turns,
        thread: Some(thread),
    })
}

/// What the thread works with.
struct Thread {
    turns: Arc<Turns>,
    stop: Arc<StopSignal>,
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
            let due = self.turns.take();
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

    /// Sleeps until a broker wakes it, or something is due.
    fn rest(&mut self) {
        self.sleep_flag.set(true);
        // The last look: a broker that submits something after it sees that this thread sleeps.
        if let Some(most) = self.turns.take_last() {
            self.sleep(most);
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
