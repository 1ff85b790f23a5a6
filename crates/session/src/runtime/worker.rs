//! A worker thread: one reactor and the sessions that live on it.
//!
//! A round is: completions, commands if a thread woke the worker, deadlines, sessions with much to
//! do (`worker/busy.rs`), and what was marked. The clock is read once per round; how long turns of busy sessions take is measured beside it. A session is found by the index of its token; one whose token
//! is stale but whose buffers are still with the reactor waits among the closing ones. Accepted
//! connections are apart until they greet: `worker/arriving.rs`.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use embar_frame::{Now, Protocol};
use embar_transport::{Address, Completion, Epoll, Peer, Reactor, Stream, Token, marks};

use super::admission::Place;
use super::arrivals::Arrivals;
use super::clock;
use super::connecting::Promise;
use super::driver::{DriverState, SessionDriver};
use super::group::Group;
use super::handler::Handler;
use super::mailbox::{Command, ConnectRequest, ConnectTo, Mailbox};
use super::panics::catch_panic;
use super::priority::Priority;
use super::registry::Registry;
use super::session::Session;
use super::shared::Shared;
use super::timer_queue::TimerQueue;
use crate::{CloseReason, Closed, SessionCore, Side};
use busy::Busy;

/// So many gather at a time without an allocation; of one session there may be several entries, as
/// one whose end came early stays until its time.
const GATHERING: usize = 64;

mod arriving;
mod busy;
mod listeners;

pub(super) use listeners::Entrance;

/// How often marked sessions are looked at in a round.
const MARK_PASSES: usize = 2;

struct Slot<P: Protocol> {
    token: Token,
    driver: SessionDriver<P>,
    /// It is among the busy ones, and its next turn comes there.
    is_busy: bool,
    /// What the reactor reported meanwhile: a receive and a send at most.
    deferred: [Option<Completion>; 2],
    /// Held as long as the session lives.
    _place: Place,
}

impl<P: Protocol> Slot<P> {
    /// Lets `f` report something to the session, and does what follows. `None`: something panicked
    /// beyond the handler's calls, which are caught one by one, and the session cannot go on.
    fn turn(
        &mut self,
        reactor: &mut Epoll,
        now: Now,
        f: impl FnOnce(&mut SessionDriver<P>, &Epoll),
    ) -> Option<DriverState> {
        let driver = &mut self.driver;
        let deferred = &mut self.deferred;
        let _in_span = driver.enter_span();
        let turn = || {
            for completion in deferred.iter_mut().filter_map(Option::take) {
                busy::report(driver, completion, now);
            }
            f(driver, reactor);
            driver.deliver(now);
            driver.settle(reactor, now)
        };
        catch_unwind(AssertUnwindSafe(turn)).ok()
    }
}

/// A worker thread: one reactor and the sessions that live on it.
pub(super) struct Worker<P: Protocol> {
    protocol: P,
    reactor: Epoll,
    registry: Arc<Registry>,
    group: Arc<Group>,
    mailbox: Arc<Mailbox>,
    mailboxes: Vec<Arc<Mailbox>>,
    number: usize,
    entrances: Vec<Entrance>,
    /// Whose turn it is to get an accepted connection.
    next_mailbox: usize,
    /// By the indices of their tokens. Boxed, because arrivals have indices, too.
    slots: Vec<Option<Box<Slot<P>>>>,
    /// Accepted connections that have not become sessions.
    arrivals: Arrivals<P>,
    closing: Vec<Box<Slot<P>>>,
    timers: TimerQueue,
    marks: Vec<usize>,
    busy: Busy,
    /// Sessions whose messages gather, and until when; the earliest first.
    gathering: VecDeque<(Token, Now)>,
    /// When what is left is cut.
    draining: Option<Now>,
    cut: bool,
    live: usize,
}

