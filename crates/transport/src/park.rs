//! Blocks a thread until something that is polled is ready. So what is made for async code also
//! serves threads, without a runtime.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Always the same one: waiting again allocates nothing, and nothing takes it
    /// for the waker of another thread.
    static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Polls until it is ready, and parks the thread between the wakes. `None`: `deadline` passed
/// first. It is polled once at least.
pub fn block_on<R>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>,
) -> Option<R> {
    let waker = WAKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = poll(&mut context) {
            return Some(result);
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_ends_when_it_is_ready_or_at_the_deadline() {
        assert_eq!(block_on(None, |_| Poll::Ready(7)), Some(7));
        let deadline = Instant::now() + Duration::from_millis(5);
        assert_eq!(block_on(Some(deadline), |_| Poll::<()>::Pending), None);
        assert!(Instant::now() >= deadline);
    }

    #[test]
    fn a_wake_of_another_thread_ends_the_sleep() {
        let mut polled = 0;
        let ready = block_on(None, |cx| {
            polled += 1;
            if polled == 2 {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        });
        assert_eq!((ready, polled), (Some(()), 2));
    }
}
