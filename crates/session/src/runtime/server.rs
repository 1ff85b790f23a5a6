//! The server: listens, accepts sessions, and serves them on its worker threads.

use std::time::Duration;

use embar_frame::Protocol;
use embar_transport::tls::Acceptor;
use embar_transport::{Address, Listener, Peer, Stream};

use super::adopter::{AdoptError, Adopter};
use super::handler::Handler;
use super::listening::{Entrance, Opened, StartError};
use super::pool::{PoolConfig, WorkerPool};
use super::priority::{Priorities, Priority, Reserve};
use super::proxies::Proxies;
use super::registry::{AcceptFilter, Monitor};
use super::session::Session;
use super::settings::Settings;
use super::stats::Totals;
use crate::{Plain, Redirect};

/// What a server is made of; made by [`Server::builder`].
pub struct ServerBuilder<P> {
    protocol: P,
    settings: Settings,
    entrances: Vec<(Entrance, Option<Proxies>)>,
    acceptor: Option<Acceptor>,
    accept_filter: Option<Box<AcceptFilter>>,
    priorities: Option<Priorities>,
}

impl<P: Protocol + Clone + Send + Sync + 'static> ServerBuilder<P> {
    /// Speaks `protocol` instead.
    #[must_use]
    pub fn protocol<Q>(self, protocol: Q) -> ServerBuilder<Q> {
        ServerBuilder {
            protocol,
            settings: self.settings,
            entrances: self.entrances,
            acceptor: self.acceptor,
            accept_filter: self.accept_filter,
            priorities: self.priorities,
        }
    }

    /// Replaces all settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Changes the settings that it has so far.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Listens on this address, too: of TCP (port 0: the kernel chooses; ask
    /// [`Server::addresses`]) or of a Unix socket.
    #[must_use]
    pub fn listen(mut self, address: impl Into<Address>) -> Self {
        let address = Entrance::Address(address.into());
        self.entrances.push((address, None));
        self
    }

    /// Accepts from a listener that was opened elsewhere, too: a `std::net::TcpListener` or `UnixListener`, one of those that a service
    /// manager [passed on](crate::activated_listeners), or one that was [handed over](crate::hand_over). The options of
    /// [`Settings::sockets`] are set on it, its backlog stays as it is, and its socket file is not removed with the server unless it
    /// was handed over.
    #[must_use]
    pub fn listener(mut self, listener: impl Into<Listener>) -> Self {
        let listener = Entrance::Listener(listener.into());
        self.entrances.push((listener, None));
        self
    }

    /// As [`ServerBuilder::listen`], behind proxies that say for whom they speak, by the PROXY protocol, version 2. The header comes
    /// before all else, also before TLS, and within the setting `hello_timeout`. The session's peer, the accept filter and the limits for
    /// addresses then are about the address in it.
    ///
    /// Who connects from elsewhere is refused ([`Refusal::UntrustedProxy`](crate::Refusal::UntrustedProxy)), and so is a proxy without a good
    /// header ([`Refusal::ProxyHeader`](crate::Refusal::ProxyHeader)). Where the proxy speaks for itself, or for somebody without an IP
    /// address, the peer is the proxy.
    ///
    /// Without this, all that come by a proxy count as one address: its own.
    #[must_use]
    pub fn listen_behind(mut self, address: impl Into<Address>, proxies: &Proxies) -> Self {
        let address = Entrance::Address(address.into());
        self.entrances.push((address, Some(proxies.clone())));
        self
    }

    /// As [`ServerBuilder::listener`], behind proxies, as [`ServerBuilder::listen_behind`] says. Also for a listener that a server
    /// behind proxies [handed over](crate::hand_over): its proxies do not go with it.
    #[must_use]
    pub fn listener_behind(mut self, listener: impl Into<Listener>, proxies: &Proxies) -> Self {
        let listener = Entrance::Listener(listener.into());
        self.entrances.push((listener, Some(proxies.clone())));
        self
    }

    /// How many threads serve sessions.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Accepts connections of those peers only of whom `filter` says so; the others are closed
    /// without a word ([`Refusal::Filtered`](crate::Refusal::Filtered)). It is called once for each
    /// connection, on a worker thread, which it must not hold up.
    #[must_use]
    pub fn accept_if(mut self, filter: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        self.accept_filter = Some(Box::new(filter));
        self
    }

    /// Gives sessions priorities, by their peers and what those say in their greetings (for protocols on top of sessions, by what these make of
    /// a greeting). As the server fills up it turns lower ones away first, so that what `reserve` keeps is there for higher ones:
    /// [`Refusal::LowPriority`](crate::Refusal::LowPriority) counts them, and they learn
    /// [`CloseReason::TooManySessions`](crate::CloseReason::TooManySessions). `priority` is called once for each peer, on a worker thread, which
    /// it must not hold up. Anybody can say anything in a greeting: one that counts for much is to prove it, by a signed ticket for instance.
    ///
    /// Without this all sessions are alike, and nothing is kept.
    #[must_use]
    pub fn prioritize(
        mut self,
        reserve: Reserve,
        priority: impl Fn(&Peer, &[u8]) -> Priority + Send + Sync + 'static,
    ) -> Self {
        let of = Box::new(priority);
        self.priorities = Some(Priorities { reserve, of });
        self
    }

    /// Accepts encrypted sessions only, with these certificates and rules. The TLS handshake must
    /// be over within the setting `hello_timeout`, too.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, config: std::sync::Arc<rustls::ServerConfig>) -> Self {
        self.acceptor = Some(Acceptor::new(config));
        self
    }

    /// Starts; `make` is called for each peer that has greeted, on a worker thread, and gives the
    /// handler of its session.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start<H: Handler>(
        self,
        make: impl Fn(&Peer) -> H + Send + Sync + 'static,
    ) -> Result<Server, StartError> {
        let opened = Opened::open(self.entrances, &self.settings)?;
        let pool = WorkerPool::start(PoolConfig {
            protocol: self.protocol,
            settings: self.settings,
            make_handler: Some(Box::new(move |peer| Box::new(make(peer)))),
            accept_filter: self.accept_filter,
            priorities: self.priorities,
            acceptor: self.acceptor,
            listeners: opened.listeners,
            name: "session-server",
        })?;
        Ok(Server {
            pool,
            addresses: opened.addresses,
        })
    }
}

