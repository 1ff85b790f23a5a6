//! How a broker asks its threads to stop, and how it learns that one died.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What the threads of a broker are to do. It only ever rises: a thread that is to cut its peers never drains
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stop {
    /// Serve.
    Run,
    /// Ask peers to go to other brokers, and end when all of them went.
    Drain,
    /// Close all connections and end.
    Cut,
}

/// The word that all threads of a broker look at in each round, and what became of them.
#[derive(Default)]
pub(super) struct StopSignal {
    stop: AtomicU8,
    failed: AtomicBool,
    overtaken: AtomicBool,
}

impl StopSignal {
    pub fn get(&self) -> Stop {
        // Partner: the store in `request`. Nothing but the word itself is passed by it.
        match self.stop.load(Ordering::Acquire) {
            0 => Stop::Run,
            1 => Stop::Drain,
            _ => Stop::Cut,
        }
    }

    /// Asks for this, unless more was asked for already.
    pub fn request(&self, stop: Stop) {
        // Partner: the load in `get`.
        self.stop.fetch_max(stop as u8, Ordering::Release);
    }

    /// Whether a thread died, or the broker was overtaken.
    pub fn has_failed(&self) -> bool {
        // Partner: the store in `ThreadGuard::fail`.
        self.failed.load(Ordering::Acquire)
    }

    /// Whether the broker was overtaken. Valid after [`StopSignal::has_failed`].
    pub fn is_overtaken(&self) -> bool {
        self.overtaken.load(Ordering::Relaxed)
    }

    /// What a thread holds for as long as it runs.
    pub fn guard(self: &Arc<Self>) -> ThreadGuard {
        ThreadGuard(Arc::clone(self))
    }
}

/// Reports the end of the thread that holds it, if that panics or ends before it was asked to.
pub(super) struct ThreadGuard(Arc<StopSignal>);

impl ThreadGuard {
    /// The broker cannot go on, whatever its threads were asked to do.
    fn fail(&self) {
        // Partner: the load in `has_failed`, after which the reason is visible.
        self.0.failed.store(true, Ordering::Release);
    }

    /// The broker ends because the others went on without it. No thread of it did anything wrong.
    pub fn report_overtaken(&self) {
        self.0.overtaken.store(true, Ordering::Relaxed);
        self.fail();
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        let is_expected = self.0.get() != Stop::Run || self.0.is_overtaken();
        if !is_expected || std::thread::panicking() {
            tracing::error!("a thread of this broker died: the broker cannot go on");
            self.fail();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_dies_while_others_drain_is_noticed() {
        let signal = Arc::new(StopSignal::default());
        signal.request(Stop::Drain);
        drop(signal.guard());
        assert!(!signal.has_failed(), "it ended because it was asked to");
        let guard = signal.guard();
        let died = std::thread::spawn(move || {
            let _guard = guard;
            panic!("on purpose");
        });
        assert!(died.join().is_err() && signal.has_failed());
    }

    #[test]
    fn a_broker_that_cannot_go_on_while_it_drains_has_failed() {
        let signal = Arc::new(StopSignal::default());
        signal.request(Stop::Drain);
        signal.guard().report_overtaken();
        assert!(signal.has_failed() && signal.is_overtaken());
    }

    #[test]
    fn a_thread_that_cuts_its_peers_never_drains_again() {
        let signal = StopSignal::default();
        signal.request(Stop::Cut);
        signal.request(Stop::Drain);
        assert_eq!(signal.get(), Stop::Cut);
    }
}
