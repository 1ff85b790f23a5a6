//! What happens at each limit, and that each setting acts.

use std::time::Duration;

use embar_resume::core::SEGMENT_BYTES;
use embar_resume::{
    ConnectorSettings, End, Keeper, KeeperSettings, Restart, Resumable, State, Target, WhyFresh,
    program_greeting,
};
use embar_session::{
    MemoryBudget, OnFull, Priority, Refusal, Reserve, SendError, Server, Settings, Side,
};

use crate::support::{
    LONG, Proxy, Site, connect, connector, ended, expect, is_open, loopback, number, opened, quick,
    recorder, restarted, resumed, send, suspended, until,
};
use crate::wire::{self, Wire};

fn nowhere(proxy: &Proxy) {
    proxy.lead_to(&"127.0.0.1:1".parse().unwrap());
    proxy.cut_all();
}

/// A client whose connection is lost, and stays so.
struct Away {
    site: Site,
    proxy: Proxy,
    client: Resumable,
    seen: std::sync::mpsc::Receiver<crate::support::Event>,
    at_server: Resumable,
    _connector: embar_resume::Connector,
}

fn away(keeper: KeeperSettings, settings: ConnectorSettings) -> Away {
    let site = Site::start(keeper, false);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(settings);
    let (client, seen) = connect(&connector, &proxy.address);
    is_open(&client);
    let at_server = opened(&site.seen);
    nowhere(&proxy);
    suspended(&seen);
    suspended(&site.seen);
    until("it waits", || site.keeper.suspended() == 1);
    Away {
        site,
        proxy,
        client,
        seen,
        at_server,
        _connector: connector,
    }
}

fn fill(session: &Resumable) -> (u64, SendError) {
    let mut sent = 0;
    loop {
        match send(session, sent) {
            Ok(()) => sent += 1,
            Err(error) => return (sent, error),
        }
    }
}

#[test]
fn a_full_buffer_refuses_and_what_it_took_arrives() {
    let few =
        |messages| move |settings: &mut embar_resume::Replay| settings.max_messages = messages;
    let keeper = KeeperSettings::default().with(|it| few(5)(&mut it.replay));
    let settings = quick().with(|it| it.replay.max_bytes = 160);
    let away = away(keeper, settings);
    assert_eq!(fill(&away.client), (10, SendError::Full), "16 bytes each");
    assert_eq!(fill(&away.at_server), (5, SendError::Full));
    let long = away.client.send_with(1, 153, |_| ());
    assert_eq!(
        long,
        Err(SendError::TooLong {
            bytes: 153,
            max: 152
        })
    );
    away.proxy.lead_to(&away.site.address());
    expect(&away.site.seen, 0..10);
    expect(&away.seen, 0..5);
    until("acknowledgements", || away.client.unacknowledged() == 0);
    send(&away.client, 10).unwrap();
    expect(&away.site.seen, 10..11);
}

#[test]
fn senders_wait_for_acknowledgements_where_the_policy_says_so() {
    let waits = |timeout| {
        quick().with(|it| {
            it.replay.max_messages = 3;
            it.replay.on_full = OnFull::Wait { timeout };
        })
    };
    let away = away(KeeperSettings::default(), waits(LONG));
    for number in 0..3 {
        send(&away.client, number).unwrap();
    }
    let session = away.client.clone();
    let sender = std::thread::spawn(move || send(&session, 3));
    away.proxy.lead_to(&away.site.address());
    expect(&away.site.seen, 0..4);
    assert_eq!(sender.join().unwrap(), Ok(()));
    // The time counts for the stall. For each send it would be longer than this test may take.
    let away = self::away(KeeperSettings::default(), waits(Duration::from_millis(200)));
    assert_eq!(fill(&away.client), (3, SendError::Full));
    let session = away.client.clone();
    let (done, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let refused = |_| send(&session, 3) == Err(SendError::Full);
        let _ = done.send((0..1000).all(refused));
    });
    assert_eq!(end.recv_timeout(LONG), Ok(true));
}

