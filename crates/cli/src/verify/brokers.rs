//! The brokers of a run: whom a fault hits, and who comes back.
//!
//! Signals go to processes that serve and were not waited for: only [`Cluster::wait`] waits for them, on the thread that
//! also sends the signals, so their ids cannot have been given to others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_fabric::memory::{Coherence, Mapped};
use embar_fabric::{Geometry, Region};
use embar_meter::random::SplitMix64;
use embar_order::Throne;
use rustix::process::{Pid, Signal, kill_process};

use super::books::Books;
use super::faults::{Action, Fault, Span, Victim};
use super::violation::Kind;
use crate::supervise::plan::Role;
use crate::supervise::{Cluster, Happening};

/// Wait before a broker is started again.
const RESTART_AFTER: Duration = Duration::from_millis(100);

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
    /// When which row is started again.
    due: BTreeMap<u16, Instant>,
    failed_starts: u64,
}

impl Brokers {
    /// Of a cluster that serves.
    pub fn new(cluster: Cluster) -> Result<Self> {
        let dir = &cluster.plan().region;
        let region = Region::open(dir, Coherence::Coherent)
            .with_context(|| format!("cannot look into the region {}", dir.display()))?;
        let serving = cluster.brokers().map(|broker| (broker.id, broker.pid));
        Ok(Self {
            serving: serving.collect(),
            cluster,
            region,
            killed: BTreeSet::new(),
            paused: BTreeMap::new(),
            due: BTreeMap::new(),
            failed_starts: 0,
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
        Throne::observe(&self.region).turns
    }

    /// Starts that failed because others were away.
    pub fn failed_starts(&self) -> u64 {
        self.failed_starts
    }

    /// Whether all of them serve.
    pub fn all_serve(&self) -> bool {
        self.serving.len() == usize::from(self.cluster.plan().rows())
            && self.paused.is_empty()
            && self.killed.is_empty()
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
            Happening::Interrupted => return Err(crate::exit::Problem::Interrupted.into()),
            Happening::Died { id, how } => self.died(id, &how, books),
            Happening::Serves(broker) => {
                self.serving.insert(broker.id, broker.pid);
            }
            Happening::Woken | Happening::Left { .. } | Happening::TimedOut => {}
        }
        let now = Instant::now();
        for row in due(&self.due, now, |at| *at) {
            self.due.remove(&row);
            self.cluster.restart(row)?;
        }
        for row in due(&self.paused, now, |(_, until)| *until) {
            self.resume(row);
        }
        Ok(())
    }

    /// Does it to a broker; false if there is none to do it to.
    pub fn strike(&mut self, fault: Fault, span: Span, random: &mut SplitMix64) -> Result<bool> {
        let Some((row, pid)) = self.victim(fault.victim, random) else {
            return Ok(false);
        };
        match fault.action {
            Action::Kill => {
                signal(pid, Signal::KILL)?;
                self.serving.remove(&row);
                self.paused.remove(&row);
                self.killed.insert(row);
            }
            Action::Pause if self.paused.contains_key(&row) => return Ok(false),
            Action::Pause => {
                signal(pid, Signal::STOP)?;
                let until = Instant::now() + span.draw(random);
                self.paused.insert(row, (pid, until));
            }
        }
        Ok(true)
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
        let served = self.serving.remove(&row).is_some();
        self.paused.remove(&row);
        if !self.killed.remove(&row) {
            if served {
                books.checker().fail(
                    Kind::Failure,
                    format_args!("broker {row} ended, and nobody asked it to: {how}"),
                );
            } else {
                self.failed_starts += 1;
            }
        }
        self.due.insert(row, Instant::now() + RESTART_AFTER);
    }

    fn victim(&self, victim: Victim, random: &mut SplitMix64) -> Option<(u16, u32)> {
        let with_pid = |row: u16| Some((row, *self.serving.get(&row)?));
        match victim {
            Victim::Sequencer => {
                let reign = Throne::observe(&self.region).reign?;
                let mut candidates = self.region.geometry().candidates();
                with_pid(candidates.nth(usize::from(reign.area))?)
            }
            Victim::Broker => {
                let plan = self.cluster.plan();
                let rows = self.serving.keys().copied();
                let data: Vec<u16> = rows.filter(|row| plan.role(*row) == Role::Data).collect();
                let count = std::num::NonZeroU64::new(data.len() as u64)?;
                with_pid(data[(random.next_u64() % count) as usize])
            }
            Victim::Publisher => None,
        }
    }
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
