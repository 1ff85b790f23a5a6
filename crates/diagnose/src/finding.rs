//! What a diagnosis says.

use std::fmt;

use embar_meter::{Comparison, Interval, Verdict};
use serde::{Deserialize, Serialize};

use crate::cause::Cause;
use crate::limits::Resource;

/// A cause, and why it is believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What limits.
    pub cause: Cause,
    /// Where.
    pub part: Resource,
    /// The numbers that say so.
    pub evidence: Vec<Evidence>,
    /// How sure, 0 to 1: how far the evidence is beyond what the rule asks for.
    pub confidence: f64,
    /// If this were gone, the rate would grow by at most this part: 0.2 is 20 % more. 0 for what no remedy changes.
    pub gain_at_most: f64,
    /// What to do.
    pub remedy: Remedy,
    /// What came of the remedy, where it was tried.
    pub verified: Option<Verified>,
}

impl Finding {
    /// What findings are ranked by: the gain that may be had, as far as it is believed.
    pub fn weight(&self) -> f64 {
        self.gain_at_most * self.confidence
    }

    /// Whether its own remedy refuted it.
    pub fn withdrawn(&self) -> bool {
        let outcome = self.verified.as_ref().map(|it| it.outcome);
        outcome == Some(Outcome::DidNotHelp)
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was measured.
    pub what: String,
    /// The number.
    pub value: f64,
    /// Its unit: `share` (0 to 1), `bytes`, `s`, `1/s`, or nothing for a count.
    pub unit: Unit,
}

impl Evidence {
    /// A part of a whole, 0 to 1.
    pub fn share(what: impl Into<String>, value: f64) -> Self {
        Self::new(what, value, Unit::Share)
    }

    /// Bytes.
    pub fn bytes(what: impl Into<String>, value: f64) -> Self {
        Self::new(what, value, Unit::Bytes)
    }

    /// Seconds.
    pub fn seconds(what: impl Into<String>, value: f64) -> Self {
        Self::new(what, value, Unit::Seconds)
    }

    /// Times a second.
    pub fn per_second(what: impl Into<String>, value: f64) -> Self {
        Self::new(what, value, Unit::PerSecond)
    }

    /// A number without a unit.
    pub fn count(what: impl Into<String>, value: f64) -> Self {
        Self::new(what, value, Unit::Count)
    }

    fn new(what: impl Into<String>, value: f64, unit: Unit) -> Self {
        let what = what.into();
        Self { what, value, unit }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what)?;
        let value = self.value;
        match self.unit {
            Unit::Share => write!(f, "{:.0} %", value * 100.0),
            Unit::Bytes => write!(f, "{} bytes", whole(value)),
            Unit::Seconds if value > 0.0 && value < 1e-6 => write!(f, "{:.0} ns", value * 1e9),
            Unit::Seconds if value < 1e-3 => write!(f, "{:.0} us", value * 1e6),
            Unit::Seconds if value < 1.0 => write!(f, "{:.1} ms", value * 1e3),
            Unit::Seconds => write!(f, "{value:.1} s"),
            Unit::PerSecond => write!(f, "{} a second", whole(value)),
            Unit::Count if value.fract() != 0.0 && value < 100.0 => write!(f, "{value:.2}"),
            Unit::Count => f.write_str(&whole(value)),
        }
    }
}

/// With a comma before every third digit.
fn whole(value: f64) -> String {
    embar_meter::table::grouped(value.round() as u64)
}

/// What a number of [`Evidence`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A part of a whole, 0 to 1.
    Share,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Times a second.
    PerSecond,
    /// A number.
    Count,
}

/// What to do about a cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remedy {
    /// In words.
    pub text: String,
    /// What may be applied by us; `None` where somebody else has to act.
    pub change: Option<Change>,
}

impl Remedy {
    /// Something that only the user can do.
    pub fn advice(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            change: None,
        }
    }

    /// Something that can be tried.
    pub fn change(text: impl Into<String>, change: Change) -> Self {
        Self {
            text: text.into(),
            change: Some(change),
        }
    }
}

