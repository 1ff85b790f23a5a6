//! Stage timers that can stay on.
//!
//! A [`Profile`] belongs to one pipeline. Each thread of the pipeline takes a [`Recorder`] and adds to its own cells; a
//! reader sums all of them into a [`Snapshot`].
//!
//! Invariants:
//! - A cell has one writer, the recorder that owns it (`Recorder` is neither `Sync` nor `Clone`), so an addition is a
//!   relaxed load and a relaxed store, never a locked instruction. The reader pairs with them by relaxed loads: it
//!   may see a stage's time without its count for one event, and never a torn word.
//! - Sums only grow. A dropped recorder's cells are folded into the profile under the lock a snapshot takes, so nothing
//!   is lost or counted twice, and memory is bounded by the recorders alive.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::{self, Scale, ticks};
use crate::random::SplitMix64;
use crate::snapshot::Snapshot;

/// One in this many messages is timed by [`Recorder::sample`], on average.
pub const SAMPLE_EVERY: u64 = 64;

/// The names of a pipeline's stages and counters; recorders address both by index.
#[derive(Debug)]
pub struct Schema {
    /// Title of the table, without brackets, for instance `PublishPipelineProfile`.
    pub title: &'static str,
    /// Timed stages, in the order they are printed.
    pub stages: &'static [&'static str],
    /// Event counters, in the order they are printed.
    pub counters: &'static [&'static str],
}

/// Two cache lines, since processors fetch neighbouring lines in pairs.
const WORDS_PER_BLOCK: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Block([AtomicU64; WORDS_PER_BLOCK]);

const _: () = assert!(size_of::<Block>() == 128 && align_of::<Block>() == 128);

/// The words of one recorder: ticks and count of each stage, then the counters.
struct Cells(Box<[Block]>);

impl Cells {
    fn new(words: usize) -> Self {
        Self(
            (0..words.div_ceil(WORDS_PER_BLOCK))
                .map(|_| Block::default())
                .collect(),
        )
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index / WORDS_PER_BLOCK].0[index % WORDS_PER_BLOCK]
    }

    /// Only the owning recorder calls this: one writer makes load + store as good as an atomic addition.
    #[inline]
    fn add(&self, index: usize, n: u64) {
        let word = self.word(index);
        word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

struct Book {
    live: Vec<Arc<Cells>>,
    retired: Vec<u64>,
    recorders: u64,
}

/// The sums of one pipeline, written by any number of recorders.
pub struct Profile {
    schema: &'static Schema,
    enabled: AtomicBool,
    book: Mutex<Book>,
}

impl Profile {
    /// A profile with nothing recorded, switched on.
    pub fn new(schema: &'static Schema) -> Arc<Self> {
        clock::warm_up();
        Arc::new(Self {
            schema,
            enabled: AtomicBool::new(true),
            book: Mutex::new(Book {
                live: Vec::new(),
                retired: vec![0; words(schema)],
                recorders: 0,
            }),
        })
    }

    /// What this profile's indices mean.
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// A recorder for one thread. Allocates; take it once, at the thread's start.
    pub fn recorder(self: &Arc<Self>) -> Recorder {
        let cells = Arc::new(Cells::new(words(self.schema)));
        let mut book = self.book();
        book.recorders += 1;
        book.live.push(cells.clone());
        Recorder {
            cells,
            profile: self.clone(),
            // Different seeds keep threads from sampling in step.
            gaps: Gaps::new(book.recorders),
        }
    }

    /// Switches all recorders on or off. Off, timers read no clock and no time is added; counters go on.
    pub fn set_enabled(&self, on: bool) {
        self.enabled.store(on, Relaxed);
    }

    /// Whether recorders record.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// The sums of all recorders so far, of dropped ones too.
    pub fn snapshot(&self) -> Snapshot {
        let sums = {
            let book = self.book();
            let mut sums = book.retired.clone();
            for cells in &book.live {
                add_all(&mut sums, cells);
            }
            sums
        };
        let scale = Scale::of_this_machine();
        let (stages, counters) = sums.split_at(self.schema.stages.len() * 2);
        Snapshot::new(
            self.schema.title,
            self.schema
                .stages
                .iter()
                .zip(stages.chunks_exact(2))
                .map(|(name, sum)| (name.to_string(), scale.to_ns(sum[0]), sum[1])),
            self.schema
                .counters
                .iter()
                .zip(counters)
                .map(|(name, n)| (name.to_string(), *n)),
        )
    }

    fn retire(&self, cells: &Arc<Cells>) {
        let mut book = self.book();
        book.live.retain(|other| !Arc::ptr_eq(other, cells));
        add_all(&mut book.retired, cells);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // The sums are valid at every step, so a panic of another holder spoils nothing.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile")
            .field("title", &self.schema.title)
            .field("enabled", &self.enabled())
            .finish_non_exhaustive()
    }
}

fn words(schema: &Schema) -> usize {
    schema.stages.len() * 2 + schema.counters.len()
}

fn add_all(sums: &mut [u64], cells: &Cells) {
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = sum.wrapping_add(cells.word(index).load(Relaxed));
    }
}

