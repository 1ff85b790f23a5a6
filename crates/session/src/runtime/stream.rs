//! Sessions as async streams, on any executor.
//!
//! A handler on the worker leaves each message in the receive ring, and queues the guard that keeps
//! it there; the stream takes guards from the queue. The queue is bounded: when it is full, the
//! worker reads no more from the session until half of it is taken, and the peer notices.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use buffa::{DecodeError, DecodeOptions, Message as Protobuf, MessageView};
use embar_frame::Protocol;
use embar_transport::waiters::{self, Waiters};
use embar_transport::{Address, Peer};
use futures_core::Stream;

use super::client::Client;
use super::handler::{BodyStore, BodyTarget, Flow, Handler};
use super::listening::StartError;
use super::server::{Server, ServerBuilder};
use super::session::Session;
use crate::{
    CloseReason, Closed, Goodbye, Kept, MAX_ELEMENT_BYTES, MAX_NESTING, MAX_UNKNOWN_FIELDS,
    Message, SendError,
};

mod farewell;

pub use farewell::{Farewell, FarewellWait};

/// Messages that wait in one stream.
const QUEUED_MESSAGES: usize = 1024;

/// Bytes that wait in one stream, heads included, before the last that is queued. One message may
/// always wait.
const QUEUED_BYTES: usize = 64 << 10;

enum Bytes {
    Kept(Kept),
    Owned(Vec<u8>, Range<usize>),
    /// The head, and in this range the body. It counts in the budget as long as it is here.
    Body(BodyStore, Range<usize>),
}

/// A message out of an [`AsyncSession`]. Its bytes lie in the receive ring as long as this lives,
/// and hold up the room from there on: copy what is to be had for long.
pub struct Received {
    id: u16,
    bytes: Bytes,
}

impl Received {
    /// The packet id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What it counts in the stream's limit.
    fn size(&self) -> usize {
        self.head().len() + self.len()
    }

    /// What came before the body, of a frame with a body; else empty.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Body(store, range) => &store.heap()[..range.start],
            Bytes::Kept(_) | Bytes::Owned(..) => &[],
        }
    }

    /// The content as a view of a Protobuf message, with the bounds of
    /// [`Message::decode`](crate::Message::decode).
    ///
    /// # Errors
    /// What the decoder found wrong.
    pub fn decode<'a, V: MessageView<'a>>(&'a self) -> Result<V, DecodeError> {
        DecodeOptions::new()
            .with_recursion_limit(MAX_NESTING)
            .with_unknown_field_limit(MAX_UNKNOWN_FIELDS)
            .with_element_memory_limit(MAX_ELEMENT_BYTES)
            .decode_view(self)
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Kept(kept) => kept,
            Bytes::Owned(bytes, range) => &bytes[range.clone()],
            Bytes::Body(store, range) => &store.heap()[range.clone()],
        }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({}, {} bytes)", self.id, self.len())
    }
}

#[derive(Default)]
struct State {
    messages: VecDeque<Received>,
    bytes: usize,
    /// The relay left a message until there is room.
    paused: bool,
    /// Nobody takes any: what comes is dropped.
    abandoned: bool,
    ended: Option<Closed>,
    waker: Option<Waker>,
    /// The latest.
    farewell: Option<Farewell>,
    /// Who waits for that.
    farewell_waiters: Waiters,
}

impl State {
    fn push(&mut self, message: Received) {
        self.bytes += message.size();
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<Received> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.size();
        Some(message)
    }

    fn is_full(&self) -> bool {
        let full = self.messages.len() >= QUEUED_MESSAGES || self.bytes >= QUEUED_BYTES;
        full && !self.abandoned
    }

    fn has_room_again(&self) -> bool {
        self.messages.len() <= QUEUED_MESSAGES / 2 && self.bytes <= QUEUED_BYTES / 2
    }
}

#[derive(Default)]
struct Queue(Mutex<State>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: Received) {
        let mut state = self.lock();
        if !state.abandoned {
            state.push(message);
        }
        wake(state);
    }

    /// Nobody takes messages any more. Whether the session waits for [`Session::resume`].
    fn abandon(&self) -> bool {
        let mut state = self.lock();
        state.abandoned = true;
        state.bytes = 0;
        let (messages, paused) = (mem::take(&mut state.messages), mem::take(&mut state.paused));
        drop(state);
        drop(messages);
        paused
    }

    /// Whether there is room; if not, the session waits for [`Session::resume`].
    fn has_room(&self) -> bool {
        let mut state = self.lock();
        let full = state.is_full();
        // A body in a lane may wait while messages go on.
        state.paused |= full;
        !full
    }

    fn end(&self, why: Closed) {
        let mut state = self.lock();
        state.ended = Some(why);
        let waiting = state.farewell_waiters.wake_all();
        wake(state);
        waiting.wake();
    }

    fn say(&self, farewell: Farewell) {
        let mut state = self.lock();
        let before = state.farewell.replace(farewell);
        let waiting = state.farewell_waiters.wake_all();
        drop(state);
        drop(before);
        waiting.wake();
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(waiters::wake);
}

