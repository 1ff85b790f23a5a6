//! Where the time goes: stage timers cheap enough to stay on, and the statistics that decide whether one configuration really beats another.
//!
//! What it never does: change what it measures. A recorder touches only cache lines of its own thread, never waits, and
//! does not even read the clock while metering is off. It prints nothing; every result is a value with a `Display`.
//! It claims nothing either: a difference whose interval includes "no difference" is reported as inside the noise.
//!
//! Read the files in this order:
//!
//! 1. [`clock`]: raw ticks and how they become nanoseconds.
//! 2. [`profile`]: a schema of stages and counters, and the recorder each thread writes to.
//! 3. [`snapshot`]: the sums of all recorders as a value that can be sent, subtracted, merged and printed;
//!    [`table`] aligns it.
//! 4. [`stats`]: medians, bootstrap intervals, verdicts. [`random`] is the generator they draw from.
//! 5. [`experiment`]: interleaved trials of several configurations.
//! 6. [`results`]: the log of runs, one CSV row each.

#![forbid(unsafe_code)]

pub mod clock;
pub mod experiment;
pub mod profile;
pub mod random;
pub mod results;
pub mod snapshot;
pub mod stats;
pub mod table;

pub use clock::{Scale, ticks};
pub use experiment::{Comparison, Experiment, ExperimentError, Outcome, Sample, Trial};
pub use profile::{Profile, Recorder, Schema, Start};
pub use snapshot::{Snapshot, StageRow};
pub use stats::{Better, Interval, LossBound, Series, StatsError, Verdict};
