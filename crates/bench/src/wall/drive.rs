//! Starts the receiving processes of the wall, and runs its trials: threads of this process send to them, or read from
//! them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use embar_console::context::Context;
use embar_console::interrupt::Interrupt;
use embar_console::size::mib_per_s;
use embar_supervise::child::{Child, ChildEvent};
use embar_supervise::protocol::ProcessReport;

use super::receiver::{self, ReceiverSpec};
use super::wire::{ANSWER_BYTES, BATCH_HEAD_BYTES, Hello, Kind, seal};

/// How long a receiving process may take to map and touch its ring.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a peer may be silent before the trial fails.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Buffers per sender in the working wall: as many as a publisher has for each connection.
const BUFFERS_PER_SENDER: usize = 4;

/// What is sent, and over how many connections.
#[derive(Clone, Debug, serde::Serialize)]
pub struct WallPlan {
    /// Receiving processes.
    pub receivers: u16,
    /// Connections, and sending threads, to each of them.
    pub connections_per_receiver: u16,
    /// Connections from each of them when reading.
    pub read_connections_per_receiver: u16,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Bytes of a trial.
    pub total_bytes: u64,
    /// Bytes of all rings together.
    pub ring_bytes: u64,
}

/// Receiving processes that are ready; they end when this is dropped.
pub struct Receivers {
    plan: WallPlan,
    addresses: Vec<SocketAddr>,
    _children: Vec<Child>,
    _logs: tempfile::TempDir,
    interrupt: Interrupt,
}

