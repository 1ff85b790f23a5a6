//! One message for many sessions.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use embar_session::{
    Broadcast, Client, CloseReason, Closed, Flow, Handler, Lag, Message, Plain, Rate, SendError,
    Server, Session, Settings,
};

use crate::sums::Sums;
use crate::support::proto::Packet;
use crate::support::{
    Event, LONG, Recorder, closed, fill_up, in_time, loopback, message, patient, recorder,
    recording_server, small, until,
};

/// Rings and sockets that are soon full.
fn tight() -> Settings {
    let mut settings = small();
    settings.sockets.send_buffer_bytes = Some(8 << 10);
    settings.sockets.recv_buffer_bytes = Some(8 << 10);
    settings
}

/// Takes nothing until it is told to go on.
struct Stubborn {
    gate: Arc<Mutex<bool>>,
    inner: Recorder,
}

impl Handler for Stubborn {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        self.inner.opened(session, greeting);
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if !*self.gate.lock().unwrap() {
            return Flow::Pause;
        }
        self.inner.message(session, message)
    }

    fn closed(&mut self, session: &Session, why: &Closed) {
        self.inner.closed(session, why);
    }
}

impl Stubborn {
    fn new() -> (Self, Arc<Mutex<bool>>, Receiver<Event>) {
        let gate = Arc::new(Mutex::new(false));
        let (inner, seen) = recorder();
        let handler = Self {
            gate: Arc::clone(&gate),
            inner,
        };
        (handler, gate, seen)
    }
}

/// A member that does not read, and what makes it go on.
struct Slow {
    gate: Arc<Mutex<bool>>,
    session: Session,
    seen: Receiver<Event>,
}

impl Slow {
    fn connect(client: &Client, server: &Server) -> Self {
        let (handler, gate, seen) = Stubborn::new();
        let session = client.connect(server.address(), handler).unwrap();
        Self {
            gate,
            session,
            seen,
        }
    }

    fn go_on(&self) {
        *self.gate.lock().unwrap() = true;
        self.session.resume();
    }
}

/// The next session that opened on a server.
pub fn opened(seen: &Receiver<Event>) -> Session {
    loop {
        if let Event::Opened(session, _) = seen.recv_timeout(LONG).unwrap() {
            return session;
        }
    }
}

fn number(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload[..4].try_into().unwrap())
}

