//! Sessions that end while calls are under way.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use embar_rpc::session::{Address, CloseReason, Redirect, Server, Settings};
use embar_rpc::{Channel, ChannelSettings, Code, Router, RouterSettings};

use crate::support::proto::{TestingClient, TestingServer};
use crate::support::{LONG, Pair, block_on, loopback, number, obedient, text, until};

/// Set in a process that is a server.
const SERVER: &str = "EMBAR_TEST_RPC_SERVER";

/// Not a test by itself: what `a_server_that_is_killed` starts.
#[test]
#[expect(clippy::print_stdout, reason = "the other process reads it")]
fn server_process() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let (service, _events) = obedient();
    let router = Router::new().add_service(TestingServer::new(service));
    let server = router.start(Server::builder().listen(loopback())).unwrap();
    println!("\nlistening on {}", server.address());
    std::thread::sleep(LONG);
}

#[test]
fn a_server_that_is_killed_ends_the_calls_that_it_had() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["ends::server_process", "--exact", "--nocapture"])
        .env(SERVER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let address = output.lines().find_map(|line| {
        let address = line.unwrap().strip_prefix("listening on ")?.to_owned();
        Some(address.parse::<Address>().unwrap())
    });
    let client = embar_rpc::client(Settings::default()).unwrap();
    let channel = Channel::connect(&client, address.unwrap()).unwrap();
    let testing = TestingClient::new(channel.clone());
    let (hold, stream) = (text("hold"), number(0, 0));
    let mut call = testing.obey(&hold);
    call.start().unwrap();
    let mut items = testing.count(&stream);
    items.start().unwrap();
    // All that was sent before has arrived when this is back.
    testing.echo(&text("hello")).wait().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    let status = call.wait().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.may_have_run());
    let status = block_on(items.next()).unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(items.wait_next().is_none());
    let status = testing.echo(&text("hello")).wait().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.may_have_run(), "{status}");
    assert_eq!(channel.stats().in_flight, 0);
}

#[test]
fn who_waits_for_its_turn_learns_that_the_session_ended() {
    let settings = ChannelSettings::default().with(|settings| settings.max_in_flight = 1);
    let pair = Pair::with(|router| router, settings);
    let request = text("hold");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    let (server_call, reply) = pair.held();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.testing.echo(&text("hello")).wait());
        until("it waits", || pair.channel.stats().waiting == 1);
        pair.channel.session().abort();
        let status = waiting.join().unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.may_have_run());
    });
    assert!(call.wait().unwrap_err().may_have_run());
    until("the server learns it", || server_call.is_cancelled());
    // Nobody is there to get it.
    reply.send(&text("too late"));
}

#[test]
fn a_server_that_shuts_down_ends_its_calls() {
    let pair = Pair::new();
    let request = text("hold");
    let mut call = pair.testing.obey(&request);
    call.start().unwrap();
    let (_, reply) = pair.held();
    let Pair { server, .. } = pair;
    server.shutdown(Duration::from_millis(1));
    let status = call.wait().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop(reply);
}

#[test]
fn what_was_answered_before_a_polite_end_arrives() {
    for shut_down in [false, true] {
        let most = |settings: &mut RouterSettings| settings.max_waiting_bytes = 16 << 20;
        let pair = Pair::with(|router| router.with(most), ChannelSettings::default());
        let request = text("hold");
        let mut calls: Vec<_> = (0..250).map(|_| pair.testing.obey(&request)).collect();
        for call in &mut calls {
            call.start().unwrap();
        }
        let held: Vec<_> = calls.iter().map(|_| pair.held()).collect();
        let session = held[0].0.session().clone();
        // 15 MB at once: most of it waits for room.
        let answer = text(&"x".repeat(60_000));
        for (_, reply) in held {
            reply.send(&answer);
        }
        let Pair { server, .. } = pair;
        let ending = match shut_down {
            true => std::thread::spawn(move || server.shutdown(LONG)),
            false => std::thread::spawn(move || {
                session.close();
                until("it is over", || session.closed().is_some());
                drop(server);
            }),
        };
        for call in calls {
            let reply = call.wait().unwrap();
            assert_eq!(reply.view().unwrap().text, answer.text);
        }
        ending.join().unwrap();
    }
}

#[test]
fn a_channel_leaves_a_server_that_asks_for_it_when_its_calls_have_ended() {
    let settings = ChannelSettings::default().with(|settings| settings.max_in_flight = 2);
    let pair = Pair::with(|router| router, settings);
    let (hold, count) = (text("hold"), number(0, 0));
    let mut call = pair.testing.obey(&hold);
    call.start().unwrap();
    let mut items = pair.testing.count(&count);
    items.start().unwrap();
    let (_, reply) = pair.held();
    let (_, mut sink) = pair.stream();
    assert_eq!(pair.channel.farewell(), None);
    let error = |status: embar_rpc::Status| {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.may_have_run());
        assert!(status.text().contains("127.0.0.1:7"), "{status}");
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.testing.echo(&text("hello")).wait());
        until("it waits", || pair.channel.stats().waiting == 1);
        let elsewhere = Redirect::to("127.0.0.1:7").unwrap().after(LONG);
        for session in pair.server.sessions().sessions() {
            session.goodbye_to(&elsewhere);
        }
        error(waiting.join().unwrap().unwrap_err());
    });
    let farewell = pair.channel.farewell().unwrap();
    assert_eq!(farewell.redirect.as_deref(), Some("127.0.0.1:7"));
    assert_eq!(farewell.after, LONG);
    error(pair.testing.echo(&hold).wait().unwrap_err());
    let mut refused = pair.testing.count(&count);
    error(block_on(refused.next()).unwrap().unwrap_err());
    // What was in flight goes on.
    reply.send(&text("done"));
    assert_eq!(call.wait().unwrap().view().unwrap().text, "done");
    for index in 0..200 {
        let sending = std::thread::spawn(move || {
            sink.wait_send(&number(index, 0)).unwrap();
            sink
        });
        let item = items.wait_next().unwrap().unwrap();
        assert_eq!(item.view().unwrap().number, index);
        sink = sending.join().unwrap();
    }
    assert_eq!(pair.channel.session().closed(), None);
    sink.finish(Ok(()));
    assert!(items.wait_next().is_none());
    until("it leaves", || pair.server.sessions().stats().sessions == 0);
    let why = pair.channel.session().closed().unwrap();
    assert_eq!(why.reason, CloseReason::Finished);
}

#[test]
fn a_channel_without_calls_leaves_at_once() {
    let pair = Pair::new();
    assert_eq!(pair.echo("hello"), "hello");
    for session in pair.server.sessions().sessions() {
        session.goodbye();
    }
    until("it leaves", || pair.server.sessions().stats().sessions == 0);
    assert!(pair.channel.farewell().is_some());
}

#[test]
fn a_channel_that_is_given_up_on_its_way_leaves_no_session() {
    let pair = Pair::new();
    let client = embar_rpc::client(Settings::default()).unwrap();
    for _ in 0..10 {
        drop(Channel::open(
            &client,
            pair.server.address(),
            ChannelSettings::default(),
        ));
    }
    until("all of them came and went", || {
        let stats = pair.server.sessions().stats();
        stats.opened == 11 && stats.sessions == 1
    });
    assert_eq!(pair.echo("hello"), "hello");
}
