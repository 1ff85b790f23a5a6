//! The accepting side: takes QUIC connections and hands them to a server of sessions.

use std::fmt;
use std::future::{pending, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use embar_session::rustls::ServerConfig;
use embar_session::{Adopter, CloseReason, DatagramLink, Network, Peer, Refusal, Server};
use quinn::{Connection, Endpoint, EndpointConfig, Incoming};
use quinn_proto::HashedConnectionIdGenerator;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::bridge::{Times, carry, close};
use crate::config::{self, TlsConfigError};
use crate::ends::{code_of, refusal_of};
use crate::handshakes::{Handshakes, Limits, Turn};
use crate::thread::{CarrierThread, Stop, runtime, within};

/// A handshake that took this part of the time for a greeting makes room for one that waits; or so long, where that time has no
/// end.
const PATIENCE_PART: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(2500);

/// Connections that may wait for their turn. Each has shown that its address is its own, and of each there are the first packets.
const MAX_WAITING: usize = 1024;
/// First packets that quinn holds: of those that wait, and of those that nobody has looked at.
const MAX_INCOMING: usize = MAX_WAITING + 256;
const MAX_INCOMING_BYTES: u64 = 16 << 10;
const MAX_INCOMING_BYTES_TOTAL: u64 = 16 << 20;

/// How often those that take too long are looked for while others wait.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the last packets may take that tell peers of the end.
const FAREWELL: Duration = Duration::from_millis(200);

/// Why a listener did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The TLS configuration is of no use.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// The address cannot be listened on.
    #[error(
        "cannot listen for QUIC on {address}: {source}; is the UDP port free, and the address of this machine?"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A thread or descriptors are missing.
    #[error("cannot start the thread for QUIC: {0}; check the limit of open files (ulimit -n)")]
    Thread(#[from] io::Error),
}

/// What a listener is made of; made by [`Listener::builder`].
pub struct ListenerBuilder {
    address: SocketAddr,
    tls: Arc<ServerConfig>,
    secret: Option<[u8; 32]>,
}

impl ListenerBuilder {
    /// A secret that stays the same when the process starts again at the same address: then it tells peers of connections from before
    /// that it knows nothing of them any more (RFC 9000, 10.3). They learn at once what they would learn by silence, in
    /// `idle_timeout`, otherwise. Who knows the secret can end all connections.
    #[must_use]
    pub fn reset_secret(mut self, secret: [u8; 32]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Starts to listen for `server`.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn start(self, server: &Server) -> Result<Listener, ListenError> {
        let adopter = server.adopter();
        let transport = config::transport(adopter.settings());
        let mut server = config::server(&self.tls, transport)?;
        server
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size(MAX_INCOMING_BYTES)
            .incoming_buffer_size_total(MAX_INCOMING_BYTES_TOTAL);
        let at = self.address;
        let bound = UdpSocket::bind(at).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = bound.map_err(|source| ListenError::Bind {
            address: at,
            source,
        })?;
        let runtime = runtime()?;
        let endpoint = {
            let _inside = runtime.enter();
            let tokio = Arc::new(quinn::TokioRuntime);
            Endpoint::new(self.endpoint(), Some(server), socket, tokio)?
        };
        let listening = Arc::new(Listening::new(adopter));
        let run = move |stop| accept(endpoint, listening, stop);
        let thread = CarrierThread::start("quic-server", runtime, run)?;
        Ok(Listener { thread, address })
    }

    fn endpoint(&self) -> EndpointConfig {
        let Some(secret) = &self.secret else {
            return EndpointConfig::default();
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        // Which ids are its own, it must know after a start, too.
        let ids = hmac::sign(&key, b"connection ids");
        let ids = ids.as_ref().first_chunk().copied().map(u64::from_le_bytes);
        let mut config = EndpointConfig::new(Arc::new(key));
        if let Some(ids) = ids {
            config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        }
        config
    }
}

/// Listens for QUIC connections and hands them to a [`Server`]. Dropping it cuts them; see
/// [`Listener::shutdown`] for a polite end.
pub struct Listener {
    thread: CarrierThread,
    address: SocketAddr,
}

impl Listener {
    /// A listener at `address` (port 0: the kernel chooses) with these certificates and rules.
    #[must_use]
    pub fn builder(address: SocketAddr, tls: Arc<ServerConfig>) -> ListenerBuilder {
        ListenerBuilder {
            address,
            tls,
            secret: None,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and refuses those that wait for their turn or still come. Waits until those there are have ended, at most for
    /// `timeout`; what is left then is cut, and its peers are told. Shut the server down before: it ends its sessions.
    pub fn shutdown(mut self, timeout: Duration) {
        self.thread.stop(timeout);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.address)
    }
}

/// A connection that nothing has been done for yet.
struct Newcomer {
    incoming: Incoming,
    peer: Peer,
    network: Option<Network>,
}

type Places = Handshakes<Arc<Notify>, Newcomer>;

/// What the connections of a listener share.
struct Listening {
    adopter: Adopter,
    handshakes: Mutex<Places>,
    /// A place became free.
    freed: Notify,
}

impl Listening {
    fn new(adopter: Adopter) -> Self {
        let settings = adopter.settings();
        let longest_wait = settings.session.hello_timeout;
        let limits = Limits {
            most: settings.admission.max_handshakes,
            most_waiting: MAX_WAITING,
            patience: match longest_wait {
                Duration::ZERO => PATIENCE,
                most => most / PATIENCE_PART,
            },
            longest_wait,
        };
        Self {
            handshakes: Mutex::new(Handshakes::new(limits)),
            adopter,
            freed: Notify::new(),
        }
    }

    fn handshakes(&self) -> MutexGuard<'_, Places> {
        self.handshakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection that has not become a session.
struct Place {
    listening: Arc<Listening>,
    number: u64,
    /// It is to make room for another one.
    cut: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.listening.handshakes().end(self.number);
        self.listening.freed.notify_one();
    }
}

async fn accept(endpoint: Endpoint, listening: Arc<Listening>, mut stop: Stop) {
    // Of its own, so that no crowd of newcomers keeps it from coming.
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let time = loop {
        let some_wait = listening.handshakes().has_waiting();
        tokio::select! {
            time = stop.wait() => break time,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => if !welcome(incoming, &listening) {
                    continue;
                },
                None => {
                    tracing::error!("the UDP socket for QUIC is lost, and with it all connections: start the listener again");
                    break stop.wait().await;
                }
            },
            () = listening.freed.notified() => {}
            _ = look.tick(), if some_wait => {}
        }
        give_turns(&listening);
    };
    tokio::select! {
        _ = timeout(time, endpoint.wait_idle()) => {}
        () = refuse_all(&endpoint, &listening) => {}
    }
    endpoint.close(code_of(CloseReason::Shutdown), b"");
    let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
}

/// Who waits for a turn, and who still comes, is told that there will be none. Never ends.
async fn refuse_all(endpoint: &Endpoint, listening: &Listening) {
    let waiting = listening.handshakes().take_waiting();
    for newcomer in waiting {
        refuse(newcomer.incoming, listening);
    }
    while let Some(incoming) = endpoint.accept().await {
        refuse(incoming, listening);
    }
    pending().await
}

fn refuse(incoming: Incoming, listening: &Listening) {
    listening.adopter.count(Refusal::Shutdown);
    incoming.refuse();
}

/// Somebody wants a connection, and has nothing of this side so far. False: nothing waits for a turn that did not before.
fn welcome(incoming: Incoming, listening: &Listening) -> bool {
    let busy = listening.handshakes().is_busy();
    if busy && !incoming.remote_address_validated() && incoming.may_retry() {
        // It cannot fail for one that may.
        let _ = incoming.retry();
        return false;
    }
    let peer = Peer::Quic(incoming.remote_address());
    if !listening.adopter.wants(&peer) {
        incoming.ignore();
        return false;
    }
    let network = listening.adopter.settings().admission.network_of(&peer);
    let newcomer = Newcomer {
        incoming,
        peer,
        network,
    };
    let now = Instant::now();
    let forgotten = listening.handshakes().wait(network, now, newcomer);
    forget(forgotten, listening);
    true
}

/// Begins handshakes as far as they may run.
fn give_turns(listening: &Arc<Listening>) {
    let now = Instant::now();
    loop {
        let turn = listening.handshakes().turn(now);
        match turn {
            Some(Turn::Begin(newcomer)) => {
                let cut = Arc::new(Notify::new());
                let place = Place {
                    number: listening
                        .handshakes()
                        .begin(newcomer.network, now, Arc::clone(&cut)),
                    listening: Arc::clone(listening),
                    cut,
                };
                tokio::spawn(serve(newcomer.incoming, newcomer.peer, place));
            }
            Some(Turn::Cut(cut)) => cut.notify_one(),
            Some(Turn::Forget(newcomer)) => forget(Some(newcomer), listening),
            None => return,
        }
    }
}

/// Without a word: it has no more than its first packets.
fn forget(newcomer: Option<Newcomer>, listening: &Listening) {
    if let Some(newcomer) = newcomer {
        listening.adopter.count(Refusal::Crowded);
        newcomer.incoming.ignore();
    }
}

/// Serves one connection until it is over.
async fn serve(incoming: Incoming, peer: Peer, place: Place) {
    let listening = Arc::clone(&place.listening);
    let adopter = &listening.adopter;
    let session = &adopter.settings().session;
    let cut = Arc::clone(&place.cut);
    let opening = open(incoming);
    let opened = tokio::select! {
        opened = within(session.hello_timeout, opening) => opened,
        () = cut.notified() => return adopter.count(Refusal::Crowded),
    };
    let (connection, streams) = match opened {
        Some(Ok(opened)) => opened,
        Some(Err(error)) => {
            if let Some(refusal) = refusal_of(&error) {
                adopter.count(refusal);
            }
            return;
        }
        None => return adopter.count(Refusal::HelloTimeout),
    };
    let (ours, theirs) = match pair() {
        Ok(pair) => pair,
        Err(error) => {
            tracing::warn!(%peer, "cannot take a QUIC connection: {error}; raise the limit of open files (ulimit -n)");
            adopter.count(Refusal::OutOfMemory);
            return close(&connection, CloseReason::TooManySessions, "");
        }
    };
    let link = DatagramLink::new();
    if adopter.adopt_carried(theirs, peer, &link).is_err() {
        adopter.count(Refusal::Shutdown);
        return close(&connection, CloseReason::Shutdown, "");
    }
    let greeted = async {
        tokio::select! {
            // In this order: one that is open is not cut any more.
            biased;
            // One that is refused keeps its place as long as it is there.
            true = poll_fn(|cx| link.poll_open(cx)) => drop(place),
            () = cut.notified() => {
                adopter.count(Refusal::Crowded);
                close(&connection, CloseReason::TooManySessions, "it had not greeted when others came");
            }
        }
        pending().await
    };
    tokio::select! {
        () = carry(&connection, streams, ours, &link, Times::of(adopter.settings())) => {}
        () = greeted => {}
    }
}

/// A connection, and the stream of its session.
pub(crate) type Opened = (Connection, (quinn::SendStream, quinn::RecvStream));

/// The handshake, and the stream of the session.
async fn open(incoming: Incoming) -> Result<Opened, quinn::ConnectionError> {
    let connection = incoming.accept()?.await?;
    let streams = connection.accept_bi().await?;
    Ok((connection, streams))
}

/// Two ends of a connection inside of this process: the carrier's and the session's.
pub(crate) fn pair() -> io::Result<(tokio::net::UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((tokio::net::UnixStream::from_std(ours)?, theirs))
}
