//! Sessions whose bytes and datagrams somebody else carries: here the test itself, through sockets and by hand.

use std::future::poll_fn;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_session::{
    AdoptError, Beyond, Client, CloseReason, Closed, Datagram, DatagramError, DatagramLink,
    DatagramOrder, Flow, Handler, Message, Peer, Plain, Rate, Rates, Server, Session, Settings,
    Side,
};

use crate::streams::block_on;
use crate::support::{Event, LONG, Recorder, closed, loopback, message, recorder, until};

/// Id, number, and payload.
type Seen = (u16, u64, Vec<u8>);

/// Tells of datagrams, and of a message that it leaves for later.
struct Player {
    datagrams: Sender<Seen>,
    pauses: bool,
}

impl Handler for Player {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        if !self.pauses {
            return Flow::Continue;
        }
        let _ = self.datagrams.send((message.id(), u64::MAX, Vec::new()));
        Flow::Pause
    }

    fn datagram(&mut self, _: &Session, datagram: Datagram<'_>) {
        let payload = datagram.payload().to_vec();
        let seen = (datagram.id(), datagram.sequence(), payload);
        let _ = self.datagrams.send(seen);
    }
}

fn peer() -> Peer {
    match loopback() {
        embar_session::Address::Tcp(address) => Peer::Quic(address),
        _ => unreachable!("it is one of TCP"),
    }
}

/// Two ends that share a socket pair; the test carries their datagrams.
struct Carried {
    server: Server,
    /// Of the server's end, and of the client's.
    links: [DatagramLink; 2],
    session: Session,
    seen: Receiver<Seen>,
    _client: Client,
}

impl Carried {
    fn new(settings: Settings, pauses: bool) -> Self {
        // However slow the test's machine is.
        let settings = settings.with(|settings| settings.datagrams.max_wait = LONG);
        let (datagrams, seen) = channel();
        let datagrams = Mutex::new(datagrams);
        let player = move || Player {
            datagrams: datagrams.lock().unwrap().clone(),
            pauses,
        };
        Self::with(settings, seen, player)
    }

