//! Starts the receiving processes of the wall, and runs its trials: threads of this process send to them, read from
//! them, or both.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use embar_console::context::Context;
use embar_console::interrupt::Interrupt;
use embar_console::size::mib_per_s;
use embar_supervise::child::{Child, ChildEvent};
use embar_supervise::protocol::ProcessReport;

use super::receiver::{self, ReceiverSpec};
use super::stream::{Place, Stream, Transport};
use super::wire::BATCH_HEAD_BYTES;

/// How long a receiving process may take to map and touch its ring.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a peer may be silent before the trial fails.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Threads hand each other at least so many bytes at once: with small batches, several of them.
const HAND_OVER_BYTES: usize = 256 << 10;
/// Buffers for each connection, where one thread fills what another one empties: as many as a publisher has.
pub(super) const BUFFERS_PER_CONNECTION: usize = 4;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// Senders write batches, receiving processes read them into their rings.
    PublishBare,
    /// As `PublishBare`; also one thread copies each message into its batch, and both sides checksum each batch.
    PublishWorking,
    /// Receiving processes send from their rings, a thread for each connection reads.
    ReadBare,
    /// As `ReadBare`, with as many threads as the plan says, which checksum each batch.
    ReadWorking,
    /// As `ReadWorking`; also one thread takes over all batches and verifies each message.
    ReadVerified,
    /// As `PublishBare` and `ReadBare` at once: what comes in goes out again, from where it lies.
    RelayBare,
    /// As `RelayBare`; also one thread copies each message into its batch, all sides checksum each batch, and one thread
    /// takes over all batches and verifies each message.
    RelayWorking,
}

/// What is sent, and over how many connections.
#[derive(Clone, Debug, serde::Serialize)]
pub struct WallPlan {
    /// What carries the bytes.
    pub transport: Transport,
    /// Receiving processes.
    pub receivers: u16,
    /// Connections, and sending threads, to each of them.
    pub connections_per_receiver: u16,
    /// Connections from each of them when reading.
    pub read_connections_per_receiver: u16,
    /// Threads that read and check, all together.
    pub read_threads: u16,
    /// Bytes of a batch at most.
    pub batch_bytes: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of a trial.
    pub total_bytes: u64,
    /// Bytes of all rings together.
    pub ring_bytes: u64,
}

impl WallPlan {
    /// Bytes of each batch: its head, and as many whole messages as fit.
    pub(super) fn batch(&self) -> usize {
        let message = self.message_bytes as usize;
        let body = (self.batch_bytes as usize).saturating_sub(BATCH_HEAD_BYTES);
        BATCH_HEAD_BYTES + body / message * message
    }

    /// Part of a batch that is messages.
    pub(super) fn message_share(&self) -> f64 {
        let batch = self.batch();
        (batch - BATCH_HEAD_BYTES) as f64 / batch as f64
    }

    /// Messages of each batch.
    pub(super) fn messages_per_batch(&self) -> u64 {
        ((self.batch() - BATCH_HEAD_BYTES) / self.message_bytes as usize) as u64
    }

    /// Batches that threads hand each other at once.
    pub(super) fn batches_at_once(&self) -> usize {
        (HAND_OVER_BYTES / self.batch()).max(1)
    }

    /// Batches for each of so many connections; all of them together are about a trial.
    pub(super) fn batches_for_each(&self, connections: usize) -> u64 {
        let batches = self.total_bytes / self.batch() as u64;
        (batches / connections as u64).max(1)
    }
}

/// Receiving processes that are ready; they end when this is dropped.
pub struct Receivers {
    pub(super) places: Vec<Place>,
    _children: Vec<Child>,
    _files: tempfile::TempDir,
    pub(super) interrupt: Interrupt,
}

/// What one thread of a trial does; returns the bytes that count.
pub(super) type Job<'a> = Box<dyn FnOnce() -> Result<u64> + Send + 'a>;