/// When a timer was started, or that metering was off at that moment.
#[must_use = "a start that is never stopped measures nothing"]
#[derive(Clone, Copy, Debug)]
pub struct Start(u64);

impl Start {
    /// No counter that has run since power-on reads zero, so zero can mean "off".
    const OFF: Self = Self(0);

    /// Whether the clock was read, which is when metering was on.
    pub fn is_running(self) -> bool {
        self.0 != Self::OFF.0
    }
}

/// One thread's timers and counters. Send it to its thread; it cannot be shared.
///
/// Stages and counters are indices into the [`Schema`]; an index that is not in it is a bug and panics.
pub struct Recorder {
    cells: Arc<Cells>,
    profile: Arc<Profile>,
    gaps: Gaps,
}

impl Recorder {
    /// Starts a timer. Does not read the clock when metering is off.
    #[inline]
    pub fn start(&self) -> Start {
        if self.profile.enabled() {
            Start(ticks())
        } else {
            Start::OFF
        }
    }

    /// Adds the time since `start`, and one event, to `stage`.
    #[inline]
    pub fn stop(&self, stage: usize, start: Start) {
        if start.is_running() {
            self.add(stage, ticks().saturating_sub(start.0), 1);
        }
    }

    /// Stops `stage` and starts the next one with one reading of the clock.
    #[inline]
    pub fn lap(&self, stage: usize, start: &mut Start) {
        let next = self.start();
        if start.is_running() {
            let now = if next.is_running() { next.0 } else { ticks() };
            self.add(stage, now.saturating_sub(start.0), 1);
        }
        *start = next;
    }

    /// Adds time measured elsewhere by [`ticks`], and `count` events, to `stage`.
    #[inline]
    pub fn add_ticks(&self, stage: usize, ticks: u64, count: u64) {
        if self.profile.enabled() {
            self.add(stage, ticks, count);
        }
    }

    /// Adds `n` events without time to `stage`: the exact count that goes with [`Recorder::stop_sampled`].
    #[inline]
    pub fn add_count(&self, stage: usize, n: u64) {
        self.add_ticks(stage, 0, n);
    }

    /// Adds `n` to `counter`, whether metering is on or off: operators rely on counters, and one costs a nanosecond.
    #[inline]
    pub fn count(&self, counter: usize, n: u64) {
        let schema = self.profile.schema;
        assert!(
            counter < schema.counters.len(),
            "no such counter in the schema"
        );
        self.cells.add(schema.stages.len() * 2 + counter, n);
    }

    /// Whether to time this message: true for one in [`SAMPLE_EVERY`] on average, never when metering is off.
    ///
    /// The gaps are random, so that a period in the work (every 64th message fills a batch) cannot hide from the sample
    /// or fill it.
    #[inline]
    pub fn sample(&self) -> bool {
        self.gaps.next() && self.profile.enabled()
    }

    /// Passes a message that is not to be timed. False for the others, of which [`Recorder::sample`] is to be asked: so the
    /// way of most messages needs no timer.
    #[inline]
    pub fn pass(&self) -> bool {
        self.gaps.pass()
    }

    /// Adds the time since `start`, times [`SAMPLE_EVERY`] for the messages that were not timed, to `stage`.
    ///
    /// Adds no events: count all messages by [`Recorder::add_count`], for instance once per batch. The cost of the
    /// clock itself is taken off first, since scaling would otherwise charge it to every message.
    #[inline]
    pub fn stop_sampled(&self, stage: usize, start: Start) {
        if start.is_running() {
            let spent = ticks()
                .saturating_sub(start.0)
                .saturating_sub(clock::read_cost());
            self.add(stage, spent.saturating_mul(SAMPLE_EVERY), 0);
        }
    }

    /// The profile this recorder adds to.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    #[inline]
    fn add(&self, stage: usize, ticks: u64, count: u64) {
        assert!(
            stage < self.profile.schema.stages.len(),
            "no such stage in the schema"
        );
        self.cells.add(stage * 2, ticks);
        self.cells.add(stage * 2 + 1, count);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.profile.retire(&self.cells);
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recorder")
            .field(&self.profile.schema.title)
            .finish()
    }
}

/// Random gaps, uniform in `1..=2 * SAMPLE_EVERY - 1`, hence `SAMPLE_EVERY` on average.
struct Gaps {
    left: Cell<u64>,
    random: Cell<SplitMix64>,
}

impl Gaps {
    fn new(seed: u64) -> Self {
        let gaps = Self {
            left: Cell::new(0),
            random: Cell::new(SplitMix64::new(seed)),
        };
        gaps.left.set(gaps.draw());
        gaps
    }

    #[inline]
    fn next(&self) -> bool {
        if self.pass() {
            return false;
        }
        self.left.set(self.draw());
        true
    }

    #[inline]
    fn pass(&self) -> bool {
        let left = self.left.get() - 1;
        if left > 0 {
            self.left.set(left);
        }
        left > 0
    }

    #[cold]
    fn draw(&self) -> u64 {
        let mut random = self.random.get();
        let gap = 1 + random.below(2 * SAMPLE_EVERY - 1);
        self.random.set(random);
        gap
    }
}
