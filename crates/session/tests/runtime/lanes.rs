//! Bodies in lanes, on real sockets.

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use embar_memory::Buffer;
use embar_session::buffer::Mapped;
use embar_session::{
    Address, BodyStore, BodyTarget, BodyTicket, Client, CloseReason, Closed, Flow, Handler,
    MemoryBudget, Message, Now, Plain, RingPools, Server, Session, SessionCore, Settings, Step,
};

use crate::lane_frames::{begin, chunk};
use crate::streams::block_on;
use crate::support::{LONG, loopback, small, until};

/// Lanes, and sockets that hold little.
pub fn laned(lanes: u8) -> Settings {
    small().with(|settings| {
        settings.session.body_lanes = lanes;
        settings.session.max_body_bytes = 64 << 20;
        settings.session.lane_window_bytes = 64 << 10;
        settings.sockets.send_buffer_bytes = Some(64 << 10);
        settings.sockets.recv_buffer_bytes = Some(64 << 10);
        settings.max_queued_body_bytes = 256 << 20;
    })
}

fn pattern(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 7 + number) as u8).collect()
}

fn buffer(number: u64, len: usize) -> Arc<Buffer> {
    Arc::new(Buffer::from(pattern(number, len)))
}

/// What a handler of [`Taker`] tells.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Message(u16, Vec<u8>),
    Begun(u16, Vec<u8>),
    /// As it was sent.
    Body(u16, usize),
    Cancelled(u16),
    Refused(u64, String),
    Closed(CloseReason),
}

/// Takes bodies, refuses those with the head "no", and has those with the head "wait" wait.
pub struct Taker {
    pub events: Sender<Event>,
    pub open: Arc<AtomicBool>,
}

impl Handler for Taker {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let event = Event::Message(message.id(), message.payload().to_vec());
        let _ = self.events.send(event);
        Flow::Continue
    }

    fn body(&mut self, _: &Session, id: u16, head: &[u8], len: usize) -> BodyTarget {
        match head {
            b"no" => return BodyTarget::Refuse("not that one".to_owned()),
            b"wait" if !self.open.load(Ordering::Acquire) => return BodyTarget::Pause,
            _ => {}
        }
        let _ = self.events.send(Event::Begun(id, head.to_vec()));
        // Behind two bytes of its own.
        BodyTarget::buffer(vec![0xEE; len + 2], 2..len + 2)
    }

    fn body_done(&mut self, _: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        let bytes = store.into_heap().unwrap();
        assert_eq!(bytes[..2], [0xEE; 2]);
        assert!(
            bytes[range.clone()] == pattern(id.into(), range.len()),
            "other bytes"
        );
        let _ = self.events.send(Event::Body(id, range.len()));
    }

    fn body_cancelled(&mut self, _: &Session, id: u16, store: BodyStore) {
        assert_eq!(store.into_heap().unwrap()[..2], [0xEE; 2]);
        let _ = self.events.send(Event::Cancelled(id));
    }

    fn body_refused(&mut self, _: &Session, number: u64, why: &str) {
        let _ = self.events.send(Event::Refused(number, why.to_owned()));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.events.send(Event::Closed(why.reason));
    }
}

struct Setup {
    server: Server,
    at_server: Receiver<Event>,
    open: Arc<AtomicBool>,
    budget: MemoryBudget,
    /// Of the rings of one session.
    rings: usize,
}

fn setup(settings: Settings) -> Setup {
    let budget = MemoryBudget::new(256 << 20);
    let settings = settings.with(|settings| {
        settings.budget = Some(budget.clone());
        settings.idle_rings = 0;
    });
    let rings = settings.send_ring_bytes + settings.recv_ring_bytes;
    let (events, at_server) = channel();
    let open = Arc::new(AtomicBool::new(false));
    let events = Mutex::new(events);
    let opens = Arc::clone(&open);
    let server = Server::builder().settings(settings).listen(loopback());
    let server = server.start(move |_| Taker {
        events: events.lock().unwrap().clone(),
        open: Arc::clone(&opens),
    });
    Setup {
        server: server.unwrap(),
        at_server,
        open,
        budget,
        rings,
    }
}

fn connect(setup: &Setup, client: &Client) -> (Session, Receiver<Event>) {
    let (events, seen) = channel();
    let open = Arc::new(AtomicBool::new(true));
    let handler = Taker { events, open };
    let session = client.connect(setup.server.address(), handler);
    (session.unwrap(), seen)
}