/// A message of 200 bytes that begins with its number.
pub fn numbered(number: u32) -> [u8; 200] {
    let mut bytes = [0; 200];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn all_members_of_several_servers_and_workers_get_what_is_sent_in_order() {
    let several = Settings::default().with(|settings| settings.workers = 3);
    let (first, first_seen) = recording_server(several, loopback());
    let (second, second_seen) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let broadcast = Broadcast::new();
    let mut members = Vec::new();
    for (server, seen, count) in [(&first, &first_seen, 7), (&second, &second_seen, 2)] {
        for _ in 0..count {
            let (handler, seen_here) = recorder();
            members.push((
                client.connect(server.address(), handler).unwrap(),
                seen_here,
            ));
            assert!(broadcast.join(&opened(seen), Lag::Close));
        }
    }
    // The client's end of a session may be a member as well.
    let (own, _seen) = &members[8];
    assert!(broadcast.join(own, Lag::Close));
    assert_eq!(broadcast.len(), 10);
    let mut total = 0;
    for number in 0..100 {
        let sample = Packet {
            number,
            ..Default::default()
        };
        let delivery = broadcast.send(5, &sample).unwrap();
        total += delivery.sent;
        assert_eq!((delivery.skipped, delivery.closed), (0, 0));
    }
    assert_eq!(total, 1000);
    for (_, seen) in &members {
        for number in 0..100 {
            let (id, payload) = message(seen);
            let sample = <Packet as buffa::Message>::decode_from_slice(&payload).unwrap();
            assert_eq!((id, sample.number), (5, number));
        }
    }
    for number in 0..100 {
        let (_, payload) = message(&second_seen);
        let sample = <Packet as buffa::Message>::decode_from_slice(&payload).unwrap();
        assert_eq!(
            sample.number, number,
            "the client's end sends in order, too"
        );
    }
}

#[test]
fn one_may_be_left_out_and_who_leaves_gets_nothing() {
    let (server, seen) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let broadcast = Broadcast::new();
    let members: Vec<_> = (0..3)
        .map(|_| {
            let (handler, seen_here) = recorder();
            client.connect(server.address(), handler).unwrap();
            let session = opened(&seen);
            assert!(broadcast.join(&session, Lag::Skip));
            (session, seen_here)
        })
        .collect();
    let delivery = broadcast.except(&members[0].0).send_bytes(1, b"a").unwrap();
    assert_eq!(delivery.sent, 2);
    assert!(broadcast.leave(&members[1].0));
    assert!(!broadcast.leave(&members[1].0));
    assert_eq!(broadcast.send_bytes(1, b"b").unwrap().sent, 2);
    // Joining twice is one membership.
    assert!(broadcast.join(&members[1].0, Lag::Skip));
    assert!(broadcast.join(&members[1].0, Lag::Close));
    assert_eq!(broadcast.send_bytes(1, b"c").unwrap().sent, 3);
    for (member, expected) in members
        .iter()
        .zip([&["b", "c"][..], &["a", "c"], &["a", "b", "c"]])
    {
        for text in expected {
            assert_eq!(message(&member.1), (1, text.as_bytes().to_vec()));
        }
    }
    assert_eq!(
        broadcast.send_bytes(0xFF00, b""),
        Err(SendError::ReservedId { id: 0xFF00 })
    );
    let long = vec![0; 1 << 20];
    assert_eq!(broadcast.send_bytes(1, &long).unwrap().too_long, 3);
}

#[test]
fn sessions_that_end_are_members_no_more() {
    let (server, seen) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (first, second) = (Broadcast::new(), Broadcast::new());
    let mut sessions = Vec::new();
    for _ in 0..20 {
        let session = client.connect(server.address(), recorder().0).unwrap();
        let accepted = opened(&seen);
        assert!(first.join(&accepted, Lag::Skip) && second.join(&accepted, Lag::Latest));
        sessions.push((session, accepted));
    }
    for (session, _) in &sessions[..15] {
        session.close();
    }
    until("they left", || first.len() == 5 && second.len() == 5);
    let (_, gone) = &sessions[0];
    assert!(!first.join(gone, Lag::Skip), "it is over");
    // Places that became free are taken again.
    for _ in 0..15 {
        client.connect(server.address(), recorder().0).unwrap();
        assert!(first.join(&opened(&seen), Lag::Skip));
    }
    assert_eq!(first.send_bytes(1, b"x").unwrap().sent, 20);
    drop(second);
    server.shutdown(LONG);
    assert!(first.is_empty());
}

#[test]
fn a_slow_member_is_skipped_and_the_others_get_everything() {
    let (server, seen) = recording_server(tight(), loopback());
    let client = Client::with(Plain, tight()).unwrap();
    let broadcast = Broadcast::new();
    let slow = Slow::connect(&client, &server);
    let accepted = opened(&seen);
    broadcast.join(&accepted, Lag::Skip);
    let (handler, quick) = recorder();
    client.connect(server.address(), handler).unwrap();
    broadcast.join(&opened(&seen), Lag::Skip);
    let (mut got, mut skipped) = (0, 0);
    let mut sent = 0;
    while skipped < 100 {
        let delivery = broadcast.send_bytes(1, &numbered(sent)).unwrap();
        assert_eq!(delivery.sent + delivery.skipped, 2);
        assert_eq!(number(&message(&quick).1), sent, "the other is not held up");
        got += delivery.sent - 1;
        skipped += delivery.skipped;
        sent += 1;
    }
    assert_eq!(accepted.stats().missed_broadcasts, skipped as u64);
    slow.go_on();
    let numbers: Vec<u32> = (0..got).map(|_| number(&message(&slow.seen).1)).collect();
    assert!(numbers.is_sorted(), "in order, with gaps");
}

#[test]
fn a_slow_member_gets_the_latest_of_each_kind() {
    let (server, seen) = recording_server(tight(), loopback());
    let client = Client::with(Plain, tight()).unwrap();
    let broadcast = Broadcast::new();
    let slow = Slow::connect(&client, &server);
    let accepted = opened(&seen);
    broadcast.join(&accepted, Lag::Latest);
    let used = accepted.budget().used();
    let (mut sent, mut replaced) = (0, 0);
    // Of the ids 1 and 2, and of three keys.
    while replaced < 500 {
        let bytes = numbered(sent);
        let delivery = match sent % 5 {
            key @ 0..3 => broadcast.keyed(u64::from(key)).send_bytes(1, &bytes),
            id => broadcast.send_bytes(id as u16, &bytes),
        };
        let delivery = delivery.unwrap();
        assert_eq!(delivery.sent + delivery.waiting, 1);
        replaced += delivery.replaced;
        sent += 1;
    }
    let waits = accepted.budget().used() - used;
    assert!(waits <= 5 * 220, "{waits} bytes wait");
    slow.go_on();
    // What waited may have found room before a newer one came: all but what was replaced arrive.
    let mut numbers: Vec<u32> = (0..sent as usize - replaced)
        .map(|_| number(&message(&slow.seen).1))
        .collect();
    assert!(numbers.is_sorted(), "what comes is in order");
    let latest = numbers.split_off(numbers.len() - 5);
    assert_eq!(latest, (sent - 5..sent).collect::<Vec<_>>());
    until("nothing waits", || accepted.budget().used() == used);
    // As before.
    assert_eq!(broadcast.send_bytes(1, &numbered(sent)).unwrap().sent, 1);
    assert_eq!(number(&message(&slow.seen).1), sent);
}

/// What waited for room is sent although its session may not be received from for long.
#[test]
fn what_gave_way_to_an_answer_comes_although_its_session_is_held() {
    const BURST: u64 = 100_000;
    let settings = tight().with(|settings| {
        settings.rates.address_bytes = Some(Rate {
            per_second: 1,
            burst: BURST,
        });
        settings.admission.local_is_exempt = false;
    });
    let (server, seen) = recording_server(settings, loopback());
    let client = Client::with(Plain, patient(small())).unwrap();
    // Two that use up the rate of their address, and more.
    let others = [(); 2].map(|()| {
        let session = client.connect(server.address(), recorder().0).unwrap();
        (session, opened(&seen))
    });
    let slow_client = Client::with(Plain, tight()).unwrap();
    let slow = Slow::connect(&slow_client, &server);
    let accepted = opened(&seen);
    let broadcast = Broadcast::new();
    broadcast.join(&accepted, Lag::Latest);
    fill_up(|| accepted.send_with(1, 200, |to| to.fill(1)));
    assert_eq!(broadcast.send_bytes(4, &numbered(7)).unwrap().waiting, 1);
    // There is no room for an answer to this.
    let came = || accepted.stats().bytes_received;
    let before = came();
    slow.session.send_with(2, 1, |to| to.fill(1)).unwrap();
    until("it came", || came() > before);
    let say = |session: &Session| session.send_with(3, 9_000, |to| to.fill(1)).unwrap();
    for _ in 0..=BURST / 9_000 {
        say(&others[0].0);
    }
    until("no more may come", || {
        !server.monitor().limited_by_rate().is_empty()
    });
    // It may have what it might when it was looked at last.
    say(&others[1].0);
    until("more came", || others[1].1.stats().bytes_received > 1_000);
    slow.go_on();
    while message(&slow.seen).0 != 4 {}
    assert_eq!(accepted.stats().messages_received, 0, "it is held");
}

/// Both ends say more than the rings and sockets between them hold, before either reads.
fn both_ends_say_much(lag: Lag, bytes: usize) {
    let (handler, gate, seen) = Stubborn::new();
    let handler = Mutex::new(Some(handler));
    let server = Server::builder()
        .settings(tight())
        .listen(loopback())
        .start(move |_| handler.lock().unwrap().take().expect("one session"))
        .unwrap();
    let client = Client::with(Plain, tight()).unwrap();
    let near = Slow::connect(&client, &server);
    let far = Slow {
        gate,
        session: opened(&seen),
        seen,
    };
    let casts: Vec<_> = [&near, &far]
        .into_iter()
        .map(|end| {
            let cast = Broadcast::new();
            assert!(cast.join(&end.session, lag));
            let (mut late, mut sent) = (0, 0);
            while late < 100 {
                let delivery = cast.send_bytes(1, &vec![7; bytes]).unwrap();
                late += delivery.skipped + delivery.replaced;
                sent += delivery.sent + delivery.waiting - delivery.replaced;
            }
            (cast, sent)
        })
        .collect();
    for end in [&near, &far] {
        end.go_on();
    }
    for (end, (_, sent)) in [&far, &near].into_iter().zip(&casts) {
        for _ in 0..*sent {
            assert_eq!(message(&end.seen), (1, vec![7; bytes]));
        }
    }
}

#[test]
fn both_ends_go_on_reading_although_both_said_more_than_fits() {
    for lag in [Lag::Skip, Lag::Latest] {
        both_ends_say_much(lag, 200);
    }
}

#[test]
fn both_ends_go_on_reading_although_both_said_very_much_in_short_words() {
    for lag in [Lag::Skip, Lag::Latest] {
        both_ends_say_much(lag, 1);
    }
}

#[test]
fn what_waits_goes_with_the_session() {
    let (server, seen) = recording_server(tight(), loopback());
    let client = Client::with(Plain, tight()).unwrap();
    let broadcast = Broadcast::new();
    let slow = Slow::connect(&client, &server);
    let accepted = opened(&seen);
    broadcast.join(&accepted, Lag::Latest);
    let mut key = 0;
    let mut skipped = 0;
    while skipped < 10 {
        let delivery = broadcast.keyed(key).send_bytes(1, &numbered(1)).unwrap();
        skipped += delivery.skipped;
        key += 1;
    }
    let budget = accepted.budget().clone();
    let used = budget.used();
    slow.session.abort();
    closed(&slow.seen);
    closed(&seen);
    until("the memory is free", || {
        budget.used() <= used - Broadcast::MAX_WAITING * 208
    });
}

#[test]
fn a_slow_member_that_must_keep_up_is_closed() {
    let (server, seen) = recording_server(tight(), loopback());
    let client = Client::with(Plain, tight()).unwrap();
    let broadcast = Broadcast::new();
    let slow = Slow::connect(&client, &server);
    broadcast.join(&opened(&seen), Lag::Close);
    let (handler, quick) = recorder();
    client.connect(server.address(), handler).unwrap();
    broadcast.join(&opened(&seen), Lag::Close);
    let mut sent = 0;
    let mut closings = 0;
    while closings == 0 {
        closings = broadcast.send_bytes(1, &numbered(sent)).unwrap().closed;
        assert_eq!(number(&message(&quick).1), sent);
        sent += 1;
    }
    assert_eq!(closed(&seen).reason, CloseReason::Full);
    until("it left", || broadcast.len() == 1);
    slow.session.abort();
    assert_eq!(broadcast.send_bytes(1, &numbered(sent)).unwrap().sent, 1);
    assert_eq!(number(&message(&quick).1), sent);
}

/// Joins when it is asked to open, says all it gets to the others, and takes leave of them.
struct Relay(Broadcast);

impl Handler for Relay {
    fn greeted(&mut self, session: &Session, _: &[u8]) -> Result<Vec<u8>, String> {
        assert!(self.0.join(session, Lag::Close));
        Ok(Vec::new())
    }

    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let sent = self.0.except(session).send_bytes(1, message.payload());
        assert_eq!(sent.unwrap().closed, 0);
        Flow::Continue
    }

    fn closed(&mut self, session: &Session, _: &Closed) {
        assert!(!self.0.leave(session), "left by itself");
        assert!(!self.0.join(session, Lag::Skip), "and comes not back");
        let _ = self.0.send_bytes(2, b"bye");
    }
}