    /// Of which the server's end is handled by what `make` makes.
    fn with<H: Handler>(
        settings: Settings,
        seen: Receiver<Seen>,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Self {
        let server = Server::builder().settings(settings.clone());
        let server = server.start(move |_| make()).unwrap();
        let client = Client::with(Plain, settings).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let links = [DatagramLink::new(), DatagramLink::new()];
        for link in &links {
            link.set_max_bytes(Some(100));
        }
        server
            .adopter()
            .adopt_carried(far, peer(), &links[0])
            .unwrap();
        let connecting = client.open_carried(near, peer(), &links[1], &[], recorder().0);
        let session = connecting.wait().unwrap();
        assert!(block_on(poll_fn(|cx| links[0].poll_open(cx))));
        Self {
            server,
            links,
            session,
            seen,
            _client: client,
        }
    }

    /// What the client's end has to send.
    fn outgoing(&self) -> Vec<Vec<u8>> {
        let mut cx = Context::from_waker(Waker::noop());
        let next = || match self.links[1].poll_next(&mut cx) {
            Poll::Ready(datagram) => datagram,
            Poll::Pending => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn send(&self, id: u16, text: &str) {
        let fill = |to: &mut [u8]| to.copy_from_slice(text.as_bytes());
        self.session
            .send_datagram_with(id, text.len(), fill)
            .unwrap();
    }
}

#[test]
fn they_open_as_others_do_and_have_the_peers_address() {
    let carried = Carried::new(Settings::default(), false);
    assert_eq!(carried.session.peer(), &peer());
    assert_eq!(carried.server.sessions()[0].peer(), &peer());
    assert_eq!(carried.session.max_datagram_bytes(), Some(92));
}

#[test]
fn a_datagram_is_its_id_its_number_and_its_payload() {
    let carried = Carried::new(Settings::default(), false);
    carried.send(0x0102, "a");
    carried.send(3, "b");
    let outgoing = carried.outgoing();
    assert_eq!(
        outgoing,
        [b"\x02\x01\0\0\0\0\0\0a", b"\x03\0\x01\0\0\0\0\0b"]
    );
    // In another order, and one of them twice.
    for at in [1, 0, 1] {
        carried.links[0].deliver(&outgoing[at]);
    }
    let seen = || carried.seen.recv_timeout(LONG).unwrap();
    assert_eq!(seen(), (3, 1, b"b".to_vec()));
    assert_eq!(seen(), (0x0102, 0, b"a".to_vec()));
    let stats = carried.server.sessions()[0].datagram_stats().unwrap();
    assert_eq!((stats.received, stats.dropped), (2, 1));
}

#[test]
fn datagrams_count_in_the_rates() {
    let once = Some(Rate {
        per_second: 1,
        burst: 2,
    });
    let rates =
        |beyond| Rates::default().with(|it| (it.session_messages, it.beyond) = (once, beyond));
    let delayed = Settings::default().with(|it| it.rates = rates(Beyond::Delay));
    let carried = Carried::new(delayed, false);
    for text in ["a", "b", "c"] {
        carried.send(3, text);
    }
    let began = Instant::now();
    for datagram in carried.outgoing() {
        carried.links[0].deliver(&datagram);
    }
    for number in 0..3 {
        let (_, seen, _) = carried.seen.recv_timeout(LONG).unwrap();
        assert_eq!(seen, number);
    }
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "the last waits"
    );
    let closes = Settings::default().with(|it| it.rates = rates(Beyond::Close));
    let carried = Carried::new(closes, false);
    until("the end", || {
        let _ = carried.session.send_datagram_with(3, 1, |to| to.fill(1));
        for datagram in carried.outgoing() {
            carried.links[0].deliver(&datagram);
        }
        carried.session.closed().is_some()
    });
    let why = carried.session.closed().unwrap();
    assert_eq!(why.reason, CloseReason::RateLimited);
}

/// Tells of datagrams, after it was held up by the first.
struct HeldUp {
    inner: Player,
    gate: Option<Receiver<()>>,
}

impl Handler for HeldUp {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn datagram(&mut self, session: &Session, datagram: Datagram<'_>) {
        self.inner.datagram(session, datagram);
        if let Some(gate) = self.gate.take() {
            let _ = gate.recv_timeout(LONG);
        }
    }
}

/// However many wait: what is beyond the rate comes later.
#[test]
fn datagrams_come_no_faster_than_bytes_may() {
    const EACH: u64 = 92 + 8;
    let (per_second, burst) = (500, 300);
    let settings = Settings::default().with(|settings| {
        settings.rates.session_bytes = Some(Rate { per_second, burst });
        settings.datagrams.max_wait = LONG;
    });
    let (datagrams, seen) = channel();
    let (open, gate) = channel();
    let made = Mutex::new(Some((datagrams, gate)));
    let carried = Carried::with(settings, seen, move || {
        let (datagrams, gate) = made.lock().unwrap().take().unwrap();
        let pauses = false;
        HeldUp {
            inner: Player { datagrams, pauses },
            gate: Some(gate),
        }
    });
    for _ in 0..10 {
        carried.send(3, &"x".repeat(92));
    }
    let began = Instant::now();
    let mut outgoing = carried.outgoing().into_iter();
    carried.links[0].deliver(&outgoing.next().unwrap());
    assert_eq!(carried.seen.recv_timeout(LONG).unwrap().1, 0);
    for datagram in outgoing {
        carried.links[0].deliver(&datagram);
    }
    drop(open);
    for number in 1..10 {
        assert_eq!(carried.seen.recv_timeout(LONG).unwrap().1, number);
        // All but the last were paid for before it came.
        let paid = burst + began.elapsed().as_millis() as u64 * per_second / 1000;
        assert!(
            number * EACH <= paid,
            "{number} of {EACH} bytes, {paid} may come"
        );
    }
}

#[test]
fn who_wants_late_ones_gets_them() {
    let settings = Settings::default().with(|settings| {
        settings.datagrams.order = DatagramOrder::Arrival;
    });
    let carried = Carried::new(settings, false);
    carried.send(1, "old");
    carried.send(1, "new");
    for datagram in carried.outgoing().iter().rev() {
        carried.links[0].deliver(datagram);
    }
    let numbers = [(); 2].map(|()| carried.seen.recv_timeout(LONG).unwrap().1);
    assert_eq!(numbers, [1, 0]);
}

#[test]
fn the_carrier_gets_the_newest_when_it_is_slow() {
    let carried = Carried::new(Settings::default(), false);
    for _ in 0..20 {
        carried.send(1, "x");
    }
    let outgoing = carried.outgoing();
    let first = u64::from_le_bytes(*outgoing[0].first_chunk().unwrap()) >> 16;
    assert_eq!((outgoing.len(), first), (16, 4));
    let stats = carried.session.datagram_stats().unwrap();
    assert_eq!((stats.sent, stats.unsent), (16, 4));
}

/// Messages and datagrams do not wait for each other.
#[test]
fn datagrams_come_while_a_message_waits() {
    let carried = Carried::new(Settings::default(), true);
    carried.session.send_with(1, 1, |_| ()).unwrap();
    let waiting = carried.seen.recv_timeout(LONG).unwrap();
    assert_eq!(waiting, (1, u64::MAX, Vec::new()));
    carried.send(2, "still");
    for datagram in carried.outgoing() {
        carried.links[0].deliver(&datagram);
    }
    assert_eq!(carried.seen.recv_timeout(LONG).unwrap().0, 2);
}

#[test]
fn the_limit_of_the_path_is_the_limit_of_a_datagram() {
    let carried = Carried::new(Settings::default(), false);
    let send = |len| carried.session.send_datagram_with(1, len, |_| ());
    assert_eq!(send(92), Ok(()));
    let error = send(93).unwrap_err();
    assert_eq!(error, DatagramError::TooLong { bytes: 93, max: 92 });
    carried.links[1].set_max_bytes(None);
    assert_eq!(send(1), Err(DatagramError::Unsupported));
}

#[test]
fn the_carrier_says_why_the_connection_is_lost() {
    let server = Server::builder().start(|_| Player {
        datagrams: channel().0,
        pauses: false,
    });
    let _server = server.unwrap();
    let client = Client::new().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let link = DatagramLink::new();
    let (handler, seen) = recorder();
    let connecting = client.open_carried(near, peer(), &link, &[], handler);
    let why = Closed {
        by: Side::Local,
        reason: CloseReason::Certificate,
        code: 0,
        text: "nobody knows it".to_owned(),
    };
    link.lost(why.clone());
    drop(far);
    assert_eq!(connecting.wait().unwrap_err(), why);
    assert_eq!(closed(&seen), why);
    block_on(poll_fn(|cx| link.poll_over(cx)));
}

/// What the peer says comes before what the carrier thinks.
#[test]
fn a_close_of_the_peer_counts_more() {
    let carried = Carried::new(Settings::default(), false);
    carried.links[1].lost(Closed {
        by: Side::Local,
        reason: CloseReason::Idle,
        code: 0,
        text: String::new(),
    });
    carried.server.sessions()[0].close();
    block_on(poll_fn(|cx| carried.links[1].poll_over(cx)));
    until("it is over", || carried.session.closed().is_some());
    let why = carried.session.closed().unwrap();
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
}

#[test]
fn the_carrier_of_a_session_that_never_is_hears_of_it() {
    let settings = Settings::default().with(|settings| settings.max_sessions = 1);
    let client = Client::with(Plain, settings).unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    let first = DatagramLink::new();
    let _first = client.open_carried(near, peer(), &first, &[], recorder().0);
    let (near, _other_far) = UnixStream::pair().unwrap();
    let second = DatagramLink::new();
    let error = client.open_carried(near, peer(), &second, &[], recorder().0);
    assert_eq!(
        error.wait().unwrap_err().reason,
        CloseReason::TooManySessions
    );
    block_on(poll_fn(|cx| second.poll_over(cx)));

    // The same where a peer closes before it has greeted.
    let server = Server::builder().start(|_| Recorder(channel().0)).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let third = DatagramLink::new();
    server.adopter().adopt_carried(far, peer(), &third).unwrap();
    drop(near);
    assert!(!block_on(poll_fn(|cx| third.poll_open(cx))));
}

#[test]
fn a_server_that_has_ended_adopts_nothing() {
    let (handler, _seen) = recorder();
    let handler = std::sync::Mutex::new(Some(handler));
    let server = Server::builder().start(move |_| handler.lock().unwrap().take().unwrap());
    let server = server.unwrap();
    let adopter = server.adopter();
    server.shutdown(LONG);
    let (_near, far) = UnixStream::pair().unwrap();
    let link = DatagramLink::new();
    let adopted = adopter.adopt_carried(far, peer(), &link);
    assert!(matches!(adopted, Err(AdoptError::Ended)));
    block_on(poll_fn(|cx| link.poll_over(cx)));
}

/// Messages pass as ever.
#[test]
fn messages_pass_both_ways() {
    let server = Server::builder().start(|_| crate::support::Echo).unwrap();
    let client = Client::new().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let links = [DatagramLink::new(), DatagramLink::new()];
    server
        .adopter()
        .adopt_carried(far, peer(), &links[0])
        .unwrap();
    let (handler, seen) = recorder();
    let connecting = client.open_carried(near, peer(), &links[1], b"hello", handler);
    let session = connecting.wait().unwrap();
    assert!(matches!(seen.recv_timeout(LONG), Ok(Event::Opened(..))));
    session.send_with(7, 3, |to| to.fill(9)).unwrap();
    assert_eq!(message(&seen), (7, vec![9; 3]));
}
