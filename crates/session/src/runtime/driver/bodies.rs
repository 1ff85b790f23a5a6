//! The bodies of one session's frames. The driver asks the handler where to put a body that comes,
//! and receives it there. Bodies to send wait for their turn.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_frame::{Now, Protocol};
use embar_transport::{Body, RecvBuf, Store};

use super::SessionDriver;
use crate::runtime::admission::Network;
use crate::runtime::body_budget::BodyShare;
use crate::runtime::handler::{BodyStore, BodyTarget, Handler};
use crate::runtime::session::Session;
use crate::{CloseReason, Head};

/// A body, or a chunk of one, on its way in; the driver receives its bytes, not the core.
pub(super) struct IncomingBody {
    pub(super) what: Arriving,
    /// `None` while the reactor has it.
    pub(super) buf: Option<RecvBuf>,
}

/// What the driver receives.
pub(super) enum Arriving {
    /// A body in one piece.
    Body {
        share: BodyShare,
        id: u16,
        range: Range<usize>,
    },
    /// `len` bytes of the body in a lane.
    Chunk { lane: usize, len: usize },
}

/// Where the handler wants a body, and what it counts.
pub(super) struct Place {
    pub(super) store: Store,
    pub(super) range: Range<usize>,
    pub(super) share: BodyShare,
}

/// Why a body has no place.
pub(super) enum Unwanted {
    /// There is no memory for it.
    NoMemory(String),
    Refused(String),
    HandlerPanicked,
}

impl Unwanted {
    pub(super) fn text(self) -> Option<String> {
        match self {
            Self::NoMemory(text) | Self::Refused(text) => Some(text),
            Self::HandlerPanicked => None,
        }
    }
}

/// Who knows where bodies go.
pub(super) struct Places<'a> {
    pub(super) handler: &'a mut Option<Box<dyn Handler>>,
    pub(super) session: &'a Session,
    pub(super) network: Option<Network>,
}

impl Places<'_> {
    /// Counts what may come of a body of `len` bytes before it has a place.
    pub(super) fn reserve_window(&self, head: usize, len: usize) -> Result<BodyShare, String> {
        let group = &self.session.0.group;
        let window = group.settings.session.lane_window_bytes as usize;
        group.reserve_body(
            self.network,
            self.session.priority(),
            head + len.min(window),
        )
    }

    /// Asks the handler where a body goes; `Ok(None)` if it has to wait.
    pub(super) fn ask(
        &mut self,
        id: u16,
        head: &[u8],
        len: usize,
    ) -> Result<Option<Place>, Unwanted> {
        let Some(handler) = self.handler.as_mut() else {
            return Err(Unwanted::Refused(String::new()));
        };
        let group = &self.session.0.group;
        // Before anybody makes memory for it.
        let share = group.reserve_body(self.network, self.session.priority(), len);
        let share = share.map_err(Unwanted::NoMemory)?;
        let session = self.session;
        let asked = catch_unwind(AssertUnwindSafe(|| {
            match handler.body(session, id, head, len) {
                BodyTarget::Pause => Ok(None),
                BodyTarget::Refuse(text) => Err(Unwanted::Refused(text)),
                BodyTarget::Into(store, range) => {
                    assert_eq!(
                        range.len(),
                        len,
                        "the place of a body is as long as the body"
                    );
                    // A range beyond the store is the handler's fault, and panics here.
                    let whole = recv_into(store.store, range.clone());
                    let store = whole.into_store();
                    Ok(Some(Place {
                        store,
                        range,
                        share,
                    }))
                }
            }
        }));
        asked.unwrap_or(Err(Unwanted::HandlerPanicked))
    }
}

/// Receives into `range` of what a handler gave.
pub(super) fn recv_into(store: Store, range: Range<usize>) -> RecvBuf {
    match store {
        Store::Heap(bytes) => RecvBuf::heap(bytes, range),
        Store::Reserved(reservation) => RecvBuf::reserved(reservation, range),
        Store::Ring(_) | Store::Lent(..) => unreachable!("no handler has a ring's space"),
    }
}

/// Where a body in one piece goes, with what came of it already.
pub(super) type Asked = Result<Option<(u16, Range<usize>, BodyShare, RecvBuf)>, Unwanted>;

/// Asks the handler.
pub(super) fn ask_for_body(mut places: Places<'_>, head: &Head<'_>) -> Asked {
    let place = places.ask(head.id(), head.head(), head.body_len())?;
    Ok(place.map(|place| {
        let mut buf = recv_into(place.store, place.range.clone());
        buf.fill(head.early());
        (head.id(), place.range, place.share, buf)
    }))
}

