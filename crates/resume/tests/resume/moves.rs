//! Servers that end, politely and not, and what becomes of each message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use embar_resume::{Connector, End, InDoubt, KeeperSettings, Resumable, State, Target, WhyFresh};
use embar_session::{Address, CloseReason, OnFull, SendError, Side};

use crate::support::{
    Event, LONG, Proxy, Site, connect, connector, ended, expect, is_open, loopback, number_of,
    opened, quick, recorder, restarted, resumed, send, small_rings, suspended, tcp, until,
};
use crate::wire::Wire;

/// Acknowledges nothing by itself.
fn silent() -> KeeperSettings {
    KeeperSettings::default().with(|it| it.replay.ack_delay = LONG)
}

/// A client whose server handled ten messages, acknowledged none, and is gone with all it knew.
fn bereft(in_doubt: InDoubt) -> (Site, Connector, Resumable, Receiver<Event>) {
    let first = Site::start(silent(), false);
    let second = Site::start(KeeperSettings::default(), false);
    let settings = quick().with(|it| {
        it.in_doubt = in_doubt;
        it.stay = Duration::ZERO;
    });
    let connector = connector(settings);
    let (handler, seen) = recorder(false);
    let target = Target::new(first.address()).or(second.address());
    let session = connector.open(target, handler);
    for number in 0..10 {
        send(&session, number).unwrap();
    }
    expect(&first.seen, 0..10);
    drop(first);
    suspended(&seen);
    for number in 10..15 {
        send(&session, number).unwrap();
    }
    (second, connector, session, seen)
}

#[test]
fn a_server_that_lost_all_gets_what_is_in_doubt_again_if_asked_to() {
    let (second, _connector, session, seen) = bereft(InDoubt::SendAgain);
    let restart = restarted(&seen);
    assert_eq!((restart.why, restart.in_doubt), (WhyFresh::Unknown, 10));
    assert!(restart.sent_again);
    // The first server had handled them: each comes at least once.
    expect(&second.seen, 0..15);
    assert!(matches!(session.state(), State::Restarted(_)));
}

#[test]
fn a_server_that_lost_all_gets_nothing_twice_otherwise() {
    let (second, _connector, session, seen) = bereft(InDoubt::Drop);
    let restart = restarted(&seen);
    assert_eq!((restart.why, restart.in_doubt), (WhyFresh::Unknown, 10));
    assert!(!restart.sent_again);
    expect(&second.seen, 10..15);
    until("acknowledgements", || session.unacknowledged() == 0);
}

#[test]
fn a_plain_session_gives_each_message_at_most_once() {
    let (events, seen) = std::sync::mpsc::channel();
    let events = std::sync::Mutex::new(events);
    let server = embar_session::Server::builder()
        .listen(loopback())
        .start(move |_| Plain(events.lock().unwrap().clone()))
        .unwrap();
    let proxy = Proxy::start(&server.address(), [crate::support::Cut::Up(500)]);
    let client = embar_session::Client::new().unwrap();
    let (ends, end) = std::sync::mpsc::channel();
    let session = client.connect(&proxy.address, Plain(ends)).unwrap();
    let mut sent = 0u64;
    while session.send_with(1, 8, |to| to.copy_from_slice(&sent.to_le_bytes()))
        != Err(SendError::Closed)
    {
        sent += 1;
    }
    assert_eq!(end.recv_timeout(LONG).unwrap(), None);
    let mut received = 0;
    while let Some(number) = seen.recv_timeout(LONG).unwrap() {
        assert_eq!(number, received, "in order, without one twice");
        received += 1;
    }
    assert!(received < sent, "what was on its way is lost");
}

/// Tells numbers, and `None` at the end.
struct Plain(std::sync::mpsc::Sender<Option<u64>>);

impl embar_session::Handler for Plain {
    fn message(
        &mut self,
        _: &embar_session::Session,
        message: embar_session::Message<'_>,
    ) -> embar_session::Flow {
        let _ = self.0.send(Some(number_of(message.payload())));
        embar_session::Flow::Continue
    }

    fn closed(&mut self, _: &embar_session::Session, _: &embar_session::Closed) {
        let _ = self.0.send(None);
    }
}