#[test]
fn a_full_buffer_ends_the_session_where_the_policy_says_so() {
    let keeper = KeeperSettings::default().with(|it| {
        it.replay.max_messages = 3;
        it.replay.on_full = OnFull::Close;
    });
    let away = away(keeper, quick());
    assert_eq!(fill(&away.at_server), (3, SendError::Full));
    let end = ended(&away.site.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Full, 3));
    assert_eq!(send(&away.at_server, 0), Err(SendError::Closed));
    away.proxy.lead_to(&away.site.address());
    assert_eq!(restarted(&away.seen).why, WhyFresh::Ended);
}

#[test]
fn buffers_count_in_the_budget() {
    let budget = MemoryBudget::new(SEGMENT_BYTES);
    let settings = quick().with(|it| it.replay.budget = Some(budget.clone()));
    let away = away(KeeperSettings::default(), settings);
    let large = vec![1; SEGMENT_BYTES / 2 - 8];
    let send = || away.client.send_with(1, large.len(), |to| to.fill(1));
    assert_eq!(
        (send(), send(), send()),
        (Ok(()), Ok(()), Err(SendError::Full))
    );
    assert_eq!(budget.used(), SEGMENT_BYTES);
    away.client.refuse(3, "enough");
    ended(&away.seen);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_client_that_is_away_for_too_long_gets_a_fresh_session() {
    let keeper = KeeperSettings::default().with(|it| it.resume_window = Duration::from_millis(50));
    let away = away(keeper, quick());
    send(&away.at_server, 0).unwrap();
    send(&away.client, 5).unwrap();
    let end = ended(&away.site.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Expired, 1));
    assert_eq!(away.site.keeper.suspended_bytes(), 0);
    away.proxy.lead_to(&away.site.address());
    let restart = restarted(&away.seen);
    let expected = (WhyFresh::Expired, 0, 1);
    assert_eq!((restart.why, restart.in_doubt, restart.unsent), expected);
    assert!(matches!(
        away.client.state(),
        State::Restarted(Restart { .. })
    ));
    expect(&away.site.seen, 5..6);
}

#[test]
fn of_sessions_without_a_connection_the_oldest_goes_at_the_limits() {
    let keeper = KeeperSettings::default().with(|it| it.max_suspended = 2);
    let site = Site::start(keeper, false);
    let mut tokens = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let mut wire = Wire::connect(crate::support::tcp(&site.address()));
        tokens.push(wire.hello(&[], 0).token);
        sessions.push(opened(&site.seen));
        drop(wire);
        suspended(&site.seen);
    }
    assert_eq!(ended(&site.seen).why, End::Evicted);
    assert!(sessions[0].state().ended().is_some());
    assert_eq!(site.keeper.suspended(), 2);
    let resume = |token: &[u8]| {
        let mut wire = Wire::connect(crate::support::tcp(&site.address()));
        let welcome = wire.hello(token, 0);
        (welcome.outcome, welcome.fresh, wire)
    };
    let (outcome, why, _first) = resume(&tokens[0]);
    assert_eq!((outcome, why), (wire::FRESH, wire::EVICTED));
    let (outcome, _, _second) = resume(&tokens[1]);
    assert_eq!(outcome, wire::RESUMED);
}

#[test]
fn bytes_that_wait_for_clients_are_bounded_over_all() {
    let keeper = KeeperSettings::default().with(|it| it.max_suspended_bytes = 160);
    let away = away(keeper, quick());
    assert_eq!(fill(&away.at_server), (10, SendError::Full));
    assert_eq!(away.site.keeper.suspended_bytes(), 160);
    // One more comes with bytes that are there.
    let mut wire = Wire::connect(crate::support::tcp(&away.site.address()));
    wire.hello(&[], 0);
    let other = opened(&away.site.seen);
    send(&other, 0).unwrap();
    drop(wire);
    let end = ended(&away.site.seen);
    assert_eq!((end.why, end.unacknowledged), (End::Evicted, 10));
    until("its place is free", || {
        away.site.keeper.suspended_bytes() == 16
    });
    away.proxy.lead_to(&away.site.address());
    assert_eq!(restarted(&away.seen).why, WhyFresh::Evicted);
}

