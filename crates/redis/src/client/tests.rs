//! Tests that need the crate's internals: names that take long to resolve, and the timers that are set.

use std::future::Future;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use embar_mux::{Connection, block_on};
use embar_redis_servers::{Options, Server};

use super::Client;
use crate::command::Class;
use crate::commands::strings::StringCommands;
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::engine::slow_names::{SLOW, TWO_ADDRESSES};
use crate::engine::{ConnWait, Node};
use crate::error::Error;
use crate::pubsub::{Event, Kind};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

fn server() -> Server {
    Server::start(&Options::default()).expect("redis-server runs")
}

fn at(host: &str, server: &Server) -> Config {
    Config {
        timeout: LONG,
        ..Config::standalone(Endpoint::tcp(host, server.port()))
    }
}

#[test]
fn timers_fire_while_a_name_resolves() {
    let mut server = server();
    let names = &SLOW[0];
    let client = Client::with_blocking(at(names.name, &server)).expect("it connects");
    names.set_silent(true);
    server.kill();
    for turn in 0..3 {
        let get = client.get::<Option<u8>, _>("key");
        let error = get.timeout(Duration::from_millis(50)).wait();
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
        if turn == 0 {
            names.until_asked();
        }
    }
    assert!(names.is_asked(), "it waited for the name");
    names.set_silent(false);
}

#[test]
fn of_several_addresses_another_one_is_next_when_the_server_has_become_a_replica() {
    let replica = server();
    let follow = replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    follow.expect("it answers");
    let port = format!("--port {}", replica.port());
    let other = Options {
        extra: vec!["--bind 127.0.0.2".to_owned(), port],
        ..Options::default()
    };
    let _other = Server::start(&other).expect("redis-server runs");
    let client = Client::with_blocking(at(TWO_ADDRESSES, &replica)).expect("it connects");
    assert_eq!(client.get::<Option<u8>, _>("key").wait(), Ok(None));
    client.set("key", 1).wait().expect("the other one takes it");
    let total = client.metrics().total();
    assert_eq!((total.left, total.connects), (1, 2));
}

#[test]
fn a_subscriber_is_not_locked_while_a_name_resolves() {
    let server = server();
    let names = &SLOW[1];
    let client = Client::with_blocking(at(names.name, &server)).expect("it connects");
    let mut subscriber = client.subscriber(10);
    let subscribed = subscriber.subscribe_blocking(Kind::Channel, "news");
    subscribed.expect("it is confirmed");
    names.set_silent(true);
    let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
    server.command(&kill).expect("it answers");
    assert_eq!(subscriber.next_blocking(), Ok(Event::Interrupted));
    names.until_asked();
    let cx = &mut Context::from_waker(Waker::noop());
    for _ in 0..50 {
        assert!(subscriber.poll_next(cx).is_pending());
        subscriber.unsubscribe(Kind::Channel, "other");
    }
    assert!(names.is_asked(), "it waited for the name");
    names.set_silent(false);
    let again = subscriber.subscribe_blocking(Kind::Channel, "news");
    assert_eq!(again, Ok(()));
}

