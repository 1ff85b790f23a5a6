//! Methods that are futures, on any executor.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::calls::Calls;
use crate::Status;
use crate::protocol::CallNumber;

/// A call of a method that is a future.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns futures on an executor of the user's choice: each call of such a method costs the box that it
/// is in, beside what the executor allocates.
#[derive(Clone)]
pub struct Spawn(Arc<dyn Fn(BoxFuture) + Send + Sync>);

impl Spawn {
    /// Spawns with this, for example `|future| { tokio::spawn(future); }` in a runtime. It is called on
    /// workers of sessions, and must not block.
    pub fn new(spawn: impl Fn(BoxFuture) + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }

    pub(super) fn spawn(&self, future: BoxFuture) {
        (self.0)(future);
    }
}

/// Runs a method until it is done, or nobody waits for it. `None`: it was given up. The error: it
/// panicked.
pub(super) async fn unless_given_up<F: Future>(
    calls: Arc<Calls>,
    number: CallNumber,
    future: F,
) -> Result<Option<F::Output>, Status> {
    // Dropped with this, before whoever awaits it goes on.
    let mut future = pin!(future);
    poll_fn(move |cx| {
        if is_given_up(&calls, number, cx) {
            return Poll::Ready(Ok(None));
        }
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(polled) => polled.map(|output| Ok(Some(output))),
            Err(_) => {
                tracing::error!("a method panicked: its call ends");
                Poll::Ready(Err(Status::internal("the method panicked")))
            }
        }
    })
    .await
}

/// Whether nobody waits for the call; if somebody does, the task is woken when that changes.
fn is_given_up(calls: &Calls, number: CallNumber, cx: &Context<'_>) -> bool {
    let waker = cx.waker();
    let looked = calls.with(number, |call| {
        let same = call.task.as_ref().is_some_and(|task| task.will_wake(waker));
        // The waker from before is dropped without the lock.
        let before = (!same).then(|| call.task.replace(waker.clone()));
        (call.given_up.is_some(), before)
    });
    looked.is_none_or(|(given_up, _)| given_up)
}
