//! The connecting side: opens QUIC connections for the sessions of a client.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_session::{
    Client, CloseReason, Closed, Connecting, DatagramLink, Handler, Peer, Session, Side, TlsTarget,
};
use quinn::{ClientConfig, Endpoint, EndpointConfig};
use tokio::time::timeout;

use crate::bridge::{Times, carry};
use crate::config;
use crate::ends::{closed, code_of, end_of};
use crate::listener::Opened;
use crate::thread::{CarrierThread, Stop, runtime};

/// How long the last packets may take that tell peers of the end.
const FAREWELL: Duration = Duration::from_millis(200);

/// Opens sessions over QUIC, all of them carried by one thread. Dropping it cuts them; see
/// [`Connector::shutdown`] for a polite end.
pub struct Connector {
    thread: CarrierThread,
    sockets: Arc<Mutex<Sockets>>,
}

/// The UDP sockets, made when they are needed first.
#[derive(Default)]
struct Sockets {
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
}

impl Sockets {
    /// The one that reaches `address`. Inside of the runtime only.
    fn endpoint_for(&mut self, address: SocketAddr) -> io::Result<Endpoint> {
        let is_v4 = address.is_ipv4();
        let place = if is_v4 { &mut self.v4 } else { &mut self.v6 };
        if let Some(endpoint) = place {
            return Ok(endpoint.clone());
        }
        let config = EndpointConfig::default();
        let tokio = Arc::new(quinn::TokioRuntime);
        let endpoint = Endpoint::new(config, None, any_port(is_v4)?, tokio)?;
        Ok(place.insert(endpoint).clone())
    }

