//! One connection, as its driver sees it: received bytes become replies in their slots, and spans of
//! the send ring go out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use embar_transport::buffer::Head;
use embar_transport::{Body, DirectSend, Epoll, Reactor, RecvBuf, SendBuf, Store, Token};

use crate::error::{CallError, CloseReason};
use crate::framing::FrameKind;
use crate::larges::LargeCommand;
use crate::profile::{self, Stage, Timing};
use crate::protocol::{Greeting, Protocol};
use crate::shared::{CallerWriteCounts, ConnectionState, Shared};
pub(crate) use encryption::Encryption;

mod deadlines;
mod encryption;

/// Most bytes of one receive.
const READ_BYTES: usize = 64 << 10;
/// Writes to one connection before the driver turns to others.
const WRITES_PER_TURN: usize = 4;
/// Memory that a connection keeps for the next push, bytes.
const KEPT_PUSH_BYTES: usize = 64 << 10;

enum State {
    Connecting,
    /// The driver has sent a step of the greeting.
    Greeting {
        /// What came of the answer.
        reply: Vec<u8>,
        /// Frames of the answer that are to come.
        frames: u32,
    },
    Open,
    /// The socket is closed, and the reactor gives back the buffers that it has.
    Ending(CloseReason),
}

/// Drives one connection.
pub(crate) struct ConnectionDriver<P> {
    pub shared: Arc<Shared>,
    /// `None` if the system could not even make a socket.
    pub token: Option<Token>,
    protocol: P,
    /// Encrypts what goes to the reactor, if the connection is encrypted.
    encryption: Option<Encryption>,
    state: State,
    /// Sends without the reactor; `None` if the connection is encrypted.
    direct: Option<DirectSend>,
    /// What callers sent by themselves, as far as the meters have it.
    caller_writes: CallerWriteCounts,
    /// The connection is over, and no caller can send on it any more.
    callers_stopped: bool,
    /// The reactor has a send buffer of this connection.
    sending: bool,
    /// The large command in that buffer, if it holds one.
    large: Option<LargeCommand>,
    /// The ticket whose reply comes next.
    next_reply: u32,
    /// The ticket behind the last command that was sent.
    sent_ticket: u32,
    /// Bytes of commands that the driver sent.
    sent_bytes: u64,
    /// Bytes of commands whose reply has come.
    answered_bytes: u64,
    /// When bytes came last, in nanoseconds of `clock::now`.
    last_received: u64,
    /// When the protocol heard last that the peer is silent, likewise; `None`: it is not.
    silence_told: Option<u64>,
    /// When connecting and greeting must be over, likewise.
    connect_deadline: u64,
    /// What came of a push that is not complete.
    push: Vec<u8>,
}

impl<P: Protocol> ConnectionDriver<P> {
    pub fn new(
        shared: Arc<Shared>,
        token: Option<Token>,
        encryption: Option<Encryption>,
        protocol: P,
        now: u64,
    ) -> Self {
        let connect_timeout = nanos(shared.limits.connect_timeout);
        Self {
            shared,
            token,
            protocol,
            encryption,
            state: State::Connecting,
            direct: None,
            caller_writes: CallerWriteCounts::default(),
            callers_stopped: false,
            sending: false,
            large: None,
            next_reply: 0,
            sent_ticket: 0,
            sent_bytes: 0,
            answered_bytes: 0,
            last_received: now,
            silence_told: None,
            connect_deadline: now.saturating_add(connect_timeout),
            push: Vec::new(),
        }
    }

    pub fn connected(&mut self, reactor: &mut Epoll, result: io::Result<()>) {
        if let Err(error) = result {
            return self.end(reactor, CloseReason::Unreachable(error.kind()));
        }
        if !matches!(self.state, State::Connecting) {
            return;
        }
        let Some(token) = self.token else {
            return;
        };
        if let Some(encryption) = &mut self.encryption {
            return encryption.begin();
        }
        self.direct = reactor.direct(token);
        let buf = RecvBuf::heap(vec![0; READ_BYTES], 0..READ_BYTES);
        reactor.recv(token, buf);
        self.greet(reactor, None);
    }

    fn greet(&mut self, reactor: &mut Epoll, reply: Option<&[u8]>) {
        match self.protocol.greet(reply) {
            Ok(Greeting::Send { bytes, replies }) => {
                assert!(replies > 0, "a greeting is answered");
                self.state = State::Greeting {
                    reply: Vec::new(),
                    frames: replies,
                };
                self.send(reactor, SendBuf::heap(bytes));
            }
            Ok(Greeting::Done) => {
                self.state = State::Open;
                self.shared.set_state(ConnectionState::Open);
                if let Some(direct) = self.direct.clone() {
                    let _once = self.shared.direct.set(direct);
                }
                self.protocol.opened();
            }
            Err(words) => self.end(reactor, CloseReason::Refused(words)),
        }
    }