fn next(seen: &Receiver<Event>) -> Event {
    seen.recv_timeout(LONG).expect("something in time")
}

/// The next event that `wanted` wants.
fn find(seen: &Receiver<Event>, wanted: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(seen);
        match event {
            event if wanted(&event) => return event,
            Event::Closed(why) => panic!("closed: {why:?}"),
            _ => {}
        }
    }
}

/// Sends a large body when asked for one, and answers all else.
pub struct Giver(pub u8);

pub const GIVE: u16 = 900;

impl Handler for Giver {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if message.id() == GIVE {
            let body = buffer(5, 16 << 20);
            session.send_body_on(self.0, 5, b"head", body).unwrap();
        } else {
            session.send_with(message.id(), 0, |_| ()).unwrap();
        }
        Flow::Continue
    }
}

/// Asks for a body, asks something for each answer while it comes, and tells how many answers came before it was there.
pub struct Asker {
    pub answers: Sender<usize>,
    pub count: usize,
}

impl Handler for Asker {
    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        self.count += 1;
        // Ends with the session.
        let _ = session.send_with(1, 0, |_| ());
        Flow::Continue
    }

    fn body(&mut self, session: &Session, _: u16, _: &[u8], len: usize) -> BodyTarget {
        session.send_with(1, 0, |_| ()).unwrap();
        BodyTarget::heap(len)
    }

    fn body_done(&mut self, session: &Session, id: u16, store: BodyStore, range: Range<usize>) {
        assert!(store.into_heap().unwrap()[range.clone()] == pattern(id.into(), range.len()));
        let _ = self.answers.send(self.count);
        session.close();
    }
}

/// How many answers come one after the other while a body of 16 MiB does.
pub fn answers_beside_a_body(connect: impl FnOnce(Asker) -> Session) -> usize {
    let (answers, told) = channel();
    let session = connect(Asker { answers, count: 0 });
    session.send_with(GIVE, 0, |_| ()).unwrap();
    told.recv_timeout(LONG).unwrap()
}

#[test]
fn messages_go_on_while_a_body_comes() {
    for (lane, least, most) in [(1, 10, usize::MAX), (0, 0, 0)] {
        let server = Server::builder().settings(laned(2)).listen(loopback());
        let server = server.start(move |_| Giver(lane)).unwrap();
        let client = Client::with(Plain, laned(2)).unwrap();
        let count = answers_beside_a_body(|asker| client.connect(server.address(), asker).unwrap());
        assert!(
            least <= count && count <= most,
            "{count} answers in lane {lane}"
        );
    }
}

#[test]
fn a_peer_without_lanes_gets_bodies_in_one_piece() {
    for (ours, theirs) in [(2, 0), (0, 2)] {
        let setup = setup(laned(theirs));
        let client = Client::with(Plain, laned(ours)).unwrap();
        let (session, _seen) = connect(&setup, &client);
        session.send_with(1, 1, |to| to.fill(1)).unwrap();
        let ticket = session
            .send_body_on(1, 7, b"head", buffer(7, 1 << 20))
            .unwrap();
        session.send_with(2, 1, |to| to.fill(2)).unwrap();
        let told: Vec<_> = (0..4).map(|_| next(&setup.at_server)).collect();
        let expected = [
            Event::Message(1, vec![1]),
            Event::Begun(7, b"head".to_vec()),
            Event::Body(7, 1 << 20),
            Event::Message(2, vec![2]),
        ];
        assert_eq!(told, expected);
        ticket.cancel();
        session.send_with(3, 0, |_| ()).unwrap();
        assert_eq!(next(&setup.at_server), Event::Message(3, vec![]));
    }
}