impl Receivers {
    /// Starts them and waits until their rings are warm.
    pub fn start(plan: WallPlan, context: &Context) -> Result<Self> {
        let logs = tempfile::tempdir().context("cannot make a directory for logs")?;
        let (send, events) = channel();
        let ring = plan.ring_bytes / u64::from(plan.receivers);
        let children = (0..plan.receivers)
            .map(|id| {
                let spec = serde_json::to_string(&ReceiverSpec {
                    id,
                    ring_bytes: ring,
                })?;
                let args = [receiver::COMMAND.to_owned(), spec];
                let log = logs.path().join(format!("receiver-{id}.log"));
                Child::start(
                    (&context.program, &args),
                    &log,
                    (usize::from(id), 1),
                    send.clone(),
                )
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
        let addresses = addresses.into_iter().flatten().collect();
        Ok(Self {
            plan,
            addresses,
            _children: children,
            _logs: logs,
            interrupt: context.interrupt.clone(),
        })
    }

    /// Runs one trial of sockets alone; returns MiB/s.
    pub fn bare(&self) -> Result<f64> {
        let batches = AtomicU64::new(self.batches());
        let batch = vec![0x5a; self.plan.batch_bytes as usize];
        self.send(Kind::Take, |stream| {
            while take_one(&batches) && !self.interrupt.is_raised() {
                stream.write_all(&batch)?;
            }
            Ok(())
        })
    }

    /// Runs one trial with the copy and both checksums; returns MiB/s of message bytes.
    pub fn working(&self) -> Result<f64> {
        let senders = self.addresses.len() * usize::from(self.plan.connections_per_receiver);
        let buffers = senders * BUFFERS_PER_SENDER + 1;
        // Both queues hold every buffer there is, so neither ever blocks a sender.
        let (full_in, full_out) = sync_channel::<Vec<u8>>(buffers);
        let (free_in, free_out) = sync_channel::<Vec<u8>>(buffers);
        for _ in 0..buffers {
            free_in.send(vec![1; self.plan.batch_bytes as usize])?;
        }
        let full_out = Mutex::new(full_out);
        // Both ends that the senders use go with this closure: if the senders fail, the filler is not left waiting.
        thread::scope(move |scope| {
            let (free_in, full_out) = (free_in, full_out);
            scope.spawn(move || self.fill_batches(&free_out, &full_in));
            self.send(Kind::Check, |stream| {
                while let Some(mut batch) = next_of(&full_out) {
                    seal(&mut batch);
                    stream.write_all(&batch)?;
                    // The filler may be done already.
                    let _wanted = free_in.send(batch);
                }
                Ok(())
            })
        })
        .map(|rate| rate * self.message_share())
    }

    /// Runs one trial in the other direction; returns MiB/s.
    pub fn read(&self) -> Result<f64> {
        let connections =
            self.addresses.len() * usize::from(self.plan.read_connections_per_receiver);
        let share = self.plan.total_bytes / connections as u64;
        let hello = Hello {
            kind: Kind::Give,
            batch_bytes: self.plan.batch_bytes,
            bytes: share,
        };
        let (bytes, elapsed) =
            self.on_each(self.plan.read_connections_per_receiver, |mut stream| {
                stream.write_all(&hello.to_bytes())?;
                let mut buffer = vec![0; self.plan.batch_bytes as usize];
                let mut left = share;
                while left > 0 {
                    self.interrupt.check()?;
                    let n = stream.read(&mut buffer)?;
                    ensure!(n > 0, "a receiver ended early");
                    left = left.saturating_sub(n as u64);
                }
                Ok(share)
            })?;
        Ok(mib_per_s(bytes, elapsed))
    }

    fn batches(&self) -> u64 {
        self.plan
            .total_bytes
            .div_ceil(u64::from(self.plan.batch_bytes))
    }

    /// The application thread: one copy of each message.
    fn fill_batches(&self, free: &Receiver<Vec<u8>>, full: &std::sync::mpsc::SyncSender<Vec<u8>>) {
        let message = vec![0x5a; self.plan.message_bytes as usize];
        for _ in 0..self.batches() {
            let Ok(mut batch) = free.recv() else { return };
            if self.interrupt.is_raised() {
                return;
            }
            for place in batch[BATCH_HEAD_BYTES..].chunks_exact_mut(message.len()) {
                place.copy_from_slice(std::hint::black_box(&message));
            }
            if full.send(batch).is_err() {
                return;
            }
        }
    }

    /// Part of a batch that is whole messages.
    fn message_share(&self) -> f64 {
        let body = self.plan.batch_bytes as usize - BATCH_HEAD_BYTES;
        let message = self.plan.message_bytes as usize;
        (body / message * message) as f64 / f64::from(self.plan.batch_bytes)
    }

    fn send(
        &self,
        kind: Kind,
        sender: impl Fn(&mut TcpStream) -> Result<()> + Sync,
    ) -> Result<f64> {
        let hello = Hello {
            kind,
            batch_bytes: self.plan.batch_bytes,
            bytes: 0,
        };
        let (bytes, elapsed) = self.on_each(self.plan.connections_per_receiver, |mut stream| {
            stream.write_all(&hello.to_bytes())?;
            sender(&mut stream)?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = [0; ANSWER_BYTES];
            stream
                .read_exact(&mut answer)
                .context("a receiver refused the bytes, or died")?;
            Ok(u64::from_le_bytes(answer))
        })?;
        self.interrupt.check()?;
        let expected = self.batches() * u64::from(self.plan.batch_bytes);
        ensure!(bytes == expected, "{bytes} bytes arrived of {expected}");
        Ok(mib_per_s(bytes, elapsed))
    }

    /// Runs `work` on `connections` threads per receiver, each with a connection, and times from the moment all are
    /// connected until the last is done. Returns the sum of what they return.
    fn on_each(
        &self,
        connections: u16,
        work: impl Fn(TcpStream) -> Result<u64> + Sync,
    ) -> Result<(u64, Duration)> {
        let targets: Vec<SocketAddr> = (0..connections)
            .flat_map(|_| self.addresses.iter().copied())
            .collect();
        let streams = targets
            .iter()
            .map(|address| connect(*address))
            .collect::<Result<Vec<_>>>()?;
        let start = Barrier::new(streams.len() + 1);
        thread::scope(|scope| {
            let workers: Vec<_> = streams
                .into_iter()
                .map(|stream| {
                    let (start, work) = (&start, &work);
                    scope.spawn(move || {
                        start.wait();
                        work(stream)
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
        })
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)
        .with_context(|| format!("cannot connect to the receiver at {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

fn take_one(left: &AtomicU64) -> bool {
    left.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
}

fn next_of(queue: &Mutex<Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .recv()
        .ok()
}
