//! One session on its worker: carries events from the reactor to the core, events of the core to
//! the handler, and the core's steps back to the reactor.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use embar_frame::{Now, Protocol};
use embar_transport::ring::{Reservation, RoomWait};
use embar_transport::tls::Channel;
use embar_transport::{Body, Epoll, Head, Reactor, RecvBuf, SendBuf};

use super::admission::Network;
use super::connecting::ConnectOutcome;
use super::handler::{Flow, Handler};
use super::refusal::Refusal;
use super::registry::Registry;
use super::session::Session;
use super::settings::StatusPolicy;
use super::status::{self, StatusAnswer};
use super::timer_queue::TimerEntry;
use crate::{CloseReason, Closed, Incoming, SessionCore, Step};
use bodies::{IncomingBody, Places};
pub(super) use encrypted::tls_end;
use gather::Gather;
use lanes::InLanes;
use pace::Pace;
use share::Share;

mod bodies;
mod datagrams;
mod encrypted;
mod gather;
mod lanes;
mod latest;
mod pace;
mod requests;
mod share;
mod telling;
mod termination;
mod timing;

/// One session on its worker: its core, its handler, and what both wait for.
pub(super) struct SessionDriver<P: Protocol> {
    core: SessionCore<P>,
    /// Between the core and the reactor, if the session is encrypted.
    channel: Option<Channel>,
    /// Until it knows of the end.
    handler: Option<Box<dyn Handler>>,
    session: Session,
    registry: Arc<Registry>,
    /// Where the caller of a connect waits; only on the side that connected.
    outcome: Option<Arc<ConnectOutcome>>,
    pub(super) timer: TimerEntry,
    incoming_body: Option<IncomingBody>,
    lanes: InLanes,
    /// As whom the peer counts, if it connected.
    network: Option<Network>,
    /// Its handler panicked, and gets nothing more but the end.
    broken: bool,
    /// Its handler has a message: a panic now is the handler's.
    has_message: bool,
    paused: bool,
    /// What its handler gets beside messages: bits of [`timing::due`].
    due: u8,
    /// Its datagrams took a whole turn, and its messages have the next one.
    datagrams_wait: bool,
    /// The peer owes an answer about its figures.
    status_asked: bool,
    marker: Waker,
    /// Waits until there is room for an answer to the next message.
    room: RoomWait,
    /// Waits until there is room for what broadcasts left to wait.
    latest_room: Option<Box<RoomWait>>,
    /// That wait is given up until the one for an answer's room is over.
    latest_gave_way: bool,
    /// Bytes of the body that the core sends.
    body_sending: Option<usize>,
    /// The place of that body in the ring, until the core began with it.
    body_place: Option<Reservation<'static>>,
    /// Bodies that the core has for lanes, and what each counts.
    lane_bodies: VecDeque<(u64, usize)>,
    /// To end politely as soon as the bodies that wait are sent.
    finish_due: Option<CloseReason>,
    gather: Gather,
    share: Share,
    span: Option<Box<tracing::Span>>,
    /// Where there are rates.
    pace: Option<Box<Pace>>,
}

/// How a session stands after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverState {
    /// Its token is good.
    Live,
    /// Its token is stale, but buffers are still out.
    Closing,
    /// Nothing of it is out.
    Over,
}

