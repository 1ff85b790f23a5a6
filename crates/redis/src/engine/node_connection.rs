//! A connection to a node that reconnects.
//!
//! A [`NodeConnection`] outlives the connection that it holds: when that breaks, the next caller has
//! the manager's thread connect again, after growing pauses while connecting fails. It also leaves a
//! connection whose server answers that another one has taken over (`Config::reconnect_on`).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use embar_mux::waiters::{Outworn, Place, Waiters};
use embar_mux::{Call, CloseReason, Connection, ConnectionLimits, ConnectionState, Meters};

use super::cache::{Cache, Tracker};
use super::greeting::Purpose;
use super::leave_pace::LeavePace;
use super::protocol::{ConnectionOwner, RedisProtocol};
use super::schedule::Task;
use super::shared::Shared;
use super::timers::after;
use crate::config::{Mode, ReadFrom};
use crate::endpoint::Endpoint;
use crate::metrics::{ConnectionLog, NodeCounters};
use crate::resp::is_refusal_of_credentials;

/// Most commands of the one caller of a dedicated connection that wait for a reply; further ones wait to be sent. Not
/// fewer: what waits may be overtaken by what the caller sends just when there is room again.
const DEDICATED_IN_FLIGHT: usize = 1024;

/// A connection to a node, now and again after it breaks.
pub(crate) struct NodeConnection {
    pub endpoint: Endpoint,
    log: ConnectionLog,
    conn: ArcSwapOption<Connection>,
    shared: Arc<Shared>,
    /// Whether what is read over it may be kept.
    pub tracker: Arc<Tracker>,
    /// One caller uses it alone, whose commands may take as long as they like.
    is_dedicated: bool,
    /// How many attempts to connect failed one after the other.
    failures: AtomicU32,
    /// As the field of the same name in `state`, to look at without the lock.
    retired: AtomicBool,
    /// Which credentials its connection began with.
    credentials_version: AtomicU64,
    /// Once its connection breaks, it is retired instead of connecting again.
    breaks_once: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The manager's thread is going to connect.
    connecting: bool,
    /// The node is not part of the cluster any more: this never connects again.
    retired: bool,
    /// The earliest time of the next attempt.
    not_before: Option<Instant>,
    /// Tasks that wait for a connection: the next change wakes them, when it is open or over, or there is another one.
    waiting: Waiters,
    pace: LeavePace,
    /// How often it left a connection: of several addresses of a name, each time another one is next.
    left: u32,
    last_failure: Option<CloseReason>,
}

impl NodeConnection {
    /// A connection for one caller alone.
    pub fn dedicated(endpoint: Endpoint, shared: &Arc<Shared>) -> Arc<Self> {
        Self::new(endpoint, shared, true, &Arc::default())
    }

    /// A connection that callers share.
    pub(super) fn shared(
        endpoint: Endpoint,
        shared: &Arc<Shared>,
        counters: &Arc<NodeCounters>,
    ) -> Arc<Self> {
        Self::new(endpoint, shared, false, counters)
    }

