//! Memory of all sessions together: rings, bodies, and what programs hold.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use embar_memory::Buffer;
use embar_session::{
    Address, Client, CloseReason, Flow, Handler, Kept, MemoryBudget, Message, Plain, Refusal,
    SendError, Server, Session, Settings, Side,
};

use crate::admission::{CLOSE, WELCOME, connect_from, first_id};
use crate::hello::hello;
use crate::streams::block_on;
use crate::support::{
    Event, LONG, closed, echo_server, loopback, message, recorder, recording_server, small, until,
};

/// What a session of [`small`] settings takes.
const RINGS: usize = 32 << 10;

fn limited(bytes: usize) -> (Settings, MemoryBudget) {
    let budget = MemoryBudget::new(bytes);
    let settings = small().with(|settings| {
        settings.idle_rings = 0;
        settings.budget = Some(budget.clone());
        settings.body_budget_bytes = Some(bytes);
    });
    (settings, budget)
}

fn client() -> Client {
    Client::with(Plain, small()).unwrap()
}

/// The next body.
fn body(seen: &Receiver<Event>) -> Vec<u8> {
    loop {
        match seen.recv_timeout(LONG).expect("a body in time") {
            Event::Body(_, bytes) => return bytes,
            Event::Closed(why) if why.by == Side::Network => panic!("{why}"),
            _ => {}
        }
    }
}

/// A session whose peer is this test: it is open.
fn open_by_hand(server: &Server) -> TcpStream {
    let Address::Tcp(address) = server.address() else {
        panic!("not TCP");
    };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    greet(&mut stream);
    stream
}

fn greet(stream: &mut TcpStream) {
    stream.write_all(&hello()).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[4..6], WELCOME.to_le_bytes());
    let length = u32::from_le_bytes(header[..4].try_into().unwrap());
    stream.read_exact(&mut vec![0; length as usize]).unwrap();
}

/// The beginning of a frame with a body of `len` bytes, and an empty head.
fn announcing(len: usize) -> Vec<u8> {
    let length = u32::try_from(len + 4).unwrap().to_le_bytes();
    [&length[..], &[2, 0], &Plain::BODY.to_le_bytes(), &[0; 4]].concat()
}

fn buffer(len: usize) -> Arc<Buffer> {
    Arc::new(Buffer::from(vec![7; len]))
}

#[test]
fn sessions_take_their_rings_of_the_budget_and_so_do_programs() {
    let (settings, budget) = limited(3 * RINGS);
    let server = echo_server(settings, loopback());
    let ours = budget.try_reserve(RINGS).unwrap();
    let client = client();
    let (handler, first_seen) = recorder();
    let first = client.connect(server.address(), handler).unwrap();
    let (handler, seen) = recorder();
    let second = client.connect(server.address(), handler).unwrap();
    assert_eq!(server.stats().budget_used_bytes, 3 * RINGS as u64);
    let open = || client.connect(server.address(), recorder().0);
    let why = open().unwrap_err();
    assert_eq!(why.reason, CloseReason::TooManySessions, "{why}");
    let refused = server.monitor().refused_by_reason();
    assert_eq!(refused, [(Refusal::OutOfMemory, 1)]);
    second.send_with(1, 1, |buf| buf.fill(5)).unwrap();
    assert_eq!(message(&seen).1, [5], "the others go on");

    drop(ours);
    open().unwrap();
    first.close();
    closed(&first_seen);
    until("room again", || open().is_ok());
}

/// Keeps the first message.
struct Keeper(Sender<Kept>);

impl Handler for Keeper {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let _ = self.0.send(message.keep().unwrap());
        Flow::Continue
    }
}

#[test]
fn a_ring_counts_as_long_as_a_message_of_it_is_kept() {
    let (settings, budget) = limited(RINGS);
    let (keeps, kept) = channel();
    let keeps = Mutex::new(keeps);
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Keeper(keeps.lock().unwrap().clone()))
        .unwrap();
    let client = client();
    let session = client.connect(server.address(), recorder().0).unwrap();
    session.send_with(1, 3, |buf| buf.fill(9)).unwrap();
    let kept = kept.recv_timeout(LONG).unwrap();
    session.close();
    until("over", || server.stats().sessions == 0);
    until("half of it is back", || budget.used() == RINGS / 2);
    assert!(client.connect(server.address(), recorder().0).is_err());
    assert_eq!(*kept, [9; 3]);
    drop(kept);
    assert_eq!(budget.used(), 0);
    client.connect(server.address(), recorder().0).unwrap();
}

#[test]
fn a_body_without_room_ends_its_session_and_no_other() {
    const BODY: usize = 700 << 10;
    let (settings, budget) = limited(2 * RINGS + (1 << 20));
    let (server, at_server) = recording_server(settings, loopback());
    let mut slow = open_by_hand(&server);
    slow.write_all(&announcing(BODY)).unwrap();
    until("it counts", || budget.used() == RINGS + BODY);

    let client = client();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session.send_body(2, &[], buffer(BODY)).unwrap();
    let why = closed(&seen);
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::OutOfMemory));
    assert!(why.text.contains("memory budget"), "{why}");
    until("over", || server.stats().sessions == 1);
    let closed = server.monitor().closed_by_reason();
    assert_eq!(closed, [("OutOfMemory", 1)]);

    slow.write_all(&vec![3; BODY]).unwrap();
    assert_eq!(body(&at_server), vec![3; BODY]);
    until("its room is free", || budget.used() == RINGS);
    let session = client.connect(server.address(), recorder().0).unwrap();
    session.send_body(2, &[], buffer(BODY)).unwrap();
    assert_eq!(body(&at_server), vec![7; BODY]);
}