/// A setting to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "setting", content = "value", rename_all = "kebab-case")]
pub enum Change {
    /// Leave the receive buffers of brokers to the kernel.
    ReceiveBufferTuned,
    /// Leave the send buffers to the kernel.
    SendBufferTuned,
    /// Bytes of a batch.
    BatchSize(u64),
    /// How long a batch may wait to fill, seconds.
    Linger(f64),
    /// Batches that a connection may have in flight.
    BatchesInFlight(u64),
    /// Application threads that publish.
    Publishers(u32),
    /// Connections for each broker, each with a thread.
    ThreadsPerBroker(u32),
    /// Network threads of each broker.
    NetworkThreads(u32),
    /// Commands that a Redis connection may have in flight.
    MaxInFlight(u64),
    /// Tasks that call Redis.
    Callers(u64),
    /// Redis, or sessions, without encryption.
    PlainConnections,
    /// Bytes of the send ring of a session.
    SendRing(u64),
    /// Messages of each session that may be on their way there and back.
    InFlight(u64),
    /// Messages that a thread sends on a session before it waits until they have left.
    MessagesTogether(u64),
    /// Threads of each end that serve sessions.
    Workers(u32),
}

impl fmt::Display for Change {
    /// As it would be written on a command line, where it can.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReceiveBufferTuned => f.write_str("no --recv-buffer"),
            Self::SendBufferTuned => f.write_str("no --send-buffer"),
            Self::BatchSize(bytes) => write!(f, "--batch-size {bytes}"),
            Self::Linger(seconds) => write!(f, "a linger of {} us", seconds * 1e6),
            Self::BatchesInFlight(batches) => {
                write!(f, "{batches} batches in flight on each connection")
            }
            Self::Publishers(threads) => write!(f, "--publishers {threads}"),
            Self::ThreadsPerBroker(threads) => write!(f, "--threads-per-broker {threads}"),
            Self::NetworkThreads(threads) => write!(f, "--network-threads {threads}"),
            Self::MaxInFlight(commands) => write!(f, "--max-in-flight {commands}"),
            Self::Callers(callers) => write!(f, "--callers {callers}"),
            Self::PlainConnections => f.write_str("no --tls"),
            Self::SendRing(bytes) => write!(f, "--ring {bytes}"),
            Self::InFlight(messages) => write!(f, "--in-flight {messages}"),
            Self::MessagesTogether(messages) => {
                write!(f, "{messages} messages before a wait")
            }
            Self::Workers(threads) => write!(f, "--threads {threads}"),
        }
    }
}

/// What came of a remedy, in an experiment that alternated with and without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Rate with the remedy, divided by the rate without it.
    pub ratio: Interval,
    /// What may be said about it.
    pub verdict: Verdict,
    /// Pairs of trials.
    pub pairs: usize,
    /// Whether the rate that the finding allowed for, and the one that was seen, are within a factor of 1.5 of each other; never of a
    /// finding that its remedy refuted.
    pub as_predicted: bool,
    /// What follows from it.
    pub outcome: Outcome,
    /// What others, and the host of a virtual machine, used of the processors meanwhile, 0 to 1.
    #[serde(default)]
    pub others: f64,
}

/// What follows from trying a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The rate grew: the cause is what limited.
    Helped,
    /// It did not, or by so little that something else limits: the cause is not what does.
    DidNotHelp,
    /// The trials differ by too much to say.
    NotShown,
}

impl Outcome {
    /// What people are told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Helped => "it helped",
            Self::DidNotHelp => "it brought too little, so this is not what limits",
            Self::NotShown => "the trials differ by too much to say whether it helps",
        }
    }
}

impl fmt::Display for Outcome {
    /// As JSON has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Helped => "helped",
            Self::DidNotHelp => "did-not-help",
            Self::NotShown => "not-shown",
        })
    }
}

impl Verified {
    /// Judges an experiment. `predicted` is the finding's bound on the gain.
    pub fn new(comparison: &Comparison, predicted: f64, others: f64) -> Self {
        let Comparison {
            ratio,
            verdict,
            pairs,
            ..
        } = *comparison;
        let is_sure = ratio.level >= embar_meter::stats::LEVEL;
        let is_below = |gain: f64| is_sure && ratio.high < 1.0 + gain;
        // The bound on a gain is often far above it, so what helps much is right, however much was allowed for.
        let part = predicted / PART_OF_PREDICTED;
        let outcome = match verdict {
            Verdict::Slower => Outcome::DidNotHelp,
            Verdict::Faster if is_below(part.min(GAIN_THAT_MATTERS)) => Outcome::DidNotHelp,
            Verdict::Faster => Outcome::Helped,
            Verdict::InsideNoise if is_below(part) => Outcome::DidNotHelp,
            Verdict::InsideNoise => Outcome::NotShown,
        };
        let refuted = outcome == Outcome::DidNotHelp;
        let (predicted, seen) = (1.0 + predicted, ratio.point);
        Self {
            ratio,
            verdict,
            pairs,
            as_predicted: !refuted && (predicted / seen).max(seen / predicted) <= AGREES_WITHIN,
            outcome,
            others,
        }
    }
}