    fn new(
        endpoint: Endpoint,
        shared: &Arc<Shared>,
        is_dedicated: bool,
        counters: &Arc<NodeCounters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            log: ConnectionLog::new(counters),
            conn: ArcSwapOption::empty(),
            shared: Arc::clone(shared),
            tracker: Arc::default(),
            is_dedicated,
            failures: AtomicU32::new(0),
            retired: AtomicBool::new(false),
            credentials_version: AtomicU64::new(0),
            breaks_once: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// A connection that takes commands, and sends them now or as soon as it is open. Otherwise the
    /// next change wakes the task, which has its place in `wait`.
    #[inline]
    pub fn poll_conn(
        self: &Arc<Self>,
        wait: &mut ConnWait,
        cx: &mut Context<'_>,
    ) -> Poll<Arc<Connection>> {
        match &*self.conn.load() {
            Some(conn) if conn.state() != ConnectionState::Closed => Poll::Ready(Arc::clone(conn)),
            _ => self.poll_new(wait, cx),
        }
    }

    /// As [`NodeConnection::poll_conn`], but one that is open. A connection that is not open yet may
    /// send a command at any time, also after its caller gave up; a command that no connection has
    /// certainly does not go out.
    #[cold]
    pub fn poll_open(
        self: &Arc<Self>,
        wait: &mut ConnWait,
        cx: &mut Context<'_>,
    ) -> Poll<Arc<Connection>> {
        loop {
            let Poll::Ready(conn) = self.poll_conn(wait, cx) else {
                return Poll::Pending;
            };
            if conn.state() == ConnectionState::Open {
                return Poll::Ready(conn);
            }
            // Before the lock: it may give up a place at another node.
            let place = wait.at(self);
            let mut outworn = Outworn::default();
            let waker = cx.waker().clone();
            let mut state = self.state();
            match conn.state() {
                ConnectionState::Open => return Poll::Ready(conn),
                ConnectionState::Connecting => {
                    state.waiting.wait(place, 1, waker, &mut outworn);
                    return Poll::Pending;
                }
                ConnectionState::Closed => {}
            }
        }
    }

    #[cold]
    fn poll_new(
        self: &Arc<Self>,
        wait: &mut ConnWait,
        cx: &mut Context<'_>,
    ) -> Poll<Arc<Connection>> {
        // Before the lock: it may give up a place at another node.
        let place = wait.at(self);
        let mut outworn = Outworn::default();
        let waker = cx.waker().clone();
        let mut state = self.state();
        if let Some(conn) = &*self.conn.load()
            && conn.state() != ConnectionState::Closed
        {
            return Poll::Ready(Arc::clone(conn));
        }
        if state.retired {
            // The caller chose this node just before it left: now another node serves the slot, or
            // none does.
            drop(state);
            waker.wake();
            return Poll::Pending;
        }
        state.waiting.wait(place, 1, waker, &mut outworn);
        self.request(state);
        Poll::Pending
    }

    /// Has the manager's thread connect, unless it is going to.
    fn request(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.connecting || state.retired {
            return;
        }
        state.connecting = true;
        let at = state.not_before;
        drop(state);
        let task: Arc<dyn Task> = Arc::clone(self) as Arc<dyn Task>;
        self.shared.schedule.run_at(Arc::downgrade(&task), at);
    }

    /// Whether the node would probably answer a command: there is a connection, or no sign against
    /// one. If not, it connects, to find out.
    pub fn seems_alive(self: &Arc<Self>) -> bool {
        let conn = self.conn.load();
        let state = conn.as_ref().map(|conn| conn.state());
        match state {
            Some(ConnectionState::Open) => !conn.as_ref().is_some_and(|conn| conn.is_silent()),
            Some(ConnectionState::Connecting) => self.failures() == 0,
            None if self.failures() == 0 => !self.is_retired(),
            Some(ConnectionState::Closed) | None => {
                self.request(self.state());
                false
            }
        }
    }

    /// Connects, unless there is a connection. Blocks while it resolves the host's name.
    fn connect(self: &Arc<Self>) {
        if self.is_up() {
            return;
        }
        self.log.connecting();
        let (credentials, version) = match self.shared.current_credentials() {
            Ok(known) => known,
            Err(why) => return self.connected(Err(CloseReason::NotReady(why))),
        };
        self.credentials_version.store(version, Ordering::Relaxed);
        let config = &*self.shared.config;
        let limit = |usual| match self.is_dedicated {
            true => Duration::MAX,
            false => usual,
        };
        let limits = ConnectionLimits {
            in_flight: match self.is_dedicated {
                true => config.max_in_flight.min(DEDICATED_IN_FLIGHT),
                false => config.max_in_flight,
            },
            timeout: limit(config.timeout),
            dead_after: limit(config.dead_after),
            connect_timeout: config.connect_timeout,
            max_reply_bytes: config.max_reply_bytes,
            ..ConnectionLimits::default()
        };
        let read_replica = config.mode == Mode::Cluster && config.read_from != ReadFrom::Primary;
        let purpose = Purpose::Commands {
            read_replica,
            tracks: !self.is_dedicated,
        };
        let owner = Box::new(Owner(Arc::downgrade(self)));
        let protocol = RedisProtocol::new(config, credentials.as_ref(), purpose, owner);
        let dialer = &self.shared.dialer;
        let attempt = self.failures().wrapping_add(self.state().left);
        let opened = dialer.open(&self.endpoint, attempt, limits, protocol);
        self.connected(opened);
    }

    /// There is a connection, which may still fail to open, or a reason why there is none.
    fn connected(&self, outcome: Result<Connection, CloseReason>) {
        if let Err(reason) = &outcome {
            self.log.failed(&self.endpoint, reason, self.failures());
        }
        let mut state = self.state();
        state.connecting = false;
        match outcome {
            Ok(conn) if state.retired => conn.close(),
            Ok(conn) => self.conn.store(Some(Arc::new(conn))),
            Err(reason) => self.note_failure(&mut state, reason),
        }
        self.wake(state);
        if let Some(credentials) = self
            .shared
            .credentials
            .as_ref()
            .filter(|_| !self.is_dedicated)
        {
            // Those who were told meanwhile did not include this one.
            credentials.opened(self.credentials_version());
        }
    }

    /// Which credentials its connection began with.
    pub fn credentials_version(&self) -> u64 {
        self.credentials_version.load(Ordering::Relaxed)
    }

    /// The connection is open: the server has accepted the greeting.
    fn came_up(&self) {
        self.log.opened(&self.endpoint);
        self.failures.store(0, Ordering::Relaxed);
        if self.shared.config.mode == Mode::Standalone {
            self.shared.settle();
        }
        if let Some(credentials) = &self.shared.credentials {
            credentials.accepted(self.credentials_version());
        }
        let mut state = self.state();
        state.not_before = None;
        self.wake(state);
    }

    /// The connection is over; it was open, or never came to that.
    fn went_down(&self, reason: &CloseReason, was_open: bool) {
        if was_open {
            self.log.lost(&self.endpoint, reason);
        } else {
            self.log.failed(&self.endpoint, reason, self.failures());
        }
        if let (Some(credentials), CloseReason::Refused(words)) = (&self.shared.credentials, reason)
            && is_refusal_of_credentials(words)
        {
            credentials.refused(Some(self.credentials_version()));
        }
        self.nothing_holds();
        let mut state = self.state();
        match was_open {
            // This end closed what it had left.
            true if *reason == CloseReason::Closed => {}
            true => state.last_failure = Some(reason.clone()),
            false => self.note_failure(&mut state, reason.clone()),
        }
        if was_open && self.breaks_once.load(Ordering::Relaxed) {
            self.retired.store(true, Ordering::Release);
            state.retired = true;
            self.conn.store(None);
        }
        self.wake(state);
        // Perhaps another node has taken over.
        self.shared.schedule.request_refresh();
    }

    /// The server tracks what is read over the connection that is about to open, or refused to.
    fn tracks(&self, refused: Option<&str>) {
        if let Some(why) = refused {
            let node = &self.endpoint;
            tracing::warn!(%node, why, "nothing is cached: the server does not track what is read; allow CLIENT TRACKING");
        }
        self.tracker.opened(refused.is_none());
    }

    /// A push came that may say what has changed.
    fn take_push(&self, frame: &[u8]) {
        if let Some(cache) = self.cache() {
            cache.take_push(frame, &self.tracker);
        }
    }

    /// What was read over a connection that is over, or that was left, may change without a report.
    fn nothing_holds(&self) {
        if let Some(cache) = self.cache() {
            cache.connection_over(&self.tracker);
        }
    }

    fn cache(&self) -> Option<&Arc<Cache>> {
        self.shared.cache.as_ref().filter(|_| !self.is_dedicated)
    }

    fn note_failure(&self, state: &mut State, reason: CloseReason) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        state.last_failure = Some(reason);
        let backoff = self.shared.config.retries.backoff(failures);
        state.not_before = Some(after(backoff));
    }

