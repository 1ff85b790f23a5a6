//! The brokers of a run: whom a fault hits, and who comes back.
//!
//! Signals go to processes that serve and were not waited for: only [`Cluster::wait`] waits for them, on the thread that
//! also sends the signals, so their ids cannot have been given to others.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_client::{Admin, AdminError};
use embar_console::interrupt::Interrupted;
use embar_fabric::geometry::cell_of;
use embar_fabric::{Geometry, Region};
use embar_memory::{Coherence, Mapped};
use embar_meter::random::SplitMix64;
use embar_order::Leadership;
use embar_supervise::plan::Role;
use embar_supervise::protocol::EXIT_OVERTAKEN;
use embar_supervise::{Cluster, Happening};
use rustix::process::{Pid, Signal, kill_process};

use super::books::Books;
use super::faults::{Action, Fault, Victim};
use super::plan::VerifyPlan;
use super::room::Stream;
use super::violation::Kind;

/// Wait before a broker is started again.
const RESTART_AFTER: Duration = Duration::from_millis(100);

/// How long a broker that was asked to leave may take; longer than any stop.
const LEAVE_WITHIN: Duration = Duration::from_secs(15);

/// A cluster and what was done to it. Dropped, it is gone.
pub struct Brokers {
    cluster: Cluster,
    region: Region<Mapped>,
    /// Processes that serve, by row.
    serving: BTreeMap<u16, u32>,
    /// Rows whose process was killed and has not been seen to end.
    killed: BTreeSet<u16>,
    /// Processes that are stopped, by row, and until when.
    paused: BTreeMap<u16, (u32, Instant)>,
    /// Processes that were stopped at some time, by row: others may have gone on without them.
    stood_still: BTreeMap<u16, u32>,
    /// When which row is started again.
    due: BTreeMap<u16, Instant>,
    /// Nobody is started again before all of them are dead.
    all_die: bool,
    /// Those that are not in the cluster: places of spares, and of brokers that left.
    absent: BTreeSet<u16>,
    /// Who was asked to leave, until that is answered.
    asked: Option<JoinHandle<Result<(), AdminError>>>,
    /// Brokers that left, and have not been told of.
    left: u64,
    failed_starts: u64,
    overtaken: u64,
    plan: VerifyPlan,
    random: SplitMix64,
}

