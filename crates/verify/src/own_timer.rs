//! Measures how late a timer of this process goes off: where the verifier itself did not get to run, the brokers beside
//! it may not have run either, and that they made no progress proves nothing about them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the timer is due.
const EVERY: Duration = Duration::from_millis(50);
/// For how long each lateness is kept: longer than any wait that counts as a violation.
const KEPT: Duration = Duration::from_secs(120);
/// The machine is too busy to tell if the timer was late by this part of a wait. What a broker does in that time takes
/// many wake-ups, one after the other; when each may be late by so much, a few of them use up the whole wait.
const PART: u32 = 10;

/// A timer with a thread of its own, until it is dropped.
pub struct OwnTimer {
    lateness: Arc<Mutex<Lateness>>,
    /// The thread ends when this is dropped.
    _stop: Sender<Infallible>,
}

impl OwnTimer {
    /// Starts the timer.
    pub fn start() -> io::Result<Self> {
        let lateness = Arc::new(Mutex::new(Lateness::new(Instant::now())));
        let (stop, stopped) = channel();
        let its = lateness.clone();
        std::thread::Builder::new()
            .name("own-timer".into())
            .spawn(move || run(&its, &stopped))?;
        Ok(Self {
            lateness,
            _stop: stop,
        })
    }

    /// By how much the timer was late at most, since it started.
    pub fn longest(&self) -> Duration {
        lock(&self.lateness).longest(Instant::now())
    }

    /// What a wait that ends now, after `waited`, proves about what it waited for.
    pub fn judge(&self, waited: Duration) -> Evidence {
        lock(&self.lateness).judge(waited, Instant::now())
    }

    /// As if the timer had gone off now, and late.
    #[cfg(test)]
    pub fn was_late(&self, late: Duration) {
        lock(&self.lateness)
            .latest
            .push_back((Instant::now(), late));
    }
}

fn run(lateness: &Mutex<Lateness>, stopped: &Receiver<Infallible>) {
    loop {
        let due = lock(lateness).due;
        let left = due.saturating_duration_since(Instant::now());
        match stopped.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => lock(lateness).went_off(Instant::now()),
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(never) => match never {},
        }
    }
}

fn lock(lateness: &Mutex<Lateness>) -> MutexGuard<'_, Lateness> {
    lateness.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a wait that was too long proves; printed behind the words of its violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// This process got to run meanwhile, so whatever it waited for was too slow.
    Sound,
    /// This process itself did not get to run for so long.
    TooBusy(Duration),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sound => Ok(()),
            Self::TooBusy(late) => write!(
                f,
                " (meanwhile the verifier's own timer was late by {late:.1?}: the machine was too busy to tell whether brokers were too slow)"
            ),
        }
    }
}

/// How late the timer was, without the timer.
struct Lateness {
    /// When it goes off next.
    due: Instant,
    longest: Duration,
    /// When it went off, and how late that was, the oldest first.
    latest: VecDeque<(Instant, Duration)>,
}

impl Lateness {
    fn new(now: Instant) -> Self {
        Self {
            due: now + EVERY,
            longest: Duration::ZERO,
            latest: VecDeque::new(),
        }
    }

    /// The timer went off; it is due again.
    fn went_off(&mut self, now: Instant) {
        let late = self.overdue(now);
        self.longest = self.longest.max(late);
        self.latest.push_back((now, late));
        let is_old = |(at, _): &mut (Instant, Duration)| now.duration_since(*at) > KEPT;
        while self.latest.pop_front_if(is_old).is_some() {}
        self.due = now + EVERY;
    }

    /// By how much the timer is late that has not gone off yet.
    fn overdue(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.due)
    }

    fn longest(&self, now: Instant) -> Duration {
        self.longest.max(self.overdue(now))
    }

    fn judge(&self, waited: Duration, now: Instant) -> Evidence {
        // Only what of a lateness falls into the wait counts.
        let within = |(at, late): &(Instant, Duration)| {
            let before = now.saturating_duration_since(*at);
            waited.saturating_sub(before).min(*late)
        };
        let late = self.latest.iter().map(within).max().unwrap_or_default();
        let late = late.max(self.overdue(now).min(waited));
        if late.is_zero() || late * PART < waited {
            return Evidence::Sound;
        }
        Evidence::TooBusy(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const WAITED: Duration = Duration::from_secs(30);

    /// A timer that was late by 3 s once, 10 s after it started, and on time 10 s before and after.
    fn late_once(zero: Instant) -> Lateness {
        let mut lateness = Lateness::new(zero);
        let is_late = |at: u32| at > 10_000 && at < 13_000;
        for at in (50..=23_000).step_by(50).filter(|at| !is_late(*at)) {
            lateness.went_off(zero + at * MS);
        }
        lateness
    }

    #[test]
    fn a_wait_proves_nothing_if_the_timer_was_late_meanwhile() {
        let zero = Instant::now();
        let lateness = late_once(zero);
        let now = zero + 23_000 * MS;
        let late = 2950 * MS;
        assert_eq!(lateness.longest(now), late);
        assert_eq!(lateness.judge(20 * 1000 * MS, now), Evidence::TooBusy(late));
        assert_eq!(lateness.judge(9_900 * MS, now), Evidence::Sound, "later");
        assert_eq!(lateness.judge(WAITED, now), Evidence::Sound, "a small part");
        let said = lateness.judge(20 * 1000 * MS, now).to_string();
        assert!(
            said.contains("late by 2.9s") || said.contains("late by 3.0s"),
            "{said}"
        );
    }

    #[test]
    fn only_the_part_of_a_lateness_within_the_wait_counts() {
        let zero = Instant::now();
        let lateness = late_once(zero);
        let now = zero + 23_000 * MS;
        let judged = lateness.judge(11_000 * MS, now);
        assert_eq!(judged, Evidence::Sound, "1 s of it, of 11 s: not a tenth");
        let judged = lateness.judge(11_500 * MS, now);
        assert_eq!(judged, Evidence::TooBusy(1500 * MS));
    }

    #[test]
    fn a_timer_that_has_not_gone_off_yet_counts() {
        let zero = Instant::now();
        let lateness = Lateness::new(zero);
        let now = zero + EVERY + 4000 * MS;
        assert_eq!(lateness.longest(now), 4000 * MS);
        assert_eq!(lateness.judge(WAITED, now), Evidence::TooBusy(4000 * MS));
        assert_eq!(lateness.judge(1000 * MS, now), Evidence::TooBusy(1000 * MS));
    }

    #[test]
    fn old_lateness_is_forgotten_but_for_the_longest() {
        let zero = Instant::now();
        let mut lateness = late_once(zero);
        let kept = lateness.latest.len();
        let now = zero + 23_000 * MS + KEPT;
        lateness.went_off(now);
        assert!(lateness.latest.len() < kept);
        assert_eq!(lateness.longest(now), KEPT - EVERY);
    }

    #[test]
    fn the_thread_ends_with_its_timer() {
        let timer = OwnTimer::start().expect("a thread");
        let its = Arc::downgrade(&timer.lateness);
        drop(timer);
        let deadline = Instant::now() + Duration::from_secs(60);
        while its.strong_count() > 0 {
            assert!(Instant::now() < deadline, "its thread runs on");
            std::thread::yield_now();
        }
    }
}
