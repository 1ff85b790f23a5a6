//! What the workers of one server or client have in common.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use embar_frame::{FrameError, FrameHeader, Protocol, Shape};
use embar_transport::tls::Acceptor;
use embar_transport::{Epoll, Listener, Peer, Reactor, SocketOptions};

use super::handler::Handler;
use super::hub::{Command, Hub};
use super::mappings;
use super::session::{OnFull, Session, SessionId};
use super::stats::{Counter, Totals};
use super::status::{RecentTotals, StatusPolicy};
use super::worker::Worker;
use crate::{CloseReason, LinkConfig, Rings};

/// What can be set on a server or client.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Limits and patience of each session.
    pub link: LinkConfig,
    /// Size of each session's send ring; a power of two of at least 4096 bytes. Default 256 KiB.
    pub send_ring_bytes: usize,
    /// Size of each session's receive ring; a power of two of at least 4096 bytes. Default
    /// 256 KiB.
    pub recv_ring_bytes: usize,
    /// How many rings of each kind are kept for the next session when one ends. Default 256.
    pub idle_rings: usize,
    /// Threads that serve sessions. Default 1.
    pub workers: usize,
    /// Most sessions at a time; further peers are refused with
    /// [`CloseReason::TooManySessions`]. Default 8,192. `usize::MAX` stands for as many as the
    /// system carries, at most 258,048.
    ///
    /// The rings of a session take four memory mappings, and Linux gives a process
    /// `vm.max_map_count` of them, by default 65,530: that is room for about 15,600 sessions. The
    /// default takes half of it. Asking for more sessions than the limit has room for is an error
    /// at the start, for each server and client by itself: if several of one process are to be
    /// full at the same time, they share the limit.
    pub max_sessions: usize,
    /// What is done at a full send ring, unless a session was told otherwise.
    pub on_full: OnFull,
    /// Most bytes of bodies that wait in one session to be sent; one may always wait. Default
    /// 64 MiB.
    pub max_queued_body_bytes: usize,
    /// How long a worker polls before it sleeps. Zero, the default: it sleeps at once, and an idle
    /// process costs nothing.
    pub spin: Duration,
    /// Which peers are told the figures of this process when they ask. Default: none.
    pub status: StatusPolicy,
    /// Options of TCP sockets.
    pub sockets: SocketOptions,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            send_ring_bytes: 256 << 10,
            recv_ring_bytes: 256 << 10,
            idle_rings: 256,
            workers: 1,
            max_sessions: 8192,
            on_full: OnFull::default(),
            max_queued_body_bytes: 64 << 20,
            spin: Duration::ZERO,
            status: StatusPolicy::default(),
            sockets: SocketOptions::default(),
        }
    }
}

/// Makes the handler of an accepted session.
pub(super) type MakeHandler = dyn Fn(&Peer) -> Box<dyn Handler> + Send + Sync;

/// See the module.
pub(super) struct Group {
    pub(super) settings: Settings,
    pub(super) rings: Rings,
    pub(super) shape: Box<dyn Fn(FrameHeader) -> Result<Shape, FrameError> + Send + Sync>,
    pub(super) make_handler: Option<Box<MakeHandler>>,
    /// Accepted sessions are encrypted.
    pub(super) acceptor: Option<Acceptor>,
    /// Connections there are, refused ones that are just being told included.
    connections: AtomicUsize,
    sessions: Mutex<HashMap<SessionId, Session>>,
    pub(super) numbers: GroupNumbers,
    pub(super) recent_totals: RecentTotals,
}

/// A connection's place among those that there may be; dropped, it is free again.
pub(super) struct Place(Arc<Group>);

