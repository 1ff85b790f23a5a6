//! What happens between the ends: loss, other addresses, silence, a server that is killed.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embar_quic::Listener;
use embar_session::rustls::pki_types::CertificateDer;
use embar_session::rustls::{ClientConfig, RootCertStore};
use embar_session::{CloseReason, Peer, Server, Settings, Side, TlsTarget};

use crate::support::{
    Authority, Both, Caller, Echo, Event, LONG, closed, datagram_through, loopback, message,
    opened, recorder, until,
};

/// Carries packets between a client and a server.
struct Relay {
    address: SocketAddr,
    way: Arc<Way>,
}

struct Way {
    near: UdpSocket,
    client: Mutex<Option<SocketAddr>>,
    server: SocketAddr,
    /// What the server sees as the client.
    far: Mutex<Arc<UdpSocket>>,
    /// Every so many packets one is lost; 0: none.
    lose_every: AtomicUsize,
    carried: AtomicUsize,
    lost: AtomicUsize,
    is_over: AtomicBool,
}

impl Way {
    fn loses(&self) -> bool {
        let number = self.carried.fetch_add(1, Ordering::Relaxed);
        let every = self.lose_every.load(Ordering::Relaxed);
        let loses = every > 0 && number.is_multiple_of(every);
        self.lost.fetch_add(usize::from(loses), Ordering::Relaxed);
        loses
    }

