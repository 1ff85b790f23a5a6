//! Tells people on standard error whom a command waits for: once it has waited for a second, and again when the reason is
//! another one.

use std::fmt::Write as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use embar_client::waiting::Party;
use embar_client::{Lookout, Waits};

use crate::output::note;

/// Shorter waits are not worth a word.
const SPEAK_AFTER: Duration = Duration::from_secs(1);
/// Between two words: what lasts shorter is not worth one either.
const SPEAK_EVERY: Duration = Duration::from_secs(1);
/// What was said before, and comes and goes, is not said again for so long.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Things that were said of one wait and are remembered.
const SAID_MAX: usize = 16;
/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What was said of the wait that goes on: decides what is said next.
#[derive(Debug, Default)]
pub struct Told {
    /// The latest last.
    said: Vec<(Vec<Party>, Instant)>,
}

impl Told {
    /// What to say of a wait, if anything. It is given up once nothing has come for `limit`, if not sooner.
    pub fn look(
        &mut self,
        waits: Option<&Waits>,
        limit: Option<Duration>,
        now: Instant,
    ) -> Option<String> {
        let Some(waits) = waits.filter(|it| it.waited >= SPEAK_AFTER) else {
            self.said.clear();
            return None;
        };
        if let Some((last, at)) = self.said.last()
            && (*last == waits.parties || now.duration_since(*at) < SPEAK_EVERY)
        {
            return None;
        }
        let before = self
            .said
            .iter()
            .position(|(parties, _)| *parties == waits.parties);
        if let Some(index) = before {
            if now.duration_since(self.said[index].1) < AGAIN_AFTER {
                return None;
            }
            self.said.remove(index);
        }
        if self.said.len() >= SAID_MAX {
            self.said.remove(0);
        }
        self.said.push((waits.parties.clone(), now));
        Some(sentence(waits, limit))
    }
}

fn sentence(waits: &Waits, limit: Option<Duration>) -> String {
    let left = limit.map(|limit| limit.saturating_sub(waits.waited));
    let left = left.into_iter().chain(waits.left).min();
    let mut text = format!("waiting for {waits}; ");
    // Writing into a string cannot fail.
    let _ = match left {
        Some(left) => write!(text, "gives up in {:.0}s", left.as_secs_f64().ceil()),
        None => write!(text, "until Ctrl-C ends it"),
    };
    text
}

/// Watches a client from a thread of its own while others wait for it. Dropped, it is silent.
pub struct Narrator {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Narrator {
    /// Whoever waits gives up once nothing has come for `limit`, if not sooner.
    pub fn start(lookout: &Lookout, limit: Option<Duration>) -> Self {
        let (stop, stopped) = channel();
        let (lookout, mut told) = (lookout.clone(), Told::default());
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
                let waits = lookout.waits();
                if let Some(text) = told.look(waits.as_ref(), limit, Instant::now()) {
                    note(text);
                }
            }
        };
        let thread = thread::Builder::new().name("narrator".into()).spawn(watch);
        Self {
            stop: Some(stop),
            // Without it the command does the same, and says less.
            thread: thread.ok(),
        }
    }
}

impl Drop for Narrator {
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
    use embar_client::waiting::Reason;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn waits(reason: Reason, waited: Duration, left: Option<Duration>) -> Waits {
        Waits {
            parties: vec![Party {
                broker: Some(1),
                address: None,
                reason,
            }],
            waited,
            left,
        }
    }

    #[test]
    fn a_wait_is_told_once_after_a_second_and_again_when_its_reason_changes() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut look = |reason, ms| {
            let at = Duration::from_millis(ms);
            told.look(Some(&waits(reason, at, None)), None, start + at)
        };
        assert_eq!(look(Reason::Connecting, 999), None);
        assert_eq!(
            look(Reason::Connecting, 1000).as_deref(),
            Some("waiting for broker 1 (it is being connected to); until Ctrl-C ends it")
        );
        for ms in [1250, 2500, 60_000] {
            assert_eq!(look(Reason::Connecting, ms), None);
        }
        assert!(look(Reason::LogFull, 60_250).is_some_and(|it| it.contains("log is full")));
        assert_eq!(look(Reason::NotReading, 60_500), None, "too soon");
        assert!(look(Reason::NotReading, 61_500).is_some());
        assert_eq!(look(Reason::LogFull, 63_000), None, "it comes and goes");
        assert_eq!(look(Reason::NotReading, 64_000), None);
        assert!(look(Reason::LogFull, 91_000).is_some());
    }

    #[test]
    fn a_new_wait_is_told_anew() {
        let (mut told, now) = (Told::default(), Instant::now());
        let wait = waits(Reason::Answer, S, None);
        assert!(told.look(Some(&wait), None, now).is_some());
        assert_eq!(told.look(None, None, now), None);
        assert!(told.look(Some(&wait), None, now).is_some());
    }

    #[test]
    fn it_says_when_it_gives_up() {
        for (left, limit, expected) in [
            (Some(3 * S), None, "gives up in 3s"),
            (None, Some(10 * S), "gives up in 8s"),
            (Some(3 * S), Some(10 * S), "gives up in 3s"),
            (Some(30 * S), Some(S), "gives up in 0s"),
        ] {
            let text = sentence(&waits(Reason::Answer, 2 * S, left), limit);
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn what_was_said_is_bounded() {
        let (mut told, now) = (Told::default(), Instant::now());
        for n in 0..1000u32 {
            let reason = Reason::NoAnswer(n.to_string());
            let wait = waits(reason, S, None);
            assert!(told.look(Some(&wait), None, now + S * n).is_some());
        }
        assert_eq!(told.said.len(), SAID_MAX);
    }
}
