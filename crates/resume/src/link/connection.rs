//! The connection that a session has at the time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use embar_session::{Room, SendError, Session};

use crate::wire::{Control, MAX_CONTROL_BYTES};

/// A connection that is open.
pub(super) struct Connection {
    pub(super) session: Session,
    /// Room of its ring that messages leave free.
    pub(super) reserve: usize,
    waker: Waker,
    /// The wait for room; while there is one, messages wait.
    pub(super) room: Option<Room>,
    /// It was asked for the last acknowledgement.
    pub(super) asked: bool,
}

/// Wakes a connection's handler.
struct WakeHandler(Session);

impl Wake for WakeHandler {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_after(Duration::ZERO);
    }
}

impl Connection {
    pub(super) fn new(session: &Session) -> Self {
        Self {
            session: session.clone(),
            reserve: session.reply_room() + MAX_CONTROL_BYTES,
            waker: Arc::new(WakeHandler(session.clone())).into(),
            room: None,
            asked: false,
        }
    }

    /// Whether `len` bytes fit; if not, the handler is woken when they may.
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        loop {
            if self.session.has_room(len) {
                return true;
            }
            let mut room = self.session.room(len);
            let mut context = Context::from_waker(&self.waker);
            match Pin::new(&mut room).poll(&mut context) {
                Poll::Ready(Ok(())) => {}
                // Its handler hears of the end.
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {
                    self.room = Some(room);
                    return false;
                }
            }
        }
    }

    pub(super) fn say(&mut self, control: Control) -> bool {
        let sent = control.send_on(&self.session);
        if sent == Err(SendError::Full) && self.room.is_none() {
            // If there is room by now, the next message or timer says it.
            self.has_room(MAX_CONTROL_BYTES);
        }
        sent.is_ok()
    }
}
