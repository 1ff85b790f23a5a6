//! What a broker says of itself in the region, and the small thread that keeps
//! saying it: heartbeat, topics that were deleted, the profile in the log.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_fabric::memory::Mapped;
use embar_fabric::owner::Claim;
use embar_fabric::records::{BrokerRow, BrokerState, ControlRow};
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;
use embar_meter::snapshot::Snapshot;

use super::Watch;
use crate::clock::Clock;
use crate::node::Node;
use crate::shard::At;

/// How often a heartbeat is stored and deleted topics are looked for.
const BEAT: Duration = Duration::from_millis(250);

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

    pub fn set_state(&self, state: BrokerState) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.row.set_broker_state(state);
        let row = rows.row;
        rows.broker.store(&row);
    }

    /// Stops the heartbeat and says that this broker left in good order.
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
        watch: Watch,
        clock: Clock,
    ) -> std::io::Result<Membership> {
        let (over, ended) = mpsc::channel();
        let rows = Arc::new(Mutex::new(self.rows));
        let mut pulse = self.pulse;
        let mut reporter = Reporter::new(&node, clock.at());
        let beat = std::thread::Builder::new().name(format!("embar-beat-{}", node.id));
        let beat = beat.spawn(move || {
            let _watch = watch;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(BEAT) {
                let at = clock.at();
                pulse.beat(at);
                node.refresh_topics();
                reporter.report(&node, at);
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
