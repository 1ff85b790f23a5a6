//! What async code hears of a peer that says goodbye.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_transport::waiters::{Outworn, Place};

use super::Queue;
use crate::Goodbye;

/// What a peer said that asks for nothing new and closes soon: a [`Goodbye`], to be had for long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Farewell {
    /// Why, for people; may be empty.
    pub text: String,
    /// Where the peer asks this end to connect instead; nobody has checked it, see [`Goodbye::redirect`].
    pub redirect: Option<String>,
    /// How long to wait before that.
    pub after: Duration,
}

impl From<&Goodbye<'_>> for Farewell {
    fn from(goodbye: &Goodbye<'_>) -> Self {
        Self {
            text: goodbye.text.to_owned(),
            redirect: goodbye.redirect.map(str::to_owned),
            after: goodbye.after,
        }
    }
}

/// The wait for a goodbye of the peer; see [`AsyncSession::farewell`](super::AsyncSession::farewell). Ready with the latest, or with `None` if the session
/// ended without one.
#[must_use = "it waits when it is awaited"]
pub struct FarewellWait {
    queue: Arc<Queue>,
    place: Option<Place>,
}

impl FarewellWait {
    pub(super) fn new(queue: &Arc<Queue>) -> Self {
        Self {
            queue: Arc::clone(queue),
            place: None,
        }
    }
}

impl Future for FarewellWait {
    type Output = Option<Farewell>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Farewell>> {
        // Before the lock, as both run anybody's code.
        let mut outworn = Outworn::default();
        let waker = cx.waker().clone();
        let Self { queue, place } = &mut *self;
        let mut state = queue.lock();
        if state.farewell.is_some() || state.ended.is_some() {
            return Poll::Ready(state.farewell.clone());
        }
        state.farewell_waiters.wait(place, 1, waker, &mut outworn);
        Poll::Pending
    }
}

impl Drop for FarewellWait {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut outworn = Outworn::default();
            self.queue
                .lock()
                .farewell_waiters
                .leave(place, &mut outworn);
        }
    }
}