impl<P: Protocol + Clone> Worker<P> {
    pub(super) fn new(
        protocol: P,
        reactor: Epoll,
        registry: Arc<Registry>,
        mailboxes: Vec<Arc<Mailbox>>,
        number: usize,
        entrances: Vec<Entrance>,
    ) -> Self {
        Self {
            protocol,
            reactor,
            arrivals: Arrivals::new(&registry.group, number),
            group: Arc::clone(&registry.group),
            registry,
            mailbox: Arc::clone(&mailboxes[number]),
            mailboxes,
            number,
            entrances,
            next_mailbox: number,
            slots: Vec::new(),
            closing: Vec::new(),
            timers: TimerQueue::default(),
            marks: Vec::new(),
            busy: Busy::default(),
            gathering: VecDeque::with_capacity(GATHERING),
            draining: None,
            cut: false,
            live: 0,
        }
    }

    /// Runs until [`Command::Drain`] has been carried out. However it ends, no caller is left
    /// waiting for it.
    pub(super) fn run(mut self) {
        self.mailbox.marks.become_current();
        let text = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => "",
            Ok(Err(error)) => {
                tracing::error!("a worker of sessions stops, and they end: {error}");
                "the reactor failed"
            }
            Err(_) => {
                tracing::error!("a worker of sessions panicked: it stops, and its sessions end");
                "the worker panicked"
            }
        };
        self.stop(text);
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        let mut now = clock::now();
        while !self.is_done() {
            let timeout = if self.mailbox.marks.any() || !self.busy.is_empty() {
                Some(Duration::ZERO)
            } else {
                self.next_deadline().map(|at| at.since(now))
            };
            self.mailbox.marks.end_round();
            self.reactor.poll(timeout, &mut completions)?;
            now = clock::now();
            self.mailbox.marks.begin_round(now);
            for completion in completions.drain(..) {
                self.handle(completion, now);
            }
            self.look_at_due(now);
            self.look_at_arrivals(now);
            self.look_at_gathered(now);
            self.serve_busy(now);
            // Last, because a worker does not wake itself for its own marks.
            self.look_at_marked(now);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let none = self.live == 0 && self.arrivals.is_empty();
        self.draining.is_some() && none && self.reactor.outstanding() == 0
    }

    fn next_deadline(&self) -> Option<Now> {
        let drained = self.draining.filter(|_| !self.cut);
        let gathered = self.gathering.front().map(|(_, until)| *until);
        let arrivals = self.arrivals.next_deadline();
        let deadlines = [self.timers.next(), drained, gathered, arrivals];
        deadlines.into_iter().flatten().min()
    }

    fn handle(&mut self, completion: Completion, now: Now) {
        if self.is_of_arrival(&completion) {
            return self.arrival_went_on(completion, now);
        }
        match completion {
            Completion::Received { token, .. } | Completion::Sent { token, .. } => {
                self.tell(token, completion, now);
            }
            Completion::Accepted {
                listener,
                stream,
                peer,
            } => self.accepted(listener, stream, peer, now),
            Completion::Connected { token, result } => {
                self.with(token, now, |driver, reactor| match &result {
                    Ok(()) => driver.connected(reactor),
                    Err(error) => driver.unreachable(error),
                });
            }
            Completion::AcceptFailed { error, .. } => {
                tracing::warn!(
                    "cannot accept connections at the moment: {error}; raise the limit of open files (ulimit -n)"
                );
                self.make_room(now);
            }
            Completion::Woken => {
                for command in self.mailbox.take() {
                    self.execute(command, now);
                }
            }
        }
    }

    fn execute(&mut self, command: Command, now: Now) {
        match command {
            Command::Adopt(newcomer) => self.adopt(newcomer, now),
            Command::Connect(request) => self.connect(request, now),
            Command::Drain(timeout) => self.drain(timeout, now),
            Command::StopAccepting(done) => self.stop_accepting(done),
            Command::Acknowledge(done) => drop(done),
            Command::OfferListeners(to) => self.offer_listeners(&to),
            Command::MakeRoom { asking } => self.make_room_for(asking, now),
            Command::RoomMade => self.reactor.accept_again(),
        }
    }

