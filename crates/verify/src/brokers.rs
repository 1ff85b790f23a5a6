//! The brokers of a run: injects faults into them, and restarts those that ended.
//!
//! Signals go only to processes that serve and were not waited for: [`Cluster::wait`] alone waits for them, on the thread
//! that also sends the signals, so no id can belong to another process yet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_client::{Admin, AdminError};
use embar_console::interrupt::Interrupted;
use embar_fabric::geometry::topic_record_of;
use embar_fabric::{Geometry, Region};
use embar_memory::{Coherence, Mapped};
use embar_meter::random::SplitMix64;
use embar_order::Leadership;
use embar_supervise::plan::Role;
use embar_supervise::protocol::EXIT_OVERTAKEN;
use embar_supervise::{Cluster, ClusterEvent};
use rustix::process::{Pid, Signal, kill_process};

use super::faults::{Action, Fault, Victim};
use super::plan::VerifyPlan;
use super::reference_log::Stream;
use super::shared::Shared;
use super::violation::Kind;

/// Wait before a broker is started again.
const RESTART_AFTER: Duration = Duration::from_millis(100);

/// The row of the head.
const HEAD: u16 = 0;

/// How long a broker may take to leave; longer than any pause.
const LEAVE_WITHIN: Duration = Duration::from_secs(15);

/// Whether a cluster has power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PowerState {
    On,
    /// Nothing is started.
    Off,
    /// Its memory is new. Before the head has restored the log, no other broker is started.
    Returns,
}

/// A cluster, and the faults that it is under. Dropping it ends the cluster.
pub struct Brokers {
    cluster: Cluster,
    region: Region<Mapped>,
    /// Processes that serve, by row.
    serving: BTreeMap<u16, u32>,
    /// Rows whose process was killed and has not ended yet.
    killed: BTreeSet<u16>,
    /// Processes that are paused, by row, and until when.
    paused: BTreeMap<u16, (u32, Instant)>,
    /// Processes that were paused at some time, by row: others may have gone on without them.
    was_paused: BTreeMap<u16, u32>,
    /// When each ended row is started again.
    due: BTreeMap<u16, Instant>,
    /// The whole cluster was killed: none is started again before all are dead.
    kills_all: bool,
    power: PowerState,
    /// Why the head did not come back when the power did.
    lost: Option<String>,
    /// Rows that are not in the cluster: spares, and those of brokers that left.
    absent: BTreeSet<u16>,
    /// The request of a broker to leave, until it is answered.
    leaving: Option<JoinHandle<Result<(), AdminError>>>,
    /// Brokers that left since the last call of [`Brokers::take_left`].
    left: u64,
    failed_starts: u64,
    overtaken: u64,
    plan: VerifyPlan,
    random: SplitMix64,
}

impl Brokers {
    /// For a cluster that serves.
    pub fn new(cluster: Cluster, plan: &VerifyPlan) -> Result<Self> {
        let dir = &cluster.plan().region;
        let region = Region::open(dir, Coherence::Coherent)
            .with_context(|| format!("cannot look into the region {}", dir.display()))?;
        let serving = cluster.brokers().map(|broker| (broker.id, broker.pid));
        Ok(Self {
            serving: serving.collect(),
            absent: cluster.plan().spare_rows().collect(),
            cluster,
            region,
            killed: BTreeSet::new(),
            paused: BTreeMap::new(),
            was_paused: BTreeMap::new(),
            due: BTreeMap::new(),
            kills_all: false,
            power: PowerState::On,
            lost: None,
            leaving: None,
            left: 0,
            failed_starts: 0,
            overtaken: 0,
            plan: plan.clone(),
            random: SplitMix64::new(plan.seed.rotate_left(32)),
        })
    }

    /// Addresses of all brokers: any of them may be away when a client connects.
    pub fn bootstrap(&self) -> String {
        let addresses = self.cluster.brokers().map(|broker| broker.address);
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        addresses.join(",")
    }

    /// The directory of their socket files.
    pub fn sockets(&self) -> PathBuf {
        self.cluster.plan().region.join("sockets")
    }

    /// The shape of their memory.
    pub fn geometry(&self) -> &Geometry {
        self.region.geometry()
    }

    /// How many epochs sequencers have raised so far.
    pub fn terms(&self) -> u32 {
        Leadership::observe(&self.region).rounds
    }

    /// Starts that failed because others were away.
    pub fn failed_starts(&self) -> u64 {
        self.failed_starts
    }

    /// Brokers that were stopped for so long that others went on without them, and ended for that.
    pub fn overtaken(&self) -> u64 {
        self.overtaken
    }

