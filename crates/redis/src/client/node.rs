//! A server, and the connections to it.
//!
//! A link stands for one connection and outlives it: when it breaks, the next caller who needs it
//! has the keeper connect anew, at growing distances while that fails.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use embar_mux::{CloseReason, Connection, ConnectionState};

use super::keeper::Keeper;
use super::metrics::{Counted, Journal, NodeTally};
use super::sleepers::after;
use crate::config::Endpoint;

/// A server.
#[derive(Debug)]
pub(crate) struct Node {
    pub endpoint: Endpoint,
    pub counted: Counted,
    links: Box<[Arc<Link>]>,
}

impl Node {
    pub fn new(endpoint: Endpoint, links: usize, keeper: &Arc<Keeper>) -> Arc<Self> {
        let counted = Counted::new(&keeper.tally);
        let link = |_| Link::new(endpoint.clone(), keeper, false, &counted.node);
        let links = (0..links.max(1)).map(link).collect();
        Arc::new(Self {
            endpoint,
            counted,
            links,
        })
    }

    /// One of its links, always the same for the same `hint`: so commands of a caller for the same
    /// key stay in order, and nobody counts whose turn it is.
    #[inline]
    pub fn link(&self, hint: u16) -> &Arc<Link> {
        match &*self.links {
            [only] => only,
            links => &links[usize::from(hint) % links.len()],
        }
    }

    pub fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// It is not part of the cluster any more. Who still has a command there gets its reply.
    pub fn retire(&self, keeper: &Keeper) {
        for link in &*self.links {
            if let Some(conn) = link.retire() {
                keeper.let_go(conn);
            }
        }
    }

    /// How good a choice it is for a command that any node can execute: the lower, the better.
    pub fn distance(&self) -> u8 {
        let link = self.link(0);
        match link.current().map(|conn| conn.state()) {
            Some(ConnectionState::Open) => 0,
            Some(ConnectionState::Connecting) => 1,
            _ if link.is_backing_off() => 3,
            _ => 2,
        }
    }
}

/// A place for a connection. See the module.
pub(crate) struct Link {
    pub endpoint: Endpoint,
    pub journal: Journal,
    conn: ArcSwapOption<Connection>,
    keeper: Weak<Keeper>,
    /// It is for one caller alone, whose commands may take as long as they like.
    pub is_dedicated: bool,
    /// Attempts to connect that failed one after the other.
    failures: AtomicU32,
    retired: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The keeper is about to connect.
    wanted: bool,
    retired: bool,
    /// When it may.
    not_before: Option<Instant>,
    /// Those who wait for a connection.
    waiting: Vec<std::task::Waker>,
    last: Option<CloseReason>,
}

impl State {
    /// The task is woken when the connection stands, or is over, or there is another one.
    fn wait(&mut self, cx: &Context<'_>) {
        let known = self.waiting.iter().any(|waker| waker.will_wake(cx.waker()));
        if !known {
            self.waiting.push(cx.waker().clone());
        }
    }
}

impl Link {
    /// A link for one caller alone.
    pub fn dedicated(endpoint: Endpoint, keeper: &Arc<Keeper>) -> Arc<Self> {
        Self::new(endpoint, keeper, true, &Arc::default())
    }

