//! The threads that write one disk while this process sequences: each gathers a commit and writes it, and while it waits for
//! the disk another gathers the next.

mod chores;
mod health;
mod opening;
mod scrub;
mod zeros;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_disk::format::SEGMENT_HEADER_BYTES;
use embar_disk::{AlignedBuffer, Commit, Directory, Storage, StoredFile};
use embar_fabric::SharedNews;
use embar_fabric::owner::Claim;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_meter::profile::Recorder;
use embar_order::Term;

use super::alive::is_alive;
use super::wakeups::BrokersNotifier;
use crate::clock::Clock;
use crate::disks::Disks;
use crate::journal::{COMMIT_BYTES, Gathered, IN_FLIGHT_MAX, Limits, Writer};
use crate::profile::disk::{Counter, Stage};
use chores::Chore;
use zeros::Zeros;

/// Bytes of a segment, at most and at least: as much as a disk has room for several times.
pub(super) const SEGMENT_BYTES_MAX: u64 = 256 << 20;
const SEGMENT_BYTES_MIN: u64 = 32 << 20;
const SEGMENTS_MIN: u64 = 8;
/// How many threads may do something else than commits at once, so that others are left for these.
const CHORES_MAX: usize = 2;
/// How long a thread without work sleeps if nobody wakes it: topics come and go without that.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a thread waits for others, or for a term, without a look at what is wanted: who says that it is another one takes no lock
/// under which a disk is waited for, so that this may miss being woken.
const WAIT_AT_MOST: Duration = Duration::from_millis(100);
/// How often a full disk is looked at.
const FULL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether the directory is there.
const LOOK_AT_DIRECTORY_EVERY: Duration = Duration::from_secs(1);
/// How often the brokers that live are looked for.
const REFRESH_EVERY: Duration = Duration::from_millis(100);

type File = <Directory as Storage>::File;

/// What the log may take of each disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskLimits {
    /// What the journal may have at most; the oldest segments go.
    pub kept: Limits,
    /// Bytes that the scrub reads in a second; 0: none.
    pub scrub_rate: u64,
}

/// The threads of one disk.
pub(super) struct DiskWriter {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    disks: Arc<Disks>,
    /// Which of them.
    number: u16,
    limits: DiskLimits,
    region: Region<Mapped>,
    claim: Arc<Claim>,
    news: SharedNews<Mapped>,
    clock: Clock,
    /// The term that this process sequences in. Nobody holds it for longer than to read or write it: who says that it is another one
    /// never waits for the disk.
    wanted: Mutex<Option<Term>>,
    state: Mutex<State>,
    /// The gatherer's place is free: one thread that waits for it may have it.
    place: Condvar,
    /// A commit is synced, or the term has changed: for who gathers, or waits to write.
    changed: Condvar,
    /// The term has changed, or all is to end: for the scrub, which does not care for commits.
    scrub_changed: Condvar,
    /// It was said that the file system cannot give back a part of a file.
    says_no_holes: AtomicBool,
    /// The gatherer sleeps until it is woken.
    is_asleep: AtomicBool,
    sleeper: Mutex<Option<std::thread::Thread>>,
}

struct State {
    open: Option<Open>,
    /// A thread looks for work, or opens the disk.
    is_gathering: bool,
    /// Threads that write a commit.
    writes: usize,
    /// Threads that do something else.
    chores: usize,
    is_stopped: bool,
    buffers: Vec<AlignedBuffer>,
    brokers: BrokersNotifier,
    refreshed: Option<Instant>,
    /// When it was last looked whether the directory is there.
    looked: Option<Instant>,
}

/// The disk, as it is written in one term.
struct Open {
    term: Term,
    writer: Writer<Mapped>,
    file: Option<Arc<File>>,
    /// The file of the next segment, by its number.
    prepared: Option<(u64, File)>,
    /// The number of the segment whose file was last asked for...
    preparing: u64,
    /// ...and whether a thread makes it now.
    is_preparing: bool,
    /// That of the segment with which it was last seen to that there is a reserve.
    reserved: u64,
    health: Health,
    /// A thread gives back what topics had that are gone: one at once, so that others write.
    gives_back: bool,
    /// A write found no room: what counts is to be found out again.
    is_torn: bool,
    /// The file system is one where a synced write over zeros is faster.
    gains_by_zeros: bool,
    zeros: Zeros,
}

