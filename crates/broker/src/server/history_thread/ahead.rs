//! Reads from disks what subscribers will ask for next, while they are sent what comes before.
//!
//! Who reads on gets the next extents read by threads of their own, so the disk has several reads on their way and does not wait
//! for checks and sends. An extent that nobody asks for in time is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_disk::history::{Extent, HistoryError};
use embar_disk::{AlignedBuffer, Chain};

use super::read_memory::ReadMemory;
use crate::disks::Disks;

/// Reads that are on their way to the disks at once.
const THREADS: usize = 2;
/// Extents that are read, or being read, ahead of one subscriber.
pub(super) const EXTENTS: usize = 2;
/// Bytes that are read ahead of all subscribers.
const BYTES_MAX: usize = 64 << 20;
/// Nobody comes for what was read ahead for so long.
const KEPT_FOR: Duration = Duration::from_secs(2);

/// What is read ahead.
pub(super) struct Ahead {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// The oldest first.
    reads: VecDeque<Read>,
    bytes: usize,
}

/// An extent, and who gets it.
struct Job {
    disk: u16,
    extent: Extent,
    buffer: AlignedBuffer,
    done: SyncSender<Result<AlignedBuffer, HistoryError>>,
}

struct Read {
    disk: u16,
    chain: Chain,
    /// The position for which it was read.
    from: u64,
    extent: Extent,
    since: Instant,
    done: Receiver<Result<AlignedBuffer, HistoryError>>,
}

impl Ahead {
    pub fn start(disks: &Arc<Disks>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (0..THREADS).map(|number| {
            let (queue, disks) = (Arc::clone(&queue), Arc::clone(disks));
            let thread = std::thread::Builder::new().name(format!("embar-ahead-{number}"));
            thread.spawn(move || read_all(&queue, &disks))
        });
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
            jobs: Some(jobs),
            reads: VecDeque::new(),
            bytes: 0,
        })
    }

    /// The extent that was read for this position, once it is there. None where it was not asked for, or cannot be read.
    pub fn take(&mut self, chain: Chain, from: u64) -> Option<(u16, Extent, AlignedBuffer)> {
        let place = { self.reads.iter() }.position(|it| (it.chain, it.from) == (chain, from))?;
        let read = self.reads.remove(place)?;
        self.bytes -= read.extent.bytes();
        // Who reads the position now finds out what is wrong.
        let buffer = read.done.recv().ok()?.ok()?;
        Some((read.disk, read.extent, buffer))
    }

    /// Where an extent ends that is read for this position.
    pub fn end_of(&self, chain: Chain, from: u64) -> Option<u64> {
        let mut reads = self.reads.iter();
        let read = reads.find(|it| (it.chain, it.from) == (chain, from))?;
        Some(read.extent.end())
    }

    /// Has an extent read for this position. False where too much is read ahead.
    pub fn read(
        &mut self,
        disk: u16,
        chain: Chain,
        from: u64,
        extent: Extent,
        memory: &mut ReadMemory,
    ) -> bool {
        while { self.reads.front() }.is_some_and(|it| it.since.elapsed() > KEPT_FOR) {
            self.drop_oldest();
        }
        let bytes = extent.bytes();
        if self.bytes + bytes > BYTES_MAX {
            return false;
        }
        let (done, result) = mpsc::sync_channel(1);
        let job = Job {
            disk,
            extent: extent.clone(),
            buffer: memory.take(bytes),
            done,
        };
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        if sent {
            self.bytes += bytes;
            self.reads.push_back(Read {
                disk,
                chain,
                from,
                extent,
                since: Instant::now(),
                done: result,
            });
        }
        sent
    }

    /// Nobody has asked for anything for a while.
    pub fn forget(&mut self) {
        while !self.reads.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(read) = self.reads.pop_front() {
            self.bytes -= read.extent.bytes();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

fn read_all(queue: &Mutex<Receiver<Job>>, disks: &Disks) {
    loop {
        let job = {
            let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.recv()
        };
        let Ok(mut job) = job else {
            return;
        };
        let directory = disks.get(job.disk).directory();
        let read = job.extent.read(directory, &mut job.buffer);
        // Nobody may want it any more.
        drop(job.done.send(read.map(|()| job.buffer)));
    }
}
