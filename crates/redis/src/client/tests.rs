//! What only somebody within the crate can arrange: names that take long to look up, and looks at
//! what waits.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_mux::block_on;
use embar_redis_servers::{Options, Server};

use super::keeper::Keeper;
use super::{Client, Node};
use crate::command::Class;
use crate::commands::strings::StringCommands;
use crate::config::{Config, Endpoint};
use crate::error::Error;
use crate::pubsub::{Event, Kind};

/// How long a slow name server takes.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Less than that by far, and enough for everything else on a busy machine.
const SOON: Duration = Duration::from_millis(500);

/// The names that a slow name server knows; all of them are this machine.
pub(super) fn look_up(host: &str) -> Option<&'static str> {
    host.starts_with("slow").then(|| {
        std::thread::sleep(LOOK_UP);
        "127.0.0.1"
    })
}

fn server() -> Server {
    Server::start(&Options::default()).expect("redis-server runs")
}

fn at(host: &str, server: &Server) -> Config {
    Config {
        // The first lookup is within it, others are not waited for.
        timeout: Duration::from_secs(5),
        ..Config::standalone(Endpoint::tcp(host, server.port()))
    }
}

#[test]
fn who_waits_for_time_to_pass_does_not_wait_for_names() {
    let mut server = server();
    let client = Client::with_blocking(at("slow", &server)).expect("it connects");
    server.kill();
    for _ in 0..3 {
        let started = Instant::now();
        let get = client.get::<Option<u8>, _>("key");
        let error = get.timeout(Duration::from_millis(50)).wait();
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[test]
fn a_subscriber_is_not_locked_while_a_name_is_looked_up() {
    let server = server();
    let client = Client::with_blocking(at("slow", &server)).expect("it connects");
    let mut subscriber = client.subscriber(10);
    let subscribed = subscriber.subscribe_blocking(Kind::Channel, "news");
    subscribed.expect("it is confirmed");
    let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
    server.command(&kill).expect("it answers");
    assert_eq!(subscriber.next_blocking(), Ok(Event::Interrupted));
    let mut longest = Duration::ZERO;
    let cx = &mut Context::from_waker(Waker::noop());
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        let started = Instant::now();
        assert!(subscriber.poll_next(cx).is_pending());
        subscriber.unsubscribe(Kind::Channel, "other");
        longest = longest.max(started.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(longest < SOON / 2, "{longest:?}");
    let again = subscriber.subscribe_blocking(Kind::Channel, "news");
    assert_eq!(again, Ok(()));
}

fn sleepers(keeper: &Keeper) -> usize {
    keeper.sleepers(|sleepers| sleepers.len())
}

#[test]
fn who_waits_is_registered_once_and_who_does_not_is_not() {
    let mut server = server();
    let client = Client::with_blocking(at("127.0.0.1", &server)).expect("it connects");
    server.kill();
    let keeper = &client.inner.keeper;
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut gets: Vec<_> = (0..10)
            .map(|_| client.get::<Option<u8>, _>("key"))
            .collect();
        for _ in 0..100 {
            for get in &mut gets {
                assert!(pin!(get).poll(cx).is_pending());
            }
            assert!(sleepers(keeper) <= 10, "{}", sleepers(keeper));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(sleepers(keeper) > 0);
    }
    assert_eq!(sleepers(keeper), 0);
    let subscriber = client.subscriber(1);
    {
        let mut subscribe = pin!(subscriber.subscribe(Kind::Channel, "news"));
        for _ in 0..100 {
            assert!(subscribe.as_mut().poll(cx).is_pending());
        }
        assert_eq!(sleepers(keeper), 1);
    }
    assert_eq!(sleepers(keeper), 0);
}

#[test]
fn a_connection_of_a_node_that_left_is_not_closed_while_somebody_may_use_it() {
    let server = server();
    let config = at("127.0.0.1", &server);
    let client = Client::with_blocking(config.clone()).expect("it connects");
    let keeper = &client.inner.keeper;
    let node = Node::new(config.seeds[0].clone(), 1, keeper);
    let conn = block_on(|cx| node.link(0).poll_conn(cx));
    node.retire(keeper);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(
        node.link(0).poll_conn(cx).is_pending(),
        "nobody else gets it"
    );
    // It is looked at many times.
    std::thread::sleep(Duration::from_millis(500));
    let ping = b"*1\r\n$4\r\nPING\r\n";
    let class = Class::Write as u8;
    let fill = |out: &mut [u8]| out.copy_from_slice(ping);
    let call = conn.submit(ping.len(), 1, class, None, None, fill);
    let watch = Arc::downgrade(&conn);
    drop(conn);
    let answer = call.expect("it is open").wait(|reply| reply.clone());
    assert_eq!(answer, Ok(b"+PONG\r\n".to_vec()));
    let begin = Instant::now();
    while watch.strong_count() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is closed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_future_that_waits_for_a_node_that_left_is_polled_again() {
    let server = server();
    let config = at("127.0.0.1", &server);
    let client = Client::with_blocking(config.clone()).expect("it connects");
    let keeper = &client.inner.keeper;
    let node = Node::new(config.seeds[0].clone(), 1, keeper);
    node.retire(keeper);
    let mut polled = 0;
    block_on(|cx| {
        polled += 1;
        match node.link(0).poll_conn(cx) {
            Poll::Pending if polled < 2 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    });
    assert_eq!(polled, 2);
}
