//! Encrypted sessions: the same as the others, and not fooled.

mod network;
mod pieces;
mod proxied;
mod renegotiation;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use embar_memory::Buffer;
use embar_session::{
    Address, Client, CloseReason, Plain, Rate, Refusal, SendError, Server, ServerBuilder, Session,
    Settings, Side, TlsTarget, rustls,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};

use crate::lanes::{Giver, answers_beside_a_body, laned};
use crate::streams::block_on;
use crate::support::{
    Echo, Event, LONG, Recorder, closed, echo_server, in_time, loopback, message, patient,
    recorder, small, until,
};
use network::{Fault, Proxy};

/// Who vouches for servers, and for clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        Self::named("the one that is trusted")
    }

    fn named(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(params, key),
            root,
        }
    }

    fn certify(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (vec![certificate.der().clone()], key.into())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        Arc::new(roots)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let (chain, key) = self.certify("localhost");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        Arc::new(config.unwrap())
    }

    fn client(&self) -> Arc<ClientConfig> {
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        Arc::new(config)
    }

    fn target(&self) -> TlsTarget {
        TlsTarget::new(self.client(), "localhost").unwrap()
    }
}

fn encrypted(authority: &Authority, settings: Settings) -> ServerBuilder<Plain> {
    Server::builder()
        .settings(settings)
        .listen(loopback())
        .tls(authority.server())
}

fn recording(builder: ServerBuilder<Plain>) -> (Server, Receiver<Event>) {
    let (events, seen) = std::sync::mpsc::channel();
    let events = std::sync::Mutex::new(events);
    let server = builder.start(move |_| Recorder(events.lock().unwrap().clone()));
    (server.unwrap(), seen)
}

fn refusals(server: &Server) -> Vec<(Refusal, u64)> {
    server.monitor().refused_by_reason()
}

fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) | Address::Shm(_) => panic!("not TCP"),
    }
}

/// Sends and awaits messages of many sizes, up to the longest.
fn exchange(session: &Session, seen: &Receiver<Event>) {
    for len in [0, 1, 100, 16_383, 16_384, 16_385, 60_000, 64 << 10] {
        let fill = (len % 251) as u8;
        session.send_with(3, len, |buf| buf.fill(fill)).unwrap();
        let (id, payload) = message(seen);
        assert_eq!((id, payload.len()), (3, len));
        assert!(payload.iter().all(|&byte| byte == fill));
    }
}

#[test]
fn echoes_of_all_sizes_over_tcp_and_unix_sockets_and_both_versions() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let unix = Address::Unix(folder.path().join("socket"));
    for (address, version) in [
        (loopback(), &rustls::version::TLS13),
        (loopback(), &rustls::version::TLS12),
        (unix, &rustls::version::TLS13),
    ] {
        let server = Server::builder()
            .listen(address)
            .tls(authority.server())
            .start(|_| Echo)
            .unwrap();
        let config = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(authority.roots())
            .with_no_client_auth();
        let target = TlsTarget::new(Arc::new(config), "localhost").unwrap();
        let client = Client::new().unwrap();
        let (handler, seen) = recorder();
        let session = client
            .connect_tls(server.address(), &target, handler)
            .unwrap();
        exchange(&session, &seen);
        assert_eq!(session.stats().messages_sent, 8);
    }
}

#[test]
fn greetings_and_bodies_pass_both_ways() {
    let authority = Authority::new();
    let (server, at_server) = recording(encrypted(&authority, small()));
    let client = Client::with(Plain, small()).unwrap();
    let (handler, seen) = recorder();
    let connecting = client.open_tls(server.address(), &authority.target(), b"it is me", handler);
    let session = connecting.wait().unwrap();
    let Event::Opened(other, greeting) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    assert_eq!(greeting, b"it is me");
    // Far larger than the rings, between messages.
    let body: Vec<u8> = (0..1_000_000u32).map(|n| (n % 253) as u8).collect();
    let body = Arc::new(Buffer::from(body));
    for (from, to) in [(&session, &at_server), (&other, &seen)] {
        from.send_with(1, 3, |buf| buf.copy_from_slice(b"one"))
            .unwrap();
        from.send_body(2, b"head", Arc::clone(&body)).unwrap();
        from.send_with(3, 3, |buf| buf.copy_from_slice(b"two"))
            .unwrap();
        assert_eq!(message(to), (1, b"one".to_vec()));
        match to.recv_timeout(LONG).unwrap() {
            Event::Body(2, bytes) => assert!(bytes == **body, "another body"),
            other => panic!("{other:?}"),
        }
        assert_eq!(message(to), (3, b"two".to_vec()));
    }
}