/// A finding is refuted by a gain that is surely less than one part of so many of what it allowed for,
const PART_OF_PREDICTED: f64 = 3.0;
/// but not by one of this or more that is sure.
const GAIN_THAT_MATTERS: f64 = 0.1;
/// The predicted and the seen rate agree if neither is more than this many times the other.
const AGREES_WITHIN: f64 = 1.5;

#[cfg(test)]
mod tests {
    use embar_meter::{Better, Series};

    use super::*;

    #[test]
    fn evidence_reads_as_people_write_it() {
        let shown = |evidence: Evidence| evidence.to_string();
        assert_eq!(
            shown(Evidence::share("window full", 0.617)),
            "window full: 62 %"
        );
        assert_eq!(
            shown(Evidence::bytes("window", 43_690.0)),
            "window: 43,690 bytes"
        );
        assert_eq!(
            shown(Evidence::seconds("round trip", 0.000_123)),
            "round trip: 123 us"
        );
        assert_eq!(
            shown(Evidence::seconds("decoding", 1.8e-7)),
            "decoding: 180 ns"
        );
        assert_eq!(
            shown(Evidence::seconds("round trip", 0.02)),
            "round trip: 20.0 ms"
        );
        assert_eq!(
            shown(Evidence::per_second("batches", 1234.4)),
            "batches: 1,234 a second"
        );
        assert_eq!(
            shown(Evidence::count("calls per batch", 3.25)),
            "calls per batch: 3.25"
        );
    }

    #[test]
    fn a_remedy_that_helps_confirms_and_one_that_does_not_withdraws() {
        let judged = |ratio, verdict, predicted| {
            let same = Series::new([1.0; 8]).expect("finite");
            let same = Comparison::of(("a", &same), ("b", &same), Better::Higher);
            let comparison = Comparison {
                ratio,
                verdict,
                ..same.expect("pairs")
            };
            Verified::new(&comparison, predicted, 0.0)
        };
        let tried = |low, point, high, verdict, predicted| {
            let ratio = Interval {
                point,
                low,
                high,
                level: embar_meter::stats::LEVEL,
            };
            judged(ratio, verdict, predicted)
        };
        let helped = tried(1.4, 2.2, 2.5, Verdict::Faster, 0.85);
        assert_eq!(
            (helped.outcome, helped.as_predicted),
            (Outcome::Helped, true)
        );
        // The reports' own case: a gain of 0.7 % where much was predicted.
        let refuted = tried(0.98, 1.007, 1.03, Verdict::InsideNoise, 1.0);
        assert_eq!(
            (refuted.outcome, refuted.as_predicted),
            (Outcome::DidNotHelp, false)
        );
        let sure = tried(1.005, 1.007, 1.009, Verdict::Faster, 1.0);
        assert_eq!(
            (sure.outcome, sure.as_predicted),
            (Outcome::DidNotHelp, false)
        );
        // A bound that is far above the gain is still of what limited.
        let less = tried(2.9, 3.0, 3.1, Verdict::Faster, 19.0);
        assert_eq!((less.outcome, less.as_predicted), (Outcome::Helped, false));
        // As little as that was predicted, and the noise hides it.
        let little = tried(1.005, 1.03, 1.045, Verdict::InsideNoise, 0.04);
        assert_eq!(little.outcome, Outcome::NotShown);
        let none = tried(0.99, 1.0, 1.01, Verdict::InsideNoise, 0.45);
        assert_eq!(
            (none.outcome, none.as_predicted),
            (Outcome::DidNotHelp, false)
        );
        let slower = tried(0.7, 0.8, 0.9, Verdict::Slower, 0.1);
        assert_eq!(slower.outcome, Outcome::DidNotHelp);
        let noisy = tried(0.6, 1.1, 1.9, Verdict::InsideNoise, 0.3);
        assert_eq!(noisy.outcome, Outcome::NotShown);
        let few = Interval {
            point: 1.0,
            low: 1.0,
            high: 1.0,
            level: 0.75,
        };
        let few = judged(few, Verdict::InsideNoise, 1.0);
        assert_eq!(few.outcome, Outcome::NotShown);
    }

    #[test]
    fn changes_are_settings_in_json() {
        let json = serde_json::to_value(Change::BatchSize(2 << 20)).expect("JSON");
        assert_eq!(json["setting"], "batch-size");
        assert_eq!(json["value"], 2 << 20);
        let json = serde_json::to_value(Change::ReceiveBufferTuned).expect("JSON");
        assert_eq!(json["setting"], "receive-buffer-tuned");
    }
}
