//! Calls beyond what there may be, and rings that are full.

use std::thread;

use embar_rpc::session::{
    self, CloseReason, MIN_IDLE_TIMEOUT, MemoryBudget, NO_REPLY_ROOM, Settings,
};
use embar_rpc::{Call, ChannelSettings, Code, Router, RouterSettings, frame};

use crate::rude::{ECHO, HOLD, OBEY, Rude, request};
use crate::support::proto::{TestingServer, Text};
use crate::support::{LONG, Pair, loopback, number, obedient, text, until};

#[test]
fn a_client_has_no_more_in_flight_than_the_server_takes() {
    let pair = Pair::with(
        |router| router.with(|settings| settings.max_in_flight = 2),
        ChannelSettings::default(),
    );
    assert_eq!(pair.channel.stats().max_in_flight, 2);
    let request = text("hold");
    let mut calls: Vec<_> = (0..2).map(|_| pair.testing.obey(&request)).collect();
    for call in &mut calls {
        call.start().unwrap();
    }
    let mut held = vec![pair.held().1, pair.held().1];
    thread::scope(|scope| {
        let echoes: Vec<_> = (0..5)
            .map(|index| scope.spawn(move || index))
            .map(|index| index.join().unwrap().to_string())
            .map(|what| {
                scope.spawn({
                    let pair = &pair;
                    move || assert_eq!(pair.echo(&what), what)
                })
            })
            .collect();
        until("they wait", || pair.channel.stats().waiting == 5);
        assert_eq!(pair.server.stats().methods()[0].calls, 0);
        held.pop().unwrap().send(&text("done"));
        let done = calls.remove(0);
        let also = calls.remove(0);
        // Whichever it was.
        held.pop().unwrap().send(&text("done"));
        done.wait().unwrap();
        also.wait().unwrap();
        for echo in echoes {
            echo.join().unwrap();
        }
    });
    pair.until_quiet();
}

#[test]
fn more_than_may_wait_fail_at_once() {
    let settings = ChannelSettings::default().with(|settings| {
        settings.max_in_flight = 1;
        settings.max_waiting = 0;
    });
    let pair = Pair::with(|router| router, settings);
    let request = text("hold");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    let (_, reply) = pair.held();
    let status = pair.error("fail");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_run());
    reply.send(&text("done"));
    call.wait().unwrap();
    pair.until_quiet();
}

/// Sessions whose rings are full after few replies.
fn small() -> Settings {
    Settings::default().with(|settings| {
        settings.send_ring_bytes = 16 << 10;
        settings.recv_ring_bytes = 16 << 10;
        settings.sockets.loopback_send_buffer_bytes = Some(16 << 10);
        settings.sockets.recv_buffer_bytes = Some(16 << 10);
    })
}

fn long() -> Text {
    text(&"x".repeat(4000))
}

#[test]
fn replies_that_find_no_room_wait_for_it() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(router, events, small(), ChannelSettings::default());
    let request = text("hold");
    let mut calls: Vec<_> = (0..100).map(|_| pair.testing.obey(&request)).collect();
    for call in &mut calls {
        call.start().unwrap();
    }
    // All at once, from a thread that does not wait.
    let held: Vec<_> = calls.iter().map(|_| pair.held().1).collect();
    for reply in held {
        reply.send(&long());
    }
    for call in calls {
        assert_eq!(
            call.timeout(LONG).wait().unwrap().view().unwrap().text,
            long().text
        );
    }
    pair.until_quiet();
}

#[test]
fn a_client_that_reads_gets_all_replies_however_many_come_at_once() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(router, events, small(), ChannelSettings::default());
    let request = text("hold");
    let mut calls: Vec<_> = (0..200).map(|_| pair.testing.obey(&request)).collect();
    for call in &mut calls {
        call.start().unwrap();
    }
    let held: Vec<_> = calls.iter().map(|_| pair.held().1).collect();
    // They come faster than any peer reads, and more of them than all buffers hold.
    let answer = text(&"x".repeat(8000));
    for reply in held {
        reply.send(&answer);
    }
    for call in calls {
        let reply = call.timeout(LONG).wait().unwrap();
        assert_eq!(reply.view().unwrap().text, answer.text);
    }
    pair.until_quiet();
}

