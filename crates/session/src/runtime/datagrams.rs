//! Datagrams: messages that may be lost, beside the reliable ones, for sessions whose carrier has such.
//!
//! A [`DatagramLink`] is what a session and its carrier share. The session queues what is to be sent and the carrier takes it; the
//! carrier hands in what came and the worker gives it to the handler. Neither waits for the other.
//!
//! On the wire a datagram is its id (16 bits) and its number (48 bits), both little-endian, and then its payload. Where one ends is
//! the carrier's to know. A session numbers all that it sends, from 0.

mod queues;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use buffa::{DecodeError, MessageView};
use thiserror::Error;

use self::queues::Queues;
pub(super) use self::queues::ReceivedDatagram;
use super::clock;
use super::panics::catch_panic;
use super::stats::{Counter, DatagramStats};
use crate::Closed;
use crate::incoming::bounds;

/// What a datagram has beside its payload.
pub const DATAGRAM_HEADER_BYTES: usize = 8;

/// How datagrams of a session wait. At a full queue the oldest goes, whether it was to be sent or to be handled: what is
/// newer is worth more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramSettings {
    /// Most that wait for the path to have room. At least 1; default 16.
    pub max_queued: usize,
    /// Longest that one waits for that: where the path is slower than the sender, what arrives is so much older at most, and what is
    /// not sent in time never is. Zero: for ever. Default 50 ms.
    pub max_wait: Duration,
    /// Most that came and wait for the handler. At least 1; default 64.
    pub max_received: usize,
    /// Which of those that came out of order the handler gets.
    pub order: DatagramOrder,
}

impl Default for DatagramSettings {
    fn default() -> Self {
        Self {
            max_queued: 16,
            max_wait: Duration::from_millis(50),
            max_received: 64,
            order: DatagramOrder::default(),
        }
    }
}

/// Which datagrams a handler gets when the network changed their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatagramOrder {
    /// Those that are newer than all of the same id before them: a late one counts as lost. The default, because a
    /// state that is out of date is of no use. Of the 64 ids that came last the newest is known.
    #[default]
    Newest,
    /// All, as they come; [`Datagram::sequence`] tells which are late.
    Arrival,
}

/// Why a datagram was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The session's carrier has no datagrams, or its peer takes none.
    #[error("the session has no datagrams, as it is not carried by QUIC: send a message instead")]
    Unsupported,
    /// The handshake is not over.
    #[error("the session is not open yet: wait for the handshake")]
    NotOpen,
    /// The session has ended or is about to.
    #[error("the session is closed: open another")]
    Closed,
    /// The path takes shorter ones only.
    #[error(
        "a datagram of {bytes} bytes exceeds the {max} that the path takes: split it, or send a message instead"
    )]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
        /// Most bytes of a payload that the path takes now.
        max: usize,
    },
    /// The id belongs to the session layer.
    #[error("packet id {id:#06x} is reserved: use one below 0xff00")]
    ReservedId {
        /// The id.
        id: u16,
    },
    /// A message wrote more or less than the size it gave before.
    #[error(
        "the message's encoder wrote another length than it announced: do not change it while it is sent"
    )]
    Encoding,
}

/// A datagram that came; see [`Handler::datagram`](super::Handler::datagram).
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    id: u16,
    sequence: u64,
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// What it is, as the ids of messages say it.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Its number among all datagrams that the peer sent in this session, from 0. Numbers that never come were lost, here or on
    /// the way.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The content.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The content as a view of a Protobuf message, as [`Message::decode`](crate::Message::decode).
    ///
    /// # Errors
    /// What the decoder found wrong.
    pub fn decode<V: MessageView<'a>>(&self) -> Result<V, DecodeError> {
        bounds().decode_view(self.payload)
    }
}

impl fmt::Debug for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, sequence, bytes) = (self.id, self.sequence, self.payload.len());
        write!(f, "Datagram({id}, number {sequence}, {bytes} bytes)")
    }
}

impl ReceivedDatagram {
    /// With its header.
    pub(super) fn bytes(&self) -> usize {
        DATAGRAM_HEADER_BYTES + self.payload.len()
    }

    pub(super) fn view(&self) -> Datagram<'_> {
        Datagram {
            id: self.id,
            sequence: self.sequence,
            payload: &self.payload,
        }
    }
}

/// How far the session is.
#[derive(Default)]
enum Phase {
    #[default]
    NotOpen,
    /// Tells the worker that something came.
    Open(Waker, DatagramSettings),
    Over,
}

#[derive(Default)]
struct State {
    phase: Phase,
    queues: Queues,
    /// Waits for something to send.
    sending: Option<Waker>,
    /// Waits for the session to open.
    opening: Option<Waker>,
    /// Waits for its end.
    ending: Option<Waker>,
    lost: Option<Closed>,
}

#[derive(Default)]
struct Counters {
    sent: Counter,
    unsent: Counter,
    received: Counter,
    dropped: Counter,
}

#[derive(Default)]
struct Link {
    /// Longest datagram, header included; 0: none.
    max_bytes: AtomicUsize,
    state: Mutex<State>,
    counters: Counters,
}

