//! The thread that keeps a client going: it connects, learns who serves which slot, and wakes those
//! who sleep. Nothing on it is part of a command that goes well.
//!
//! Resolving names blocks, and asking for the topology waits; both need a thread that no executor
//! has to lend.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::ToSocketAddrs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use embar_mux::{Conn, Limits, Mux, Reason};
use embar_transport::Address;

use super::Inner;
use super::feed::Feed;
use super::node::{Link, Node};
use super::speak::Speaker;
use crate::config::{Config, Endpoint, Mode, ReadFrom};

/// The topology is not asked for more often than this, whatever happens.
const REFRESH_MIN: Duration = Duration::from_millis(100);

/// How often nodes that are not part of the cluster any more are looked at.
const LET_GO_EVERY: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Keeper {
    config: Arc<Config>,
    mux: Mux<Speaker>,
    work: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
struct Work {
    connects: Vec<(Option<Instant>, Arc<Link>)>,
    sleepers: BinaryHeap<Reverse<Sleeper>>,
    /// When the topology is to be asked for; `None`: never, there is no cluster.
    refresh_at: Option<Instant>,
    refreshed: Option<Instant>,
    /// Subscribers whose subscriptions are to be seen to.
    tend: Vec<(Instant, Weak<Feed>)>,
    /// All subscribers.
    feeds: Vec<Weak<Feed>>,
    /// Nodes that end as soon as nobody waits for their replies.
    leaving: Vec<Arc<Node>>,
    over: bool,
}

struct Sleeper {
    at: Instant,
    waker: Waker,
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// What the thread does next.
enum Job {
    Connect(Arc<Link>),
    Refresh,
    LetGo(Vec<Arc<Node>>),
    Tend(Weak<Feed>),
    Wake(Vec<Waker>),
    End,
}

impl Work {
    /// One entry for each subscriber, however often it is wished for.
    fn tend(&mut self, feed: Weak<Feed>, at: Instant) {
        match self.tend.iter_mut().find(|(_, known)| known.ptr_eq(&feed)) {
            Some((known, _)) => *known = at.min(*known),
            None => self.tend.push((at, feed)),
        }
    }
}

impl Keeper {
    pub fn new(config: Arc<Config>, mux: Mux<Speaker>) -> Arc<Self> {
        Arc::new(Self {
            config,
            mux,
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
        self.change(|work| work.connects.push((at, link)));
    }

    /// Wakes somebody at that time, or a little later.
    pub fn wake_at(&self, at: Instant, waker: Waker) {
        self.change(|work| work.sleepers.push(Reverse(Sleeper { at, waker })));
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

    pub fn let_go(&self, node: Arc<Node>) {
        self.change(|work| work.leaving.push(node));
    }

    /// A connection of this link, made here and now if there is none; waits for it.
    pub fn conn_now(&self, link: &Arc<Link>) -> Result<Arc<Conn>, String> {
        if link
            .current()
            .is_none_or(|conn| conn.standing() == embar_mux::Standing::Closed)
        {
            self.make(link);
        }
        let closed = || "there is no connection".to_owned();
        link.current().ok_or_else(closed)
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
        wait / 2 + wait.mul_f64(random() / 2.0)
    }

    fn run(&self, client: &Weak<Inner>) {
        loop {
            match self.next_job() {
                Job::Connect(link) => self.make(&link),
                Job::Refresh => {
                    if let Some(client) = client.upgrade() {
                        let refreshed = client.refresh();
                        self.refreshed(refreshed);
                    }
                }
                Job::Tend(feed) => {
                    if let (Some(feed), Some(client)) = (feed.upgrade(), client.upgrade()) {
                        feed.tend(&client);
                    }
                }
                Job::Wake(wakers) => wakers.into_iter().for_each(Waker::wake),
                Job::LetGo(nodes) => {
                    let busy = |node: &Arc<Node>| {
                        let idle = node.links().iter().map(|link| link.close_if_idle());
                        idle.fold(false, |busy, idle| busy | !idle)
                    };
                    let busy: Vec<_> = nodes.into_iter().filter(busy).collect();
                    self.work().leaving.extend(busy);
                }
                Job::End => return self.mux.close(),
            }
        }
    }

    fn refreshed(&self, refreshed: bool) {
        let mut work = self.work();
        let now = Instant::now();
        work.refreshed = Some(now);
        for feed in work.feeds.clone() {
            work.tend(feed, now);
        }
        let pause = if refreshed {
            self.config.refresh_interval
        } else {
            REFRESH_MIN
        };
        // Who asked meanwhile gets another one soon.
        let next = now + pause;
        work.refresh_at = Some(match work.refresh_at {
            Some(_) => next.min(now + REFRESH_MIN),
            None => next,
        });
    }

    fn next_job(&self) -> Job {
        let mut work = self.work();
        loop {
            let now = Instant::now();
            if work.over {
                return Job::End;
            }
            let due = |at: &(Option<Instant>, Arc<Link>)| at.0.is_none_or(|at| at <= now);
            if let Some(index) = work.connects.iter().position(due) {
                return Job::Connect(work.connects.swap_remove(index).1);
            }
            if let Some(index) = work.tend.iter().position(|(at, _)| *at <= now) {
                return Job::Tend(work.tend.swap_remove(index).1);
            }
            let mut wakers = Vec::new();
            while work.sleepers.peek().is_some_and(|next| next.0.at <= now) {
                wakers.extend(work.sleepers.pop().map(|next| next.0.waker));
            }
            if !wakers.is_empty() {
                return Job::Wake(wakers);
            }
            if work.refresh_at.take_if(|at| *at <= now).is_some() {
                return Job::Refresh;
            }
            let connects = work.connects.iter().filter_map(|(at, _)| *at);
            let sleepers = work.sleepers.peek().map(|next| next.0.at);
            let tend = work.tend.iter().map(|(at, _)| *at);
            let next = connects
                .chain(sleepers)
                .chain(work.refresh_at)
                .chain(tend)
                .min();
            let mut wait = next.map(|at| at.saturating_duration_since(now));
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

    fn open(&self, link: &Arc<Link>) -> Result<Conn, Reason> {
        let config = &*self.config;
        let address = resolve(&link.endpoint, link.failures())?;
        let patience = |usual| match link.is_dedicated {
            true => Duration::MAX,
            false => usual,
        };
        let limits = Limits {
            in_flight: config.max_in_flight,
            timeout: patience(config.timeout),
            dead_after: patience(config.dead_after),
            connect_timeout: config.connect_timeout,
            max_reply_bytes: config.max_reply_bytes,
            ..Limits::default()
        };
        let replica_reads = config.mode == Mode::Cluster && config.read_from != ReadFrom::Primary;
        let speaker = Speaker::new(config, replica_reads, Arc::downgrade(link));
        let opened = self.mux.open(address, limits, speaker);
        opened.map_err(|error| Reason::Unreachable(error.kind()))
    }

    /// A connection for a subscriber; it may still fail to be made.
    pub fn open_feed(
        &self,
        endpoint: &Endpoint,
        feed: Weak<Feed>,
        number: u64,
        attempt: u32,
    ) -> Result<Conn, Reason> {
        let address = resolve(endpoint, attempt)?;
        let limits = Limits {
            connect_timeout: self.config.connect_timeout,
            max_reply_bytes: self.config.max_reply_bytes,
            ..Limits::default()
        };
        let speaker = Speaker::of_feed(&self.config, feed, number);
        let opened = self.mux.open(address, limits, speaker);
        opened.map_err(|error| Reason::Unreachable(error.kind()))
    }
}

/// An address of a server; if it has several, another one for each attempt.
fn resolve(endpoint: &Endpoint, attempt: u32) -> Result<Address, Reason> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Address::Unix(path.clone())),
        Endpoint::Tcp { host, port } => {
            let found = (host.as_str(), *port).to_socket_addrs();
            let found = found.map_err(|error| Reason::Unreachable(error.kind()))?;
            let found: Vec<_> = found.collect();
            let chosen = found.get(attempt as usize % found.len().max(1));
            chosen
                .map(|address| Address::from(*address))
                .ok_or(Reason::Unreachable(std::io::ErrorKind::NotFound))
        }
    }
}

/// From 0 to 1, without a generator of random numbers: the standard library seeds its hashes well.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}
