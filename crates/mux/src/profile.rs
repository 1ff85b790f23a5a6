//! Where the time of commands goes and what they allocate, by stage. It is off by default; off, it
//! costs a load and a branch for each command.
//!
//! The process has one profile. What happens for each command is timed for one command of 64; what
//! happens for many commands at once is always timed. All allocations count, in a program whose
//! allocator is [`Counting`](embar_transport::alloc::Counting).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use embar_meter::profile::SAMPLE_EVERY;
use embar_meter::{Profile, Recorder, Schema, Snapshot, clock, ticks};
use embar_transport::alloc::{self, Allocated};

static SCHEMA: Schema = Schema {
    title: "MultiplexedPipelineProfile",
    stages: &["Submit", "Encode", "Send", "Receive", "Parse", "Complete"],
    // Allocations of each stage, then bytes of each.
    counters: &[
        "Submit allocations",
        "Encode allocations",
        "Send allocations",
        "Receive allocations",
        "Parse allocations",
        "Complete allocations",
        "Submit allocated bytes",
        "Encode allocated bytes",
        "Send allocated bytes",
        "Receive allocated bytes",
        "Parse allocated bytes",
        "Complete allocated bytes",
    ],
};

/// What the stages of a profile allocated, in the order of the stages: how often, and how many bytes.
#[must_use]
pub fn allocated(snapshot: &Snapshot) -> Vec<(u64, u64)> {
    let values: Vec<u64> = snapshot.counters.iter().map(|(_, value)| *value).collect();
    let (times, bytes) = values.split_at(values.len() / 2);
    times.iter().copied().zip(bytes.iter().copied()).collect()
}

/// A stage of a command.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// The caller takes a place in the send ring and a reply slot.
    Submit,
    /// The caller writes the command in place.
    Encode,
    /// The driver or a caller hands gathered commands to the kernel; each call is an event.
    Send,
    /// The driver asks the kernel for bytes; each read that finds some is an event. The time is
    /// measured only where the driver is a task: on a thread of its own the driver also sleeps there.
    Receive,
    /// The driver cuts bytes into replies and puts each into its slot.
    Parse,
    /// The driver wakes callers, and they read their replies.
    Complete,
}

static ON: AtomicBool = AtomicBool::new(false);
static PROFILE: LazyLock<Arc<Profile>> = LazyLock::new(|| Profile::new(&SCHEMA));

thread_local! {
    static RECORDER: Recorder = PROFILE.recorder();
}

/// Starts or stops timing and counting for all connections of the process.
pub fn set_enabled(on: bool) {
    LazyLock::force(&PROFILE);
    alloc::set_counting(on);
    ON.store(on, Ordering::Relaxed);
}

/// What was measured so far.
#[must_use]
pub fn snapshot() -> Snapshot {
    PROFILE.snapshot()
}

#[inline]
fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Records, unless the thread is just ending.
fn record(f: impl FnOnce(&Recorder)) {
    let _ending = RECORDER.try_with(f);
}

/// Adds what was allocated to a stage.
fn record_allocated(recorder: &Recorder, stage: Stage, allocated: Allocated) {
    if allocated.times > 0 {
        recorder.count(stage as usize, allocated.times);
        recorder.count(SCHEMA.stages.len() + stage as usize, allocated.bytes);
    }
}

/// Times a stage that handles many commands at once; `None` when the profile is off.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Timing(Option<(u64, Allocated)>);

impl Timing {
    #[inline]
    pub fn start() -> Self {
        Self(is_on().then(|| (ticks(), alloc::of_thread())))
    }

    /// Adds the time, and `count` events.
    #[inline]
    pub fn stop(self, stage: Stage, count: u64) {
        if let Some((since, before)) = self.0 {
            let spent = ticks().saturating_sub(since);
            let allocated = alloc::of_thread().since(before);
            record(|recorder| {
                recorder.add_ticks(stage as usize, spent, count);
                record_allocated(recorder, stage, allocated);
            });
        }
    }
}

/// Counts events whose time another measurement covers.
#[inline]
pub(crate) fn count(stage: Stage, events: u64) {
    if is_on() {
        record(|recorder| recorder.add_count(stage as usize, events));
    }
}

/// Measures the stages of one command when the profile is on: it counts every command and what it
/// allocates, and times some.
pub(crate) struct Laps(Option<Lap>);

struct Lap {
    /// When the stage began; `None` when this command is not timed.
    since: Option<u64>,
    allocated: Allocated,
}

impl Laps {
    /// Begins with a command that goes through these stages.
    #[inline]
    pub fn start(stages: &[Stage]) -> Self {
        if is_on() {
            return Self::start_counted(stages);
        }
        Self(None)
    }

    #[cold]
    fn start_counted(stages: &[Stage]) -> Self {
        let mut timed = false;
        record(|recorder| {
            for stage in stages {
                recorder.add_count(*stage as usize, 1);
            }
            timed = recorder.sample();
        });
        Self(Some(Lap {
            allocated: alloc::of_thread(),
            since: timed.then(ticks),
        }))
    }

    /// Everything since the last lap was this stage.
    #[inline]
    pub fn lap(&mut self, stage: Stage) {
        if let Some(lap) = &mut self.0 {
            lap.end(stage);
        }
    }
}

impl Lap {
    #[cold]
    fn end(&mut self, stage: Stage) {
        let now = self.since.map(|_| ticks());
        let allocated = alloc::of_thread().since(self.allocated);
        record(|recorder| {
            if let (Some(since), Some(now)) = (self.since, now) {
                // Without this the cost of reading the clock would count 64 times, too.
                let spent = now.saturating_sub(since).saturating_sub(clock::read_cost());
                recorder.add_ticks(stage as usize, spent.saturating_mul(SAMPLE_EVERY), 0);
            }
            record_allocated(recorder, stage, allocated);
        });
        self.allocated = alloc::of_thread();
        self.since = now.map(|_| ticks());
    }
}

#[cfg(test)]
mod tests {
    use embar_transport::alloc::Counting;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn count_of(stage: &str) -> u64 {
        snapshot().stage(stage).expect("a stage").count
    }

    // One test, because the whole process has one switch.
    #[test]
    fn only_what_happens_while_it_is_on_is_recorded() {
        let go = || {
            let mut laps = Laps::start(&[Stage::Submit, Stage::Encode]);
            laps.lap(Stage::Submit);
            drop(vec![0_u8; 100]);
            laps.lap(Stage::Encode);
            let timing = Timing::start();
            drop(vec![0_u8; 50]);
            drop(vec![0_u8; 30]);
            timing.stop(Stage::Send, 3);
            count(Stage::Receive, 2);
        };
        go();
        assert_eq!(snapshot().total_ns(), 0);
        assert_eq!(count_of("Submit"), 0);
        set_enabled(true);
        // Enough that some are timed: the gaps between timed commands are at most 127.
        (0..200).for_each(|_| go());
        set_enabled(false);
        let snapshot = snapshot();
        let time = |stage| snapshot.stage(stage).expect("a stage").total_ns;
        assert!(time("Send") > 0);
        for (stage, least) in [
            ("Submit", 200),
            ("Encode", 200),
            ("Send", 600),
            ("Receive", 400),
        ] {
            assert!(count_of(stage) >= least, "{stage}");
        }
        let allocated = allocated(&snapshot);
        let expected = [(0, 0), (200, 20_000), (400, 16_000), (0, 0), (0, 0), (0, 0)];
        assert_eq!(allocated, expected);
    }
}
