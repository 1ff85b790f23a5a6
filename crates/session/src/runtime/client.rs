//! The client: opens sessions, and serves them on its worker threads.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use embar_frame::Protocol;
use embar_transport::tls::TlsTarget;
use embar_transport::{Address, Peer};

use super::connecting::{ConnectOutcome, Connecting, Promise};
use super::datagrams::{DatagramLink, UnclaimedLink};
use super::handler::Handler;
use super::mailbox::{Command, ConnectRequest, ConnectTo};
use super::pool::{PoolConfig, WorkerPool};
use super::refusal::Refusal;
use super::registry::Monitor;
use super::session::Session;
use super::settings::Settings;
use super::stats::Totals;
use crate::{CloseReason, Closed, Plain, Side};

/// Opens sessions, all of them on the same few threads. Dropping it ends its sessions at once; see
/// [`Client::shutdown`] for a polite end.
pub struct Client {
    pool: WorkerPool,
}

impl Client {
    /// A client of the protocol [`Plain`] with the default settings.
    ///
    /// # Errors
    /// When threads, descriptors or memory are missing.
    pub fn new() -> io::Result<Self> {
        Self::with(Plain, Settings::default())
    }

    /// A client of `protocol`.
    ///
    /// # Errors
    /// When threads, descriptors or memory are missing, or a setting is out of range.
    pub fn with<P>(protocol: P, settings: Settings) -> io::Result<Self>
    where
        P: Protocol + Clone + Send + Sync + 'static,
    {
        let pool = WorkerPool::start(PoolConfig {
            protocol,
            settings,
            make_handler: None,
            accept_filter: None,
            priorities: None,
            acceptor: None,
            listeners: Vec::new(),
            name: "session-client",
        })?;
        Ok(Self { pool })
    }

    /// Connects to `address` and waits until the session is open, at most for the setting
    /// `hello_timeout`. `handler` gets all that happens on it. Not for handlers, which must not
    /// block: see [`Client::open`].
    ///
    /// # Errors
    /// How the session ended before it opened; in a handler, as [`Connecting::wait`] says.
    pub fn connect(
        &self,
        address: impl Into<Address>,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open(address, &[], handler).wait()
    }

    /// Starts to connect, with a greeting for the peer's handler.
    pub fn open(
        &self,
        address: impl Into<Address>,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        let to = ConnectTo::Address(address.into());
        self.begin(to, greeting, Box::new(handler), None)
    }

    /// As [`Client::connect`], encrypted, and only to the server that `tls` names.
    ///
    /// # Errors
    /// How the session ended before it opened: [`CloseReason::Certificate`] if the server could not
    /// prove who it is, [`CloseReason::Tls`] if it does not speak TLS.
    #[cfg(feature = "tls")]
    pub fn connect_tls(
        &self,
        address: impl Into<Address>,
        tls: &TlsTarget,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open_tls(address, tls, &[], handler).wait()
    }

    /// As [`Client::open`], encrypted, and only to the server that `tls` names.
    #[cfg(feature = "tls")]
    pub fn open_tls(
        &self,
        address: impl Into<Address>,
        tls: &TlsTarget,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        let tls = Some(tls.clone());
        let to = ConnectTo::Address(address.into());
        self.begin(to, greeting, Box::new(handler), tls)
    }

    /// Opens a session on a connection to `peer` that somebody else carries: bytes through `stream`, datagrams through `link`.
    /// `handler` gets all that happens on it. When the carrier gives the connection up, it says why
    /// ([`DatagramLink::lost`]) and drops its end of the stream.
    pub fn open_carried(
        &self,
        stream: UnixStream,
        peer: Peer,
        link: &DatagramLink,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Connecting {
        let to = ConnectTo::Carried(stream, peer, UnclaimedLink::new(link));
        self.begin(to, greeting, Box::new(handler), None)
    }

    /// What it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.pool.registry.group.settings
    }

    fn begin(
        &self,
        to: ConnectTo,
        greeting: &[u8],
        handler: Box<dyn Handler>,
        tls: Option<TlsTarget>,
    ) -> Connecting {
        let outcome = Arc::new(ConnectOutcome::default());
        let group = &self.pool.registry.group;
        if let Ok(place) = group.places.take() {
            self.pool.send(Command::Connect(ConnectRequest {
                to,
                greeting: greeting.to_vec(),
                handler,
                promise: Promise::new(&outcome),
                place,
                tls,
            }));
        } else {
            group.counters.refusals.count(Refusal::TooManySessions);
            outcome.set(Err(Closed {
                by: Side::Local,
                reason: CloseReason::TooManySessions,
                code: 0,
                text: String::new(),
            }));
        }
        Connecting::new(outcome)
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

    /// Ends every session politely: sends what was committed, and tells the peers. Cuts what is not
    /// over after `timeout`. Returns when all threads have ended.
    pub fn shutdown(mut self, timeout: Duration) {
        self.pool.shutdown(timeout);
    }
}