#[test]
fn a_drained_server_hands_its_clients_on_with_nothing_in_doubt() {
    // No acknowledgement would come by itself, in either direction.
    let first = Site::start(silent(), false);
    let second = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick().with(|it| it.replay.ack_delay = LONG));
    let (handler, seen) = recorder(false);
    let target = Target::new(first.address()).or(second.address());
    let session = connector.open(target, handler);
    is_open(&session);
    let at_first = opened(&first.seen);
    for number in 0..10 {
        send(&session, number).unwrap();
        send(&at_first, number).unwrap();
    }
    assert_eq!(first.keeper.drain(LONG), 0);
    expect(&first.seen, 0..10);
    expect(&seen, 0..10);
    let end = ended(&first.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Moved, 0));
    assert_eq!(send(&at_first, 10), Err(SendError::Closed));
    let restart = restarted(&seen);
    assert_eq!((restart.why, restart.in_doubt), (WhyFresh::Moved, 0));
    send(&session, 10).unwrap();
    expect(&second.seen, 10..11);
    // Who comes to a server that is leaving is sent away.
    let mut wire = Wire::connect(tcp(&first.address()));
    assert_eq!(wire.hello(&[], 0).outcome, crate::wire::DRAINING);
}

#[test]
fn a_keeper_that_is_opened_again_gets_its_clients_back() {
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &site.address());
    send(&session, 0).unwrap();
    expect(&site.seen, 0..1);
    assert_eq!(site.keeper.drain(LONG), 0);
    assert_eq!(ended(&site.seen).why, End::Moved);
    send(&session, 1).unwrap();
    site.keeper.reopen();
    assert_eq!(restarted(&seen).why, WhyFresh::Moved);
    expect(&site.seen, 1..2);
    until("acknowledgements", || session.unacknowledged() == 0);
    assert_eq!(site.keeper.drain(LONG), 0, "and it can be drained again");
}

#[test]
fn a_client_that_is_away_comes_back_to_a_server_that_drains() {
    let first = Site::start(KeeperSettings::default(), false);
    let second = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&first.address(), []);
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(&proxy.address).or(second.address());
    let session = connector.open(target, handler);
    is_open(&session);
    let at_first = opened(&first.seen);
    proxy.lead_to(&"127.0.0.1:1".parse().unwrap());
    proxy.cut_all();
    suspended(&first.seen);
    send(&at_first, 0).unwrap();
    send(&session, 1).unwrap();
    assert_eq!(first.keeper.drain(Duration::from_millis(20)), 1);
    proxy.lead_to(&first.address());
    assert_eq!(first.keeper.drain(LONG), 0);
    let end = ended(&first.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Moved, 0));
    expect(&seen, 0..1);
    assert_eq!(restarted(&seen).why, WhyFresh::Moved);
}

#[test]
fn a_client_that_never_heard_that_it_may_leave_comes_back_to_a_session_that_sends() {
    let site = Site::start(KeeperSettings::default(), false);
    let mut wire = Wire::connect(tcp(&site.address()));
    let token = wire.hello(&[], 0).token;
    let session = opened(&site.seen);
    wire.leave(0);
    wire.until_frame(|frame| crate::wire::control_of(frame).filter(|(_, left)| *left));
    assert_eq!(send(&session, 0), Err(SendError::Closed));
    // As if that had not arrived.
    drop(wire);
    suspended(&site.seen);
    let mut wire = Wire::connect(tcp(&site.address()));
    assert_eq!(wire.hello(&token, 0).outcome, crate::wire::RESUMED);
    resumed(&site.seen);
    send(&session, 1).unwrap();
    assert_eq!(wire.next_message(), 1u64.to_le_bytes());
    wire.message(&2u64.to_le_bytes());
    expect(&site.seen, 2..3);
}

#[test]
fn a_client_that_leaves_a_session_as_it_is_closed_hears_of_the_end() {
    let site = Site::start(KeeperSettings::default(), false);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    let session = opened(&site.seen);
    send(&session, 0).unwrap();
    session.close();
    wire.next_message();
    wire.leave(0);
    wire.control(1, false);
    let reason = wire.until_frame(|frame| {
        let let_go = crate::wire::control_of(frame).is_some_and(|(_, left)| left);
        assert!(!let_go, "it is told to go elsewhere");
        crate::wire::end_of(frame)
    });
    assert_eq!(reason.0, CloseReason::Finished.number());
    assert_eq!(ended(&site.seen).why, End::Finished { by: Side::Local });
}