#[test]
fn handlers_join_send_and_are_told_of_the_end_while_others_do() {
    const PEERS: usize = 6;
    // All that one peer gets fits into its ring, beside the room for an answer.
    const EACH: u32 = 150;
    let broadcast = Broadcast::new();
    let theirs = broadcast.clone();
    let server = Server::builder()
        .settings(Settings::default().with(|settings| settings.workers = 2))
        .listen(loopback())
        .start(move |_| Relay(theirs.clone()))
        .unwrap();
    let client = Client::new().unwrap();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let (handler, seen) = recorder();
            (client.connect(server.address(), handler).unwrap(), seen)
        })
        .collect();
    assert_eq!(broadcast.len(), PEERS);
    in_time("all is relayed", move || {
        thread::scope(|scope| {
            for (at, (session, _)) in peers.iter().enumerate() {
                scope.spawn(move || {
                    for number in 0..EACH {
                        let bytes = numbered(number * PEERS as u32 + at as u32);
                        while session.try_reserve(1, 200).is_err() {
                            thread::yield_now();
                        }
                        let mut packet = session.try_reserve(1, 200).unwrap();
                        packet.copy_from_slice(&bytes);
                        packet.commit();
                    }
                });
            }
        });
        for (_, seen) in &peers {
            let mut last = [None; PEERS];
            for _ in 0..EACH as usize * (PEERS - 1) {
                let number = number(&message(seen).1);
                let from = number as usize % PEERS;
                assert!(last[from] < Some(number), "of one sender in order");
                last[from] = Some(number);
            }
        }
        let (gone, rest) = peers.split_first().unwrap();
        gone.0.close();
        for (_, seen) in rest {
            assert_eq!(message(seen), (2, b"bye".to_vec()));
        }
    });
    assert_eq!(broadcast.len(), PEERS - 1);
}