/// Whether a disk takes what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// There is no room for a segment, at the last look.
    Full(Instant),
    /// Nothing more is written in this term: what a failed write left nobody knows.
    Failed,
}

impl DiskWriter {
    /// Starts the threads, which wait for a term. `region` is a value of its own, with which no payload file is claimed.
    pub fn start(
        (disks, number, limits): (&Arc<Disks>, u16, DiskLimits),
        region: &Region<Mapped>,
        claim: &Arc<Claim>,
        news: &SharedNews<Mapped>,
        clock: Clock,
    ) -> io::Result<Self> {
        let buffers = (0..=IN_FLIGHT_MAX).map(|_| AlignedBuffer::new(COMMIT_BYTES));
        let shared = Arc::new(Shared {
            wanted: Mutex::new(None),
            state: Mutex::new(State {
                open: None,
                is_gathering: false,
                writes: 0,
                chores: 0,
                is_stopped: false,
                buffers: buffers.collect(),
                brokers: BrokersNotifier::new(region),
                refreshed: None,
                looked: None,
            }),
            region: region.clone(),
            claim: Arc::clone(claim),
            news: news.clone(),
            clock,
            place: Condvar::new(),
            changed: Condvar::new(),
            scrub_changed: Condvar::new(),
            is_asleep: AtomicBool::new(false),
            sleeper: Mutex::new(None),
            disks: Arc::clone(disks),
            number,
            limits,
            says_no_holes: AtomicBool::new(false),
        });
        let mut writer = Self {
            shared,
            threads: Vec::new(),
        };
        // One that gathers, one for each commit on its way, and one more, as chores may take two.
        for thread in 0..IN_FLIGHT_MAX + CHORES_MAX {
            let shared = Arc::clone(&writer.shared);
            let name = format!("embar-disk-{number}-{thread}");
            let spawned = std::thread::Builder::new().name(name);
            writer.threads.push(spawned.spawn(move || shared.run())?);
        }
        if limits.scrub_rate > 0 {
            let shared = Arc::clone(&writer.shared);
            let spawned = std::thread::Builder::new().name(format!("embar-scrub-{number}"));
            writer.threads.push(spawned.spawn(move || shared.scrub())?);
        }
        Ok(writer)
    }

    /// This process sequences in a term from now on, or in none.
    pub fn set_term(&self, term: Option<Term>) {
        *lock(&self.shared.wanted) = term;
        self.shared.changed.notify_all();
        self.shared.scrub_changed.notify_all();
        self.wake();
    }

    /// Something was ordered, or appended without an order.
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
        self.shared.place.notify_all();
        self.shared.changed.notify_all();
        self.shared.scrub_changed.notify_all();
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
    /// Write a commit, and wait before that for zeros that are being written there if it says so.
    Write(Term, Commit, Arc<File>, bool),
    Chore(Chore),
    Stop,
}

/// One thread has it at a time, until this is dropped, whatever becomes of the thread.
struct GatherersPlace<'a>(&'a Shared);

