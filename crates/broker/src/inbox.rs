//! Topics that threads of a broker tell each other of, so that each looks only after those of its
//! subscribers that wait for one of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Topics that an inbox names at most; behind that its thread looks at all that its subscribers wait
/// for.
const TOPICS_MAX: usize = 1024;

/// That of one thread.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Whether there is anything, so that looking costs no lock.
    filled: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    topics: Vec<u32>,
    /// There were more.
    overrun: bool,
}

impl Inbox {
    /// Tells of topics that have grown or went.
    pub fn tell(&self, topics: &[u32]) {
        let mut told = self.told();
        if !told.overrun {
            let last = told.topics.last().copied();
            told.topics
                .extend(topics.iter().filter(|topic| Some(**topic) != last));
            if told.topics.len() > TOPICS_MAX {
                told.topics.clear();
                told.overrun = true;
            }
        }
        // Partner: the load in `take`. What the topics are about was stored under the log's lock.
        self.filled.store(true, Ordering::Release);
    }

    /// Appends what was told since the last call. False when that is too much: then everything is to
    /// be looked at.
    #[must_use = "when it is false, everything is to be looked at"]
    pub fn take(&self, topics: &mut Vec<u32>) -> bool {
        // Partner: the store in `tell`.
        if !self.filled.load(Ordering::Acquire) {
            return true;
        }
        let mut told = self.told();
        self.filled.store(false, Ordering::Relaxed);
        topics.append(&mut told.topics);
        !std::mem::take(&mut told.overrun)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_bounded_and_says_when_it_was_overrun() {
        let inbox = Inbox::default();
        let mut topics = Vec::new();
        assert!(inbox.take(&mut topics) && topics.is_empty());
        inbox.tell(&[1, 2]);
        inbox.tell(&[2]);
        inbox.tell(&[3]);
        assert!(inbox.take(&mut topics));
        assert_eq!(topics, [1, 2, 3]);
        let many: Vec<u32> = (0..TOPICS_MAX as u32).collect();
        inbox.tell(&many);
        inbox.tell(&many);
        inbox.tell(&many);
        topics.clear();
        assert!(!inbox.take(&mut topics));
        assert!(topics.is_empty() && inbox.take(&mut topics));
    }
}