impl Brokers {
    /// Of a cluster that serves.
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
            stood_still: BTreeMap::new(),
            due: BTreeMap::new(),
            all_die: false,
            asked: None,
            left: 0,
            failed_starts: 0,
            overtaken: 0,
            plan: plan.clone(),
            random: SplitMix64::new(plan.seed.rotate_left(32)),
        })
    }

    /// Addresses of all brokers: any of them may be away when a client asks.
    pub fn bootstrap(&self) -> String {
        let addresses = self.cluster.brokers().map(|broker| broker.address);
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        addresses.join(",")
    }

    /// The shape of their memory.
    pub fn geometry(&self) -> &Geometry {
        self.region.geometry()
    }

    /// How many epochs sequencers have raised so far.
    pub fn reigns(&self) -> u32 {
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

    /// Whether there are as many as there should be, and nobody is about to go.
    pub fn all_serve(&self) -> bool {
        let expected = self.cluster.plan().brokers + self.cluster.plan().standbys;
        self.serving.len() == usize::from(expected)
            && self.paused.is_empty()
            && self.killed.is_empty()
            && self.asked.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Brokers that have left since the last call.
    pub fn take_left(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// What of a topic can be read, by what brokers say: the first position of each stream, and the one behind the last.
    pub fn windows(&self, topic: u32) -> Vec<(Stream, u64, u64)> {
        let rows = self.region.geometry().data_rows();
        let windows = rows.filter_map(|row| {
            let window = self.region.window(row, cell_of(topic)).found()?;
            (window.chain == topic).then_some((row, window))
        });
        let mut streams: BTreeMap<Stream, (u64, u64)> = BTreeMap::new();
        for (row, window) in windows {
            let stream = streams.entry(self.plan.stream(row.into())).or_default();
            // What one of them gave up is gone from the one order.
            *stream = (stream.0.max(window.first), stream.1.max(window.next));
        }
        let streams = streams.into_iter();
        streams
            .map(|(stream, (first, next))| (stream, first, next))
            .collect()
    }

    /// When there is something to do next.
    pub fn next_due(&self) -> Option<Instant> {
        let paused = self.paused.values().map(|(_, until)| *until);
        self.due.values().copied().chain(paused).min()
    }

    /// Watches until `deadline`, or until something happened, and does what is due.
    ///
    /// # Errors
    /// When this process was told to stop, or no process can be started.
    pub fn watch(&mut self, deadline: Instant, books: &Books) -> Result<()> {
        match self.cluster.wait(Some(deadline)) {
            Happening::Interrupted => return Err(Interrupted.into()),
            Happening::Died { id, how } => self.died(id, &how, books),
            Happening::Serves(broker) => {
                // To others nothing is sent; when one of them sequences, that is seen by its reign.
                if broker.role == Role::Data {
                    books.checker().disturbed();
                }
                self.serving.insert(broker.id, broker.pid);
            }
            Happening::Left { id } => self.has_left(id),
            Happening::Woken | Happening::TimedOut => {}
        }
        let now = Instant::now();
        self.all_die &= !self.killed.is_empty();
        let startable = if self.all_die {
            Vec::new()
        } else {
            due(&self.due, now, |at| *at)
        };
        for row in startable {
            self.due.remove(&row);
            self.cluster.restart(row)?;
        }
        for row in due(&self.paused, now, |(_, until)| *until) {
            books.checker().disturbed();
            self.resume(row);
        }
        Ok(())
    }

    /// Does it to a broker; false if there is none to do it to.
    pub fn strike(&mut self, fault: Fault) -> Result<bool> {
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
                self.stood_still.insert(row, pid);
            }
            Action::Drain => return self.ask_to_leave(row),
            Action::Delete => return Ok(false),
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

    /// Also those that are just starting. Until the last of them has ended nobody is started again, so the next ones find
    /// what was left in memory, and nobody else.
    fn kill_all(&mut self) -> bool {
        let rows = 0..self.cluster.plan().rows();
        rows.filter(|row| !self.absent.contains(row))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|row| self.kill(row));
        self.all_die = !self.killed.is_empty();
        self.all_die
    }

    /// What becomes of that is heard from the broker itself.
    fn ask_to_leave(&mut self, row: u16) -> Result<bool> {
        let is_busy = self
            .asked
            .as_ref()
            .is_some_and(|asked| !asked.is_finished());
        if is_busy || self.paused.contains_key(&row) {
            return Ok(false);
        }
        let admin = Admin::connect(&self.bootstrap())?.timeout(LEAVE_WITHIN);
        // What it has of orders 0 and 1 comes back with it.
        let force = self.plan.order < 2;
        let ask = move || admin.remove_broker(row.into(), force).wait();
        let asked = std::thread::Builder::new()
            .name("drain".into())
            .spawn(ask)?;
        self.asked = Some(asked);
        Ok(true)
    }

    fn has_left(&mut self, row: u16) {
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

    /// Lets everybody go on.
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
            // One that somebody else killed meanwhile is found by `watch`.
            let _ended = signal(pid, Signal::CONT);
        }
    }

    fn died(&mut self, row: u16, how: &str, books: &Books) {
        let served = self.serving.remove(&row);
        let stood_still = self.stood_still.remove(&row);
        self.paused.remove(&row);
        if !self.killed.remove(&row) {
            let was_stopped = served.is_some() && served == stood_still;
            match served {
                None => self.failed_starts += 1,
                Some(_) if is_overtaken(self.cluster.failed_with(row), was_stopped) => {
                    self.overtaken += 1;
                }
                Some(_) => books.checker().fail(
                    Kind::Failure,
                    format_args!("broker {row} ended, and nobody asked it to: {how}"),
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
            Victim::Publisher | Victim::Cluster | Victim::Topic => None,
        }
    }
}

/// Whether a broker that ended with this code did what it must do when others went on without it: only those do that were
/// stopped for a while.
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
    fn only_who_was_stopped_may_end_because_others_went_on() {
        assert!(is_overtaken(Some(EXIT_OVERTAKEN), true));
        assert!(
            !is_overtaken(Some(EXIT_OVERTAKEN), false),
            "it never stood still"
        );
        assert!(!is_overtaken(Some(1), true));
        assert!(!is_overtaken(None, true), "it crashed");
    }
}
