//! What the tests share.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_quic::{Connector, Listener};
use embar_session::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use embar_session::rustls::{ClientConfig, RootCertStore, ServerConfig};
use embar_session::{
    Client, Closed, Datagram, Flow, Handler, Message, Plain, Server, Session, Settings, TlsTarget,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

pub fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Polls until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Who vouches for servers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "the one that is trusted");
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(params, key),
            root,
        }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        Arc::new(roots)
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        self.server_of(vec!["localhost".to_owned()])
    }

    /// One with a certificate for these names.
    pub fn server_of(&self, names: Vec<String>) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        Arc::new(config.unwrap())
    }

    /// The certificate that clients are to trust.
    pub fn root(&self) -> &[u8] {
        &self.root
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig::builder()
            .with_root_certificates(self.roots())
            .with_no_client_auth()
    }

    pub fn target(&self) -> TlsTarget {
        TlsTarget::new(Arc::new(self.client()), "localhost").unwrap()
    }
}

/// What happened to a session.
#[derive(Debug)]
pub enum Event {
    Opened(Session, Vec<u8>),
    Message(u16, Vec<u8>),
    Datagram(u16, u64, Vec<u8>),
    Body(Vec<u8>),
    Closed(Closed),
}

/// Tells everything that happens to a channel.
pub struct Recorder(pub Sender<Event>);

pub fn recorder() -> (Recorder, Receiver<Event>) {
    let (events, seen) = channel();
    (Recorder(events), seen)
}

impl Handler for Recorder {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let event = Event::Opened(session.clone(), greeting.to_vec());
        let _ = self.0.send(event);
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload().to_vec();
        let _ = self.0.send(Event::Message(message.id(), payload));
        Flow::Continue
    }

    fn datagram(&mut self, _: &Session, datagram: Datagram<'_>) {
        let (id, sequence) = (datagram.id(), datagram.sequence());
        let payload = datagram.payload().to_vec();
        let _ = self.0.send(Event::Datagram(id, sequence, payload));
    }

    fn body_done(
        &mut self,
        _: &Session,
        _: u16,
        store: embar_session::BodyStore,
        range: std::ops::Range<usize>,
    ) {
        let bytes = store.into_heap().expect("the default is a Vec");
        let _ = self.0.send(Event::Body(bytes[range].to_vec()));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Event::Closed(why.clone()));
    }
}

/// Sends everything back as it came.
pub struct Echo;

impl Handler for Echo {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload();
        let _ = session.send_with(message.id(), payload.len(), |buf| {
            buf.copy_from_slice(payload);
        });
        Flow::Continue
    }

    fn datagram(&mut self, session: &Session, datagram: Datagram<'_>) {
        let payload = datagram.payload();
        let _ = session.send_datagram_with(datagram.id(), payload.len(), |buf| {
            buf.copy_from_slice(payload);
        });
    }
}

/// A server that listens by QUIC alone.
pub struct Both {
    pub authority: Authority,
    pub server: Server,
    pub listener: Listener,
}

impl Both {
    pub fn start<H: Handler>(
        settings: Settings,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new();
        let certificates = authority.server();
        Self::with(authority, certificates, settings, make)
    }

    pub fn with<H: Handler>(
        authority: Authority,
        certificates: Arc<ServerConfig>,
        settings: Settings,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        let server = Server::builder().settings(settings).start(move |_| make());
        let server = server.unwrap();
        let listener = Listener::builder(loopback(), certificates);
        let listener = listener.start(&server).unwrap();
        Self {
            authority,
            server,
            listener,
        }
    }

    pub fn recording(settings: Settings) -> (Self, Receiver<Event>) {
        let (events, seen) = channel();
        let events = Mutex::new(events);
        let both = Self::start(settings, move || Recorder(events.lock().unwrap().clone()));
        (both, seen)
    }
}

/// A client and what carries its sessions.
pub struct Caller {
    pub client: Client,
    pub connector: Connector,
}

impl Caller {
    pub fn new(settings: Settings) -> Self {
        Self {
            client: Client::with(Plain, settings).unwrap(),
            connector: Connector::new().unwrap(),
        }
    }

    pub fn connect(&self, both: &Both, handler: impl Handler) -> Result<Session, Closed> {
        self.connect_at(both.listener.address(), &both.authority.target(), handler)
    }

    pub fn connect_at(
        &self,
        address: SocketAddr,
        target: &TlsTarget,
        handler: impl Handler,
    ) -> Result<Session, Closed> {
        self.connector
            .connect(&self.client, address, target, handler)
    }
}

/// The session of the other end.
pub fn opened(seen: &Receiver<Event>) -> Session {
    match seen.recv_timeout(LONG).expect("a session in time") {
        Event::Opened(session, _) => session,
        other => panic!("opening comes first: {other:?}"),
    }
}

/// The next message.
pub fn message(seen: &Receiver<Event>) -> (u16, Vec<u8>) {
    loop {
        match seen.recv_timeout(LONG).expect("a message in time") {
            Event::Message(id, payload) => return (id, payload),
            Event::Closed(why) => panic!("closed instead of a message: {why}"),
            _ => {}
        }
    }
}

/// The end, whatever comes before.
pub fn closed(seen: &Receiver<Event>) -> Closed {
    loop {
        if let Event::Closed(why) = seen.recv_timeout(LONG).expect("the end in time") {
            return why;
        }
    }
}

/// Sends a datagram again and again until the other end has one, as any of them may be lost; what that one says.
pub fn datagram_through(
    session: &Session,
    seen: &Receiver<Event>,
    payload: &[u8],
) -> (u16, u64, Vec<u8>) {
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "no datagram in time");
        let sent = session.send_datagram_with(5, payload.len(), |buf| buf.copy_from_slice(payload));
        sent.unwrap();
        match seen.recv_timeout(Duration::from_millis(200)) {
            Ok(Event::Datagram(id, sequence, payload)) => return (id, sequence, payload),
            Ok(Event::Closed(why)) => panic!("closed instead of a datagram: {why}"),
            Ok(_) | Err(_) => {}
        }
    }
}
