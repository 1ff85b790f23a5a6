//! Connections that somebody else accepted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use embar_session::{AdoptError, Client, Peer, Refusal, Server, Settings};

use crate::admission::{CLOSE, WELCOME, first_id};
use crate::hello::hello;
use crate::support::{Echo, LONG, echo_server, loopback, message, recorder, until};

/// Listens nowhere.
fn deaf(settings: Settings) -> Server {
    let server = Server::builder().settings(settings);
    server.start(|_| Echo).unwrap()
}

#[test]
fn an_adopted_connection_is_served_like_one_that_was_accepted() {
    let server = deaf(Settings::default().with(|it| it.workers = 2));
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::new().unwrap();
    for _ in 0..4 {
        let (handler, seen) = recorder();
        let address = front.local_addr().unwrap();
        let connecting = client.open(address, &[], handler);
        let (stream, peer) = front.accept().unwrap();
        server.adopt(stream, Peer::Tcp(peer)).unwrap();
        let session = connecting.wait().unwrap();
        session.send_with(1, 1, |to| to.fill(7)).unwrap();
        assert_eq!(message(&seen).1, [7]);
    }
    assert_eq!(server.stats().opened, 4);
}

#[test]
fn filters_and_limits_count_an_adopted_connection_under_the_peer_that_was_told() {
    let mut settings = Settings::default();
    settings.admission.max_sessions_per_address = 1;
    let server = Server::builder()
        .settings(settings)
        .accept_if(|peer| peer.tcp().is_some_and(|it| it.port() != 666))
        .start(|_| Echo)
        .unwrap();
    let from = |text: &str| Peer::Tcp(text.parse().unwrap());

    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let refused = server.adopt(theirs, from("192.0.2.1:666")).unwrap_err();
    assert!(matches!(refused, AdoptError::Refused(Refusal::Filtered)));
    assert_eq!(ours.read(&mut [0]).unwrap(), 0, "it is closed");

    let mut open = Vec::new();
    for (peer, answer) in [
        ("192.0.2.1:1", WELCOME),
        ("192.0.2.1:2", CLOSE),
        ("192.0.2.2:1", WELCOME),
    ] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        server.adopt(theirs, from(peer)).unwrap();
        ours.set_read_timeout(Some(LONG)).unwrap();
        ours.write_all(&hello()).unwrap();
        assert_eq!(first_id(&mut ours), Some(answer), "{peer}");
        open.push(ours);
    }
    let peers: Vec<_> = server.sessions().iter().map(|it| *it.peer()).collect();
    assert_eq!(peers, [from("192.0.2.1:1"), from("192.0.2.2:1")]);
    assert_eq!(
        server.monitor().refused_by_reason(),
        [(Refusal::Filtered, 1), (Refusal::AddressLimit, 1)]
    );
}

#[test]
fn a_server_at_its_end_adopts_nothing() {
    let server = echo_server(Settings::default(), loopback());
    let adopter = server.adopter();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    adopter.adopt(theirs, Peer::Unix).unwrap();
    let monitor = server.monitor();
    until("it came", || monitor.totals().arrivals == 1);
    server.shutdown(LONG);
    assert_eq!(first_id(&mut ours), Some(CLOSE));
    assert_eq!(monitor.totals().arrivals, 0);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let refused = adopter.adopt(theirs, Peer::Unix).unwrap_err();
    assert!(matches!(refused, AdoptError::Ended), "{refused}");
    assert_eq!(ours.read(&mut [0]).unwrap(), 0, "it is closed");
}

#[test]
fn the_options_of_the_servers_sockets_are_set_on_it() {
    let server = deaf(Settings::default());
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let _far = TcpStream::connect(front.local_addr().unwrap()).unwrap();
    let (stream, peer) = front.accept().unwrap();
    let ours = stream.try_clone().unwrap();
    assert!(!ours.nodelay().unwrap());
    server.adopt(stream, Peer::Tcp(peer)).unwrap();
    assert!(ours.nodelay().unwrap());
}

#[test]
fn a_server_that_stops_accepting_adopts_nothing_either() {
    let server = deaf(Settings::default());
    let adopter = server.adopter();
    server.stop_accepting();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let refused = adopter.adopt(ours, Peer::Unix).unwrap_err();
    assert!(matches!(refused, AdoptError::Ended), "{refused}");
}
