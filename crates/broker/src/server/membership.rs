//! What a broker says of itself in the region, and the small thread that keeps
//! saying it: heartbeat, topics that were deleted, the profile in the log, and the end of a broker that
//! leaves its cluster.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::records::{BrokerRow, BrokerState, ControlRow};
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;
use embar_meter::snapshot::Snapshot;

use super::Watch;
use super::threads::Threads;
use crate::clock::Clock;
use crate::node::Node;
use crate::shard::At;

/// How often a heartbeat is stored and deleted topics are looked for.
const BEAT: Duration = Duration::from_millis(250);

/// How often a broker that leaves is looked at.
const LEAVING_BEAT: Duration = Duration::from_millis(10);
/// How long the peers of a broker that leaves have to go elsewhere.
const LEAVING_GRACE: Duration = Duration::from_secs(5);

struct Rows {
    broker: RowWriter<Mapped, BrokerRow>,
    row: BrokerRow,
}

/// This broker's row, before its threads run.
pub(super) struct Announcement {
    rows: Rows,
    pulse: Pulse,
}

/// The row in which this process says that it lives.
struct Pulse {
    control: RowWriter<Mapped, ControlRow>,
    incarnation: u32,
}

impl Pulse {
    fn beat(&mut self, at: At) {
        self.control.store(&ControlRow {
            pid: std::process::id(),
            incarnation: self.incarnation,
            heartbeat: at.wall.0,
            ..ControlRow::default()
        });
    }
}

/// See the module.
pub(super) struct Membership {
    rows: Arc<Mutex<Rows>>,
    over: mpsc::Sender<()>,
    beat: Option<JoinHandle<()>>,
}

impl Membership {
    /// The rows of the claimed broker, not stored yet.
    pub fn prepare(region: &Region<Mapped>, claim: &Claim) -> Announcement {
        let row = BrokerRow {
            incarnation: claim.incarnation(),
            pid: std::process::id(),
            ..BrokerRow::default()
        };
        Announcement {
            rows: Rows {
                broker: region.broker_row_writer(claim),
                row,
            },
            pulse: Pulse {
                control: region.control_row_writer(claim),
                incarnation: claim.incarnation(),
            },
        }
    }

    /// One that has left has said its last.
    pub fn set_state(&self, state: BrokerState) {
        set_state(&self.rows, state);
    }

    /// Stops the heartbeat and says that this broker ended in good order.
    pub fn leave(mut self) {
        self.stop();
        self.set_state(BrokerState::Gone);
    }

    fn stop(&mut self) {
        let _ = self.over.send(());
        if let Some(beat) = self.beat.take() {
            drop(beat.join());
        }
    }
}

fn set_state(rows: &Mutex<Rows>, state: BrokerState) {
    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
    if rows.row.broker_state() == Some(BrokerState::Left) {
        return;
    }
    rows.row.set_broker_state(state);
    let row = rows.row;
    rows.broker.store(&row);
}

/// The end of a broker that leaves its cluster for good, step by step between its heartbeats.
struct Departure {
    rows: Arc<Mutex<Rows>>,
    threads: Arc<Threads>,
    /// Once it has begun: when its peers are cut.
    cut_at: Option<Instant>,
}

impl Departure {
    /// How soon to look again.
    fn step(&mut self, node: &Node<Mapped>) -> Duration {
        if !node.is_leaving() || node.has_left() {
            return BEAT;
        }
        let cut_at = *self.cut_at.get_or_insert_with(|| {
            set_state(&self.rows, BrokerState::Draining);
            self.threads.begin_to_drain();
            Instant::now() + LEAVING_GRACE
        });
        let is_over = self.threads.have_ended() && node.is_settled();
        if !is_over && Instant::now() < cut_at {
            return LEAVING_BEAT;
        }
        self.threads.cut();
        set_state(&self.rows, BrokerState::Left);
        node.set_left();
        tracing::info!(id = node.id, "has left the cluster");
        BEAT
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Announcement {
    pub fn announce(&mut self, state: BrokerState, address: SocketAddr, lanes: u16, at: At) {
        let Rows { broker, row } = &mut self.rows;
        row.set_broker_state(state);
        row.set_address(address);
        row.lanes = lanes;
        if row.started == 0 {
            row.started = at.wall.0;
        }
        broker.store(row);
        self.pulse.beat(at);
    }

    /// Keeps beating in a thread of its own until left or dropped.
    pub fn keep(
        self,
        node: Arc<Node<Mapped>>,
        threads: Arc<Threads>,
        watch: Watch,
        clock: Clock,
    ) -> std::io::Result<Membership> {
        let (over, ended) = mpsc::channel();
        let rows = Arc::new(Mutex::new(self.rows));
        let mut pulse = self.pulse;
        let mut reporter = Reporter::new(&node, clock.at());
        let mut departure = Departure {
            rows: Arc::clone(&rows),
            threads,
            cut_at: None,
        };
        let beat = std::thread::Builder::new().name(format!("embar-beat-{}", node.id));
        let beat = beat.spawn(move || {
            let mut beat = BEAT;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(beat) {
                let at = clock.at();
                pulse.beat(at);
                node.refresh_topics();
                if node.is_overtaken() {
                    tracing::error!("this broker was overtaken: it ends, to be started again");
                    watch.fail();
                    return;
                }
                reporter.report(&node, at);
                beat = departure.step(&node);
            }
        })?;
        Ok(Membership {
            rows,
            over,
            beat: Some(beat),
        })
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
