//! A worker thread: one reactor and the sessions that live on it.
//!
//! A round is: completions, commands if somebody woke the worker, deadlines, and what was marked.
//! The clock is read once per round. A session is found by the index of its token; one whose token
//! is stale but whose buffers are still with the reactor waits among the closing ones.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use embar_frame::{Now, Protocol};
use embar_transport::tls::Acceptor;
use embar_transport::{Address, Completion, Epoll, Peer, Reactor, Stream, Token, marks};

use super::client::Promise;
use super::clock;
use super::conn::perish::contained;
use super::conn::{Conn, Standing};
use super::group::{Group, Place};
use super::handler::Handler;
use super::hub::{Command, Hub};
use super::session::Session;
use super::shared::Shared;
use super::timers::Timers;
use crate::{CloseReason, Closed, Link, Side};

/// Peers beyond the limit that are told so at a time; those beyond that are cut without a word.
pub(super) const REFUSALS: usize = 256;

/// So many gather at a time without an allocation; of one session there may be several entries, as
/// one whose end came early stays until its time.
const GATHERING: usize = 64;

/// How often marked sessions are looked at in a round.
const MARK_PASSES: usize = 2;

struct Slot<P: Protocol> {
    token: Token,
    conn: Conn<P>,
    /// Held as long as the session lives.
    _place: Place,
}

impl<P: Protocol> Slot<P> {
    /// Lets `f` tell the session something, and sees to what follows. `None`: something panicked
    /// beyond the handler's calls, which are caught one by one, and the session cannot go on.
    fn turn(
        &mut self,
        reactor: &mut Epoll,
        now: Now,
        f: impl FnOnce(&mut Conn<P>, &Epoll),
    ) -> Option<Standing> {
        let conn = &mut self.conn;
        let turn = || {
            f(conn, reactor);
            conn.deliver(now);
            conn.settle(reactor, now)
        };
        catch_unwind(AssertUnwindSafe(turn)).ok()
    }
}

