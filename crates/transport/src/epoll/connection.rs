//! One connection: what is known about its readiness, its outstanding operations, and the system
//! calls that carry them out.
//!
//! With edge-triggered events the kernel says only once that a socket became ready, so it is
//! remembered here until a call proves the opposite. Two proofs count: `EAGAIN`, and a call that
//! moved fewer bytes than asked. The second saves one useless call per burst, and is safe because
//! whatever arrives after such a call raises a new edge. It is *not* safe when the edge of the end
//! (`RDHUP`, `HUP`, `ERR`) was taken before, since no further edge follows it; nor with urgent data
//! (`PRI`), at whose mark the kernel cuts a receive short. `eager` covers both: while it is set
//! only `EAGAIN` counts. Nor is it safe with Unix sockets, whose receives end where the sender's
//! credentials or descriptors change, whatever lies behind: with those only `EAGAIN` counts, ever.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use embar_memory::Mapped;
use embar_meter::clock::ticks;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, sockopt};

use super::gather::{self, SEND_FLAGS};
use crate::{Completion, IoCounters, RecvBuf, SendBuf, Shm, Stream, Token};

/// The events that a connection waits for, but for room.
const ALWAYS: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::PRI)
    .union(EventFlags::ET);

/// Edges after which no other edge may come although there is something to receive.
const LAST_EDGES: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR)
    .union(EventFlags::PRI);

const READ_EDGES: EventFlags = LAST_EDGES.union(EventFlags::IN);

const WRITE_EDGES: EventFlags = EventFlags::OUT
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);

/// A buffer in flight and the ticks spent for it so far.
pub(super) struct Pending<B> {
    pub(super) buf: B,
    pub(super) ticks: u64,
}

impl<B> Pending<B> {
    pub(super) fn new(buf: B) -> Self {
        Self { buf, ticks: 0 }
    }
}

impl Pending<RecvBuf<Mapped>> {
    pub(super) fn received(self, token: Token, result: io::Result<usize>) -> Completion<Mapped> {
        Completion::Received {
            token,
            buf: self.buf,
            result,
            ticks: self.ticks,
        }
    }
}

impl Pending<SendBuf<Mapped>> {
    pub(super) fn sent(self, token: Token, result: io::Result<()>) -> Completion<Mapped> {
        Completion::Sent {
            token,
            buf: self.buf,
            result,
            ticks: self.ticks,
        }
    }
}

/// What the reactor knows of a stream by shared memory.
#[derive(Default)]
pub(super) struct Heat {
    /// It is among those that each round looks at.
    pub(super) hot: bool,
    /// Its peer is asked to wake this side.
    pub(super) dozes: bool,
    /// Nothing was there when it was last tried: a round need not try it again, unless it stirs.
    pub(super) idle: bool,
}

pub(super) struct Connection {
    /// Shared with [`DirectSend`](super::DirectSend)s only for the time of a call.
    pub(super) stream: Arc<Stream>,
    pub(super) connecting: bool,
    pub(super) may_read: bool,
    may_write: bool,
    /// The kernel is to say when there is room.
    awaits_room: bool,
    pub(super) eager: bool,
    /// The latest receive found as much as it had room for: there is more.
    floods: bool,
    /// It is in the queue of those to be tried.
    pub(super) queued: bool,
    /// It is among those that spinning tries.
    pub(super) listed: bool,
    /// Of a stream by shared memory only.
    pub(super) heat: Heat,
    pub(super) recv: Option<Pending<RecvBuf<Mapped>>>,
    pub(super) send: Option<Pending<SendBuf<Mapped>>>,
}

impl Connection {
    pub(super) fn new(stream: Stream, connecting: bool) -> Self {
        let awaits_room = connecting || !tells_room_unasked(&stream);
        Self {
            stream: Arc::new(stream),
            connecting,
            // Registering raises an edge if something is there already.
            may_read: false,
            // A fresh socket has room; if not, the first call finds out.
            may_write: !connecting,
            awaits_room,
            eager: false,
            floods: false,
            queued: false,
            listed: false,
            heat: Heat::default(),
            recv: None,
            send: None,
        }
    }

    /// The stream, if it is by shared memory.
    #[inline]
    pub(super) fn shm(&self) -> Option<&Shm> {
        match &*self.stream {
            Stream::Shm(stream) => Some(stream),
            _ => None,
        }
    }

    /// Whether it had more to receive than there was room for, when it was last tried.
    pub(super) fn floods(&self) -> bool {
        self.floods
    }

    /// What to ask the kernel for.
    pub(super) fn interest(&self) -> EventFlags {
        match self.awaits_room {
            true => ALWAYS | EventFlags::OUT,
            false => ALWAYS,
        }
    }

    /// Whether the kernel is to be asked for something else from now on.
    pub(super) fn changes_interest(&mut self) -> bool {
        let changes = self.awaits_room == self.may_write && tells_room_unasked(&self.stream);
        self.awaits_room ^= changes;
        changes
    }

    pub(super) fn note_edges(&mut self, flags: EventFlags) {
        self.may_read |= flags.intersects(READ_EDGES);
        self.may_write |= flags.intersects(WRITE_EDGES);
        self.eager |= flags.intersects(LAST_EDGES);
    }

