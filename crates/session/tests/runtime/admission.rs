//! Who gets in while others crowd the door.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use embar_session::{Address, Client, CloseReason, Refusal, Server, Settings};

use crate::hello::hello;
use crate::support::{
    Echo, LONG, alone, closed, echo_server, in_time, loopback, message, recorder, recording_server,
    until,
};

fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) | Address::Shm(_) => panic!("not TCP"),
    }
}

/// Connects from one of the addresses of the loopback interface.
pub fn connect_from(last: u8, server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0);
    bind(&socket, &SocketAddr::V4(from)).unwrap();
    connect(&socket, &tcp(&server.address())).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// The id of the first frame that comes, if one does before the end.
pub fn first_id(stream: &mut impl Read) -> Option<u16> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).ok()?;
    Some(u16::from_le_bytes([header[4], header[5]]))
}

pub const WELCOME: u16 = 0xFF01;
pub const CLOSE: u16 = 0xFF05;

fn refusals(server: &Server) -> Vec<(Refusal, u64)> {
    server.monitor().refused_by_reason()
}

/// Whether the other end closed the connection.
pub fn is_cut(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = (&*stream).read(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn silent_connections_take_no_places_and_keep_nobody_out() {
    let mut settings = Settings::default().with(|it| it.max_sessions = 2);
    settings.session.hello_timeout = 2 * LONG;
    settings.admission.max_arrivals = 8;
    let (server, seen) = recording_server(settings, loopback());
    let address = tcp(&server.address());
    let silent: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    until("all came", || refusals(&server) == [(Refusal::Crowded, 42)]);
    assert_eq!(server.stats().arrivals, 8);
    assert_eq!(server.stats().sessions, 0);
    assert!(seen.try_recv().is_err(), "nobody has a handler");
    let cut = silent.iter().filter(|stream| is_cut(stream)).count();
    assert_eq!(cut, 42);
    assert!(silent[..42].iter().all(is_cut), "the oldest go");

    let client = Client::new().unwrap();
    for _ in 0..2 {
        client.connect(server.address(), recorder().0).unwrap();
    }
    drop(silent);
    until("they left", || server.stats().arrivals == 0);
}

#[test]
fn who_has_many_makes_room_before_who_has_few() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = 2 * LONG;
    settings.admission.max_arrivals = 8;
    settings.admission.local_is_exempt = false;
    let server = echo_server(settings, loopback());
    let few: Vec<_> = (0..2).map(|_| connect_from(3, &server)).collect();
    until("the first", || server.stats().arrivals == 2);
    let many: Vec<_> = (0..40).map(|_| connect_from(2, &server)).collect();
    until("room was made", || {
        refusals(&server) == [(Refusal::Crowded, 34)]
    });
    assert!(many[..34].iter().all(is_cut), "the oldest of most");
    assert!(!few.iter().chain(&many[34..]).any(is_cut));

    // So who came before all of them still gets in.
    for mut stream in few {
        stream.write_all(&hello()).unwrap();
        assert_eq!(first_id(&mut stream), Some(WELCOME));
    }
}

#[test]
fn an_address_has_its_number_of_sessions_and_others_get_in() {
    let mut settings = Settings::default();
    settings.admission.max_sessions_per_address = 2;
    settings.admission.local_is_exempt = false;
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let (handler, first_seen) = recorder();
    let first = client.connect(server.address(), handler).unwrap();
    let (handler, seen) = recorder();
    let second = client.connect(server.address(), handler).unwrap();
    let why = client.connect(server.address(), recorder().0).unwrap_err();
    assert_eq!(why.reason, CloseReason::TooManySessions);
    assert!(why.text.contains("your address has 2"), "{why}");
    assert_eq!(refusals(&server), [(Refusal::AddressLimit, 1)]);

    let mut other = connect_from(2, &server);
    other.write_all(&hello()).unwrap();
    assert_eq!(first_id(&mut other), Some(WELCOME));

    first.close();
    closed(&first_seen);
    until("room again", || {
        client.connect(server.address(), recorder().0).is_ok()
    });
    second.send_with(1, 1, |buf| buf.fill(3)).unwrap();
    assert_eq!(message(&seen).1, [3]);
}

#[test]
fn peers_of_this_machine_count_each_by_itself_unless_told_otherwise() {
    let settings = Settings::default().with(|settings| {
        settings.admission.max_sessions_per_address = 1;
    });
    let directory = tempfile::tempdir().unwrap();
    for exempt in [true, false] {
        let mut settings = settings.clone();
        settings.admission.local_is_exempt = exempt;
        let path = directory.path().join(format!("{exempt}"));
        let server = echo_server(settings, Address::Unix(path));
        let client = Client::new().unwrap();
        let _first = client.connect(server.address(), recorder().0).unwrap();
        let second = client.connect(server.address(), recorder().0);
        assert_eq!(second.is_ok(), exempt);
    }
}

#[test]
fn the_accept_filter_decides_before_anything_is_made() {
    let (open, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let (is_open, count): (_, Arc<AtomicUsize>) = (Arc::clone(&open), Arc::clone(&asked));
    let server = Server::builder()
        .listen(loopback())
        .accept_if(move |peer| {
            assert!(peer.tcp().is_some_and(|it| it.ip().is_loopback()));
            // The first one finds out what a panic does.
            assert_ne!(count.fetch_add(1, Ordering::Relaxed), 0, "as asked");
            is_open.load(Ordering::Relaxed)
        })
        .start(|_| Echo)
        .unwrap();
    let client = Client::new().unwrap();
    for times in 1..=2 {
        assert!(client.connect(server.address(), recorder().0).is_err());
        assert_eq!(refusals(&server), [(Refusal::Filtered, times)]);
    }
    open.store(true, Ordering::Relaxed);
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 1, |buf| buf.fill(3)).unwrap();
    assert_eq!(message(&seen).1, [3]);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[test]
fn a_handler_is_made_once_hello_is_there() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let server = Server::builder()
        .listen(loopback())
        .start(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Echo
        })
        .unwrap();
    let hello = hello();
    let mut stream = connect_from(1, &server);
    stream.set_nodelay(true).unwrap();
    for byte in &hello[..hello.len() - 1] {
        stream.write_all(&[*byte]).unwrap();
    }
    until("it came", || server.stats().arrivals == 1);
    assert_eq!(made.load(Ordering::Relaxed), 0);
    assert_eq!(server.stats().sessions, 0);
    // The last byte, and a message behind it.
    stream.write_all(&hello[hello.len() - 1..]).unwrap();
    stream.write_all(&[1, 0, 0, 0, 7, 0, 0, 0, 9]).unwrap();
    assert_eq!(first_id(&mut stream), Some(WELCOME));
    assert_eq!(made.load(Ordering::Relaxed), 1);
    until("the message came", || server.stats().messages_received == 1);

    // Of another protocol: refused, and no handler is made for it.
    let mut other = hello.clone();
    let name = other.windows(5).position(|it| it == b"plain").unwrap();
    other[name] = b'P';
    let mut stranger = connect_from(1, &server);
    stranger.write_all(&other).unwrap();
    assert_eq!(first_id(&mut stranger), Some(CLOSE));
    assert_eq!(refusals(&server), [(Refusal::Protocol, 1)]);
    assert_eq!(made.load(Ordering::Relaxed), 1);
}