/// Whatever other threads do meanwhile, and whichever reservation is open.
#[test]
fn a_body_begins_behind_what_its_thread_sent_before() {
    let setup = setup(laned(4));
    let client = Client::with(Plain, laned(4)).unwrap();
    let (session, _seen) = connect(&setup, &client);
    const THREADS: u16 = 3;
    const ROUNDS: u16 = 60;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = session.clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let say = |bytes: usize| loop {
                        if let Ok(mut packet) = session.try_reserve(thread, bytes) {
                            packet.fill(round as u8);
                            std::thread::yield_now();
                            return packet.commit();
                        }
                        std::thread::yield_now();
                    };
                    say(usize::from(round) * 20 + 1);
                    let lane = 1 + (round % 4) as u8;
                    let head = [thread as u8, round as u8];
                    let body = buffer(9, usize::from(round) * 2000);
                    while session
                        .send_body_on(lane, 9, &head, Arc::clone(&body))
                        .is_err()
                    {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let mut said = [None; THREADS as usize];
    let mut bodies = 0;
    while bodies < THREADS * ROUNDS {
        match next(&setup.at_server) {
            Event::Message(thread, payload) => {
                said[usize::from(thread)] = Some(payload[0]);
            }
            Event::Begun(_, head) => {
                assert!(
                    said[usize::from(head[0])] >= Some(head[1]),
                    "{head:?} came too soon"
                );
            }
            Event::Body(..) => bodies += 1,
            other => panic!("{other:?}"),
        }
    }
    drop(session);
    until("all bodies are dropped", || {
        setup.budget.used() == setup.rings
    });
}

#[test]
fn a_body_without_a_place_holds_up_its_lane_alone() {
    let setup = setup(laned(2));
    let client = Client::with(Plain, laned(2)).unwrap();
    let (session, _seen) = connect(&setup, &client);
    session
        .send_body_on(1, 1, b"wait", buffer(1, 1 << 20))
        .unwrap();
    session
        .send_body_on(1, 2, b"next", buffer(2, 1000))
        .unwrap();
    until("its window is there", || setup.budget.used() > setup.rings);
    session
        .send_body_on(2, 3, b"other", buffer(3, 1 << 20))
        .unwrap();
    assert_eq!(next(&setup.at_server), Event::Begun(3, b"other".to_vec()));
    assert_eq!(next(&setup.at_server), Event::Body(3, 1 << 20));
    session.send_with(4, 0, |_| ()).unwrap();
    assert_eq!(next(&setup.at_server), Event::Message(4, vec![]));
    assert!(
        setup.budget.used() <= setup.rings + (64 << 10) + 4,
        "no more than its window"
    );
    let theirs = setup.server.sessions().remove(0);
    theirs.resume();
    session.send_with(5, 0, |_| ()).unwrap();
    assert_eq!(
        next(&setup.at_server),
        Event::Message(5, vec![]),
        "it still waits"
    );
    setup.open.store(true, Ordering::Release);
    theirs.resume();
    for event in [
        Event::Begun(1, b"wait".to_vec()),
        Event::Body(1, 1 << 20),
        Event::Begun(2, b"next".to_vec()),
        Event::Body(2, 1000),
    ] {
        assert_eq!(next(&setup.at_server), event);
    }
    until("all is dropped", || setup.budget.used() == setup.rings);
}

/// The handler is asked again while a part of a chunk is there, in memory that is not its own.
#[test]
fn a_place_that_comes_amid_a_chunk_gets_all_of_the_body() {
    let setup = setup(laned(1));
    let Address::Tcp(address) = setup.server.address() else {
        panic!("not TCP");
    };
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&hello(1)).unwrap();
    let bytes = pattern(5, 40_000);
    let [first, second, third] = [&bytes[..20_000], &bytes[20_000..30_000], &bytes[30_000..]];
    let second = chunk(1, second);
    let (begun, rest) = second.split_at(4_000);
    peer.write_all(
        &[
            begin(1, 1, 40_000, b"wait"),
            chunk(1, first),
            begun.to_vec(),
        ]
        .concat(),
    )
    .unwrap();
    until("a part is there", || {
        let sessions = setup.server.sessions();
        let came = sessions.first().map_or(0, |it| it.stats().bytes_received);
        came > 24_000
    });
    setup.open.store(true, Ordering::Release);
    setup.server.sessions()[0].resume();
    peer.write_all(rest).unwrap();
    assert_eq!(next(&setup.at_server), Event::Begun(5, b"wait".to_vec()));
    peer.write_all(&chunk(1, third)).unwrap();
    assert_eq!(next(&setup.at_server), Event::Body(5, 40_000));
}