impl<P: Protocol> SessionDriver<P> {
    pub(super) fn new(
        mut core: SessionCore<P>,
        handler: Box<dyn Handler>,
        session: Session,
        registry: Arc<Registry>,
        outcome: Option<Arc<ConnectOutcome>>,
        channel: Option<Channel>,
    ) -> Self {
        let marker = session.0.marker();
        // A reservation that another thread drops may leave something due.
        core.ring().on_due(marker.clone());
        let room = core.ring().room_wait();
        let admission = &session.0.group.settings.admission;
        let network = match outcome {
            Some(_) => None,
            None => admission.network_of(session.peer()),
        };
        let pace = Pace::of(&session);
        if let Some(pace) = &pace {
            let usual = session.0.group.settings.session.read_ahead;
            core.set_read_ahead(pace.read_ahead(usual));
        }
        Self {
            core,
            channel,
            handler: Some(handler),
            session,
            registry,
            outcome,
            timer: TimerEntry::default(),
            incoming_body: None,
            lanes: InLanes::default(),
            network,
            broken: false,
            has_message: false,
            paused: false,
            due: 0,
            datagrams_wait: false,
            status_asked: false,
            marker,
            room,
            latest_room: None,
            latest_gave_way: false,
            body_sending: None,
            body_place: None,
            lane_bodies: VecDeque::new(),
            finish_due: None,
            gather: Gather::default(),
            share: Share::default(),
            span: None,
            pace,
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
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
        self.core.close(reason, &error.to_string());
    }

    /// The reactor is done with a receive.
    pub(super) fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        match &mut self.channel {
            Some(channel) => channel.arrived(buf, result),
            None => self.got(buf, result, now),
        }
    }

    /// The reactor is done with a send.
    pub(super) fn sent(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        match &mut self.channel {
            Some(channel) => channel.sent(buf, result),
            None => self.wrote(buf, result, now),
        }
    }

    /// A send that the core asked for is over.
    fn wrote(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let shared = &self.session.0;
        shared.last_flush.store(now.0, Ordering::Relaxed);
        self.core.sent(buf, result, now);
    }

    /// Begins a turn: hands the handler what has arrived, up to the session's share, and gathers what it sends.
    pub(super) fn deliver(&mut self, now: Now) {
        self.share.renew();
        self.keep_pace(now);
        self.deliver_more(now);
    }

    /// Whether its latest turn ended with its share, and not because there was nothing left to do.
    pub(super) fn has_had_its_share(&self) -> bool {
        self.share.is_over()
    }

    /// As [`SessionDriver::deliver`], in the same turn.
    fn deliver_more(&mut self, now: Now) {
        if self.core.is_held() {
            // The core is held: all that may come is the end.
            self.tell_due(now);
            self.deliver_all(now);
        } else {
            self.core.cork();
            self.note_mere_cork(self.core.is_merely_corked());
            self.latest_comes_back();
            self.tell_due(now);
            if self.deliver_while_there_is_room(now) {
                return;
            }
        }
        self.room.leave();
        self.latest_comes_back();
    }

    /// Whether it waits for room now, for an answer to the next message.
    fn deliver_while_there_is_room(&mut self, now: Now) -> bool {
        let mut retried = false;
        loop {
            self.deliver_all(now);
            if self.share.is_over() {
                return false;
            }
            let Some(room) = self.core.waits_for_room() else {
                return false;
            };
            self.latest_gives_way();
            // A thread that makes room marks the session then.
            let mut context = Context::from_waker(&self.marker);
            if self.room.poll(room, &mut context).is_pending() {
                return true;
            }
            // Room came and went while we looked, and no thread knows that we wait.
            if mem::replace(&mut retried, true) {
                self.session.0.mark();
                return true;
            }
        }
    }

    fn note_mere_cork(&self, on: bool) {
        let flag = &self.session.0.merely_corked;
        flag.store(on, Ordering::Relaxed);
    }

