//! The client: commands in, results out, for one server, a cluster, or a primary with replicas.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use embar_mux::{MuxSettings, SocketOptions, Stats, block_on};

use crate::caching::Cached;
use crate::command::{Class, Command, Fixed, Key, Route};
use crate::commands::Commands;
use crate::config::{Config, Mode};
use crate::dedicated::Dedicated;
use crate::engine::{self, Dialer, Drivers, NodeInfo, Router, Shared, Tries, after};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::pipeline::{Pipeline, Transaction};
use crate::prefix;
use crate::pubsub::Subscriber;
use crate::request::{IntoBuffer, Request};
use crate::resp::FromReply;
use crate::tls::{Encryption, Tls};

mod first_contact;
mod lazy;
#[cfg(test)]
mod tests;

/// A client for one server, a cluster, or a primary with replicas. Cheap to clone; usable from every thread and every executor.
/// All clones share the same few connections, which the last clone closes when it is dropped.
///
/// # Several nodes
/// In a cluster some commands go to several nodes by themselves, and the caller gets one reply, as the
/// [command tips](https://redis.io/docs/latest/develop/reference/command-tips/) of the servers say:
///
/// - `PING`, `FLUSHALL`, `FLUSHDB`, `DBSIZE`, `KEYS`, `RANDOMKEY`, `SCRIPT EXISTS`, `FUNCTION LOAD` and the like to all primaries; `CONFIG SET`,
///   `SCRIPT LOAD`, `ACL SETUSER`, `SLOWLOG RESET` and the like to all nodes; what is about one node, as `INFO`, to any one. [`Cmd::to`](crate::Cmd::to) sends any of them to one node
///   ([`Route::Node`]), and any other one to all ([`Route::AllPrimaries`], [`Route::AllNodes`]): of a command that the crate does not know the
///   reply is an array with that of each node.
/// - `MGET`, `MSET`, `DEL`, `UNLINK`, `EXISTS` and `TOUCH` with keys of several slots go in a part for each slot. **They are not atomic then**: others may
///   see some parts done and others not yet, and some may fail ([`Error::OnSomeNodes`]).
///
/// Pipelines and transactions do neither, and refuse such commands but `PING`, which goes to any node there.
///
/// A primary with replicas is one shard: commands of any keys are whole, "all primaries" is that one, and what has no key goes
/// where keys are read or written. `CONFIG SET`, `SCRIPT LOAD` and the like go to the replicas, too.
#[derive(Clone)]
pub struct Client {
    pub(crate) router: Arc<Router>,
    _close: Arc<CloseOnDrop>,
}

/// Closes everything with the last clone of a client.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.schedule.end();
        if let Some(credentials) = &self.0.credentials {
            credentials.end();
        }
    }
}

