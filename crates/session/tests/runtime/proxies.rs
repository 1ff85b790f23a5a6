//! Connections through proxies that say for whom they speak.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use embar_session::{
    Address, Client, Peer, Proxies, Refusal, Server, ServerBuilder, Settings, hand_over,
};

use crate::admission::{CLOSE, WELCOME, connect_from, first_id};
use crate::hello::hello;
use crate::support::{Echo, LONG, loopback, recorder, until};

/// A header with this command and family, and what follows its fixed bytes.
pub fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    bytes.extend([0x20 | command, family]);
    bytes.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// A header that speaks for 192.0.2.`last`, port 4660.
pub fn speaks_for(last: u8) -> Vec<u8> {
    header(1, 0x11, &[192, 0, 2, last, 10, 0, 0, 1, 0x12, 0x34, 0, 80])
}

fn behind(trusted: &str, settings: Settings) -> ServerBuilder<embar_session::Plain> {
    let proxies = Proxies::new([trusted]).unwrap();
    Server::builder()
        .settings(settings)
        .listen_behind(loopback(), &proxies)
}

fn refusals(server: &Server) -> Vec<(Refusal, u64)> {
    server.monitor().refused_by_reason()
}

/// What comes first on a connection that says these bytes; the connection.
fn first_answer(server: &Server, bytes: &[u8]) -> (Option<u16>, TcpStream) {
    let mut stream = connect_from(1, server);
    stream.write_all(bytes).unwrap();
    (first_id(&mut stream), stream)
}

#[test]
fn a_session_has_the_peer_that_its_proxy_speaks_for_and_counts_under_it() {
    let mut settings = Settings::default().with(|it| it.workers = 2);
    settings.admission.max_sessions_per_address = 1;
    let server = behind("127.0.0.1", settings)
        .accept_if(|peer| *peer != Peer::Tcp("192.0.2.66:4660".parse().unwrap()))
        .start(|_| Echo)
        .unwrap();
    let mut open = Vec::new();
    for (last, answer) in [
        (1, Some(WELCOME)),
        (1, Some(CLOSE)),
        (2, Some(WELCOME)),
        (66, None),
    ] {
        let (said, stream) = first_answer(&server, &[speaks_for(last), hello()].concat());
        assert_eq!(said, answer, "{last}");
        open.push(stream);
    }
    let peers: Vec<_> = server.sessions().iter().map(|it| *it.peer()).collect();
    let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
    assert_eq!(peers, [peer("192.0.2.1:4660"), peer("192.0.2.2:4660")]);
    until("both are counted", || {
        refusals(&server) == [(Refusal::Filtered, 1), (Refusal::AddressLimit, 1)]
    });
    drop(open);
    until("all left", || server.stats().sessions == 0);
}

#[test]
fn where_a_proxy_speaks_for_nobody_with_an_address_the_peer_is_the_proxy() {
    let server = behind("127.0.0.0/8", Settings::default()).start(|_| Echo);
    let server = server.unwrap();
    for header in [
        header(0, 0, &[]),
        header(1, 0, &[9; 700]),
        header(1, 0x31, &[0; 216]),
    ] {
        // In two pieces, with the HELLO behind the second one.
        let mut stream = connect_from(1, &server);
        stream.set_nodelay(true).unwrap();
        stream.write_all(&header[..5]).unwrap();
        until("it came", || server.stats().arrivals == 1);
        stream
            .write_all(&[&header[5..], &hello()].concat())
            .unwrap();
        assert_eq!(first_id(&mut stream), Some(WELCOME));
        let sessions = server.sessions();
        let own = stream.local_addr().unwrap();
        assert_eq!(*sessions[0].peer(), Peer::Tcp(own));
        drop(stream);
        until("it left", || server.stats().sessions == 0);
    }
    assert_eq!(refusals(&server), []);
}

#[test]
fn only_proxies_that_are_trusted_may_speak_for_others() {
    let server = behind("127.0.0.1", Settings::default()).start(|_| Echo);
    let server = server.unwrap();
    let mut stranger = connect_from(2, &server);
    // It may be closed already.
    let _ = stranger.write_all(&[speaks_for(1), hello()].concat());
    assert_eq!(first_id(&mut stranger), None);
    until("refused", || {
        refusals(&server) == [(Refusal::UntrustedProxy, 1)]
    });
    // Nor is one believed where nobody asks for it.
    let plain = crate::support::echo_server(Settings::default(), loopback());
    let (said, _stream) = first_answer(&plain, &[speaks_for(1), hello()].concat());
    assert_eq!(said, Some(CLOSE));
    until("counted", || refusals(&plain) == [(Refusal::NotSession, 1)]);
}

