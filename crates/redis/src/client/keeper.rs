//! The thread that keeps a client going: it connects, learns who serves which slot, and wakes those
//! who sleep. Nothing on it is part of a command that goes well.
//!
//! Nothing on it waits for anything but its next job: names are looked up on a thread of their own
//! (`names`), and a question for the topology is a future (`refresh`). So whoever waits for time to
//! pass is woken in time, whatever else is slow.

use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use embar_mux::{CloseReason, Connection, ConnectionLimits};
use embar_transport::Address;
use embar_transport::tls::{TlsError, TlsFault};

use super::Inner;
use super::drivers::Drivers;
use super::feed::{Feed, Wish};
use super::metrics::Tally;
use super::names::{Names, look_up};
use super::node::Link;
use super::refresh::Refresh;
use super::sleepers::{Sleepers, after};
use super::speak::Speaker;
use crate::config::{Config, Endpoint, Mode, ReadFrom};
use crate::tls::Encryption;

/// The topology is not asked for more often than this, whatever happens.
const REFRESH_MIN: Duration = Duration::from_millis(100);

/// How often connections to nodes that are not part of the cluster any more are looked at.
const LET_GO_EVERY: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Keeper {
    config: Arc<Config>,
    drivers: Drivers,
    tls: Option<Encryption>,
    names: Arc<Names>,
    pub tally: Arc<Tally>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    connects: Vec<(Option<Instant>, Arc<Link>)>,
    sleepers: Sleepers,
    /// When the topology is to be asked for; `None`: never, there is no cluster.
    refresh_at: Option<Instant>,
    refreshed: Option<Instant>,
    /// It is being asked for.
    refreshing: bool,
    /// Something happened that who asks for it waits for.
    answered: bool,
    /// Subscribers whose subscriptions are to be seen to.
    tend: Vec<(Instant, Weak<Feed>)>,
    /// All subscribers.
    feeds: Vec<Weak<Feed>>,
    /// Connections that end as soon as nobody can submit anything to them or waits for a reply.
    leaving: Vec<Arc<Connection>>,
    over: bool,
}

/// What the thread does next.
enum Job {
    Connect(Arc<Link>),
    Refresh,
    LetGo(Vec<Arc<Connection>>),
    Tend(Weak<Feed>),
    Wake(Vec<Waker>),
    End,
}

impl Work {
    /// One entry for each place for a connection.
    fn connect(&mut self, link: Arc<Link>, at: Option<Instant>) {
        let is_it = |(_, known): &&mut (_, Arc<Link>)| Arc::ptr_eq(known, &link);
        match self.connects.iter_mut().find(is_it) {
            Some((known, _)) => *known = at.min(*known),
            None => self.connects.push((at, link)),
        }
    }

    /// What is to be done now.
    fn due(&mut self, now: Instant) -> Option<Job> {
        if self.over {
            return Some(Job::End);
        }
        let wakers = self.sleepers.due(now);
        if !wakers.is_empty() {
            return Some(Job::Wake(wakers));
        }
        let due = |(at, _): &(Option<Instant>, _)| at.is_none_or(|at| at <= now);
        if let Some(index) = self.connects.iter().position(due) {
            return Some(Job::Connect(self.connects.swap_remove(index).1));
        }
        if let Some(index) = self.tend.iter().position(|(at, _)| *at <= now) {
            return Some(Job::Tend(self.tend.swap_remove(index).1));
        }
        if std::mem::take(&mut self.answered) && self.refreshing {
            return Some(Job::Refresh);
        }
        if self.next_refresh().is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.refreshing = true;
            return Some(Job::Refresh);
        }
        None
    }

    /// When there is something to be done.
    fn next(&self) -> Option<Instant> {
        let connects = self.connects.iter().filter_map(|(at, _)| *at);
        let tend = self.tend.iter().map(|(at, _)| *at);
        connects
            .chain(tend)
            .chain(self.sleepers.next())
            .chain(self.next_refresh())
            .min()
    }

    /// One at a time.
    fn next_refresh(&self) -> Option<Instant> {
        self.refresh_at.filter(|_| !self.refreshing)
    }

    /// One entry for each subscriber, however often it is wished for.
    fn tend(&mut self, feed: Weak<Feed>, at: Instant) {
        match self.tend.iter_mut().find(|(_, known)| known.ptr_eq(&feed)) {
            Some((known, _)) => *known = at.min(*known),
            None => self.tend.push((at, feed)),
        }
    }
}