    /// Whether its node has left the topology: it will never connect again.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether it is retired when its connection breaks: who answers at its address then is to be asked first what it is.
    pub(super) fn set_breaks_once(&self, breaks_once: bool) {
        self.breaks_once.store(breaks_once, Ordering::Relaxed);
    }

    /// Whether there is a connection that is not over. If so, wakes the tasks that wait for one.
    fn is_up(&self) -> bool {
        let conn = self.current();
        let up = conn.is_some_and(|conn| conn.state() != ConnectionState::Closed);
        if up {
            let mut state = self.state();
            state.connecting = false;
            self.wake(state);
        }
        up
    }

    /// How many attempts to connect failed one after the other.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether connecting failed just now, so that the next attempt is to come later.
    pub fn is_backing_off(&self) -> bool {
        let not_before = self.state().not_before;
        not_before.is_some_and(|at| at > Instant::now())
    }

    /// Leaves the connection that answered this call, unless another caller has done so, or it was done
    /// just now: connects again, and resolves the name again. Callers that have commands in flight there
    /// get their replies.
    #[cold]
    pub fn leave(self: &Arc<Self>, answered: &Call, answer: &str) {
        let mut state = self.state();
        let Some(conn) = self.current().filter(|conn| conn.took(answered)) else {
            return;
        };
        let retries = &self.shared.config.retries;
        if state.retired || !state.pace.may_leave(Instant::now(), retries) {
            return;
        }
        state.left = state.left.wrapping_add(1);
        self.conn.store(None);
        // Behind that: who has read its epoch by now gets a connection that is not this one.
        self.nothing_holds();
        self.log.left(&self.endpoint, answer);
        self.request(state);
        self.shared.schedule.close_when_idle(conn);
    }

