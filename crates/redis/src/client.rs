//! The client: commands in, results out, for one server or a cluster.
//!
//! Reading order: `request` (the life of a command), `routes` (who serves which slot), `node` (a
//! server's connections), `keeper` (what connects, with `names`, `refresh` and `sleepers`), `drivers`
//! (what serves connections), `speak` (greeting), `feed` (subscriptions).

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use embar_mux::{CloseReason, ConnectionState, MuxSettings, block_on};
use embar_transport::SocketOptions;

use crate::command::{Class, Command, Fixed, Route};
use crate::commands::Key;
use crate::config::{Config, Endpoint, Mode, ReadFrom};
use crate::dedicated::Dedicated;
use crate::error::Error;
use crate::pipeline::{Pipeline, Transaction};
use crate::prefix;
use crate::pubsub::Subscriber;
use crate::resp::{Address, FromReply};
use crate::tls::{Encryption, lasts};
use crate::topology::Topology;
use drivers::Drivers;
use keeper::Keeper;
use node::{Link, Node};
use request::hint;
use routes::Routes;

mod changes;
mod drivers;
mod feed;
mod keeper;
pub mod metrics;
mod names;
mod node;
mod refresh;
mod request;
mod routes;
mod sleepers;
mod speak;
#[cfg(test)]
mod tests;

pub(crate) use feed::Feed;
pub(crate) use request::{Answer, Outcome, is_elsewhere};
pub use request::{IntoBuffer, Request};
pub(crate) use sleepers::after;

/// A client for one server or a cluster. Cheap to clone; usable from every thread and every
/// executor. All clones share the same few connections, which end with the last of them.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    /// Ends everything with the last clone.
    _last: Arc<Last>,
}

pub(crate) struct Inner {
    pub(crate) config: Arc<Config>,
    pub(crate) keeper: Arc<Keeper>,
    routes: ArcSwap<Routes>,
    /// Held while routes are replaced.
    replacing: Mutex<()>,
}

