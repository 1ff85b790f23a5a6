//! Starts the processes of one cluster, waits for what happens to them, and kills or restarts single ones.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use embar_broker::ReceivePath;
use embar_console::context::Context;
use embar_console::interrupt::Interrupted;
use embar_console::progress::Bar;
use embar_fabric::{Probe, Region};
use serde::Serializer;

use super::child::{Child, ChildEvent, tail};
use super::occupancy::{Occupancy, occupancy};
use super::plan::{ClusterPlan, Role};
use super::protocol::ProcessReport;
use super::supervisor_lock::SupervisorLock;

/// How long brokers may be silent before they serve: they report progress during each step that takes long.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How soon an ended process must be gone after it closed its output.
const EXIT_WITHIN: Duration = Duration::from_secs(2);

/// A broker ended before it served, and said why.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StartFailed {
    /// The exit code of its process: [`EXIT_USAGE`](super::protocol::EXIT_USAGE) and the like.
    pub code: u8,
    /// What went wrong and what to do.
    pub message: String,
}

/// A broker that serves.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Broker {
    /// Its row; 0 is the head.
    pub id: u16,
    /// What it is.
    pub role: Role,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub pid: u32,
    /// Topics it found in the region.
    pub recovered_topics: u64,
    /// Batches it found in the region.
    pub recovered_batches: u64,
    /// How it receives payloads.
    #[serde(serialize_with = "as_text")]
    pub receive: ReceivePath,
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// What [`Cluster::wait`] saw.
#[derive(Debug)]
pub enum ClusterEvent {
    /// A broker ended by itself.
    Died {
        /// Its row.
        id: u16,
        /// How, and the end of its log.
        how: String,
    },
    /// A broker that was restarted serves again.
    Serves(Broker),
    /// A broker was asked to leave the cluster for good, and has.
    Left {
        /// Its row.
        id: u16,
    },
    /// A signal asks this process to stop.
    Interrupted,
    /// [`Waker::wake`] was called.
    Woken,
    /// The time is up.
    TimedOut,
}

/// The place of one broker; its row is its index.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) child: Option<Child>,
    generation: u32,
    /// Where it listened when it served last.
    pub(super) address: Option<SocketAddr>,
    broker: Option<Broker>,
    failure: Option<(u8, String)>,
    /// It has left the cluster, or is about to end for that.
    left: bool,
}

impl Slot {
    /// Whether [`Happening::Died`] follows.
    fn kill(&mut self) -> bool {
        self.child.as_mut().map(Child::kill).is_some() && !self.left
    }
}

/// Wakes [`Cluster::wait`] from another thread.
#[derive(Clone)]
pub struct Waker(Sender<ChildEvent>);

impl Waker {
    /// Makes [`Cluster::wait`] return [`ClusterEvent::Woken`].
    pub fn wake(&self) {
        // A cluster that is gone does not wait any more.
        let _delivered = self.0.send(ChildEvent::Wake);
    }
}

/// A cluster that was started. Dropping it kills what still runs, and removes the region if it is temporary.
pub struct Cluster {
    pub(super) plan: ClusterPlan,
    pub(super) slots: Vec<Slot>,
    events: Receiver<ChildEvent>,
    sender: Sender<ChildEvent>,
    /// Events that came while something else was waited for.
    pub(super) postponed: VecDeque<ClusterEvent>,
    /// Rows held by processes of another command when the cluster was started, and the ids of these processes.
    pub(super) foreign: BTreeMap<u16, u32>,
    /// Declared last, so dropped last: after the processes have ended.
    lock: SupervisorLock,
}