#[test]
fn a_refused_body_ends_alone_and_its_sender_learns_it() {
    let setup = setup(laned(1).with(|settings| settings.body_budget_bytes = Some(2 << 20)));
    let client = Client::with(Plain, laned(1)).unwrap();
    let (session, seen) = connect(&setup, &client);
    let mut numbers = Vec::new();
    for (head, len) in [(&b"no"[..], 1 << 20), (b"no", 0), (b"much", 3 << 20)] {
        let bytes = buffer(1, len);
        let ticket = session
            .send_body_on(1, 1, head, Arc::clone(&bytes))
            .unwrap();
        numbers.push(ticket.number());
        let Event::Refused(number, why) = next(&seen) else {
            panic!("not refused");
        };
        assert_eq!(number, ticket.number());
        match head {
            b"no" => assert_eq!(why, "not that one"),
            _ => assert!(why.contains("memory budget"), "{why}"),
        }
        until("its bytes are released", || Arc::strong_count(&bytes) == 1);
    }
    assert!(numbers.is_sorted_by(|one, other| one < other));
    session.send_body_on(1, 2, b"", buffer(2, 1 << 20)).unwrap();
    find(&setup.at_server, |event| *event == Event::Body(2, 1 << 20));
    until("all is dropped", || setup.budget.used() == setup.rings);
}

/// Cancels the body that is on its way when its peer says so.
struct Canceller(Arc<Mutex<Option<BodyTicket>>>);

impl Handler for Canceller {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        self.0.lock().unwrap().take().unwrap().cancel();
        Flow::Continue
    }
}

#[test]
fn a_cancelled_body_ends_alone_and_gives_all_back() {
    let setup = setup(laned(2));
    let client = Client::with(Plain, laned(2)).unwrap();
    let ticket = Arc::new(Mutex::new(None));
    let handler = Canceller(Arc::clone(&ticket));
    let session = client.connect(setup.server.address(), handler).unwrap();
    let large = buffer(1, 48 << 20);
    let sent = session.send_body_on(1, 1, b"", Arc::clone(&large)).unwrap();
    *ticket.lock().unwrap() = Some(sent);
    assert_eq!(next(&setup.at_server), Event::Begun(1, vec![]));
    setup.server.sessions()[0].send_with(1, 0, |_| ()).unwrap();
    assert_eq!(next(&setup.at_server), Event::Cancelled(1));
    until("its bytes are released", || Arc::strong_count(&large) == 1);
    // One that waits behind another, and one for which there is no place.
    let waits = buffer(2, 1 << 20);
    let first = session
        .send_body_on(1, 2, b"wait", Arc::clone(&waits))
        .unwrap();
    let second = session.send_body_on(1, 2, b"", Arc::clone(&waits)).unwrap();
    until("its window is there", || setup.budget.used() > setup.rings);
    second.cancel();
    first.cancel();
    until("their bytes are released", || {
        Arc::strong_count(&waits) == 1
    });
    until("all is given back", || setup.budget.used() == setup.rings);
    session.send_body_on(1, 3, b"", buffer(3, 1 << 20)).unwrap();
    find(&setup.at_server, |event| *event == Event::Body(3, 1 << 20));
}

#[test]
fn a_session_that_ends_midway_gives_everything_back() {
    let setup = setup(laned(3));
    for polite in [false, true] {
        let client = Client::with(Plain, laned(3)).unwrap();
        let (session, seen) = connect(&setup, &client);
        let bytes = buffer(1, 16 << 20);
        for head in [&b"wait"[..], b"a", b"b"] {
            for lane in 1..=3 {
                session
                    .send_body_on(lane, 1, head, Arc::clone(&bytes))
                    .unwrap();
            }
        }
        until("some of it is there", || setup.budget.used() > setup.rings);
        let theirs = setup.server.sessions().remove(0);
        match polite {
            true => theirs.close(),
            false => session.abort(),
        }
        find(&seen, |event| matches!(event, Event::Closed(_)));
        until("all is given back", || setup.budget.used() == 0);
        until("and released", || Arc::strong_count(&bytes) == 1);
        assert!(session.send_body_on(1, 1, b"", bytes).is_err());
    }
}

#[test]
fn a_polite_close_sends_the_bodies_that_wait() {
    let setup = setup(laned(2));
    let client = Client::with(Plain, laned(2)).unwrap();
    let (session, _seen) = connect(&setup, &client);
    for number in 0..10u16 {
        let lane = 1 + (number % 2) as u8;
        let body = buffer(number.into(), 200_000);
        session.send_body_on(lane, number, b"", body).unwrap();
    }
    session.close();
    let mut bodies = 0;
    loop {
        match next(&setup.at_server) {
            Event::Body(..) => bodies += 1,
            Event::Closed(why) => {
                assert_eq!((bodies, why), (10, CloseReason::Finished));
                return;
            }
            _ => {}
        }
    }
}