/// What a session and its carrier share: datagrams in both directions, and how far each of the two is. For crates that
/// carry sessions; who uses sessions has [`Session::send_datagram`](super::Session::send_datagram) and
/// [`Handler::datagram`](super::Handler::datagram). Cheap to clone.
///
/// Before the session is open and after its end, datagrams of both directions are dropped.
#[derive(Clone, Default)]
pub struct DatagramLink(Arc<Link>);

impl DatagramLink {
    /// The link of one session that does not exist yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path takes datagrams of so many bytes, header included; `None`, as at first: of none.
    pub fn set_max_bytes(&self, max: Option<usize>) {
        let max = max.unwrap_or(0);
        self.0.max_bytes.store(max, Ordering::Relaxed);
    }

    /// The next datagram to send, ready for the network; `None` when the session is over. One task at a time may wait.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let mut state = self.lock();
        let State { phase, queues, .. } = &mut *state;
        let (next, late) = match phase {
            Phase::Over => return Poll::Ready(None),
            Phase::NotOpen => (None, 0),
            Phase::Open(_, settings) => queues.next_to_send(settings, clock::now()),
        };
        if late > 0 {
            self.0.counters.unsent.add(late);
        }
        match next {
            Some(datagram) => {
                self.0.counters.sent.add(1);
                Poll::Ready(Some(datagram))
            }
            None => {
                state.sending = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// One that was taken to be sent could not be.
    pub fn not_sent(&self) {
        self.0.counters.unsent.add(1);
    }

    /// A datagram came from the peer. Copies it: what waits here is not to hold the buffers of the network.
    pub fn deliver(&self, datagram: &[u8]) {
        let mut state = self.lock();
        let State { phase, queues, .. } = &mut *state;
        let Phase::Open(worker, settings) = phase else {
            drop(state);
            return self.0.counters.dropped.add(1);
        };
        let (is_first, dropped) = queues.receive(settings, datagram);
        let worker = is_first.then(|| worker.clone());
        drop(state);
        if dropped > 0 {
            self.0.counters.dropped.add(dropped);
        }
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Waits until the session is open. False: it is over, or there will be none.
    pub fn poll_open(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        match state.phase {
            Phase::NotOpen => {
                state.opening = Some(cx.waker().clone());
                Poll::Pending
            }
            Phase::Open(..) => Poll::Ready(true),
            Phase::Over => Poll::Ready(false),
        }
    }

    /// Waits until the session is over, or there will be none. What it said last may still be on its way through the stream.
    pub fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Over) {
            return Poll::Ready(());
        }
        state.ending = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The carrier lost the connection, for this reason. To be called before the stream is dropped. It is the end of the session, unless
    /// the peer said another one.
    pub fn lost(&self, why: Closed) {
        self.lock().lost.get_or_insert(why);
    }

    /// The session is open; `worker` is woken when something comes to an empty queue.
    pub(super) fn open(&self, worker: Waker, settings: DatagramSettings) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::NotOpen) {
            state.phase = Phase::Open(worker, settings);
        }
        let waker = state.opening.take();
        drop(state);
        wake(waker);
    }

    pub(super) fn end(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.phase = Phase::Over;
        state.queues = Queues::default();
        let wakers = [&mut state.sending, &mut state.opening, &mut state.ending];
        let wakers = wakers.map(Option::take);
        drop(guard);
        wakers.into_iter().for_each(wake);
    }

    pub(super) fn take_received(&self) -> Option<ReceivedDatagram> {
        let received = self.lock().queues.take_received()?;
        self.0.counters.received.add(1);
        Some(received)
    }

    /// Why the carrier lost the connection, if it said so.
    pub(super) fn take_lost(&self) -> Option<Closed> {
        self.lock().lost.take()
    }

    /// Bytes of the longest payload.
    pub(super) fn max_payload(&self) -> Option<usize> {
        let max = self.0.max_bytes.load(Ordering::Relaxed);
        max.checked_sub(DATAGRAM_HEADER_BYTES)
    }

    /// Queues a datagram with room for its header in front.
    pub(super) fn send(&self, id: u16, bytes: Vec<u8>) -> Result<(), DatagramError> {
        let mut state = self.lock();
        let State { phase, queues, .. } = &mut *state;
        let displaced = match phase {
            Phase::NotOpen => return Err(DatagramError::NotOpen),
            Phase::Over => return Err(DatagramError::Closed),
            Phase::Open(_, settings) => queues.send(settings, clock::now(), id, bytes),
        };
        let waker = state.sending.take();
        drop(state);
        if displaced {
            self.0.counters.unsent.add(1);
        }
        wake(waker);
        Ok(())
    }

    pub(super) fn stats(&self) -> DatagramStats {
        let counters = &self.0.counters;
        DatagramStats {
            sent: counters.sent.get(),
            unsent: counters.unsent.get(),
            received: counters.received.get(),
            dropped: counters.dropped.get(),
        }
    }
}

/// The link of a session that is to be made. Dropped, it ends the link: there will be no session.
pub(super) struct UnclaimedLink(Option<DatagramLink>);

impl UnclaimedLink {
    pub(super) fn new(link: &DatagramLink) -> Self {
        Self(Some(link.clone()))
    }

    /// There is a session.
    pub(super) fn claim(mut self) -> Option<DatagramLink> {
        self.0.take()
    }
}

impl Drop for UnclaimedLink {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.end();
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        catch_panic(|| waker.wake());
    }
}

impl fmt::Debug for DatagramLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatagramLink")
    }
}
