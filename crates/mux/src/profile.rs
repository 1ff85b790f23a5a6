//! Where the time of commands goes, by stage. Off unless asked for; off, it costs a load and a
//! branch for each command.
//!
//! There is one profile for the process, as there is one place to print it. What is done for each
//! command is timed for one of 64; what is done for many at once is always timed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use embar_meter::profile::SAMPLE_EVERY;
use embar_meter::{Profile, Recorder, Schema, Snapshot, clock, ticks};

static SCHEMA: Schema = Schema {
    title: "MultiplexedPipelineProfile",
    stages: &["Submit", "Encode", "Send", "Receive", "Parse", "Complete"],
    counters: &[],
};

/// What is done for a command.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// Its place in the send ring and its reply slot, without encoding.
    Submit,
    /// Its bytes, written in place.
    Encode,
    /// Handing gathered commands to the kernel; an event is a call.
    Send,
    /// Asking the kernel for bytes; an event is a read that found some. Only where the driver is a
    /// task: a thread of its own also waits there.
    Receive,
    /// Cutting bytes into replies, and putting each into its slot.
    Parse,
    /// Waking callers, and their reading of the reply.
    Complete,
}

static ON: AtomicBool = AtomicBool::new(false);
static PROFILE: LazyLock<Arc<Profile>> = LazyLock::new(|| Profile::new(&SCHEMA));

thread_local! {
    static RECORDER: Recorder = PROFILE.recorder();
}

/// Starts or stops timing, in all threads and for all connections of the process.
pub fn set_enabled(on: bool) {
    LazyLock::force(&PROFILE);
    ON.store(on, Ordering::Relaxed);
}

/// What was timed so far.
#[must_use]
pub fn snapshot() -> Snapshot {
    PROFILE.snapshot()
}

#[inline]
fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Nothing is recorded by a thread that is just ending.
fn record(f: impl FnOnce(&Recorder)) {
    let _ending = RECORDER.try_with(f);
}

/// Since when something is timed that is done for many commands at once; `None`: it is not.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Timing(Option<u64>);

impl Timing {
    #[inline]
    pub fn start() -> Self {
        Self(is_on().then(ticks))
    }

    /// Adds the time, and `count` events.
    #[inline]
    pub fn stop(self, stage: Stage, count: u64) {
        if let Some(since) = self.0 {
            let spent = ticks().saturating_sub(since);
            record(|recorder| recorder.add_ticks(stage as usize, spent, count));
        }
    }
}

/// Counts events whose time is counted elsewhere.
#[inline]
pub(crate) fn count(stage: Stage, events: u64) {
    if is_on() {
        record(|recorder| recorder.add_count(stage as usize, events));
    }
}

/// Since when the stages of one command are timed, if they are: all are counted, some are timed.
pub(crate) struct Laps(Option<u64>);

impl Laps {
    /// Of a command that goes through these stages.
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
        Self(timed.then(ticks))
    }

    /// What was done since the last lap was this stage.
    #[inline]
    pub fn lap(&mut self, stage: Stage) {
        if let Some(since) = self.0 {
            self.0 = Some(lap(stage, since));
        }
    }
}

#[cold]
fn lap(stage: Stage, since: u64) -> u64 {
    // The clock would otherwise be charged 64 times, too.
    let spent = ticks()
        .saturating_sub(since)
        .saturating_sub(clock::read_cost());
    let spent = spent.saturating_mul(SAMPLE_EVERY);
    record(|recorder| recorder.add_ticks(stage as usize, spent, 0));
    ticks()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_of(stage: &str) -> u64 {
        snapshot().stage(stage).expect("a stage").count
    }

    // One test, as the switch is for the whole process.
    #[test]
    fn only_what_happens_while_it_is_on_is_recorded() {
        let go = || {
            let mut laps = Laps::start(&[Stage::Submit, Stage::Encode]);
            laps.lap(Stage::Submit);
            laps.lap(Stage::Encode);
            Timing::start().stop(Stage::Send, 3);
            count(Stage::Receive, 2);
        };
        go();
        assert_eq!(snapshot().total_ns(), 0);
        assert_eq!(count_of("Submit"), 0);
        set_enabled(true);
        // Enough that some are timed: the gaps between those are at most 127.
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
    }
}
