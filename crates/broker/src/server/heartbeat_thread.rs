//! The small thread that drives a broker's heartbeat. With each beat it also puts the profile and new damage
//! into the process's log, and carries out the steps of a drain.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_frame::Now;
use embar_memory::{Damage, Mapped};
use embar_meter::snapshot::Snapshot;

use super::network_threads::NetworkThreads;
use super::stop::ThreadGuard;
use crate::clock::{Clock, Timestamp};
use crate::drain::DrainStep;
use crate::heartbeat::{Beat, Heartbeat};
use crate::node::Node;

/// A thread that beats until it is stopped or dropped.
pub(super) struct HeartbeatThread {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    /// Starts the thread. The first beat is due at once.
    pub fn start(
        heartbeat: Heartbeat<Mapped>,
        node: Arc<Node<Mapped>>,
        threads: Arc<NetworkThreads>,
        guard: ThreadGuard,
        clock: Clock,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("embar-beat-{}", node.id));
        let mut beating = Beating {
            heartbeat,
            profile: ProfileLogger::new(&node, clock.read()),
            damage: DamageLogger::default(),
            node,
            threads,
        };
        let thread = thread.spawn(move || {
            let mut wait = Duration::ZERO;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                let Some(next) = beating.beat(clock.read()) else {
                    return guard.report_overtaken();
                };
                wait = next;
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Waits until the thread has ended.
    pub fn stop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread works with.
struct Beating {
    heartbeat: Heartbeat<Mapped>,
    profile: ProfileLogger,
    damage: DamageLogger,
    node: Arc<Node<Mapped>>,
    threads: Arc<NetworkThreads>,
}

impl Beating {
    /// The time to the next beat; `None` if the broker is to end, because it was overtaken.
    fn beat(&mut self, at: Timestamp) -> Option<Duration> {
        let (node, threads) = (&self.node, &self.threads);
        let beat = self.heartbeat.beat(node, at, threads.have_ended());
        let Beat::GoesOn(drain, next) = beat else {
            tracing::error!("this broker was overtaken: it ends, to be started again");
            return None;
        };
        self.profile.log(node, at);
        self.damage.log(node);
        match drain {
            DrainStep::None | DrainStep::Wait => {}
            DrainStep::Begin => threads.begin_to_drain(),
            DrainStep::Finish => {
                threads.cut();
                node.set_left();
                tracing::info!(id = node.id, "has left the cluster");
            }
        }
        Some(next)
    }
}

/// Logs the profiles of each interval that had traffic.
struct ProfileLogger {
    last: Vec<Snapshot>,
    due: Now,
}

impl ProfileLogger {
    fn new(node: &Node<Mapped>, at: Timestamp) -> Self {
        Self {
            last: node.profiles(),
            due: at.now.after(node.config.profile_interval),
        }
    }

    fn log(&mut self, node: &Node<Mapped>, at: Timestamp) {
        if at.now < self.due {
            return;
        }
        self.due = at.now.after(node.config.profile_interval);
        let now = node.profiles();
        for (now, last) in now.iter().zip(&self.last) {
            let interval = now.since(last);
            if interval.total_ns() > 0 {
                tracing::info!("\n{interval}");
            }
        }
        self.last = now;
    }
}

/// Logs what was found to be damaged, once for each place.
#[derive(Default)]
struct DamageLogger {
    logged: HashSet<(&'static str, u64, Damage)>,
}

impl DamageLogger {
    fn log(&mut self, node: &Node<Mapped>) {
        for (table, entry, damage) in node.region.damage() {
            if !self.logged.insert((table, entry, damage)) {
                continue;
            }
            match damage {
                Damage::Repaired => tracing::warn!(
                    table,
                    entry,
                    "one bit of shared memory was wrong and was put right: check this machine's memory"
                ),
                Damage::Lost => tracing::error!(
                    table,
                    entry,
                    "a record in shared memory is damaged, and is not used: check this machine's memory, and who else writes to the region's files"
                ),
            }
        }
    }
}
