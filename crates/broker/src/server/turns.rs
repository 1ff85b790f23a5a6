//! The turns of a candidate, one at a time: its thread takes them, and, where a broker takes data in the same process, so does a network
//! thread that has just submitted batches. It finds them ordered then, and neither thread wakes the other for that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_frame::Now;
use embar_memory::Mapped;
use embar_order::{Sequencer, TakeoverError, Term};
use embar_transport::Waker;

use super::alive::is_alive;
use super::appended::Appended;
use super::disk_writer::DiskWriter;
use super::wakeups::BrokersNotifier;
use crate::candidacy::{Candidacy, Due, Outcome};
use crate::clock::Clock;
use crate::config::BrokerConfig;

/// Turns that a network thread takes at once. Others may have the sequencer busy for as long as they like; then its own thread goes on.
const TURNS_MAX: u32 = 4;

/// How often the candidate's thread looks whether the process ends, after another thread panicked in a turn. What it left half-done is the
/// successor's.
const ABANDONED: Duration = Duration::from_millis(100);

/// The turns of one candidate.
pub(super) struct Turns {
    state: Mutex<State>,
    /// Wakes the candidate's thread.
    waker: Waker,
}

struct State {
    candidacy: Candidacy<Mapped>,
    region: Region<Mapped>,
    clock: Clock,
    brokers: BrokersNotifier,
    /// One for each disk.
    writers: Vec<DiskWriter>,
    appended: Appended,
    area: u16,
    /// Until when the candidate's thread sleeps at most.
    sleeps_until: Now,
}

impl Turns {
    /// Of a claimed candidate, which watches from now on. `waker` wakes its thread.
    pub fn new(
        region: &Region<Mapped>,
        claim: &Arc<Claim>,
        config: &BrokerConfig,
        clock: Clock,
        (waker, writers): (Waker, Vec<DiskWriter>),
    ) -> Self {
        let now = clock.read().now;
        let area = region.geometry().area_of(claim.row());
        Self {
            state: Mutex::new(State {
                candidacy: Candidacy::new(region, claim, config, now),
                brokers: BrokersNotifier::new(region),
                writers,
                appended: Appended::new(region),
                area: area.expect("only candidates have turns"),
                region: region.clone(),
                clock,
                sleeps_until: now,
            }),
            waker,
        }
    }

    /// For the candidate's thread: does what is due, and says when the next turn is.
    pub fn take(&self) -> Due {
        match self.state.lock() {
            Ok(mut state) => state.turn(),
            Err(_) => Due::After(ABANDONED),
        }
    }

    /// For the candidate's thread: how long it may sleep, which it is about to. None: something is due.
    pub fn take_last(&self) -> Option<Duration> {
        let mut state = self.state.lock().ok()?;
        match state.turn() {
            Due::OnWakeup => {
                let now = state.now();
                let rest = state.candidacy.rest(now);
                state.sleeps_until = now.after(rest);
                Some(rest)
            }
            Due::Now | Due::After(_) => None,
        }
    }

    /// For a thread that has submitted something, and need not wake the candidate's for it if that leads in this epoch. `None`: another
    /// candidate sequences, or another thread takes a turn and may have looked before.
    pub fn take_here(&self) -> Option<u32> {
        let mut state = self.state.try_lock().ok()?;
        let epoch = state.candidacy.sequencer()?.epoch();
        let mut due = state.turn();
        for _ in 1..TURNS_MAX {
            // A turn takes so many records of a lane at most, and after several it lets others gather.
            if due == Due::OnWakeup {
                break;
            }
            due = state.turn();
        }
        let now = state.now();
        // What came may be due before the time until which the candidate's thread sleeps.
        let wakes =
            due != Due::OnWakeup || now.after(state.candidacy.rest(now)) < state.sleeps_until;
        drop(state);
        if wakes {
            self.waker.wake();
        }
        Some(epoch)
    }
}

impl State {
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
                self.write_disks();
            }
            Outcome::Stepped { living, step } => {
                // Whoever appends without the sequencer wakes it for that, too.
                if step.ordered > 0 || self.appended.has_any() {
                    self.writers.iter().for_each(DiskWriter::wake);
                }
                if let Some(living) = living {
                    self.refresh_brokers(*living);
                }
            }
            Outcome::Deposed { epoch } => {
                tracing::warn!(epoch, "another one sequences now");
                self.writers.iter().for_each(|writer| writer.set_term(None));
            }
        }
        let rows = turn.to_wake();
        if rows != 0 {
            self.brokers.notify(rows);
        }
        turn.due
    }

    /// The disks are this candidate's for its term.
    fn write_disks(&self) {
        let sequencer = self.candidacy.sequencer();
        let term = sequencer.map(|sequencer| Term {
            epoch: sequencer.epoch(),
            area: self.area,
        });
        self.writers.iter().for_each(|writer| writer.set_term(term));
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
}