impl Receivers {
    /// Starts as many as the plan says, and waits until their rings are warm.
    pub fn start(plan: &WallPlan, context: &Context) -> Result<Self> {
        let files = tempfile::tempdir().context("cannot make a directory for logs and sockets")?;
        let (send, events) = channel();
        let ring_bytes = plan.ring_bytes / u64::from(plan.receivers);
        let socket = |id: usize| files.path().join(format!("receiver-{id}.socket"));
        let children = (0..plan.receivers)
            .map(|id| {
                let slot = usize::from(id);
                let spec = serde_json::to_string(&ReceiverSpec {
                    id,
                    ring_bytes,
                    unix: socket(slot),
                })?;
                let args = [receiver::COMMAND.to_owned(), spec];
                let log = files.path().join(format!("receiver-{id}.log"));
                Child::start((&context.program, &args), &log, (slot, 1), send.clone())
            })
            .collect::<Result<Vec<_>>>()?;
        let mut addresses = vec![None; children.len()];
        let deadline = Instant::now() + READY_WITHIN;
        while addresses.contains(&None) {
            context.interrupt.check()?;
            match events.recv_timeout(Duration::from_millis(100)) {
                Ok(ChildEvent::Said {
                    slot,
                    report: ProcessReport::Ready { address, .. },
                    ..
                }) => addresses[slot] = Some(address),
                Ok(ChildEvent::Ended { slot, .. }) => {
                    bail!(
                        "receiver {slot} ended: {}",
                        embar_supervise::child::tail(children[slot].log()).trim()
                    )
                }
                Ok(_) => {}
                Err(_) => ensure!(
                    Instant::now() < deadline,
                    "the receivers are not ready after {READY_WITHIN:?}"
                ),
            }
        }
        let addresses = addresses.into_iter().flatten().enumerate();
        let places = addresses.map(|(id, tcp)| Place {
            tcp,
            unix: socket(id),
        });
        Ok(Self {
            places: places.collect(),
            _children: children,
            _files: files,
            interrupt: context.interrupt.clone(),
        })
    }

    /// Runs one trial; returns MiB/s. Where messages have a meaning, it counts only their bytes.
    pub fn run(&self, wall: Wall, plan: &WallPlan) -> Result<f64> {
        match wall {
            Wall::PublishBare => self.publish_bare(plan),
            Wall::PublishWorking => self.publish_working(plan),
            Wall::ReadBare => self.read_bare(plan),
            Wall::ReadWorking => self.read_working(plan, false),
            Wall::ReadVerified => self.read_working(plan, true),
            Wall::RelayBare => self.relay_bare(plan),
            Wall::RelayWorking => self.relay_working(plan),
        }
    }

    /// So many connections to each receiving process, by turns.
    pub(super) fn connect(&self, plan: &WallPlan, to_each: u16) -> Result<Vec<Stream>> {
        (0..to_each)
            .flat_map(|_| &self.places)
            .map(|place| Stream::connect(place, plan.transport, SILENCE_MAX))
            .collect()
    }

    /// Runs each job on a thread, and times from the moment all are there until the last is done. Returns the sum of
    /// what they return, and MiB of it per second.
    pub(super) fn timed(&self, jobs: Vec<Job<'_>>) -> Result<(u64, f64)> {
        let start = Barrier::new(jobs.len() + 1);
        let (sum, elapsed) = thread::scope(|scope| -> Result<(u64, Duration)> {
            let workers: Vec<_> = jobs
                .into_iter()
                .map(|job| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        job()
                    })
                })
                .collect();
            start.wait();
            let started = Instant::now();
            let mut sum = 0;
            for worker in workers {
                sum += worker
                    .join()
                    .map_err(|_| anyhow!("a thread of the wall panicked"))??;
            }
            Ok((sum, started.elapsed()))
        })?;
        self.interrupt.check()?;
        Ok((sum, mib_per_s(sum, elapsed)))
    }
}