    /// Hands over what there is, as far as the share goes. A handler that panics while it has a message ends here: to be ready for that
    /// before each message takes as long as the rest of its delivery.
    fn deliver_all(&mut self, now: Now) {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
            while self.share.take_one() && self.deliver_one(now) {}
        })) {
            if !mem::take(&mut self.has_message) {
                resume_unwind(panic);
            }
            self.handler_panicked(now);
        }
    }

    /// False: there is nothing more to deliver, or it must wait.
    #[inline]
    fn deliver_one(&mut self, now: Now) -> bool {
        let Some(incoming) = self.core.next(now) else {
            return false;
        };
        match incoming {
            Incoming::Message(message) => {
                let Some(handler) = self.handler.as_mut().filter(|_| !self.broken) else {
                    return true;
                };
                self.has_message = true;
                let flow = handler.message(&self.session, message);
                self.has_message = false;
                if flow == Flow::Pause {
                    return self.pause(now);
                }
            }
            Incoming::Head(head) => {
                if self.broken {
                    return true;
                }
                let places = Places {
                    handler: &mut self.handler,
                    session: &self.session,
                    network: self.network,
                };
                let asked = bodies::ask_for_body(places, &head);
                return self.begin_body(asked, now);
            }
            Incoming::Lane(event) => {
                if self.broken {
                    return true;
                }
                let places = Places {
                    handler: &mut self.handler,
                    session: &self.session,
                    network: self.network,
                };
                let heard = self.lanes.hear(event, places);
                return self.lane_goes_on(heard, now);
            }
            Incoming::Opened { greeting } => {
                let greeting = greeting.to_vec();
                self.open(&greeting, now);
            }
            Incoming::Goodbye(said) => {
                let (text, after) = (said.text.to_owned(), said.after);
                let redirect = said.redirect.map(str::to_owned);
                self.hear_goodbye(&text, redirect.as_deref(), after, now);
            }
            Incoming::Status => {
                self.reply_status(now);
            }
            Incoming::StatusReply { body } => match StatusAnswer::read(body) {
                Some(answer) if mem::take(&mut self.status_asked) => {
                    self.call_handler(now, |handler, session| handler.status(session, answer));
                }
                Some(_) => {}
                None => self.core.fail(CloseReason::BadFrame, "STATUS_REPLY", now),
            },
            Incoming::Closed(why) => self.end(why, now),
        }
        true
    }

    fn reply_status(&mut self, now: Now) {
        let session = &self.session;
        let policy = session.0.group.settings.status;
        if policy == StatusPolicy::Off {
            return;
        }
        let allowed = policy.allows(session.peer());
        let figures = allowed.then(|| (session.stats(), self.registry.recent_totals(now)));
        let reply = status::reply(figures);
        // Without room there is no answer: a peer that asks often is not worth waiting for.
        let _ = self
            .core
            .reply_status(reply.len(), |to| to.copy_from_slice(&reply));
    }

    /// The handler left the latest message for later. False: the core gives nothing more now.
    fn pause(&mut self, now: Now) -> bool {
        self.core.put_back();
        self.core.hold(true, now);
        self.paused = true;
        false
    }

    /// Calls the handler, unless there is none to call.
    fn call_handler(&mut self, now: Now, tell: impl FnOnce(&mut dyn Handler, &Session)) {
        let Some(handler) = self.handler.as_mut().filter(|_| !self.broken) else {
            return;
        };
        let session = &self.session;
        if catch_unwind(AssertUnwindSafe(|| tell(&mut **handler, session))).is_err() {
            self.handler_panicked(now);
        }
    }

    /// Whether the handler has nothing left to send. One that is gone, or panics, has nothing.
    fn may_end(&mut self, now: Now) -> bool {
        let mut may = true;
        self.session.0.leave();
        self.call_handler(now, |handler, session| may = handler.may_end(session));
        may
    }

    /// The handler panicked.
    fn handler_panicked(&mut self, now: Now) {
        self.broken = true;
        let session = &self.session;
        tracing::error!(session = %session.id(), peer = %session.peer(), "a handler panicked: its session closes");
        self.core.fail(CloseReason::HandlerPanicked, "", now);
    }

    fn open(&mut self, greeting: &[u8], now: Now) {
        let group = Arc::clone(&self.session.0.group);
        if self.outcome.is_none() {
            let Some(handler) = self.handler.as_mut() else {
                return;
            };
            let refusals = &group.counters.refusals;
            let session = &self.session;
            match catch_unwind(AssertUnwindSafe(|| handler.greeted(session, greeting))) {
                Err(_) => {
                    refusals.count(Refusal::HandlerPanicked);
                    return self.handler_panicked(now);
                }
                Ok(Err(text)) => {
                    refusals.count(Refusal::Handler);
                    return self.core.refuse(0, &text, now);
                }
                Ok(Ok(answer)) => {
                    if let Err(error) = self.core.welcome(&answer, now) {
                        return self
                            .core
                            .fail(CloseReason::Refused, &error.to_string(), now);
                    }
                }
            }
        }
        group.counters.opened.add(1);
        self.tell_opened();
        self.session.open_link();
        self.call_handler(now, |handler, session| handler.opened(session, greeting));
        if let Some(outcome) = &self.outcome {
            outcome.set(Ok(self.session.clone()));
        }
    }

    /// Reports the end to the handler, as the last thing.
    fn end(&mut self, why: Closed, _now: Now) {
        let group = Arc::clone(&self.session.0.group);
        let why = self.session.0.as_carrier_says(why);
        group.counters.count_reason(why.reason);
        self.tell_closed(&why);
        self.session.0.end(why.clone());
        self.lanes.clear();
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
        if let (Some(outcome), Some(why)) = (&self.outcome, self.session.0.ended.get()) {
            outcome.set(Err(why.clone()));
        }
    }

    /// Carries out what the core wants done. Bytes enter and leave the session here alone, or, if
    /// it is encrypted, in `encrypted.rs`.
    pub(super) fn settle(&mut self, reactor: &mut Epoll, now: Now) -> DriverState {
        self.note_mere_cork(false);
        self.end_gathering();
        if self.channel.is_some() {
            return self.settle_encrypted(reactor, now);
        }
        self.carry_out(reactor, now)
    }

    fn carry_out(&mut self, reactor: &mut Epoll, now: Now) -> DriverState {
        let token = self.session.0.token;
        // Before anything is written: who has an answer finds its question counted.
        self.publish();
        let mut state = DriverState::Live;
        // Once per round, so that a session with much to send does not keep the worker.
        let mut may_write = true;
        let mut written = false;
        self.feed_body();
        let mut asked_again = false;
        loop {
            let Some(step) = self.core.poll() else {
                if mem::take(&mut written) {
                    // A body may have come to the front; no completion follows.
                    self.feed_body();
                    continue;
                }
                if let Some(reason) = self.finish_due.filter(|_| !self.has_bodies()) {
                    if !self.share.is_over() && self.may_end(now) {
                        self.finish_due = None;
                        self.core.fail(reason, "", now);
                        continue;
                    }
                    // It ends with what has come by now.
                    self.core.stop_receiving();
                }
                if asked_again || !self.core.waits_for_release() {
                    break;
                }
                // A message that was kept and is dropped after this marks the session; for one
                // dropped before, the core is asked once more.
                self.core.on_release(self.marker.clone());
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
                    // With its place at the front of the ring, nothing but the body can go next;
                    // what is behind it may follow now.
                    self.body_place = None;
                }
                Step::ShutdownWrite => match &mut self.channel {
                    Some(channel) => channel.shutdown(),
                    None => drop(reactor.shutdown_write(token)),
                },
                Step::Close => {
                    reactor.close(token);
                    state = DriverState::Closing;
                }
            }
        }
        if let Some(incoming_body) = &mut self.incoming_body
            && state == DriverState::Live
            && self.pace.as_ref().is_none_or(|pace| pace.is_on())
            && let Some(buf) = incoming_body.buf.take()
        {
            self.receive(reactor, buf);
        }
        if self.core.closed().is_some() {
            // A step may have found the end, which is all that is left to deliver.
            while self.deliver_one(now) {}
        }
        let body_out = self.incoming_body.as_ref().is_some_and(|a| a.buf.is_none());
        if self.core.is_over() && !body_out {
            state = DriverState::Over;
        }
        state
    }

    fn receive(&mut self, reactor: &mut Epoll, buf: RecvBuf) {
        let buf = match &self.pace {
            Some(pace) => pace.bound(buf),
            None => buf,
        };
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
        let counters = &self.session.0.counters;
        // Not all of its figures: what was sent takes long to count.
        let (messages, bytes) = self.core.received_so_far();
        counters.messages_received.set(messages);
        counters.bytes_received.set(bytes);
        counters.kept_bytes.set(self.core.kept_bytes() as u64);
        if let Some(rtt) = self.core.rtt() {
            let nanos = u64::try_from(rtt.last.as_nanos()).unwrap_or(u64::MAX);
            counters.round_trip.set(nanos.max(1));
        }
    }
}