#[test]
fn members_come_and_go_while_several_threads_send() {
    let (server, seen) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let broadcast = Broadcast::new();
    let (stay, stays) = recorder();
    client.connect(server.address(), stay).unwrap();
    broadcast.join(&opened(&seen), Lag::Close);
    let others: Vec<_> = (0..8)
        .map(|_| {
            client.connect(server.address(), recorder().0).unwrap();
            opened(&seen)
        })
        .collect();
    let (done, end) = channel::<()>();
    let turmoil = {
        let broadcast = broadcast.clone();
        thread::spawn(move || {
            while end.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                for session in &others {
                    broadcast.join(session, Lag::Skip);
                }
                for session in &others {
                    broadcast.leave(session);
                }
            }
        })
    };
    thread::scope(|scope| {
        for from in 0..2u32 {
            let broadcast = &broadcast;
            scope.spawn(move || {
                for number in 0..500 {
                    let delivery = broadcast
                        .send_bytes(1, &numbered(number * 2 + from))
                        .unwrap();
                    assert_eq!(delivery.closed, 0);
                }
            });
        }
    });
    let mut numbers = HashSet::new();
    for _ in 0..1000 {
        assert!(numbers.insert(number(&message(&stays).1)), "none twice");
    }
    drop(done);
    turmoil.join().unwrap();
    assert_eq!(broadcast.len(), 1);
}

#[test]
fn members_may_speak_protocols_with_and_without_checksums() {
    let (plain, seen) = recording_server(Settings::default(), loopback());
    let (events, summed_seen) = channel();
    let events = Mutex::new(events);
    let summed = Server::builder()
        .protocol(Sums)
        .listen(loopback())
        .start(move |_| Recorder(events.lock().unwrap().clone()))
        .unwrap();
    let client = Client::new().unwrap();
    let summing = Client::with(Sums, Settings::default()).unwrap();
    let broadcast = Broadcast::new();
    let (first, first_got) = recorder();
    client.connect(plain.address(), first).unwrap();
    let (second, second_got) = recorder();
    summing.connect(summed.address(), second).unwrap();
    assert!(broadcast.join(&opened(&seen), Lag::Skip));
    assert!(broadcast.join(&opened(&summed_seen), Lag::Skip));
    for number in 0..10 {
        let delivery = broadcast.send_bytes(1, &numbered(number)).unwrap();
        assert_eq!(delivery.sent, 2);
        for got in [&first_got, &second_got] {
            assert_eq!(message(got), (1, numbered(number).to_vec()));
        }
    }
}