#[test]
fn a_client_that_takes_nothing_loses_its_session_after_the_idle_timeout() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let sessions = Settings::default().with(|settings| {
        settings.session.idle_timeout = MIN_IDLE_TIMEOUT;
    });
    let pair = Pair::of(router, events, sessions, ChannelSettings::default());
    // 12 MB, more than all buffers hold.
    let (_stuck, call) = stuck(&pair);
    until("its session ends", || call.session().closed().is_some());
    assert_eq!(call.session().closed().unwrap().reason, CloseReason::Full);
    // The channel's session may have ended, too: so short a timeout is over sooner than a busy machine gives it a turn.
    until("calls end", || {
        let methods = pair.server.stats().methods();
        methods.iter().all(|method| method.in_flight == 0)
    });
}

/// A client that reads nothing, and whose ring is full of replies. More of them wait.
fn stuck(pair: &Pair) -> (Rude, Call) {
    let stuck = Rude::that_reads_nothing(pair);
    for slot in 0..200 {
        stuck.send(frame::REQUEST, &request(slot, 1, OBEY, 0, HOLD));
    }
    let held: Vec<_> = (0..200).map(|_| pair.held()).collect();
    let call = held[0].0.clone();
    let answer = text(&"x".repeat(60_000));
    for (_, reply) in held {
        reply.send(&answer);
    }
    (stuck, call)
}

#[test]
fn a_client_that_takes_nothing_and_goes_on_to_ask_loses_its_session() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let sessions = Settings::default().with(|settings| {
        settings.session.idle_timeout = MIN_IDLE_TIMEOUT;
        settings.session.reply_room = NO_REPLY_ROOM;
    });
    let pair = Pair::of(router, events, sessions, ChannelSettings::default());
    let (stuck, call) = stuck(&pair);
    let question = request(200, 1, 12345, 0, b"");
    until("its session ends", || {
        let fill = |to: &mut [u8]| to.copy_from_slice(&question);
        let _ = stuck
            .session
            .send_with(frame::REQUEST, question.len(), fill);
        call.session().closed().is_some()
    });
    assert_eq!(call.session().closed().unwrap().reason, CloseReason::Full);
}

#[test]
fn no_request_is_taken_before_all_replies_are_on_their_way() {
    let most = |settings: &mut RouterSettings| settings.max_waiting_bytes = 16 << 20;
    let pair = Pair::with(|router| router.with(most), ChannelSettings::default());
    let (slow, _call) = stuck(&pair);
    slow.send(frame::REQUEST, &request(200, 1, 12345, 0, b""));
    slow.takes(10);
    for _ in 0..10 {
        assert_eq!(slow.end().3, Code::Ok);
    }
    assert_eq!(pair.server.stats().unknown(), 0);
    slow.takes(usize::MAX);
    for _ in 10..200 {
        assert_eq!(slow.end().3, Code::Ok);
    }
    assert_eq!(slow.end().3, Code::Unimplemented);
    pair.until_quiet();
}

#[test]
fn a_reply_that_no_ring_has_room_for_beside_others_fails_its_call() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let sessions = Settings::default().with(|settings| settings.send_ring_bytes = 64 << 10);
    let pair = Pair::of(router, events, sessions, ChannelSettings::default());
    let (stuck, call) = stuck(&pair);
    let ended = &pair.server.stats().methods()[1].ended;
    let codes: Vec<_> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted], "{ended:?}");
    stuck.takes(usize::MAX);
    for _ in 0..200 {
        stuck.end();
    }
    assert!(call.session().closed().is_none());
    pair.until_quiet();
}

#[test]
fn one_session_has_no_more_replies_waiting_than_its_share() {
    const SHARE: usize = 1 << 20;
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let router = router.with(|settings| settings.max_waiting_bytes = SHARE);
    let budget = MemoryBudget::new(16 << 20);
    let sessions = Settings::default().with(|settings| settings.budget = Some(budget.clone()));
    let pair = Pair::of(router, events, sessions, ChannelSettings::default());
    let before = budget.used();
    let (_stuck, call) = stuck(&pair);
    let settings = Settings::default();
    let rings = settings.send_ring_bytes + settings.recv_ring_bytes;
    assert!(budget.used() <= before + rings + SHARE, "{budget:?}");
    let ended = &pair.server.stats().methods()[1].ended;
    let codes: Vec<_> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted], "{ended:?}");
    assert!(call.session().closed().is_none());
    call.session().abort();
    pair.until_quiet();
}