    /// Gives up its connection without closing it.
    pub fn release(&self) {
        self.conn.store(None);
    }

    /// What went wrong last.
    pub fn last_failure(&self) -> Option<CloseReason> {
        self.state().last_failure.clone()
    }

    /// Never connects again, and gives up its connection: callers that hold it may go on using it.
    pub(super) fn retire(&self) -> Option<Arc<Connection>> {
        self.retired.store(true, Ordering::Release);
        let mut state = self.state();
        state.retired = true;
        let conn = self.conn.swap(None);
        self.wake(state);
        self.nothing_holds();
        conn
    }

    /// The connection, in whatever state.
    pub fn current(&self) -> Option<Arc<Connection>> {
        self.conn.load_full()
    }

    /// The task that had this place waits no more.
    fn stop_waiting(&self, place: Place) {
        let mut outworn = Outworn::default();
        self.state().waiting.leave(place, &mut outworn);
    }

    /// Wakes the tasks that wait now, without the lock. Those who wait again meanwhile wait for the next change.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let all = state.waiting.wake_all();
        drop(state);
        all.wake();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task for NodeConnection {
    fn run(self: Arc<Self>) {
        let connection = Arc::clone(&self);
        self.shared
            .dialer
            .run(&self.endpoint, move || connection.connect());
    }
}

/// What the protocol reports goes to the node connection, if that still exists.
struct Owner(Weak<NodeConnection>);

impl ConnectionOwner for Owner {
    fn opened(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.came_up();
        }
    }

    fn tracks(&self, refused: Option<&str>) {
        if let Some(connection) = self.0.upgrade() {
            connection.tracks(refused);
        }
    }

    fn push(&self, frame: &[u8]) {
        if let Some(connection) = self.0.upgrade() {
            connection.take_push(frame);
        }
    }

    fn meters(&self) -> Arc<Meters> {
        let connection = self.0.upgrade();
        connection.map_or_else(Arc::default, |connection| connection.log.meters())
    }

    fn silent(&self) {
        if let Some(connection) = self.0.upgrade() {
            // The other nodes know whether another one has taken over.
            connection.shared.schedule.request_refresh();
        }
    }

    fn closed(&self, reason: &CloseReason, was_open: bool) {
        if let Some(connection) = self.0.upgrade() {
            connection.went_down(reason, was_open);
        }
    }
}

impl Drop for NodeConnection {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.swap(None) {
            conn.close();
        }
        // Whatever its connection reports reaches nobody any more.
        self.nothing_holds();
    }
}

impl fmt::Debug for NodeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeConnection({})", self.endpoint)
    }
}

/// A task's place among those who wait for a node's connection. Dropped, it is given up.
#[derive(Default)]
pub(crate) struct ConnWait(Option<Box<WaitAt>>);

struct WaitAt {
    connection: Arc<NodeConnection>,
    place: Option<Place>,
}

impl ConnWait {
    /// Its place at this node; one at another node is given up.
    fn at(&mut self, connection: &Arc<NodeConnection>) -> &mut Option<Place> {
        let known = self.0.take();
        let here = known.filter(|known| Arc::ptr_eq(&known.connection, connection));
        let wait = here.unwrap_or_else(|| {
            Box::new(WaitAt {
                connection: Arc::clone(connection),
                place: None,
            })
        });
        &mut self.0.insert(wait).place
    }

    /// Waits no more.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

impl Drop for WaitAt {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.connection.stop_waiting(place);
        }
    }
}

impl fmt::Debug for ConnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "ConnWait(waiting)"
        } else {
            "ConnWait(unused)"
        })
    }
}