/// Several threads on one session, rings far too small for what they send, and all of it comes
/// back.
#[test]
fn a_flood_of_several_threads_is_answered_in_full() {
    const THREADS: u32 = 3;
    const EACH: u32 = 5000;
    let authority = Authority::new();
    let server = encrypted(&authority, small()).start(|_| Echo).unwrap();
    let client = Client::with(Plain, patient(small())).unwrap();
    let (handler, seen) = recorder();
    let session = client
        .connect_tls(server.address(), &authority.target(), handler)
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                for number in 0..EACH {
                    let sent = session.send_with(thread as u16, 100, |buf| {
                        buf.fill(0);
                        buf[..4].copy_from_slice(&number.to_le_bytes());
                    });
                    sent.unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let (thread, payload) = message(&seen);
            let expected = &mut next[usize::from(thread)];
            assert_eq!(payload[..4], u32::to_le_bytes(*expected));
            *expected += 1;
        }
    });
}

#[test]
fn many_sessions_at_a_time_each_get_their_own() {
    const SESSIONS: u32 = 100;
    let authority = Authority::new();
    let settings = small().with(|settings| settings.workers = 2);
    let server = encrypted(&authority, settings).start(|_| Echo).unwrap();
    let client = Client::with(Plain, small()).unwrap();
    let target = authority.target();
    let open: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let (handler, seen) = recorder();
            (
                client.open_tls(server.address(), &target, &[], handler),
                seen,
            )
        })
        .collect();
    let sessions: Vec<_> = open
        .into_iter()
        .map(|(connecting, seen)| (connecting.wait().unwrap(), seen))
        .collect();
    for round in 0..5u32 {
        for (index, (session, _)) in sessions.iter().enumerate() {
            let tag = (round * SESSIONS + index as u32).to_le_bytes();
            session
                .send_with(1, 4, |buf| buf.copy_from_slice(&tag))
                .unwrap();
        }
        for (index, (_, seen)) in sessions.iter().enumerate() {
            let tag = (round * SESSIONS + index as u32).to_le_bytes();
            assert_eq!(message(seen).1, tag);
        }
    }
    client.shutdown(LONG);
    until("all gone", || server.stats().sessions == 0);
    assert_eq!(
        server.monitor().closed_by_reason(),
        [("Shutdown", SESSIONS.into())]
    );
}

#[test]
fn a_server_that_cannot_prove_its_name_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::named("another one"));
    let server = encrypted(&authority, Settings::default()).start(|_| Echo);
    let server = server.unwrap();
    let client = Client::new().unwrap();
    let another_name = TlsTarget::new(authority.client(), "example.org").unwrap();
    for (count, target) in (1..).zip([stranger.target(), another_name]) {
        let (handler, _seen) = recorder();
        let refused = client.connect_tls(server.address(), &target, handler);
        let why = refused.unwrap_err();
        assert_eq!(
            (why.by, why.reason),
            (Side::Local, CloseReason::Certificate),
            "{why}"
        );
        assert!(why.text.contains("certificate"), "{why}");
        until("the server knows", || {
            refusals(&server) == [(Refusal::Certificate, count)]
        });
    }
    assert_eq!(server.stats().opened, 0);
    TlsTarget::new(authority.client(), "no name").unwrap_err();
}

#[test]
fn a_client_without_the_certificate_asked_for_does_not_come_in() {
    let authority = Authority::new();
    let (chain, key) = authority.certify("localhost");
    let verifier = rustls::server::WebPkiClientVerifier::builder(authority.roots()).build();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier.unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    let builder = Server::builder().listen(loopback()).tls(Arc::new(config));
    let (server, at_server) = recording(builder);
    let client = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let refused = client.connect_tls(server.address(), &authority.target(), handler);
    assert_eq!(refused.unwrap_err().reason, CloseReason::Certificate);
    until("counted", || {
        refusals(&server) == [(Refusal::Certificate, 1)]
    });

    let (chain, key) = authority.certify("client");
    let config = ClientConfig::builder()
        .with_root_certificates(authority.roots())
        .with_client_auth_cert(chain, key);
    let target = TlsTarget::new(Arc::new(config.unwrap()), "localhost").unwrap();
    let (handler, _seen) = recorder();
    let session = client
        .connect_tls(server.address(), &target, handler)
        .unwrap();
    session.send_with(1, 1, |buf| buf.fill(5)).unwrap();
    assert_eq!(message(&at_server).1, [5]);
}

