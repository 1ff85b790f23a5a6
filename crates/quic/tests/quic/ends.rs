//! How sessions over QUIC end: with a reason, at both ends.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_quic::Listener;
use embar_session::{
    Client, CloseReason, Closed, DatagramLink, Flow, Handler, Message, Peer, Plain, Refusal,
    Server, Session, Settings, Side, TlsTarget,
};
use tokio::io::AsyncWriteExt;

use crate::support::{
    Authority, Both, Caller, Echo, LONG, Recorder, closed, loopback, opened, recorder, until,
};

#[test]
fn a_server_that_cannot_prove_who_it_is_gets_no_session() {
    let both = Both::start(Settings::default(), || Echo);
    let caller = Caller::new(Settings::default());
    let address = both.listener.address();
    let (handler, seen) = recorder();
    let stranger = Authority::new().target();
    let error = caller.connect_at(address, &stranger, handler).unwrap_err();
    assert_eq!(
        (error.by, error.reason),
        (Side::Local, CloseReason::Certificate),
        "{error}"
    );
    // The handler hears the same.
    assert_eq!(closed(&seen), error);
    let config = Arc::new(both.authority.client());
    let other_name = TlsTarget::new(config, "example.org").unwrap();
    let error = caller.connect_at(address, &other_name, recorder().0);
    assert_eq!(error.unwrap_err().reason, CloseReason::Certificate);
    // A certificate that its issuer did not sign is no more to the server than a failure of the encryption.
    until("the server counts them", || {
        both.server.monitor().refused_by_reason() == [(Refusal::Certificate, 1), (Refusal::Tls, 1)]
    });
    assert_eq!(both.server.stats().sessions, 0);
}

#[test]
fn nobody_at_the_address_is_no_handshake_in_time() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_millis(300);
    let caller = Caller::new(settings);
    // Bound, and silent.
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let address = silent.local_addr().unwrap();
    let target = Authority::new().target();
    let error = caller.connect_at(address, &target, recorder().0);
    assert_eq!(error.unwrap_err().reason, CloseReason::HelloTimeout);
}

#[test]
fn an_end_at_the_server_says_the_same_as_over_tcp() {
    let (both, at_server) = Both::recording(Settings::default());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    caller.connect(&both, handler).unwrap();
    let Both {
        authority,
        server,
        listener,
    } = both;
    opened(&at_server);
    server.shutdown(LONG);
    let here = closed(&seen);
    assert_eq!((here.by, here.reason), (Side::Peer, CloseReason::Shutdown));
    let there = closed(&at_server);
    assert_eq!(
        (there.by, there.reason),
        (Side::Local, CloseReason::Shutdown)
    );
    // Who comes now learns it, too.
    let target = authority.target();
    let late = caller.connect_at(listener.address(), &target, recorder().0);
    let late = late.unwrap_err();
    assert_eq!((late.by, late.reason), (Side::Peer, CloseReason::Shutdown));
    listener.shutdown(LONG);
}

/// Who waits for its turn is not left to wait for an answer that never comes.
#[test]
fn a_listener_that_stops_refuses_who_waits_and_who_comes() {
    let settings = Settings::default().with(|settings| {
        settings.admission.max_handshakes = 1;
        settings.session.hello_timeout = LONG * 10;
    });
    let both = Both::start(settings.clone(), || Echo);
    let (address, target) = (both.listener.address(), both.authority.target());
    let (runtime, config) = bare_client(&both);
    // It has the only place, and keeps it.
    let (endpoint, connection) = runtime.block_on(async {
        let endpoint = quinn::Endpoint::client(loopback()).unwrap();
        let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
        (endpoint, connecting.await.unwrap())
    });
    let caller = Caller::new(settings);
    let open = || {
        let (client, connector) = (&caller.client, &caller.connector);
        connector.open(client, address, &target, &[], recorder().0)
    };
    let waits = open().unwrap();
    let stops = std::thread::spawn(move || both.listener.shutdown(LONG * 10));
    let comes = open().unwrap();
    for refused in [waits, comes] {
        let why = refused.wait().unwrap_err();
        assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Refused));
    }
    let refused = both.server.monitor().refused_by_reason();
    // Each may have said its first words twice.
    assert!(
        matches!(refused[..], [(Refusal::Shutdown, 2..)]),
        "{refused:?}"
    );
    assert!(!stops.is_finished(), "one is still there");
    runtime.block_on(async {
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
    });
    stops.join().unwrap();
}