    fn connect(&mut self, request: ConnectRequest, now: Now) {
        let ConnectRequest {
            to,
            greeting,
            handler,
            promise,
            place,
            tls,
        } = request;
        let peer = match &to {
            ConnectTo::Address(address) => peer_at(address),
            ConnectTo::Carried(_, peer, _) => *peer,
        };
        let started = SessionCore::connecting(
            self.protocol.clone(),
            &self.group.settings.session,
            &self.group.rings,
            &greeting,
            now,
        )
        .and_then(|core| {
            let channel = tls.map(|tls| tls.connect()).transpose();
            let channel = channel.map_err(io::Error::other)?;
            let (token, link) = match to {
                ConnectTo::Address(address) => (self.reactor.connect(address)?, None),
                ConnectTo::Carried(stream, _, link) => {
                    (self.reactor.add(Stream::Unix(stream))?, Some(link))
                }
            };
            Ok((core, channel, token, link))
        });
        match started {
            Ok((core, channel, token, link)) if self.draining.is_none() => {
                let session = self.session(peer, Priority::default(), token, &core);
                let registry = Arc::clone(&self.registry);
                let outcome = promise.outcome();
                let is_carried = link.is_some();
                session.0.carry(link);
                let mut driver =
                    SessionDriver::new(core, handler, session, registry, outcome, channel);
                if is_carried {
                    driver.connected(&self.reactor);
                }
                self.enter(token, driver, place, now);
                promise.hand_on();
            }
            Ok((_, _, token, _)) => {
                self.reactor.close(token);
                not_started(CloseReason::Shutdown, "", promise, handler);
            }
            Err(error) => {
                let reason = CloseReason::Io(error.kind());
                not_started(reason, &error.to_string(), promise, handler);
            }
        }
    }

    fn session(
        &self,
        peer: Peer,
        priority: Priority,
        token: Token,
        core: &SessionCore<P>,
    ) -> Session {
        Session(Arc::new(Shared::new(
            peer,
            priority,
            token,
            core.sender().clone(),
            Arc::clone(&self.group),
            Arc::clone(&self.mailbox.marks),
        )))
    }

    fn enter(&mut self, token: Token, driver: SessionDriver<P>, place: Place, now: Now) {
        let index = token.index();
        assert!(index < marks::SLOTS, "more sockets than a worker can have");
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        // The first mark may come after a million messages, and is to cost no more than the others.
        self.mailbox.marks.make_room(index);
        let most = self.slots.len();
        self.marks.reserve(most);
        self.busy.make_room(most);
        self.gathering.reserve(most);
        self.registry.enter(driver.session());
        self.slots[index] = Some(Box::new(Slot {
            token,
            driver,
            is_busy: false,
            deferred: [None, None],
            _place: place,
        }));
        self.live += 1;
        self.with(token, now, |_, _| ());
    }

    /// Lets `f` report something to a session, and does what follows.
    fn with(&mut self, token: Token, now: Now, f: impl FnOnce(&mut SessionDriver<P>, &Epoll)) {
        let slot = self.slots.get_mut(token.index());
        let Some(slot) = slot.and_then(Option::as_mut).filter(|s| s.token == token) else {
            return self.with_closing(token, now, f);
        };
        match slot.turn(&mut self.reactor, now, f) {
            Some(DriverState::Live) => {
                let deadline = slot.driver.next_tick();
                self.timers.arm(token, &mut slot.driver.timer, deadline);
                if slot.driver.has_had_its_share() && !mem::replace(&mut slot.is_busy, true) {
                    self.busy.add(token);
                }
            }
            Some(DriverState::Closing) => {
                let slot = self.slots[token.index()].take();
                self.closing.extend(slot);
            }
            Some(DriverState::Over) => {
                if let Some(slot) = self.slots[token.index()].take() {
                    self.leave(slot);
                }
            }
            None => {
                if let Some(slot) = self.slots[token.index()].take() {
                    self.lose(slot);
                }
            }
        }
    }

    #[cold]
    fn with_closing(
        &mut self,
        token: Token,
        now: Now,
        f: impl FnOnce(&mut SessionDriver<P>, &Epoll),
    ) {
        let Some(index) = self.closing.iter().position(|slot| slot.token == token) else {
            return;
        };
        match self.closing[index].turn(&mut self.reactor, now, f) {
            Some(DriverState::Over) => {
                let slot = self.closing.swap_remove(index);
                self.leave(slot);
            }
            Some(DriverState::Live | DriverState::Closing) => {}
            None => {
                let slot = self.closing.swap_remove(index);
                self.lose(slot);
            }
        }
    }