struct Last(Arc<Keeper>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Client {
    /// Connects to what `url` names, for example `redis://127.0.0.1` or
    /// `redis-cluster://127.0.0.1:7000,127.0.0.1:7001`. See [`Config::from_url`].
    ///
    /// Within a Tokio runtime the connections are served by tasks of it, otherwise by a thread of
    /// their own.
    ///
    /// # Errors
    /// For a wrong URL; when nothing answers in time; when the server refuses.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = Config::from_url(url).map_err(|error| Error::Config(error.to_string()))?;
        Self::with(config).await
    }

    /// As [`Client::connect`], with everything set.
    ///
    /// # Errors
    /// When nothing answers in time; when the server refuses.
    pub async fn with(config: Config) -> Result<Self, Error> {
        let drivers = Drivers::here(&settings(&config));
        let client = Self::start(config, drivers)?;
        client.first_contact().await?;
        Ok(client)
    }

    /// As [`Client::with`], for code without an executor: connections are served by a thread of
    /// their own. Use [`Request::wait`].
    ///
    /// # Errors
    /// As [`Client::with`].
    pub fn with_blocking(config: Config) -> Result<Self, Error> {
        let drivers = Drivers::on_thread(&settings(&config));
        let client = Self::start(config, drivers)?;
        {
            let mut contact = std::pin::pin!(client.first_contact());
            block_on(|cx| contact.as_mut().poll(cx))?;
        }
        Ok(client)
    }

    fn start(config: Config, drivers: std::io::Result<Drivers>) -> Result<Self, Error> {
        config
            .check()
            .map_err(|error| Error::Config(error.to_string()))?;
        let tls = config.tls.as_ref().map(Encryption::new).transpose();
        let tls = tls.map_err(Error::Config)?;
        let cannot = |error: std::io::Error| Error::Config(format!("cannot start: {error}"));
        let drivers = drivers.map_err(cannot)?;
        let config = Arc::new(config);
        let keeper = Keeper::new(Arc::clone(&config), drivers, tls);
        let node = |endpoint: &Endpoint| Node::new(endpoint.clone(), config.mux_per_node, &keeper);
        let nodes: Vec<_> = config.seeds.iter().map(node).collect();
        let routes = match nodes.first() {
            None => return Err(Error::Config("no server is named".to_owned())),
            Some(node) if config.mode == Mode::Standalone => Routes::single(Arc::clone(node)),
            Some(_) => Routes::unknown(nodes),
        };
        let inner = Arc::new(Inner {
            config,
            keeper: Arc::clone(&keeper),
            routes: ArcSwap::from_pointee(routes),
            replacing: Mutex::new(()),
        });
        keeper.start(Arc::downgrade(&inner)).map_err(cannot)?;
        keeper.refresh();
        Ok(Self {
            inner,
            _last: Arc::new(Last(keeper)),
        })
    }

    async fn first_contact(&self) -> Result<(), Error> {
        let ping = Fixed::new(prefix!(1, 4, "PING"), (), Route::Any, Class::Read);
        self.contact(ping).await?;
        if self.inner.config.mode == Mode::Cluster {
            // Waits until the slots are known, as a command does; by the class that goes to
            // primaries, as replicas may take longer to be there.
            let any = Fixed::new(prefix!(1, 4, "PING"), (), Route::Slot(0), Class::Write);
            self.contact(any).await?;
        }
        Ok(())
    }

    /// Waits for the reply to a first command, unless it is clear that there will be none.
    async fn contact(&self, ping: Fixed<()>) -> Result<(), Error> {
        let mut ping = pin!(self.send::<_, ()>(ping).timeout(self.inner.config.timeout));
        let contact = poll_fn(|cx| match ping.as_mut().poll(cx) {
            Poll::Pending => match self.inner.distrust() {
                Some(why) => Poll::Ready(Err(Error::Unavailable { why })),
                None => Poll::Pending,
            },
            done => done,
        });
        match contact.await {
            // It waited for a connection, as one before it could not be made in time.
            Err(Error::TimedOut) => Err(self.inner.unreachable().unwrap_or(Error::TimedOut)),
            outcome => outcome,
        }
    }

    /// Gives a command to the client; it is sent when the request is awaited.
    pub fn send<C: Command, R: FromReply>(&self, command: C) -> Request<'_, C, R> {
        Request::new(&self.inner, command)
    }

    /// `GET key` into a buffer of the caller's, which is emptied first: the length of the value, if
    /// there is one. Nothing is allocated once the buffer is large enough.
    pub fn get_into<'r, K: Key>(
        &'r self,
        key: K,
        buffer: &'r mut Vec<u8>,
    ) -> Request<'r, Fixed<(K,)>, Option<usize>, IntoBuffer<'r>> {
        let route = Route::of(&key);
        let get = Fixed::new(prefix!(2, 3, "GET"), (key,), route, Class::Read);
        Request::read_by(&self.inner, get, IntoBuffer(buffer))
    }

    /// Several commands to be sent together.
    pub fn pipeline(&self) -> Pipeline<'_> {
        Pipeline::new(&self.inner)
    }

    /// Several commands for one slot to be executed together, with nothing of others in between.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(&self.inner)
    }

    /// A connection for the caller alone, to the node to which `route` leads: for commands that
    /// block, and for `WATCH`.
    ///
    /// # Errors
    /// When that node cannot be reached in time.
    pub async fn dedicated(&self, route: Route) -> Result<Dedicated, Error> {
        // Finds out who serves it, if that is not known, and follows redirects.
        let ping = Fixed::new(prefix!(1, 4, "PING"), (), route, Class::Write);
        self.send::<_, ()>(ping).await?;
        let link = self.inner.link(route, Class::Write).ok_or(Error::Closed)?;
        let own = Link::dedicated(link.endpoint.clone(), &self.inner.keeper);
        let deadline = after(self.inner.config.timeout);
        let mut nap = None;
        let conn = poll_fn(|cx| {
            if let Poll::Ready(conn) = own.poll_conn(cx) {
                return Poll::Ready(Ok(conn));
            }
            if Instant::now() >= deadline {
                let why = own
                    .last_failure()
                    .map_or_else(String::new, |why| why.to_string());
                return Poll::Ready(Err(Error::Unavailable { why }));
            }
            self.inner.keeper.wake_at(&mut nap, deadline, cx.waker());
            Poll::Pending
        });
        let conn = conn.await?;
        own.release();
        Ok(Dedicated::new(&conn))
    }

    /// A subscriber that holds at most `capacity` messages for whoever reads them.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn subscriber(&self, capacity: usize) -> Subscriber {
        Subscriber::new(self.clone(), capacity)
    }

    /// How it was configured.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// What was done so far on connections to each of the nodes, with the node's address.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, embar_mux::Stats)> {
        let routes = self.inner.routes.load();
        let of_node = |node: &Arc<Node>| {
            let mut conns = node.links().iter().filter_map(|link| link.current());
            // What is counted is the node's, but for those in flight.
            let mut stats = conns.next()?.stats();
            stats.in_flight += conns.map(|conn| conn.in_flight() as u64).sum::<u64>();
            Some((node.endpoint.to_string(), stats))
        };
        routes.nodes.iter().filter_map(of_node).collect()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.inner.config.seeds)
    }
}