/// Each of its writes fails, which looks like loss, and nothing would ever say so.
#[test]
fn an_address_without_a_way_to_it_is_an_error_at_once() {
    let settings = Settings::default().with(|settings| settings.session.hello_timeout = LONG * 10);
    let caller = Caller::new(settings);
    let everybody = ([255, 255, 255, 255], 7000).into();
    let error = caller.connect_at(everybody, &Authority::new().target(), recorder().0);
    let why = error.unwrap_err();
    let kinds = [ErrorKind::PermissionDenied, ErrorKind::NetworkUnreachable];
    let reasons = kinds.map(CloseReason::Io);
    assert!(reasons.contains(&why.reason), "{why}");
    assert_eq!(why.by, Side::Local);
}

/// Reads nothing from its first message on.
struct Deaf(Recorder);

impl Handler for Deaf {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Pause
    }

    fn closed(&mut self, session: &Session, why: &Closed) {
        self.0.closed(session, why);
    }
}

/// As by TCP. Its session would stay for ever otherwise: it says that it is there, and what waits for it is never sent. It learns of its end, although
/// it does not read that.
#[test]
fn a_peer_that_takes_nothing_loses_its_session() {
    let impatient = Settings::default()
        .with(|settings| settings.sockets.unacknowledged_timeout = Some(Duration::from_secs(1)));
    let (both, at_server) = Both::recording(impatient);
    let caller = Caller::new(Settings::default().with(|settings| {
        // It says something each third of that.
        settings.session.idle_timeout = Duration::from_secs(6);
        settings.session.linger = Duration::from_millis(100);
    }));
    let (handler, seen) = recorder();
    caller.connect(&both, Deaf(handler)).unwrap();
    let session = opened(&at_server);
    until("the session is over", || {
        let _ = session.send_with(1, 10_000, |_| ());
        session.closed().is_some()
    });
    let here = closed(&at_server);
    let timed_out = CloseReason::Io(ErrorKind::TimedOut);
    assert_eq!((here.by, here.reason), (Side::Network, timed_out), "{here}");
    let there = closed(&seen);
    assert_eq!((there.by, there.reason), (Side::Peer, CloseReason::Full));
}

/// It goes on to say that it is there, and wants nothing of what the session says.
#[test]
fn a_peer_that_stops_the_stream_it_gets_loses_its_session() {
    let brief = Settings::default().with(|settings| {
        settings.session.linger = Duration::from_millis(100);
    });
    let (both, at_server) = Both::recording(brief);
    // Does not end by itself.
    let patient = Settings::default().with(|settings| {
        settings.session.idle_timeout = LONG * 10;
    });
    let client = Client::with(Plain, patient).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (address, link) = (both.listener.address(), DatagramLink::new());
    let _opening = client.open_carried(theirs, Peer::Quic(address), &link, &[], recorder().0);
    let (runtime, config) = bare_client(&both);
    let carrier = std::thread::spawn(move || {
        runtime.block_on(async {
            let endpoint = quinn::Endpoint::client(loopback()).unwrap();
            let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
            let connection = connecting.await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
            let (mut from_session, mut to_session) = ours.split();
            let inward = async {
                let hello = receive.read_chunk(1024, true).await.unwrap().unwrap();
                to_session.write_all(&hello.bytes).await.unwrap();
                receive.stop(0u32.into()).unwrap();
            };
            let outward = tokio::io::copy(&mut from_session, &mut send);
            tokio::select! {
                _ = async { tokio::join!(inward, outward) } => {}
                _ = connection.closed() => {}
            }
        });
    });
    let session = opened(&at_server);
    until("the session is over", || {
        let _ = session.send_with(1, 10, |_| ());
        session.closed().is_some()
    });
    let why = closed(&at_server);
    assert_eq!(
        (why.by, why.reason),
        (Side::Network, CloseReason::Disconnected),
        "{why}"
    );
    carrier.join().unwrap();
}

/// The connections are cut under sessions that know nothing: both ends learn why.
#[test]
fn a_listener_that_goes_tells_both_ends() {
    let (both, at_server) = Both::recording(Settings::default());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    caller.connect(&both, handler).unwrap();
    opened(&at_server);
    drop(both.listener);
    let here = closed(&seen);
    assert_eq!((here.by, here.reason), (Side::Peer, CloseReason::Shutdown));
    let there = closed(&at_server);
    assert_eq!(
        (there.by, there.reason),
        (Side::Local, CloseReason::Shutdown)
    );
}