    /// A session is lost to a panic; the worker drops buffers of it that come back later.
    #[cold]
    fn lose(&mut self, mut slot: Box<Slot<P>>) {
        let session = slot.driver.session();
        tracing::error!(session = %session.id(), peer = %session.peer(), "a session is cut: its protocol, or a waker, panicked");
        self.reactor.close(slot.token);
        slot.driver.terminate(ended_here(
            CloseReason::HandlerPanicked,
            "the protocol, or a waker, panicked",
        ));
        self.leave(slot);
    }

    fn leave(&mut self, slot: Box<Slot<P>>) {
        self.live -= 1;
        let session = slot.driver.session().clone();
        self.registry.leave(&session);
        catch_panic(|| drop(slot));
        // Handles may live for long.
        session.0.sender.ring().detach();
    }

    fn look_at_marked(&mut self, now: Now) {
        let mut marks = mem::take(&mut self.marks);
        // Handlers may mark further sessions; what is still marked after that waits for the next
        // round, so that sessions that mark themselves over and over do not keep the worker.
        for _ in 0..MARK_PASSES {
            self.mailbox.marks.take(&mut marks);
            if marks.is_empty() {
                break;
            }
            for index in marks.drain(..) {
                let Some(Some(slot)) = self.slots.get_mut(index) else {
                    continue;
                };
                if slot.is_busy {
                    // Its turn does what is asked for, too.
                    continue;
                }
                let token = slot.token;
                match slot.driver.gather(now) {
                    Some(until) => self.gathering.push_back((token, until)),
                    None => self.with(token, now, |driver, _| driver.apply_requests(now)),
                }
            }
        }
        self.marks = marks;
    }

    fn look_at_gathered(&mut self, now: Now) {
        while let Some((token, _)) = self.gathering.pop_front_if(|(_, until)| *until <= now) {
            self.with(token, now, |_, _| ());
        }
    }

    fn look_at_due(&mut self, now: Now) {
        while let Some(token) = self.timers.due(now) {
            self.with(token, now, |driver, _| {
                driver.timer.fired();
                driver.tick(now);
            });
        }
        if self.draining.is_some_and(|at| at <= now) && !self.cut {
            self.cut = true;
            self.all(now, |driver| driver.cut(CloseReason::Shutdown));
            self.dismiss_arrivals(now);
        }
    }

    fn drain(&mut self, timeout: Duration, now: Now) {
        self.close_listeners();
        let until = now.after(timeout);
        let first = self.draining.is_none();
        self.draining = Some(self.draining.map_or(until, |at| at.min(until)));
        if first {
            self.all(now, |driver| driver.drain());
            self.refuse_arrivals(now);
        }
    }

    fn all(&mut self, now: Now, f: impl Fn(&mut SessionDriver<P>)) {
        for index in 0..self.slots.len() {
            if let Some(slot) = &self.slots[index] {
                let token = slot.token;
                self.with(token, now, |driver, _| f(driver));
            }
        }
    }

    /// Ends what is left, without the reactor: nothing can be sent or received any more.
    fn stop(&mut self, text: &'static str) {
        let unseen = self.mailbox.close();
        self.close_listeners();
        for token in self.arrivals.tokens() {
            drop(self.arrivals.remove(token));
        }
        let left = self.slots.drain(..).flatten().chain(self.closing.drain(..));
        for mut slot in left.collect::<Vec<_>>() {
            slot.driver
                .terminate(ended_here(CloseReason::Shutdown, text));
            self.leave(slot);
        }
        for command in unseen {
            catch_panic(|| drop(command));
        }
    }
}

/// Nothing comes of a connect; its handler is not called, as there never was a session.
fn not_started(reason: CloseReason, text: &str, promise: Promise, handler: Box<dyn Handler>) {
    promise.fail(ended_here(reason, text));
    catch_panic(|| drop(handler));
}

fn ended_here(reason: CloseReason, text: &str) -> Closed {
    Closed {
        by: Side::Local,
        reason,
        code: 0,
        text: text.to_owned(),
    }
}

fn peer_at(address: &Address) -> Peer {
    match address {
        Address::Tcp(address) => Peer::Tcp(*address),
        Address::Unix(_) | Address::Shm(_) => Peer::Unix,
    }
}
