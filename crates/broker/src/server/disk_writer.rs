//! The threads that write one disk while this process sequences: each gathers a commit and writes it, and while it waits for
//! the disk another gathers the next.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_disk::format::SegmentIndex;
use embar_disk::{AlignedBuffer, Commit, Directory, Storage, StoredFile};
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_fabric::{DiskState, SharedNews};
use embar_memory::Mapped;
use embar_order::Term;

use super::turns::is_alive;
use super::wakeups::BrokersNotifier;
use crate::clock::Clock;
use crate::disks::Disks;
use crate::journal::{COMMIT_BYTES, Found, Gathered, IN_FLIGHT_MAX, Writer};

/// Bytes of a segment, at most and at least: as much as a disk has room for several times.
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
const SEGMENT_BYTES_MIN: u64 = 32 << 20;
const SEGMENTS_MIN: u64 = 8;
/// How long a thread without work sleeps if nobody wakes it: topics come and go without that.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the brokers that live are looked for.
const REFRESH_EVERY: Duration = Duration::from_millis(100);

type File = <Directory as Storage>::File;

/// The threads of one disk.
pub(super) struct DiskWriter {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    disks: Arc<Disks>,
    /// Which of them.
    number: u16,
    region: Region<Mapped>,
    claim: Arc<Claim>,
    news: SharedNews<Mapped>,
    clock: Clock,
    state: Mutex<State>,
    /// The gatherer's place is free, or a commit is synced, or the term has changed.
    changed: Condvar,
    /// The gatherer sleeps until it is woken.
    is_asleep: AtomicBool,
    sleeper: Mutex<Option<std::thread::Thread>>,
}

struct State {
    /// The term that this process sequences in.
    wanted: Option<Term>,
    open: Option<Open>,
    /// A thread looks for work, or opens the disk.
    is_gathering: bool,
    is_stopped: bool,
    buffers: Vec<AlignedBuffer>,
    brokers: BrokersNotifier,
    refreshed: Option<std::time::Instant>,
}

/// The disk, as it is written in one term.
struct Open {
    term: Term,
    writer: Writer<Mapped>,
    file: Option<Arc<File>>,
    has_failed: bool,
}

impl DiskWriter {
    /// Starts the threads, which wait for a term. `region` is a value of its own, with which no payload file is claimed.
    pub fn start(
        (disks, number): (&Arc<Disks>, u16),
        region: &Region<Mapped>,
        claim: &Arc<Claim>,
        news: &SharedNews<Mapped>,
        clock: Clock,
    ) -> io::Result<Self> {
        let buffers = (0..=IN_FLIGHT_MAX).map(|_| AlignedBuffer::new(COMMIT_BYTES));
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                wanted: None,
                open: None,
                is_gathering: false,
                is_stopped: false,
                buffers: buffers.collect(),
                brokers: BrokersNotifier::new(region),
                refreshed: None,
            }),
            region: region.clone(),
            claim: Arc::clone(claim),
            news: news.clone(),
            clock,
            changed: Condvar::new(),
            is_asleep: AtomicBool::new(false),
            sleeper: Mutex::new(None),
            disks: Arc::clone(disks),
            number,
        });
        let mut writer = Self {
            shared,
            threads: Vec::new(),
        };
        for thread in 0..=IN_FLIGHT_MAX {
            let shared = Arc::clone(&writer.shared);
            let name = format!("embar-disk-{number}-{thread}");
            let spawned = std::thread::Builder::new().name(name);
            writer.threads.push(spawned.spawn(move || shared.run())?);
        }
        Ok(writer)
    }

    /// This process sequences in a term from now on, or in none.
    pub fn set_term(&self, term: Option<Term>) {
        lock(&self.shared.state).wanted = term;
        self.shared.changed.notify_all();
        self.wake();
    }

    /// Something was ordered.
    pub fn wake(&self) {
        // Partner: the swap in `sleep`, after which the gatherer looks once more.
        if self.shared.is_asleep.swap(false, Ordering::SeqCst) {
            let sleeper = lock(&self.shared.sleeper);
            if let Some(sleeper) = &*sleeper {
                sleeper.unpark();
            }
        }
    }
}