/// Redirects to more nodes than this are not followed: clusters are made for a thousand.
const MOST_NODES: usize = 4096;

fn settings(config: &Config) -> MuxSettings {
    let usual = MuxSettings::default();
    MuxSettings {
        ring_bytes: config.ring_bytes,
        sockets: SocketOptions {
            // Where nobody owes a reply, as with subscriptions and commands that block, only the
            // kernel can tell silence from rest.
            dead_peer_timeout: Some(config.dead_after),
            unacknowledged_timeout: Some(config.dead_after),
            ..usual.sockets
        },
        ..usual
    }
}

impl Inner {
    /// Why there is no connection to the first of the nodes, if there is none.
    fn unreachable(&self) -> Option<Error> {
        let routes = self.routes.load();
        let link = routes.nodes.first()?.link(0);
        let standing = link.current().map(|conn| conn.state());
        let why = link
            .last_failure()
            .filter(|_| standing != Some(ConnectionState::Open))?;
        let why = why.to_string();
        Some(Error::Unavailable { why })
    }

    /// Why no server is trusted, or trusts this client; `None` if one may yet do so.
    fn distrust(&self) -> Option<String> {
        self.config.tls.as_ref()?;
        let mut why = None;
        for node in &*self.routes.load().nodes {
            match node.link(0).last_failure()? {
                CloseReason::Tls(error) if lasts(&error) => {
                    why = Some(CloseReason::Tls(error).to_string())
                }
                _ => return None,
            }
        }
        why
    }

    /// Where a command goes; `None`: nobody knows who serves its slot.
    #[inline]
    pub(crate) fn link(&self, route: Route, class: Class) -> Option<Arc<Link>> {
        self.link_in(&self.routes.load(), route, class).cloned()
    }

