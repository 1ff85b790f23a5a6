//! The thread that reads disks for subscribers, so that network threads never wait for one.

mod ahead;
mod pace;
mod read_memory;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_disk::AlignedBuffer;
use embar_disk::format::Before;
use embar_disk::history::{Extent, History, HistoryError, Span};
use embar_fabric::DiskState;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_meter::profile::Recorder;
use embar_order::Leadership;
use embar_transport::{Token, Waker};
use embar_wire::batch::BatchHeader;

use self::ahead::{Ahead, EXTENTS};
use self::pace::Pace;
use self::read_memory::ReadMemory;
use super::counted::counted;
use crate::disks::Disks;
use crate::log::disk_row;
use crate::profile::disk::{Counter, Stage};
use crate::shard::{DiskPiece, DiskRead};

/// After so long without a request, memory is given back.
const IDLE: Duration = Duration::from_secs(5);

/// What a network thread asks for.
pub(super) struct Request {
    /// Whose it is.
    pub token: Token,
    /// What it wants.
    pub read: DiskRead,
    /// Where the answer goes...
    pub answers: Sender<Answer>,
    /// ...and who waits for it.
    pub waker: Waker,
}

/// What came of a request.
pub(super) struct Answer {
    pub token: Token,
    pub read: DiskRead,
    pub piece: DiskPiece,
}

/// What a request, or none, makes the thread do.
enum Next {
    Read(Request),
    /// Nobody has asked for a while.
    Idle,
    Over,
}

/// Where network threads put their requests.
#[derive(Clone)]
pub(super) struct Requests(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// A subscriber has one at most.
    requests: VecDeque<Request>,
    is_over: bool,
}

impl Requests {
    pub fn put(&self, request: Request) {
        self.lock().requests.push_back(request);
        self.0.changed.notify_one();
    }