impl Place {
    /// `None` if there are `most` already.
    pub(super) fn take(group: &Arc<Group>, most: usize) -> Option<Self> {
        let place = Self(Arc::clone(group));
        let before = group.connections.fetch_add(1, Ordering::AcqRel);
        (before < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counters of a group; those of sessions are added when they end.
#[derive(Default)]
pub(super) struct GroupNumbers {
    pub(super) opened: Counter,
    pub(super) closed: Counter,
    pub(super) refused: Counter,
    idle_kicks: Counter,
    malformed: Counter,
    panics: Counter,
    messages_received: Counter,
    messages_sent: Counter,
    bytes_received: Counter,
    bytes_sent: Counter,
    by_reason: Mutex<BTreeMap<&'static str, u64>>,
}

impl GroupNumbers {
    pub(super) fn count_reason(&self, reason: CloseReason) {
        *self.by_reason().entry(reason.name()).or_default() += 1;
        match reason {
            CloseReason::Idle => self.idle_kicks.add(1),
            CloseReason::HandlerPanicked => self.panics.add(1),
            CloseReason::UnknownFrame
            | CloseReason::TooLarge
            | CloseReason::BadFrame
            | CloseReason::BadMessage
            | CloseReason::NotSession => self.malformed.add(1),
            _ => {}
        }
    }

    fn by_reason(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.by_reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How often sessions closed for each reason, by its name.
    pub(super) fn reasons(&self) -> BTreeMap<&'static str, u64> {
        self.by_reason().clone()
    }
}

impl Group {
    /// Connections there are.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    pub(super) fn enter(&self, session: &Session) {
        self.sessions().insert(session.id(), session.clone());
    }

    /// The session is over; its counts become the group's.
    pub(super) fn leave(&self, session: &Session) {
        let mut sessions = self.sessions();
        let (numbers, its) = (&self.numbers, session.stats());
        numbers.messages_received.add(its.messages_received);
        numbers.messages_sent.add(its.messages_sent);
        numbers.bytes_received.add(its.bytes_received);
        numbers.bytes_sent.add(its.bytes_sent);
        numbers.closed.add(1);
        sessions.remove(&session.id());
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self) -> Vec<Session> {
        let mut list: Vec<Session> = self.sessions().values().cloned().collect();
        list.sort_by_key(Session::id);
        list
    }

    pub(super) fn totals(&self) -> Totals {
        // Under the lock, so that no session that ends is counted twice or not at all.
        let sessions = self.sessions();
        let numbers = &self.numbers;
        let mut totals = Totals {
            sessions: sessions.len() as u64,
            opened: numbers.opened.get(),
            closed: numbers.closed.get(),
            refused: numbers.refused.get(),
            idle_kicks: numbers.idle_kicks.get(),
            malformed: numbers.malformed.get(),
            panics: numbers.panics.get(),
            messages_received: numbers.messages_received.get(),
            messages_sent: numbers.messages_sent.get(),
            bytes_received: numbers.bytes_received.get(),
            bytes_sent: numbers.bytes_sent.get(),
        };
        for session in sessions.values() {
            let its = session.stats();
            totals.messages_received += its.messages_received;
            totals.messages_sent += its.messages_sent;
            totals.bytes_received += its.bytes_received;
            totals.bytes_sent += its.bytes_sent;
        }
        totals
    }

    /// A handler for `peer`; `None` if the user's code panicked.
    pub(super) fn handler_for(&self, peer: &Peer) -> Option<Box<dyn Handler>> {
        let make = self.make_handler.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| make(peer))).ok()
    }
}

/// The workers of a server or client, running.
pub(super) struct Crew {
    pub(super) group: Arc<Group>,
    pub(super) hubs: Vec<Arc<Hub>>,
    threads: Vec<JoinHandle<()>>,
    next: AtomicUsize,
}

/// What to start a crew with.
pub(super) struct Plan<P> {
    pub(super) protocol: P,
    pub(super) settings: Settings,
    pub(super) make_handler: Option<Box<MakeHandler>>,
    pub(super) acceptor: Option<Acceptor>,
    pub(super) listeners: Vec<Listener>,
    pub(super) name: &'static str,
}

impl Crew {
    pub(super) fn start<P>(plan: Plan<P>) -> io::Result<Self>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let mut settings = plan.settings;
        settings.max_sessions = mappings::carried(&settings, mappings::limit())?;
        let rings = Rings::new(
            settings.send_ring_bytes,
            settings.recv_ring_bytes,
            settings.idle_rings,
        )?;
        let shape = {
            let protocol = plan.protocol.clone();
            Box::new(move |header| protocol.shape(header))
        };
        let mut reactors = Vec::new();
        for _ in 0..settings.workers.max(1) {
            let mut reactor = Epoll::with_options(settings.sockets.clone())?;
            reactor.set_spin(settings.spin);
            reactors.push(reactor);
        }
        let hubs: Vec<Arc<Hub>> = reactors
            .iter()
            .map(|reactor| Hub::new(reactor.waker()))
            .collect();
        // The first worker accepts for all.
        let mut listening = Vec::new();
        for listener in plan.listeners {
            listening.push(reactors[0].listen(listener)?);
        }
        let group = Arc::new(Group {
            settings,
            rings,
            shape,
            make_handler: plan.make_handler,
            acceptor: plan.acceptor,
            connections: AtomicUsize::new(0),
            sessions: Mutex::default(),
            numbers: GroupNumbers::default(),
            recent_totals: RecentTotals::default(),
        });
        let mut crew = Self {
            group,
            hubs,
            threads: Vec::new(),
            next: AtomicUsize::new(0),
        };
        for (number, reactor) in reactors.into_iter().enumerate() {
            let worker = Worker::new(
                plan.protocol.clone(),
                reactor,
                Arc::clone(&crew.group),
                crew.hubs.clone(),
                number,
                std::mem::take(&mut listening),
            );
            let name = format!("{}-{number}", plan.name);
            let thread = std::thread::Builder::new().name(name);
            crew.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(crew)
    }

    /// Hands a connection to the worker whose turn it is, or to the next that runs. If none does,
    /// it is dropped, which answers and frees what it holds.
    pub(super) fn hand(&self, command: Command) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.hubs.len();
        let (before, from) = self.hubs.split_at(turn);
        let mut command = Box::new(command);
        for hub in from.iter().chain(before) {
            match hub.hand(*command) {
                Ok(()) => return,
                Err(back) => command = back,
            }
        }
    }

    /// Ends every session politely within `timeout`, and the threads.
    pub(super) fn shutdown(&mut self, timeout: Duration) {
        for hub in &self.hubs {
            // One that has ended needs no telling.
            let _ = hub.hand(Command::Drain(timeout));
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A handler may own its server; its thread then ends after the handler returns.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.shutdown(Duration::ZERO);
        }
    }
}
