//! Counts how the operations of a run ended, and gathers their latencies. Also tells the callers which period the run
//! is in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use embar_redis::Error;
use hdrhistogram::Histogram;

use super::work::{OperationStream, ValueDigest};

/// Longest latency that a histogram resolves, nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// How many latencies a caller gathers before they go to the histogram that all share: one of its own for each of many
/// callers would be more memory than caches hold, and slow down what is measured.
const GATHERED: usize = 64;

/// One operation of so many says which key it is about.
const KEYS_EVERY: u64 = 61;

/// Different keys that are counted, at most: a key that matters comes early.
const KEYS_MAX: usize = 1 << 16;

/// A histogram of latencies in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 3).expect("these bounds are valid")
}

/// What became of one operation that the server executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A read found the value of its key.
    Hit,
    /// A read found nothing.
    Miss,
    /// A write was acknowledged.
    Set,
    /// A read found something else.
    Wrong,
}

impl Done {
    /// What a read of a stream's key found.
    pub fn read(stream: &OperationStream, digest: Option<ValueDigest>) -> Self {
        match digest {
            None => Self::Miss,
            Some(digest) if stream.is_right(digest) => Self::Hit,
            Some(_) => Self::Wrong,
        }
    }
}

/// Counts. Errors and wrong values are no operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that found the value.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were acknowledged.
    pub sets: u64,
    /// Operations without a result.
    pub errors: u64,
    /// Reads that found a value of another key, or of another length.
    pub wrong: u64,
    /// The first of the errors.
    pub first_error: Option<String>,
}

impl Counts {
    /// Operations that succeeded.
    pub fn operations(&self) -> u64 {
        self.hits + self.misses + self.sets
    }

    /// Counts an outcome; returns whether it succeeded.
    pub fn note(&mut self, outcome: Result<Done, Error>) -> bool {
        match outcome {
            Ok(Done::Hit) => self.hits += 1,
            Ok(Done::Miss) => self.misses += 1,
            Ok(Done::Set) => self.sets += 1,
            Ok(Done::Wrong) => {
                self.wrong += 1;
                return false;
            }
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
                return false;
            }
        }
        true
    }

    /// Adds the counts of another caller.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.sets += other.sets;
        self.errors += other.errors;
        self.wrong += other.wrong;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

/// The period that a run is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Period {
    /// Nothing counts.
    WarmUp = 0,
    /// What ends now counts.
    Measured = 1,
    /// Callers stop.
    Over = 2,
}

/// What all callers of one kind share.
pub struct Shared {
    period: AtomicU8,
    latency: Mutex<Histogram<u64>>,
    between_ns: AtomicU64,
    keys: Mutex<BTreeMap<u64, u64>>,
}

impl Shared {
    /// Begins in the warm-up.
    pub fn new() -> Self {
        Self {
            period: AtomicU8::new(Period::WarmUp as u8),
            latency: Mutex::new(histogram()),
            between_ns: AtomicU64::new(0),
            keys: Mutex::default(),
        }
    }

    /// Goes on to a period.
    pub fn enter(&self, period: Period) {
        // Nothing else is published by it.
        self.period.store(period as u8, Ordering::Relaxed);
    }

    /// Whether it is at a period.
    pub fn is_at(&self, period: Period) -> bool {
        self.period.load(Ordering::Relaxed) == period as u8
    }

    /// The latencies that callers have handed over.
    pub fn latency(&self) -> Histogram<u64> {
        self.lock().clone()
    }

    /// Time that all callers have spent between two operations.
    pub fn between(&self) -> Duration {
        Duration::from_nanos(self.between_ns.load(Ordering::Relaxed))
    }

    /// How often sampled operations were about a key, by its number.
    pub fn keys(&self) -> BTreeMap<u64, u64> {
        let keys = self.keys.lock();
        keys.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one caller sees.
pub struct CallerTally {
    /// Counted so far.
    pub counts: Counts,
    /// Latencies in nanoseconds, each of so many operations.
    gathered: Vec<(u64, u64)>,
    /// Between two operations, since it was last handed over.
    between: Duration,
    /// Operations until one says its key.
    key_in: u64,
    sampled: Vec<u64>,
}

impl CallerTally {
    /// With nothing counted.
    pub fn new() -> Self {
        Self {
            counts: Counts::default(),
            gathered: Vec::with_capacity(GATHERED),
            between: Duration::ZERO,
            key_in: KEYS_EVERY,
            sampled: Vec::new(),
        }
    }

    /// A caller did something else for so long.
    pub fn was_elsewhere(&mut self, time: Duration) {
        self.between += time;
    }

    /// An operation is about the key with this number.
    pub fn about(&mut self, number: u64) {
        self.key_in -= 1;
        if self.key_in == 0 {
            self.key_in = KEYS_EVERY;
            self.sampled.push(number);
        }
    }

    /// `operations` operations succeeded together, and took `time`.
    pub fn took(&mut self, operations: u64, time: Duration, shared: &Shared) {
        if operations == 0 {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(LATENCY_MAX);
        self.gathered.push((nanos, operations));
        if self.gathered.len() == GATHERED {
            self.flush(shared);
        }
    }

    /// Hands the gathered latencies over.
    pub fn flush(&mut self, shared: &Shared) {
        let mut latency = shared.lock();
        for (nanos, operations) in self.gathered.drain(..) {
            latency.saturating_record_n(nanos, operations);
        }
        drop(latency);
        let between = std::mem::take(&mut self.between).as_nanos();
        let between = u64::try_from(between).unwrap_or(u64::MAX);
        shared.between_ns.fetch_add(between, Ordering::Relaxed);
        if self.sampled.is_empty() {
            return;
        }
        let mut keys = shared.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for number in self.sampled.drain(..) {
            let is_room = keys.len() < KEYS_MAX;
            match keys.get_mut(&number) {
                Some(count) => *count += 1,
                None if is_room => drop(keys.insert(number, 1)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_wrong_values_are_no_operations() {
        let mut counts = Counts::default();
        let noted: Vec<bool> = [
            Ok(Done::Hit),
            Ok(Done::Miss),
            Ok(Done::Set),
            Ok(Done::Wrong),
            Err(Error::TimedOut),
            Err(Error::Busy),
        ]
        .map(|outcome| counts.note(outcome))
        .into();
        assert_eq!(noted, [true, true, true, false, false, false]);
        assert_eq!(counts.operations(), 3);
        assert_eq!((counts.errors, counts.wrong), (2, 1));
        assert_eq!(counts.first_error, Some(Error::TimedOut.to_string()));
        let mut sum = counts.clone();
        sum.add(&counts);
        assert_eq!((sum.operations(), sum.errors, sum.wrong), (6, 4, 2));
    }

    #[test]
    fn every_latency_reaches_the_histogram() {
        let (shared, mut tally) = (Shared::new(), CallerTally::new());
        for n in 1..=1000 {
            tally.took(2, Duration::from_micros(n), &shared);
        }
        tally.took(0, Duration::from_secs(9), &shared);
        tally.flush(&shared);
        let latency = shared.latency();
        assert_eq!(latency.len(), 2000);
        let median = latency.value_at_quantile(0.5) as f64;
        assert!((median / 500_000.0 - 1.0).abs() < 0.01, "{median}");
    }
}
