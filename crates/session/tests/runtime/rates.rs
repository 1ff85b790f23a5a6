//! How fast peers may send.

use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_session::{
    Beyond, Client, CloseReason, Plain, Rate, RateLimit, Rates, SendError, Server, Settings, Side,
    StartError,
};

use crate::support::{
    Echo, Event, LONG, closed, echo_server, in_time, loopback, message, recorder, recording_server,
    until, with_bodies,
};

fn rate(per_second: u64, burst: u64) -> Option<Rate> {
    Some(Rate { per_second, burst })
}

fn with_rates(change: impl FnOnce(&mut Rates)) -> Settings {
    let mut settings = with_bodies();
    change(&mut settings.rates);
    settings
}

fn limited(server: &Server) -> Vec<RateLimit> {
    let all = server.monitor().limited_by_rate();
    all.into_iter().map(|(limit, _)| limit).collect()
}

#[test]
fn messages_beyond_a_rate_come_later_and_disturb_nobody() {
    let settings = with_rates(|rates| rates.session_messages = rate(100, 10));
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let (flood, echoes) = recorder();
    let began = Instant::now();
    let flood = client.connect(server.address(), flood).unwrap();
    for number in 0..60u8 {
        flood.send_with(1, 1, |to| to[0] = number).unwrap();
    }
    // Another session has its own bucket.
    let (honest, answers) = recorder();
    let honest = client.connect(server.address(), honest).unwrap();
    for number in 0..10u8 {
        honest.send_with(2, 1, |to| to[0] = number).unwrap();
        assert_eq!(message(&answers), (2, vec![number]));
    }
    for number in 0..60u8 {
        assert_eq!(message(&echoes), (1, vec![number]), "nothing is lost");
    }
    // It cannot have been faster: 50 messages at 100 in a second.
    assert!(began.elapsed() >= Duration::from_millis(490));
    assert_eq!(limited(&server), [RateLimit::SessionMessages]);
    assert!(flood.closed().is_none());
}

#[test]
fn bytes_count_those_of_bodies() {
    let settings = with_rates(|rates| rates.session_bytes = rate(1 << 20, 64 << 10));
    let (server, seen) = recording_server(settings, loopback());
    let client = Client::with(Plain, with_bodies()).unwrap();
    let began = Instant::now();
    let session = client.connect(server.address(), recorder().0).unwrap();
    let body = Arc::new(vec![7; 600 << 10].into());
    session.send_body(3, b"", body).unwrap();
    session.send_with(1, 1, |to| to[0] = 1).unwrap();
    let body = loop {
        match seen.recv_timeout(LONG).unwrap() {
            Event::Body(_, bytes) => break bytes,
            Event::Closed(why) => panic!("{why}"),
            _ => {}
        }
    };
    assert_eq!(body.len(), 600 << 10);
    assert_eq!(message(&seen), (1, vec![1]));
    // What comes behind the body waits until the rate has paid for that.
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(limited(&server), [RateLimit::SessionBytes]);
}

/// Reads of a ring or a body at once would make the pause after them so long that an honest peer, which sees nothing
/// taken, gives this end up.
#[test]
fn bytes_come_in_at_their_rate_however_much_waits() {
    const RATE: u64 = 20_000;
    const BURST: u64 = 4_000;
    let settings = with_rates(|rates| rates.session_bytes = rate(RATE, BURST));
    for in_a_lane in [false, true] {
        let settings = settings.clone().with(|settings| {
            settings.session.body_lanes = u8::from(in_a_lane);
        });
        let server = echo_server(settings.clone(), loopback());
        let began = Instant::now();
        let client = Client::with(Plain, settings.with(|it| it.rates = Rates::default())).unwrap();
        let session = client.connect(server.address(), recorder().0).unwrap();
        for _ in 0..10 {
            session.send_with(1, 1000, |to| to.fill(7)).unwrap();
        }
        let body = Arc::new(vec![7; 1 << 20].into());
        session.send_body_on(1, 3, b"", body).unwrap();
        until("much came", || {
            let came = server.sessions()[0].stats().bytes_received;
            let most = BURST + began.elapsed().as_micros() as u64 * RATE / 1_000_000;
            assert!(came <= most, "{came} bytes, at most {most}");
            came >= 30_000
        });
        assert_eq!(limited(&server), [RateLimit::SessionBytes]);
    }
}

