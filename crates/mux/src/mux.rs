//! [`Mux`] opens connections and runs their driver: on a thread of its own, or as a task of a Tokio
//! runtime.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use embar_transport::ring::{RingPool, SendRing};
use embar_transport::tls::TlsTarget;
use embar_transport::{Address, Epoll, Reactor, SocketOptions};

use crate::connection::{Connection, ConnectionLimits};
use crate::connection_driver::Encryption;
use crate::driver::Driver;
use crate::mailbox::{DriverMailbox, DriverRequest};
use crate::notifier::DriverNotifier;
use crate::protocol::Protocol;
use crate::shared::Shared;

/// Opens connections and serves them all by one driver.
///
/// Dropping it closes its connections; [`Mux::close`] also waits for that.
pub struct Mux<P: Protocol> {
    mailbox: Arc<DriverMailbox<P>>,
    rings: RingPool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How a [`Mux`] serves its connections.
#[derive(Debug, Clone)]
pub struct MuxSettings {
    /// Bytes of each connection's send ring, a power of two from the page size on. A command of more
    /// than half of it has memory of its own. 256 KiB by default.
    pub ring_bytes: usize,
    /// How many rings of closed connections keep their memory for the next ones. 16 by default.
    pub idle_rings: usize,
    /// Options of the sockets.
    pub sockets: SocketOptions,
}

impl Default for MuxSettings {
    fn default() -> Self {
        Self {
            ring_bytes: 256 << 10,
            idle_rings: 16,
            sockets: SocketOptions::default(),
        }
    }
}

impl<P: Protocol> Mux<P> {
    /// Serves connections by a thread of its own. It works with every executor, and with none.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left, or cannot make rings of that size.
    pub fn on_thread(settings: &MuxSettings) -> io::Result<Self> {
        let rings = RingPool::new(settings.ring_bytes, settings.idle_rings)?;
        let reactor = Epoll::with_options(settings.sockets.clone())?;
        let mailbox = DriverMailbox::new(DriverNotifier::of_reactor(reactor.waker()));
        let mut driver = Driver::new(reactor, Arc::clone(&mailbox));
        let run = move || {
            while !driver.is_over() {
                if let Err(error) = driver.turn(driver.idle_for()) {
                    tracing::error!("the driver of multiplexed connections stops: {error}");
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("mux".into()).spawn(run)?;
        Ok(Self {
            mailbox,
            rings,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Serves connections by a task of this runtime, which wakes callers on it without a switch of
    /// threads.
    ///
    /// # Errors
    /// As [`Mux::on_thread`].
    ///
    /// # Panics
    /// When the runtime has no I/O driver or no timers (see `enable_all` of its builder).
    #[cfg(feature = "tokio")]
    pub fn on_tokio(settings: &MuxSettings, runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let rings = RingPool::new(settings.ring_bytes, settings.idle_rings)?;
        let reactor = Epoll::with_options(settings.sockets.clone())?;
        let mailbox = DriverMailbox::new(DriverNotifier::of_task());
        let driver = Driver::new(reactor, Arc::clone(&mailbox));
        crate::task::spawn(driver, Arc::clone(&mailbox), runtime)?;
        Ok(Self {
            mailbox,
            rings,
            thread: Mutex::new(None),
        })
    }

    /// Begins to connect, and returns at once: callers may submit commands right away, which wait.
    ///
    /// # Errors
    /// When the system has no memory left for a ring, there are too many connections, or the
    /// driver has ended.
    pub fn open(
        &self,
        address: Address,
        limits: ConnectionLimits,
        protocol: P,
    ) -> io::Result<Connection> {
        self.begin(address, None, limits, protocol)
    }

    /// As [`Mux::open`], encrypted, and only to the server that `tls` names. The handshake is a part of
    /// connecting.
    ///
    /// # Errors
    /// As [`Mux::open`]; [`io::ErrorKind::Other`] when the configuration in `tls` is not usable.
    pub fn open_tls(
        &self,
        address: Address,
        tls: &TlsTarget,
        limits: ConnectionLimits,
        protocol: P,
    ) -> io::Result<Connection> {
        // Here and not on the driver, because making keys takes a while.
        let channel = tls.connect().map_err(io::Error::other)?;
        self.begin(address, Some(Encryption::new(channel)), limits, protocol)
    }

    fn begin(
        &self,
        address: Address,
        encryption: Option<Encryption>,
        limits: ConnectionLimits,
        protocol: P,
    ) -> io::Result<Connection> {
        let ring = SendRing::new(&self.rings)?;
        let number = self
            .mailbox
            .allot_number()
            .ok_or(io::ErrorKind::QuotaExceeded)?;
        let (notifier, meters) = (Arc::clone(self.mailbox.notifier()), protocol.meters());
        let shared = Shared::new(ring, limits, number, notifier, meters);
        let shared = Arc::new(shared);
        let open = DriverRequest::Open(Arc::clone(&shared), address, encryption, protocol);
        if !self.mailbox.send(open) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(Connection(shared))
    }

    /// Closes all connections. If a thread serves them, waits until that thread has ended.
    pub fn close(&self) {
        self.mailbox.send(DriverRequest::End);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _panicked = thread.join();
        }
    }
}

impl<P: Protocol> Drop for Mux<P> {
    fn drop(&mut self) {
        self.mailbox.send(DriverRequest::End);
    }
}

impl<P: Protocol> fmt::Debug for Mux<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mux")
    }
}