/// Accepts sessions and serves them on a few threads. Dropping it ends them at once; see
/// [`Server::shutdown`] for a polite end.
pub struct Server {
    pub(super) pool: WorkerPool,
    addresses: Vec<Address>,
}

impl Server {
    /// A server of the protocol [`Plain`] with the default settings, listening nowhere yet.
    #[must_use]
    pub fn builder() -> ServerBuilder<Plain> {
        ServerBuilder {
            protocol: Plain,
            settings: Settings::default(),
            entrances: Vec::new(),
            acceptor: None,
            accept_filter: None,
            priorities: None,
        }
    }

    /// Where it listens, in the order of the builder's calls, each address once.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The first address it listens on.
    ///
    /// # Panics
    /// If it listens nowhere.
    #[must_use]
    pub fn address(&self) -> Address {
        self.addresses[0].clone()
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Totals {
        self.pool.registry.totals()
    }

    /// Reads the figures from elsewhere: for `Admin` (feature `admin`), or for code of your own.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(&self.pool.registry)
    }

    /// The sessions there are, in the order in which they were made.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.pool.registry.list()
    }

    /// Serves a connection that somebody else accepted: see [`Adopter::adopt`].
    ///
    /// # Errors
    /// [`AdoptError`]; the connection is closed then.
    pub fn adopt(&self, stream: impl Into<Stream>, peer: Peer) -> Result<(), AdoptError> {
        self.adopter().adopt(stream, peer)
    }

    /// Gives it connections from elsewhere, also from threads that do not have the server.
    #[must_use]
    pub fn adopter(&self) -> Adopter {
        Adopter::new(&self.pool.registry, &self.pool.dealer)
    }

    /// Closes the listeners, and adopts no connection any more; sessions, and connections that were accepted, go on. Returns when each of the latter counts in
    /// [`Server::stats`], as a session or as one of the `arrivals`: when there is none of both, everybody has been served. It waits for workers
    /// that are held up, unless a handler calls it. An [offer](crate::hand_over::offer()) of the listeners ends. If another process takes them just
    /// now, it waits for the end of that: listeners and state go over, or stay. (In the function that makes the state it does not wait.)
    ///
    /// Who waits in the backlog then is refused, unless another process has the listener: see [`hand_over`](crate::hand_over).
    pub fn stop_accepting(&self) {
        self.pool.stop_accepting();
    }

    /// Asks the peers of all sessions to connect elsewhere: [`Session::goodbye_to`] for each. Those of a moment later are not asked; see
    /// [`Server::stop_accepting`].
    pub fn redirect(&self, to: &Redirect) {
        for session in self.sessions() {
            session.goodbye_to(to);
        }
    }

    /// Stops accepting and ends every session politely: sends what was committed, and tells the
    /// peers. Cuts what is not over after `timeout`. Returns when all threads have ended.
    pub fn shutdown(mut self, timeout: Duration) {
        self.pool.shutdown(timeout);
    }
}
