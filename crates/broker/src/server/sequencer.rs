//! The thread of a candidate: drives its [`Candidacy`], sleeps in between, and wakes those for whom there
//! is something.
//!
//! It shares nothing with the network threads but the region, so that it neither waits for them nor
//! holds them up, also in a head that is alone and takes data.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::Sleeper;
use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_order::{Sequencer, TakeoverError};
use embar_transport::{Epoll, Reactor, Waker};
use embar_wire::time::Now;

use super::bells::{Bed, ToBrokers};
use super::{StopWord, stop};
use crate::candidacy::{Candidacy, Due, Outcome};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::node::counts_as_alive;

/// Steps without work after which the thread sleeps: sleeping and being woken costs about as much.
const EMPTY_STEPS: u32 = 8;

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
        candidacy: Candidacy::new(region, claim, config, clock.at().now),
        brokers: ToBrokers::new(region),
        region: region.clone(),
        stop: Arc::clone(stop),
        clock,
        reactor,
        sleeper: bed.sleeper,
    };
    let (looked, first_look) = mpsc::channel();
    let name = format!("embar-order-{}", claim.row());
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _watch = thread.stop.watch();
        thread.run(looked);
    })?;
    // A thread that ended without a word is noticed as those of the network are.
    let _told = first_look.recv();
    Ok(Sequencing {
        stop: Arc::clone(stop),
        waker,
        thread: Some(thread),
    })
}

/// See the module.
struct Thread {
    candidacy: Candidacy<Mapped>,
    region: Region<Mapped>,
    stop: Arc<StopWord>,
    clock: Clock,
    brokers: ToBrokers,
    reactor: Epoll,
    sleeper: Sleeper<Mapped>,
}

impl Thread {
    /// Tells `looked` when it has looked once.
    fn run(&mut self, looked: Sender<()>) {
        let mut looked = Some(looked);
        let mut empty = 0;
        while !self.is_over() {
            let due = self.turn();
            if let Some(looked) = looked.take() {
                // Whoever started it may wait no more.
                let _heard = looked.send(());
            }
            if due != Due::Rung {
                empty = 0;
                if let Due::After(wait) = due {
                    self.sleep(wait);
                }
                continue;
            }
            empty += 1;
            if empty < EMPTY_STEPS {
                std::hint::spin_loop();
                continue;
            }
            self.rest();
            empty = 0;
        }
    }

    fn is_over(&self) -> bool {
        self.stop.get() == stop::CUT
    }

    fn now(&self) -> Now {
        self.clock.at().now
    }

    /// Does what is due, and wakes those for whom there is something.
    fn turn(&mut self) -> Due {
        let now = self.now();
        let turn = self.candidacy.turn(now, &|row| is_alive(&self.region, row));
        match &turn.outcome {
            Outcome::Watched | Outcome::Failed(TakeoverError::Overtaken) => {}
            Outcome::Failed(error) => {
                tracing::error!("cannot take over as the sequencer: {error}");
            }
            Outcome::TookOver { living } => {
                self.look_at_brokers(*living);
                self.tell_of_takeover(self.now().since(now));
            }
            Outcome::Stepped { living, .. } => {
                if let Some(living) = living {
                    self.look_at_brokers(*living);
                }
            }
            Outcome::Deposed { epoch } => tracing::warn!(epoch, "another one sequences now"),
        }
        let rings = turn.rings();
        if rings != 0 {
            self.brokers.ring(rings);
        }
        turn.due
    }

    fn look_at_brokers(&mut self, living: u128) {
        self.brokers.look(&|row| living & 1 << row != 0);
    }

    fn tell_of_takeover(&self, took: Duration) {
        let Some(sequencer) = self.candidacy.sequencer() else {
            return;
        };
        self.tell_of_damage(sequencer);
        let found = sequencer.core().figures();
        tracing::info!(
            epoch = sequencer.epoch(),
            chains = found.chains,
            sessions = found.sessions,
            ?took,
            "sequences"
        );
    }

    fn tell_of_damage(&self, sequencer: &Sequencer<Mapped>) {
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

    /// Sleeps until somebody rings, or as long as nothing is due.
    fn rest(&mut self) {
        self.sleeper.set(true);
        // The last look: whoever makes work visible after it sees that this thread sleeps.
        if self.turn() == Due::Rung {
            self.sleep(self.candidacy.rest(self.now()));
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

/// Whether a live process holds a row, as far as its lock tells.
pub(super) fn is_alive(region: &Region<Mapped>, row: u16) -> bool {
    counts_as_alive(region.owner_alive(row))
}