#[test]
fn acknowledgements_come_after_the_delay_or_when_much_is_there() {
    let site = Site::start(
        KeeperSettings::default().with(|it| it.replay.ack_delay = LONG),
        false,
    );
    let mut wire = Wire::connect(crate::support::tcp(&site.address()));
    wire.hello(&[], 0);
    for number in 0..63u64 {
        wire.message(&number.to_le_bytes());
    }
    expect(&site.seen, 0..63);
    wire.message(&63u64.to_le_bytes());
    let first = wire.until_frame(|frame| wire::control_of(frame).filter(|it| it.0 > 0));
    assert_eq!(first, (64, false));
    let site = Site::start(
        KeeperSettings::default().with(|it| it.replay.ack_delay = Duration::from_millis(1)),
        false,
    );
    let mut wire = Wire::connect(crate::support::tcp(&site.address()));
    wire.hello(&[], 0);
    wire.message(&0u64.to_le_bytes());
    wire.until_frame(|frame| wire::control_of(frame).filter(|it| it.0 == 1));
}

#[test]
fn a_client_gives_up_after_its_time() {
    let settings = quick().with(|it| it.give_up_after = Duration::from_millis(50));
    let nobody = "127.0.0.1:1".parse().unwrap();
    let connector = connector(settings);
    let (session, seen) = connect(&connector, &nobody);
    send(&session, 1).unwrap();
    let end = ended(&seen);
    assert!(matches!(end.why, End::GaveUp(_)), "{end}");
    assert_eq!(end.unacknowledged, 1);
}

#[test]
fn a_polite_end_waits_for_acknowledgements_but_not_for_ever() {
    let settings = quick().with(|it| it.replay.close_within = Duration::from_millis(100));
    let away = away(KeeperSettings::default(), settings);
    send(&away.client, 0).unwrap();
    away.client.close();
    let end = ended(&away.seen);
    assert_eq!(end.why, End::Finished { by: Side::Local });
    assert_eq!(end.unacknowledged, 1);
    // One that finds its server again in time ends with all acknowledged.
    let away = self::away(KeeperSettings::default(), quick());
    send(&away.client, 0).unwrap();
    away.client.close();
    away.proxy.lead_to(&away.site.address());
    assert_eq!(ended(&away.seen).unacknowledged, 0);
    assert_eq!(number(&away.site.seen), 0);
    assert_eq!(ended(&away.site.seen).why, End::Finished { by: Side::Peer });
    // A server closes one that is away, and the client learns it.
    let away = self::away(KeeperSettings::default(), quick());
    send(&away.at_server, 7).unwrap();
    away.at_server.close();
    away.proxy.lead_to(&away.site.address());
    resumed(&away.seen);
    assert_eq!(number(&away.seen), 7);
    assert_eq!(ended(&away.site.seen).unacknowledged, 0);
    assert_eq!(ended(&away.seen).why, End::Finished { by: Side::Peer });
}

#[test]
fn a_session_is_refused_with_a_code_with_and_without_a_connection() {
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (_, seen) = connect(&connector, &site.address());
    opened(&site.seen).refuse(77, "cheating");
    let refused = |by| End::Refused {
        by,
        code: 77,
        text: "cheating".to_owned(),
    };
    assert_eq!(ended(&site.seen).why, refused(Side::Local));
    assert_eq!(ended(&seen).why, refused(Side::Peer));
    let away = away(KeeperSettings::default(), quick());
    away.at_server.refuse(77, "cheating");
    assert_eq!(ended(&away.site.seen).why, refused(Side::Local));
}

#[test]
fn who_is_turned_away_for_a_low_priority_tries_again_until_there_is_room() {
    let keeper = Keeper::new(KeeperSettings::default()).unwrap();
    let reserve = Reserve::default().with(|reserve| reserve.from_low = 50);
    let server = Server::builder()
        .settings(Settings::default().with(|settings| settings.max_sessions = 2))
        .listen(loopback())
        .prioritize(reserve, |_, greeting| match program_greeting(greeting) {
            Some(b"high") => Priority::High,
            _ => Priority::Low,
        })
        .start(keeper.handlers(|_| recorder(false).0))
        .unwrap();
    let connector = connector(quick());
    let open = |greeting: &str| {
        let target = Target::new(server.address()).greeting(greeting);
        connector.open(target, recorder(false).0)
    };
    let first = open("low");
    is_open(&first);
    let second = open("low");
    until("it is turned away, again and again", || {
        let refused = server.monitor().refused_by_reason();
        matches!(refused[..], [(Refusal::LowPriority, 2..)])
    });
    let high = open("high");
    is_open(&high);
    for session in [first, high] {
        session.close();
    }
    is_open(&second);
}
