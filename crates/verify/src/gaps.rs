//! Measures gaps: how long publishers got no acknowledgement after each fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::faults::Fault;

/// The gaps after all faults of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct GapReport {
    /// The kind.
    pub fault: Fault,
    /// How many there were.
    pub faults: usize,
    /// Longest time without an acknowledgement to any publisher after one fault, in milliseconds.
    pub nobody_ms: Spread,
    /// The same for the publisher that waited longest.
    pub slowest_publisher_ms: Spread,
}

/// Median and maximum of several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    fn of(times: &[Duration]) -> Self {
        let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        Self {
            median: embar_meter::stats::median(&times).unwrap_or(0.0),
            max: times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Times of acknowledgements and faults.
#[derive(Debug)]
pub struct Gaps {
    last: Instant,
    last_of: BTreeMap<u32, Instant>,
    open: Vec<Open>,
    done: BTreeMap<Fault, (Vec<Duration>, Vec<Duration>)>,
}

/// A fault whose gap may still grow: until the next fault, and then until each publisher got an acknowledgement again.
#[derive(Debug)]
struct Open {
    fault: Fault,
    at: Instant,
    nobody: Duration,
    slowest: Duration,
    /// Publishers without an acknowledgement since the next fault; `None` before that fault.
    waiting: Option<BTreeSet<u32>>,
}

impl Gaps {
    /// For publishers that begin at `now`.
    pub fn new(publishers: u32, now: Instant) -> Self {
        Self {
            last: now,
            last_of: (0..publishers).map(|publisher| (publisher, now)).collect(),
            open: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// A publisher got an acknowledgement.
    pub fn acknowledged(&mut self, publisher: u32, now: Instant) {
        let last = std::mem::replace(&mut self.last, now);
        let last_of = self.last_of.insert(publisher, now).unwrap_or(now);
        for open in &mut self.open {
            let since = |last: Instant| now.saturating_duration_since(last.max(open.at));
            open.nobody = open.nobody.max(since(last));
            open.slowest = open.slowest.max(since(last_of));
            if let Some(waiting) = &mut open.waiting {
                waiting.remove(&publisher);
            }
        }
        let done = |open: &mut Open| open.waiting.as_ref().is_some_and(BTreeSet::is_empty);
        for open in self.open.extract_if(.., done) {
            close(&mut self.done, &open);
        }
    }

    /// A fault was injected.
    pub fn fault(&mut self, fault: Fault, now: Instant) {
        for open in &mut self.open {
            let all = || self.last_of.keys().copied().collect();
            open.waiting.get_or_insert_with(all);
        }
        self.open.push(Open {
            fault,
            at: now,
            nobody: Duration::ZERO,
            slowest: Duration::ZERO,
            waiting: None,
        });
    }

    /// The publisher that waits longest, and for how long; none when all have ended.
    pub fn longest_wait(&self, now: Instant) -> Option<(u32, Duration)> {
        let (publisher, last) = self.last_of.iter().min_by_key(|(_, last)| **last)?;
        Some((*publisher, now.saturating_duration_since(*last)))
    }

    /// A publisher has ended: its gaps end, too.
    pub fn ended(&mut self, publisher: u32) {
        self.last_of.remove(&publisher);
        for open in &mut self.open {
            if let Some(waiting) = &mut open.waiting {
                waiting.remove(&publisher);
            }
        }
    }

    /// The gaps by kind of fault. No acknowledgement comes after this.
    pub fn report(&mut self) -> Vec<GapReport> {
        for open in self.open.drain(..) {
            close(&mut self.done, &open);
        }
        let done = self.done.iter();
        done.map(|(fault, (nobody, slowest))| GapReport {
            fault: *fault,
            faults: nobody.len(),
            nobody_ms: Spread::of(nobody),
            slowest_publisher_ms: Spread::of(slowest),
        })
        .collect()
    }
}

fn close(done: &mut BTreeMap<Fault, (Vec<Duration>, Vec<Duration>)>, open: &Open) {
    let (nobody, slowest) = done.entry(open.fault).or_default();
    nobody.push(open.nobody);
    slowest.push(open.slowest);
}

#[cfg(test)]
mod tests {
    use super::super::faults::{Action, Victim};
    use super::*;

    const KILL: Fault = Fault {
        action: Action::Kill,
        victim: Victim::Sequencer,
    };
    const PAUSE: Fault = Fault {
        action: Action::Pause,
        victim: Victim::Broker,
    };

    #[test]
    fn a_gap_belongs_to_the_fault_it_began_after() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let mut gaps = Gaps::new(2, zero);
        gaps.acknowledged(0, at(90));
        gaps.fault(KILL, at(100));
        gaps.acknowledged(0, at(105));
        gaps.acknowledged(0, at(155));
        gaps.acknowledged(1, at(160));
        gaps.fault(PAUSE, at(200));
        // Publisher 1 waited since the first fault, and is late after the second.
        gaps.acknowledged(0, at(240));
        gaps.acknowledged(1, at(250));
        gaps.acknowledged(1, at(1000));
        let report = gaps.report();
        let times = |fault| {
            let of = report.iter().find(|report| report.fault == fault);
            let of = of.expect("it was injected");
            (of.faults, of.nobody_ms.max, of.slowest_publisher_ms.max)
        };
        assert_eq!(times(KILL), (1, 80.0, 90.0));
        assert_eq!(times(PAUSE), (1, 750.0, 750.0));
    }

    #[test]
    fn the_longest_wait_is_known_until_its_publisher_ends() {
        let zero = Instant::now();
        let at = |s| zero + Duration::from_secs(s);
        let mut gaps = Gaps::new(2, zero);
        gaps.acknowledged(1, at(5));
        assert_eq!(gaps.longest_wait(at(9)), Some((0, Duration::from_secs(9))));
        gaps.ended(0);
        assert_eq!(gaps.longest_wait(at(9)), Some((1, Duration::from_secs(4))));
        gaps.ended(1);
        assert_eq!(gaps.longest_wait(at(9)), None);
    }
}
