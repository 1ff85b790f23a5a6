//! The client: commands in, results out, for one server or a cluster.
//!
//! Reading order: `request` (the life of a command), `routes` (who serves which slot), `node` (a
//! server's connections), `keeper` (what connects and learns the topology), `speak` (greeting).

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use embar_mux::{Mux, Settings, block_on};

use crate::command::{Class, Command, Fixed, Route};
use crate::commands::Key;
use crate::config::{Config, Endpoint, Mode, ReadFrom};
use crate::dedicated::Dedicated;
use crate::error::Error;
use crate::pipeline::{Pipeline, Transaction};
use crate::prefix;
use crate::pubsub::Subscriber;
use crate::resp::{Address, FromReply, ServerError, View, parse};
use crate::topology::Topology;
use keeper::Keeper;
use node::{Link, Node};
use request::hint;
use routes::Routes;

mod feed;
mod keeper;
mod node;
mod request;
mod routes;
mod speak;

pub(crate) use feed::Feed;
pub(crate) use request::{Answer, Outcome, is_elsewhere};
pub use request::{IntoBuffer, Request};

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
    /// Within a Tokio runtime the connections are served by a task of it, otherwise by a thread of
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
        let settings = settings(&config);
        #[cfg(feature = "tokio")]
        let mux = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => Mux::on_tokio(&settings, &runtime),
            Err(_) => Mux::on_thread(&settings),
        };
        #[cfg(not(feature = "tokio"))]
        let mux = Mux::on_thread(&settings);
        let client = Self::start(config, mux)?;
        client.first_contact().await?;
        Ok(client)
    }

    /// As [`Client::with`], for code without an executor: connections are served by a thread of
    /// their own. Use [`Request::wait`].
    ///
    /// # Errors
    /// As [`Client::with`].
    pub fn with_blocking(config: Config) -> Result<Self, Error> {
        let mux = Mux::on_thread(&settings(&config));
        let client = Self::start(config, mux)?;
        {
            let mut contact = std::pin::pin!(client.first_contact());
            block_on(|cx| contact.as_mut().poll(cx))?;
        }
        Ok(client)
    }

    fn start(config: Config, mux: std::io::Result<Mux<speak::Speaker>>) -> Result<Self, Error> {
        config
            .check()
            .map_err(|error| Error::Config(error.to_string()))?;
        if config.tls {
            return Err(Error::Config(
                "encrypted connections are not supported by this build".to_owned(),
            ));
        }
        let cannot = |error: std::io::Error| Error::Config(format!("cannot start: {error}"));
        let mux = mux.map_err(cannot)?;
        let config = Arc::new(config);
        let keeper = Keeper::new(Arc::clone(&config), mux);
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
        let timeout = self.inner.config.timeout;
        self.send::<_, ()>(ping).timeout(timeout).await?;
        if self.inner.config.mode == Mode::Cluster {
            // Waits until the slots are known, as a command does; by the class that goes to
            // primaries, as replicas may take longer to be there.
            let any = Fixed::new(prefix!(1, 4, "PING"), (), Route::Slot(0), Class::Write);
            self.send::<_, ()>(any).timeout(timeout).await?;
        }
        Ok(())
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
        let deadline = Instant::now() + self.inner.config.timeout;
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
            self.inner.keeper.wake_at(deadline, cx.waker().clone());
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

    /// What its connections did so far, each with the server's address.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, embar_mux::Stats)> {
        let routes = self.inner.routes.load();
        let links = routes.nodes.iter().flat_map(|node| node.links());
        links
            .filter_map(|link| Some((link.endpoint.to_string(), link.current()?.stats())))
            .collect()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.inner.config.seeds)
    }
}

fn settings(config: &Config) -> Settings {
    Settings {
        ring_bytes: config.ring_bytes,
        ..Settings::default()
    }
}

impl Inner {
    /// Where a command goes; `None`: nobody knows who serves its slot.
    #[inline]
    pub(crate) fn link(&self, route: Route, class: Class) -> Option<Arc<Link>> {
        let routes = self.routes.load();
        let node = match route {
            // Those with several slots are only sent when there is one node.
            Route::Any | Route::CrossSlot => routes.nodes.first()?,
            Route::Slot(slot) => match (self.config.read_from, class) {
                (ReadFrom::Primary, _) | (_, Class::Write) => routes.primary(slot)?,
                _ => self.reader(&routes, slot)?,
            },
        };
        Some(Arc::clone(node.link(hint(route))))
    }

