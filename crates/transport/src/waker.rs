//! Waking a sleeping reactor from another thread.
//!
//! A wake costs a system call only when the reactor sleeps: the state below says whether it
//! does. Nothing is lost, because the reactor declares its sleep with a compare-and-swap that
//! fails when a thread woke it before, and takes the notice back *before* its user looks at the
//! queues the notice is about.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const NOTIFIED: u32 = 2;

/// Whether the reactor sleeps, is awake, or has been notified since it last looked.
#[derive(Debug)]
struct State(AtomicU32);

impl State {
    /// True if the caller must also interrupt the sleep.
    ///
    /// Release: what the caller wrote before is seen by the reactor that takes the notice.
    /// Acquire is not needed for data, but the swap must be a read-modify-write: a plain load
    /// could see an old `NOTIFIED` and skip the notice that the reactor has just taken.
    fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }

    /// True if the reactor may sleep; false if it was notified.
    fn try_sleep(&self) -> bool {
        self.0
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Ends a sleep, and takes the notice if there is one. Acquire pairs with `notify`.
    fn take(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    fn is_notified(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NOTIFIED
    }
}

#[derive(Debug)]
struct Shared {
    state: State,
    event: OwnedFd,
}

/// Wakes one reactor. Cheap to clone, usable from every thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// Makes the reactor report [`Completion::Woken`](crate::Completion::Woken) from its current
    /// or its next poll. Several calls before that poll are reported once. What the caller wrote
    /// before this call is visible to the thread that polls, once it got the report.
    pub fn wake(&self) {
        if self.0.state.notify() {
            let one = 1u64.to_ne_bytes();
            // The only failures are a full counter (which is a pending wake already; at one wake
            // per nanosecond it takes centuries) and a bad descriptor, which ownership rules out.
            let _ = rustix::io::write(&self.0.event, &one);
        }
    }
}

/// The reactor's end of its [`Waker`]s.
#[derive(Debug)]
pub(crate) struct Sleeper(Arc<Shared>);

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared {
            state: State(AtomicU32::new(AWAKE)),
            event,
        })))
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.0))
    }

    /// Call before a wait that may block. False: do not block, a notice is there.
    pub(crate) fn try_sleep(&self) -> bool {
        self.0.state.try_sleep()
    }

    /// Call after every wait, blocked or not: true if there was a notice, which is now taken.
    pub(crate) fn take(&self) -> bool {
        self.0.state.take()
    }

    /// As [`Sleeper::take`], for a reactor that did not sleep: free of charge without a notice.
    pub(crate) fn take_awake(&self) -> bool {
        self.0.state.is_notified() && self.0.state.take()
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_notice_before_the_sleep_prevents_it() {
        let state = State(AtomicU32::new(AWAKE));
        assert!(!state.notify(), "nobody sleeps, nothing to interrupt");
        assert!(!state.try_sleep());
        assert!(state.take());
        assert!(!state.take(), "a notice is taken once");
    }

    #[test]
    fn only_the_first_notice_of_a_sleep_interrupts_it() {
        let state = State(AtomicU32::new(AWAKE));
        assert!(state.try_sleep());
        assert!(state.notify());
        assert!(!state.notify());
        assert!(state.take());
    }

    #[test]
    fn a_sleep_that_ends_by_itself_takes_nothing() {
        let state = State(AtomicU32::new(AWAKE));
        assert!(state.try_sleep());
        assert!(!state.take());
        assert!(!state.is_notified());
    }
}

/// All interleavings: `RUSTFLAGS="--cfg loom" cargo test -p embar-transport --lib --release`.
#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    /// A wake that got lost would leave the consumer in `event.wait`, which the model reports as
    /// a deadlock.
    #[test]
    fn no_wake_is_lost_and_its_reason_is_seen() {
        const ITEMS: usize = 2;
        loom::model(|| {
            let state = Arc::new(State(AtomicU32::new(AWAKE)));
            let event = Arc::new(Notify::new());
            let items = Arc::new(AtomicUsize::new(0));
            let producer = {
                let (state, event, items) = (state.clone(), event.clone(), items.clone());
                loom::thread::spawn(move || {
                    for item in 1..=ITEMS {
                        items.store(item, Ordering::Relaxed);
                        if state.notify() {
                            event.notify();
                        }
                    }
                })
            };
            let mut seen = 0;
            while seen < ITEMS {
                if !(state.is_notified() && state.take()) {
                    if state.try_sleep() {
                        event.wait();
                    }
                    if !state.take() {
                        continue;
                    }
                }
                let now = items.load(Ordering::Relaxed);
                assert!(now >= seen, "items went back");
                assert!(now > 0, "a notice without its reason");
                seen = now;
            }
            producer.join().unwrap();
        });
    }
}