#[test]
fn plain_and_encrypted_ends_part_at_once_and_say_why() {
    let authority = Authority::new();
    let mut patient = Settings::default();
    patient.session.hello_timeout = 2 * LONG; // they do not wait for it
    let (server, at_server) = recording(encrypted(&authority, patient.clone()));
    let client = Client::with(Plain, patient.clone()).unwrap();
    let (handler, _seen) = recorder();
    let refused = client.open(server.address(), &[], handler);
    in_time("the plain end", || refused.wait()).unwrap_err();
    until("counted", || refusals(&server) == [(Refusal::Tls, 1)]);

    let plain = echo_server(patient, loopback());
    let (handler, _seen) = recorder();
    let refused = client.open_tls(plain.address(), &authority.target(), &[], handler);
    let why = in_time("the encrypted end", || refused.wait()).unwrap_err();
    assert_eq!(why.reason, CloseReason::Tls);
    until("forgotten", || {
        plain.stats().arrivals + server.stats().arrivals == 0
    });
    assert!(at_server.try_recv().is_err(), "there was no session");
}

#[test]
fn garbage_and_silence_end_their_connection_and_no_other() {
    let authority = Authority::new();
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_secs(1);
    let (server, at_server) = recording(encrypted(&authority, settings));
    let client = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let session = client
        .connect_tls(server.address(), &authority.target(), handler)
        .unwrap();
    let address = tcp(&server.address());
    let garbage = [
        &[0; 100][..],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0x16, 3, 1, 0xFF, 0xFF, 1, 2, 3, 4, 5],
        &[0x17, 3, 3, 0, 1, 0],
    ];
    let all = garbage.len() as u64;
    for (count, garbage) in (1..).zip(garbage) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(garbage).unwrap();
        until("refused", || refusals(&server) == [(Refusal::Tls, count)]);
    }
    // A beginning without an end, and nothing at all.
    for (late, beginning) in (1..).zip([&[0x16, 3, 1, 0, 100, 1][..], b""]) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(beginning).unwrap();
        until("in time", || {
            refusals(&server) == [(Refusal::HelloTimeout, late), (Refusal::Tls, all)]
        });
    }
    session.send_with(1, 1, |buf| buf.fill(7)).unwrap();
    assert_eq!(message(&at_server).1, [7]);
    until("one left", || server.stats().sessions == 1);
}

/// A peer with a TLS of its own, that sees how the server ends: with CLOSE, and then with the sign
/// that nothing is missing.
#[test]
fn a_polite_end_says_that_it_is_the_end() {
    let authority = Authority::new();
    let server = encrypted(&authority, Settings::default())
        .start(|_| Echo)
        .unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(authority.client(), name).unwrap();
    let socket = TcpStream::connect(tcp(&server.address())).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut stream = StreamOwned::new(tls, socket);
    stream.write_all(b"this is no session at all").unwrap();
    let mut answer = Vec::new();
    // Without close_notify this would be an error.
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[4..6], 0xFF05u16.to_le_bytes(), "CLOSE");
    let length = u32::from_le_bytes(answer[..4].try_into().unwrap()) as usize;
    assert_eq!(answer.len(), 8 + length);
}

#[test]
fn everything_sent_before_a_close_arrives() {
    let authority = Authority::new();
    let (server, at_server) = recording(encrypted(&authority, small()));
    let client = Client::with(Plain, small()).unwrap();
    let (handler, seen) = recorder();
    let session = client
        .connect_tls(server.address(), &authority.target(), handler)
        .unwrap();
    for number in 0..500u32 {
        let bytes = number.to_le_bytes();
        session
            .send_with(1, 4, |buf| buf.copy_from_slice(&bytes))
            .unwrap();
    }
    session.close();
    for number in 0..500u32 {
        assert_eq!(message(&at_server).1, number.to_le_bytes());
    }
    assert_eq!(closed(&at_server).reason, CloseReason::Finished);
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
    assert_eq!(session.send_with(1, 1, |_| ()), Err(SendError::Closed));
}

#[test]
fn a_connection_that_is_cut_off_is_told_from_one_that_ended() {
    let authority = Authority::new();
    let (server, at_server) = recording(encrypted(&authority, Settings::default()));
    let proxy = Proxy::new(tcp(&server.address()));
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client
        .connect_tls(proxy.address(), &authority.target(), handler)
        .unwrap();
    session.send_with(1, 1, |buf| buf.fill(1)).unwrap();
    assert_eq!(message(&at_server).1, [1]);
    proxy.commit(Fault::Cut);
    for seen in [&seen, &at_server] {
        let why = closed(seen);
        assert_eq!(
            (why.by, why.reason),
            (Side::Network, CloseReason::TlsTruncated),
            "{why}"
        );
    }
}

