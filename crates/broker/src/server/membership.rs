//! The small thread that keeps a broker in its cluster: heartbeat, topics that were deleted, the profile
//! in the log, and the end of a broker that leaves.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::Damage;
use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::records::ControlRow;
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;
use embar_meter::snapshot::Snapshot;

use super::Watch;
use super::threads::Threads;
use crate::clock::Clock;
use crate::departure::{Departure, Leaving};
use crate::node::Node;
use crate::shard::At;

/// How often a heartbeat is stored and deleted topics are looked for.
const BEAT: Duration = Duration::from_millis(250);

/// How often a broker that leaves is looked at.
const LEAVING_BEAT: Duration = Duration::from_millis(10);

/// The row in which this process says that it lives.
pub(super) struct Pulse {
    control: RowWriter<Mapped, ControlRow>,
    incarnation: u32,
}

impl Pulse {
    /// Nothing is said yet.
    pub fn new(region: &Region<Mapped>, claim: &Claim) -> Self {
        Self {
            control: region.control_row_writer(claim),
            incarnation: claim.incarnation(),
        }
    }

    /// Says so.
    pub fn beat(&mut self, at: At, epoch_seen: u32) {
        self.control.store(&ControlRow {
            pid: std::process::id(),
            incarnation: self.incarnation,
            epoch_seen: epoch_seen.into(),
            heartbeat: at.wall.0,
            ..ControlRow::default()
        });
    }
}

/// See the module.
pub(super) struct Membership {
    over: mpsc::Sender<()>,
    beat: Option<JoinHandle<()>>,
}

impl Membership {
    /// Keeps beating in a thread of its own until stopped or dropped.
    pub fn keep(
        mut pulse: Pulse,
        node: Arc<Node<Mapped>>,
        threads: Arc<Threads>,
        watch: Watch,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let (over, ended) = mpsc::channel();
        let mut reporter = Reporter::new(&node, clock.at());
        let mut departure = Departure::default();
        let mut damage = DamageReport::default();
        let beat = std::thread::Builder::new().name(format!("embar-beat-{}", node.id));
        let beat = beat.spawn(move || {
            let mut beat = BEAT;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(beat) {
                let at = clock.at();
                pulse.beat(at, node.reign().map_or(0, |reign| reign.epoch));
                node.watch_sequencer(at.now);
                node.refresh_topics();
                if node.is_overtaken() {
                    tracing::error!("this broker was overtaken: it ends, to be started again");
                    watch.overtaken();
                    return;
                }
                reporter.report(&node, at);
                damage.report(&node);
                beat = BEAT;
                match departure.step(&node, at.now, threads.have_ended()) {
                    Leaving::No => continue,
                    Leaving::Begins => threads.begin_to_drain(),
                    Leaving::GoesOn => {}
                    Leaving::Ends => {
                        threads.cut();
                        node.set_left();
                        tracing::info!(id = node.id, "has left the cluster");
                        continue;
                    }
                }
                beat = LEAVING_BEAT;
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
