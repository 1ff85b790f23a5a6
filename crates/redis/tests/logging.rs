//! What a client logs, as a program's `tracing` subscriber receives it.
//!
//! In a program of its own, as the subscriber is for all threads.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use embar_redis::Client;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Config, Endpoint};
use embar_redis::pubsub::{Event as Received, Kind};
use embar_redis::slot::slot;
use embar_redis_servers::{Cluster, ClusterOptions, MoveState, Options, Server};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

/// All events so far, one line each: level, target, message and fields.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener(AtomicU64);

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a String takes everything");
    }
}

fn log(metadata: &Metadata<'_>, text: Text) {
    let line = format!("{} {}{}", metadata.level(), metadata.name(), text.0);
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.push(line);
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("embar_redis")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text::default();
        span.record(&mut text);
        log(span.metadata(), text);
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut text = Text(String::from("recorded"));
        values.record(&mut text);
        LOG.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.0);
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        log(event.metadata(), text);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whether there is an event of this level with all these words.
fn logged(level: Level, words: &[&str]) -> bool {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let start = format!("{level} ");
    log.iter()
        .any(|line| line.starts_with(&start) && words.iter().all(|word| line.contains(word)))
}

async fn until_logged(level: Level, words: &[&str]) {
    let deadline = Instant::now() + LONG;
    while !logged(level, words) {
        let log = LOG
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n");
        assert!(Instant::now() < deadline, "{level} {words:?} in\n{log}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn endpoint(server: &Server) -> Endpoint {
    Endpoint::tcp(server.address().ip().to_string(), server.port())
}

// One test, as the log is for the whole process.
#[test]
fn events_are_logged_and_commands_only_at_the_level_trace() {
    let listener = Listener(AtomicU64::new(1));
    tracing::subscriber::set_global_default(listener).expect("there is no other");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        alone().await;
        together().await;
    });
}

async fn alone() {
    let mut server = Server::start(&Options::default()).expect("redis-server runs");
    let node = format!("node={}", endpoint(&server));
    let mut config = Config::standalone(endpoint(&server));
    config.timeout = Duration::from_millis(500);
    let client = Client::with(config).await.expect("it connects");
    until_logged(Level::DEBUG, &["connected", &node, "took="]).await;
    client.set("key", "secret-value").await.expect("it is set");
    let of_key = format!("slot={}", slot(b"key"));
    assert!(logged(
        Level::TRACE,
        &["command", "class=Write", &of_key, "bytes="]
    ));
    let mut subscriber = client.subscriber(10);
    let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
    subscribed.expect("it is confirmed");
    server.pause();
    let reading = {
        let client = client.clone();
        tokio::spawn(async move { client.get::<String, _>("key").timeout(LONG).await })
    };
    while client.metrics().total().stats.in_flight == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.kill();
    until_logged(Level::WARN, &["connection lost", &node, "reason="]).await;
    until_logged(Level::DEBUG, &["sent again", "cause=\"unknown\""]).await;
    until_logged(Level::WARN, &["not connected", &node, "refused"]).await;
    let read = client.get::<String, _>("key").await;
    read.expect_err("the server is gone");
    assert!(logged(Level::TRACE, &["failed", "not executed"]));
    server.restart().expect("it starts again");
    let _perhaps_late = client.set("key", 1).await;
    until_logged(Level::INFO, &["connected again", &node]).await;
    let _perhaps_gone = reading.await.expect("no panic");
    until_logged(Level::INFO, &["subscribed again", &node, "subscriptions=1"]).await;
    assert_eq!(subscriber.next().await, Ok(Received::Interrupted));
    let all = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!all.join("\n").contains("secret-value"));
}

async fn together() {
    let options = ClusterOptions {
        replicas: 1,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(&options).expect("a cluster");
    let config = Config::cluster(cluster.nodes().iter().map(endpoint));
    let client = Client::with(config).await.expect("it connects");
    until_logged(
        Level::INFO,
        &["topology has changed", "slots_moved=16384", "came=["],
    )
    .await;
    let tag = slot(b"{tag}");
    let mut from = cluster.owner_of(tag).expect("it is served");
    let mut to = (from + 1) % 3;
    client.set("{tag}", 1).await.expect("it is set");
    let place = format!("slot={tag}");
    // Again if the client has just read the topology and knows where the slot is.
    loop {
        let moved = cluster.move_slot(tag, from, to, MoveState::Done);
        moved.expect("it moves");
        client.set("{tag}", 2).await.expect("it is set");
        let old = format!("node={}", endpoint(&cluster.nodes()[from]));
        if logged(Level::DEBUG, &["MOVED", &old, &place, "to="]) {
            break;
        }
        (from, to) = (to, from);
    }
    cluster.kill(to);
    let dead = format!("from={}", endpoint(&cluster.nodes()[to]));
    let deadline = Instant::now() + LONG;
    while client.set("{tag}", 3).await.is_err() {
        assert!(Instant::now() < deadline, "no replica takes over");
    }
    until_logged(Level::WARN, &["taken over", &dead, "to="]).await;
}
