//! One connection, as its driver sees it: bytes in, replies to their slots; spans of the ring out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use embar_transport::buffer::Head;
use embar_transport::{Body, DirectSend, Epoll, Reactor, RecvBuf, SendBuf, Store, Token};

use crate::conn::{Large, Shared, Standing};
use crate::direct::Tallied;
use crate::error::{CallError, Reason};
use crate::framing::Kind;
use crate::profile::{self, Stage, Timing};
use crate::protocol::{Greeting, Protocol};
pub(crate) use secure::Secure;

mod secure;

/// Bytes received at once.
const READ_BYTES: usize = 64 << 10;
/// Writes to one connection before others have their turn.
const WRITES_PER_TURN: usize = 4;
/// Memory that a connection keeps for the next push, bytes.
const KEPT_PUSH_BYTES: usize = 64 << 10;

enum State {
    Connecting,
    /// The answer to the greeting, and how many frames of it are to come.
    Greeting {
        reply: Vec<u8>,
        frames: u32,
    },
    Open,
    /// It is cut, and what is out comes back.
    Ending(Reason),
}

/// See the module.
pub(crate) struct Line<P> {
    pub shared: Arc<Shared>,
    /// `None` if not even a socket could be made.
    pub token: Option<Token>,
    protocol: P,
    /// What stands between the line and the reactor, if it is encrypted.
    secure: Option<Secure>,
    state: State,
    /// `None` if what is sent must be encrypted before.
    direct: Option<DirectSend>,
    /// What callers wrote themselves, as far as it is counted.
    tallied: Tallied,
    /// It is over, and no caller can write any more.
    silenced: bool,
    /// A send is out.
    sending: bool,
    /// What it sends, if that does not come from the ring.
    large: Option<Large>,
    /// The ticket whose reply is due.
    next: u32,
    /// The ticket after those that were sent.
    written: u32,
    /// Bytes of commands that were written, and of those that were answered.
    sent: u64,
    answered: u64,
    last_heard: u64,
    /// When connecting and greeting must be over.
    connected_by: u64,
    push: Vec<u8>,
}

impl<P: Protocol> Line<P> {
    pub fn new(
        shared: Arc<Shared>,
        token: Option<Token>,
        secure: Option<Secure>,
        protocol: P,
        now: u64,
    ) -> Self {
        let patience = nanos(shared.limits.connect_timeout);
        Self {
            shared,
            token,
            protocol,
            secure,
            state: State::Connecting,
            direct: None,
            tallied: Tallied::default(),
            silenced: false,
            sending: false,
            large: None,
            next: 0,
            written: 0,
            sent: 0,
            answered: 0,
            last_heard: now,
            connected_by: now.saturating_add(patience),
            push: Vec::new(),
        }
    }

    pub fn connected(&mut self, reactor: &mut Epoll, result: io::Result<()>) {
        if let Err(error) = result {
            return self.end(reactor, Reason::Unreachable(error.kind()));
        }
        if !matches!(self.state, State::Connecting) {
            return;
        }
        let Some(token) = self.token else {
            return;
        };
        if let Some(secure) = &mut self.secure {
            return secure.begin();
        }
        self.direct = reactor.direct(token);
        let buf = RecvBuf::heap(vec![0; READ_BYTES], 0..READ_BYTES);
        reactor.recv(token, buf);
        self.greet(reactor, None);
    }

    fn greet(&mut self, reactor: &mut Epoll, reply: Option<&[u8]>) {
        match self.protocol.greet(reply) {
            Ok(Greeting::Say { bytes, replies }) => {
                assert!(replies > 0, "a greeting is answered");
                self.state = State::Greeting {
                    reply: Vec::new(),
                    frames: replies,
                };
                self.send(reactor, SendBuf::heap(bytes));
            }
            Ok(Greeting::Done) => {
                self.state = State::Open;
                self.shared.set_standing(Standing::Open);
                if let Some(direct) = self.direct.clone() {
                    let _once = self.shared.direct.set(direct);
                }
                self.protocol.opened();
            }
            Err(words) => self.end(reactor, Reason::Refused(words)),
        }
    }