    /// The reactor is done with a receive. It adds the callers to wake to `wakers`.
    pub fn received(
        &mut self,
        reactor: &mut Epoll,
        buf: RecvBuf,
        result: &io::Result<usize>,
        now: u64,
        wakers: &mut Vec<Waker>,
    ) {
        if matches!(self.state, State::Ending(_)) {
            return;
        }
        self.last_received = now;
        self.not_silent();
        match &mut self.encryption {
            Some(encryption) => encryption.arrived(buf, result),
            None => self.plaintext_received(reactor, buf, result, wakers),
        }
    }

    /// Plaintext has arrived, or the end of it.
    #[inline]
    fn plaintext_received(
        &mut self,
        reactor: &mut Epoll,
        buf: RecvBuf,
        result: &io::Result<usize>,
        wakers: &mut Vec<Waker>,
    ) {
        let count = match result {
            Ok(0) => return self.lost(reactor, io::ErrorKind::UnexpectedEof),
            Ok(count) => *count,
            Err(error) => return self.lost(reactor, error.kind()),
        };
        self.count_callers();
        let meters = &self.shared.meters;
        meters.reads.add(1);
        profile::count(Stage::Receive, 1);
        meters.bytes_received.add(count as u64);
        let Store::Heap(bytes) = buf.into_store() else {
            unreachable!("this receive had private memory");
        };
        if let Err(reason) = self.absorb(reactor, &bytes[..count], wakers) {
            return self.end(reactor, reason);
        }
        if !matches!(self.state, State::Ending(_)) {
            let len = bytes.len();
            match (&mut self.encryption, self.token) {
                (Some(encryption), _) => encryption.receive(bytes),
                (None, Some(token)) => reactor.recv(token, RecvBuf::heap(bytes, 0..len)),
                (None, None) => {}
            }
        }
    }

    fn absorb(
        &mut self,
        reactor: &mut Epoll,
        mut bytes: &[u8],
        wakers: &mut Vec<Waker>,
    ) -> Result<(), CloseReason> {
        while let State::Greeting { .. } | State::Connecting = self.state {
            if bytes.is_empty() {
                return Ok(());
            }
            bytes = self.absorb_greeting(reactor, bytes)?;
        }
        if matches!(self.state, State::Ending(_)) {
            return Ok(());
        }
        let before = self.next_reply;
        let timing = Timing::start();
        let result = self.absorb_replies(bytes, wakers);
        let count = self.next_reply.wrapping_sub(before);
        timing.stop(Stage::Parse, count.into());
        if count > 0 {
            self.shared.meters.replies_read(count.into());
            self.shared.in_flight.leave(count as usize);
        }
        result
    }