    fn all(&self) -> Vec<Endpoint> {
        [&self.v4, &self.v6]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

fn any_port(is_v4: bool) -> io::Result<UdpSocket> {
    match is_v4 {
        true => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        false => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// What the system knows of the way to `address`: QUIC takes each error of a send for a packet that was lost, and would wait for an
/// answer that cannot come.
fn check_way(address: SocketAddr) -> io::Result<()> {
    any_port(address.is_ipv4())?.connect(address)
}

fn lock(sockets: &Mutex<Sockets>) -> MutexGuard<'_, Sockets> {
    sockets.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connector {
    /// Starts its thread.
    ///
    /// # Errors
    /// When a thread or descriptors are missing.
    pub fn new() -> io::Result<Self> {
        let sockets = Arc::new(Mutex::new(Sockets::default()));
        let its = Arc::clone(&sockets);
        let thread = CarrierThread::start("quic-client", runtime()?, move |stop| run(its, stop))?;
        Ok(Self { thread, sockets })
    }

    /// Opens a session of `client` with the server that `target` names, at `address`, and waits until it is open, at most for the
    /// setting `hello_timeout`. `handler` gets all that happens on it. Not for handlers, which must not block: see
    /// [`Connector::open`].
    ///
    /// # Errors
    /// How the session ended before it opened: [`CloseReason::Certificate`] if the server could not prove who it is,
    /// [`CloseReason::HelloTimeout`] if nobody answers, [`CloseReason::Io`] if the system knows no way to the address.
    pub fn connect(
        &self,
        client: &Client,
        address: SocketAddr,
        target: &TlsTarget,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.open(client, address, target, &[], handler)?.wait()
    }

    /// Starts to connect, with a greeting for the peer's handler.
    ///
    /// # Errors
    /// Why there is nothing to wait for: descriptors are missing, or `target` has a configuration that is of no use for
    /// QUIC. The handler is dropped then.
    pub fn open(
        &self,
        client: &Client,
        address: SocketAddr,
        target: &TlsTarget,
        greeting: &[u8],
        handler: impl Handler,
    ) -> Result<Connecting, Closed> {
        let settings = client.settings();
        let config = config::client(target, config::transport(settings));
        let config =
            config.map_err(|error| closed(Side::Local, CloseReason::Tls, error.to_string()))?;
        let (ours, theirs) = UnixStream::pair().map_err(|error| of_system(&error))?;
        let link = DatagramLink::new();
        let work = Work {
            sockets: Arc::clone(&self.sockets),
            config,
            address,
            name: target.name().to_str().into_owned(),
            link: link.clone(),
            times: Times::of(settings),
        };
        self.thread.handle().spawn(work.run(ours));
        let peer = Peer::Quic(address);
        Ok(client.open_carried(theirs, peer, &link, greeting, handler))
    }

    /// Goes on with all connections from other UDP ports, and from whatever address the system chooses now: after the
    /// machine got into another network, they need not wait until they notice. Sessions stay as they are, and
    /// [`Session::peer`] of the servers' sessions does, too.
    ///
    /// # Errors
    /// What the system says.
    pub fn rebind(&self) -> io::Result<()> {
        let _inside = self.thread.handle().enter();
        let sockets = lock(&self.sockets);
        for (endpoint, is_v4) in [(&sockets.v4, true), (&sockets.v6, false)] {
            if let Some(endpoint) = endpoint {
                endpoint.rebind(any_port(is_v4)?)?;
            }
        }
        Ok(())
    }

    /// Waits until all connections have ended, at most for `timeout`, and cuts what is left then. Shut the client down before: it
    /// ends its sessions.
    pub fn shutdown(mut self, timeout: Duration) {
        self.thread.stop(timeout);
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

fn of_system(error: &io::Error) -> Closed {
    let reason = CloseReason::Io(error.kind());
    closed(Side::Local, reason, error.to_string())
}

async fn run(sockets: Arc<Mutex<Sockets>>, mut stop: Stop) {
    let time = stop.wait().await;
    let endpoints = lock(&sockets).all();
    let idle = async {
        for endpoint in &endpoints {
            endpoint.wait_idle().await;
        }
    };
    let _ = timeout(time, idle).await;
    for endpoint in &endpoints {
        endpoint.close(code_of(CloseReason::Shutdown), b"");
        let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
    }
}

/// A connection that is to be opened, and then carries a session.
struct Work {
    sockets: Arc<Mutex<Sockets>>,
    config: ClientConfig,
    address: SocketAddr,
    name: String,
    link: DatagramLink,
    times: Times,
}

impl Work {
    async fn run(self, ours: UnixStream) {
        let (link, times) = (self.link.clone(), self.times);
        let opened = tokio::select! {
            opened = self.connect() => opened,
            // Its time for the handshake is over, or nobody wants it any more.
            () = poll_fn(|cx| link.poll_over(cx)) => return,
        };
        let opened = opened.and_then(|opened| match of_runtime(&ours) {
            Ok(socket) => Ok((opened, socket)),
            Err(error) => Err(of_system(&error)),
        });
        match opened {
            Ok(((connection, streams), socket)) => {
                drop(ours);
                carry(&connection, streams, socket, &link, times).await;
            }
            // Before its socket goes, so that the session finds the reason.
            Err(why) => link.lost(why),
        }
    }

    async fn connect(self) -> Result<Opened, Closed> {
        let way = check_way(self.address);
        let endpoint = way.and_then(|()| lock(&self.sockets).endpoint_for(self.address));
        let endpoint = endpoint.map_err(|error| of_system(&error))?;
        let connecting = endpoint.connect_with(self.config, self.address, &self.name);
        let connecting = connecting
            .map_err(|error| closed(Side::Local, CloseReason::Refused, error.to_string()))?;
        let connection = connecting.await.map_err(|error| end_of(&error))?;
        let streams = connection.open_bi().await.map_err(|error| end_of(&error))?;
        Ok((connection, streams))
    }
}

/// The same socket, for the runtime.
fn of_runtime(socket: &UnixStream) -> io::Result<tokio::net::UnixStream> {
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket.try_clone()?)
}
