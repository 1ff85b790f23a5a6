//! Reports what a client waits for: once it has waited for a second, and again when it waits for something else.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use embar_client::Party;
use embar_client::{Wait, WaitProbe};

use crate::progress::Progress;

/// Shorter waits are not worth a remark.
const SPEAK_AFTER: Duration = Duration::from_secs(1);
/// Shortest time between two remarks.
const SPEAK_EVERY: Duration = Duration::from_secs(1);
/// A reason that comes and goes is not reported again for so long.
const REPEAT_AFTER: Duration = Duration::from_secs(30);
/// Remarks on one wait that are remembered.
const REMARKS_MAX: usize = 16;
/// Between two looks at the client.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The remarks made on the wait that goes on: decides which one comes next.
#[derive(Debug, Default)]
pub struct WaitRemarks {
    /// What was waited for, and when that was reported; the latest last.
    made: Vec<(Vec<Party>, Instant)>,
}

impl WaitRemarks {
    /// The remark to make on a wait, if any. Whoever waits gives up once nothing has come for `limit`, if not sooner.
    pub fn next(
        &mut self,
        waits: Option<&Wait>,
        limit: Option<Duration>,
        now: Instant,
    ) -> Option<String> {
        let Some(waits) = waits.filter(|it| it.elapsed >= SPEAK_AFTER) else {
            self.made.clear();
            return None;
        };
        if let Some((last, at)) = self.made.last()
            && (*last == waits.parties || now.duration_since(*at) < SPEAK_EVERY)
        {
            return None;
        }
        let before = self
            .made
            .iter()
            .position(|(parties, _)| *parties == waits.parties);
        if let Some(index) = before {
            if now.duration_since(self.made[index].1) < REPEAT_AFTER {
                return None;
            }
            self.made.remove(index);
        }
        if self.made.len() >= REMARKS_MAX {
            self.made.remove(0);
        }
        self.made.push((waits.parties.clone(), now));
        Some(sentence(waits, limit))
    }
}

fn sentence(waits: &Wait, limit: Option<Duration>) -> String {
    let left = limit.map(|limit| limit.saturating_sub(waits.elapsed));
    let left = left.into_iter().chain(waits.remaining).min();
    let mut text = format!("waiting for {waits}; ");
    // Writing into a string cannot fail.
    let _ = match left {
        Some(left) => write!(text, "gives up in {:.0}s", left.as_secs_f64().ceil()),
        None => write!(text, "until Ctrl-C ends it"),
    };
    text
}

/// Watches a client from a thread of its own and reports what it waits for, until it is dropped.
pub struct WaitReporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WaitReporter {
    /// Whoever waits gives up once nothing has come for `limit`, if not sooner.
    pub fn start(probe: &WaitProbe, limit: Option<Duration>, progress: &Arc<dyn Progress>) -> Self {
        let (stop, stopped) = channel();
        let (probe, progress) = (probe.clone(), progress.clone());
        let mut remarks = WaitRemarks::default();
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
                let waits = probe.waiting_for();
                if let Some(text) = remarks.next(waits.as_ref(), limit, Instant::now()) {
                    progress.note(&text);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("wait-reporter".into())
            .spawn(watch);
        Self {
            stop: Some(stop),
            // Without the thread the work is the same, and silent.
            thread: thread.ok(),
        }
    }
}

impl Drop for WaitReporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use embar_client::WaitReason;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn waits(reason: WaitReason, waited: Duration, left: Option<Duration>) -> Wait {
        Wait {
            parties: vec![Party {
                broker: Some(1),
                address: None,
                reason,
            }],
            elapsed: waited,
            remaining: left,
        }
    }

    #[test]
    fn a_wait_is_reported_after_a_second_and_when_its_reason_changes() {
        let (mut remarks, start) = (WaitRemarks::default(), Instant::now());
        let mut look = |reason, ms| {
            let at = Duration::from_millis(ms);
            remarks.next(Some(&waits(reason, at, None)), None, start + at)
        };
        assert_eq!(look(WaitReason::Connecting, 999), None);
        assert_eq!(
            look(WaitReason::Connecting, 1000).as_deref(),
            Some("waiting for broker 1 (it is being connected to); until Ctrl-C ends it")
        );
        for ms in [1250, 2500, 60_000] {
            assert_eq!(look(WaitReason::Connecting, ms), None);
        }
        assert!(look(WaitReason::LogFull, 60_250).is_some_and(|it| it.contains("log is full")));
        assert_eq!(look(WaitReason::NotReading, 60_500), None, "too soon");
        assert!(look(WaitReason::NotReading, 61_500).is_some());
        assert_eq!(look(WaitReason::LogFull, 63_000), None, "it comes and goes");
        assert_eq!(look(WaitReason::NotReading, 64_000), None);
        assert!(look(WaitReason::LogFull, 91_000).is_some());
    }

    #[test]
    fn a_new_wait_is_reported_anew() {
        let (mut remarks, now) = (WaitRemarks::default(), Instant::now());
        let wait = waits(WaitReason::Answer, S, None);
        assert!(remarks.next(Some(&wait), None, now).is_some());
        assert_eq!(remarks.next(None, None, now), None);
        assert!(remarks.next(Some(&wait), None, now).is_some());
    }

    #[test]
    fn it_says_when_it_gives_up() {
        for (left, limit, expected) in [
            (Some(3 * S), None, "gives up in 3s"),
            (None, Some(10 * S), "gives up in 8s"),
            (Some(3 * S), Some(10 * S), "gives up in 3s"),
            (Some(30 * S), Some(S), "gives up in 0s"),
        ] {
            let text = sentence(&waits(WaitReason::Answer, 2 * S, left), limit);
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn remarks_are_bounded() {
        let (mut remarks, now) = (WaitRemarks::default(), Instant::now());
        for n in 0..1000u32 {
            let reason = WaitReason::NoAnswer(n.to_string());
            let wait = waits(reason, S, None);
            assert!(remarks.next(Some(&wait), None, now + S * n).is_some());
        }
        assert_eq!(remarks.made.len(), REMARKS_MAX);
    }
}