/// See the module.
pub(super) struct Worker<P: Protocol> {
    protocol: P,
    reactor: Epoll,
    group: Arc<Group>,
    hub: Arc<Hub>,
    hubs: Vec<Arc<Hub>>,
    listeners: Vec<Token>,
    /// Whose turn it is to get an accepted connection.
    next_hub: usize,
    slots: Vec<Option<Slot<P>>>,
    closing: Vec<Slot<P>>,
    timers: Timers,
    marks: Vec<usize>,
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
        group: Arc<Group>,
        hubs: Vec<Arc<Hub>>,
        number: usize,
        listeners: Vec<Token>,
    ) -> Self {
        Self {
            protocol,
            reactor,
            group,
            hub: Arc::clone(&hubs[number]),
            hubs,
            listeners,
            next_hub: number,
            slots: Vec::new(),
            closing: Vec::new(),
            timers: Timers::default(),
            marks: Vec::new(),
            gathering: VecDeque::with_capacity(GATHERING),
            draining: None,
            cut: false,
            live: 0,
        }
    }

    /// Runs until told to drain, and drained. However it ends, nobody is left waiting for it.
    pub(super) fn run(mut self) {
        self.hub.become_current();
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
            let timeout = if self.hub.has_marks() {
                Some(Duration::ZERO)
            } else {
                self.next_deadline().map(|at| at.since(now))
            };
            self.reactor.poll(timeout, &mut completions)?;
            now = clock::now();
            for completion in completions.drain(..) {
                self.handle(completion, now);
            }
            self.look_at_due(now);
            self.look_at_gathered(now);
            // Last, because a worker does not wake itself for its own marks.
            self.look_at_marked(now);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.draining.is_some() && self.live == 0 && self.reactor.outstanding() == 0
    }

    fn next_deadline(&self) -> Option<Now> {
        let drained = self.draining.filter(|_| !self.cut);
        let gathered = self.gathering.front().map(|(_, until)| *until);
        let deadlines = [self.timers.next(), drained, gathered];
        deadlines.into_iter().flatten().min()
    }

    fn handle(&mut self, completion: Completion, now: Now) {
        match completion {
            Completion::Received {
                token, buf, result, ..
            } => self.with(token, now, |conn, _| {
                conn.received(buf, &result, now);
            }),
            Completion::Sent {
                token, buf, result, ..
            } => self.with(token, now, |conn, _| conn.sent(buf, &result, now)),
            Completion::Accepted { stream, peer, .. } => self.accepted(stream, peer, now),
            Completion::Connected { token, result } => {
                self.with(token, now, |conn, reactor| match &result {
                    Ok(()) => conn.connected(reactor),
                    Err(error) => conn.unreachable(error),
                });
            }
            Completion::AcceptFailed { error, .. } => {
                tracing::warn!(
                    "cannot accept connections at the moment: {error}; raise the limit of open files (ulimit -n)"
                );
            }
            Completion::Woken => {
                for command in self.hub.take_commands() {
                    self.obey(command, now);
                }
            }
        }
    }

    fn obey(&mut self, command: Command, now: Now) {
        match command {
            Command::Adopt(stream, peer, place) => self.adopt(stream, peer, place, now),
            Command::Connect {
                address,
                greeting,
                handler,
                promise,
                place,
                tls,
            } => {
                let peer = peer_at(&address);
                let started = Link::connecting(
                    self.protocol.clone(),
                    &self.group.settings.link,
                    &self.group.rings,
                    &greeting,
                    now,
                )
                .and_then(|link| {
                    let channel = tls.map(|tls| tls.connect()).transpose();
                    let channel = channel.map_err(io::Error::other)?;
                    Ok((link, channel, self.reactor.connect(address)?))
                });
                match started {
                    Ok((link, channel, token)) if self.draining.is_none() => {
                        let session = self.session(peer, token, &link);
                        let latch = promise.latch();
                        let conn = Conn::new(link, Some(handler), session, latch, channel);
                        self.enter(token, conn, place, now);
                        promise.hand_on();
                    }
                    Ok((_, _, token)) => {
                        self.reactor.close(token);
                        not_started(CloseReason::Shutdown, "", promise, handler);
                    }
                    Err(error) => {
                        let reason = CloseReason::Io(error.kind());
                        not_started(reason, &error.to_string(), promise, handler);
                    }
                }
            }
            Command::Drain(timeout) => self.drain(timeout, now),
        }
    }

    fn session(&self, peer: Peer, token: Token, link: &Link<P>) -> Session {
        Session(Arc::new(Shared::new(
            peer,
            token,
            link.sender().clone(),
            Arc::clone(&self.group),
            Arc::clone(&self.hub),
        )))
    }

    /// Connections are dealt out in turn.
    fn accepted(&mut self, stream: Stream, peer: Peer, now: Now) {
        let most = self.group.settings.max_sessions.saturating_add(REFUSALS);
        let place = Place::take(&self.group, most).filter(|_| self.draining.is_none());
        let Some(place) = place else {
            return self.group.numbers.refused.add(1);
        };
        let mut command = Box::new(Command::Adopt(stream, peer, place));
        // Workers that have ended are left out; this one has not.
        loop {
            let target = &self.hubs[self.next_hub % self.hubs.len()];
            self.next_hub += 1;
            if Arc::ptr_eq(target, &self.hub) {
                return self.obey(*command, now);
            }
            match target.hand(*command) {
                Ok(()) => return,
                Err(back) => command = back,
            }
        }
    }

    fn adopt(&mut self, stream: Stream, peer: Peer, place: Place, now: Now) {
        let group = Arc::clone(&self.group);
        let refused = group.connections() > group.settings.max_sessions;
        let handler = if refused {
            None
        } else {
            match group.handler_for(&peer) {
                Some(handler) => Some(handler),
                None => {
                    tracing::error!(%peer, "no handler could be made for a peer: it is cut off");
                    return;
                }
            }
        };
        let added = Link::accepting(
            self.protocol.clone(),
            &group.settings.link,
            &group.rings,
            now,
        )
        .and_then(|link| {
            let channel = group.acceptor.as_ref().map(Acceptor::accept).transpose();
            let channel = channel.map_err(io::Error::other)?;
            Ok((link, channel, self.reactor.add(stream)?))
        });
        let (link, channel, token) = match added {
            Ok(added) => added,
            Err(error) => {
                tracing::warn!(%peer, "cannot take a connection: {error}; lower the number of sessions or the size of their rings");
                contained(|| drop(handler));
                return;
            }
        };
        let session = self.session(peer, token, &link);
        let mut conn = Conn::new(link, handler, session, None, channel);
        conn.connected(&self.reactor);
        if self.draining.is_some() {
            conn.cut(CloseReason::Shutdown);
        }
        self.enter(token, conn, place, now);
    }

    fn enter(&mut self, token: Token, conn: Conn<P>, place: Place, now: Now) {
        let index = token.index();
        assert!(index < marks::SLOTS, "more sockets than a worker can have");
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.group.enter(conn.session());
        self.slots[index] = Some(Slot {
            token,
            conn,
            _place: place,
        });
        self.live += 1;
        self.with(token, now, |_, _| ());
    }

    /// Lets `f` tell a session something, and sees to what follows.
    fn with(&mut self, token: Token, now: Now, f: impl FnOnce(&mut Conn<P>, &Epoll)) {
        let slot = self.slots.get_mut(token.index());
        let Some(slot) = slot.and_then(Option::as_mut).filter(|s| s.token == token) else {
            return self.with_closing(token, now, f);
        };
        match slot.turn(&mut self.reactor, now, f) {
            Some(Standing::Lives) => {
                let deadline = slot.conn.next_tick();
                self.timers.arm(token, &mut slot.conn.armed, deadline);
            }
            Some(Standing::Closing) => {
                let slot = self.slots[token.index()].take();
                self.closing.extend(slot);
            }
            Some(Standing::Over) => {
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
    fn with_closing(&mut self, token: Token, now: Now, f: impl FnOnce(&mut Conn<P>, &Epoll)) {
        let Some(index) = self.closing.iter().position(|slot| slot.token == token) else {
            return;
        };
        match self.closing[index].turn(&mut self.reactor, now, f) {
            Some(Standing::Over) => {
                let slot = self.closing.swap_remove(index);
                self.leave(slot);
            }
            Some(Standing::Lives | Standing::Closing) => {}
            None => {
                let slot = self.closing.swap_remove(index);
                self.lose(slot);
            }
        }
    }

    /// A session is lost to a panic; buffers of it that are still out come back to nobody.
    #[cold]
    fn lose(&mut self, mut slot: Slot<P>) {
        let session = slot.conn.session();
        tracing::error!(session = %session.id(), peer = %session.peer(), "a session is cut: its protocol, or a waker, panicked");
        self.reactor.close(slot.token);
        slot.conn.perish(ended_here(
            CloseReason::HandlerPanicked,
            "the protocol, or a waker, panicked",
        ));
        self.leave(slot);
    }

    fn leave(&mut self, slot: Slot<P>) {
        self.live -= 1;
        self.group.leave(slot.conn.session());
        contained(|| drop(slot));
    }

    fn look_at_marked(&mut self, now: Now) {
        let mut marks = std::mem::take(&mut self.marks);
        // Handlers may mark further sessions; what is still marked after that waits for the next
        // round, so that sessions that mark themselves over and over do not keep the worker.
        for _ in 0..MARK_PASSES {
            self.hub.take_marks(&mut marks);
            if marks.is_empty() {
                break;
            }
            for index in marks.drain(..) {
                let Some(Some(slot)) = self.slots.get_mut(index) else {
                    continue;
                };
                let token = slot.token;
                match slot.conn.gather(now) {
                    Some(until) => self.gathering.push_back((token, until)),
                    None => self.with(token, now, |conn, _| conn.attend(now)),
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
        while let Some((token, at)) = self.timers.due(now) {
            self.with(token, now, |conn, _| {
                if Timers::fired(&mut conn.armed, at) {
                    conn.tick(now);
                }
            });
        }
        if self.draining.is_some_and(|at| at <= now) && !self.cut {
            self.cut = true;
            self.all(now, |conn| conn.cut(CloseReason::Shutdown));
        }
    }

    fn drain(&mut self, timeout: Duration, now: Now) {
        for listener in std::mem::take(&mut self.listeners) {
            self.reactor.close(listener);
        }
        let until = now.after(timeout);
        let first = self.draining.is_none();
        self.draining = Some(self.draining.map_or(until, |at| at.min(until)));
        if first {
            self.all(now, |conn| conn.drain());
        }
    }

    fn all(&mut self, now: Now, f: impl Fn(&mut Conn<P>)) {
        for index in 0..self.slots.len() {
            if let Some(slot) = &self.slots[index] {
                let token = slot.token;
                self.with(token, now, |conn, _| f(conn));
            }
        }
    }

    /// Ends what is left, without the reactor: nothing can be sent or received any more.
    fn stop(&mut self, text: &'static str) {
        let unseen = self.hub.die();
        let left = self.slots.drain(..).flatten().chain(self.closing.drain(..));
        for mut slot in left.collect::<Vec<_>>() {
            slot.conn.perish(ended_here(CloseReason::Shutdown, text));
            self.leave(slot);
        }
        for command in unseen {
            contained(|| drop(command));
        }
    }
}

/// Nothing comes of a connect; its handler is not told, as there never was a session.
fn not_started(reason: CloseReason, text: &str, promise: Promise, handler: Box<dyn Handler>) {
    promise.fail(ended_here(reason, text));
    contained(|| drop(handler));
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
        Address::Unix(_) => Peer::Unix,
    }
}