    /// Whether as many brokers serve as should, and none is about to end.
    pub fn all_serve(&self) -> bool {
        let expected = self.cluster.plan().brokers + self.cluster.plan().standbys;
        self.serving.len() == usize::from(expected)
            && self.power == PowerState::On
            && self.paused.is_empty()
            && self.killed.is_empty()
            && self.leaving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Brokers that have left since the last call.
    pub fn take_left(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// What brokers offer of a topic: the first position of each stream, and the one behind the last.
    pub fn windows(&self, topic: u32) -> Vec<(Stream, u64, u64)> {
        let rows = self.region.geometry().data_rows();
        let windows = rows.filter_map(|row| {
            let window = self.region.window(row, topic_record_of(topic)).found()?;
            (window.chain == topic).then_some((row, window))
        });
        let mut streams: BTreeMap<Stream, (u64, u64)> = BTreeMap::new();
        for (row, window) in windows {
            let stream = streams.entry(self.plan.stream(row.into())).or_default();
            // What one broker evicted is gone from the one order.
            *stream = (stream.0.max(window.first), stream.1.max(window.next));
        }
        let streams = streams.into_iter();
        streams
            .map(|(stream, (first, next))| (stream, first, next))
            .collect()
    }

    /// When the next restart or resumption is due.
    pub fn next_due(&self) -> Option<Instant> {
        let paused = self.paused.values().map(|(_, until)| *until);
        self.due.values().copied().chain(paused).min()
    }

    /// Watches until `deadline` or the next event, and does what is due.
    ///
    /// # Errors
    /// When a signal asks this process to stop, or no process can be started.
    pub fn watch(&mut self, deadline: Instant, shared: &Shared) -> Result<()> {
        match self.cluster.wait(Some(deadline)) {
            ClusterEvent::Interrupted => return Err(Interrupted.into()),
            ClusterEvent::Died { id, how } => self.died(id, &how, shared),
            ClusterEvent::Serves(broker) => {
                // The others get no messages; that one of them sequences shows in its term.
                if broker.role == Role::Data {
                    shared.checker().disturbed();
                }
                self.serving.insert(broker.id, broker.pid);
                self.power_is_back(broker.id)?;
            }
            ClusterEvent::Left { id } => self.left_cluster(id),
            ClusterEvent::Woken | ClusterEvent::TimedOut => {}
        }
        let now = Instant::now();
        self.kills_all &= !self.killed.is_empty();
        let mut startable = due(&self.due, now, |at| *at);
        startable.retain(|row| self.may_start(*row));
        for row in startable {
            self.due.remove(&row);
            self.cluster.restart(row)?;
        }
        for row in due(&self.paused, now, |(_, until)| *until) {
            shared.checker().disturbed();
            self.resume(row);
        }
        Ok(())
    }

    /// Injects a fault into a broker; false if there is none to hit.
    pub fn inject(&mut self, fault: Fault) -> Result<bool> {
        if fault.victim == Victim::Cluster {
            return Ok(self.kill_all());
        }
        let Some((row, pid)) = self.victim(fault.victim) else {
            return Ok(false);
        };
        match fault.action {
            Action::Kill => self.kill(row),
            Action::Pause if self.paused.contains_key(&row) => return Ok(false),
            Action::Pause => {
                signal(pid, Signal::STOP)?;
                let until = Instant::now() + self.plan.pause_for.draw(&mut self.random);
                self.paused.insert(row, (pid, until));
                self.was_paused.insert(row, pid);
            }
            Action::Drain => return self.ask_to_leave(row),
            Action::Delete | Action::Cut => return Ok(false),
        }
        Ok(true)
    }

    fn kill(&mut self, row: u16) {
        if self.cluster.kill(row) {
            self.serving.remove(&row);
            self.paused.remove(&row);
            self.killed.insert(row);
        }
    }

    /// Kills all brokers, also those that are just starting. None is started again before the last one has ended, so that
    /// their successors find the memory alone, and no process that has it.
    fn kill_all(&mut self) -> bool {
        let rows = 0..self.cluster.plan().rows();
        rows.filter(|row| !self.absent.contains(row))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|row| self.kill(row));
        self.kills_all = !self.killed.is_empty();
        self.kills_all
    }

    /// Kills all brokers. None is started again before [`Brokers::power_on`].
    pub fn power_off(&mut self) {
        self.kill_all();
        self.power = PowerState::Off;
    }

    /// Whether the power is off, and no process lives any more.
    pub fn is_dead(&self) -> bool {
        self.power == PowerState::Off && self.killed.is_empty()
    }

    /// Memory is gone with the power.
    pub fn lose_memory(&mut self) -> Result<()> {
        let dir = &self.cluster.plan().region;
        Region::discard(dir).with_context(|| format!("cannot remove {}", dir.display()))
    }

    /// The brokers start again, the head before all others.
    pub fn power_on(&mut self) {
        let rows = 0..self.cluster.plan().rows();
        let rows = rows.filter(|row| !self.absent.contains(row));
        let now = Instant::now();
        self.due = rows.map(|row| (row, now)).collect();
        self.power = PowerState::Returns;
    }

    /// Why the head did not come back when the power did, if it did not.
    pub fn take_lost(&mut self) -> Option<String> {
        self.lost.take()
    }

    fn may_start(&self, row: u16) -> bool {
        match self.power {
            PowerState::On => !self.kills_all,
            PowerState::Off => false,
            PowerState::Returns => !self.kills_all && row == HEAD,
        }
    }

    /// A broker serves. If it is the head, there is a region again.
    fn power_is_back(&mut self, row: u16) -> Result<()> {
        if self.power == PowerState::Returns && row == HEAD {
            let dir = &self.cluster.plan().region;
            self.region = Region::open(dir, Coherence::Coherent)
                .with_context(|| format!("cannot look into the region {}", dir.display()))?;
            self.power = PowerState::On;
        }
        Ok(())
    }

    /// Asks the cluster to let a broker leave. The broker itself reports what becomes of that.
    fn ask_to_leave(&mut self, row: u16) -> Result<bool> {
        let is_busy = self
            .leaving
            .as_ref()
            .is_some_and(|leaving| !leaving.is_finished());
        if is_busy || self.paused.contains_key(&row) {
            return Ok(false);
        }
        let admin = Admin::connect(&self.bootstrap())?.timeout(LEAVE_WITHIN);
        // What it has of orders 0 and 1 comes back with it.
        let force = self.plan.order < 2;
        let ask = move || admin.remove_broker(row.into(), force).wait();
        let leaving = std::thread::Builder::new()
            .name("drain".into())
            .spawn(ask)?;
        self.leaving = Some(leaving);
        Ok(true)
    }

    fn left_cluster(&mut self, row: u16) {
        self.left += 1;
        self.serving.remove(&row);
        self.killed.remove(&row);
        self.absent.insert(row);
        let joins = if self.plan.spares() > 0 {
            let absent = self.absent.len() as u64;
            let choice = self.random.below(absent) as usize;
            self.absent.iter().nth(choice).copied().unwrap_or(row)
        } else {
            row
        };
        self.absent.remove(&joins);
        let away = self.plan.pause_for.draw(&mut self.random);
        self.due.insert(joins, Instant::now() + away);
    }

    /// Resumes all paused processes.
    pub fn resume_all(&mut self) {
        let paused: Vec<u16> = self.paused.keys().copied().collect();
        paused.into_iter().for_each(|row| self.resume(row));
    }

    /// Ends the cluster in order.
    pub fn stop(mut self) -> Vec<u16> {
        self.resume_all();
        self.cluster.stop()
    }

    fn resume(&mut self, row: u16) {
        if let Some((pid, _)) = self.paused.remove(&row)
            && self.serving.get(&row) == Some(&pid)
        {
            // One that was killed from outside meanwhile is found by `watch`.
            let _ended = signal(pid, Signal::CONT);
        }
    }

    fn died(&mut self, row: u16, how: &str, shared: &Shared) {
        let served = self.serving.remove(&row);
        let was_paused = self.was_paused.remove(&row);
        self.paused.remove(&row);
        if !self.killed.remove(&row) {
            let was_stopped = served.is_some() && served == was_paused;
            match served {
                None if self.power == PowerState::Returns && row == HEAD => {
                    self.lost = Some(how.to_owned());
                }
                None => self.failed_starts += 1,
                Some(_) if is_overtaken(self.cluster.failed_with(row), was_stopped) => {
                    self.overtaken += 1;
                }
                Some(_) => shared.checker().fail(
                    Kind::Failure,
                    format_args!("broker {row} ended by itself: {how}"),
                ),
            }
        }
        self.due.insert(row, Instant::now() + RESTART_AFTER);
    }

    fn victim(&mut self, victim: Victim) -> Option<(u16, u32)> {
        let serving = &self.serving;
        let with_pid = |row: u16| Some((row, *serving.get(&row)?));
        match victim {
            Victim::Sequencer => {
                let term = Leadership::observe(&self.region).term?;
                let mut candidates = self.region.geometry().candidates();
                with_pid(candidates.nth(usize::from(term.area))?)
            }
            Victim::Broker => {
                let plan = self.cluster.plan();
                let rows = self.serving.keys().copied();
                let data: Vec<u16> = rows.filter(|row| plan.role(*row) == Role::Data).collect();
                let count = std::num::NonZeroU64::new(data.len() as u64)?;
                with_pid(data[(self.random.next_u64() % count) as usize])
            }
            Victim::Publisher | Victim::Cluster | Victim::Topic | Victim::Power => None,
        }
    }
}

/// Whether a broker that ended with this code had to, because others went on without it: only one that was paused may.
fn is_overtaken(code: Option<u8>, was_stopped: bool) -> bool {
    was_stopped && code == Some(EXIT_OVERTAKEN)
}

fn due<T>(table: &BTreeMap<u16, T>, now: Instant, at: impl Fn(&T) -> Instant) -> Vec<u16> {
    let due = table.iter().filter(|(_, entry)| at(entry) <= now);
    due.map(|(row, _)| *row).collect()
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        bail!("{pid} is no process");
    };
    kill_process(pid, signal).with_context(|| format!("cannot send a signal to {pid:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_paused_broker_may_end_as_overtaken() {
        assert!(is_overtaken(Some(EXIT_OVERTAKEN), true));
        assert!(
            !is_overtaken(Some(EXIT_OVERTAKEN), false),
            "it never stood still"
        );
        assert!(!is_overtaken(Some(1), true));
        assert!(!is_overtaken(None, true), "it crashed");
    }
}
