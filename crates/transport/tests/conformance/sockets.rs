use std::io::{ErrorKind, Read, Write};

use embar_transport::socket::{self, SocketOptions};
use embar_transport::{Address, Peer, Reactor, SendBuf};

use crate::Kind;
use crate::driver::{driver, room};

pub fn a_socket_file_is_listened_on_connected_to_and_removed<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address = Address::Unix(path.clone());
    let mut driver = driver::<K>();
    let listener = socket::listen(&address, &SocketOptions::default()).unwrap();
    let listener = driver.reactor.listen(listener).unwrap();
    let client = driver.reactor.connect(&address).unwrap();
    driver
        .reactor
        .send(client, SendBuf::heap(b"early".to_vec()));
    driver.connected(client).unwrap();
    driver.sent(client).1.unwrap();
    let stream = driver.accepted(listener);
    assert_eq!(stream.peer().unwrap(), Peer::Unix);
    let server = driver.reactor.add(stream).unwrap();
    assert_eq!(driver.receive_exactly(server, 5), b"early");

    let patience = std::time::Duration::from_secs(60);
    let mut blocking = socket::connect(&address, patience, &SocketOptions::default()).unwrap();
    let stream = driver.accepted(listener);
    let served = driver.reactor.add(stream).unwrap();
    blocking.write_all(b"ping").unwrap();
    assert_eq!(driver.receive_exactly(served, 4), b"ping");
    driver.send_all(served, SendBuf::heap(b"pong".to_vec()));
    let mut answer = [0; 4];
    blocking.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");

    driver.reactor.close(listener);
    assert!(!path.exists(), "the file goes with its listener");
}

pub fn a_connect_to_a_missing_socket_file_tells_so<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let mut driver = driver::<K>();
    let path = directory.path().join("missing");
    let token = driver.reactor.connect(path).unwrap();
    driver.reactor.recv(token, room(5));
    let error = driver.connected(token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    driver.received(token).1.unwrap_err();
    assert_eq!(driver.reactor.outstanding(), 0);
}