#[test]
fn what_is_refused_while_replies_wait_is_ended_as_well() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(
        router,
        events,
        Settings::default(),
        ChannelSettings::default(),
    );
    let rude = Rude::connect(&pair);
    let answer = text(&"x".repeat(60_000));
    for round in 1..20 {
        for slot in 0..50 {
            rude.send(frame::REQUEST, &request(slot, round, OBEY, 0, HOLD));
        }
        let held: Vec<_> = (0..50).map(|_| pair.held().1).collect();
        // The others have no method, and slots that are first used in the next rounds.
        let first = 50 + 5 * round;
        let answer = answer.clone();
        let answering = thread::spawn(move || {
            held.into_iter().for_each(|reply| reply.send(&answer));
        });
        for slot in first..first + 5 {
            rude.send(frame::REQUEST, &request(slot, round, 12345, 0, b""));
            rude.send(frame::REQUEST, &request(slot - 5, round, ECHO, 0, b""));
        }
        answering.join().unwrap();
        for _ in 0..60 {
            rude.end();
        }
    }
    assert!(rude.closed.try_recv().is_err());
    pair.until_quiet();
}

#[test]
fn replies_that_find_no_memory_to_wait_in_fail_their_calls() {
    // Their short answers alone are more than the kernel takes in both directions, which it may not yet have taken when the long ones are over.
    const CALLS: u32 = 3200;
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let router = router.with(|settings| settings.max_in_flight = CALLS);
    let budget = MemoryBudget::new(16 << 20);
    let sessions = Settings::default().with(|settings| settings.budget = Some(budget.clone()));
    let pair = Pair::of(router, events, sessions, ChannelSettings::default());
    let stuck = Rude::that_reads_nothing(&pair);
    for slot in 0..CALLS {
        stuck.send(frame::REQUEST, &request(slot, 1, OBEY, 0, HOLD));
    }
    let mut held: Vec<_> = (0..CALLS).map(|_| pair.held()).collect();
    let short = held.split_off(200);
    let call = held[0].0.clone();
    let others = budget.try_reserve(budget.limit() - budget.used()).unwrap();
    let answer = text(&"x".repeat(60_000));
    for (_, reply) in held {
        reply.send(&answer);
    }
    let ended = &pair.server.stats().methods()[1].ended;
    let codes: Vec<_> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted], "{ended:?}");
    // Also replies that are no longer than a status.
    let failed = || pair.server.stats().methods()[1].ended[1].1;
    let before = failed();
    let answer = text(&"x".repeat(2000));
    for (_, reply) in short {
        reply.send(&answer);
    }
    assert!(failed() > before);
    assert!(call.session().closed().is_none());
    assert_eq!(budget.used(), budget.limit());
    drop(others);
    call.session().abort();
    pair.until_quiet();
}

#[test]
fn requests_that_find_no_room_wait_for_it() {
    let (service, events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let pair = Pair::of(router, events, small(), ChannelSettings::default());
    let what = "x".repeat(6000);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(pair.echo(&what), what);
                }
            });
        }
    });
    pair.until_quiet();
}

#[test]
fn handlers_must_not_wait() {
    struct Calls(
        embar_rpc::Channel,
        std::sync::mpsc::Sender<embar_rpc::Status>,
    );
    impl session::Handler for Calls {
        fn opened(&mut self, _: &session::Session, _: &[u8]) {
            let testing = crate::support::proto::TestingClient::new(self.0.clone());
            let status = testing.echo(&text("hello")).wait().unwrap_err();
            self.1.send(status).unwrap();
            let number = number(3, 0);
            let mut items = testing.count(&number);
            // One error, and then nothing: who takes items until the end does not do so for ever.
            while let Some(item) = items.wait_next() {
                self.1.send(item.unwrap_err()).unwrap();
            }
            let mut items = testing.count(&number);
            items.start().unwrap();
            assert!(items.wait_next().unwrap().unwrap_err().may_have_run());
            assert!(items.wait_next().is_none());
        }

        fn message(&mut self, _: &session::Session, _: session::Message<'_>) -> session::Flow {
            session::Flow::Continue
        }
    }
    let pair = Pair::new();
    let (told, seen) = std::sync::mpsc::channel();
    let channel = pair.channel.clone();
    let server = session::Server::builder().listen(loopback());
    let told = std::sync::Mutex::new(told);
    let server = server
        .start(move |_| Calls(channel.clone(), told.lock().unwrap().clone()))
        .unwrap();
    let client = session::Client::new().unwrap();
    struct Nothing;
    impl session::Handler for Nothing {
        fn message(&mut self, _: &session::Session, _: session::Message<'_>) -> session::Flow {
            session::Flow::Continue
        }
    }
    client.connect(server.address(), Nothing).unwrap();
    for _ in 0..2 {
        let status = seen.recv_timeout(LONG).unwrap();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(!status.may_have_run());
    }
    assert!(seen.try_recv().is_err());
    pair.until_quiet();
}