#[test]
fn what_was_changed_on_its_way_is_not_believed() {
    let authority = Authority::new();
    let (server, at_server) = recording(encrypted(&authority, Settings::default()));
    let proxy = Proxy::new(tcp(&server.address()));
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client
        .connect_tls(proxy.address(), &authority.target(), handler)
        .unwrap();
    session.send_with(1, 1, |buf| buf.fill(1)).unwrap();
    assert_eq!(message(&at_server).1, [1]);
    proxy.commit(Fault::Change);
    session.send_with(1, 100, |buf| buf.fill(2)).unwrap();
    let mut told = Vec::new();
    let why = loop {
        match at_server.recv_timeout(LONG).unwrap() {
            Event::Closed(why) => break why,
            other => told.push(other),
        }
    };
    assert_eq!(
        (why.by, why.reason),
        (Side::Local, CloseReason::Tls),
        "{why}"
    );
    assert!(told.is_empty(), "nothing of it was told: {told:?}");
    assert_eq!(closed(&seen).reason, CloseReason::Tls);
}

#[test]
fn async_sessions_are_encrypted_too() {
    let authority = Authority::new();
    let (server, mut incoming) = encrypted(&authority, Settings::default())
        .start_async()
        .unwrap();
    let echo = std::thread::spawn(move || {
        block_on(async {
            let mut session = incoming.next().await;
            let message = session.next().await.unwrap().unwrap();
            session.send_bytes(message.id(), &message).await.unwrap();
            assert!(session.next().await.is_none(), "the end");
        });
    });
    let client = Client::new().unwrap();
    block_on(async {
        let target = authority.target();
        let connecting = client.connect_tls_async(server.address(), &target);
        let mut session = connecting.await.unwrap();
        session.send_bytes(3, b"hello").await.unwrap();
        let message = session.next().await.unwrap().unwrap();
        assert_eq!((message.id(), &*message), (3, &b"hello"[..]));
    });
    echo.join().unwrap();
}

/// One handshake at a time: who began one and stands still does not keep the next one out.
#[test]
fn a_handshake_that_stands_still_makes_room_for_one_that_waits() {
    let authority = Authority::new();
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_secs(8);
    settings.admission.max_handshakes = 1;
    let server = encrypted(&authority, settings).start(|_| Echo).unwrap();
    let mut stuck = TcpStream::connect(tcp(&server.address())).unwrap();
    stuck.write_all(&[0x16, 3, 1, 0, 100, 1]).unwrap();
    until("it is the first", || server.stats().arrivals == 1);

    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let target = authority.target();
    let session = client.connect_tls(server.address(), &target, handler);
    exchange(&session.unwrap(), &seen);
    assert_eq!(refusals(&server), [(Refusal::HelloTimeout, 1)]);
    let mut rest = Vec::new();
    stuck.set_read_timeout(Some(LONG)).unwrap();
    let _ = stuck.read_to_end(&mut rest);
    assert_eq!(server.stats().arrivals, 0);
}

#[test]
fn handshakes_wait_for_their_turn() {
    let authority = Authority::new();
    let mut settings = Settings::default();
    // Nobody is cut for want of patience.
    settings.session.hello_timeout = 8 * LONG;
    settings.admission.max_handshakes = 1;
    let server = encrypted(&authority, settings.clone()).start(|_| Echo);
    let server = server.unwrap();
    let mut first = TcpStream::connect(tcp(&server.address())).unwrap();
    first.write_all(&[0x16, 3, 1, 0, 100, 1]).unwrap();
    until("it is the first", || server.stats().arrivals == 1);
    let client = Client::with(Plain, settings).unwrap();
    let target = authority.target();
    let waiting: Vec<_> = (0..4)
        .map(|_| client.open_tls(server.address(), &target, &[], recorder().0))
        .collect();
    until("they wait", || server.stats().arrivals == 5);
    // The worker has handled what they say by the time that it has handled all these.
    const LATER: u64 = 100;
    for count in 1..=LATER {
        drop(TcpStream::connect(tcp(&server.address())).unwrap());
        until("gone", || server.stats().left_early == count);
    }
    assert_eq!((server.stats().opened, server.stats().arrivals), (0, 5));
    drop(first);
    for connecting in waiting {
        in_time("its turn", || connecting.wait()).unwrap();
    }
    let stats = server.stats();
    assert_eq!((stats.left_early, stats.refused), (LATER + 1, 0));
}