    /// The reactor is done with a receive. Those to wake are added to `wakers`.
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
        self.last_heard = now;
        match &mut self.secure {
            Some(secure) => secure.arrived(buf, result),
            None => self.got(reactor, buf, result, wakers),
        }
    }

    /// What the server said has arrived here, or the end of it.
    #[inline]
    fn got(
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
        let counters = &self.shared.counters;
        counters.reads.add(1);
        profile::count(Stage::Receive, 1);
        counters.bytes_received.add(count as u64);
        let Store::Heap(bytes) = buf.into_store() else {
            unreachable!("it was received into private memory");
        };
        if let Err(reason) = self.absorb(reactor, &bytes[..count], wakers) {
            return self.end(reactor, reason);
        }
        if !matches!(self.state, State::Ending(_)) {
            let len = bytes.len();
            match (&mut self.secure, self.token) {
                (Some(secure), _) => secure.receive(bytes),
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
    ) -> Result<(), Reason> {
        while let State::Greeting { .. } | State::Connecting = self.state {
            if bytes.is_empty() {
                return Ok(());
            }
            bytes = self.absorb_greeting(reactor, bytes)?;
        }
        if matches!(self.state, State::Ending(_)) {
            return Ok(());
        }
        let before = self.next;
        let timing = Timing::start();
        let result = self.absorb_replies(bytes, wakers);
        let count = self.next.wrapping_sub(before);
        timing.stop(Stage::Parse, count.into());
        if count > 0 {
            self.shared.counters.read_together(count.into());
            self.shared.leave(count as usize);
        }
        result
    }

    fn absorb_greeting<'b>(
        &mut self,
        reactor: &mut Epoll,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], Reason> {
        let part = self.protocol.advance(bytes);
        let part = part.map_err(|bad| Reason::BadReply(bad.what))?;
        let (bytes, rest) = bytes.split_at(part.taken);
        let max = self.shared.limits.max_reply_bytes;
        match (&mut self.state, part.kind) {
            (State::Greeting { .. }, Kind::Reply) if self.sending => {
                return Err(Reason::BadReply("an answer before its question"));
            }
            (State::Greeting { reply, frames }, Kind::Reply) => {
                if reply.len() + bytes.len() > max {
                    return Err(Reason::BadReply("the answer to the greeting is too long"));
                }
                reply.extend_from_slice(bytes);
                *frames -= u32::from(part.complete);
                if *frames == 0 {
                    let reply = std::mem::take(reply);
                    self.greet(reactor, Some(&reply));
                }
            }
            (_, Kind::Push) => self.take_push(bytes, part.complete)?,
            (_, Kind::Reply) => return Err(Reason::BadReply("a reply that nobody asked for")),
        }
        Ok(rest)
    }

    /// One tight loop over all that is complete.
    fn absorb_replies(&mut self, mut bytes: &[u8], wakers: &mut Vec<Waker>) -> Result<(), Reason> {
        let shared = Arc::clone(&self.shared);
        let max = shared.limits.max_reply_bytes;
        let mut due = None;
        while !bytes.is_empty() {
            let part = self.protocol.advance(bytes);
            let part = part.map_err(|bad| Reason::BadReply(bad.what))?;
            let (these, rest) = bytes.split_at(part.taken);
            bytes = rest;
            if part.kind == Kind::Push {
                self.take_push(these, part.complete)?;
                continue;
            }
            let mut slot = due
                .take()
                .or_else(|| shared.slots.due(self.next, max))
                .ok_or(Reason::BadReply("a reply that nobody asked for"))?;
            if slot.add(these, part.complete) {
                self.answered += slot.command_len();
                let (class, since) = slot.command_class();
                shared.counters.answered(class, since, self.last_heard);
                self.next = self.next.wrapping_add(1);
                wakers.extend(slot.end());
            } else {
                due = Some(slot);
            }
        }
        Ok(())
    }

    fn take_push(&mut self, bytes: &[u8], complete: bool) -> Result<(), Reason> {
        let frame = if complete && self.push.is_empty() {
            bytes
        } else {
            if self.push.len() + bytes.len() > self.shared.limits.max_reply_bytes {
                return Err(Reason::BadReply(
                    "a push is larger than the limit of replies",
                ));
            }
            self.push.extend_from_slice(bytes);
            &self.push
        };
        if complete {
            self.shared.counters.pushes.add(1);
            self.protocol.push(frame);
            self.push.clear();
            self.push.shrink_to(KEPT_PUSH_BYTES);
        }
        Ok(())
    }

    /// Writes what the ring holds. True: there is more, for the next turn. Those to wake are added
    /// to `wakers`.
    pub fn flush(&mut self, reactor: &mut Epoll, wakers: &mut Vec<Waker>) -> bool {
        if self.shared.is_asked_to_close() {
            self.end(reactor, Reason::Closed);
        }
        match self.secure {
            Some(_) => self.flush_secure(reactor, wakers),
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
            let counters = &self.shared.counters;
            counters.sent_until(span.end_ticket(), &mut self.written, 1);
            let timing = Timing::start();
            let count = self
                .direct
                .as_ref()
                .and_then(|direct| direct.try_send(&mut span).ok());
            timing.stop(Stage::Send, 1);
            let count = count.unwrap_or(0);
            self.wrote(count);
            if count < wanted {
                // The reactor waits for room, or reports what is wrong.
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
        if let Some(mut large) = self.shared.next_large() {
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
        match &mut self.secure {
            Some(secure) => secure.send(buf),
            None => reactor.send(token, buf),
        }
    }

    /// Counts what callers wrote themselves since it was counted last.
    fn count_callers(&mut self) {
        let tallied = self.shared.by_callers.read();
        if tallied == self.tallied {
            return;
        }
        let before = std::mem::replace(&mut self.tallied, tallied);
        let counters = &self.shared.counters;
        counters.bytes_sent.add(tallied.bytes - before.bytes);
        let writes = tallied.writes - before.writes;
        counters.writes.add(writes);
        counters.sent_until(tallied.until, &mut self.written, writes);
    }

    fn wrote(&mut self, count: usize) {
        self.sent += count as u64;
        let counters = &self.shared.counters;
        counters.bytes_sent.add(count as u64);
        counters.writes.add(u64::from(count > 0));
    }

    /// The reactor is done with a send.
    pub fn sent(&mut self, reactor: &mut Epoll, buf: SendBuf, result: &io::Result<()>) {
        match &mut self.secure {
            Some(secure) => secure.sent(buf, result),
            None => self.was_sent(reactor, buf, result),
        }
    }

    /// What was to be sent has left, or will not any more.
    #[inline]
    fn was_sent(&mut self, reactor: &mut Epoll, buf: SendBuf, result: &io::Result<()>) {
        self.sending = false;
        let count = buf.sent();
        let from_ring = matches!(buf.into_parts().0, Head::Ring(_));
        if let Some(Large { place, .. }) = self.large.take() {
            self.wrote(count);
            let counters = &self.shared.counters;
            counters.sent_until(place.ticket().wrapping_add(1), &mut self.written, 1);
            // It is empty, so nothing of it is ever sent; those behind it may go now.
            let _ = place.commit();
            self.shared.large_over(count);
        } else if from_ring {
            self.wrote(count);
        }
        if let Err(error) = result {
            self.lost(reactor, error.kind());
        }
    }

    /// Cuts the connection; what follows is [`Line::finish`].
    pub fn end(&mut self, reactor: &mut Epoll, reason: Reason) {
        if matches!(self.state, State::Ending(_)) {
            return;
        }
        if let Some(token) = self.token {
            reactor.close(token);
        }
        self.shared.ring.close();
        let _ = self.shared.ended.set(reason);
        let reason = self.shared.ended.get().cloned().unwrap_or(Reason::Closed);
        self.shared.set_standing(Standing::Closed);
        self.state = State::Ending(reason);
        if let Some(buf) = self.secure.as_mut().and_then(Secure::take_back) {
            self.was_sent(reactor, buf, &Ok(()));
        }
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    /// Tells those who wait for replies that none will come. True: nobody is left.
    pub fn finish(&mut self, wakers: &mut Vec<Waker>) -> bool {
        // Only what comes back with the send that is out tells what was written.
        if !self.is_ending() || self.sending {
            return false;
        }
        // A caller may just be writing, too.
        self.silenced = self.silenced || self.shared.ring.cork();
        if !self.silenced {
            return false;
        }
        self.count_callers();
        let State::Ending(reason) = &self.state else {
            return false;
        };
        let shared = &self.shared;
        let sent = self.sent + self.tallied.bytes;
        let mut end = self.answered;
        while let Some(oldest) = shared.slots.oldest(self.next) {
            let begin = end;
            end += oldest.len;
            let error = if end <= sent || (oldest.divisible && begin < sent) {
                CallError::Unknown(reason.clone())
            } else {
                CallError::NotSent(reason.clone())
            };
            self.answered = end;
            wakers.extend(shared.slots.fail(self.next, error, true));
            self.next = self.next.wrapping_add(1);
            shared.leave(1);
        }
        shared.drop_larges();
        shared.wake_waiting();
        // Otherwise a caller is just between its reservation and its slot.
        let over = shared.in_flight() == 0;
        if over {
            self.protocol.closed(reason);
        }
        over
    }

    /// The driver is no more: nobody waits any longer for what only it could do.
    pub fn abandon(&mut self, wakers: &mut Vec<Waker>) {
        /// Callers that are between their reservation and their slot are there in no time.
        const LOOKS: usize = 1_000;
        if !matches!(self.state, State::Ending(_)) {
            self.shared.ring.close();
            let _ = self.shared.ended.set(Reason::Closed);
            self.shared.set_standing(Standing::Closed);
            self.state = State::Ending(Reason::Closed);
        }
        if std::mem::take(&mut self.sending) {
            // The reactor has the right to send, and what it did with it is not known any more.
            self.silenced = true;
            self.sent = u64::MAX / 2;
        }
        for _ in 0..LOOKS {
            if self.finish(wakers) {
                return;
            }
            std::thread::yield_now();
        }
        tracing::error!("commands are left on a connection whose driver has ended");
    }

    /// Gives up what takes too long. True: something is in flight or being made, so look again.
    pub fn tick(&mut self, reactor: &mut Epoll, now: u64, wakers: &mut Vec<Waker>) -> bool {
        self.count_callers();
        match &self.state {
            State::Connecting | State::Greeting { .. } => {
                if now >= self.connected_by {
                    self.too_late(reactor);
                }
            }
            State::Open => {}
            State::Ending(_) => return true,
        }
        let shared = Arc::clone(&self.shared);
        if shared.in_flight() == 0 {
            return !matches!(self.state, State::Open);
        }
        let hasty = shared.hasty.load(Ordering::Relaxed) > 0;
        let mut ticket = self.next;
        while let Some(oldest) = shared.slots.oldest(ticket) {
            if oldest.deadline <= now {
                if oldest.wanted {
                    shared.counters.timeouts.add(1);
                    wakers.extend(shared.slots.fail(ticket, CallError::TimedOut, false));
                }
            } else if !hasty {
                break;
            }
            ticket = ticket.wrapping_add(1);
        }
        let dead_after = nanos(shared.limits.dead_after);
        if let Some(oldest) = shared.slots.oldest(self.next)
            && matches!(self.state, State::Open)
            && now.saturating_sub(oldest.since.max(self.last_heard)) > dead_after
        {
            self.end(reactor, Reason::Silent);
        }
        true
    }
}

pub(crate) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
