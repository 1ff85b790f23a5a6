//! One session on its worker: carries events from the reactor to the link, what the link tells to
//! the handler, and the link's steps back to the reactor.

use std::io;
use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use embar_frame::{Now, Protocol};
use embar_transport::ring::Reservation;
use embar_transport::tls::Channel;
use embar_transport::{Body, Epoll, Head, Reactor, RecvBuf, SendBuf};

use super::client::Latch;
use super::handler::{BodyStore, Flow, Handler};
use super::session::Session;
use super::shared::ask;
use super::status::{self, StatusAnswer};
use super::timers::Armed;
use crate::{CloseReason, Closed, Incoming, Link, Step};
use gather::Gather;

mod bodies;
mod encrypted;
mod gather;
pub(super) mod perish;

/// A body on its way in; its bytes are received here and not by the link.
struct Arriving {
    id: u16,
    range: Range<usize>,
    /// `None` while the reactor has it.
    buf: Option<RecvBuf>,
}

/// See the module.
pub(super) struct Conn<P: Protocol> {
    link: Link<P>,
    /// Between the link and the reactor, if the session is encrypted.
    channel: Option<Channel>,
    /// `None` for a peer that is only told that there are too many.
    handler: Option<Box<dyn Handler>>,
    session: Session,
    /// Whom the caller of a connect waits at; only on the side that connected.
    latch: Option<Arc<Latch>>,
    pub(super) armed: Armed,
    arriving: Option<Arriving>,
    /// Its handler panicked, and is told nothing more but the end.
    broken: bool,
    paused: bool,
    /// The peer owes an answer about its figures.
    status_asked: bool,
    marker: Waker,
    /// Bytes of the body that the link sends.
    body_sending: Option<usize>,
    /// The place of that body in the ring, until the link began with it.
    body_place: Option<Reservation<'static>>,
    /// To end politely as soon as the bodies that wait are sent.
    finish_due: Option<CloseReason>,
    gather: Gather,
}

/// How a session stands after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Its token is good.
    Lives,
    /// Its token is stale, but buffers are still out.
    Closing,
    /// Nothing of it is out.
    Over,
}

