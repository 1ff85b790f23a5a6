//! Has a handler woken when its session's full ring has room again.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use embar_session::{Room, Session};

/// Waits for room in one session's ring, for what the session's handler has left to send.
#[derive(Default)]
pub(crate) struct RoomWatch {
    room: Mutex<Option<Room>>,
    waker: OnceLock<Waker>,
}

struct WakeHandler(Session);

impl Wake for WakeHandler {
    fn wake(self: Arc<Self>) {
        self.0.wake_after(Duration::ZERO);
    }
}

impl RoomWatch {
    /// Has `Handler::woken` called when there is room for `bytes`, or some.
    pub(crate) fn watch(&self, session: &Session, bytes: usize) {
        let waker = self
            .waker
            .get_or_init(|| Arc::new(WakeHandler(session.clone())).into());
        let mut room = self.lock();
        let waiting = room.get_or_insert_with(|| session.room(bytes));
        let polled = Pin::new(waiting).poll(&mut Context::from_waker(waker));
        let done = match polled {
            Poll::Pending => return,
            Poll::Ready(_) => room.take(),
        };
        drop(room);
        // Its place goes to others, whose wakers are anybody's code.
        drop(done);
        // If the session is over, nobody is woken.
        session.wake_after(Duration::ZERO);
    }

    /// The handler was woken: the room that it was promised is free for it to take.
    pub(crate) fn woken(&self) {
        let done = self.lock().take();
        drop(done);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Room>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