    /// Hands on what comes by `from` until nobody wants it.
    fn carry(&self, from: &UdpSocket, hand_on: impl Fn(&[u8], SocketAddr)) {
        let mut packet = vec![0; 65_536];
        while !self.is_over.load(Ordering::Relaxed) {
            match from.recv_from(&mut packet) {
                Ok((len, origin)) if !self.loses() => hand_on(&packet[..len], origin),
                _ => {}
            }
        }
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    socket
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let near = socket();
        let address = near.local_addr().unwrap();
        let way = Arc::new(Way {
            near,
            client: Mutex::default(),
            server,
            far: Mutex::new(Arc::new(socket())),
            lose_every: AtomicUsize::new(0),
            carried: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let there = Arc::clone(&way);
        std::thread::spawn(move || {
            there.carry(&there.near, |packet, origin| {
                *there.client.lock().unwrap() = Some(origin);
                let far = Arc::clone(&there.far.lock().unwrap());
                let _ = far.send_to(packet, there.server);
            });
        });
        let relay = Self { address, way };
        relay.carry_back();
        relay
    }

    fn carry_back(&self) {
        let back = Arc::clone(&self.way);
        let far = Arc::clone(&back.far.lock().unwrap());
        std::thread::spawn(move || {
            back.carry(&far, |packet, _| {
                if let Some(client) = *back.client.lock().unwrap() {
                    let _ = back.near.send_to(packet, client);
                }
            });
        });
    }

    /// From now on the client comes from another port, as behind a router that has forgotten it.
    fn come_from_elsewhere(&self) {
        *self.way.far.lock().unwrap() = Arc::new(socket());
        self.carry_back();
    }

    fn lose_every(&self, packets: usize) {
        self.way.lose_every.store(packets, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn messages_arrive_and_datagrams_go_on_where_packets_are_lost() {
    let both = Both::start(Settings::default(), || Echo);
    let relay = Relay::to(both.listener.address());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let target = both.authority.target();
    let session = caller.connect_at(relay.address, &target, handler).unwrap();
    relay.lose_every(7);
    for number in 0..200u16 {
        session.send_with(number, 1000, |buf| buf.fill(1)).unwrap();
        assert_eq!(message(&seen).0, number);
    }
    for _ in 0..20 {
        datagram_through(&session, &seen, b"state");
    }
    assert!(relay.way.lost.load(Ordering::Relaxed) > 10);
}

/// Where the path takes nothing, the queue stays short, the newest stay in it, and the sender goes on.
#[test]
fn older_datagrams_make_room_while_the_path_takes_none() {
    // The path may take long to notice that it takes something again.
    newest_wait(LONG);
}

#[test]
fn datagrams_that_may_wait_for_ever_do() {
    newest_wait(Duration::ZERO);
}

fn newest_wait(max_wait: Duration) {
    let (both, at_server) = Both::recording(Settings::default());
    let relay = Relay::to(both.listener.address());
    let patient = Settings::default().with(|settings| settings.datagrams.max_wait = max_wait);
    let caller = Caller::new(patient);
    let target = both.authority.target();
    let session = caller
        .connect_at(relay.address, &target, recorder().0)
        .unwrap();
    datagram_through(&session, &at_server, b"there");
    relay.lose_every(1);
    let unsent = || session.datagram_stats().unwrap().unsent;
    let mut last = 0u32;
    while unsent() < 50 {
        last += 1;
        let fill = |to: &mut [u8]| to[..4].copy_from_slice(&last.to_le_bytes());
        session.send_datagram_with(6, 1000, fill).unwrap();
        std::thread::yield_now();
    }
    relay.lose_every(0);
    // Some of the last are lost with those before them, or not.
    until("one of the newest arrives", || {
        while let Ok(event) = at_server.try_recv() {
            if let Event::Datagram(6, _, state) = event {
                let number = u32::from_le_bytes(*state.first_chunk().unwrap());
                return number + 16 > last;
            }
        }
        false
    });
}

/// The server's session keeps the address it came from, whatever becomes of the path.
#[test]
fn a_session_goes_on_when_its_path_changes() {
    let (both, at_server) = Both::recording(Settings::default());
    let relay = Relay::to(both.listener.address());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let target = both.authority.target();
    let session = caller.connect_at(relay.address, &target, handler).unwrap();
    let other = opened(&at_server);
    let came_from = *other.peer();
    let first = relay.way.far.lock().unwrap().local_addr().unwrap();
    assert_eq!(came_from, Peer::Quic(first));
    let say = |number: u16| {
        session.send_with(number, 1, |_| ()).unwrap();
        assert_eq!(message(&at_server).0, number);
    };
    say(1);
    // A router on the way.
    relay.come_from_elsewhere();
    say(2);
    // The client's machine.
    caller.connector.rebind().unwrap();
    say(3);
    assert_eq!(*other.peer(), came_from);
    datagram_through(&other, &seen, b"also back");
}

#[test]
fn silence_is_the_end_at_both_ends() {
    let mut settings = Settings::default();
    settings.session.idle_timeout = Duration::from_secs(1);
    let (both, at_server) = Both::recording(settings.clone());
    let relay = Relay::to(both.listener.address());
    let caller = Caller::new(settings);
    let (handler, seen) = recorder();
    let target = both.authority.target();
    caller.connect_at(relay.address, &target, handler).unwrap();
    opened(&at_server);
    relay.lose_every(1);
    for seen in [seen, at_server] {
        let end = closed(&seen);
        assert_eq!((end.by, end.reason), (Side::Local, CloseReason::Idle));
    }
}

/// Some silence is none: the path is kept alive beside a session that says nothing and reads nothing.
#[test]
fn a_quiet_session_stays() {
    let mut settings = Settings::default();
    // A machine that stands still for a second or two is no silence.
    settings.session.idle_timeout = Duration::from_secs(6);
    let (both, at_server) = Both::recording(settings.clone());
    let caller = Caller::new(settings);
    let (handler, _seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    std::thread::sleep(Duration::from_secs(10));
    session.send_with(1, 0, |_| ()).unwrap();
    assert_eq!(message(&at_server).0, 1);
}

const SECRET: [u8; 32] = [7; 32];
const ROOT: &str = "EMBAR_TEST_QUIC_ROOT";

/// Not a test by itself: the server that the others kill.
#[test]
fn server_to_be_killed() {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let authority = Authority::new();
    std::fs::write(root, authority.root()).unwrap();
    let server = Server::builder().start(|_| Echo).unwrap();
    let listener = Listener::builder(loopback(), authority.server()).reset_secret(SECRET);
    let listener = listener.start(&server).unwrap();
    writeln!(std::io::stdout(), "\nat {}", listener.address()).unwrap();
    // Until it is killed, or its parent is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process of its own, and how to reach it.
fn server_process() -> (Child, SocketAddr, TlsTarget) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.der");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["network::server_to_be_killed", "--exact", "--nocapture"])
        .env(ROOT, &root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("at ")?.parse().ok())
        .expect("it says where it is");
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from(std::fs::read(root).unwrap());
    roots.add(root).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let target = TlsTarget::new(Arc::new(config), "localhost").unwrap();
    (child, address, target)
}

#[test]
fn a_server_that_is_killed_is_silence() {
    let (mut child, address, target) = server_process();
    let mut settings = Settings::default();
    settings.session.idle_timeout = Duration::from_secs(2);
    let caller = Caller::new(settings);
    let (handler, seen) = recorder();
    let session = caller.connect_at(address, &target, handler).unwrap();
    datagram_through(&session, &seen, b"there");
    child.kill().unwrap();
    child.wait().unwrap();
    let end = closed(&seen);
    assert_eq!((end.by, end.reason), (Side::Local, CloseReason::Idle));
}

/// With the same secret, the next one at its place says that it knows nothing of the session.
#[test]
fn the_next_server_at_the_address_of_one_that_was_killed_says_so() {
    let (mut child, address, target) = server_process();
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect_at(address, &target, handler).unwrap();
    datagram_through(&session, &seen, b"there");
    child.kill().unwrap();
    child.wait().unwrap();
    let authority = Authority::new();
    let server = Server::builder().start(|_| Echo).unwrap();
    let listener = Listener::builder(address, authority.server()).reset_secret(SECRET);
    let _listener = listener.start(&server).unwrap();
    until("the session is over", || {
        let _ = session.send_datagram_with(5, 100, |_| ());
        session.closed().is_some()
    });
    let end = closed(&seen);
    let reset = CloseReason::Io(ErrorKind::ConnectionReset);
    assert_eq!((end.by, end.reason), (Side::Network, reset), "{end}");
}