#[test]
fn a_request_that_waits_has_one_timer_and_others_have_none() {
    let mut server = server();
    let client = Client::with_blocking(at("127.0.0.1", &server)).expect("it connects");
    server.kill();
    let shared = &client.router.shared;
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut gets: Vec<_> = (0..10)
            .map(|_| client.get::<Option<u8>, _>("key"))
            .collect();
        let begin = Instant::now();
        let mut registered = 0;
        while registered < 100 {
            for get in &mut gets {
                assert!(pin!(get).poll(cx).is_pending());
            }
            assert!(
                shared.schedule.timers() <= 10,
                "{}",
                shared.schedule.timers()
            );
            registered += usize::from(shared.schedule.timers() > 0);
            assert!(begin.elapsed() < LONG / 2, "no request waits");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(shared.schedule.timers(), 0);
    let subscriber = client.subscriber(1);
    {
        let mut subscribe = pin!(subscriber.subscribe(Kind::Channel, "news"));
        for _ in 0..100 {
            assert!(subscribe.as_mut().poll(cx).is_pending());
        }
        assert_eq!(shared.schedule.timers(), 1);
    }
    assert_eq!(shared.schedule.timers(), 0);
}

#[test]
fn a_connection_of_a_node_that_left_stays_open_while_callers_may_use_it() {
    let server = server();
    let config = at("127.0.0.1", &server);
    let client = Client::with_blocking(config.clone()).expect("it connects");
    let shared = &client.router.shared;
    let node = Node::new(config.seeds[0].clone(), shared);
    let mut wait = ConnWait::default();
    let conn = block_on(|cx| node.connection(0).poll_conn(&mut wait, cx));
    node.retire(&shared.schedule);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(
        node.connection(0).poll_conn(&mut wait, cx).is_pending(),
        "no other caller gets it"
    );
    // The thread looks at all that left together: when it has closed another one, it has looked at this
    // one.
    for _ in 0..3 {
        let other = Node::new(config.seeds[0].clone(), shared);
        let mut wait = ConnWait::default();
        let conn = block_on(|cx| other.connection(0).poll_conn(&mut wait, cx));
        let watch = Arc::downgrade(&conn);
        drop(conn);
        other.retire(&shared.schedule);
        until_closed(&watch);
    }
    let ping = b"*1\r\n$4\r\nPING\r\n";
    let class = Class::Write as u8;
    let fill = |out: &mut [u8]| out.copy_from_slice(ping);
    let call = conn.submit(ping.len(), 1, class, None, None, fill);
    let watch = Arc::downgrade(&conn);
    drop(conn);
    let answer = call.expect("it is open").wait(|reply| reply.clone());
    assert_eq!(answer, Ok(b"+PONG\r\n".to_vec()));
    until_closed(&watch);
}

fn until_closed(conn: &Weak<Connection>) {
    let begin = Instant::now();
    while conn.strong_count() > 0 {
        assert!(begin.elapsed() < LONG, "it is never closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_future_that_waits_for_a_node_that_left_is_polled_again() {
    let server = server();
    let config = at("127.0.0.1", &server);
    let client = Client::with_blocking(config.clone()).expect("it connects");
    let shared = &client.router.shared;
    let node = Node::new(config.seeds[0].clone(), shared);
    node.retire(&shared.schedule);
    let (mut polled, mut wait) = (0, ConnWait::default());
    block_on(|cx| {
        polled += 1;
        match node.connection(0).poll_conn(&mut wait, cx) {
            Poll::Pending if polled < 2 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    });
    assert_eq!(polled, 2);
}

/// A waker of a task, which is to be dropped with it.
struct TaskWaker;

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn callers_that_give_up_in_an_outage_leave_nothing() {
    let server = server();
    // It lets a connection in, and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = silent.local_addr().expect("it has one").port();
    let mut config = at("127.0.0.1", &server);
    config.connect_timeout = LONG;
    let client = Client::with_blocking(config).expect("it connects");
    let node = Node::new(Endpoint::tcp("127.0.0.1", port), &client.router.shared);
    let connection = node.connection(0);
    let callers: Vec<_> = (0..11_000)
        .map(|_| {
            let (task, mut wait) = (Arc::new(TaskWaker), ConnWait::default());
            let waker = Waker::from(Arc::clone(&task));
            let open = connection.poll_open(&mut wait, &mut Context::from_waker(&waker));
            assert!(open.is_pending());
            (task, wait)
        })
        .collect();
    let tasks: Vec<_> = callers.iter().map(|(task, _)| Arc::clone(task)).collect();
    drop(callers);
    assert!(tasks.iter().all(|task| Arc::strong_count(task) == 1));
}
