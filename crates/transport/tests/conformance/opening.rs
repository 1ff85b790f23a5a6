use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use embar_transport::{Reactor, SendBuf};

use crate::Kind;
use crate::driver::{driver, local_listener, room};

pub fn a_listener_accepts_and_another_reactor_may_serve<K: Kind>() {
    let mut acceptor = driver::<K>();
    let mut server = driver::<K>();
    let listener = local_listener();
    let address = listener.local_addr().unwrap();
    let listener = acceptor.reactor.listen(listener).unwrap();
    acceptor.nothing_happens();
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    let stream = acceptor.accepted(listener);
    let token = server.reactor.add(stream).unwrap();
    assert_eq!(server.receive_exactly(token, 4), b"ping");
    server.send_all(token, SendBuf::heap(b"pong".to_vec()));
    assert_eq!(&client.join().unwrap(), b"pong");
    assert_eq!(acceptor.reactor.counters().accepted, 1);
}

pub fn peers_that_came_before_the_listener_was_added_are_accepted<K: Kind>() {
    // More than a reactor may accept in one go.
    const PEERS: usize = 100;
    let mut driver = driver::<K>();
    let listener = local_listener();
    let address = listener.local_addr().unwrap();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let listener = driver.reactor.listen(listener).unwrap();
    let accepted: Vec<_> = peers.iter().map(|_| driver.accepted(listener)).collect();
    for (peer, stream) in peers.iter().zip(&accepted) {
        assert_eq!(
            Some(peer.local_addr().unwrap()),
            stream.peer().unwrap().tcp()
        );
    }
    driver.nothing_happens();
}

pub fn a_closed_listener_accepts_no_more<K: Kind>() {
    let mut driver = driver::<K>();
    let listener = local_listener();
    let address = listener.local_addr().unwrap();
    let token = driver.reactor.listen(listener).unwrap();
    let _waiting = TcpStream::connect(address).unwrap();
    driver.reactor.close(token);
    driver.nothing_happens();
    let error = TcpStream::connect(address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

pub fn a_connect_completes_and_carries_early_buffers<K: Kind>() {
    let mut driver = driver::<K>();
    let listener = local_listener();
    let token = driver
        .reactor
        .connect(listener.local_addr().unwrap())
        .unwrap();
    driver.reactor.send(token, SendBuf::heap(b"early".to_vec()));
    driver.reactor.recv(token, room(5));
    let (mut peer, _) = listener.accept().unwrap();
    driver.connected(token).unwrap();
    driver.sent(token).1.unwrap();
    let mut bytes = [0; 5];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"early");
    peer.write_all(b"bytes").unwrap();
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 5);
    buf.with_filled(0..5, |bytes| assert_eq!(bytes, b"bytes"));
}

pub fn a_refused_connect_tells_so_and_gives_buffers_back<K: Kind>() {
    let mut driver = driver::<K>();
    let address = local_listener().local_addr().unwrap();
    let token = driver.reactor.connect(address).unwrap();
    driver.reactor.send(token, SendBuf::heap(b"early".to_vec()));
    driver.reactor.recv(token, room(5));
    let error = driver.connected(token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    driver.sent(token).1.unwrap_err();
    driver.received(token).1.unwrap_err();
    assert_eq!(driver.reactor.outstanding(), 0);

    driver.reactor.recv(token, room(5));
    let stale = driver.received(token).1.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::NotConnected);
}

pub fn a_connect_can_be_given_up<K: Kind>() {
    let mut driver = driver::<K>();
    let listener = local_listener();
    let token = driver
        .reactor
        .connect(listener.local_addr().unwrap())
        .unwrap();
    driver.reactor.recv(token, room(5));
    driver.reactor.close(token);
    let error = driver.received(token).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    driver.nothing_happens();
}
