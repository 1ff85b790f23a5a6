//! The bodies of one session's frames. The driver asks the handler where to put a body that comes,
//! and receives it there. Bodies to send wait for their turn.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use embar_frame::{Now, Protocol};
use embar_transport::{Body, BudgetShare, RecvBuf, Store};

use super::SessionDriver;
use crate::Head;
use crate::runtime::handler::{BodyStore, BodyTarget, Handler};
use crate::runtime::session::Session;

/// A body on its way in; the driver receives its bytes, not the core.
pub(super) struct IncomingBody {
    share: BudgetShare,
    id: u16,
    range: Range<usize>,
    /// `None` while the reactor has it.
    pub(super) buf: Option<RecvBuf>,
}

/// Where a body goes: `Ok(None)` if it has to wait, `Err` with the text of a refusal or without one
/// after a panic.
pub(super) type AskedBody = Result<Option<(u16, (RecvBuf, Range<usize>))>, Option<String>>;

/// Asks the handler.
pub(super) fn ask_for_body(
    handler: &mut Option<Box<dyn Handler>>,
    session: &Session,
    head: &Head<'_>,
) -> AskedBody {
    let Some(handler) = handler else {
        return Err(Some(String::new()));
    };
    let (id, len) = (head.id(), head.body_len());
    let asked = catch_unwind(AssertUnwindSafe(|| {
        match handler.body(session, id, head.head(), len) {
            BodyTarget::Pause => Ok(None),
            BodyTarget::Refuse(text) => Err(Some(text)),
            BodyTarget::Into(store, range) => {
                assert_eq!(
                    range.len(),
                    len,
                    "the place of a body is as long as the body"
                );
                let mut buf = match store.store {
                    Store::Heap(bytes) => RecvBuf::heap(bytes, range.clone()),
                    Store::Reserved(reservation) => RecvBuf::reserved(reservation, range.clone()),
                    Store::Ring(_) | Store::Lent(..) => {
                        unreachable!("no handler has a ring's space")
                    }
                };
                buf.fill(head.early());
                Ok(Some((id, (buf, range))))
            }
        }
    }));
    asked.unwrap_or(Err(None))
}

impl<P: Protocol> SessionDriver<P> {
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
        let Some(IncomingBody {
            id, range, share, ..
        }) = self.incoming_body.take()
        else {
            return;
        };
        let store = BodyStore {
            store,
            _share: Some(share),
        };
        self.call_handler(now, |handler, session| {
            handler.body_done(session, id, store, range);
        });
    }

    /// The first of a body is in the buffer already; true if that was all of it.
    pub(super) fn begin_body(
        &mut self,
        id: u16,
        (buf, range): (RecvBuf, Range<usize>),
        share: BudgetShare,
        now: Now,
    ) -> bool {
        self.incoming_body = Some(IncomingBody {
            share,
            id,
            range,
            buf: None,
        });
        let complete = buf.remaining() == 0;
        // What follows the body may come with its last bytes.
        let ahead = if complete {
            None
        } else {
            self.core.lend_ahead(usize::MAX)
        };
        let buf = match ahead {
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

    /// Hands the core a body to send, when it is its turn.
    pub(super) fn feed_body(&mut self) {
        if !self.core.may_send_body() {
            return;
        }
        if let Some(sent) = self.body_sending.take() {
            self.session.0.give_body_room(sent);
        }
        let Some(queued) = self.session.0.next_body() else {
            return;
        };
        let body = Body::Shared(Arc::clone(&queued.bytes));
        self.core.send_body(queued.place.to_vec(), body);
        self.body_sending = Some(queued.bytes.len());
        self.body_place = Some(queued.place);
        self.session.0.counters.bodies_sent.add(1);
    }
}
