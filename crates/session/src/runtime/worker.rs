//! A worker thread: one reactor and the sessions that live on it.
//!
//! A round is: completions, commands if somebody woke the worker, deadlines, and what was marked.
//! The clock is read once per round. A session is found by the index of its token; one whose token
//! is stale but whose buffers are still with the reactor waits among the closing ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use embar_transport::{Address, Completion, Epoll, Peer, Reactor, Stream, Token};
use embar_wire::frame::Protocol;
use embar_wire::time::Now;

use super::channel::Acceptor;
use super::clock;
use super::conn::{Conn, Standing};
use super::dirty;
use super::group::Group;
use super::hub::{Command, Hub};
use super::session::Session;
use super::shared::Shared;
use super::timers::Timers;
use crate::{CloseReason, Closed, Link, Side};

/// Peers beyond the limit that are told so at a time; those beyond that are cut without a word.
const REFUSALS: usize = 256;

struct Slot<P: Protocol> {
    token: Token,
    conn: Conn<P>,
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
            draining: None,
            cut: false,
            live: 0,
        }
    }

    /// Runs until told to drain, and drained.
    pub(super) fn run(&mut self) {
        self.hub.become_current();
        let mut completions = Vec::new();
        let mut now = clock::now();
        while !self.is_done() {
            let timeout = self.next_deadline().map(|at| at.since(now));
            if let Err(error) = self.reactor.poll(timeout, &mut completions) {
                tracing::error!("a worker of sessions stops: {error}");
                return self.fail_all(now);
            }
            now = clock::now();
            for completion in completions.drain(..) {
                self.handle(completion, now);
            }
            self.look_at_due(now);
            // Last, because a worker does not wake itself for its own marks.
            self.look_at_marked(now);
        }
    }

    fn is_done(&self) -> bool {
        self.draining.is_some() && self.live == 0 && self.reactor.outstanding() == 0
    }

    fn next_deadline(&self) -> Option<Now> {
        let drained = self.draining.filter(|_| !self.cut);
        match (self.timers.next(), drained) {
            (Some(timer), Some(drained)) => Some(timer.min(drained)),
            (timer, drained) => timer.or(drained),
        }
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
            Command::Adopt(stream, peer) => self.adopt(stream, peer, now),
            Command::Connect {
                address,
                greeting,
                handler,
                latch,
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
                    let channel = tls.map(|tls| tls.connect()).transpose()?;
                    Ok((link, channel, self.reactor.connect(address)?))
                });
                match started {
                    Ok((link, channel, token)) if self.draining.is_none() => {
                        let session = self.session(peer, token, &link);
                        let conn = Conn::new(link, Some(handler), session, Some(latch), channel);
                        self.enter(token, conn, now);
                    }
                    Ok((_, _, token)) => {
                        self.reactor.close(token);
                        self.not_started(CloseReason::Shutdown, "", &latch);
                    }
                    Err(error) => {
                        let reason = CloseReason::Io(error.kind());
                        self.not_started(reason, &error.to_string(), &latch);
                    }
                }
            }
            Command::Drain(timeout) => self.drain(timeout, now),
        }
    }

    fn not_started(&self, reason: CloseReason, text: &str, latch: &super::client::Latch) {
        self.group.connections.fetch_sub(1, Ordering::AcqRel);
        latch.tell(Err(Closed {
            by: Side::Local,
            reason,
            code: 0,
            text: text.to_owned(),
        }));
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
        let target = self.next_hub % self.hubs.len();
        self.next_hub += 1;
        let connections = self.group.connections.fetch_add(1, Ordering::AcqRel);
        let most = self.group.settings.max_sessions;
        if self.draining.is_some() || connections >= most.saturating_add(REFUSALS) {
            self.group.connections.fetch_sub(1, Ordering::AcqRel);
            self.group.numbers.refused.add(1);
        } else if Arc::ptr_eq(&self.hubs[target], &self.hub) {
            self.adopt(stream, peer, now);
        } else {
            self.hubs[target].hand(Command::Adopt(stream, peer));
        }
    }

    fn adopt(&mut self, stream: Stream, peer: Peer, now: Now) {
        let group = Arc::clone(&self.group);
        let refused = group.connections.load(Ordering::Acquire) > group.settings.max_sessions;
        let handler = if refused {
            None
        } else {
            match group.handler_for(&peer) {
                Some(handler) => Some(handler),
                None => {
                    tracing::error!(%peer, "no handler could be made for a peer: it is cut off");
                    group.connections.fetch_sub(1, Ordering::AcqRel);
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
            let channel = group.acceptor.as_ref().map(Acceptor::accept).transpose()?;
            Ok((link, channel, self.reactor.add(stream)?))
        });
        let (link, channel, token) = match added {
            Ok(added) => added,
            Err(error) => {
                tracing::warn!(%peer, "cannot take a connection: {error}; lower the number of sessions or the size of their rings");
                group.connections.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        };
        let session = self.session(peer, token, &link);
        let mut conn = Conn::new(link, handler, session, None, channel);
        conn.connected(&self.reactor);
        if self.draining.is_some() {
            conn.cut(CloseReason::Shutdown);
        }
        self.enter(token, conn, now);
    }

    fn enter(&mut self, token: Token, conn: Conn<P>, now: Now) {
        let index = token.index();
        assert!(index < dirty::SLOTS, "more sockets than a worker can have");
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.group.enter(conn.session());
        self.slots[index] = Some(Slot { token, conn });
        self.live += 1;
        self.with(token, now, |_, _| ());
    }

    /// Lets `f` tell a session something, and sees to what follows.
    fn with(&mut self, token: Token, now: Now, f: impl FnOnce(&mut Conn<P>, &Epoll)) {
        let slot = self.slots.get_mut(token.index());
        let Some(slot) = slot.and_then(Option::as_mut).filter(|s| s.token == token) else {
            return self.with_closing(token, now, f);
        };
        let conn = &mut slot.conn;
        f(conn, &self.reactor);
        conn.deliver(now);
        let standing = conn.settle(&mut self.reactor, now);
        match standing {
            Standing::Lives => {
                let deadline = conn.next_tick();
                self.timers.arm(token, &mut conn.armed, deadline);
            }
            Standing::Closing => {
                let slot = self.slots[token.index()].take();
                self.closing.extend(slot);
            }
            Standing::Over => {
                if let Some(slot) = self.slots[token.index()].take() {
                    self.leave(slot);
                }
            }
        }
    }

    #[cold]
    fn with_closing(&mut self, token: Token, now: Now, f: impl FnOnce(&mut Conn<P>, &Epoll)) {
        let Some(index) = self.closing.iter().position(|slot| slot.token == token) else {
            return;
        };
        let conn = &mut self.closing[index].conn;
        f(conn, &self.reactor);
        conn.deliver(now);
        let standing = conn.settle(&mut self.reactor, now);
        if standing == Standing::Over {
            let slot = self.closing.swap_remove(index);
            self.leave(slot);
        }
    }

    fn leave(&mut self, slot: Slot<P>) {
        self.live -= 1;
        self.group.leave(slot.conn.session());
        self.group.connections.fetch_sub(1, Ordering::AcqRel);
    }

    fn look_at_marked(&mut self, now: Now) {
        let mut marks = std::mem::take(&mut self.marks);
        // Handlers may mark further sessions; those are due before the worker sleeps, too.
        loop {
            self.hub.take_marks(&mut marks);
            if marks.is_empty() {
                break;
            }
            for index in marks.drain(..) {
                let Some(Some(slot)) = self.slots.get(index) else {
                    continue;
                };
                let token = slot.token;
                self.with(token, now, |conn, _| conn.attend(now));
            }
        }
        self.marks = marks;
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

    /// The reactor is broken: nothing can be sent or received any more.
    fn fail_all(&mut self, now: Now) {
        self.all(now, |conn| conn.cut(CloseReason::Shutdown));
        let left = self.slots.drain(..).flatten().chain(self.closing.drain(..));
        for slot in left.collect::<Vec<_>>() {
            self.leave(slot);
        }
        for command in self.hub.take_commands() {
            if let Command::Connect { latch, .. } = command {
                self.not_started(CloseReason::Shutdown, "", &latch);
            }
        }
    }
}

fn peer_at(address: &Address) -> Peer {
    match address {
        Address::Tcp(address) => Peer::Tcp(*address),
        Address::Unix(_) => Peer::Unix,
    }
}
