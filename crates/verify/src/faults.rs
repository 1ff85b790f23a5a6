//! Faults: which process is hit, how, and when.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use embar_console::size::as_seconds;
use embar_meter::random::SplitMix64;
use serde::{Serialize, Serializer};

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Victim {
    /// The broker that sequences now.
    Sequencer,
    /// Any data broker.
    Broker,
    /// Any publisher.
    Publisher,
    /// All brokers and all who sequence, so that no process is left that has the region.
    Cluster,
    /// A topic beside the one that is verified.
    #[value(skip)]
    Topic,
    /// All disks, and all brokers with them.
    #[value(skip)]
    Power,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// SIGKILL, and a new process in its place.
    Kill,
    /// SIGSTOP, and SIGCONT after a while.
    Pause,
    /// It leaves the cluster for good, and another one joins after a while.
    Drain,
    /// It is deleted, and created again.
    Delete,
    /// It goes, and with it what was not synced and all memory; and it comes back.
    Cut,
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// What it does.
    pub action: Action,
    /// What it hits.
    pub victim: Victim,
}

const fn fault(action: Action, victim: Victim) -> Fault {
    Fault { action, victim }
}

impl Fault {
    /// A data broker leaves.
    pub const DRAIN: Self = fault(Action::Drain, Victim::Broker);
    /// The topic beside is deleted and created again.
    pub const DELETE: Self = fault(Action::Delete, Victim::Topic);
    /// The power goes.
    pub const CUT: Self = fault(Action::Cut, Victim::Power);
    /// All kinds that happen once in each interval, in an order that spreads them.
    pub const ALL: [Self; 9] = [
        fault(Action::Kill, Victim::Sequencer),
        fault(Action::Pause, Victim::Publisher),
        fault(Action::Kill, Victim::Broker),
        Self::DRAIN,
        fault(Action::Pause, Victim::Sequencer),
        fault(Action::Kill, Victim::Publisher),
        Self::DELETE,
        fault(Action::Pause, Victim::Broker),
        fault(Action::Kill, Victim::Cluster),
    ];

    /// Whether it happens later, or not at all: the cluster is asked to do it.
    pub fn is_asked_for(self) -> bool {
        matches!(self.action, Action::Drain | Action::Delete)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Kill => "kill",
            Action::Pause => "pause",
            Action::Drain => "drain",
            Action::Delete => "delete",
            Action::Cut => "cut",
        };
        let victim = match self.victim {
            Victim::Sequencer => "sequencer",
            Victim::Broker => "broker",
            Victim::Publisher => "publisher",
            Victim::Cluster => "cluster",
            Victim::Topic => "topic",
            Victim::Power => "power",
        };
        f.pad(&format!("{action} {victim}"))
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A range of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DurationRange {
    /// The shortest.
    #[serde(rename = "shortest_s", serialize_with = "as_seconds")]
    pub shortest: Duration,
    /// The longest.
    #[serde(rename = "longest_s", serialize_with = "as_seconds")]
    pub longest: Duration,
}

impl DurationRange {
    /// A random one of the range.
    pub fn draw(self, random: &mut SplitMix64) -> Duration {
        let micros = (self.longest - self.shortest).as_micros() as u64;
        self.shortest + Duration::from_micros(random.below(micros + 1))
    }
}

/// A text is no range of durations.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no range of times: write one time, or two as in 500ms..3s, the shorter first")]
pub struct ParseRangeError {
    text: String,
}

impl FromStr for DurationRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        let wrong = || ParseRangeError {
            text: text.to_owned(),
        };
        let time = |text: &str| embar_console::size::parse_duration(text).map_err(|_| wrong());
        let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
        let (shortest, longest) = (time(shortest)?, time(longest)?);
        if shortest > longest {
            return Err(wrong());
        }
        Ok(Self { shortest, longest })
    }
}

/// Each fault once in each interval, all of them evenly spread over it.
#[derive(Debug)]
pub struct Schedule {
    every: Duration,
    due: Vec<(Instant, Fault)>,
}

impl Schedule {
    /// From `now` on.
    pub fn new(faults: &[Fault], every: Duration, now: Instant) -> Self {
        let count = faults.len() as u32;
        let due = (1..).zip(faults).map(|(index, fault)| {
            let share = every * index / count;
            (now + share, *fault)
        });
        Self {
            every,
            due: due.collect(),
        }
    }

    /// When the next fault is due.
    pub fn next(&self) -> Option<Instant> {
        self.due.iter().map(|(at, _)| *at).min()
    }

    /// The faults that are due. A fault that was missed is not made up for.
    pub fn take_due(&mut self, now: Instant) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (at, fault) in &mut self.due {
            if *at <= now {
                faults.push(*fault);
                *at += self.every;
                if *at <= now {
                    *at = now + self.every;
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_people_write_them() {
        let span = |text: &str| text.parse::<DurationRange>().ok();
        let ms = Duration::from_millis;
        assert_eq!(
            span("500ms..3s"),
            Some(DurationRange {
                shortest: ms(500),
                longest: ms(3000)
            })
        );
        assert_eq!(
            span("1s"),
            Some(DurationRange {
                shortest: ms(1000),
                longest: ms(1000)
            })
        );
        for text in ["", "..", "3s..1s", "1s..", "fast"] {
            assert_eq!(span(text), None, "{text}");
        }
        let mut random = SplitMix64::new(1);
        let span = span("1ms..2ms").expect("a span");
        assert!((0..100).all(|_| (ms(1)..=ms(2)).contains(&span.draw(&mut random))));
    }

    #[test]
    fn each_fault_comes_once_an_interval_and_alone() {
        let faults = [Victim::Sequencer, Victim::Broker].map(|victim| Fault {
            action: Action::Kill,
            victim,
        });
        let zero = Instant::now();
        let mut schedule = Schedule::new(&faults, Duration::from_secs(2), zero);
        let mut done = Vec::new();
        for s in 1..=8 {
            assert_eq!(schedule.next(), Some(zero + Duration::from_secs(s)));
            done.extend(schedule.take_due(zero + Duration::from_secs(s)));
        }
        assert_eq!(done, [faults, faults, faults, faults].concat());
    }
}