impl<P: Protocol> Conn<P> {
    pub(super) fn new(
        link: Link<P>,
        handler: Option<Box<dyn Handler>>,
        session: Session,
        latch: Option<Arc<Latch>>,
        channel: Option<Channel>,
    ) -> Self {
        let marker = session.0.marker();
        // A reservation that another thread drops may leave something due.
        link.ring().on_due(marker.clone());
        Self {
            link,
            channel,
            handler,
            session,
            latch,
            armed: Armed::default(),
            arriving: None,
            broken: false,
            paused: false,
            status_asked: false,
            marker,
            body_sending: None,
            body_place: None,
            finish_due: None,
            gather: Gather::default(),
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn next_tick(&self) -> Option<Now> {
        self.link.next_tick()
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.link.tick(now);
    }

    /// The connection stands: other threads may write to it.
    pub(super) fn connected(&mut self, reactor: &Epoll) {
        // What is encrypted is written by the worker alone.
        if self.channel.is_none()
            && let Some(direct) = reactor.direct(self.session.0.token)
        {
            let _ = self.session.0.direct.set(direct);
        }
    }

    /// The peer could not be reached.
    pub(super) fn unreachable(&mut self, error: &io::Error) {
        let reason = CloseReason::Io(error.kind());
        self.link.close(reason, &error.to_string());
    }

    /// The reactor is done with a receive.
    pub(super) fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        match &mut self.channel {
            Some(channel) => channel.arrived(buf, result),
            None => self.got(buf, result, now),
        }
    }

    /// A receive that the link or a body asked for is over.
    fn got(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        // While a body arrives the link receives nothing.
        if self.arriving.as_ref().is_none_or(|a| a.buf.is_some()) {
            return self.link.received(buf, result, now);
        }
        let beyond = buf.overflow();
        match result {
            Ok(count @ 1..) => self.link.body_received(count - beyond, now),
            _ => {
                if let (_, Some(space)) = buf.into_parts() {
                    self.link.ahead_received(space, 0, now);
                }
                self.arriving = None;
                return self.link.end_of_stream(result, now);
            }
        }
        if self.link.is_ending() {
            // The rest of it goes where all else goes now.
            if let (_, Some(space)) = buf.into_parts() {
                self.link.ahead_received(space, beyond, now);
            }
            self.arriving = None;
            return self.link.discard_body(now);
        }
        self.body_goes_on(buf, now);
    }

    /// Asks for what is missing of a body, or hands it over.
    fn body_goes_on(&mut self, buf: RecvBuf, now: Now) {
        if buf.remaining() > 0 {
            if let Some(arriving) = &mut self.arriving {
                arriving.buf = Some(buf);
            }
            return;
        }
        let beyond = buf.overflow();
        let (store, ahead) = buf.into_parts();
        if let Some(space) = ahead {
            self.link.ahead_received(space, beyond, now);
        }
        let Some(Arriving { id, range, .. }) = self.arriving.take() else {
            return;
        };
        self.told(now, |handler, session| {
            handler.body_done(session, id, BodyStore(store), range);
        });
    }

    /// The reactor is done with a send.
    pub(super) fn sent(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        match &mut self.channel {
            Some(channel) => channel.sent(buf, result),
            None => self.wrote(buf, result, now),
        }
    }

    /// A send that the link asked for is over.
    fn wrote(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let shared = &self.session.0;
        shared.last_flush.store(now.0, Ordering::Relaxed);
        self.link.sent(buf, result, now);
    }

    /// Does what other threads, or handlers, asked for.
    pub(super) fn attend(&mut self, now: Now) {
        let asked = self.session.0.take_asked();
        if asked & ask::RESUME != 0 && mem::take(&mut self.paused) {
            self.link.hold(false, now);
        }
        if asked & ask::STATUS != 0 {
            self.link.request_status();
            self.status_asked = true;
        }
        if asked & ask::GOODBYE != 0 {
            self.link.goodbye("");
        }
        if asked & ask::CLOSE != 0 {
            let reason = *self.finish_due.get_or_insert(CloseReason::Finished);
            self.link.leave(reason, now);
        }
        if asked & ask::ABORT != 0 {
            self.link.close(CloseReason::Finished, "");
        }
        if asked & ask::FULL != 0 {
            self.link.close(CloseReason::Full, "");
        }
    }

    /// The worker stops: after a goodbye, and the bodies that wait, the session ends.
    pub(super) fn drain(&mut self) {
        self.link.goodbye("");
        self.finish_due.get_or_insert(CloseReason::Shutdown);
    }

    pub(super) fn cut(&mut self, reason: CloseReason) {
        self.link.close(reason, "");
    }

    /// Hands the handler what has arrived, and gathers what it sends.
    pub(super) fn deliver(&mut self, now: Now) {
        if self.paused {
            // The link is held: there is nothing to tell but, perhaps, the end.
            while self.deliver_one(now) {}
            return;
        }
        self.link.cork();
        self.note_mere_cork(self.link.is_merely_corked());
        let mut retried = false;
        loop {
            while self.deliver_one(now) {}
            let Some(room) = self.link.waits_for_room() else {
                return;
            };
            // Whoever makes room on another thread marks the session then.
            let mut context = Context::from_waker(&self.marker);
            let ready = self.link.ring().poll_room(room, &mut context);
            if ready.is_pending() {
                return;
            }
            // Room came and went while we looked, and nobody knows that we wait.
            if mem::replace(&mut retried, true) {
                return self.session.0.mark();
            }
        }
    }

    fn note_mere_cork(&self, on: bool) {
        let flag = &self.session.0.merely_corked;
        flag.store(on, Ordering::Relaxed);
    }

    /// False: there is nothing more to tell, or it must wait.
    fn deliver_one(&mut self, now: Now) -> bool {
        let Some(incoming) = self.link.next(now) else {
            return false;
        };
        match incoming {
            Incoming::Message(message) => {
                let Some(handler) = self.handler.as_mut().filter(|_| !self.broken) else {
                    return true;
                };
                let session = &self.session;
                let outcome = catch_unwind(AssertUnwindSafe(|| handler.message(session, message)));
                match outcome {
                    Ok(Flow::Continue) => {}
                    Ok(Flow::Pause) => return self.pause(now),
                    Err(_) => self.break_off(now),
                }
            }
            Incoming::Head(head) => {
                if self.broken {
                    return true;
                }
                let (id, target) =
                    match bodies::ask_for_body(&mut self.handler, &self.session, &head) {
                        Ok(Some(asked)) => asked,
                        Ok(None) => return self.pause(now),
                        Err(text) => {
                            match text {
                                Some(text) => self.link.refuse(0, &text, now),
                                None => self.break_off(now),
                            }
                            // The peer's own end comes behind it.
                            self.link.discard_body(now);
                            return true;
                        }
                    };
                return self.begin_body(id, target, now);
            }
            Incoming::Opened { greeting } => {
                let greeting = greeting.to_vec();
                self.open(&greeting, now);
            }
            Incoming::Goodbye { text } => {
                let text = text.to_owned();
                self.told(now, |handler, session| handler.goodbye(session, &text));
            }
            Incoming::Status => {
                let reply = status::reply(&self.session, now);
                // Without room there is no answer: who asks much is not worth waiting for.
                let _ = self
                    .link
                    .reply_status(reply.len(), |to| to.copy_from_slice(&reply));
            }
            Incoming::StatusReply { body } => match StatusAnswer::read(body) {
                Some(answer) if mem::take(&mut self.status_asked) => {
                    self.told(now, |handler, session| handler.status(session, answer));
                }
                Some(_) => {}
                None => self.link.fail(CloseReason::BadFrame, "STATUS_REPLY", now),
            },
            Incoming::Closed(why) => self.end(why, now),
        }
        true
    }

    /// The last thing told was not taken. False, as nothing more is to be told now.
    fn pause(&mut self, now: Now) -> bool {
        self.link.put_back();
        self.link.hold(true, now);
        self.paused = true;
        false
    }

    /// The first of a body is in the buffer already; true if that was all of it.
    fn begin_body(&mut self, id: u16, (buf, range): (RecvBuf, Range<usize>), now: Now) -> bool {
        self.arriving = Some(Arriving {
            id,
            range,
            buf: None,
        });
        let complete = buf.remaining() == 0;
        // What follows the body may come with its last bytes.
        let ahead = if complete {
            None
        } else {
            self.link.lend_ahead(usize::MAX)
        };
        let buf = match ahead {
            Some(space) => buf.then(space),
            None => buf,
        };
        self.body_goes_on(buf, now);
        complete
    }

    /// Calls the handler, unless there is none to call.
    fn told(&mut self, now: Now, tell: impl FnOnce(&mut dyn Handler, &Session)) {
        let Some(handler) = self.handler.as_mut().filter(|_| !self.broken) else {
            return;
        };
        let session = &self.session;
        if catch_unwind(AssertUnwindSafe(|| tell(&mut **handler, session))).is_err() {
            self.break_off(now);
        }
    }

    /// The handler panicked.
    fn break_off(&mut self, now: Now) {
        self.broken = true;
        let session = &self.session;
        tracing::error!(session = %session.id(), peer = %session.peer(), "a handler panicked: its session closes");
        self.link.fail(CloseReason::HandlerPanicked, "", now);
    }

    fn open(&mut self, greeting: &[u8], now: Now) {
        let group = Arc::clone(&self.session.0.group);
        if self.latch.is_none() {
            let Some(handler) = self.handler.as_mut() else {
                group.numbers.refused.add(1);
                return self.link.fail(CloseReason::TooManySessions, "", now);
            };
            let session = &self.session;
            match catch_unwind(AssertUnwindSafe(|| handler.greeted(session, greeting))) {
                Err(_) => return self.break_off(now),
                Ok(Err(text)) => {
                    group.numbers.refused.add(1);
                    return self.link.refuse(0, &text, now);
                }
                Ok(Ok(answer)) => {
                    if let Err(error) = self.link.welcome(&answer, now) {
                        return self
                            .link
                            .fail(CloseReason::Refused, &error.to_string(), now);
                    }
                }
            }
        }
        group.numbers.opened.add(1);
        self.told(now, |handler, session| handler.opened(session, greeting));
        if let Some(latch) = &self.latch {
            latch.tell(Ok(self.session.clone()));
        }
    }

    /// Tells the handler, as the last thing.
    fn end(&mut self, why: Closed, _now: Now) {
        let group = Arc::clone(&self.session.0.group);
        group.numbers.count_reason(why.reason);
        self.session.0.end(why.clone());
        if let Some(mut handler) = self.handler.take() {
            let session = &self.session;
            // Its destructor is the user's code, too.
            let told = catch_unwind(AssertUnwindSafe(move || {
                handler.closed(session, &why);
                drop(handler);
            }));
            if told.is_err() {
                tracing::error!(session = %session.id(), "a handler panicked while its session closed");
            }
        }
        if let (Some(latch), Some(why)) = (&self.latch, self.session.0.ended.get()) {
            latch.tell(Err(why.clone()));
        }
    }

    /// Whether bodies wait for their turn, or one is on its way.
    fn has_bodies(&self) -> bool {
        let sending = self.link.is_open() && !self.link.may_send_body();
        sending || self.session.0.has_bodies()
    }

    /// Hands the link a body to send, when it is its turn.
    fn feed_body(&mut self) {
        if !self.link.may_send_body() {
            return;
        }
        if let Some(sent) = self.body_sending.take() {
            self.session.0.give_body_room(sent);
        }
        let Some(queued) = self.session.0.next_body() else {
            return;
        };
        let body = Body::Shared(Arc::clone(&queued.bytes));
        self.link.send_body(queued.place.to_vec(), body);
        self.body_sending = Some(queued.bytes.len());
        self.body_place = Some(queued.place);
        self.session.0.numbers.bodies_sent.add(1);
    }

    /// Carries out what the link wants done. Bytes enter and leave the session here alone, or, if
    /// it is encrypted, in `encrypted.rs`.
    pub(super) fn settle(&mut self, reactor: &mut Epoll, now: Now) -> Standing {
        self.note_mere_cork(false);
        self.end_gathering();
        if self.channel.is_some() {
            return self.settle_encrypted(reactor, now);
        }
        self.carry_out(reactor, now)
    }

    fn carry_out(&mut self, reactor: &mut Epoll, now: Now) -> Standing {
        let token = self.session.0.token;
        // Before anything is written: who has an answer finds its question counted.
        self.publish();
        let mut standing = Standing::Lives;
        // Once per round, so that a session with much to send does not keep the worker.
        let mut may_write = true;
        let mut written = false;
        self.feed_body();
        let mut asked_again = false;
        loop {
            let Some(step) = self.link.poll() else {
                if mem::take(&mut written) {
                    // A body may have come to the front; no completion will tell.
                    self.feed_body();
                    continue;
                }
                if let Some(reason) = self.finish_due.filter(|_| !self.has_bodies()) {
                    self.finish_due = None;
                    self.link.fail(reason, "", now);
                    continue;
                }
                if asked_again || !self.link.waits_for_release() {
                    break;
                }
                // A message that was kept and is dropped after this marks the session; for one
                // dropped before, the link is asked once more.
                self.link.on_release(self.marker.clone());
                asked_again = true;
                continue;
            };
            match step {
                Step::Recv(buf) => self.receive(reactor, buf),
                Step::Send(buf) => {
                    match self.write(buf, &mut may_write, now) {
                        Some(buf) => match &mut self.channel {
                            Some(channel) => channel.send(buf),
                            None => reactor.send(token, buf),
                        },
                        None => written = true,
                    }
                    // With its place at the front of the ring, nothing but the body can go next; what
                    // is behind it may follow now.
                    self.body_place = None;
                }
                Step::ShutdownWrite => match &mut self.channel {
                    Some(channel) => channel.shutdown(),
                    None => drop(reactor.shutdown_write(token)),
                },
                Step::Close => {
                    reactor.close(token);
                    standing = Standing::Closing;
                }
            }
        }
        if let Some(arriving) = &mut self.arriving
            && standing == Standing::Lives
            && let Some(buf) = arriving.buf.take()
        {
            self.receive(reactor, buf);
        }
        if self.link.closed().is_some() {
            // A step may have found the end; what is left to tell is that.
            while self.deliver_one(now) {}
        }
        let body_out = self.arriving.as_ref().is_some_and(|a| a.buf.is_none());
        if self.link.is_over() && !body_out {
            standing = Standing::Over;
        }
        standing
    }

    fn receive(&mut self, reactor: &mut Epoll, buf: RecvBuf) {
        match &mut self.channel {
            Some(channel) => channel.receive(buf),
            None => reactor.recv(self.session.0.token, buf),
        }
    }

    /// Writes a span of the ring right here, which saves a round of the reactor; returns what is
    /// left for that.
    fn write(&mut self, buf: SendBuf, may_write: &mut bool, now: Now) -> Option<SendBuf> {
        let shared = &self.session.0;
        let Some(direct) = shared.direct.get().filter(|_| *may_write) else {
            return Some(buf);
        };
        let mut span = match buf.into_parts() {
            (Head::Ring(span), Body::Empty) => span,
            (Head::Ring(span), body) => return Some(SendBuf::ring(span, body)),
            (Head::Heap(head), body) => return Some(SendBuf::new(head, body)),
        };
        *may_write = false;
        // What cannot be written, for whatever reason, is the reactor's to wait for or to report.
        if let Ok(count) = direct.try_send(&mut span) {
            shared.sender.wrote(count);
        }
        let done = span.bytes().is_empty();
        let buf = SendBuf::ring(span, Body::Empty);
        if done {
            self.wrote(buf, &Ok(()), now);
            return None;
        }
        Some(buf)
    }

    fn publish(&self) {
        let stats = self.link.stats();
        let numbers = &self.session.0.numbers;
        numbers.messages_received.set(stats.messages_in);
        numbers.bytes_received.set(stats.bytes_in);
        numbers.kept_bytes.set(stats.kept_bytes as u64);
        if let Some(rtt) = stats.rtt {
            let nanos = u64::try_from(rtt.last.as_nanos()).unwrap_or(u64::MAX);
            numbers.round_trip.set(nanos.max(1));
        }
    }
}
