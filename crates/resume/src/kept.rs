//! A session's receiving side: its handler, and what it has handled, over all connections.
//!
//! Who holds the seat may call the handler. Order of locks: seat, then table, plan or link, then schedule. Nobody takes a link's
//! lock with the table's: encoders run under it, and may ask the keeper.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_session::{Flow, Message, Session};

use crate::farewell;
use crate::handler::Handler;
use crate::inbox::{AckDue, Inbox};
use crate::link::{Effect, Link};
use crate::resumable::Resumable;
use crate::schedule::Schedule;
use crate::settings::Replay;
use crate::state::End;
use crate::wire::{Control, RESERVED_ID, Speaker};

/// A session that is kept over its connections; `X` is what its end keeps beside.
pub(crate) struct Kept<X> {
    pub(crate) session: Resumable,
    seat: Mutex<Seat<X>>,
}

pub(crate) struct Seat<X> {
    /// Until the session is over.
    pub(crate) handler: Option<Box<dyn Handler>>,
    /// Of the connection whose messages count.
    pub(crate) generation: u64,
    pub(crate) inbox: Inbox,
    /// The handler knows it as open.
    pub(crate) live: bool,
    pub(crate) own: X,
}

impl<X> Kept<X> {
    pub(crate) fn new(
        handler: Box<dyn Handler>,
        replay: &Replay,
        schedule: &Arc<Schedule>,
        own: X,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let link = Link::new(id, replay.clone(), Arc::clone(schedule));
        Self {
            session: Resumable(Arc::new(link)),
            seat: Mutex::new(Seat {
                handler: Some(handler),
                generation: 0,
                inbox: Inbox::new(0),
                live: false,
                own,
            }),
        }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.session.0
    }

    /// May wait until a handler's call is over.
    pub(crate) fn seat(&self) -> MutexGuard<'_, Seat<X>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its handler panicked with a message: its connection reports that, and the session ends.
    pub(crate) fn is_broken(&self) -> bool {
        self.seat.is_poisoned()
    }

    /// The end of a session whose handler panicked with a message, however its connection ended.
    pub(crate) fn panicked(&self) -> Option<End> {
        self.is_broken().then_some(End::Panicked)
    }

    /// A message came by the connection `generation`. Its handler may panic, which is its connection's to catch.
    pub(crate) fn message(&self, generation: u64, session: &Session, message: Message<'_>) -> Flow {
        let mut seat = self.seat();
        let seat = &mut *seat;
        let Some(handler) = seat.handler.as_mut() else {
            return Flow::Continue;
        };
        if seat.generation != generation {
            return Flow::Continue;
        }
        let flow = handler.message(&self.session, message);
        if flow == Flow::Continue {
            let due = seat.inbox.handled(message.payload().len());
            self.count(seat);
            match due {
                AckDue::Now => self.acknowledge(seat),
                AckDue::Soon => session.wake_after(self.link().replay.ack_delay),
                AckDue::AsPlanned => {}
            }
        }
        flow
    }

    /// What the link tells the peer is what the seat has.
    pub(crate) fn count(&self, seat: &Seat<X>) {
        let number = seat.inbox.number();
        self.link().handled.store(number, Ordering::Relaxed);
    }

    fn acknowledge(&self, seat: &mut Seat<X>) {
        self.link().acknowledge(seat.generation);
        seat.inbox.told();
    }

    /// Something between the messages came.
    pub(crate) fn control(&self, generation: u64, payload: &[u8], by: Speaker) -> Effect {
        let seat = self.seat();
        if seat.generation != generation {
            return Effect::None;
        }
        let link = self.link();
        let control = Control::read(payload, by);
        match control.and_then(|control| link.control(generation, control)) {
            Ok(effect) => effect,
            Err(text) => {
                link.kill(End::BadPeer { text });
                Effect::None
            }
        }
    }

    /// Its time is there, or room in the ring.
    pub(crate) fn woken(&self, generation: u64) {
        let mut seat = self.seat();
        if seat.generation != generation {
            return;
        }
        if seat.inbox.owes() {
            self.acknowledge(&mut seat);
        }
        self.link().woken(generation);
        if self.link().is_wake_due() && !self.call(&mut seat, |it, session| it.woken(session)) {
            self.link().kill(End::Panicked);
        }
    }

    /// Calls the handler. False: it panicked, and the session is to end.
    pub(crate) fn call(
        &self,
        seat: &mut Seat<X>,
        call: impl FnOnce(&mut dyn Handler, &Resumable),
    ) -> bool {
        let Some(handler) = seat.handler.as_mut() else {
            return true;
        };
        let called = catch_unwind(AssertUnwindSafe(|| call(&mut **handler, &self.session)));
        if called.is_err() {
            tracing::error!(
                session = self.session.id(),
                "a handler panicked: its session ends"
            );
        }
        called.is_ok()
    }

    /// The session is over, whatever its connection does; the handler learns it, as the last thing.
    pub(crate) fn end(&self, seat: &mut Seat<X>, why: End) {
        let Some(mut handler) = seat.handler.take() else {
            return;
        };
        seat.live = false;
        seat.generation += 1;
        let link = self.link();
        if let Some(session) = link.begin(seat.generation) {
            farewell::part(&session, &why);
        }
        link.schedule.forget(link.id);
        let ended = link.end(why);
        let told = catch_unwind(AssertUnwindSafe(move || {
            handler.closed(&self.session, &ended);
            drop(handler);
        }));
        if told.is_err() {
            tracing::error!(
                session = self.session.id(),
                "a handler panicked while its session closed"
            );
        }
    }
}

/// Whether a message is one between those of the program.
pub(crate) fn is_control(message: &Message<'_>) -> bool {
    message.id() == RESERVED_ID
}