#[test]
fn streams_get_bodies_of_several_lanes_with_their_heads() {
    let builder = Server::builder().settings(laned(2)).listen(loopback());
    let (server, mut sessions) = builder.start_async().unwrap();
    let client = Client::with(Plain, laned(2)).unwrap();
    let session = client.connect(server.address(), Giver(1)).unwrap();
    for number in 1..=20u16 {
        let lane = 1 + (number % 2) as u8;
        let body = buffer(number.into(), 100_000);
        let head = number.to_string();
        session
            .send_body_on(lane, number, head.as_bytes(), body)
            .unwrap();
    }
    let mut stream = block_on(sessions.next());
    for _ in 0..20 {
        let received = block_on(stream.next()).unwrap().unwrap();
        assert_eq!(received.head(), received.id().to_string().as_bytes());
        assert!(*received == pattern(received.id().into(), 100_000));
    }
}

/// A stream that is full when a body begins gets it later, whatever else it gets meanwhile.
#[test]
fn a_stream_that_was_full_gets_the_body_that_waits() {
    let builder = Server::builder().settings(laned(2)).listen(loopback());
    let (server, mut sessions) = builder.start_async().unwrap();
    let client = Client::with(Plain, laned(2)).unwrap();
    let session = client.connect(server.address(), Giver(1)).unwrap();
    // It holds 64 KiB: two of them, and the third waits.
    session.send_body_on(1, 1, b"", buffer(1, 40_000)).unwrap();
    session.send_body_on(2, 2, b"", buffer(2, 40_000)).unwrap();
    let mut stream = block_on(sessions.next());
    let theirs = stream.session().clone();
    until("both are there", || theirs.stats().bytes_received > 80_000);
    session.send_body_on(1, 3, b"", buffer(3, 10)).unwrap();
    until("the third began", || theirs.stats().messages_received == 3);
    let mut next = || block_on(stream.next()).unwrap().unwrap().id();
    assert!([1, 2].contains(&next()));
    // There is room for a message, and not yet for a body that was put off.
    session.send_with(9, 0, |_| ()).unwrap();
    until("it came", || theirs.stats().messages_received == 4);
    assert!([1, 2].contains(&next()));
    assert_eq!([next(), next()], [9, 3]);
}

/// The HELLO of a client with lanes.
fn hello(lanes: u8) -> Vec<u8> {
    let rings = RingPools::new(4096, 4096, 0).unwrap();
    let config = laned(lanes).session;
    let core = SessionCore::<_, Mapped>::connecting(Plain, &config, &rings, b"", Now(0));
    let mut core = core.unwrap();
    loop {
        if let Step::Send(buf) = core.poll().expect("it says something") {
            return buf.with_unsent(|head, _| head.to_vec());
        }
    }
}

/// A peer that breaks the rules loses its own session only, and what it took of the budget.
#[test]
fn a_hostile_peer_disturbs_nobody() {
    let setup = setup(laned(2));
    let client = Client::with(Plain, laned(2)).unwrap();
    let (session, _seen) = connect(&setup, &client);
    let Address::Tcp(address) = setup.server.address() else {
        panic!("not TCP");
    };
    let good = vec![1; 40_000];
    let tiny: Vec<u8> = (0..1000).flat_map(|_| chunk(1, b"x")).collect();
    let cases = [
        [begin(1, 1, 32 << 20, b""), begin(1, 2, 10, b"")].concat(),
        [begin(1, 1, 60_000, b""), chunk(1, &good), chunk(1, &good)].concat(),
        [
            begin(1, 1, 32 << 20, b"wait"),
            chunk(1, &good),
            chunk(1, &good),
        ]
        .concat(),
        [begin(1, 1, 60_000, b""), tiny].concat(),
        begin(1, 1, u32::MAX.into(), b""),
    ];
    let count = AtomicUsize::new(0);
    for case in cases {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&hello(2)).unwrap();
        let _ = peer.write_all(&case);
        let number = count.fetch_add(1, Ordering::Relaxed) as u16;
        loop {
            match next(&setup.at_server) {
                Event::Closed(why) => {
                    let expected = [CloseReason::BadFrame, CloseReason::TooLarge];
                    assert!(expected.contains(&why), "{number}: {why:?}");
                    break;
                }
                Event::Begun(..) => {}
                other => panic!("{number}: {other:?}"),
            }
        }
        until("it is given back", || setup.budget.used() == setup.rings);
        session
            .send_body_on(1, number, b"", buffer(number.into(), 50_000))
            .unwrap();
        find(&setup.at_server, |event| {
            *event == Event::Body(number, 50_000)
        });
    }
}