impl Drop for DiskWriter {
    fn drop(&mut self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.changed.notify_all();
        self.shared.is_asleep.store(true, Ordering::SeqCst);
        self.wake();
        for thread in self.threads.drain(..) {
            // One that panicked has said so on stderr.
            drop(thread.join());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread does next.
enum Step {
    Write(Term, Commit, Arc<File>),
    Index(SegmentIndex),
    Stop,
}

impl Shared {
    fn run(&self) {
        loop {
            match self.next_step() {
                Step::Write(term, commit, file) => self.write(term, commit, &file),
                Step::Index(index) => self.store_index(&index),
                Step::Stop => return,
            }
        }
    }

    /// Waits for the gatherer's place, and then for something to write.
    fn next_step(&self) -> Step {
        let mut state = lock(&self.state);
        while state.is_gathering && !state.is_stopped {
            state = self.wait(state);
        }
        state.is_gathering = true;
        let step = self.gather(state);
        let mut state = lock(&self.state);
        state.is_gathering = false;
        drop(state);
        // Another thread may gather the next one.
        self.changed.notify_all();
        step
    }

    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Step {
        let (mut is_last_look, mut has_slept) = (false, false);
        loop {
            if state.is_stopped {
                return Step::Stop;
            }
            let is_other = |open: &Open, term: &Term| open.term != *term;
            match (&state.wanted, &state.open) {
                (None, None) => {
                    state = self.wait(state);
                    continue;
                }
                (None, Some(_)) => {
                    state.open = None;
                    continue;
                }
                (Some(term), open) if open.as_ref().is_none_or(|open| is_other(open, term)) => {
                    let term = *term;
                    state.open = None;
                    drop(state);
                    let opened = self.open(term);
                    state = lock(&self.state);
                    state.open = Some(opened);
                    continue;
                }
                (Some(_), Some(open)) if open.has_failed => {
                    state = self.wait(state);
                    continue;
                }
                (Some(_), _) => {}
            }
            if let Some(index) = state
                .open
                .as_mut()
                .and_then(|open| open.writer.take_index())
            {
                return Step::Index(index);
            }
            let buffer = state.buffers.pop();
            let buffer = buffer.unwrap_or_else(|| AlignedBuffer::new(COMMIT_BYTES));
            let time = self.clock.read().wall.0;
            let open = state.open.as_mut().expect("it was opened");
            let mut gathered = open.writer.gather(buffer, time);
            if let Gathered::Nothing(buffer) = gathered {
                // What was written last may be the last for long.
                gathered = match has_slept {
                    true => open.writer.confirm(buffer, time),
                    false => Gathered::Nothing(buffer),
                };
            }
            match gathered {
                Gathered::Commit(commit) => {
                    self.is_asleep.store(false, Ordering::Relaxed);
                    let file = open.file.as_ref().expect("a segment was begun");
                    return Step::Write(open.term, commit, Arc::clone(file));
                }
                Gathered::Busy(buffer) => {
                    state.buffers.push(buffer);
                    state = self.wait(state);
                }
                Gathered::Segment(buffer) => {
                    state.buffers.push(buffer);
                    self.begin_segment(&mut state);
                }
                Gathered::Nothing(buffer) => {
                    state.buffers.push(buffer);
                    if !std::mem::replace(&mut is_last_look, true) {
                        *lock(&self.sleeper) = Some(std::thread::current());
                        // Partner: the swap in `wake`.
                        self.is_asleep.swap(true, Ordering::SeqCst);
                        continue;
                    }
                    drop(state);
                    std::thread::park_timeout(LOOK_EVERY);
                    self.is_asleep.store(false, Ordering::Relaxed);
                    (is_last_look, has_slept) = (false, true);
                    state = lock(&self.state);
                }
                Gathered::Deposed => {
                    state.open = None;
                    state.wanted = None;
                }
            }
        }
    }

    fn directory(&self) -> &Directory {
        self.disks.get(self.number).directory()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds out what counts on the disk, and goes on from there.
    fn open(&self, term: Term) -> Open {
        let (directory, number) = (self.directory(), self.number);
        let id = self.disks.get(number).identity().disk;
        let began = std::time::Instant::now();
        let found = Found::read(directory, &id);
        let (start, error) = match found {
            Ok(found) if found.recovered.epoch >= term.epoch => {
                let why = format!(
                    "it was written in term {} of another region, and this is term {}",
                    found.recovered.epoch, term.epoch
                );
                (Found::nothing(id), Some(why))
            }
            Ok(found) => (found, None),
            Err(error) => (Found::nothing(id), Some(error.to_string())),
        };
        if error.is_none() {
            let took = began.elapsed();
            let topics = start.topics.len();
            tracing::info!(
                disk = number,
                epoch = term.epoch,
                topics,
                ?took,
                "writes the disk"
            );
        }
        let region = (term.epoch, self.region.nonce());
        let free = directory.free_bytes().unwrap_or(0) / SEGMENTS_MIN;
        let bytes = free.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) / SEGMENT_BYTES_MIN
            * SEGMENT_BYTES_MIN;
        let start = start.start(region, bytes, self.news.clone());
        let mut open = Open {
            term,
            writer: Writer::new(&self.region, &self.claim, term, number, start),
            file: None,
            has_failed: false,
        };
        if let Some(why) = error {
            self.fail(&mut open, &why);
        }
        open
    }

    fn begin_segment(&self, state: &mut State) {
        let time = self.clock.read().wall.0;
        // Tells this segment from whatever was in its blocks before.
        let nonce = RandomState::new().hash_one(time) | 1;
        let open = state.open.as_mut().expect("it was opened");
        match open.writer.begin_segment(self.directory(), nonce, time) {
            Ok(file) => open.file = Some(Arc::new(file)),
            Err(error) => self.fail(open, &format!("no segment can be begun: {error}")),
        }
    }

    fn write(&self, term: Term, commit: Commit, file: &File) {
        let written = file.write_synced(commit.at, &commit.buffer, commit.len);
        let mut state = lock(&self.state);
        let state = &mut *state;
        if commit.buffer.len() == COMMIT_BYTES {
            state.buffers.push(commit.buffer);
        }
        let open = state.open.as_mut();
        if let Some(open) = open.filter(|open| open.term == term && !open.has_failed) {
            match written {
                Ok(()) => {
                    if open.writer.synced(commit.ticket) {
                        self.wake_brokers(state);
                    }
                }
                Err(error) => self.fail(open, &format!("a write failed: {error}")),
            }
        }
        // The gatherer may wait for that.
        self.changed.notify_all();
    }

    /// Without it, readers go through the segment.
    fn store_index(&self, index: &SegmentIndex) {
        if let Err(error) = embar_disk::store_index(self.directory(), index) {
            let segment = index.segment.number;
            tracing::warn!(
                disk = self.number,
                segment,
                "cannot store the index of a segment: {error}"
            );
        }
    }

    /// The disk takes nothing any more in this term: what a failed write left nobody knows.
    fn fail(&self, open: &mut Open, why: &str) {
        open.has_failed = true;
        open.writer.say(DiskState::Failed);
        tracing::error!(
            disk = self.number,
            directory = %self.directory().path().display(),
            "the disk has failed: {why}; batches of its topics are not acknowledged at acks 2 any more"
        );
    }

    fn wake_brokers(&self, state: &mut State) {
        let is_due = state
            .refreshed
            .is_none_or(|at| at.elapsed() >= REFRESH_EVERY);
        if is_due {
            state.refreshed = Some(std::time::Instant::now());
            state.brokers.refresh(&|row| is_alive(&self.region, row));
        }
        state.brokers.notify(u128::MAX);
    }
}