    fn new(
        endpoint: Endpoint,
        keeper: &Arc<Keeper>,
        is_dedicated: bool,
        tally: &Arc<NodeTally>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            journal: Journal::new(tally),
            conn: ArcSwapOption::empty(),
            keeper: Arc::downgrade(keeper),
            is_dedicated,
            failures: AtomicU32::new(0),
            retired: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// A connection that takes commands, now or as soon as it stands. Otherwise the task is woken
    /// when there is one, or when there may never be.
    #[inline]
    pub fn poll_conn(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Arc<Connection>> {
        match &*self.conn.load() {
            Some(conn) if conn.state() != ConnectionState::Closed => Poll::Ready(Arc::clone(conn)),
            _ => self.poll_new(cx),
        }
    }

    /// As [`Link::poll_conn`], but one that stands. What is given to one that is being made may go out
    /// at any time, also when nobody waits for it any more; what was not given to any certainly does
    /// not.
    #[cold]
    pub fn poll_open(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Arc<Connection>> {
        loop {
            let Poll::Ready(conn) = self.poll_conn(cx) else {
                return Poll::Pending;
            };
            let mut state = self.state();
            match conn.state() {
                ConnectionState::Open => return Poll::Ready(conn),
                ConnectionState::Connecting => {
                    state.wait(cx);
                    return Poll::Pending;
                }
                ConnectionState::Closed => {}
            }
        }
    }

    #[cold]
    fn poll_new(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Arc<Connection>> {
        let mut state = self.state();
        if let Some(conn) = &*self.conn.load()
            && conn.state() != ConnectionState::Closed
        {
            return Poll::Ready(Arc::clone(conn));
        }
        if state.retired {
            // It was chosen just before: now there is another one, or none.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        state.wait(cx);
        self.want(state);
        Poll::Pending
    }

    /// Has the keeper connect, unless it is about to.
    fn want(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.wanted || state.retired {
            return;
        }
        state.wanted = true;
        let at = state.not_before;
        drop(state);
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.connect(Arc::clone(self), at);
        }
    }

    /// Whether a command would probably be answered: there is a connection, or nothing speaks against
    /// one. If not, it is tried to make one, so that this is found out.
    pub fn seems_alive(self: &Arc<Self>) -> bool {
        let standing = self.conn.load().as_ref().map(|conn| conn.state());
        match standing {
            Some(ConnectionState::Open) => true,
            Some(ConnectionState::Connecting) => self.failures() == 0,
            None if self.failures() == 0 => !self.is_retired(),
            Some(ConnectionState::Closed) | None => {
                self.want(self.state());
                false
            }
        }
    }

    /// The keeper has one, or found out why there is none.
    pub fn set(&self, outcome: Result<Connection, CloseReason>) {
        if let Err(reason) = &outcome {
            self.journal.failed(&self.endpoint, reason, self.failures());
        }
        let mut state = self.state();
        state.wanted = false;
        match outcome {
            Ok(conn) if state.retired => conn.close(),
            Ok(conn) => self.conn.store(Some(Arc::new(conn))),
            Err(reason) => self.note_failure(&mut state, reason),
        }
        wake(state);
    }

    /// The connection stands, and the server has accepted the greeting.
    pub fn came_up(&self) {
        self.journal.up(&self.endpoint);
        self.failures.store(0, Ordering::Relaxed);
        let mut state = self.state();
        state.not_before = None;
        wake(state);
    }

    /// The connection is over; it stood, or never came to that.
    pub fn went_down(&self, reason: &CloseReason, stood: bool) {
        if stood {
            self.journal.down(&self.endpoint, reason);
        } else {
            self.journal.failed(&self.endpoint, reason, self.failures());
        }
        let mut state = self.state();
        match stood {
            true => state.last = Some(reason.clone()),
            false => self.note_failure(&mut state, reason.clone()),
        }
        wake(state);
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.node_failed();
        }
    }

    fn note_failure(&self, state: &mut State, reason: CloseReason) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        state.last = Some(reason);
        let keeper = self.keeper.upgrade();
        let backoff = keeper.map_or(Duration::ZERO, |keeper| keeper.backoff(failures));
        state.not_before = Some(after(backoff));
    }

    /// Whether its node is not part of the cluster any more: it will never be connected again.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether there is a connection that is not over. If so, those who wait for one are told.
    pub fn is_up(&self) -> bool {
        let conn = self.current();
        let up = conn.is_some_and(|conn| conn.state() != ConnectionState::Closed);
        if up {
            let mut state = self.state();
            state.wanted = false;
            wake(state);
        }
        up
    }

    /// Attempts to connect that failed one after the other.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it could not be connected just now, and is not tried before some time has passed.
    pub fn is_backing_off(&self) -> bool {
        let not_before = self.state().not_before;
        not_before.is_some_and(|at| at > Instant::now())
    }

    /// Gives the connection away.
    pub fn release(&self) {
        self.conn.store(None);
    }

    /// What went wrong last.
    pub fn last_failure(&self) -> Option<CloseReason> {
        self.state().last.clone()
    }

    /// It will never be connected again. Gives its connection away: those who got it before may
    /// still use it.
    fn retire(&self) -> Option<Arc<Connection>> {
        self.retired.store(true, Ordering::Release);
        let mut state = self.state();
        state.retired = true;
        let conn = self.conn.swap(None);
        wake(state);
        conn
    }

    /// The connection, in whatever state.
    pub fn current(&self) -> Option<Arc<Connection>> {
        self.conn.load_full()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.swap(None) {
            conn.close();
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.endpoint)
    }
}

/// Wakes those who wait, without the lock.
fn wake(mut state: MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    for waker in waiting {
        waker.wake();
    }
}
