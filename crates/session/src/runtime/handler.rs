//! What a user of sessions writes: the handler of one session.

use std::ops::Range;

use embar_memory::Reservation;
use embar_transport::{Mapped, Store};

use super::body_budget::BodyShare;
use super::datagrams::Datagram;
use super::session::Session;
use super::status::StatusAnswer;
use crate::{Closed, Goodbye, Message};

/// Whether a message was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It was; the ring's space is free again.
    Continue,
    /// It was not: it comes again after [`Session::resume`], and until then nothing else of this
    /// session does. The peer notices once its messages fill the rings and the sockets between.
    Pause,
}

/// Where the body of a frame goes; see [`Handler::body`].
#[derive(Debug)]
pub enum BodyTarget {
    /// Into `range` of memory that the handler provides; the range is as long as the body.
    Into(BodyStore, Range<usize>),
    /// Nowhere yet: [`Handler::body`] is asked again after [`Session::resume`]. Of a body in a lane,
    /// this holds up its lane alone; else, all that the session receives.
    Pause,
    /// The session ends with this reason. Of a body in a lane, only the body does.
    Refuse(String),
}

impl BodyTarget {
    /// Into a fresh `Vec` of `len` bytes.
    #[must_use]
    pub fn heap(len: usize) -> Self {
        Self::Into(BodyStore::of(Store::Heap(vec![0; len])), 0..len)
    }

    /// Into `bytes[range]`.
    #[must_use]
    pub fn buffer(bytes: Vec<u8>, range: Range<usize>) -> Self {
        Self::Into(BodyStore::of(Store::Heap(bytes)), range)
    }

    /// Into `range` of a reserved range of payload memory.
    #[must_use]
    pub fn reserved(reservation: Reservation<Mapped>, range: Range<usize>) -> Self {
        Self::Into(BodyStore::of(Store::Reserved(reservation)), range)
    }
}

/// Memory that a body is received into. With a body in it, it counts in the
/// [budget](crate::Settings::budget) of its session until it is dropped or taken apart.
pub struct BodyStore {
    pub(super) store: Store,
    _share: Option<BodyShare>,
}

impl BodyStore {
    fn of(store: Store) -> Self {
        Self {
            store,
            _share: None,
        }
    }

    /// With a body in it that counts.
    pub(super) fn counted(store: Store, share: BodyShare) -> Self {
        Self {
            store,
            _share: Some(share),
        }
    }

    /// The `Vec` back, if it is one.
    #[must_use]
    pub fn into_heap(self) -> Option<Vec<u8>> {
        match self.store {
            Store::Heap(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The bytes of a `Vec`; none of other memory.
    pub(super) fn heap(&self) -> &[u8] {
        match &self.store {
            Store::Heap(bytes) => bytes,
            _ => &[],
        }
    }

    /// The reservation back, if it is one.
    #[must_use]
    pub fn into_reserved(self) -> Option<Reservation<Mapped>> {
        match self.store {
            Store::Reserved(reservation) => Some(reservation),
            _ => None,
        }
    }
}

impl std::fmt::Debug for BodyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BodyStore")
    }
}

/// Handles one session. All calls come from the session's worker thread, one after the other, so a
/// handler needs no locks of its own; but it must not block, because the worker has other sessions
/// to serve.
///
/// What a handler sends is gathered and written when the messages at hand are handled. Its sends
/// never wait: at a full ring they fail, whatever the policy is. (They do not meet a full ring if
/// the handler answers each message at most once: messages are handed out only while there is room
/// for an answer.)
///
/// A handler that panics loses its session, which closes with
/// [`HandlerPanicked`](crate::CloseReason::HandlerPanicked); all others go on.
pub trait Handler: Send + 'static {
    /// On the accepting side: a peer asks to open the session, with a greeting of its own. The
    /// bytes returned are the greeting it gets back; an error refuses it with that text. Not called
    /// on the side that connected.
    ///
    /// # Errors
    /// The text for the peer that is refused.
    fn greeted(&mut self, session: &Session, greeting: &[u8]) -> Result<Vec<u8>, String> {
        let _ = (session, greeting);
        Ok(Vec::new())
    }

