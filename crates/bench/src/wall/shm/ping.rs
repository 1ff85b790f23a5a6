//! How long it takes one processor to learn from another one that something is there, and to answer.

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use embar_console::interrupt::Interrupt;
use embar_meter::clock::{self, Scale, ticks};
use hdrhistogram::Histogram;

use super::hand_over::{Counter, HandOver};
use crate::session::placement::{Placement, Side};

/// Round trips that go first and do not count.
const COLD: u64 = 1000;
/// Round trips between two looks at whether to go on.
const CHECK_EVERY: u64 = 1024;
/// Longest round trip that is resolved, 60 s.
const ROUND_TRIP_NS_MAX: u64 = 60_000_000_000;

/// What goes there, and what comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    /// One cache line, into which both threads write by turns.
    Line,
    /// A record of 64 bytes there, and a counter on another line back: a batch that is handed over, and acknowledged.
    HandOver,
}

/// How long the round trips of a trial took, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrips {
    /// Half of them take no longer.
    pub p50_ns: f64,
    /// 99 of 100 take no longer.
    pub p99_ns: f64,
}

impl RoundTrips {
    /// Those of a histogram of nanoseconds.
    pub fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| times.value_at_quantile(quantile) as f64;
        Self {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
        }
    }
}

/// Times round trips between this thread and another one, each on a processor of its own where there are two.
pub fn measure(ping: Ping, round_trips: u64, interrupt: &Interrupt) -> Result<RoundTrips> {
    let hand_over = &HandOver::new(interrupt)?;
    let round_trips = COLD + round_trips;
    clock::warm_up();
    thread::scope(|scope| {
        let answer = move || hand_over.side(|| answer(ping, round_trips, hand_over));
        let other = Placement::Apart.on(Side::Server, || Ok(scope.spawn(answer)))?;
        let ask = || ask(ping, round_trips, hand_over);
        let asked = hand_over.side(|| Placement::Apart.on(Side::Client, ask));
        let answered = other
            .join()
            .map_err(|_| anyhow!("the thread that answers panicked"))?;
        answered?;
        Ok(RoundTrips::of(&asked?))
    })
}

fn ask(ping: Ping, round_trips: u64, hand_over: &HandOver) -> Result<Histogram<u64>> {
    let scale = Scale::of_this_machine();
    let mut times =
        Histogram::new_with_bounds(1, ROUND_TRIP_NS_MAX, 3).context("the bounds are valid")?;
    for number in 0..round_trips {
        if number.is_multiple_of(CHECK_EVERY) {
            hand_over.check()?;
        }
        let began = ticks();
        let counter = match ping {
            Ping::Line => {
                hand_over.count(Counter::Followed, 2 * number + 1);
                (Counter::Followed, 2 * number + 2)
            }
            Ping::HandOver => {
                hand_over.put(number, &[number, 0, 0, 0, 0, 0, 0]);
                (Counter::Taken, number + 1)
            }
        };
        hand_over.spin(|| (hand_over.counted(counter.0) == counter.1).then_some(()))?;
        if number >= COLD {
            times.saturating_record(scale.to_ns(ticks().saturating_sub(began)));
        }
    }
    Ok(times)
}

fn answer(ping: Ping, round_trips: u64, hand_over: &HandOver) -> Result<()> {
    for number in 0..round_trips {
        match ping {
            Ping::Line => {
                let asked = 2 * number + 1;
                hand_over.spin(|| (hand_over.counted(Counter::Followed) == asked).then_some(()))?;
                hand_over.count(Counter::Followed, asked + 1);
            }
            Ping::HandOver => {
                hand_over.spin(|| hand_over.get(number))?;
                hand_over.count(Counter::Taken, number + 1);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_trip_is_timed() {
        for ping in [Ping::Line, Ping::HandOver] {
            let times = measure(ping, 50, &Interrupt::default()).expect("measured");
            assert!(
                times.p50_ns > 0.0 && times.p50_ns <= times.p99_ns,
                "{times:?}"
            );
        }
    }

    #[test]
    fn a_signal_ends_it() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert!(measure(Ping::Line, u64::MAX / 4, &interrupt).is_err());
    }
}