/// Queues what arrives, for an [`AsyncSession`].
struct Relay {
    queue: Arc<Queue>,
    /// Where accepted sessions are handed out.
    accepted: Option<Arc<Accepted>>,
}

impl Handler for Relay {
    fn greeted(&mut self, _: &Session, _: &[u8]) -> Result<Vec<u8>, String> {
        match &self.accepted {
            Some(accepted) if accepted.lock().gone => {
                Err("nobody accepts sessions here any more".to_owned())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn opened(&mut self, session: &Session, _: &[u8]) {
        session.never_block();
        if let Some(accepted) = &self.accepted {
            accepted.push(AsyncSession {
                session: session.clone(),
                queue: Arc::clone(&self.queue),
            });
        }
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        if !self.queue.has_room() {
            return Flow::Pause;
        }
        let payload = message.payload();
        // At the limit of what may be kept a copy is made; the queue's own limit bounds those.
        let bytes = match message.keep() {
            Ok(kept) => Bytes::Kept(kept),
            Err(_) => Bytes::Owned(payload.to_vec(), 0..payload.len()),
        };
        self.queue.push(Received {
            id: message.id(),
            bytes,
        });
        Flow::Continue
    }

    fn body(&mut self, _: &Session, _: u16, head: &[u8], len: usize) -> BodyTarget {
        if !self.queue.has_room() {
            return BodyTarget::Pause;
        }
        // The head lies before the body: of other lanes there may be some, too.
        let mut bytes = vec![0; head.len() + len];
        bytes[..head.len()].copy_from_slice(head);
        BodyTarget::buffer(bytes, head.len()..head.len() + len)
    }

    fn body_done(&mut self, _: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let bytes = Bytes::Body(store, range);
        self.queue.push(Received { id, bytes });
    }

    fn goodbye(&mut self, _: &Session, goodbye: &Goodbye<'_>) {
        self.queue.say(Farewell::from(goodbye));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        self.queue.end(why.clone());
    }
}

/// A session for async code: a stream of messages, and sends that wait for room. Works on every
/// executor. Dropping it closes the session politely.
///
/// The stream ends after the last message: with `None` if the session was finished in good order,
/// by either end, else with the reason once and then `None`.
pub struct AsyncSession {
    session: Session,
    queue: Arc<Queue>,
}

impl AsyncSession {
    /// The handle for other threads and tasks. It never blocks: at a full ring its sends fail where
    /// the policy says [`OnFull::Wait`](super::OnFull::Wait).
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The next message; `None` at the end, as the stream says it.
    pub async fn next(&mut self) -> Option<Result<Received, Closed>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Waits until the peer says that it asks for nothing new and closes soon. It overtakes the messages that wait in the
    /// stream, and has nothing of the session, so a task may wait for it beside [`AsyncSession::next`].
    pub fn farewell(&self) -> FarewellWait {
        FarewellWait::new(&self.queue)
    }

    /// Sends a Protobuf message; waits for room in the ring.
    ///
    /// # Errors
    /// [`SendError`], but not for want of room.
    pub fn send<M: Protobuf>(
        &self,
        id: u16,
        message: &M,
    ) -> impl Future<Output = Result<(), SendError>> {
        let len = message.encoded_len() as usize;
        self.when_room(len, move |session| session.try_send(id, message))
    }

    /// Sends `payload` as it is; waits for room in the ring.
    ///
    /// # Errors
    /// [`SendError`], but not for want of room.
    pub fn send_bytes(
        &self,
        id: u16,
        payload: &[u8],
    ) -> impl Future<Output = Result<(), SendError>> {
        self.when_room(payload.len(), move |session| {
            let mut packet = session.try_reserve(id, payload.len())?;
            packet.copy_from_slice(payload);
            packet.commit();
            Ok(())
        })
    }

    fn when_room(
        &self,
        len: usize,
        send: impl Fn(&Session) -> Result<(), SendError>,
    ) -> impl Future<Output = Result<(), SendError>> {
        let mut room = self.session.room(len);
        poll_fn(move |cx| {
            loop {
                match send(&self.session) {
                    Err(SendError::Full) => ready!(Pin::new(&mut room).poll(cx))?,
                    done => return Poll::Ready(done),
                }
            }
        })
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Received, Closed>>> {
        let mut state = self.queue.lock();
        if let Some(message) = state.pop() {
            let resume = state.paused && state.has_room_again();
            if resume {
                state.paused = false;
            }
            drop(state);
            if resume {
                self.session.resume();
            }
            return Poll::Ready(Some(Ok(message)));
        }
        let over = state.ended.as_mut().map(|why| {
            // Told once.
            let reason = mem::replace(&mut why.reason, CloseReason::Finished);
            (reason != CloseReason::Finished).then(|| {
                Err(Closed {
                    reason,
                    ..why.clone()
                })
            })
        });
        match over {
            Some(end) => Poll::Ready(end),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Stream for AsyncSession {
    type Item = Result<Received, Closed>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl Drop for AsyncSession {
    fn drop(&mut self) {
        self.session.close();
        // Behind what is left to read there may be what the end waits for: answers to bodies.
        if self.queue.abandon() {
            self.session.resume();
        }
    }
}

#[derive(Default)]
struct AcceptedState {
    sessions: VecDeque<AsyncSession>,
    waker: Option<Waker>,
    gone: bool,
}

#[derive(Default)]
struct Accepted(Mutex<AcceptedState>);

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, AcceptedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, session: AsyncSession) {
        let mut state = self.lock();
        if state.gone {
            drop(state);
            return drop(session);
        }
        state.sessions.push_back(session);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(waiters::wake);
    }
}

/// The sessions that a server accepts, as a stream; see [`ServerBuilder::start_async`]. Those not
/// taken yet are bounded by the setting `max_sessions`. After it is dropped, peers are refused.
pub struct IncomingSessions(Arc<Accepted>);

impl IncomingSessions {
    /// The next session that a peer opened.
    pub async fn next(&mut self) -> AsyncSession {
        poll_fn(|cx| self.poll_session(cx)).await
    }

    fn poll_session(&mut self, cx: &mut Context<'_>) -> Poll<AsyncSession> {
        let mut state = self.0.lock();
        match state.sessions.pop_front() {
            Some(session) => Poll::Ready(session),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Stream for IncomingSessions {
    type Item = AsyncSession;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AsyncSession>> {
        self.poll_session(cx).map(Some)
    }
}

impl Drop for IncomingSessions {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gone = true;
        let waiting = std::mem::take(&mut state.sessions);
        drop(state);
        drop(waiting);
    }
}

impl<P: Protocol + Clone + Send + Sync + 'static> ServerBuilder<P> {
    /// Starts a server whose sessions come out of a stream.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_async(self) -> Result<(Server, IncomingSessions), StartError> {
        let accepted = Arc::new(Accepted::default());
        let incoming = IncomingSessions(Arc::clone(&accepted));
        let server = self.start(move |_: &Peer| Relay {
            queue: Arc::default(),
            accepted: Some(Arc::clone(&accepted)),
        })?;
        Ok((server, incoming))
    }
}

fn connecting_relay() -> (Arc<Queue>, Relay) {
    let queue = Arc::new(Queue::default());
    let relay = Relay {
        queue: Arc::clone(&queue),
        accepted: None,
    };
    (queue, relay)
}

impl Client {
    /// Connects, for async code. A future that is dropped before it is done gives the connect up:
    /// a session that opens nevertheless is closed at once.
    ///
    /// # Errors
    /// How the session ended before it opened.
    pub async fn connect_async(&self, address: impl Into<Address>) -> Result<AsyncSession, Closed> {
        let (queue, relay) = connecting_relay();
        let session = self.open(address, &[], relay).cancellable().await?;
        Ok(AsyncSession { session, queue })
    }

    /// As [`Client::connect_async`], encrypted, and only to the server that `tls` names.
    ///
    /// # Errors
    /// As [`Client::connect_tls`].
    #[cfg(feature = "tls")]
    pub async fn connect_tls_async(
        &self,
        address: impl Into<Address>,
        tls: &embar_transport::tls::TlsTarget,
    ) -> Result<AsyncSession, Closed> {
        let (queue, relay) = connecting_relay();
        let session = self
            .open_tls(address, tls, &[], relay)
            .cancellable()
            .await?;
        Ok(AsyncSession { session, queue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_count_in_the_limit_of_a_stream() {
        let queue = Queue::default();
        let mut queued = 0;
        while queue.has_room() {
            let BodyTarget::Into(store, _) = BodyTarget::heap(16 << 10) else {
                panic!("memory for a body");
            };
            queue.push(Received {
                id: 1,
                bytes: Bytes::Body(store, 16 << 10..16 << 10),
            });
            queued += 1;
        }
        assert_eq!(queued, QUEUED_BYTES / (16 << 10));
        // And are counted out again.
        let mut state = queue.lock();
        while let Some(message) = state.pop() {
            assert_eq!(message.head().len(), 16 << 10);
        }
        assert_eq!(state.bytes, 0);
    }
}