impl<P: Protocol> SessionDriver<P> {
    /// A receive that the core or a body asked for is over.
    pub(super) fn got(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        if matches!(result, Ok(1..)) {
            self.session.0.counters.reads.add(1);
        }
        // While a body arrives the core receives nothing.
        if self.incoming_body.as_ref().is_none_or(|a| a.buf.is_some()) {
            return self.core.received(buf, result, now);
        }
        let beyond = buf.overflow();
        match result {
            Ok(count @ 1..) => self.core.body_received(count - beyond, now),
            _ => {
                if let (_, Some(space)) = buf.into_parts() {
                    self.core.ahead_received(space, 0, now);
                }
                self.incoming_body = None;
                return self.core.end_of_stream(result, now);
            }
        }
        if self.core.is_ending() {
            // The rest of it goes where all else goes now.
            if let (_, Some(space)) = buf.into_parts() {
                self.core.ahead_received(space, beyond, now);
            }
            self.incoming_body = None;
            return self.core.discard_body(now);
        }
        self.body_goes_on(buf, now);
    }

    /// Asks for what is missing of a body, or hands it over.
    pub(super) fn body_goes_on(&mut self, buf: RecvBuf, now: Now) {
        if buf.remaining() > 0 {
            if let Some(incoming_body) = &mut self.incoming_body {
                incoming_body.buf = Some(buf);
            }
            return;
        }
        let beyond = buf.overflow();
        let (store, ahead) = buf.into_parts();
        if let Some(space) = ahead {
            self.core.ahead_received(space, beyond, now);
        }
        let Some(incoming) = self.incoming_body.take() else {
            return;
        };
        match incoming.what {
            Arriving::Body { share, id, range } => {
                let store = BodyStore::counted(store, share);
                self.call_handler(now, |handler, session| {
                    handler.body_done(session, id, store, range);
                });
            }
            Arriving::Chunk { lane, len } => self.chunk_done(lane, len, store, now),
        }
    }

    /// Goes on with a body in one piece, if the handler has a place for it. False: nothing more can
    /// be delivered now.
    pub(super) fn begin_body(&mut self, asked: Asked, now: Now) -> bool {
        match asked {
            Ok(Some((id, range, share, buf))) => {
                self.incoming_body = Some(IncomingBody {
                    what: Arriving::Body { share, id, range },
                    buf: None,
                });
                return self.first_of_body(buf, usize::MAX, now);
            }
            Ok(None) => return self.pause(now),
            Err(Unwanted::NoMemory(text)) => self.core.fail(CloseReason::OutOfMemory, &text, now),
            Err(Unwanted::Refused(text)) => self.core.refuse(0, &text, now),
            Err(Unwanted::HandlerPanicked) => self.handler_panicked(now),
        }
        // The peer's own end comes behind it.
        self.core.discard_body(now);
        true
    }

    /// The first of a body is in the buffer already; true if that was all of it. Up to `ahead` bytes
    /// of what follows may come with its last ones.
    pub(super) fn first_of_body(&mut self, buf: RecvBuf, ahead: usize, now: Now) -> bool {
        let complete = buf.remaining() == 0;
        let pace = self.pace.as_ref();
        let ahead = pace.map_or(ahead, |pace| pace.read_ahead(ahead));
        let space = match complete {
            true => None,
            false => self.core.lend_ahead(ahead),
        };
        let buf = match space {
            Some(space) => buf.then(space),
            None => buf,
        };
        self.body_goes_on(buf, now);
        complete
    }

    /// Whether bodies wait for their turn, or one is on its way.
    pub(super) fn has_bodies(&self) -> bool {
        let sending = self.core.is_open() && !self.core.may_send_body();
        sending || self.session.0.has_bodies()
    }

    /// Hands the core bodies to send, when it is their turn.
    pub(super) fn feed_body(&mut self) {
        let mut may_go = self.core.may_send_body();
        if may_go && let Some(sent) = self.body_sending.take() {
            self.session.0.give_body_room(sent);
            // Bodies in one piece, one after the other, leave chunks their turns.
            self.core.send_chunk();
            may_go = self.core.may_send_body();
        }
        if !self.session.0.has_bodies() {
            return;
        }
        while let Some(queued) = self.session.0.next_body(may_go) {
            self.session.0.counters.bodies_sent.add(1);
            let size = queued.size();
            if let Some(lane) = queued.lane {
                // What is behind its place may follow now.
                self.lane_bodies.push_back((lane.number, size));
                self.core.queue_body(lane, queued.bytes);
                continue;
            }
            let body = Body::Shared(queued.bytes);
            self.core.send_body(queued.place.to_vec(), body);
            self.body_sending = Some(size);
            self.body_place = Some(queued.place);
            return;
        }
        self.core.send_chunk();
        self.forget_lane_bodies();
    }

    /// Gives back what bodies in lanes took of which nothing is to be sent any more.
    fn forget_lane_bodies(&mut self) {
        while let Some(number) = self.core.next_body_over() {
            // One of the first, as each lane has its order.
            let at = self.lane_bodies.iter().position(|it| it.0 == number);
            if let Some((_, size)) = at.and_then(|at| self.lane_bodies.remove(at)) {
                self.session.0.lane_body_over(size);
            }
        }
    }

    /// Other threads gave bodies up.
    pub(super) fn cancel_bodies(&mut self) {
        for number in self.session.0.take_cancelled() {
            self.core.cancel_body(number);
        }
        self.forget_lane_bodies();
    }
}