#[test]
fn a_session_that_is_closed_while_its_client_leaves_does_not_send_it_elsewhere() {
    const MUCH: u64 = 2000;
    let keeping = KeeperSettings::default().with(|it| {
        it.replay.max_bytes = 32 << 20;
        it.replay.close_within = LONG;
    });
    let narrow = small_rings().with(|it| it.sockets.send_buffer_bytes = Some(4096));
    let site = Site::start_with(keeping, narrow, loopback(), false);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    let session = opened(&site.seen);
    // More than all buffers hold: the last ones are not on their way when the client leaves.
    for _ in 0..MUCH {
        session.send_with(1, 4000, |_| ()).unwrap();
    }
    wire.leave(0);
    until("it is heard", || {
        session.send_with(1, 0, |_| ()) == Err(SendError::Closed)
    });
    session.close();
    let mut read = 0;
    let reason = loop {
        let frame = wire.try_frame().expect("a frame");
        let let_go = crate::wire::control_of(&frame).is_some_and(|(_, left)| left);
        assert!(!let_go, "it is told to go elsewhere");
        if let Some(reason) = crate::wire::end_of(&frame) {
            break reason;
        }
        if frame.0 == 1 {
            read += 1;
            wire.control(read, false);
        }
    };
    assert_eq!(reason.0, CloseReason::Finished.number());
    assert_eq!(ended(&site.seen).why, End::Finished { by: Side::Local });
}

#[test]
fn a_client_that_leaves_with_messages_unacknowledged_has_not_moved() {
    let site = Site::start(KeeperSettings::default(), false);
    let mut wire = Wire::connect(tcp(&site.address()));
    wire.hello(&[], 0);
    send(&opened(&site.seen), 0).unwrap();
    wire.next_message();
    wire.leave(0);
    wire.close();
    let end = ended(&site.seen);
    let finished = End::Finished { by: Side::Peer };
    assert_eq!((end.why, end.unacknowledged), (finished, 1));
}

#[test]
fn a_server_that_leaves_as_only_clients_do_ends_the_session() {
    let server = crate::wire::fake_server(|connection| {
        connection.welcome(crate::wire::FRESH, &[5; 32], 0);
        connection.leave(0);
        while connection.try_frame().is_some() {}
    });
    let connector = connector(quick());
    let (_, seen) = connect(&connector, &server);
    let why = ended(&seen).why;
    assert!(matches!(why, End::BadPeer { .. }), "{why}");
}

#[test]
fn a_redirect_leads_a_client_to_an_address_of_its_target() {
    let sites = [(); 3].map(|()| Site::start(KeeperSettings::default(), false));
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(sites[0].address())
        .or(sites[1].address())
        .or(sites[2].address());
    let session = connector.open(target, handler);
    is_open(&session);
    let redirect = embar_session::Redirect::to(sites[2].address().to_string()).unwrap();
    let server = sites[0].server.as_ref().unwrap();
    server.sessions()[0].goodbye_to(&redirect);
    assert_eq!(restarted(&seen).why, WhyFresh::Moved);
    assert_eq!(ended(&sites[0].seen).why, End::Moved);
    send(&session, 3).unwrap();
    expect(&sites[2].seen, 3..4);
    assert!(sites[1].keeper.sessions().is_empty());
}

#[test]
fn a_preferred_address_is_next() {
    let first = Site::start(KeeperSettings::default(), false);
    let second = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &first.address());
    is_open(&session);
    session.prefer(second.address());
    assert_eq!(first.keeper.drain(LONG), 0);
    restarted(&seen);
    send(&session, 3).unwrap();
    expect(&second.seen, 3..4);
}

