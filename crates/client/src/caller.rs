//! Which thread of the application uses a client, for tools that look from outside: beside it others may do something else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// A thread of an application that uses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallingThread {
    /// Its number, as `/proc/PID/task` has it.
    pub thread: u32,
    /// Batches that it began, or took, by this handle or subscriber. Those of a thread that used it before are among them.
    pub batches: u64,
}

thread_local! {
    static THREAD: u32 = rustix::thread::gettid().as_raw_pid().unsigned_abs();
}

/// The thread that used a handle or a subscriber last. Written for each batch, and not for each message.
#[derive(Debug, Default)]
pub(crate) struct LastCaller {
    thread: AtomicU32,
    batches: AtomicU64,
}

impl LastCaller {
    /// The calling thread begins a batch, or takes one.
    pub(crate) fn calls(&self) {
        // Figures for tools, which nothing depends on.
        THREAD.with(|thread| self.thread.store(*thread, Ordering::Relaxed));
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// `None` if nobody has used it.
    pub(crate) fn told(&self) -> Option<CallingThread> {
        let batches = self.batches.load(Ordering::Relaxed);
        (batches > 0).then(|| CallingThread {
            thread: self.thread.load(Ordering::Relaxed),
            batches,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_called_last_is_told() {
        let caller = LastCaller::default();
        assert_eq!(caller.told(), None);
        caller.calls();
        let own = caller.told().expect("it was used");
        let path = format!("/proc/self/task/{}", own.thread);
        assert!(std::fs::exists(path).expect("/proc"));
        std::thread::scope(|scope| scope.spawn(|| caller.calls()).join().expect("no panic"));
        let other = caller.told().expect("it was used");
        assert_ne!(other.thread, own.thread);
        assert_eq!(other.batches, 2);
    }
}
