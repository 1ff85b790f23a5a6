//! Readings of real connections.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use embar_readings::tcp::{TcpEnd, TcpReader};

/// Waits for a condition this long, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The two ends of a connection to `server`.
fn ends(reader: &mut TcpReader, server: SocketAddr) -> Option<(TcpEnd, TcpEnd)> {
    let all = reader
        .connections(|end| end.local == server || end.remote == server)
        .expect("the kernel answers");
    let client = all.iter().find(|end| end.remote == server)?.clone();
    let server = all.iter().find(|end| end.local == client.remote)?.clone();
    Some((client, server))
}

#[test]
fn a_receiver_that_reads_nothing_shows_at_both_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 20_000).expect("possible");
    let server = listener.local_addr().expect("its address");
    let mut sender = TcpStream::connect(server).expect("connects");
    let (_receiver, _) = listener.accept().expect("accepts");
    sender.set_nonblocking(true).expect("possible");
    let mut reader = TcpReader::open().expect("the kernel has sock_diag");
    let deadline = Instant::now() + LONG;
    loop {
        // Until the buffers are full, and the sender has waited for room.
        while sender.write(&[0; 4096]).is_ok() {}
        let (client, server) = ends(&mut reader, server).expect("both ends");
        assert_eq!(client.local, server.remote);
        assert_ne!(client.inode, server.inode);
        assert!(client.segment_bytes > 0 && client.send_buffer > 0);
        // The kernel grants twice what was asked for (socket(7)).
        assert_eq!(server.receive_buffer, 40_000);
        if client.window_limited_us > 50_000 && server.receive_queue > 0 {
            assert!(client.busy_us >= client.window_limited_us, "{client:?}");
            assert!(client.bytes_sent >= server.bytes_received);
            assert!(client.unsent_bytes > 0, "{client:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{client:?} {server:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_end_is_found_without_the_others_until_it_closes() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(any).expect("a machine with IPv6 on loopback");
        let server = listener.local_addr().expect("its address");
        let mut sender = TcpStream::connect(server).expect("connects");
        let (receiver, _) = listener.accept().expect("accepts");
        sender.write_all(&[0; 100]).expect("room");
        let mut reader = TcpReader::open().expect("the kernel has sock_diag");
        let listed = reader.connections_with(&BTreeSet::from([server]));
        let mut listed = listed.expect("the kernel answers");
        listed.sort_by_key(|end| end.remote == server);
        let [of_server, of_client] = &listed[..] else {
            panic!("{listed:?}");
        };
        for end in [of_client, of_server] {
            let again = reader.again(end).expect("the kernel answers");
            let again = again.expect("it is open");
            assert_eq!((again.local, again.inode), (end.local, end.inode));
        }
        let other = TcpEnd {
            cookie: [7; 8],
            ..of_client.clone()
        };
        let mut is_gone = |end| reader.again(end).expect("the kernel answers").is_none();
        assert!(is_gone(&other), "it had the same addresses at another time");
        drop((sender, receiver));
        // Whoever listens at the same address is not named for it.
        assert!(is_gone(of_client) && is_gone(of_server));
    }
}

#[test]
fn connections_of_ipv6_and_of_none_are_read() {
    let mut reader = TcpReader::open().expect("the kernel has sock_diag");
    assert!(reader.connections(|_| false).expect("an answer").is_empty());
    let listener = TcpListener::bind("[::1]:0").expect("a machine with IPv6 on loopback");
    let server = listener.local_addr().expect("its address");
    let _sender = TcpStream::connect(server).expect("connects");
    assert!(ends(&mut reader, server).is_some());
}
