//! Waits of threads, by the same futures that async code polls.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use embar_session::is_worker;

use crate::Status;

/// Wakes one thread.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

thread_local! {
    /// Made with the first wait of the thread, so that later ones allocate nothing.
    static PARKED: OnceCell<(Arc<Parked>, Waker)> = const { OnceCell::new() };
}

/// Refuses to block the thread that would have to end the wait.
pub(crate) fn may_block() -> Result<(), Status> {
    match is_worker() {
        true => Err(Status::failed_precondition(
            "a handler must not wait: do this in a task or on another thread",
        )),
        false => Ok(()),
    }
}

/// Polls `future` until it is ready, or until `deadline`: `None` then.
pub(crate) fn block_on<F: Future + Unpin>(
    future: &mut F,
    deadline: Option<Instant>,
) -> Option<F::Output> {
    PARKED.with(|parked| {
        let (parked, waker) = parked.get_or_init(|| {
            let parked = Arc::new(Parked {
                thread: thread::current(),
                woken: AtomicBool::new(false),
            });
            let waker = Waker::from(Arc::clone(&parked));
            (parked, waker)
        });
        let mut context = Context::from_waker(waker);
        loop {
            // Before the poll: whoever wakes after it is seen by the wait.
            parked.woken.store(false, Ordering::Relaxed);
            if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
                return Some(output);
            }
            while !parked.woken.load(Ordering::Acquire) {
                match deadline {
                    None => thread::park(),
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            return None;
                        }
                        thread::park_timeout(left);
                    }
                }
            }
        }
    })
}