    fn absorb_greeting<'b>(
        &mut self,
        reactor: &mut Epoll,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], CloseReason> {
        let part = self.protocol.advance(bytes);
        let part = part.map_err(|bad| CloseReason::BadReply(bad.what))?;
        let (bytes, rest) = bytes.split_at(part.taken);
        let max = self.shared.limits.max_reply_bytes;
        match (&mut self.state, part.kind) {
            (State::Greeting { .. }, FrameKind::Reply) if self.sending => {
                return Err(CloseReason::BadReply("an answer before its question"));
            }
            (State::Greeting { reply, frames }, FrameKind::Reply) => {
                if reply.len() + bytes.len() > max {
                    return Err(CloseReason::BadReply(
                        "the answer to the greeting is too long",
                    ));
                }
                reply.extend_from_slice(bytes);
                *frames -= u32::from(part.complete);
                if *frames == 0 {
                    let reply = std::mem::take(reply);
                    self.greet(reactor, Some(&reply));
                }
            }
            (_, FrameKind::Push) => self.take_push(bytes, part.complete)?,
            (_, FrameKind::Reply) => {
                return Err(CloseReason::BadReply("a reply that nobody asked for"));
            }
        }
        Ok(rest)
    }

    /// Puts replies into their slots: one tight loop over all complete ones.
    fn absorb_replies(
        &mut self,
        mut bytes: &[u8],
        wakers: &mut Vec<Waker>,
    ) -> Result<(), CloseReason> {
        let shared = Arc::clone(&self.shared);
        let max = shared.limits.max_reply_bytes;
        let mut due = None;
        while !bytes.is_empty() {
            let part = self.protocol.advance(bytes);
            let part = part.map_err(|bad| CloseReason::BadReply(bad.what))?;
            let (these, rest) = bytes.split_at(part.taken);
            bytes = rest;
            if part.kind == FrameKind::Push {
                self.take_push(these, part.complete)?;
                continue;
            }
            let mut slot = due
                .take()
                .or_else(|| shared.slots.due(self.next_reply, max))
                .ok_or(CloseReason::BadReply("a reply that nobody asked for"))?;
            let unusable = match slot.is_of_several() {
                true => {
                    let is_last = slot.is_at_last_frame();
                    self.protocol.part_of_several(these, part.complete, is_last)
                }
                false => Ok(()),
            };
            if slot.add(these, part.complete, wakers) {
                self.answered_bytes += slot.command_len();
                let (class, since) = slot.command_class();
                shared.meters.answered(class, since, self.last_received);
                self.next_reply = self.next_reply.wrapping_add(1);
                wakers.extend(slot.end());
            } else {
                due = Some(slot);
            }
            // The caller has this reply by now; those behind it must not have theirs.
            unusable.map_err(CloseReason::Unusable)?;
        }
        Ok(())
    }

    fn take_push(&mut self, bytes: &[u8], complete: bool) -> Result<(), CloseReason> {
        let frame = if complete && self.push.is_empty() {
            bytes
        } else {
            if self.push.len() + bytes.len() > self.shared.limits.max_reply_bytes {
                return Err(CloseReason::BadReply(
                    "a push is larger than the limit of replies",
                ));
            }
            self.push.extend_from_slice(bytes);
            &self.push
        };
        if complete {
            self.shared.meters.pushes.add(1);
            self.protocol.push(frame);
            self.push.clear();
            self.push.shrink_to(KEPT_PUSH_BYTES);
        }
        Ok(())
    }

    /// Sends what the ring holds. True when there is more, for the next turn. It adds the callers to
    /// wake to `wakers`.
    pub fn flush(&mut self, reactor: &mut Epoll, wakers: &mut Vec<Waker>) -> bool {
        if self.shared.is_close_requested() {
            self.end(reactor, CloseReason::Closed);
        }
        match self.encryption {
            Some(_) => self.flush_encrypted(reactor, wakers),
            None => self.flush_ring(reactor),
        }
    }

    fn flush_ring(&mut self, reactor: &mut Epoll) -> bool {
        if self.sending || !matches!(self.state, State::Open) {
            return false;
        }
        for _ in 0..WRITES_PER_TURN {
            let Some(mut span) = self.shared.ring.span() else {
                self.send_large(reactor);
                return false;
            };
            let wanted = span.bytes().len();
            self.count_callers();
            let (meters, end_ticket) = (&self.shared.meters, span.end_ticket());
            meters.sent_until(end_ticket, &mut self.sent_ticket, 1);
            let written = &self.shared.written_ticket;
            written.store(end_ticket, Ordering::Relaxed);
            let timing = Timing::start();
            let count = self
                .direct
                .as_ref()
                .and_then(|direct| direct.try_send(&mut span).ok());
            timing.stop(Stage::Send, 1);
            let count = count.unwrap_or(0);
            self.wrote(count);
            if count < wanted {
                // The reactor waits for room in the socket, or reports what is wrong.
                self.send(reactor, SendBuf::ring(span, Body::Empty));
                return false;
            }
            if !span.finish() {
                self.send_large(reactor);
                return false;
            }
        }
        true
    }

    fn send_large(&mut self, reactor: &mut Epoll) {
        if let Some(mut large) = self.shared.larges.next(&self.shared.ring) {
            let bytes = std::mem::take(&mut large.bytes);
            self.large = Some(large);
            self.send(reactor, SendBuf::heap(bytes));
        }
    }

    fn send(&mut self, reactor: &mut Epoll, buf: SendBuf) {
        let Some(token) = self.token else {
            return;
        };
        self.sending = true;
        match &mut self.encryption {
            Some(encryption) => encryption.send(buf),
            None => reactor.send(token, buf),
        }
    }

    /// Adds to the meters what callers sent by themselves since the last time.
    fn count_callers(&mut self) {
        let now = self.shared.caller_writes.read();
        if now == self.caller_writes {
            return;
        }
        let before = std::mem::replace(&mut self.caller_writes, now);
        let meters = &self.shared.meters;
        meters.bytes_sent.add(now.bytes - before.bytes);
        let writes = now.writes - before.writes;
        meters.writes.add(writes);
        meters.sent_until(now.end_ticket, &mut self.sent_ticket, writes);
    }

    fn wrote(&mut self, count: usize) {
        self.sent_bytes += count as u64;
        let meters = &self.shared.meters;
        meters.bytes_sent.add(count as u64);
        meters.writes.add(u64::from(count > 0));
    }

    /// The reactor is done with a send.
    pub fn sent(&mut self, reactor: &mut Epoll, buf: SendBuf, result: &io::Result<()>) {
        match &mut self.encryption {
            Some(encryption) => encryption.sent(buf, result),
            None => self.was_sent(reactor, buf, result),
        }
    }

    /// A send is over: its bytes have left, or never will.
    #[inline]
    fn was_sent(&mut self, reactor: &mut Epoll, buf: SendBuf, result: &io::Result<()>) {
        self.sending = false;
        let count = buf.sent();
        let from_ring = matches!(buf.into_parts().0, Head::Ring(_));
        if let Some(LargeCommand { place, .. }) = self.large.take() {
            self.wrote(count);
            let meters = &self.shared.meters;
            meters.sent_until(place.ticket().wrapping_add(1), &mut self.sent_ticket, 1);
            // The reservation is empty, so the ring sends nothing of it; the commands behind it may go now.
            let _ = place.commit();
            self.shared.larges.over(count);
        } else if from_ring {
            self.wrote(count);
        }
        if let Err(error) = result {
            self.lost(reactor, error.kind());
        }
    }

    /// Closes the socket; [`ConnectionDriver::finish`] does the rest.
    pub fn end(&mut self, reactor: &mut Epoll, reason: CloseReason) {
        if matches!(self.state, State::Ending(_)) {
            return;
        }
        if let Some(token) = self.token {
            reactor.close(token);
        }
        self.shared.ring.close();
        let _ = self.shared.close_reason.set(reason);
        let reason = self
            .shared
            .close_reason
            .get()
            .cloned()
            .unwrap_or(CloseReason::Closed);
        self.shared.set_state(ConnectionState::Closed);
        self.state = State::Ending(reason);
        if let Some(buf) = self.encryption.as_mut().and_then(Encryption::take_back) {
            self.was_sent(reactor, buf, &Ok(()));
        }
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    /// Fails the calls that wait for replies. True when none is left.
    pub fn finish(&mut self, wakers: &mut Vec<Waker>) -> bool {
        // The buffer that the reactor gives back says how much was sent.
        if !self.is_ending() || self.sending {
            return false;
        }
        // A caller may be sending right now, too.
        self.callers_stopped = self.callers_stopped || self.shared.ring.cork();
        if !self.callers_stopped {
            return false;
        }
        self.count_callers();
        let State::Ending(reason) = &self.state else {
            return false;
        };
        let shared = &self.shared;
        let sent = self.sent_bytes + self.caller_writes.bytes;
        let mut end = self.answered_bytes;
        while let Some(oldest) = shared.slots.in_flight(self.next_reply) {
            let begin = end;
            end += oldest.len;
            let error = if end <= sent || (oldest.divisible && begin < sent) {
                CallError::Unknown(reason.clone())
            } else {
                CallError::NotSent(reason.clone())
            };
            self.answered_bytes = end;
            wakers.extend(shared.slots.fail(self.next_reply, error, true));
            self.next_reply = self.next_reply.wrapping_add(1);
            shared.in_flight.leave(1);
        }
        shared.larges.end();
        shared.in_flight.end();
        // Otherwise a caller is between its reservation and its slot.
        let over = shared.in_flight.count() == 0;
        if over {
            self.protocol.closed(reason);
        }
        over
    }

    /// The driver ends with this connection in any state: fails all calls, which only the driver could
    /// complete.
    pub fn abandon(&mut self, wakers: &mut Vec<Waker>) {
        /// How often to look for callers that are between their reservation and their slot: they get
        /// there in no time.
        const LOOKS: usize = 1_000;
        if !matches!(self.state, State::Ending(_)) {
            self.shared.ring.close();
            let _ = self.shared.close_reason.set(CloseReason::Closed);
            self.shared.set_state(ConnectionState::Closed);
            self.state = State::Ending(CloseReason::Closed);
        }
        if std::mem::take(&mut self.sending) {
            // The reactor has the right to send, and nothing tells any more what it sent.
            self.callers_stopped = true;
            self.sent_bytes = u64::MAX / 2;
        }
        for _ in 0..LOOKS {
            if self.finish(wakers) {
                return;
            }
            std::thread::yield_now();
        }
        tracing::error!("commands are left on a connection whose driver has ended");
    }
}

pub(crate) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