impl Drop for GatherersPlace<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_gathering = false;
        self.0.place.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let recorder = self.disks.profile().recorder();
        loop {
            // Whatever is wrong with what a disk has, others and later terms go on.
            let step = catch_unwind(AssertUnwindSafe(|| self.step(&recorder)));
            match step {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => self.give_up(),
            }
        }
    }

    /// False at the end.
    fn step(&self, recorder: &Recorder) -> bool {
        match self.next_step(recorder) {
            Step::Write(term, commit, file, is_behind_zeros) => {
                let range = commit.at..commit.at + commit.len as u64;
                if !is_behind_zeros || self.wait_for_zeros(term, &file, &range) {
                    self.write(term, commit, &file, recorder);
                } else {
                    // It never counts: whoever writes the disk next finds what comes before it.
                    lock(&self.state).writes -= 1;
                    self.changed.notify_all();
                }
            }
            Step::Chore(chore) => self.do_chore(chore, recorder),
            Step::Stop => return false,
        }
        true
    }

    /// A thread panicked, and has said so on stderr. What it was at nobody knows, so the disk takes nothing more in this term.
    fn give_up(&self) {
        let mut state = lock(&self.state);
        match &mut state.open {
            Some(open) => self.fail(open, "a thread of its writer panicked"),
            None => *lock(&self.wanted) = None,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the gatherer's place, and then for something to write.
    fn next_step(&self, recorder: &Recorder) -> Step {
        let mut state = lock(&self.state);
        while state.is_gathering && !state.is_stopped {
            let waited = self.place.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.is_gathering = true;
        let _place = GatherersPlace(self);
        self.gather(state, recorder)
    }

    /// Opens the disk for the term that is wanted, or waits until something else can be done. False if it is to be tried again.
    fn become_ready<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        let is_other = |open: &Open, term: &Term| open.term != *term;
        let wanted = *lock(&self.wanted);
        match (&wanted, &state.open) {
            (None, None) => return (self.wait(state), false),
            (None, Some(_)) => {
                state.open = None;
                return (state, false);
            }
            (Some(term), open) if open.as_ref().is_none_or(|open| is_other(open, term)) => {
                if state.writes > 0 {
                    // They may be where the journal ends.
                    return (self.wait(state), false);
                }
                let term = *term;
                state.open = None;
                drop(state);
                let opened = self.open(term);
                state = lock(&self.state);
                state.open = Some(opened);
                return (state, false);
            }
            (Some(_), Some(open)) if open.health == Health::Failed => {
                return (self.wait(state), false);
            }
            (Some(_), Some(open))
                if let Health::Full(since) = open.health
                    && since.elapsed() >= FULL_LOOK_EVERY =>
            {
                self.look_for_room(&mut state);
                return (state, false);
            }
            (Some(_), _) => {}
        }
        (state, true)
    }

    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>, recorder: &Recorder) -> Step {
        let (mut is_last_look, mut has_slept) = (false, false);
        loop {
            if state.is_stopped {
                return Step::Stop;
            }
            let is_ready;
            (state, is_ready) = self.become_ready(state);
            if !is_ready {
                continue;
            }
            let has_place = state.chores < CHORES_MAX;
            let open = state.open.as_mut().expect("it was opened");
            if has_place && let Some(chore) = open.next_chore() {
                state.chores += 1;
                return Step::Chore(chore);
            }
            if state
                .looked
                .is_none_or(|at| at.elapsed() >= LOOK_AT_DIRECTORY_EVERY)
            {
                state.looked = Some(Instant::now());
                if self.disks.get(self.number).is_removed().unwrap_or(false) {
                    let open = state.open.as_mut().expect("it was opened");
                    self.fail(open, "its directory, or the lock in it, was removed");
                    continue;
                }
            }
            let buffer = state.buffers.pop();
            let buffer = buffer.unwrap_or_else(|| AlignedBuffer::new(COMMIT_BYTES));
            let time = self.clock.read();
            let open = state.open.as_mut().expect("it was opened");
            let began = recorder.start();
            let mut gathered = open.writer.gather(buffer, time);
            if let Gathered::Nothing(buffer) = gathered {
                // What was written last may be the last for long.
                gathered = match has_slept {
                    true => open.writer.confirm(buffer, time.wall.0),
                    false => Gathered::Nothing(buffer),
                };
            }
            match gathered {
                Gathered::Commit(commit) => {
                    recorder.stop(Stage::GatherCommit as usize, began);
                    self.is_asleep.store(false, Ordering::Relaxed);
                    let file = open.file.as_ref().expect("a segment was begun");
                    let file = Arc::clone(file);
                    let is_behind_zeros = open.zeros.follow(&commit);
                    let step = Step::Write(open.term, commit, file, is_behind_zeros);
                    state.writes += 1;
                    return step;
                }
                Gathered::Busy(buffer) => {
                    state.buffers.push(buffer);
                    state = self.wait(state);
                }
                Gathered::Segment(buffer) => {
                    state.buffers.push(buffer);
                    if !self.begin_segment(&mut state, recorder) {
                        state = self.wait_for(state, LOOK_EVERY);
                    }
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
                    // Perhaps it sequences again already.
                    let over = state.open.take().map(|open| open.term);
                    lock(&self.wanted).take_if(|wanted| Some(*wanted) == over);
                }
            }
        }
    }

    fn directory(&self) -> &Directory {
        self.disks.get(self.number).directory()
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.wait_for(state, WAIT_AT_MOST)
    }

    fn wait_for<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// False if the disk has no room for one.
    fn begin_segment(&self, state: &mut State, recorder: &Recorder) -> bool {
        let time = self.clock.read().wall.0;
        // Tells this segment from whatever was in its blocks before.
        let nonce = RandomState::new().hash_one(time) | 1;
        let open = state.open.as_mut().expect("it was opened");
        let next = open.writer.next_segment();
        let prepared = open.prepared.take().filter(|(number, _)| *number == next.0);
        let file = match prepared {
            Some((_, file)) => Ok(file),
            // It is there soon. Another one would take as long, while this thread holds up all others.
            None if open.is_preparing => return false,
            // Only what makes room is said in it.
            None if open.writer.is_full() => open.writer.take_reserve(self.directory()),
            None => open.writer.make_segment(self.directory()),
        };
        match file {
            Ok(file) => match open.writer.begin_segment(&file, nonce, time) {
                Ok(()) => {
                    recorder.count(Counter::Segments as usize, 1);
                    recorder.count(Counter::Bytes as usize, SEGMENT_HEADER_BYTES as u64);
                    open.file = Some(Arc::new(file));
                    open.zeros.begin();
                }
                // A file system that reserves nothing. Nobody has begun this one.
                Err(error) if is_full(&error) => {
                    self.remove(&[open.writer.next_segment().0 - 1]);
                    self.fill(open);
                    open.is_torn = true;
                }
                Err(error) => self.fail(open, &format!("no segment can be begun: {error}")),
            },
            Err(_) if open.writer.is_full() => return false,
            Err(error) if is_full(&error) => {
                if !open.writer.goes_on() {
                    self.fill(open);
                }
            }
            // It passes.
            Err(error) if embar_disk::is_scarce(&error) => return false,
            Err(error) => self.fail(open, &format!("no segment can be made: {error}")),
        }
        true
    }

    /// Makes the file of the next segment while the present one still has room.
    fn prepare(&self, term: Term, next: (u64, u64)) {
        let made = embar_disk::prepare_segment(self.directory(), next);
        let mut state = lock(&self.state);
        let open = state.open.as_mut().filter(|open| open.term == term);
        let mut needless = None;
        if let Some(open) = open {
            open.is_preparing = false;
            // Whatever was in the way is said when the segment is to be begun.
            match made {
                Ok(file) if open.writer.next_segment().0 <= next.0 => {
                    open.prepared = Some((next.0, file));
                }
                // The segment was full before that, and the number was passed over.
                Ok(_) => needless = Some(next.0),
                Err(_) => {}
            }
        }
        drop(state);
        self.changed.notify_all();
        if let Some(number) = needless {
            self.remove(&[number]);
        }
    }

    fn write(&self, term: Term, commit: Commit, file: &File, recorder: &Recorder) {
        let began = recorder.start();
        let written = file.write_synced(commit.at, &commit.buffer, commit.len);
        recorder.stop(Stage::WriteAndSync as usize, began);
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.writes -= 1;
        if commit.buffer.len() == COMMIT_BYTES {
            state.buffers.push(commit.buffer);
        }
        let open = state.open.as_mut();
        if let Some(open) = open.filter(|open| open.term == term && open.health != Health::Failed) {
            let began = recorder.start();
            match open.writer.written(commit.ticket, written) {
                Ok(is_further) => {
                    recorder.count(Counter::Commits as usize, 1);
                    recorder.count(Counter::Bytes as usize, commit.len as u64);
                    recorder.count(Counter::PayloadBytes as usize, commit.payload_bytes);
                    recorder.stop(Stage::AdvanceFrontier as usize, began);
                    if is_further {
                        self.wake_brokers(state);
                    }
                }
                // A file system that reserves nothing. The journal goes on from what counts, in another file.
                Err(error) if is_full(&error) => {
                    self.fill(open);
                    open.is_torn = true;
                }
                Err(error) => self.fail(open, &format!("a write failed: {error}")),
            }
        }
        // The gatherer may wait for that.
        self.changed.notify_all();
    }

    fn wake_brokers(&self, state: &mut State) {
        let is_due = state
            .refreshed
            .is_none_or(|at| at.elapsed() >= REFRESH_EVERY);
        if is_due {
            state.refreshed = Some(Instant::now());
            state.brokers.refresh(&|row| is_alive(&self.region, row));
        }
        state.brokers.notify(u128::MAX);
    }
}

/// Whether there is no room for it.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