impl Keeper {
    pub fn new(config: Arc<Config>, drivers: Drivers, tls: Option<Encryption>) -> Arc<Self> {
        Arc::new(Self {
            config,
            drivers,
            tls,
            names: Arc::default(),
            tally: Arc::default(),
            work: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Starts the thread; it ends when the client is gone.
    pub fn start(self: &Arc<Self>, client: Weak<Inner>) -> std::io::Result<()> {
        let keeper = Arc::clone(self);
        let run = move || keeper.run(&client);
        thread::Builder::new()
            .name("redis-keeper".into())
            .spawn(run)?;
        Ok(())
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut Work)) {
        f(&mut self.work());
        self.changed.notify_one();
    }

    /// Has the link connected, not before `at`.
    pub fn connect(&self, link: Arc<Link>, at: Option<Instant>) {
        self.change(|work| work.connect(link, at));
    }

    pub(super) fn sleepers<R>(&self, f: impl FnOnce(&mut Sleepers) -> R) -> R {
        f(&mut self.work().sleepers)
    }

    /// Has the thread see what comes next.
    pub(super) fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Learns soon who serves which slot; several wishes at a time are one.
    pub fn refresh(&self) {
        if self.config.mode == Mode::Cluster {
            self.change(|work| {
                let soonest = work
                    .refreshed
                    .map_or_else(Instant::now, |at| at + REFRESH_MIN);
                let at = work.refresh_at.map_or(soonest, |at| at.min(soonest));
                work.refresh_at = Some(at);
            });
        }
    }

    /// A connection broke: perhaps another node has taken over.
    pub fn node_failed(&self) {
        self.refresh();
    }

    /// Has a subscriber's subscriptions seen to at that time.
    pub fn tend(&self, feed: Weak<Feed>, at: Instant) {
        self.change(|work| work.tend(feed, at));
    }

    /// Remembers a subscriber: when nodes change, its subscriptions may have to move.
    pub fn remember(&self, feed: Weak<Feed>) {
        self.change(|work| {
            work.feeds.retain(|feed| feed.strong_count() > 0);
            work.feeds.push(feed);
        });
    }

    /// Closes a connection when nobody has any use for it. No new caller may come by it.
    pub fn let_go(&self, conn: Arc<Connection>) {
        self.change(|work| work.leaving.push(conn));
    }

    /// How long a command may take.
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Whether the client was closed.
    pub fn is_over(&self) -> bool {
        self.work().over
    }

    pub fn end(&self) {
        self.change(|work| work.over = true);
    }

    /// How long to wait after so many failures: twice as long each time up to a limit, and at
    /// random between half of that and all of it, so that clients do not come back all at once.
    pub fn backoff(&self, failures: u32) -> Duration {
        let retries = &self.config.retries;
        let factor = 1u32 << failures.min(16);
        let wait = retries
            .backoff_min
            .saturating_mul(factor)
            .min(retries.backoff_max);
        (wait / 2).saturating_add((wait / 2).mul_f64(random()))
    }

    fn run(self: &Arc<Self>, client: &Weak<Inner>) {
        let waker = Waker::from(Arc::clone(self));
        let mut refresh = None;
        loop {
            match self.next_job() {
                Job::Connect(link) => {
                    let (keeper, made) = (Arc::clone(self), Arc::clone(&link));
                    let make = move || keeper.make(&made);
                    self.names.look_up_for(&link.endpoint, make);
                }
                Job::Refresh => {
                    if let Some(client) = client.upgrade() {
                        let running = refresh.get_or_insert_with(|| Refresh::new(&client));
                        let cx = &mut Context::from_waker(&waker);
                        if let Poll::Ready(refreshed) = running.poll(&client, cx) {
                            refresh = None;
                            self.refreshed(refreshed);
                        }
                    }
                }
                Job::Tend(feed) => {
                    if let (Some(feed), Some(client)) = (feed.upgrade(), client.upgrade()) {
                        feed.tend(&client);
                    }
                }
                Job::Wake(wakers) => wakers.into_iter().for_each(Waker::wake),
                Job::LetGo(conns) => {
                    let busy: Vec<_> = conns.into_iter().filter_map(close_if_idle).collect();
                    self.work().leaving.extend(busy);
                }
                Job::End => {
                    // Who waits for a connection may be this thread's own future.
                    let connects = std::mem::take(&mut self.work().connects);
                    drop((connects, refresh));
                    return self.drivers.close();
                }
            }
        }
    }

    fn refreshed(&self, refreshed: bool) {
        self.tally.refreshed(refreshed);
        let mut work = self.work();
        let now = Instant::now();
        work.refreshed = Some(now);
        work.refreshing = false;
        for feed in work.feeds.clone() {
            work.tend(feed, now);
        }
        let pause = if refreshed {
            self.config.refresh_interval
        } else {
            REFRESH_MIN
        };
        // Who asked meanwhile gets another one soon.
        let next = after(pause);
        work.refresh_at = Some(match work.refresh_at {
            Some(_) => next.min(now + REFRESH_MIN),
            None => next,
        });
    }

    fn next_job(&self) -> Job {
        let mut work = self.work();
        loop {
            let now = Instant::now();
            if let Some(job) = work.due(now) {
                return job;
            }
            let mut wait = work.next().map(|at| at.saturating_duration_since(now));
            if !work.leaving.is_empty() {
                wait = Some(wait.map_or(LET_GO_EVERY, |wait| wait.min(LET_GO_EVERY)));
            }
            work = match wait {
                None => self
                    .changed
                    .wait(work)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let waited = self.changed.wait_timeout(work, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            if !work.leaving.is_empty() {
                return Job::LetGo(std::mem::take(&mut work.leaving));
            }
        }
    }

    fn make(&self, link: &Arc<Link>) {
        if link.is_up() {
            return;
        }
        let outcome = self.open(link);
        link.set(outcome);
    }

    fn open(&self, link: &Arc<Link>) -> Result<Connection, CloseReason> {
        let config = &*self.config;
        link.journal.begin();
        let patience = |usual| match link.is_dedicated {
            true => Duration::MAX,
            false => usual,
        };
        let limits = ConnectionLimits {
            in_flight: config.max_in_flight,
            timeout: patience(config.timeout),
            dead_after: patience(config.dead_after),
            connect_timeout: config.connect_timeout,
            max_reply_bytes: config.max_reply_bytes,
            ..ConnectionLimits::default()
        };
        let replica_reads = config.mode == Mode::Cluster && config.read_from != ReadFrom::Primary;
        let speaker = Speaker::new(config, replica_reads, Arc::downgrade(link));
        self.dial(&link.endpoint, link.failures(), limits, speaker)
    }

    fn dial(
        &self,
        endpoint: &Endpoint,
        attempt: u32,
        limits: ConnectionLimits,
        speaker: Speaker,
    ) -> Result<Connection, CloseReason> {
        let address = resolve(endpoint, attempt)?;
        let mux = self.drivers.of(endpoint);
        let opened = match &self.tls {
            None => mux.open(address, limits, speaker),
            Some(tls) => {
                let target = tls.target(endpoint).map_err(CloseReason::Tls)?;
                mux.open_tls(address, &target, limits, speaker)
            }
        };
        opened.map_err(|error| match error.kind() {
            ErrorKind::Other => CloseReason::Tls(TlsError::new(TlsFault::Other, error)),
            kind => CloseReason::Unreachable(kind),
        })
    }

    /// Has a connection made for a subscriber, which is told of it.
    pub fn connect_feed(self: &Arc<Self>, feed: Arc<Feed>, wish: Wish) {
        let (keeper, endpoint) = (Arc::clone(self), wish.endpoint.clone());
        let open = move || {
            let opened = keeper.open_feed(&wish, &feed);
            feed.opened(wish.number, opened);
        };
        self.names.look_up_for(&endpoint, open);
    }

    fn open_feed(&self, wish: &Wish, feed: &Arc<Feed>) -> Result<Connection, CloseReason> {
        let limits = ConnectionLimits {
            connect_timeout: self.config.connect_timeout,
            max_reply_bytes: self.config.max_reply_bytes,
            ..ConnectionLimits::default()
        };
        let speaker = Speaker::of_feed(&self.config, Arc::downgrade(feed), wish.number);
        self.dial(&wish.endpoint, wish.attempt, limits, speaker)
    }
}

/// Wakes the future that asks for the topology.
impl Wake for Keeper {
    fn wake(self: Arc<Self>) {
        self.change(|work| work.answered = true);
    }
}

/// Closes a connection that is of no use to anybody; gives back others. Whoever may yet submit a
/// command holds the connection, too: so none is submitted between the look and the end.
fn close_if_idle(conn: Arc<Connection>) -> Option<Arc<Connection>> {
    match Arc::try_unwrap(conn) {
        Ok(conn) if conn.in_flight() == 0 => {
            conn.close();
            None
        }
        Ok(busy) => Some(Arc::new(busy)),
        Err(held) => Some(held),
    }
}

/// An address of a server; if it has several, another one for each attempt.
fn resolve(endpoint: &Endpoint, attempt: u32) -> Result<Address, CloseReason> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Address::Unix(path.clone())),
        Endpoint::Tcp { host, port } => {
            let found = look_up(host, *port);
            let found = found.map_err(|error| CloseReason::Unreachable(error.kind()))?;
            let chosen = found.get(attempt as usize % found.len().max(1));
            chosen
                .map(|address| Address::from(*address))
                .ok_or(CloseReason::Unreachable(std::io::ErrorKind::NotFound))
        }
    }
}

/// From 0 to 1, without a generator of random numbers: the standard library seeds its hashes well.
pub(super) fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