#[test]
fn a_server_that_stops_waits_for_nobody_who_has_not_greeted() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = 4 * LONG;
    settings.session.linger = 4 * LONG;
    let server = echo_server(settings, loopback());
    let mut polite = connect_from(1, &server);
    let _deaf = connect_from(1, &server);
    until("they came", || server.stats().arrivals == 2);
    let monitor = server.monitor();
    in_time("the shutdown", move || {
        let stopping = std::thread::spawn(move || server.shutdown(Duration::from_millis(100)));
        assert_eq!(first_id(&mut polite), Some(CLOSE));
        stopping.join().unwrap();
    });
    assert_eq!(monitor.refused_by_reason(), [(Refusal::Shutdown, 2)]);
    assert_eq!(monitor.totals().arrivals, 0);
}

/// Descriptors are the process's, so this has one of its own.
#[test]
fn silent_connections_give_up_the_descriptors_that_sessions_need() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    if !alone("admission::silent_connections_give_up_the_descriptors_that_sessions_need") {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(256);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut settings = Settings::default();
    settings.session.hello_timeout = 4 * LONG;
    let server = echo_server(settings, loopback());
    let silent: Vec<_> = (0..10).map(|_| connect_from(1, &server)).collect();
    until("they came", || server.stats().arrivals == 10);
    // It takes a descriptor to make it.
    let hello = hello();
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    // One for this end, and none for the server's, nor for its rings.
    taken.pop();
    let mut stream = connect_from(1, &server);
    stream.write_all(&hello).unwrap();
    assert_eq!(first_id(&mut stream), Some(WELCOME));
    let refused = refusals(&server);
    assert!(
        matches!(refused[..], [(Refusal::Crowded, 2..)]),
        "{refused:?}"
    );
    assert!(silent[..2].iter().all(is_cut), "the oldest");
    assert!(!is_cut(&silent[9]));
}
