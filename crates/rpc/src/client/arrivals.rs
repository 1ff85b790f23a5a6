//! The handler of a channel's session: puts what comes into the slots of the calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_session::{Closed, Farewell, Flow, Goodbye, Handler, Kept, Message, Session};

use embar_transport::waiters::wake;

use super::slot::{Arrived, Slot};
use super::table::Table;
use crate::Status;
use crate::protocol::{CallNumber, EndFrame, Greeting, ITEM_START, frame};

/// Messages that are copied at once after a look at all slots found nothing to copy.
const COPIES: u32 = 64;

/// The handler.
pub(super) struct Arrivals {
    table: Arc<Table>,
    /// So many more messages are copied before the slots are looked at again.
    copies: u32,
}

impl Arrivals {
    pub(super) fn new(table: Arc<Table>) -> Self {
        Self { table, copies: 0 }
    }

    /// Keeps a message in the ring, unless too much of it is kept. Replies that nobody has taken yet
    /// do not count: they are copied to make room.
    fn keep(&mut self, message: &Message<'_>) -> Option<Kept> {
        if let Ok(kept) = message.keep() {
            self.copies = 0;
            return Some(kept);
        }
        if self.copies > 0 {
            self.copies -= 1;
            return None;
        }
        if !self.table.copy_kept() {
            self.copies = COPIES;
            return None;
        }
        message.keep().ok()
    }

    fn ended(&mut self, message: &Message<'_>) -> Option<(CallNumber, Arrived)> {
        let content = message.payload();
        let call = CallNumber::of(content)?;
        let stream = message.id() == frame::END;
        let end = EndFrame::parse(content);
        // Also of what is not kept: what is in the ring before it must go, if it is too much.
        let kept = self.keep(message);
        let take_end = |slot: &mut Slot| match end {
            Some(end) if end.is_ok() => Ok(slot.bytes(kept, content, end.start)),
            Some(end) => Err(end.status()),
            None => Err(Status::internal("the server's frame is damaged")),
        };
        let mut slot = self.table.slot(call.slot)?;
        Some((call, slot.ended(call.generation, stream, take_end)))
    }

    fn item(&mut self, message: &Message<'_>) -> Option<(CallNumber, Arrived)> {
        let content = message.payload();
        let call = CallNumber::of(content)?;
        let kept = self.keep(message);
        let mut slot = self.table.slot(call.slot)?;
        let arrived = slot.item(call.generation, content.len(), |slot| {
            slot.bytes(kept, content, ITEM_START)
        });
        Some((call, arrived))
    }
}

impl Handler for Arrivals {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let greeting = Greeting::parse(greeting);
        self.table.open(session, greeting.max_in_flight);
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let arrived = match message.id() {
            frame::ITEM => self.item(&message),
            _ => self.ended(&message),
        };
        let stray = || self.table.strays.fetch_add(1, Ordering::Relaxed);
        match arrived {
            None | Some((_, Arrived::Stray)) => drop(stray()),
            Some((_, Arrived::Told(waker))) => waker.into_iter().for_each(wake),
            Some((call, Arrived::Failed(waker))) => {
                waker.into_iter().for_each(wake);
                self.table.cancel(call);
            }
            Some((call, Arrived::Free)) => self.table.give_back(call.slot),
        }
        Flow::Continue
    }

    fn woken(&mut self, session: &Session) {
        self.table.woken(session);
    }

    fn goodbye(&mut self, _: &Session, goodbye: &Goodbye<'_>) {
        self.table.leave_server(Farewell::from(goodbye));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        self.table.end(why);
    }
}