#[test]
fn only_the_server_with_the_state_is_tried_until_it_was_away_for_long() {
    let first = Site::start(KeeperSettings::default(), false);
    let second = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&first.address(), []);
    let connector = connector(quick().with(|it| it.stay = LONG));
    let (handler, seen) = recorder(false);
    let target = Target::new(&proxy.address).or(second.address());
    let session = connector.open(target, handler);
    is_open(&session);
    proxy.lead_to(&"127.0.0.1:1".parse().unwrap());
    proxy.cut_all();
    session.wait_until(LONG, |state| {
        matches!(state, State::Resuming { attempt: 4.., .. })
    });
    proxy.lead_to(&first.address());
    crate::support::resumed(&seen);
    assert_eq!(second.keeper.sessions().len(), 0);
}

/// Sends its numbers until it is told to stop, and returns how many those were.
struct Talker {
    session: Resumable,
    seen: Receiver<Event>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

fn talk(connector: &Connector, target: Target, name: u64) -> Talker {
    let (handler, seen) = recorder(false);
    let session = connector.open(target, handler);
    let stop = Arc::new(AtomicBool::new(false));
    let (talking, told) = (session.clone(), Arc::clone(&stop));
    let thread = std::thread::spawn(move || {
        let mut number = 0u64;
        while !told.load(Ordering::Relaxed) {
            let sent = talking.send_with(1, 16, |to| {
                to[..8].copy_from_slice(&number.to_le_bytes());
                to[8..].copy_from_slice(&name.to_le_bytes());
            });
            sent.unwrap();
            number += 1;
            if number.is_multiple_of(16) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        number
    });
    Talker {
        session,
        seen,
        stop,
        thread,
    }
}

/// Adds what a server got to what each client's servers got before.
fn account(site: &Site, all: &mut HashMap<u64, Vec<u64>>) {
    while let Ok(event) = site.seen.try_recv() {
        if let Event::Message(payload) = event {
            let name = number_of(&payload[8..]);
            all.entry(name).or_default().push(number_of(&payload));
        }
    }
}

#[test]
fn a_rolling_restart_under_load_loses_and_doubles_nothing() {
    const CLIENTS: u64 = 4;
    let settings = quick().with(|it| {
        it.replay.on_full = OnFull::Wait { timeout: LONG };
    });
    // Then an answer to each message finds room, however slowly its client reads.
    let keeping = KeeperSettings::default().with(|it| {
        it.replay.max_messages *= 4;
        it.replay.max_bytes *= 4;
    });
    let start = |address| Site::start_with(keeping.clone(), small_rings(), address, true);
    let mut sites = [start(loopback()), start(loopback())];
    let addresses: [Address; 2] = [sites[0].address(), sites[1].address()];
    let connector = connector(settings);
    let talkers: Vec<Talker> = (0..CLIENTS)
        .map(|name| {
            let target = Target::new(&addresses[0]).or(&addresses[1]);
            talk(&connector, target, name)
        })
        .collect();
    let mut handled = HashMap::new();
    for round in 0..6 {
        let (leaving, staying) = (round % 2, (round + 1) % 2);
        until("clients are there", || {
            sites[leaving].keeper.sessions().len() == CLIENTS as usize
        });
        account(&sites[leaving], &mut handled);
        until("messages come", || {
            account(&sites[leaving], &mut handled);
            let rounds = |numbers: &Vec<u64>| numbers.len() >= 100 * (round + 1);
            handled.len() == CLIENTS as usize && handled.values().all(rounds)
        });
        assert_eq!(sites[leaving].keeper.drain(LONG), 0);
        let site = &mut sites[leaving];
        site.server.take().unwrap().shutdown(LONG);
        account(site, &mut handled);
        sites[leaving] = start(addresses[leaving].clone());
        let _ = staying;
    }
    let mut total = 0;
    for (name, talker) in talkers.into_iter().enumerate() {
        talker.stop.store(true, Ordering::Relaxed);
        let sent = talker.thread.join().unwrap();
        expect(&talker.seen, 0..sent);
        talker.session.close();
        let end = ended(&talker.seen);
        assert_eq!(
            (end.why, end.unacknowledged),
            (End::Finished { by: Side::Local }, 0)
        );
        account(&sites[0], &mut handled);
        account(&sites[1], &mut handled);
        let numbers = &handled[&(name as u64)];
        assert!(numbers.iter().copied().eq(0..sent), "of client {name}");
        total += sent;
    }
    assert!(total > 600 * CLIENTS);
}