    fn take(&self) -> Next {
        let mut queue = self.lock();
        loop {
            if queue.is_over {
                return Next::Over;
            }
            if let Some(request) = queue.requests.pop_front() {
                return Next::Read(request);
            }
            let waited = self.0.changed.wait_timeout(queue, IDLE);
            let (its, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = its;
            if waited.timed_out() && queue.requests.is_empty() && !queue.is_over {
                return Next::Idle;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        let queue = self.0.queue.lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, which ends when this is dropped.
pub(super) struct HistoryThread {
    requests: Requests,
    thread: Option<JoinHandle<()>>,
}

impl HistoryThread {
    /// Of the broker in this row.
    pub fn start(region: &Region<Mapped>, row: u16, disks: &Arc<Disks>) -> io::Result<Self> {
        let requests = Requests(Arc::default());
        let histories = disks.iter().map(|disk| History::new(disk.identity().disk));
        let paces = disks.iter().map(|disk| Pace::new(region, disk.number()));
        let paces: Arc<[Pace]> = paces.collect();
        let mut reader = Reader {
            region: region.clone(),
            row,
            histories: histories.collect(),
            reading: None,
            recorder: disks.profile().recorder(),
            ahead: Ahead::start(disks, &paces)?,
            paces,
            ended: None,
            memory: ReadMemory::default(),
            disks: Arc::clone(disks),
        };
        let queue = requests.clone();
        let spawned = std::thread::Builder::new().name("embar-history".into());
        let thread = spawned.spawn(move || {
            loop {
                let request = match queue.take() {
                    Next::Read(request) => request,
                    Next::Idle => {
                        reader.forget();
                        continue;
                    }
                    Next::Over => return,
                };
                // Whatever is wrong with what a disk has, others read on.
                let read = catch_unwind(AssertUnwindSafe(|| reader.read(&request.read)));
                let piece = read.unwrap_or_else(|_| reader.give_up(&request.read));
                let Request {
                    token,
                    read,
                    answers,
                    waker,
                } = request;
                // The network thread may have ended.
                if answers.send(Answer { token, read, piece }).is_ok() {
                    waker.wake();
                }
                if catch_unwind(AssertUnwindSafe(|| reader.read_ahead(&read))).is_err() {
                    reader.begin_anew();
                }
            }
        })?;
        Ok(Self {
            requests,
            thread: Some(thread),
        })
    }

    /// Where to ask.
    pub fn requests(&self) -> Requests {
        self.requests.clone()
    }
}

impl Drop for HistoryThread {
    fn drop(&mut self) {
        self.requests.lock().is_over = true;
        self.requests.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

fn span(read: &DiskRead) -> Span {
    Span {
        chain: read.chain,
        from: read.from,
        end: read.end,
        bytes: read.bytes,
    }
}

struct Reader {
    region: Region<Mapped>,
    row: u16,
    disks: Arc<Disks>,
    /// By disk.
    histories: Vec<History>,
    /// The disk of which something is read, or was.
    reading: Option<u16>,
    recorder: Recorder,
    ahead: Ahead,
    /// By disk.
    paces: Arc<[Pace]>,
    memory: ReadMemory,
    /// Where the last read ended, and on which disk, if all of its extent was taken.
    ended: Option<(u16, u64)>,
}

impl Reader {
    /// Reads from the first disk that has it.
    fn read(&mut self, read: &DiskRead) -> DiskPiece {
        self.ended = None;
        let began = self.recorder.start();
        if let Some((number, extent, buffer)) = self.ahead.take(read.chain, read.from)
            // The disks of the topic may be others by now.
            && (read.disks | read.former_disks) & 1 << number != 0
            && let Ok(piece) = self.take(number, read, &extent, buffer)
        {
            self.recorder.stop(Stage::ReadBlock as usize, began);
            return piece;
        }
        let (mut gone, mut is_late, mut why) = (None, false, None);
        let numbers = 0..self.histories.len() as u16;
        let all = read.disks | read.former_disks;
        for number in numbers.filter(|number| all & 1 << number != 0) {
            match self.read_disk(number, read) {
                Ok(piece) => return piece,
                Err(HistoryError::End) if self.is_lost(number) => {
                    why = Some(format!(
                        "disk {number} has failed, and nothing of it can be read"
                    ));
                }
                // A former one has no more than it has, once that is known.
                Err(HistoryError::End) => {
                    is_late |= read.disks & 1 << number != 0 || self.counts(number).is_none();
                }
                Err(HistoryError::Gone { first }) => {
                    gone = Some(gone.map_or(first, |other: u64| other.min(first)));
                }
                Err(error) => {
                    let dir = self.disks.get(number).directory().path();
                    tracing::error!(disk = number, dir = %dir.display(), "cannot read history: {error}");
                    why = Some(error.to_string());
                }
            }
        }
        match (why, gone) {
            (Some(why), _) => DiskPiece::Failed {
                why: format!(
                    "position {} cannot be read from any disk of the topic: {why}; see the log of this broker",
                    read.from
                ),
            },
            (None, Some(first)) if !is_late => DiskPiece::Gone { first },
            _ => DiskPiece::Later,
        }
    }

    fn read_disk(&mut self, number: u16, read: &DiskRead) -> Result<DiskPiece, HistoryError> {
        self.reading = Some(number);
        let counts = self.counts(number);
        let directory = self.disks.get(number).directory();
        let history = &mut self.histories[usize::from(number)];
        if let Some(counts) = counts {
            history.follow(directory, &counts)?;
        }
        let began = self.recorder.start();
        let extent = loop {
            let extent = history.find(directory, &span(read))?;
            let mut buffer = self.memory.take(extent.bytes());
            let pace = &self.paces[usize::from(number)];
            match pace.read(directory, &extent, &mut buffer) {
                Ok(()) => break (extent, buffer),
                Err(error) if error.is_removed() => history.forget_below(extent.segment() + 1),
                Err(error) => return Err(error),
            }
        };
        let bytes = extent.0.bytes() as u64;
        self.recorder.count(Counter::ReadBytes as usize, bytes);
        let piece = self.take(number, read, &extent.0, extent.1)?;
        self.recorder.stop(Stage::ReadBlock as usize, began);
        Ok(piece)
    }

    /// Of what was read the batches that a subscriber wants.
    fn take(
        &mut self,
        number: u16,
        read: &DiskRead,
        extent: &Extent,
        mut buffer: AlignedBuffer,
    ) -> Result<DiskPiece, HistoryError> {
        self.reading = Some(number);
        let row = self.row;
        let mut wants = |header: &BatchHeader| {
            let stored_by = header.stored_by().unwrap_or(0);
            let (row, stored_by) = (row.into(), stored_by.into());
            read.share.has(row, stored_by, header.frame_len())
        };
        let taken = extent.take(&mut buffer, &span(read), &mut wants);
        let (range, next) = taken.inspect_err(|_| {
            self.histories[usize::from(number)].forget(extent);
        })?;
        if next <= read.from {
            self.memory.give(buffer);
            return Err(HistoryError::End);
        }
        self.ended = (next == extent.end()).then_some((number, next));
        let bytes = self.memory.share(buffer, range);
        Ok(DiskPiece::Batches { bytes, next })
    }

    /// Has read what comes next, after a piece that was read as it was asked for.
    fn read_ahead(&mut self, read: &DiskRead) {
        let Some((number, mut from)) = self.ended else {
            return;
        };
        for _ in 0..EXTENTS {
            if from >= read.end {
                return;
            }
            if let Some(end) = self.ahead.end_of(read.chain, from) {
                from = end;
                continue;
            }
            let directory = self.disks.get(number).directory();
            let history = &mut self.histories[usize::from(number)];
            let next = span(&DiskRead { from, ..*read });
            let Ok(extent) = history.find(directory, &next) else {
                return;
            };
            let (chain, end, bytes) = (read.chain, extent.end(), extent.bytes());
            if !self
                .ahead
                .read(number, chain, from, extent, &mut self.memory)
            {
                return;
            }
            self.recorder
                .count(Counter::ReadBytes as usize, bytes as u64);
            from = end;
        }
    }

    /// The thread panicked while it read this, and has said so on stderr.
    fn give_up(&mut self, read: &DiskRead) -> DiskPiece {
        self.begin_anew();
        DiskPiece::Failed {
            why: format!(
                "the broker panicked while it read position {} from a disk; see its stderr, and check the disks with `embar data verify`",
                read.from
            ),
        }
    }

    /// Forgets what is known of the disk that was read: a panic may have left half of a change.
    fn begin_anew(&mut self) {
        if let Some(number) = self.reading.take() {
            let id = self.disks.get(number).identity().disk;
            self.histories[usize::from(number)] = History::new(id);
        }
        self.ended = None;
        self.forget();
    }

    /// Nobody has read anything for a while.
    fn forget(&mut self) {
        self.ahead.forget();
        self.memory.forget();
    }

    /// Whether a disk could not be opened in the present term, and nothing of it was read before.
    fn is_lost(&self, number: u16) -> bool {
        let Some(term) = Leadership::observe(&self.region).term else {
            return false;
        };
        let row = disk_row(&self.region, term, number);
        row.is_some_and(|row| row.nonce == 0 && row.state == DiskState::Failed as u32)
            && self.histories[usize::from(number)].is_empty()
    }

    /// How much of a disk counts, as the writer of the present term says; nothing where that cannot be known at the moment.
    fn counts(&self, number: u16) -> Option<Before> {
        let term = Leadership::observe(&self.region).term?;
        // What a deposed writer says may be in no part of the journal that counts.
        counted(&self.region, term, number).filter(|_| term.lasts(&self.region))
    }
}
