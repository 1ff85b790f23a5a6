//! How long a publisher waits for the next acknowledgement at most, beside what the disk does meanwhile.
//!
//! A disk stands still by itself now and then. So a probe writes 4 KiB to each disk of the topic beside the load, again and again, and
//! counts how long each write took. What a publisher waited while no write of the probe had been on its way for as long is the log's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use embar_client::Delivery;
use embar_console::context::Context;
use embar_disk::{AlignedBuffer, Storage, StoredFile};
use serde::Serialize;

use crate::disk::space::Space;
use crate::plan::BenchPlan;

/// Shorter waits are none.
const STALL_NS: u64 = 10_000_000;
/// Between the end of a write of the probe and the next.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// Bytes of a write, and of the file that they go through in turn.
const PROBE_BYTES: usize = 4 << 10;
const FILE_BYTES: u64 = 1 << 20;
const PROBE: &str = "probe";

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stalls {
    /// The longest time between two acknowledgements.
    pub longest_ms: f64,
    /// The longest write of the probe.
    pub disk_longest_ms: f64,
    /// The longest time between two acknowledgements, without what a write of the probe took meanwhile.
    pub beyond_disk_ms: f64,
}

/// From when to when, in nanoseconds.
type Span = (u64, u64);

/// Times when acknowledgements come.
pub struct AckTimes {
    began: Instant,
    last: AtomicU64,
    gaps: Mutex<Vec<Span>>,
}

impl AckTimes {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The load begins.
    pub fn begin(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// The publisher calls this for each batch.
    pub fn acked(&self, _delivery: &Delivery) {
        let now = self.now();
        let last = self.last.fetch_max(now, Ordering::Relaxed);
        if now.saturating_sub(last) >= STALL_NS {
            let gaps = self.gaps.lock();
            gaps.unwrap_or_else(PoisonError::into_inner)
                .push((last, now));
        }
    }
}

/// Writes to the disks until it is stopped.
pub struct Probe {
    times: Arc<AckTimes>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Span>>>>,
}

impl Probe {
    /// Beside the disks of a plan's topic.
    ///
    /// # Errors
    /// What the system says of the first directory that cannot be used.
    pub fn start(plan: &BenchPlan, context: &Context) -> Result<Self> {
        let times = Arc::new(AckTimes {
            began: Instant::now(),
            last: AtomicU64::new(0),
            gaps: Mutex::default(),
        });
        let mut probe = Self {
            is_over: Arc::default(),
            times,
            threads: Vec::new(),
        };
        for dir in plan.disks() {
            let space = Space::new(dir, FILE_BYTES, context)?;
            let (is_over, began) = (Arc::clone(&probe.is_over), probe.times.began);
            probe
                .threads
                .push(thread::spawn(move || write(&space, began, &is_over)));
        }
        Ok(probe)
    }

    /// What the publisher calls.
    pub fn times(&self) -> Arc<AckTimes> {
        Arc::clone(&self.times)
    }

    /// Ends it.
    ///
    /// # Errors
    /// A write that failed.
    pub fn stop(mut self) -> Result<Stalls> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut of_disks = Vec::new();
        for thread in self.threads.drain(..) {
            let spans = thread
                .join()
                .map_err(|_| anyhow::anyhow!("the probe panicked"))?;
            of_disks.push(spans?);
        }
        let gaps = self.times.gaps.lock();
        let gaps = gaps.unwrap_or_else(PoisonError::into_inner);
        Ok(stalls(&gaps, &of_disks))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // What it says was asked for, or nobody wants it.
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

/// When writes to a disk were on their way.
fn write(space: &Space, began: Instant, is_over: &AtomicBool) -> Result<Vec<Span>> {
    let file = space.directory.create(PROBE, FILE_BYTES);
    let file = file.context("cannot make a file for the probe")?;
    let buffer = AlignedBuffer::new(PROBE_BYTES);
    let now = || began.elapsed().as_nanos() as u64;
    let (mut spans, mut at) = (Vec::new(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let from = now();
        file.write_synced(at, &buffer, PROBE_BYTES)
            .context("the probe cannot write")?;
        spans.push((from, now()));
        at = (at + PROBE_BYTES as u64) % FILE_BYTES;
        thread::sleep(PROBE_EVERY);
    }
    Ok(spans)
}

/// `of_disks` has the writes of each disk's probe.
fn stalls(gaps: &[Span], of_disks: &[Vec<Span>]) -> Stalls {
    let longest = |spans: &[Span]| spans.iter().map(|(from, to)| to - from).max().unwrap_or(0);
    let beyond = gaps.iter().map(|gap| {
        let others = of_disks.iter().map(|spans| covered(*gap, spans));
        gap.1 - gap.0 - others.max().unwrap_or(0)
    });
    let of_disks = of_disks.iter().flatten().copied().collect::<Vec<_>>();
    let ms = |ns: u64| ns as f64 / 1e6;
    Stalls {
        longest_ms: ms(longest(gaps)),
        disk_longest_ms: ms(longest(&of_disks)),
        beyond_disk_ms: ms(beyond.max().unwrap_or(0)),
    }
}

/// How much of a gap writes took that follow each other.
fn covered(gap: Span, writes: &[Span]) -> u64 {
    // What a good disk takes for a write is no time that it stands still.
    let long = writes.iter().filter(|(from, to)| to - from >= STALL_NS);
    long.map(|(from, to)| to.min(&gap.1).saturating_sub(*from.max(&gap.0)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_took_meanwhile_does_not_count() {
        const MS: u64 = 1_000_000;
        let gaps = [(0, 30 * MS), (100 * MS, 300 * MS)];
        let writes = [(90, 180), (185, 280), (281, 282), (400, 900)];
        let writes = writes.map(|(from, to)| (from * MS, to * MS)).to_vec();
        let of_disks = [vec![(0, MS)], writes];
        let expected = Stalls {
            longest_ms: 200.0,
            disk_longest_ms: 500.0,
            beyond_disk_ms: 30.0,
        };
        assert_eq!(stalls(&gaps, &of_disks), expected);
        assert_eq!(stalls(&[], &[]), Stalls::default());
    }
}