/// Speaks QUIC and opens no stream.
fn bare_client(both: &Both) -> (tokio::runtime::Runtime, quinn::ClientConfig) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut tls = both.authority.client();
    tls.alpn_protocols = vec![b"embar-session".to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    (runtime, quinn::ClientConfig::new(Arc::new(tls)))
}

#[test]
fn a_greeting_that_does_not_come_ends_the_connection() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_millis(300);
    let both = Both::start(settings, || Echo);
    let (runtime, config) = bare_client(&both);
    runtime.block_on(async {
        let endpoint = quinn::Endpoint::client(loopback()).unwrap();
        let address = both.listener.address();
        let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
        let connection = connecting.await.unwrap();
        tokio::time::timeout(LONG, connection.closed())
            .await
            .unwrap();
    });
    let refused = both.server.monitor().refused_by_reason();
    assert_eq!(refused, [(Refusal::HelloTimeout, 1)]);
}

#[test]
fn the_accept_filter_is_asked() {
    let authority = Authority::new();
    let server = Server::builder()
        .accept_if(|_| false)
        .start(|_| Echo)
        .unwrap();
    let listener = Listener::builder(loopback(), authority.server())
        .start(&server)
        .unwrap();
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_millis(300);
    let caller = Caller::new(settings);
    let error = caller.connect_at(listener.address(), &authority.target(), recorder().0);
    assert_eq!(error.unwrap_err().reason, CloseReason::HelloTimeout);
    let refused = server.monitor().refused_by_reason();
    assert!(
        matches!(refused[..], [(Refusal::Filtered, 1..)]),
        "{refused:?}"
    );
}

#[test]
fn the_limit_of_sessions_for_an_address_holds() {
    let mut settings = Settings::default();
    settings.admission.max_sessions_per_address = 2;
    settings.admission.local_is_exempt = false;
    let both = Both::start(settings, || Echo);
    let caller = Caller::new(Settings::default());
    let sessions = [(); 2].map(|()| caller.connect(&both, recorder().0).unwrap());
    let error = caller.connect(&both, recorder().0).unwrap_err();
    assert_eq!(
        (error.by, error.reason),
        (Side::Peer, CloseReason::TooManySessions)
    );
    drop(sessions);
}

/// More handshakes at once than there may be: all have their turn.
#[test]
fn a_crowd_gets_in_by_and_by() {
    const CROWD: usize = 40;
    let mut settings = Settings::default();
    settings.admission.max_handshakes = 2;
    let both = Both::start(settings, || Echo);
    let caller = Caller::new(Settings::default().with(|settings| {
        settings.session.hello_timeout = LONG;
    }));
    let target = both.authority.target();
    let address = both.listener.address();
    let connecting: Vec<_> = (0..CROWD)
        .map(|_| {
            caller
                .connector
                .open(&caller.client, address, &target, &[], recorder().0)
        })
        .collect();
    for connecting in connecting {
        connecting.unwrap().wait().unwrap();
    }
    assert_eq!(both.server.stats().opened, CROWD as u64);
}

#[test]
fn a_configuration_without_tls_1_3_is_refused_at_the_start() {
    let authority = Authority::new();
    let old = embar_session::rustls::ClientConfig::builder_with_protocol_versions(&[
        &embar_session::rustls::version::TLS12,
    ])
    .with_root_certificates(embar_session::rustls::RootCertStore::empty())
    .with_no_client_auth();
    let target = TlsTarget::new(Arc::new(old), "localhost").unwrap();
    let caller = Caller::new(Settings::default());
    let error = caller.connect_at(([127, 0, 0, 1], 9).into(), &target, recorder().0);
    let error = error.unwrap_err();
    assert_eq!(error.reason, CloseReason::Tls);
    assert!(error.text.contains("TLS 1.3"), "{error}");
    drop(authority);
}

/// The end of a session is the end of its connection: nothing is left that costs something.
#[test]
fn connections_go_with_their_sessions() {
    let both = Both::start(Settings::default(), || Echo);
    let caller = Caller::new(Settings::default());
    let began = Instant::now();
    for _ in 0..5 {
        let (handler, seen) = recorder();
        let session = caller.connect(&both, handler).unwrap();
        session.abort();
        closed(&seen);
    }
    let Caller { client, connector } = caller;
    client.shutdown(LONG);
    connector.shutdown(LONG);
    both.server.shutdown(LONG);
    both.listener.shutdown(LONG);
    assert!(began.elapsed() < LONG, "somebody waited for the timeout");
}
