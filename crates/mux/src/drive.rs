//! Where a driver runs: on a thread of its own, or as a task of a Tokio runtime.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use embar_transport::ring::{RingPool, SendRing};
use embar_transport::tls::TlsTarget;
use embar_transport::{Address, Epoll, Reactor, SocketOptions};

use crate::conn::{Conn, Limits, Shared};
use crate::driver::Driver;
use crate::hub::{Hub, Order};
use crate::line::Secure;
use crate::protocol::Protocol;

/// Makes connections, and serves them all in one place.
///
/// Dropped, it closes its connections; see [`Mux::close`] to wait for that.
pub struct Mux<P: Protocol> {
    hub: Arc<Hub<P>>,
    rings: RingPool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How to serve connections.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of each connection's send ring, a power of two from the page size on. A command of
    /// more than half of it is sent from memory of its own.
    pub ring_bytes: usize,
    /// Rings whose memory is kept for the next connections.
    pub idle_rings: usize,
    /// Options of the sockets.
    pub sockets: SocketOptions,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ring_bytes: 256 << 10,
            idle_rings: 16,
            sockets: SocketOptions::default(),
        }
    }
}

impl<P: Protocol> Mux<P> {
    /// Serves connections on a thread of its own. For every executor, and for none.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left, or for a wrong size of the rings.
    pub fn on_thread(settings: &Settings) -> io::Result<Self> {
        let rings = RingPool::new(settings.ring_bytes, settings.idle_rings)?;
        let reactor = Epoll::with_options(settings.sockets.clone())?;
        let hub = Hub::of_thread(reactor.waker());
        let mut driver = Driver::new(reactor, Arc::clone(&hub));
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
            hub,
            rings,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Serves connections by a task of this runtime: callers on it are woken without a switch of
    /// threads.
    ///
    /// # Errors
    /// As [`Mux::on_thread`].
    ///
    /// # Panics
    /// When the runtime has no I/O driver or no timers (see `enable_all` of its builder).
    #[cfg(feature = "tokio")]
    pub fn on_tokio(settings: &Settings, runtime: &tokio::runtime::Handle) -> io::Result<Self> {
        let rings = RingPool::new(settings.ring_bytes, settings.idle_rings)?;
        let reactor = Epoll::with_options(settings.sockets.clone())?;
        let hub = Hub::of_task();
        let driver = Driver::new(reactor, Arc::clone(&hub));
        crate::task::spawn(driver, Arc::clone(&hub), runtime)?;
        Ok(Self {
            hub,
            rings,
            thread: Mutex::new(None),
        })
    }

    /// Connects. Returns at once: commands may be submitted right away, and wait.
    ///
    /// # Errors
    /// When the system has no memory left for a ring, there are too many connections, or the
    /// driver has ended.
    pub fn open(&self, address: Address, limits: Limits, protocol: P) -> io::Result<Conn> {
        self.begin(address, None, limits, protocol)
    }

    /// As [`Mux::open`], encrypted, and only to the server that `tls` names. Agreeing on how to
    /// encrypt is a part of connecting.
    ///
    /// # Errors
    /// As [`Mux::open`]; [`io::ErrorKind::Other`] when the configuration in `tls` is of no use.
    pub fn open_tls(
        &self,
        address: Address,
        tls: &TlsTarget,
        limits: Limits,
        protocol: P,
    ) -> io::Result<Conn> {
        // Here, because making keys takes a while, and others wait for the driver.
        let channel = tls.connect().map_err(io::Error::other)?;
        self.begin(address, Some(Secure::new(channel)), limits, protocol)
    }

    fn begin(
        &self,
        address: Address,
        secure: Option<Secure>,
        limits: Limits,
        protocol: P,
    ) -> io::Result<Conn> {
        let ring = SendRing::new(&self.rings)?;
        let number = self.hub.number().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (alarm, meters) = (Arc::clone(self.hub.alarm()), protocol.meters());
        let shared = Shared::new(ring, limits, number, alarm, meters);
        let shared = Arc::new(shared);
        if !self
            .hub
            .order(Order::Open(Arc::clone(&shared), address, secure, protocol))
        {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(Conn(shared))
    }

    /// Closes all connections. Waits until that is done if they are served on a thread.
    pub fn close(&self) {
        self.hub.order(Order::End);
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
        self.hub.order(Order::End);
    }
}

impl<P: Protocol> fmt::Debug for Mux<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mux")
    }
}
