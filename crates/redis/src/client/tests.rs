//! What only somebody within the crate can arrange: names that take long to look up, and looks at
//! what waits.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_mux::{Connection, block_on};
use embar_redis_servers::{Options, Server};

use super::keeper::Keeper;
use super::{Client, Node};
use crate::command::Class;
use crate::commands::strings::StringCommands;
use crate::config::{Config, Endpoint};
use crate::error::Error;
use crate::pubsub::{Event, Kind};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

/// A name server, which answers when it is told to. One for each name, as tests run at the same time.
struct NameServer {
    name: &'static str,
    state: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    silent: bool,
    /// Lookups that wait for an answer.
    waiting: usize,
}

impl NameServer {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            state: Mutex::new(Asked {
                silent: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn set_silent(&self, silent: bool) {
        self.state.lock().unwrap().silent = silent;
        self.changed.notify_all();
    }

    fn answer(&self) -> &'static str {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let silent = |state: &mut Asked| state.silent;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, 2 * LONG, silent)
            .unwrap();
        state.waiting -= 1;
        "127.0.0.1"
    }

    /// Waits until somebody is asking.
    fn until_asked(&self) {
        let state = self.state.lock().unwrap();
        let nobody = |state: &mut Asked| state.waiting == 0;
        let (_state, timeout) = self
            .changed
            .wait_timeout_while(state, LONG, nobody)
            .unwrap();
        assert!(!timeout.timed_out(), "nobody asks");
    }

    /// Whether somebody is waiting for an answer.
    fn is_asked(&self) -> bool {
        self.state.lock().unwrap().waiting > 0
    }
}

/// The name servers that there are.
static SLOW: [NameServer; 2] = [NameServer::new("slow-1"), NameServer::new("slow-2")];

/// The names that they know; all of them are this machine.
pub(super) fn look_up(host: &str) -> Option<&'static str> {
    let server = SLOW.iter().find(|server| server.name == host)?;
    Some(server.answer())
}

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
fn who_waits_for_time_to_pass_does_not_wait_for_names() {
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
fn a_subscriber_is_not_locked_while_a_name_is_looked_up() {
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
        let begin = Instant::now();
        let mut registered = 0;
        while registered < 100 {
            for get in &mut gets {
                assert!(pin!(get).poll(cx).is_pending());
            }
            assert!(sleepers(keeper) <= 10, "{}", sleepers(keeper));
            registered += usize::from(sleepers(keeper) > 0);
            assert!(begin.elapsed() < LONG / 2, "nobody waits");
            std::thread::sleep(Duration::from_millis(1));
        }
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
    // All that left are looked at together: when another one is closed, this one was looked at.
    for _ in 0..3 {
        let other = Node::new(config.seeds[0].clone(), 1, keeper);
        let conn = block_on(|cx| other.link(0).poll_conn(cx));
        let watch = Arc::downgrade(&conn);
        drop(conn);
        other.retire(keeper);
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
