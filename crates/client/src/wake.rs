//! How a thread or an async task of an application waits for a client. Every wait is a future; a thread that blocks
//! polls it and parks in between. So both work in one way, and no async runtime is needed.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Instant;

use embar_transport::park;

/// Runs `future` on this thread, parked between its wakes. `None` if `deadline` passed first.
pub(crate) fn block_on<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    let mut future = pin!(future);
    park::block_on(deadline, |cx| future.as_mut().poll(cx))
}

/// Tasks that wait for the same condition. It lives inside the lock that guards the condition. Most often there is one,
/// which takes no memory.
#[derive(Debug, Default)]
pub(crate) struct WakeList {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl WakeList {
    /// Adds the task of `context`, once.
    pub(crate) fn register(&mut self, context: &Context<'_>) {
        if self.wakers().any(|waker| waker.will_wake(context.waker())) {
            return;
        }
        let waker = context.waker().clone();
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.others.push(waker),
        }
    }

    /// Takes the list, to be woken after the lock was given back.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Adds those of another list.
    pub(crate) fn append(&mut self, list: Self) {
        for waker in list.first.into_iter().chain(list.others) {
            self.register(&Context::from_waker(&waker));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn wake_all(self) {
        for waker in self.first.into_iter().chain(self.others) {
            waker.wake();
        }
    }

    fn wakers(&self) -> impl Iterator<Item = &Waker> {
        self.first.iter().chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::task::Wake;
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
        struct Task;
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let mut list = WakeList::default();
        let waker = Waker::from(Arc::new(Task));
        let context = Context::from_waker(&waker);
        list.register(&context);
        list.register(&context);
        assert_eq!(list.wakers().count(), 1);
        let another = Waker::from(Arc::new(Task));
        list.register(&Context::from_waker(&another));
        let mut joined = WakeList::default();
        joined.append(list.take());
        assert_eq!(list.wakers().count(), 0);
        assert_eq!(joined.wakers().count(), 2);
        joined.wake_all();
    }
}