    /// The session is open: messages may be sent from here on. `greeting` is what the peer sent.
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let _ = (session, greeting);
    }

    /// A message arrived. Its bytes lie in the ring and are gone when this returns; keep them with
    /// [`Message::keep`], or copy.
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow;

    /// The head of a frame with a large body arrived: says where the `len` bytes that follow go.
    /// Not called again before [`Handler::body_done`], unless bodies come in
    /// [lanes](crate::SessionConfig::body_lanes): then one of each lane may be under way, and what
    /// the handler has to remember of one best lies in its store, before the range. Not called at all unless
    /// [`SessionConfig::max_body_bytes`](crate::SessionConfig::max_body_bytes) lets bodies in. The
    /// default takes each into a fresh `Vec`.
    fn body(&mut self, session: &Session, id: u16, head: &[u8], len: usize) -> BodyTarget {
        let _ = (session, id, head);
        BodyTarget::heap(len)
    }

    /// The body is complete, in the range that [`Handler::body`] gave.
    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let _ = (session, id, store, range);
    }

    /// The time that [`Session::wake_after`] asked for is there. Also called while a message waits that was left with
    /// [`Flow::Pause`].
    fn woken(&mut self, session: &Session) {
        let _ = session;
    }

    /// A datagram arrived. Datagrams come in no order with messages, also while a message waits that was left with
    /// [`Flow::Pause`]; they come between [`Handler::opened`] and [`Handler::closed`] only. The default ignores them.
    fn datagram(&mut self, session: &Session, datagram: Datagram<'_>) {
        let _ = (session, datagram);
    }

    /// A body that came in a lane does not come to its end: its sender gave it up. What came of it
    /// is of no use; this is the store that [`Handler::body`] gave.
    fn body_cancelled(&mut self, session: &Session, id: u16, store: BodyStore) {
        let _ = (session, id, store);
    }

    /// The peer did not want the body that [`BodyTicket::number`](super::BodyTicket::number) names.
    /// It may say so after all of it was sent.
    fn body_refused(&mut self, session: &Session, number: u64, why: &str) {
        let _ = (session, number, why);
    }

    /// The answer to [`Session::request_status`].
    fn status(&mut self, session: &Session, answer: StatusAnswer) {
        let _ = (session, answer);
    }

    /// The peer will ask for nothing new and closes soon, and may tell where to connect instead. May come again, with something else.
    fn goodbye(&mut self, session: &Session, goodbye: &Goodbye<'_>) {
        let _ = (session, goodbye);
    }

    /// The session is to end politely ([`Session::close`], or its server stops): whether all that this handler
    /// had to send is in the ring. While it is not, the session goes on, and asks again whenever it has done something; it receives nothing
    /// more. A peer that does not take what there is for it is cut as usual, after [`linger`](crate::SessionConfig::linger) or when
    /// the server's time to stop is over. One for which there is nothing yet is not.
    fn may_end(&mut self, session: &Session) -> bool {
        let _ = session;
        true
    }

    /// The session is over: called exactly once, last, also if it never opened because the peer
    /// could not be reached, did not answer, or refused.
    ///
    /// Where there never was a session, this is not called, and nothing else is: the handler is
    /// dropped. On the side that connects, that is when a connect cannot be begun:
    /// at the limit `max_sessions`, for want of memory or descriptors, with an address or settings
    /// that the system does not take, or when the client is stopping or its worker failed; the
    /// [`Connecting`](super::Connecting) says why. On the side that accepts, a handler is made when
    /// its peer has greeted and there is room for its session, so each has this call.
    fn closed(&mut self, session: &Session, why: &Closed) {
        let _ = (session, why);
    }
}
