//! What a server says to an address of which it does not know whether somebody is there: whoever sends in another's name is
//! not to have much more sent to that one.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use embar_session::{Refusal, Settings};

use crate::support::{Authority, Both, Caller, Echo, LONG, loopback, message, recorder, until};

/// What RFC 9000, 8.1 allows.
const TIMES: usize = 3;
/// Before it knows what a path takes, the server sends no longer ones. The last one may go beyond the limit: quinn begins one where
/// anything of the limit is left.
const DATAGRAM_BYTES: usize = 1200;

/// A path between one client and a server, which passes on what a test has it pass on.
struct Path {
    near: UdpSocket,
    far: UdpSocket,
    client: Option<SocketAddr>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

impl Path {
    fn to(server: SocketAddr) -> Self {
        let far = socket();
        far.connect(server).unwrap();
        Self {
            near: socket(),
            far,
            client: None,
        }
    }

    /// Where the client is to connect.
    fn address(&self) -> SocketAddr {
        self.near.local_addr().unwrap()
    }

    /// The client's next datagram.
    fn client_says(&mut self) -> Vec<u8> {
        let mut datagram = vec![0; 65_536];
        let (len, client) = self.near.recv_from(&mut datagram).unwrap();
        self.client = Some(client);
        datagram.truncate(len);
        datagram
    }

    fn tell_server(&self, datagram: &[u8]) {
        self.far.send(datagram).unwrap();
    }

    /// The server's next datagram.
    fn server_says(&self) -> Vec<u8> {
        let mut datagram = vec![0; 65_536];
        let len = self.far.recv(&mut datagram).unwrap();
        datagram.truncate(len);
        datagram
    }

    fn tell_client(&self, datagram: &[u8]) {
        self.near.send_to(datagram, self.client.unwrap()).unwrap();
    }

    /// From now on passes on whatever comes until it is over.
    fn open(&mut self, mut is_over: impl FnMut() -> bool) {
        for socket in [&self.near, &self.far] {
            socket
                .set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
        }
        let mut datagram = vec![0; 65_536];
        until("it is over", || {
            if let Ok((len, client)) = self.near.recv_from(&mut datagram) {
                self.client = Some(client);
                self.tell_server(&datagram[..len]);
            }
            if let Ok(len) = self.far.recv(&mut datagram) {
                self.tell_client(&datagram[..len]);
            }
            is_over()
        });
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    Retry,
    Other,
}

/// What a datagram begins with: the form of its header, and its type (RFC 9000, 17.2). No protection hides either.
fn kind(datagram: &[u8]) -> Kind {
    match datagram[0] & 0b1011_0000 {
        0b1000_0000 => Kind::Initial,
        0b1011_0000 => Kind::Retry,
        _ => Kind::Other,
    }
}

/// The client asks again and again, the server answers as far as it may, and nobody hears it.
#[test]
fn no_datagram_begins_beyond_three_times_what_came_from_where_nobody_answers() {
    // So that what the server has to say is longer than that.
    let names: Vec<_> = (0..500).map(|nth| format!("game-{nth}.example")).collect();
    let said: usize = names.iter().map(String::len).sum();
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_secs(2);
    let authority = Authority::new();
    let certificates = authority.server_of(names);
    let both = Both::with(authority, certificates, settings, || Echo);
    let mut path = Path::to(both.listener.address());
    let caller = Caller::new(Settings::default());
    let target = both.authority.target();
    let connecting = caller
        .connector
        .open(&caller.client, path.address(), &target, &[], recorder().0)
        .unwrap();
    let (mut came, mut sent) = (0, 0);
    let first = path.client_says();
    assert!(said > 2 * TIMES * first.len());
    for socket in [&path.near, &path.far] {
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
    }
    came += first.len();
    path.tell_server(&first);
    let refused = || both.server.monitor().refused_by_reason();
    let mut datagram = vec![0; 65_536];
    until("the server gives it up", || {
        if let Ok((len, _)) = path.near.recv_from(&mut datagram) {
            came += len;
            path.tell_server(&datagram[..len]);
        }
        while let Ok(len) = path.far.recv(&mut datagram) {
            sent += len;
            let most = TIMES * came + DATAGRAM_BYTES;
            assert!(sent < most, "{sent} bytes for {came}");
        }
        refused() == [(Refusal::HelloTimeout, 1)]
    });
    assert!(sent > came, "{sent} bytes for {came}: it had more to say");
    drop(connecting);
}

#[test]
fn a_newcomer_shows_that_its_address_is_its_own_once_a_quarter_of_the_handshakes_are_in_use() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = 2 * LONG;
    settings.admission.max_handshakes = 8;
    let both = Both::start(settings.clone(), || Echo);
    let at = both.listener.address();
    let target = both.authority.target();
    let caller = Caller::new(settings);
    let begin = |path: &Path| {
        let (handler, seen) = recorder();
        let connector = &caller.connector;
        let opening = connector.open(&caller.client, path.address(), &target, &[], handler);
        (opening.unwrap(), seen)
    };
    // Two of eight, of whom nobody hears anything: they are answered at once.
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let mut path = Path::to(at);
        let connecting = begin(&path);
        let first = path.client_says();
        path.tell_server(&first);
        assert_eq!(kind(&path.server_says()), Kind::Initial);
        stuck.push((path, connecting));
    }
    let mut path = Path::to(at);
    let (connecting, seen) = begin(&path);
    let first = path.client_says();
    let mut retry = Vec::new();
    // However often it asks, nothing else is done for it.
    for _ in 0..3 {
        path.tell_server(&first);
        retry = path.server_says();
        assert_eq!(kind(&retry), Kind::Retry);
        assert!(retry.len() < first.len());
    }
    path.tell_client(&retry);
    let with_token = loop {
        let next = path.client_says();
        // Not the first one again, which it may have sent before it heard that.
        if next[6..6 + 8] != first[6..6 + 8] {
            break next;
        }
    };
    assert_eq!(kind(&with_token), Kind::Initial);
    // The token is for the address that it was sent to.
    let thief = Path::to(at);
    thief.tell_server(&with_token);
    assert!(thief.server_says().len() < with_token.len(), "no handshake");
    path.tell_server(&with_token);
    let answer = path.server_says();
    assert_eq!(kind(&answer), Kind::Initial);
    path.tell_client(&answer);
    let opened = std::thread::spawn(move || connecting.wait());
    path.open(|| opened.is_finished());
    let session = opened.join().unwrap().unwrap();
    session.send_with(7, 1, |_| ()).unwrap();
    let echoed = std::thread::spawn(move || message(&seen).0);
    path.open(|| echoed.is_finished());
    assert_eq!(echoed.join().unwrap(), 7);
}
