//! Waiting for one thing in both worlds: every wait is a future on wakers of our own, and blocking is polling that
//! future on a parked thread. So there is one mechanism to get right, and no runtime is needed.

use std::future::Future;
use std::pin::pin;
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
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Runs `future` on this thread, parked between its wakes. `None` if `deadline` passed first.
pub(crate) fn block_on<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let mut future = pin!(future);
    UNPARK.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
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
    })
}

/// Tasks that wait for the same condition. It lives inside the lock that guards the condition.
#[derive(Debug, Default)]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    /// Adds the task of `context`, once.
    pub(crate) fn register(&mut self, context: &Context<'_>) {
        if !self.0.iter().any(|waker| waker.will_wake(context.waker())) {
            self.0.push(context.waker().clone());
        }
    }

    /// Takes the list, to be woken after the lock was given back.
    pub(crate) fn take(&mut self) -> Self {
        Self(std::mem::take(&mut self.0))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn wake_all(self) {
        for waker in self.0 {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ready_future_returns_and_a_pending_one_gives_up_at_the_deadline() {
        assert_eq!(block_on(ready(7), None), Some(7));
        let deadline = Instant::now() + Duration::from_millis(5);
        assert_eq!(block_on(pending::<()>(), Some(deadline)), None);
    }

    #[test]
    fn a_task_is_listed_once() {
        let mut list = WakeList::default();
        UNPARK.with(|waker| {
            let context = Context::from_waker(waker);
            list.register(&context);
            list.register(&context);
        });
        assert_eq!(list.0.len(), 1);
        list.take().wake_all();
        assert!(list.is_empty());
    }
}