/// However low its limit is, a session that is held to it costs its worker little.
#[test]
fn who_floods_is_read_seldom_and_counts_once_a_second() {
    const RATE: u64 = 4_000;
    let settings = with_rates(|rates| rates.session_bytes = rate(RATE, 500));
    let server = echo_server(settings, loopback());
    let began = Instant::now();
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), recorder().0).unwrap();
    for _ in 0..200 {
        session.send_with(1, 1000, |to| to.fill(7)).unwrap();
    }
    until("much came", || {
        let stats = server.sessions()[0].stats();
        // What comes back in a sixteenth of a second, in two reads at most; and the handshake.
        let most = 2 * stats.bytes_received / (RATE / 16) + 10;
        assert!(stats.reads <= most, "{stats:?}, at most {most} reads");
        stats.bytes_received >= 6_000
    });
    let counted: u64 = server
        .monitor()
        .limited_by_rate()
        .iter()
        .map(|it| it.1)
        .sum();
    let most = began.elapsed().as_secs() + 1;
    assert!((1..=most).contains(&counted), "{counted}, at most {most}");
}

/// What is received and not handed over keeps its sender from going on.
#[test]
fn no_more_is_received_ahead_than_messages_may_come() {
    const FRAME: u64 = 108;
    let settings = with_rates(|rates| rates.session_messages = rate(50, 5));
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), recorder().0).unwrap();
    for _ in 0..500 {
        session.send_with(1, 100, |to| to.fill(7)).unwrap();
    }
    until("some came", || {
        let stats = server.sessions()[0].stats();
        // HELLO, what is ahead, and what came between the two looks.
        let most = (stats.messages_received + 15) * FRAME;
        assert!(stats.bytes_received <= most, "{stats:?}");
        stats.messages_received >= 40
    });
}

#[test]
fn who_goes_beyond_a_rate_may_be_closed_and_learns_why() {
    let settings = with_rates(|rates| {
        rates.session_messages = rate(1, 20);
        rates.beyond = Beyond::Close;
    });
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let (honest, answers) = recorder();
    let honest = client.connect(server.address(), honest).unwrap();
    let (flood, seen) = recorder();
    let flood = client.connect(server.address(), flood).unwrap();
    in_time("it is closed", move || {
        while flood.send_with(1, 8, |to| to.fill(0)) != Err(SendError::Closed) {
            std::thread::yield_now();
        }
    });
    let why = closed(&seen);
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::RateLimited));
    assert!(why.text.contains("messages of one session"), "{why}");
    // All of its burst is still there.
    for number in 0..20u8 {
        honest.send_with(2, 1, |to| to[0] = number).unwrap();
    }
    for number in 0..20u8 {
        assert_eq!(message(&answers), (2, vec![number]));
    }
    until("it is counted", || {
        let reasons = server.monitor().closed_by_reason();
        reasons.contains(&(CloseReason::RateLimited.name(), 1))
    });
    assert_eq!(limited(&server), [RateLimit::SessionMessages]);
}

#[test]
fn sessions_of_an_address_share_its_rate_also_one_after_the_other() {
    let settings = with_rates(|rates| {
        rates.address_messages = rate(1, 30);
        rates.beyond = Beyond::Close;
    })
    .with(|settings| settings.admission.local_is_exempt = false);
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let say = |count: u8| {
        let (handler, seen) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        for number in 0..count {
            session.send_with(1, 1, |to| to[0] = number).unwrap();
        }
        (session, seen)
    };
    for _ in 0..2 {
        let (session, seen) = say(14);
        for number in 0..14 {
            assert_eq!(message(&seen), (1, vec![number]));
        }
        session.close();
        assert_eq!(closed(&seen).reason, CloseReason::Finished);
    }
    let (_third, seen) = say(100);
    assert_eq!(closed(&seen).reason, CloseReason::RateLimited);
    assert_eq!(limited(&server), [RateLimit::AddressMessages]);
}

#[test]
fn peers_of_this_machine_have_no_rate_of_an_address_unless_told_otherwise() {
    let settings = with_rates(|rates| {
        rates.address_messages = rate(1, 1);
        rates.beyond = Beyond::Close;
    });
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for number in 0..100u8 {
        session.send_with(1, 1, |to| to[0] = number).unwrap();
        assert_eq!(message(&seen), (1, vec![number]));
    }
    assert_eq!(limited(&server), []);
}

#[test]
fn a_delayed_session_ends_when_it_is_to() {
    let settings = with_rates(|rates| rates.session_messages = rate(1, 1));
    let (server, seen) = recording_server(settings, loopback());
    let client = Client::new().unwrap();
    let (handler, _kept) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for _ in 0..50 {
        session.send_with(1, 1, |to| to[0] = 1).unwrap();
    }
    until("it is held", || !limited(&server).is_empty());
    server.sessions()[0].close();
    assert_eq!(closed(&seen).reason, CloseReason::Finished);
    in_time("the server ends", move || server.shutdown(LONG));
}

#[test]
fn a_rate_that_lets_nothing_through_is_an_error_at_the_start() {
    let settings = with_rates(|rates| rates.session_bytes = rate(0, 1));
    let started = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(|_| Echo);
    let Err(StartError::Workers(error)) = started else {
        panic!("it started");
    };
    assert!(error.to_string().contains("a rate of 0"), "{error}");
}