impl Cluster {
    /// Starts all brokers and returns when they serve. On an error it leaves nothing that it started or made, but a region
    /// that is whole.
    ///
    /// Processes that another command started in the region stay: see [`Cluster::foreign`].
    pub fn start(plan: ClusterPlan, context: &Context) -> Result<Self> {
        let (sender, events) = channel();
        let on_signal = sender.clone();
        context.interrupt.on_raise(move || {
            // A cluster that is gone needs no signal.
            let _delivered = on_signal.send(ChildEvent::Interrupted);
        });
        let slots = (0..plan.rows()).map(|_| Slot::default()).collect();
        let mut cluster = Self {
            lock: SupervisorLock::over(&plan.region)?,
            plan,
            slots,
            events,
            sender,
            postponed: VecDeque::new(),
            foreign: BTreeMap::new(),
        };
        match cluster.bring_up(context) {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.give_up();
                Err(error)
            }
        }
    }

    fn bring_up(&mut self, context: &Context) -> Result<()> {
        let bar = context.bar("reserving memory", self.plan.region_bytes);
        if !self.plan.fresh && Region::probe(&self.plan.region) == Probe::Unfinished {
            context.note(format_args!(
                "the creation of {} was interrupted before it held anything: it is made anew",
                self.plan.region.display()
            ));
        }
        if !self.finds_head(context)? {
            self.spawn(0)?;
        }
        self.await_ready(&*bar)?;
        for id in self.rows_to_start() {
            self.spawn(id)?;
        }
        self.await_ready(&*bar)
    }

    /// Rows held by processes of another command, and the ids of these processes.
    pub fn foreign(&self) -> &BTreeMap<u16, u32> {
        &self.foreign
    }

    /// Which process holds row `id` now.
    pub fn occupancy(&self, id: u16) -> Occupancy {
        occupancy(&self.plan.region, id)
    }

    /// The exit code of the last process of row `id`, if that process reported a failure.
    pub fn failed_with(&self, id: u16) -> Option<u8> {
        let failure = self.slots[usize::from(id)].failure.as_ref();
        failure.map(|(code, _)| *code)
    }

    /// What was asked for.
    pub fn plan(&self) -> &ClusterPlan {
        &self.plan
    }

    /// Address of the head.
    pub fn head(&self) -> SocketAddr {
        self.slots[0].address.unwrap_or(self.plan.config.listen)
    }

    /// Brokers that serve.
    pub fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.slots.iter().filter_map(|slot| slot.broker.as_ref())
    }

    /// Wakes [`Cluster::wait`].
    pub fn waker(&self) -> Waker {
        Waker(self.sender.clone())
    }

    /// Waits until something happens, at most until `deadline`.
    pub fn wait(&mut self, deadline: Option<Instant>) -> ClusterEvent {
        if let Some(happening) = self.postponed.pop_front() {
            return happening;
        }
        loop {
            match self.next_event(deadline) {
                Ok(event) => {
                    if let Some(happening) = self.handle_event(event, None) {
                        return happening;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return ClusterEvent::TimedOut,
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
        }
    }

    /// Starts the broker of row `id` again, at the address that it had.
    pub fn restart(&mut self, id: u16) -> Result<()> {
        self.slots[usize::from(id)].broker = None;
        self.spawn(id)
    }

    /// Kills the process of row `id`, also one that is just starting. False if no event
    /// will report its death: there is no process, or it has reported that it left.
    pub fn kill(&mut self, id: u16) -> bool {
        self.slots[usize::from(id)].kill()
    }

    fn spawn(&mut self, id: u16) -> Result<()> {
        if !self.lock.holds() {
            // Another process removed the region, and a command may have made one in its place.
            self.lock = SupervisorLock::over(&self.plan.region)?;
        }
        let head = self.head();
        let slot = &mut self.slots[usize::from(id)];
        let args = match self.plan.role(id) {
            Role::Head => self.plan.head_args(slot.address),
            Role::Data | Role::Standby => self.plan.member_args(head, id, slot.address),
        };
        slot.generation += 1;
        slot.failure = None;
        slot.left = false;
        let place = (usize::from(id), slot.generation);
        slot.child = Some(Child::start(
            (&self.plan.program, &args),
            &self.plan.log(id),
            place,
            self.sender.clone(),
        )?);
        Ok(())
    }

    /// Waits until every process that was started serves.
    fn await_ready(&mut self, bar: &dyn Bar) -> Result<()> {
        while self
            .slots
            .iter()
            .any(|slot| slot.child.is_some() && slot.broker.is_none())
        {
            let Ok(event) = self.next_event(Some(Instant::now() + SILENCE_MAX)) else {
                bail!(
                    "the cluster is not ready and has been silent for {SILENCE_MAX:?}; its logs are in {}",
                    self.plan.log_dir.display()
                );
            };
            match self.handle_event(event, Some(bar)) {
                None
                | Some(
                    ClusterEvent::Serves(_) | ClusterEvent::Left { .. } | ClusterEvent::TimedOut,
                ) => {}
                Some(ClusterEvent::Interrupted) => return Err(Interrupted.into()),
                // The head, which is not ours, may be about to end: the supervisor starts them again.
                Some(died @ ClusterEvent::Died { .. }) if self.foreign.contains_key(&0) => {
                    self.postponed.push_back(died);
                }
                Some(ClusterEvent::Died { id, how }) => return Err(self.start_failure(id, how)),
                Some(other @ ClusterEvent::Woken) => self.postponed.push_back(other),
            }
        }
        Ok(())
    }

    fn start_failure(&mut self, id: u16, how: String) -> anyhow::Error {
        match self.slots[usize::from(id)].failure.take() {
            Some((code, message)) => StartFailed { code, message }.into(),
            None => anyhow!("broker {id} {how}"),
        }
    }

    pub(super) fn next_event(
        &self,
        deadline: Option<Instant>,
    ) -> Result<ChildEvent, RecvTimeoutError> {
        match deadline {
            None => self
                .events
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self
                .events
                .recv_timeout(deadline.saturating_duration_since(Instant::now())),
        }
    }

    fn handle_event(&mut self, event: ChildEvent, bar: Option<&dyn Bar>) -> Option<ClusterEvent> {
        match event {
            ChildEvent::Interrupted => Some(ClusterEvent::Interrupted),
            ChildEvent::Wake => Some(ClusterEvent::Woken),
            ChildEvent::Said {
                slot, generation, ..
            }
            | ChildEvent::Ended { slot, generation }
                if self.slots[slot].generation != generation =>
            {
                None
            }
            ChildEvent::Said { slot, report, .. } => self.handle_report(slot, report, bar),
            ChildEvent::Ended { slot, .. } => self.ended(slot),
        }
    }

    fn handle_report(
        &mut self,
        slot: usize,
        report: ProcessReport,
        bar: Option<&dyn Bar>,
    ) -> Option<ClusterEvent> {
        match report {
            ProcessReport::Prefault { done, .. } => {
                // A standby has no payload: it tells little of the whole.
                if let Some(bar) = bar
                    && self.plan.role(slot as u16) != Role::Standby
                {
                    bar.set(
                        done.saturating_mul(u64::from(self.plan.brokers.max(2) - 1))
                            .min(self.plan.region_bytes),
                    );
                }
                None
            }
            // It is only a sign of life.
            ProcessReport::Busy => None,
            ProcessReport::Left { id } => {
                self.slots[slot].left = true;
                self.slots[slot].broker = None;
                Some(ClusterEvent::Left { id })
            }
            ProcessReport::Failed { code, message } => {
                self.slots[slot].failure = Some((code, message));
                None
            }
            ProcessReport::Ready {
                id,
                address,
                pid,
                topics,
                batches,
                receive,
            } => {
                let broker = Broker {
                    id,
                    role: self.plan.role(id),
                    address,
                    pid,
                    recovered_topics: topics,
                    recovered_batches: batches,
                    receive,
                };
                self.slots[slot].address = Some(address);
                self.slots[slot].broker = Some(broker.clone());
                Some(ClusterEvent::Serves(broker))
            }
        }
    }

    /// `None` when the process was given up before, or left the cluster.
    fn ended(&mut self, slot: usize) -> Option<ClusterEvent> {
        let place = &mut self.slots[slot];
        let mut child = place.child.take()?;
        let left = place.left;
        // It closed its output a moment before it is gone.
        let deadline = Instant::now() + EXIT_WITHIN;
        while child.try_wait().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if left {
            return None;
        }
        let how = match &place.failure {
            Some((_, message)) => format!("failed: {message}"),
            None => format!(
                "{}; the end of {}:{}",
                child.how_it_ended(),
                child.log().display(),
                tail(child.log())
            ),
        };
        Some(ClusterEvent::Died {
            id: slot as u16,
            how,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_of_who_has_not_left_a_death_is_announced() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sender, events) = channel();
        let args = ["-c".to_owned(), "exec sleep 1000".to_owned()];
        let child = || {
            let (program, log) = (Path::new("/bin/sh"), dir.path().join("log"));
            Child::start((program, &args), &log, (0, 0), sender.clone()).expect("started")
        };
        let mut slot = Slot::default();
        assert!(!slot.kill(), "it has no process");
        slot.child = Some(child());
        assert!(slot.kill());
        slot.child = Some(child());
        slot.left = true;
        assert!(!slot.kill(), "it has said that it left");
        for _ in 0..2 {
            assert!(
                matches!(events.recv(), Ok(ChildEvent::Ended { .. })),
                "it ended"
            );
        }
    }
}