impl Client {
    /// Connects to what `url` names, for example `redis://127.0.0.1` or
    /// `redis-cluster://127.0.0.1:7000,127.0.0.1:7001`. See [`Config::from_url`].
    ///
    /// Within a Tokio runtime, tasks of that runtime serve the connections; otherwise a thread of the
    /// client's own does.
    ///
    /// For a cluster it is enough that its nodes tell which of them serves which slot, and that one
    /// primary answers. While a shard is down, commands for its slots fail, and others succeed. For a
    /// primary with replicas, also with sentinels, the primary has to be known and to answer.
    ///
    /// # Errors
    /// For a malformed URL; when no server answers in time. At once, with [`Error::Server`], when all
    /// servers refuse for a reason that lasts, as with a wrong password; with [`Error::Config`], when all
    /// sentinels that can be reached know no primary of this name.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let config = Config::from_url(url).map_err(|error| Error::Config(error.to_string()))?;
        Self::with(config).await
    }

    /// As [`Client::connect`], with a configuration.
    ///
    /// # Errors
    /// When the configuration makes no sense; when no server answers in time; when the server refuses.
    pub async fn with(config: Config) -> Result<Self, Error> {
        let drivers = Drivers::on_current_runtime(&mux_settings(&config));
        let client = Self::start(config, drivers)?;
        client.first_contact().await?;
        Ok(client)
    }

    /// As [`Client::with`], for code without an executor: a thread of the client's own serves the
    /// connections. Use [`Request::wait`].
    ///
    /// # Errors
    /// As [`Client::with`].
    pub fn with_blocking(config: Config) -> Result<Self, Error> {
        let drivers = Drivers::on_thread(&mux_settings(&config));
        let client = Self::start(config, drivers)?;
        {
            let mut contact = pin!(client.first_contact());
            block_on(|cx| contact.as_mut().poll(cx))?;
        }
        Ok(client)
    }

    fn start(config: Config, drivers: std::io::Result<Drivers>) -> Result<Self, Error> {
        config
            .check()
            .map_err(|error| Error::Config(error.to_string()))?;
        let encrypt = |tls: &Option<Tls>| {
            let encryption = tls.as_ref().map(Encryption::new).transpose();
            encryption.map_err(Error::Config)
        };
        let encryption = encrypt(&config.tls)?;
        let of_sentinels = match config.mode {
            Mode::Sentinel => Some(encrypt(&config.sentinel.tls)?),
            _ => None,
        };
        let cannot = |error: std::io::Error| Error::Config(format!("cannot start: {error}"));
        let map = config.address_map.clone();
        let dialer = Dialer::new(drivers.map_err(cannot)?, encryption, map);
        let shared = Shared::new(config, dialer);
        let router = Arc::new(Router::new(Arc::clone(&shared)));
        let sentinels = of_sentinels.map(|encryption| shared.of_sentinels(encryption));
        engine::start(&router, sentinels).map_err(cannot)?;
        engine::start_authentication(&router).map_err(cannot)?;
        Ok(Self {
            router,
            _close: Arc::new(CloseOnDrop(shared)),
        })
    }

    /// A request with this command. Awaiting the request sends the command.
    pub fn send<C: Command, R: FromReply>(&self, command: C) -> Request<'_, C, R> {
        Request::new(&self.router, command)
    }

    /// `GET key` into a buffer of the caller's, which it empties first: the length of the value, if
    /// there is one. Once the buffer is large enough, this allocates nothing.
    pub fn get_into<'r, K: Key>(
        &'r self,
        key: K,
        buffer: &'r mut Vec<u8>,
    ) -> Request<'r, Fixed<(K,)>, Option<usize>, IntoBuffer<'r>> {
        let route = Route::of(&key);
        let get = Fixed::new(prefix!(2, 3, "GET"), (key,), route, Class::Read);
        Request::read_by(&self.router, get, IntoBuffer(buffer))
    }

    /// Reads through the cache of the configuration, which has nothing older than `max_age`. See
    /// [`caching`](crate::caching).
    #[must_use]
    pub fn cached(&self, max_age: Duration) -> Cached<'_> {
        Cached::new(&self.router, max_age)
    }

    /// An empty pipeline, for commands to send together.
    pub fn pipeline(&self) -> Pipeline<'_> {
        Pipeline::new(&self.router)
    }

    /// An empty transaction, for commands of one slot that the server executes together, with nothing
    /// of other clients in between.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(&self.router)
    }

    /// A connection for the caller alone, to the node to which `route` leads: for `WATCH`, and what else depends on the
    /// connection's state. Commands that block take connections of a pool by themselves
    /// ([`BlockingCommands`](crate::commands::blocking::BlockingCommands)).
    ///
    /// # Errors
    /// When that node does not answer in time.
    pub async fn dedicated(&self, route: Route) -> Result<Dedicated, Error> {
        // Finds the node if it is not known, and follows redirects.
        let ping = Fixed::new(prefix!(1, 4, "PING"), (), route, Class::Write);
        self.send::<_, ()>(ping).await?;
        let shared = &self.router.shared;
        let connection = self.router.connection(route, Class::Write);
        let connection = connection.ok_or(Error::Closed)?;
        let endpoint = connection.endpoint.clone();
        let deadline = after(shared.config.timeout);
        let opened = engine::open(shared, &endpoint, deadline, Tries::UntilDeadline).await?;
        Ok(Dedicated::new(opened, shared))
    }

    /// A subscriber that holds at most `capacity` events until the program takes them.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn subscriber(&self, capacity: usize) -> Subscriber {
        Subscriber::new(&self.router, capacity, self.clone())
    }

    /// Asks the provider of credentials soon, and tells living connections of new ones: for programs that learn of a change before
    /// it is time. Does nothing without a provider. See [`credentials`](crate::credentials).
    pub fn renew_credentials(&self) {
        if let Some(credentials) = &self.router.shared.credentials {
            credentials.renew();
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.router.shared.config
    }

    /// What the client did so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.router.metrics()
    }

    /// The nodes that the client knows: of a cluster those of the topology that it read last.
    /// [`Cmd::to`](crate::Cmd::to) sends a command to one of them.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.router.nodes()
    }

    /// What happened so far on the connections to each node, with the node's address.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, Stats)> {
        self.router.stats()
    }
}

impl<'c> Commands for &'c Client {
    type Output<C: Command, R: FromReply> = Request<'c, C, R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> Self::Output<C, R> {
        self.send(command)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.config().seeds)
    }
}

fn mux_settings(config: &Config) -> MuxSettings {
    let usual = MuxSettings::default();
    MuxSettings {
        ring_bytes: config.ring_bytes,
        sockets: SocketOptions {
            // Where no server owes a reply, as with subscriptions and blocking commands, only the
            // kernel can tell a dead server from a quiet one.
            dead_peer_timeout: Some(config.dead_after),
            unacknowledged_timeout: Some(config.dead_after),
            ..usual.sockets
        },
        ..usual
    }
}