    /// Who serves which slot at this moment.
    pub(crate) fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// As [`Inner::link`], by routes that were looked at once for many commands.
    #[inline]
    pub(crate) fn link_in<'r>(
        &self,
        routes: &'r Routes,
        route: Route,
        class: Class,
    ) -> Option<&'r Arc<Link>> {
        let node = match route {
            // Those with several slots are only sent when there is one node.
            Route::Any | Route::CrossSlot => routes.any(class)?,
            Route::Slot(slot) => match (self.config.read_from, class) {
                (ReadFrom::Primary, _) | (_, Class::Write) => routes.primary(slot)?,
                _ => self.reader(routes, slot)?,
            },
        };
        Some(node.link(hint(route)))
    }

    /// Who is asked for what a slot holds, by policy: of those it allows one that seems to live, and
    /// if none does, one of them nevertheless.
    #[cold]
    fn reader<'r>(&self, routes: &'r Routes, slot: u16) -> Option<&'r Arc<Node>> {
        let primary = routes.primary(slot);
        let count = routes.replicas(slot).count();
        // Neighbouring slots have different readers, and a key always the same while it lives.
        let nth = |number: usize, count: usize| {
            let number = (usize::from(slot) + number) % count;
            routes.replicas(slot).nth(number).or(primary)
        };
        let live = |count: usize| {
            let mut nodes = (0..count).filter_map(|number| nth(number, count));
            nodes.find(|node| node.link(slot).seems_alive())
        };
        match self.config.read_from {
            ReadFrom::Primary => primary,
            ReadFrom::Replica if count == 0 => None,
            ReadFrom::Replica => live(count).or_else(|| nth(0, count)),
            ReadFrom::PreferReplica => live(count).or(primary),
            ReadFrom::Any => live(count + 1).or(primary),
        }
    }

    /// The slot has moved: notes it at once, and has the keeper learn what else did. `None` if the
    /// node that said so does not know where to.
    pub(crate) fn moved(&self, slot: u16, address: &Address, said_by: &Link) -> Option<Arc<Link>> {
        self.keeper.tally.moved.add(1);
        tracing::debug!(node = %said_by.endpoint, slot, to = %address, "MOVED");
        self.keeper.refresh();
        let endpoint = Endpoint::announced(&address.host, address.port, &said_by.endpoint)?;
        let node = self.node(&endpoint)?;
        let routes = self.routes.load();
        if let Some(place) = routes.find(&endpoint) {
            routes.move_slot(slot, place);
        }
        Some(Arc::clone(node.link(slot)))
    }

    /// A node to which a slot is on its way.
    pub(crate) fn known(&self, slot: u16, address: &Address, said_by: &Link) -> Option<Arc<Link>> {
        self.keeper.tally.asked.add(1);
        tracing::debug!(node = %said_by.endpoint, slot, to = %address, "ASK");
        let endpoint = Endpoint::announced(&address.host, address.port, &said_by.endpoint)?;
        Some(Arc::clone(self.node(&endpoint)?.link(slot)))
    }

    /// The node that serves a slot.
    pub(crate) fn primary_of(&self, slot: u16) -> Option<Endpoint> {
        let routes = self.routes.load();
        Some(routes.primary(slot)?.endpoint.clone())
    }

    /// A slot of each primary that has any.
    pub(crate) fn slot_of_each_primary(&self) -> Vec<u16> {
        self.routes.load().slot_of_each_primary()
    }

    /// One of the nodes, if possible one that is connected; another one for another number.
    pub(crate) fn some_node(&self, number: usize) -> Option<Endpoint> {
        let routes = self.routes.load();
        Some(routes.nearest(number, Class::Read)?.endpoint.clone())
    }

    /// Whether this is a node that is part of it.
    pub(crate) fn knows(&self, endpoint: &Endpoint) -> bool {
        self.routes.load().find(endpoint).is_some()
    }

    /// `None`: there are so many already that somebody makes them up.
    fn node(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
        let find = |routes: &Routes| {
            let place = routes.find(endpoint)?;
            Some(Arc::clone(&routes.nodes[usize::from(place)]))
        };
        if let Some(node) = find(&self.routes.load()) {
            return Some(node);
        }
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let routes = self.routes.load();
        let known = find(&routes);
        if known.is_some() || routes.nodes.len() >= MOST_NODES {
            return known;
        }
        let node = self.make(endpoint.clone());
        self.routes.store(Arc::new(routes.with(Arc::clone(&node))));
        Some(node)
    }

    fn make(&self, endpoint: Endpoint) -> Arc<Node> {
        Node::new(endpoint, self.config.mux_per_node, &self.keeper)
    }

    fn adopt(&self, topology: &Topology) {
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let old = self.routes.load_full();
        let new = Routes::of(topology, &old, &|endpoint| self.make(endpoint));
        let uncovered = new.uncovered();
        if uncovered > 0 {
            tracing::warn!("{uncovered} slots of the cluster have no node");
        }
        let new = Arc::new(new);
        changes::tell(&old, &new, &self.keeper.tally);
        self.routes.store(Arc::clone(&new));
        old.retire_those_not_in(&new, &self.keeper);
    }
}
