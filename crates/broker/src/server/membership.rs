//! The small thread that keeps a broker in its cluster: heartbeat, topics that were deleted, the profile
//! in the log, and the end of a broker that leaves.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::Damage;
use embar_fabric::memory::Mapped;
use embar_meter::snapshot::Snapshot;

use super::Watch;
use super::threads::Threads;
use crate::clock::Clock;
use crate::departure::Leaving;
use crate::heartbeat::{Beat, Heartbeat};
use crate::node::Node;
use crate::shard::At;

/// See the module.
pub(super) struct Membership {
    over: mpsc::Sender<()>,
    beat: Option<JoinHandle<()>>,
}

impl Membership {
    /// Keeps beating in a thread of its own until stopped or dropped.
    pub fn keep(
        heartbeat: Heartbeat<Mapped>,
        node: Arc<Node<Mapped>>,
        threads: Arc<Threads>,
        watch: Watch,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let (over, ended) = mpsc::channel();
        let beat = std::thread::Builder::new().name(format!("embar-beat-{}", node.id));
        let mut keeper = Keeper {
            heartbeat,
            reporter: Reporter::new(&node, clock.at()),
            damage: DamageReport::default(),
            node,
            threads,
        };
        let beat = beat.spawn(move || {
            let mut wait = Duration::ZERO;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                let Some(next) = keeper.beat(clock.at()) else {
                    return watch.overtaken();
                };
                wait = next;
            }
        })?;
        Ok(Self {
            over,
            beat: Some(beat),
        })
    }

    /// Waits until the thread has ended.
    pub fn stop(&mut self) {
        let _ = self.over.send(());
        if let Some(beat) = self.beat.take() {
            drop(beat.join());
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What beats do.
struct Keeper {
    heartbeat: Heartbeat<Mapped>,
    reporter: Reporter,
    damage: DamageReport,
    node: Arc<Node<Mapped>>,
    threads: Arc<Threads>,
}

impl Keeper {
    /// The time to the next beat; `None` if the broker is to end, as it was overtaken.
    fn beat(&mut self, at: At) -> Option<Duration> {
        let (node, threads) = (&self.node, &self.threads);
        let beat = self.heartbeat.beat(node, at, threads.have_ended());
        let Beat::GoesOn(leaving, next) = beat else {
            tracing::error!("this broker was overtaken: it ends, to be started again");
            return None;
        };
        self.reporter.report(node, at);
        self.damage.report(node);
        match leaving {
            Leaving::No | Leaving::GoesOn => {}
            Leaving::Begins => threads.begin_to_drain(),
            Leaving::Ends => {
                threads.cut();
                node.set_left();
                tracing::info!(id = node.id, "has left the cluster");
            }
        }
        Some(next)
    }
}

/// Puts the profile of each interval that had traffic into the log.
struct Reporter {
    last: Snapshot,
    due: embar_wire::time::Now,
}

impl Reporter {
    fn new(node: &Node<Mapped>, at: At) -> Self {
        Self {
            last: node.profile.snapshot(),
            due: at.now.after(node.config.profile_interval),
        }
    }

    fn report(&mut self, node: &Node<Mapped>, at: At) {
        if at.now < self.due {
            return;
        }
        self.due = at.now.after(node.config.profile_interval);
        let now = node.profile.snapshot();
        let interval = now.since(&self.last);
        if interval.total_ns() > 0 {
            tracing::info!("\n{interval}");
        }
        self.last = now;
    }
}

/// Puts what was found to be damaged into the log, once for each place.
#[derive(Default)]
struct DamageReport {
    told: HashSet<(&'static str, u64, Damage)>,
}

impl DamageReport {
    fn report(&mut self, node: &Node<Mapped>) {
        for (table, entry, damage) in node.region.damage() {
            if !self.told.insert((table, entry, damage)) {
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