#[test]
fn a_body_counts_until_its_session_ends_or_its_reader_drops_it() {
    const BODY: usize = 100 << 10;
    let (settings, budget) = limited(RINGS + BODY);
    let builder = Server::builder().settings(settings).listen(loopback());
    let (server, mut sessions) = builder.start_async().unwrap();
    let cut = open_by_hand(&server);
    (&cut).write_all(&announcing(BODY)).unwrap();
    until("it counts", || budget.used() == RINGS + BODY);
    drop(cut);
    drop(block_on(sessions.next()));
    until("all is free", || budget.used() == 0);

    let client = client();
    let session = client.connect(server.address(), recorder().0).unwrap();
    session.send_body(2, b"head", buffer(BODY)).unwrap();
    let mut stream = block_on(sessions.next());
    let received = block_on(stream.next()).unwrap().unwrap();
    assert_eq!((received.head(), received.len()), (&b"head"[..], BODY));
    assert_eq!(budget.used(), RINGS + BODY, "it is in the stream's hands");
    drop(received);
    assert_eq!(budget.used(), RINGS);
}

#[test]
fn what_peers_announce_leaves_the_rings_their_room() {
    let (settings, budget) = limited(8 * RINGS);
    let settings = settings.with(|settings| settings.body_budget_bytes = None);
    let (server, _at_server) = recording_server(settings, loopback());
    let mut greedy: Vec<_> = (0..4).map(|_| open_by_hand(&server)).collect();
    // Two of them get the half that bodies may have; the others have no memory for theirs.
    for (number, peer) in greedy.iter_mut().enumerate() {
        peer.write_all(&announcing(2 * RINGS)).unwrap();
        match number {
            0 | 1 => until("it counts", || {
                budget.used() == 4 * RINGS + 2 * RINGS * (number + 1)
            }),
            _ => assert_eq!(first_id(peer), Some(CLOSE)),
        }
    }
    drop(greedy.split_off(2));
    until("two are gone", || server.stats().sessions == 2);
    let client = client();
    for _ in 0..2 {
        client.connect(server.address(), recorder().0).unwrap();
    }
    drop(greedy);
    until("their bodies count no more", || budget.used() == 2 * RINGS);
}

#[test]
fn one_address_leaves_others_memory_for_bodies() {
    const BODY: usize = 60 << 10;
    let (mut settings, budget) = limited(8 * RINGS);
    settings.admission.local_is_exempt = false;
    settings.admission.max_body_bytes_per_address = BODY;
    let (server, at_server) = recording_server(settings, loopback());
    let mut first = open_by_hand(&server);
    first.write_all(&announcing(BODY)).unwrap();
    until("it counts", || budget.used() == RINGS + BODY);
    let mut second = open_by_hand(&server);
    second.write_all(&announcing(1)).unwrap();
    assert_eq!(first_id(&mut second), Some(CLOSE));
    assert_eq!(closed(&at_server).reason, CloseReason::OutOfMemory);
    let mut other = connect_from(2, &server);
    greet(&mut other);
    other.write_all(&announcing(BODY)).unwrap();
    other.write_all(&[3; BODY]).unwrap();
    assert_eq!(body(&at_server), [3; BODY]);
}

#[test]
fn idle_rings_make_room_for_a_body() {
    let (mut settings, budget) = limited(4 * RINGS);
    settings.idle_rings = 4;
    let (server, at_server) = recording_server(settings, loopback());
    let client = client();
    let mut sessions: Vec<_> = (0..4)
        .map(|_| client.connect(server.address(), recorder().0).unwrap())
        .collect();
    let last = sessions.pop().unwrap();
    sessions.iter().for_each(Session::close);
    until("three are over", || server.stats().sessions == 1);
    // What was told has handles of them.
    at_server.try_iter().for_each(drop);
    assert_eq!(budget.used(), 4 * RINGS, "idle rings count");
    last.send_body(2, &[], buffer(2 * RINGS)).unwrap();
    assert_eq!(body(&at_server).len(), 2 * RINGS);
    // One pair of rings is in use, and as much as another is idle still: the body took the rest.
    until("what is left", || budget.used() == 2 * RINGS);
}

#[test]
fn bodies_come_in_only_where_they_are_asked_for() {
    let (server, at_server) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), recorder().0).unwrap();
    let refused = session.send_body(2, &[], buffer(10));
    assert!(
        matches!(refused, Err(SendError::TooLong { max: 0, .. })),
        "{refused:?}"
    );
    session.close();
    closed(&at_server);

    let mut rude = open_by_hand(&server);
    rude.write_all(&announcing(10)).unwrap();
    assert_eq!(first_id(&mut rude), Some(CLOSE));
    assert_eq!(closed(&at_server).reason, CloseReason::TooLarge);
}

#[test]
fn idle_rings_of_one_server_make_room_for_a_session_of_another() {
    let (mut settings, budget) = limited(2 * RINGS);
    settings.idle_rings = 4;
    let first = echo_server(settings.clone(), loopback());
    let second = echo_server(settings, loopback());
    let client = client();
    let connect = |server: &Server| client.connect(server.address(), recorder().0);
    let sessions = [(); 2].map(|()| connect(&first).unwrap());
    assert!(connect(&second).is_err(), "the budget is used up");
    sessions.iter().for_each(Session::close);
    until("both are over", || first.stats().sessions == 0);
    assert_eq!(budget.used(), 2 * RINGS, "idle rings count");
    let others = [(); 2].map(|()| connect(&second).unwrap());
    assert_eq!(budget.used(), 2 * RINGS);
    drop(others);
}