#[test]
fn a_proxy_that_says_nothing_or_nonsense_is_refused_without_a_word() {
    let server = behind("127.0.0.1", Settings::default()).start(|_| Echo);
    let server = server.unwrap();
    for bytes in [
        hello(),
        header(1, 0x11, &[0; 3]),
        header(0, 0, &[0; 5000]),
        b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n".to_vec(),
    ] {
        let (said, _stream) = first_answer(&server, &bytes);
        assert_eq!(said, None);
    }
    until("all are counted", || {
        refusals(&server) == [(Refusal::ProxyHeader, 4)]
    });
    // A check that only connects.
    drop(connect_from(1, &server));
    until("it left", || server.stats().left_early == 1);
    assert_eq!(server.stats().arrivals, 0);
}

#[test]
fn a_proxy_has_no_more_time_than_who_greets() {
    let mut settings = Settings::default();
    // Nobody greets here in time.
    settings.session.hello_timeout = Duration::from_millis(10);
    let server = behind("127.0.0.1", settings).start(|_| Echo).unwrap();
    let (said, _stream) = first_answer(&server, &speaks_for(1)[..27]);
    assert_eq!(said, None, "it waited for the last byte");
    until("it is counted", || {
        refusals(&server) == [(Refusal::HelloTimeout, 1)]
    });
}

#[test]
fn one_server_has_listeners_with_and_without_proxies_and_by_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let proxies = Proxies::new(["unix"]).unwrap();
    let server = Server::builder()
        .listen(loopback())
        .listen_behind(Address::Unix(path.clone()), &proxies)
        .start(|_| Echo)
        .unwrap();
    let client = Client::new().unwrap();
    let direct = client.connect(server.address(), recorder().0).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
        .write_all(&[speaks_for(7), hello()].concat())
        .unwrap();
    assert_eq!(first_id(&mut stream), Some(WELCOME));
    let peers: Vec<_> = server.sessions().iter().map(|it| *it.peer()).collect();
    assert!(peers[0].tcp().unwrap().ip().is_loopback());
    assert_eq!(peers[1], Peer::Tcp("192.0.2.7:4660".parse().unwrap()));
    drop(direct);
    assert_eq!(stream.set_nonblocking(true).ok(), Some(()));
    assert!(stream.read(&mut [0; 64]).is_ok(), "the rest of WELCOME");
}

/// Whether `server` believes its proxy, and nobody who comes without one.
fn stands_behind_its_proxy(server: &Server) {
    let (said, _stream) = first_answer(server, &[speaks_for(3), hello()].concat());
    assert_eq!(said, Some(WELCOME));
    let peers: Vec<_> = server.sessions().iter().map(|it| *it.peer()).collect();
    assert_eq!(peers, [Peer::Tcp("192.0.2.3:4660".parse().unwrap())]);
    let (said, _stream) = first_answer(server, &hello());
    assert_eq!(said, None);
    let mut stranger = connect_from(2, server);
    // It may be closed already.
    let _ = stranger.write_all(&[speaks_for(3), hello()].concat());
    assert_eq!(first_id(&mut stranger), None);
    until("both are counted", || {
        refusals(server) == [(Refusal::UntrustedProxy, 1), (Refusal::ProxyHeader, 1)]
    });
}

#[test]
fn a_listener_that_was_opened_elsewhere_stands_behind_proxies_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let proxies = Proxies::new(["127.0.0.1"]).unwrap();
    let server = Server::builder()
        .listener_behind(listener, &proxies)
        .start(|_| Echo)
        .unwrap();
    assert_eq!(server.address(), address);
    stands_behind_its_proxy(&server);
}

/// A listener goes over as a socket: what it knew of proxies does not.
#[test]
fn who_takes_a_listener_over_says_again_that_it_is_behind_proxies() {
    for says_so in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let door = directory.path().join("door");
        let before = behind("127.0.0.1", Settings::default()).start(|_| Echo);
        let before = before.unwrap();
        let after = std::thread::scope(|scope| {
            let offer = scope.spawn(|| hand_over::offer(&before, &door, LONG).unwrap());
            let mut taken = hand_over::take(&door, LONG).unwrap();
            let listener = taken.listeners().pop().unwrap();
            let builder = if says_so {
                let proxies = Proxies::new(["127.0.0.1"]).unwrap();
                Server::builder().listener_behind(listener, &proxies)
            } else {
                Server::builder().listener(listener)
            };
            let after = builder.start(|_| Echo).unwrap();
            taken.ready().unwrap();
            offer.join().unwrap();
            after
        });
        assert_eq!(after.address(), before.address());
        if says_so {
            stands_behind_its_proxy(&after);
            continue;
        }
        let (said, _stream) = first_answer(&after, &[speaks_for(3), hello()].concat());
        assert_eq!(said, Some(CLOSE), "the header is no HELLO");
        until("counted", || refusals(&after) == [(Refusal::NotSession, 1)]);
    }
}
