//! Publishes messages at a given rate: each leaves when it is due, whether or not earlier ones were acknowledged. The
//! latency of a batch is the time from when its first message was due to its acknowledgement.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embar_client::Publisher;
use embar_client::{Delivery, Ticket};
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;
use rustix::thread::set_current_timer_slack;

use super::result::Latencies;
use crate::plan::BenchPlan;

/// Batches that may be on their way: more than any publisher has.
const BATCHES: usize = 1 << 14;
/// Of each trial this share is not counted: the first batches are cold.
const COLD: f64 = 0.1;
/// The time of an acknowledgement that says that the batch is not stored.
const NONE: u64 = u64::MAX;
/// No sleep is shorter: messages that are due meanwhile leave together.
const SLEEP_MIN: Duration = Duration::from_micros(50);

/// When batches were due, and how long they took. Clones share it.
#[derive(Clone)]
pub struct BatchTimes {
    shared: Arc<Shared>,
}

struct Shared {
    epoch: Instant,
    /// Messages a second.
    rate: f64,
    duration: Duration,
    /// By the batch's number: when its first message was due, or when it was acknowledged, whichever is known first. A
    /// publisher that is held up may learn of its batch only after it was acknowledged. 0: nothing is known.
    known: Vec<AtomicU64>,
    taken: Mutex<Vec<u64>>,
}

/// A loaded trial.
pub struct Loaded {
    /// How long batches took.
    pub times: Histogram<u64>,
    /// Messages a second that left.
    pub reached: f64,
}

impl BatchTimes {
    /// For `rate` messages per second during `duration`.
    pub fn new(rate: f64, duration: Duration) -> Self {
        let shared = Shared {
            epoch: Instant::now(),
            rate,
            duration,
            known: (0..BATCHES).map(|_| AtomicU64::new(0)).collect(),
            taken: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn now(&self) -> u64 {
        self.shared.epoch.elapsed().as_nanos() as u64
    }

    fn published(&self, ticket: Ticket, due: u64) {
        if ticket.index() == 0
            && let Some(acked) = self.meet(ticket.batch(), due)
        {
            self.took(due, acked);
        }
    }

    /// The publisher calls this for each batch.
    pub fn acked(&self, delivery: &Delivery) {
        let acked = match delivery.result {
            Ok(_) => self.now(),
            Err(_) => NONE,
        };
        if let Some(due) = self.meet(delivery.batch, acked) {
            self.took(due, acked);
        }
    }

    /// Leaves one of the two times of a batch for the thread that has the other, or takes the other.
    fn meet(&self, batch: u64, time: u64) -> Option<u64> {
        let slot = &self.shared.known[batch as usize % BATCHES];
        // Either thread may be the second: it sees what the first stored, and the place is free for a later batch.
        let (ours, order) = (time.max(1), Ordering::AcqRel);
        match slot.compare_exchange(0, ours, order, Ordering::Acquire) {
            Ok(_) => None,
            Err(other) => {
                slot.store(0, Ordering::Release);
                Some(other)
            }
        }
    }

    fn took(&self, due: u64, acked: u64) {
        if acked != NONE {
            let taken = self.shared.taken.lock();
            let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
            taken.push(acked.saturating_sub(due));
        }
    }
}

/// Publishes at the rate of `batches`, and waits for all acknowledgements.
pub fn measure(
    publisher: &Publisher,
    plan: &BenchPlan,
    batches: &BatchTimes,
    abort: &Abort,
) -> Result<Loaded> {
    let message = filler(plan.message_bytes as usize);
    // Sleeps end when they should. A kernel that refuses only makes latencies worse.
    let _granted = set_current_timer_slack(NonZeroU64::new(1));
    let Shared { rate, duration, .. } = *batches.shared;
    let (began, messages) = (batches.now(), (rate * duration.as_secs_f64()) as u64);
    let mut next = 0;
    while next < messages {
        abort.check()?;
        let elapsed = batches.now() - began;
        let until = ((elapsed as f64 * rate / 1e9) as u64).min(messages);
        for number in next..until {
            let due = began + (number as f64 * 1e9 / rate) as u64;
            batches.published(publisher.publish(&message)?, due);
        }
        next = next.max(until);
        thread::sleep(SLEEP_MIN);
    }
    let reached = messages as f64 * 1e9 / (batches.now() - began) as f64;
    publisher.flush()?;
    let taken = batches.shared.taken.lock();
    let taken = taken.unwrap_or_else(PoisonError::into_inner);
    ensure!(!taken.is_empty(), "no batch was acknowledged");
    let mut times = Latencies::new()?.histogram;
    let cold = (taken.len() as f64 * COLD) as usize;
    taken[cold..]
        .iter()
        .for_each(|took| times.saturating_record(*took));
    Ok(Loaded { times, reached })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_times() -> BatchTimes {
        BatchTimes::new(1000.0, Duration::from_secs(1))
    }

    fn taken(batches: &BatchTimes) -> Vec<u64> {
        batches
            .shared
            .taken
            .lock()
            .expect("no thread panicked")
            .clone()
    }

    #[test]
    fn a_batch_counts_whichever_of_its_times_is_known_first() {
        let batches = batch_times();
        for batch in 0..2 * BATCHES as u64 {
            let (due, acked) = (batch, batch + 7);
            let times = if batch % 2 == 0 {
                [due, acked]
            } else {
                [acked, due]
            };
            assert_eq!(batches.meet(batch, times[0]), None);
            assert_eq!(batches.meet(batch, times[1]), Some(times[0].max(1)));
        }
        batches.took(5, 12);
        batches.took(5, NONE);
        assert_eq!(taken(&batches), [7]);
    }

    #[test]
    fn two_threads_miss_no_batch() {
        let batches = batch_times();
        // No side may be a whole turn ahead of the other, as no publisher has so many batches on their way.
        let turn = |from: u64| {
            let sides = [1, 2].map(|time| {
                let batches = batches.clone();
                thread::spawn(move || {
                    let numbers = from..from + BATCHES as u64;
                    numbers
                        .filter(|batch| batches.meet(*batch, time).is_some())
                        .count()
                })
            });
            sides
                .map(|side| side.join().expect("it ends"))
                .iter()
                .sum::<usize>()
        };
        assert!((0..4).all(|it| turn(it * BATCHES as u64) == BATCHES));
    }
}
