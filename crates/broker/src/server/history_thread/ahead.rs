//! Reads from disks what subscribers will ask for next, while they are sent what comes before.
//!
//! Who reads on gets the next extents read by threads of their own, so the disk has several reads on their way and does not wait
//! for checks and sends. An extent that nobody asks for in time is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_disk::history::{Extent, HistoryError};
use embar_disk::{AlignedBuffer, Chain};

use super::pace::Pace;
use super::read_memory::ReadMemory;
use crate::disks::Disks;

/// Reads that are on their way to each disk at once.
const THREADS: usize = 2;
/// Extents that are read, or being read, ahead of one subscriber.
pub(super) const EXTENTS: usize = 2;
/// Bytes that are read ahead of all subscribers.
const BYTES_MAX: usize = 64 << 20;
/// Nobody comes for what was read ahead for so long.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// What is read ahead.
pub(super) struct Ahead {
    /// By disk.
    jobs: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// The oldest first.
    reads: VecDeque<Read>,
    bytes: Arc<AtomicUsize>,
}

/// Memory that is counted while there is something in it, or will be.
struct Counted {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An extent, and who gets it.
struct Job {
    extent: Extent,
    buffer: AlignedBuffer,
    counted: Counted,
    /// Of its [`Read`]: gone if nobody wants it any more.
    wanted: Weak<()>,
    done: SyncSender<Done>,
}

/// What came of a job.
struct Done {
    result: Result<AlignedBuffer, HistoryError>,
    _counted: Counted,
}

struct Read {
    disk: u16,
    chain: Chain,
    /// The position for which it was read.
    from: u64,
    extent: Extent,
    _wanted: Arc<()>,
    done: Receiver<Done>,
    /// What came, and since when it is known that it did.
    came: Option<(Done, Instant)>,
}

impl Read {
    /// Whether nobody came for it, for long.
    fn is_stale(&mut self) -> bool {
        if self.came.is_none() {
            self.came = self.done.try_recv().ok().map(|done| (done, Instant::now()));
        }
        { self.came.as_ref() }.is_some_and(|(_, since)| since.elapsed() > KEPT_FOR)
    }
}

impl Ahead {
    pub fn start(disks: &Arc<Disks>, paces: &Arc<[Pace]>) -> io::Result<Self> {
        let mut ahead = Self {
            jobs: Vec::new(),
            threads: Vec::new(),
            reads: VecDeque::new(),
            bytes: Arc::default(),
        };
        for disk in disks.iter().map(|disk| disk.number()) {
            let (jobs, queue) = mpsc::channel::<Job>();
            ahead.jobs.push(jobs);
            let queue = Arc::new(Mutex::new(queue));
            for number in 0..THREADS {
                let (queue, disks, paces) =
                    (Arc::clone(&queue), Arc::clone(disks), Arc::clone(paces));
                let name = format!("embar-ahead-{disk}-{number}");
                let thread = std::thread::Builder::new().name(name);
                let work = move || read_all(&queue, disks.get(disk), &paces[usize::from(disk)]);
                ahead.threads.push(thread.spawn(work)?);
            }
        }
        Ok(ahead)
    }

    /// The extent that was read for this position, once it is there. None where it was not asked for, or cannot be read.
    pub fn take(&mut self, chain: Chain, from: u64) -> Option<(u16, Extent, AlignedBuffer)> {
        let place = { self.reads.iter() }.position(|it| (it.chain, it.from) == (chain, from))?;
        let read = self.reads.remove(place)?;
        let done = match read.came {
            Some((done, _)) => done,
            None => read.done.recv().ok()?,
        };
        // Who reads the position now finds out what is wrong.
        Some((read.disk, read.extent, done.result.ok()?))
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
        while self.reads.front_mut().is_some_and(Read::is_stale) {
            self.reads.pop_front();
        }
        let bytes = extent.bytes();
        let all = Arc::clone(&self.bytes);
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let counted = Counted { bytes, all };
        if before + bytes > BYTES_MAX {
            return false;
        }
        let (done, result) = mpsc::sync_channel(1);
        let wanted = Arc::new(());
        let job = Job {
            extent: extent.clone(),
            buffer: memory.take(bytes),
            counted,
            wanted: Arc::downgrade(&wanted),
            done,
        };
        let jobs = self.jobs.get(usize::from(disk));
        let sent = jobs.is_some_and(|jobs| jobs.send(job).is_ok());
        if sent {
            self.reads.push_back(Read {
                disk,
                chain,
                from,
                extent,
                _wanted: wanted,
                done: result,
                came: None,
            });
        }
        sent
    }

    /// Nobody has asked for anything for a while.
    pub fn forget(&mut self) {
        self.reads.clear();
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.forget();
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

fn read_all(queue: &Mutex<Receiver<Job>>, disk: &embar_disk::Disk, pace: &Pace) {
    loop {
        let job = {
            let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.recv()
        };
        let Ok(mut job) = job else {
            return;
        };
        if job.wanted.strong_count() == 0 {
            continue;
        }
        let read = pace.read(disk.directory(), &job.extent, &mut job.buffer);
        let done = Done {
            result: read.map(|()| job.buffer),
            _counted: job.counted,
        };
        // Nobody may want it any more.
        drop(job.done.send(done));
    }
}