/// Each ends in the turn that the one before it left.
#[test]
fn many_handshakes_that_fail_in_a_row_end_nobody_else() {
    const MANY: usize = 2500;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let authority = Authority::new();
    let mut settings = Settings::default();
    settings.session.hello_timeout = 8 * LONG;
    settings.admission.max_handshakes = 1;
    let server = encrypted(&authority, settings).start(|_| Echo).unwrap();
    let address = tcp(&server.address());
    let mut first = TcpStream::connect(address).unwrap();
    first.write_all(&[0x16, 3, 1, 0, 100, 1]).unwrap();
    until("it is the first", || server.stats().arrivals == 1);
    let crowd: Vec<TcpStream> = (0..MANY)
        .map(|_| {
            let mut other = TcpStream::connect(address).unwrap();
            // An alert, which needs no answer.
            other.write_all(&[0x15, 3, 3, 0, 2, 2, 40]).unwrap();
            other
        })
        .collect();
    until("they wait", || server.stats().arrivals == MANY as u64 + 1);
    drop(first);
    until("they are over", || server.stats().arrivals == 0);
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect_tls(server.address(), &authority.target(), handler);
    exchange(&session.unwrap(), &seen);
    drop(crowd);
}

/// What was decrypted already waits for its rate, too.
#[test]
fn bytes_come_in_at_their_rate() {
    const RATE: u64 = 20_000;
    const BURST: u64 = 4_000;
    let authority = Authority::new();
    let mut settings = Settings::default();
    settings.rates.session_bytes = Some(Rate {
        per_second: RATE,
        burst: BURST,
    });
    let server = encrypted(&authority, settings).start(|_| Echo).unwrap();
    let client = Client::new().unwrap();
    let began = Instant::now();
    let session = client.connect_tls(server.address(), &authority.target(), recorder().0);
    let session = session.unwrap();
    for _ in 0..100 {
        session.send_with(1, 1000, |to| to.fill(7)).unwrap();
    }
    until("much came", || {
        let came = server.sessions()[0].stats().bytes_received;
        let most = BURST + began.elapsed().as_micros() as u64 * RATE / 1_000_000;
        assert!(came <= most, "{came} bytes, at most {most}");
        came >= 20_000
    });
}

/// Whoever leaves, at whatever point, its place is for others.
#[test]
fn who_leaves_in_the_middle_of_a_handshake_leaves_nothing_behind() {
    let authority = Authority::new();
    let mut settings = Settings::default();
    settings.session.hello_timeout = 2 * LONG;
    settings.admission.local_is_exempt = false;
    settings.admission.max_sessions_per_address = 1;
    settings.admission.max_handshakes = 2;
    let server = encrypted(&authority, settings).start(|_| Echo).unwrap();
    let connect = || TcpStream::connect(tcp(&server.address())).unwrap();
    let tls = || {
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(authority.client(), name).unwrap()
    };
    let mut begins = Vec::new();
    tls().write_tls(&mut begins).unwrap();
    let client = Client::new().unwrap();
    for _ in 0..3 {
        let crowd: Vec<_> = [0, 1, 5, begins.len() - 1, begins.len()]
            .map(|said| {
                let mut stream = connect();
                stream.write_all(&begins[..said]).unwrap();
                stream
            })
            .into();
        until("all came", || server.stats().arrivals == 5);
        drop(crowd);
        until("all left", || server.stats().arrivals == 0);
        // It is through with the handshake, and does not greet.
        let mut stream = StreamOwned::new(tls(), connect());
        stream.conn.complete_io(&mut stream.sock).unwrap();
        drop(stream);
        until("it left, too", || server.stats().arrivals == 0);

        let open = || client.connect_tls(server.address(), &authority.target(), recorder().0);
        let session = open().unwrap();
        let why = open().unwrap_err();
        assert_eq!(why.reason, CloseReason::TooManySessions, "{why}");
        session.abort();
        until("none is left", || {
            let stats = server.stats();
            (stats.sessions, stats.arrivals) == (0, 0)
        });
    }
}

#[test]
fn messages_go_on_while_a_body_comes_encrypted() {
    let authority = Authority::new();
    let server = encrypted(&authority, laned(2)).start(|_| Giver(1)).unwrap();
    let client = Client::with(Plain, laned(2)).unwrap();
    let target = authority.target();
    let count = answers_beside_a_body(|asker| {
        let session = client.connect_tls(server.address(), &target, asker);
        session.unwrap()
    });
    assert!(count >= 10, "{count} answers");
}