    /// Whether trying now may get anywhere.
    pub(super) fn is_ready(&self) -> bool {
        if self.shm().is_some() {
            let works = self.recv.is_some() || self.send.is_some();
            return self.may_read || (works && !self.heat.idle && !self.connecting);
        }
        if self.connecting {
            return self.may_write;
        }
        (self.may_read && self.recv.is_some()) || (self.may_write && self.send.is_some())
    }

    /// The outcome of the connect, once there is one.
    pub(super) fn try_finish_connect(&mut self) -> Option<io::Result<()>> {
        if !self.may_write {
            return None;
        }
        self.connecting = false;
        let outcome = match sockopt::socket_error(&*self.stream) {
            Ok(outcome) => outcome,
            Err(error) => Err(error),
        };
        Some(outcome.map_err(io::Error::from))
    }

    /// One receive call, if a receive is outstanding and may find something.
    pub(super) fn try_recv(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
    ) -> Option<Completion<Mapped>> {
        if !self.may_read {
            return None;
        }
        self.recv_now(token, counters)
    }

    /// One receive call, if a receive is outstanding, whatever is known of the socket.
    #[inline]
    pub(super) fn recv_now(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
    ) -> Option<Completion<Mapped>> {
        // Moved out only when it is over: spinning comes here for every try.
        let pending = self.recv.as_mut()?;
        let before = ticks();
        let (result, asked) = recv_once(&self.stream, &mut pending.buf);
        counters.recv_calls += 1;
        pending.ticks += ticks().saturating_sub(before);
        if let Err(Errno::AGAIN) = result {
            counters.recv_eagain += 1;
            self.may_read = false;
            self.eager = false;
            return None;
        }
        let result = match result {
            Ok(count) => {
                counters.recv_bytes += count as u64;
                pending.buf.advance(count);
                // A 0 stays readable: every later receive gets the end, too.
                self.floods = count == asked;
                let more = count == asked || count == 0;
                let unix = matches!(*self.stream, Stream::Unix(_));
                self.may_read = more || self.eager || unix;
                Ok(count)
            }
            Err(error) => Err(error.into()),
        };
        Some(self.recv.take()?.received(token, result))
    }

    /// One send call, if a send is outstanding and may find room.
    pub(super) fn try_send(
        &mut self,
        token: Token,
        counters: &mut IoCounters,
    ) -> Option<Completion<Mapped>> {
        if !self.may_write {
            return None;
        }
        let mut pending = self.send.take()?;
        let before = ticks();
        let result = send_once(&self.stream, &pending.buf);
        pending.ticks += ticks().saturating_sub(before);
        counters.send_calls += 1;

        let result = match result {
            Ok(count) => {
                counters.send_bytes += count as u64;
                pending.buf.advance(count);
                if pending.buf.remaining() > 0 {
                    // The socket is full, and the kernel has noted that this one waits for room.
                    counters.send_partial += 1;
                    self.may_write = false;
                    if !pending.buf.goes_in_steps() {
                        self.send = Some(pending);
                        return None;
                    }
                }
                Ok(())
            }
            Err(Errno::AGAIN) => {
                counters.send_eagain += 1;
                self.may_write = false;
                self.send = Some(pending);
                return None;
            }
            Err(error) => Err(error.into()),
        };
        Some(pending.sent(token, result))
    }
}

/// Whether the kernel says with each receive of the peer that there is room, and not only after a call that found none.
/// That would wake the reactor for nothing.
fn tells_room_unasked(stream: &Stream) -> bool {
    matches!(stream, Stream::Unix(_) | Stream::Shm(_))
}

/// One call, and how many bytes it had room for.
fn recv_once(stream: &Stream, buf: &mut RecvBuf<Mapped>) -> (rustix::io::Result<usize>, usize) {
    let (first, second) = buf.spaces();
    let asked = first.len() + second.len();
    let result = if second.is_empty() {
        rustix::net::recv(stream, first, RecvFlags::DONTWAIT).map(|(count, _)| count)
    } else {
        rustix::net::recvmsg(
            stream,
            &mut [IoSliceMut::new(first), IoSliceMut::new(second)],
            &mut RecvAncillaryBuffer::default(),
            RecvFlags::DONTWAIT,
        )
        .map(|received| received.bytes)
    };
    (result, asked)
}

/// One call: as many bytes as there is room for.
pub(super) fn send_once(stream: &Stream, buf: &SendBuf<Mapped>) -> rustix::io::Result<usize> {
    if let Some((head, parts)) = buf.gathered() {
        return gather::send(stream, head, parts);
    }
    buf.with_unsent(|head, body| match (head.is_empty(), body.is_empty()) {
        // Nothing to send is done without a call.
        (true, true) => Ok(0),
        (false, true) => rustix::net::send(stream, head, SEND_FLAGS),
        (true, false) => rustix::net::send(stream, body, SEND_FLAGS),
        (false, false) => rustix::net::sendmsg(
            stream,
            &[IoSlice::new(head), IoSlice::new(body)],
            &mut SendAncillaryBuffer::default(),
            SEND_FLAGS,
        ),
    })
}
