//! Lists of changed topics that network threads send to each other. A thread that learns that a topic grew or was
//! deleted tells the others. So each thread looks only at those of its subscribers that wait for such a topic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Topics that an inbox names, at most. When there are more, its thread looks at all topics that its subscribers
/// wait for.
const TOPICS_MAX: usize = 1024;

/// What one thread is to look at.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Whether there is anything. So looking costs no lock.
    filled: AtomicBool,
    topics: Mutex<Grown>,
}

#[derive(Default)]
struct Grown {
    topics: Vec<u32>,
    /// There were more.
    overrun: bool,
}

impl Inbox {
    /// Adds topics that have grown or are gone.
    pub fn notify(&self, topics: &[u32]) {
        let mut grown = self.lock();
        if !grown.overrun {
            let last = grown.topics.last().copied();
            grown
                .topics
                .extend(topics.iter().filter(|topic| Some(**topic) != last));
            if grown.topics.len() > TOPICS_MAX {
                grown.topics.clear();
                grown.overrun = true;
            }
        }
        // Partner: the load in `take`. What the topics are about was stored under the log's lock.
        self.filled.store(true, Ordering::Release);
    }

    /// Appends the topics added since the last call. False when there were too many: then the caller looks at
    /// all.
    #[must_use = "when it is false, the caller looks at all topics"]
    pub fn take(&self, topics: &mut Vec<u32>) -> bool {
        // Partner: the store in `notify`.
        if !self.filled.load(Ordering::Acquire) {
            return true;
        }
        let mut grown = self.lock();
        self.filled.store(false, Ordering::Relaxed);
        topics.append(&mut grown.topics);
        !std::mem::take(&mut grown.overrun)
    }

    fn lock(&self) -> MutexGuard<'_, Grown> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
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
        inbox.notify(&[1, 2]);
        inbox.notify(&[2]);
        inbox.notify(&[3]);
        assert!(inbox.take(&mut topics));
        assert_eq!(topics, [1, 2, 3]);
        let many: Vec<u32> = (0..TOPICS_MAX as u32).collect();
        inbox.notify(&many);
        inbox.notify(&many);
        inbox.notify(&many);
        topics.clear();
        assert!(!inbox.take(&mut topics));
        assert!(topics.is_empty() && inbox.take(&mut topics));
    }
}
