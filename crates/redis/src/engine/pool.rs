//! A pool of connections for commands that block: each caller has one alone while its command waits.
//!
//! Only commands that leave a connection as it was go over it (`commands::blocking`), so no state has to be reset. A
//! connection comes back only when its last command has had its whole reply; in any other case it is closed, as a later
//! reply would belong to nobody.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use embar_mux::{Connection, ConnectionState};

use super::schedule::{Schedule, Task};
use crate::endpoint::Endpoint;
use crate::error::Error;
use places::Places;

mod places;

/// A connection for one caller alone.
pub(crate) struct Opened {
    pub conn: Arc<Connection>,
    /// Which credentials it began with.
    pub credentials_version: u64,
}

/// The connections of a client for commands that block.
pub(crate) struct Pool {
    /// Most connections to a node.
    most: usize,
    /// How long an idle connection stays.
    idle_for: Duration,
    schedule: Arc<Schedule>,
    nodes: Mutex<HashMap<Endpoint, Places<Opened>>>,
}

impl Pool {
    pub fn new(most: usize, idle_for: Duration, schedule: &Arc<Schedule>) -> Arc<Self> {
        Arc::new(Self {
            most,
            idle_for,
            schedule: Arc::clone(schedule),
            nodes: Mutex::default(),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Endpoint, Places<Opened>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_take(
        &self,
        endpoint: &Endpoint,
        number: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Option<Opened>> {
        let mut nodes = self.nodes();
        if let Some(places) = nodes.get_mut(endpoint) {
            return places.poll_take(number, waker);
        }
        let mut places = Places::new(self.most);
        let taken = places.poll_take(number, waker);
        nodes.insert(endpoint.clone(), places);
        taken
    }

    /// Changes the places of a node, and wakes whom that lets go on.
    fn change(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        change: impl FnOnce(&mut Places<Opened>) -> Option<Waker>,
    ) {
        let mut nodes = self.nodes();
        let Some(places) = nodes.get_mut(endpoint) else {
            return;
        };
        let woken = change(places);
        let expires = places.idle_since().and_then(|since| self.expiry(since));
        if places.is_empty() {
            nodes.remove(endpoint);
        }
        // Wakers run any code.
        drop(nodes);
        if let Some(at) = expires {
            self.expire_at(at);
        }
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    /// When to close a connection that is idle since then; `None`: at no time that a clock can express.
    fn expiry(&self, since: Instant) -> Option<Instant> {
        since.checked_add(self.idle_for)
    }

    fn expire_at(self: &Arc<Self>, at: Instant) {
        let task: Arc<dyn Task> = Arc::clone(self) as Arc<dyn Task>;
        self.schedule.run_at(Arc::downgrade(&task), Some(at));
    }
}

/// Closes the connections that are idle for long.
impl Task for Pool {
    fn run(self: Arc<Self>) {
        let (now, mut expired) = (Instant::now(), Vec::new());
        let mut nodes = self.nodes();
        nodes.retain(|_, places| {
            expired.extend(places.expire(now, self.idle_for));
            !places.is_empty()
        });
        let oldest = nodes.values().filter_map(Places::idle_since).min();
        drop(nodes);
        for opened in expired {
            opened.conn.close();
        }
        if let Some(at) = oldest.and_then(|since| self.expiry(since)) {
            self.expire_at(at);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} nodes)", self.nodes().len())
    }
}

/// A place of the pool, and its connection. Dropped, it goes back; the connection only after [`Lease::mark_clean`].
pub(crate) struct Lease {
    pool: Arc<Pool>,
    endpoint: Endpoint,
    opened: Option<Opened>,
    clean: bool,
}

impl Lease {
    /// The connection.
    pub fn conn(&self) -> Option<&Connection> {
        self.opened.as_ref().map(|opened| &*opened.conn)
    }

    /// Whether there is a connection that did not break while it was idle, and began with the credentials of today.
    pub(super) fn is_usable(&self, credentials_version: u64) -> bool {
        self.opened.as_ref().is_some_and(|opened| {
            let is_open = opened.conn.state() == ConnectionState::Open;
            is_open && opened.credentials_version == credentials_version
        })
    }

    pub(super) fn open_with(&mut self, opened: Opened) {
        if let Some(old) = self.opened.replace(opened) {
            old.conn.close();
        }
    }

    /// The command had its whole reply and left no state: another caller may use the connection.
    pub fn mark_clean(&mut self) {
        self.clean = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let opened = self.opened.take();
        let opened = match opened {
            Some(it) if self.clean && it.conn.state() == ConnectionState::Open => Some(it),
            Some(it) => {
                it.conn.close();
                None
            }
            None => None,
        };
        let give_back = |places: &mut Places<_>| places.give_back(opened, Instant::now());
        self.pool.change(&self.endpoint, give_back);
    }
}

/// A caller that waits for a place. Dropped, it waits no more.
struct Waiting<'s> {
    pool: &'s Arc<Pool>,
    endpoint: &'s Endpoint,
    number: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let stop = |places: &mut Places<_>| places.stop_waiting(number, Instant::now());
            self.pool.change(self.endpoint, stop);
        }
    }
}

/// Takes a place at a node: first come, first served.
///
/// # Errors
/// When all are in use until the deadline.
pub(super) async fn take(
    pool: &Arc<Pool>,
    endpoint: &Endpoint,
    deadline: Instant,
) -> Result<Lease, Error> {
    let mut waiting = Waiting {
        pool,
        endpoint,
        number: None,
    };
    let mut timer = None;
    let taken = poll_fn(|cx| {
        let number = &mut waiting.number;
        if let Poll::Ready(opened) = pool.poll_take(endpoint, number, cx.waker()) {
            return Poll::Ready(Some(opened));
        }
        if Instant::now() >= deadline {
            return Poll::Ready(None);
        }
        pool.schedule.wake_at(&mut timer, deadline, cx.waker());
        Poll::Pending
    });
    let Some(opened) = taken.await else {
        let most = pool.most;
        let why = format!(
            "all {most} connections to {endpoint} for commands that block are in use; let fewer wait there at a time, or allow more (max_blocking)"
        );
        return Err(Error::Unavailable { why });
    };
    Ok(Lease {
        pool: Arc::clone(pool),
        endpoint: endpoint.clone(),
        opened,
        clean: false,
    })
}