    /// Who is asked for what a slot holds, by policy.
    #[cold]
    fn reader<'r>(&self, routes: &'r Routes, slot: u16) -> Option<&'r Arc<Node>> {
        let primary = routes.primary(slot);
        let count = routes.replicas(slot).count();
        // Neighbouring slots have different readers, and a key always the same.
        let choose = |count: usize| routes.replicas(slot).nth(usize::from(slot) % count.max(1));
        match self.config.read_from {
            ReadFrom::Primary => primary,
            ReadFrom::Replica => choose(count),
            ReadFrom::PreferReplica => choose(count).or(primary),
            ReadFrom::Any => choose(count + 1).or(primary),
        }
    }

    /// The slot has moved: notes it at once, and has the keeper learn what else did. `None` if the
    /// node that said so does not know where to.
    pub(crate) fn moved(&self, slot: u16, address: &Address, said_by: &Link) -> Option<Arc<Link>> {
        self.keeper.refresh();
        let endpoint = Endpoint::announced(&address.host, address.port, &said_by.endpoint)?;
        let node = self.node(&endpoint);
        let routes = self.routes.load();
        if let Some(place) = routes.find(&endpoint) {
            routes.move_slot(slot, place);
        }
        Some(Arc::clone(node.link(slot)))
    }

    /// A node to which a slot is on its way.
    pub(crate) fn known(&self, slot: u16, address: &Address, said_by: &Link) -> Option<Arc<Link>> {
        let endpoint = Endpoint::announced(&address.host, address.port, &said_by.endpoint)?;
        Some(Arc::clone(self.node(&endpoint).link(slot)))
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

    /// One of the nodes; another one for another number.
    pub(crate) fn some_node(&self, number: usize) -> Option<Endpoint> {
        let routes = self.routes.load();
        let count = routes.nodes.len().max(1);
        Some(routes.nodes.get(number % count)?.endpoint.clone())
    }

    fn node(&self, endpoint: &Endpoint) -> Arc<Node> {
        let find = |routes: &Routes| {
            let place = routes.find(endpoint)?;
            Some(Arc::clone(&routes.nodes[usize::from(place)]))
        };
        if let Some(node) = find(&self.routes.load()) {
            return node;
        }
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let routes = self.routes.load();
        find(&routes).unwrap_or_else(|| {
            let node = self.make(endpoint.clone());
            self.routes.store(Arc::new(routes.with(Arc::clone(&node))));
            node
        })
    }

    fn make(&self, endpoint: Endpoint) -> Arc<Node> {
        Node::new(endpoint, self.config.mux_per_node, &self.keeper)
    }

    /// Asks nodes who serves which slot, until one answers. On the keeper's thread.
    pub(crate) fn refresh(&self) -> bool {
        let nodes = self.routes.load().nodes.clone();
        let known = nodes.into_iter();
        // Seeds last: they may have left, or be the only ones that are still there.
        let seeds = self.config.seeds.iter().map(|seed| self.make(seed.clone()));
        let mut asked: Vec<Endpoint> = Vec::new();
        let mut best: Option<Topology> = None;
        for node in known.chain(seeds) {
            if asked.contains(&node.endpoint) {
                continue;
            }
            asked.push(node.endpoint.clone());
            match self.ask(&node) {
                Ok(topology) if topology.uncovered() == 0 => {
                    self.adopt(&topology);
                    return true;
                }
                // A node that was reset, or is cut off, knows little.
                Ok(topology) => {
                    let known = best.as_ref().map_or(usize::MAX, Topology::uncovered);
                    if topology.uncovered() < known {
                        best = Some(topology);
                    }
                }
                Err(why) => tracing::debug!(node = %node.endpoint, "no topology: {why}"),
            }
        }
        match best {
            Some(topology) if !topology.shards().is_empty() => {
                self.adopt(&topology);
                true
            }
            _ => {
                tracing::warn!("no node of the cluster tells which serves which slot");
                false
            }
        }
    }

    fn ask(&self, node: &Arc<Node>) -> Result<Topology, String> {
        /// How long a node may take to answer before the next one is asked.
        const PATIENCE: Duration = Duration::from_secs(1);
        let conn = self.keeper.conn_now(node.link(0))?;
        let command = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";
        let fill = |out: &mut [u8]| out.copy_from_slice(command);
        let call = conn.submit(command.len(), 1, Some(PATIENCE), None, fill);
        let call = call.map_err(|error| error.to_string())?;
        let read = |reply: &mut Vec<u8>| {
            let (view, _) = parse(reply).map_err(|error| error.to_string())?;
            if let View::Error(error) = view {
                return Err(ServerError::from(error).text);
            }
            let topology = Topology::from_slots(view, &node.endpoint);
            topology.map_err(|error| error.to_string())
        };
        call.wait(read).map_err(|error| error.to_string())?
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
        self.routes.store(Arc::clone(&new));
        old.retire_those_not_in(&new, &self.keeper);
    }
}
