//! Consumers of groups of streams, while they work, die, and lose their servers.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use embar_redis::consumer::{Consumer, ConsumerOptions, DeadLetters, Delivery};
use embar_redis::prelude::*;
use embar_redis::pubsub::{Event, Kind};
use embar_redis::resp::{ErrorKind, Value};
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error, Stream};
use embar_redis_servers::{MoveState, Options, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// A group of all entries.
fn all() -> ConsumerOptions {
    ConsumerOptions::new().create_from("0").block(LONG * 10)
}

async fn connect(config: Config) -> Client {
    Client::with(config).await.expect("it connects")
}

async fn consumer(client: &Client, name: &str, options: ConsumerOptions) -> Consumer {
    let consumer = client.consumer("stream", "group", name, options).await;
    consumer.expect("it begins")
}

async fn add(client: &Client, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let id = format!("1-{}", number + 1);
        // An answer that was lost is no loss.
        until("it is added", async || {
            match client.xadd("stream", &id, [("number", number)]).await {
                Ok(_) => true,
                Err(error) => error.to_string().contains("equal or smaller"),
            }
        })
        .await;
    }
}

fn number(delivery: &Delivery) -> u32 {
    let value = delivery.get("number").expect("it has the field");
    std::str::from_utf8(value)
        .expect("text")
        .parse()
        .expect("a number")
}

async fn next(consumer: &mut Consumer) -> Delivery {
    let next = tokio::time::timeout(LONG, consumer.next()).await;
    let next = next.expect("there is one").expect("it works");
    next.expect("it was not stopped")
}

/// How many entries are not acknowledged.
async fn pending(client: &Client) -> u64 {
    type Summary = (
        u64,
        Option<String>,
        Option<String>,
        Option<Vec<(String, u64)>>,
    );
    let summary = client.xpending::<Summary>("stream", "group").await;
    summary.expect("it answers").0
}

fn blocked(server: &Server) -> bool {
    let info = server.command(&["INFO", "clients"]).expect("it answers");
    info.contains("blocked_clients:1")
}

/// What `XINFO GROUPS` says of the only group.
type Groups = Vec<HashMap<String, Option<String>>>;

/// How many entries the group was given.
fn entries_read(groups: Result<Groups, Error>) -> u32 {
    let groups = groups.expect("it answers");
    let read = groups[0]["entries-read"].as_deref();
    read.map_or(0, |read| read.parse().expect("a number"))
}

/// Takes and acknowledges entries on a task, until it is stopped.
fn work(mut consumer: Consumer, seen: &Arc<Mutex<Vec<u32>>>) -> tokio::task::JoinHandle<()> {
    let seen = Arc::clone(seen);
    tokio::spawn(async move {
        while let Some(delivery) = consumer.next().await.expect("it works") {
            seen.lock().expect("no panic").push(number(&delivery));
            delivery.acknowledge();
        }
    })
}

async fn all_seen(seen: &Arc<Mutex<Vec<u32>>>, count: u32) {
    let all: BTreeSet<u32> = (0..count).collect();
    until("all entries were delivered", async || {
        let seen = seen.lock().expect("no panic");
        seen.iter().copied().collect::<BTreeSet<_>>() == all
    })
    .await;
}

#[test]
fn entries_of_a_consumer_that_died_go_to_another() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..10).await;
        let mut dies = consumer(&client, "dies", all().count(7)).await;
        let mut kept = Vec::new();
        for _ in 0..5 {
            kept.push(next(&mut dies).await);
        }
        kept.swap_remove(0).acknowledge();
        until("one is acknowledged", async || pending(&client).await == 6).await;
        drop((dies, kept));
        let options = all().claim_idle(Duration::from_millis(100));
        let mut lives = consumer(&client, "lives", options).await;
        let mut seen = BTreeSet::new();
        for _ in 0..9 {
            let delivery = next(&mut lives).await;
            let was_given = number(&delivery) < 7;
            assert_eq!(
                delivery.deliveries(),
                1 + u64::from(was_given),
                "{delivery:?}"
            );
            assert!(seen.insert(number(&delivery)));
            delivery.acknowledge();
        }
        assert_eq!(seen, (1..10).collect());
        lives.stopper().stop();
        assert!(lives.next().await.expect("it ends").is_none());
        assert_eq!(pending(&client).await, 0);
    });
}

#[test]
fn what_a_consumer_was_given_before_comes_first() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..5).await;
        let mut before = consumer(&client, "me", all().count(3)).await;
        let first = next(&mut before).await;
        drop(next(&mut before).await);
        first.acknowledge();
        drop(before);
        until("one is acknowledged", async || pending(&client).await == 2).await;
        let mut now = consumer(&client, "me", all().count(1)).await;
        let mut kept = Vec::new();
        for (wanted, deliveries) in [(1, 2), (2, 2), (3, 1), (4, 1)] {
            let delivery = next(&mut now).await;
            assert_eq!(
                (number(&delivery), delivery.deliveries()),
                (wanted, deliveries)
            );
            kept.push(delivery);
        }
    });
}

#[test]
fn a_stopped_consumer_ends_at_once_when_its_acknowledgements_are_out() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..5).await;
        let mut consumer = consumer(&client, "me", all()).await;
        let stopper = consumer.stopper();
        let reads = tokio::spawn(async move {
            let mut numbers = Vec::new();
            while let Some(delivery) = consumer.next().await.expect("it works") {
                numbers.push(number(&delivery));
                delivery.acknowledge();
            }
            assert!(consumer.next().await.expect("it has ended").is_none());
            (numbers, consumer)
        });
        until("it waits for more", async || blocked(&server)).await;
        stopper.stop();
        let (numbers, _consumer) = reads.await.expect("no panic");
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        assert_eq!(pending(&client).await, 0);
        until("nobody waits", async || !blocked(&server)).await;
        // What comes later is for others.
        add(&client, 5..6).await;
        assert_eq!(pending(&client).await, 0);
    });
}

#[test]
fn a_stopped_consumer_gives_what_it_has_read() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..5).await;
        let mut consumer = consumer(&client, "me", all().count(3)).await;
        next(&mut consumer).await.acknowledge();
        consumer.stopper().stop();
        for wanted in [1, 2] {
            let delivery = next(&mut consumer).await;
            assert_eq!(number(&delivery), wanted);
            delivery.acknowledge();
        }
        assert!(consumer.next().await.expect("it ends").is_none());
        assert_eq!(pending(&client).await, 0);
    });
}

#[test]
fn servers_that_restart_lose_nothing_and_all_is_acknowledged() {
    const ENTRIES: u32 = 300;
    let options = Options {
        extra: ["--appendonly", "yes", "--appendfsync", "always"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    };
    let mut server = Server::start(&options).expect("redis-server runs");
    run(async {
        let client = connect(to(&server)).await;
        let seen = Arc::default();
        let mut workers = Vec::new();
        let mut stoppers = Vec::new();
        for name in ["a", "b", "c"] {
            let options = all().count(7).claim_idle(Duration::from_secs(1));
            let consumer = consumer(&client, name, options).await;
            stoppers.push(consumer.stopper());
            workers.push(work(consumer, &seen));
        }
        for round in 0..3 {
            let part = ENTRIES / 3;
            let goal = (part * round + part / 3) as usize;
            let restarts = async {
                let some = || seen.lock().expect("no panic").len() > goal;
                until("some are delivered", async || some()).await;
                server.kill();
                server.restart().expect("it starts");
            };
            tokio::join!(add(&client, part * round..part * (round + 1)), restarts);
        }
        all_seen(&seen, ENTRIES).await;
        until("all are acknowledged", async || pending(&client).await == 0).await;
        stoppers.iter().for_each(|stopper| stopper.stop());
        for worker in workers {
            worker.await.expect("no panic");
        }
    });
}

#[test]
fn it_follows_slots_that_move_and_replicas_that_take_over() {
    let cluster = cluster(3, 3);
    run(async {
        let client = connect(to_cluster(&cluster)).await;
        let seen = Arc::default();
        let reads = consumer(&client, "me", all()).await;
        let stopper = reads.stopper();
        let worker = work(reads, &seen);
        add(&client, 0..1).await;
        all_seen(&seen, 1).await;
        let slot = slot(b"stream");
        let from = cluster.owner_of(slot).expect("it answers");
        let to = (from + 1) % 3;
        until("it waits there", async || blocked(&cluster.nodes()[from])).await;
        let moved = cluster.move_slot(slot, from, to, MoveState::Done);
        moved.expect("it moves");
        until("it waits here", async || blocked(&cluster.nodes()[to])).await;
        add(&client, 1..2).await;
        all_seen(&seen, 2).await;
        let port = cluster.nodes()[to].port().to_string();
        let role = |node: &Server| node.command(&["ROLE"]).expect("it answers");
        let replica = cluster
            .replicas()
            .iter()
            .find(|node| role(node).contains(&port));
        let replica = replica.expect("it has a replica");
        until("it waits again", async || blocked(&cluster.nodes()[to])).await;
        until("the replica takes over", async || {
            // It refuses once it has taken over.
            let _asked = replica.command(&["CLUSTER", "FAILOVER"]);
            role(replica).contains("master")
        })
        .await;
        until("it waits at the replica", async || blocked(replica)).await;
        add(&client, 2..5).await;
        all_seen(&seen, 5).await;
        stopper.stop();
        worker.await.expect("no panic");
        assert_eq!(pending(&client).await, 0);
        let seen = seen.lock().expect("no panic");
        assert_eq!(*seen, [0, 1, 2, 3, 4], "each once, as nothing was lost");
    });
}

#[test]
fn it_finds_what_a_lost_answer_gave_it() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        let mut consumer = consumer(&client, "me", all()).await;
        let reads = tokio::spawn(async move {
            let delivery = next(&mut consumer).await;
            (number(&delivery), delivery.deliveries())
        });
        until("it waits", async || blocked(&server)).await;
        // The server gives it an entry behind its back: its answer goes elsewhere.
        let taken = "redis.call('XADD', KEYS[1], '1-1', 'number', '0') \
            return redis.call('XREADGROUP', 'GROUP', 'group', 'me', 'STREAMS', KEYS[1], '>')";
        let none: [&str; 0] = [];
        let taken = client.eval::<Value>(taken, ["stream"], none).await;
        let taken = taken.expect("it is taken");
        assert!(format!("{taken:?}").contains("Array"), "{taken:?}");
        until("it still waits", async || blocked(&server)).await;
        let kill = ["CLIENT", "KILL", "TYPE", "normal"];
        server.command(&kill).expect("it answers");
        assert_eq!(reads.await.expect("no panic"), (0, 2));
    });
}

/// Entries of which one fails whoever tries, in a cluster, so that dead letters are elsewhere.
async fn fails_always(client: &Client, then: DeadLetters) {
    add(client, 0..5).await;
    let idle = Duration::from_millis(20);
    let options = all().claim_idle(idle).max_deliveries(3, then);
    let mut consumer = consumer(client, "me", options).await;
    let stopper = consumer.stopper();
    let stops = async {
        until("all is read and acknowledged", async || {
            entries_read(client.xinfo_groups("stream").await) == 5 && pending(client).await == 0
        })
        .await;
        stopper.stop();
    };
    let reads = async {
        let mut tried = Vec::new();
        while let Some(delivery) = consumer.next().await.expect("it works") {
            match number(&delivery) {
                3 => tried.push(delivery.deliveries()),
                _ => delivery.acknowledge(),
            }
        }
        tried
    };
    let ((), tried) = tokio::join!(stops, reads);
    assert_eq!(tried, [1, 2, 3]);
}

#[test]
fn an_entry_that_fails_always_is_moved_elsewhere() {
    let cluster = cluster(3, 0);
    run(async {
        let client = connect(to_cluster(&cluster)).await;
        fails_always(&client, DeadLetters::MoveTo(b"dead".to_vec())).await;
        type Letters = Vec<(String, Vec<(String, String)>)>;
        let letters: Letters = client.xrange("dead", "-", "+").await.expect("it answers");
        let [(_, fields)] = &*letters else {
            panic!("{letters:?}");
        };
        let wanted = [
            ("dead.stream", "stream"),
            ("dead.group", "group"),
            ("dead.id", "1-4"),
            ("dead.deliveries", "3"),
            ("number", "3"),
        ];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(*fields, wanted);
    });
}

#[test]
fn an_entry_that_fails_always_is_left_out() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        fails_always(&client, DeadLetters::Acknowledge).await;
        assert_eq!(client.xlen("stream").await, Ok(5), "it stays in the stream");
    });
}

#[test]
fn dead_letters_that_cannot_be_moved_bury_no_other_entry() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..5).await;
        let raw = |words: &[&str]| server.command(words).expect("it answers");
        raw(&["XGROUP", "CREATE", "stream", "group", "0"]);
        raw(&[
            "XREADGROUP",
            "GROUP",
            "group",
            "gone",
            "STREAMS",
            "stream",
            ">",
        ]);
        // One was delivered often.
        raw(&[
            "XCLAIM",
            "stream",
            "group",
            "gone",
            "0",
            "1-4",
            "RETRYCOUNT",
            "9",
        ]);
        raw(&["SET", "dead", "no stream"]);
        let idle = Duration::from_millis(1);
        let move_away = DeadLetters::MoveTo(b"dead".to_vec());
        let options = all().claim_idle(idle).max_deliveries(4, move_away);
        let mut reads = consumer(&client, "me", options).await;
        let (mut got, mut errors) = (Vec::new(), 0);
        // More often than an entry may be delivered.
        while got.len() < 4 || errors < 6 {
            match reads.next().await {
                Ok(delivery) => got.push(delivery.expect("it was not stopped")),
                Err(_) => errors += 1,
            }
        }
        assert_eq!(got.iter().map(number).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert!(got.iter().all(|delivery| delivery.deliveries() == 2));
        raw(&["DEL", "dead"]);
        got.into_iter().for_each(Delivery::acknowledge);
        let stopper = reads.stopper();
        let moved = async {
            until("all is acknowledged or moved", async || {
                pending(&client).await == 0
            })
            .await;
            stopper.stop();
        };
        let rest = async {
            loop {
                match reads.next().await {
                    Ok(None) => break,
                    Ok(Some(delivery)) => panic!("{delivery:?}"),
                    // The last one before the key was free.
                    Err(_) => {}
                }
            }
        };
        tokio::join!(moved, rest);
        assert_eq!(client.xlen("dead").await, Ok(1));
    });
}

#[test]
fn what_the_program_holds_bounds_what_it_gets_and_comes_only_once() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..9).await;
        let idle = Duration::from_millis(1);
        let options = all().max_held(4).claim_idle(idle).block(idle);
        let mut consumer = consumer(&client, "me", options).await;
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(next(&mut consumer).await);
        }
        let mut pending_next =
            async || poll_fn(|cx| Poll::Ready(consumer.poll_next(cx).is_pending())).await;
        assert!(pending_next().await);
        assert_eq!(pending(&client).await, 4, "it has read no more");
        held.remove(0).acknowledge();
        let mut numbers: Vec<_> = held.iter().map(number).collect();
        // All that it holds is idle by now, and is its own.
        for _ in 0..5 {
            let delivery = next(&mut consumer).await;
            assert_eq!(delivery.deliveries(), 1);
            numbers.push(number(&delivery));
            delivery.acknowledge();
        }
        assert_eq!(numbers, (1..9).collect::<Vec<_>>());
        let options = XPendingOptions::new(9);
        let pending = client.xpending_range("stream", "group", "-", "+", options);
        let pending: Vec<(String, String, u64, u64)> = pending.await.expect("it answers");
        let given_again = pending.iter().filter(|(.., deliveries)| *deliveries > 1);
        assert_eq!(given_again.count(), 0, "{pending:?}");
    });
}

#[test]
fn acknowledgements_go_out_together_while_the_program_works() {
    let server = server();
    run(async {
        let mut config = to(&server);
        (config.timeout, config.dead_after) = (LONG, LONG);
        let client = connect(config).await;
        add(&client, 0..200).await;
        let mut consumer = consumer(&client, "me", all().count(200)).await;
        let mut held = Vec::new();
        for _ in 0..200 {
            held.push(next(&mut consumer).await);
        }
        server.pause();
        held.into_iter().for_each(Delivery::acknowledge);
        server.resume();
        // Nobody asks for the next entry.
        until("all are acknowledged", async || pending(&client).await == 0).await;
        let stats = server.command(&["INFO", "commandstats"]);
        let stats = stats.expect("it answers");
        assert!(stats.contains("cmdstat_xack:calls=2,"), "{stats}");
    });
}

#[test]
fn what_does_not_pass_by_itself_is_an_error_and_then_it_goes_on() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        let options = ConsumerOptions::new();
        let mut reads = consumer(&client, "me", options).await;
        let error = reads.next().await.expect_err("there is no group");
        let kind = |error| match error {
            Error::Server(error) => error.kind,
            other => panic!("{other}"),
        };
        assert_eq!(kind(error), ErrorKind::NoGroup);
        add(&client, 0..2).await;
        let made = client.xgroup_create("stream", "group", "0", false).await;
        made.expect("it is made");
        let first = next(&mut reads).await;
        let forbid = ["ACL", "SETUSER", "default", "-xack"];
        server.command(&forbid).expect("it answers");
        first.acknowledge();
        until("the refusal arrives", async || {
            let polled = poll_fn(|cx| Poll::Ready(reads.poll_next(cx))).await;
            match polled {
                Poll::Ready(Err(error)) => kind(error) == ErrorKind::NoPerm,
                _ => false,
            }
        })
        .await;
        assert_eq!(pending(&client).await, 2, "it is not acknowledged");
    });
}

#[test]
fn a_thread_reads_without_an_executor() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let consumer = client.consumer_blocking("stream", "group", "me", all());
    let mut consumer = consumer.expect("it begins");
    let stopper = consumer.stopper();
    let reads = std::thread::spawn(move || {
        let mut numbers = Vec::new();
        while let Some(delivery) = consumer.next_blocking().expect("it works") {
            numbers.push(number(&delivery));
            delivery.acknowledge();
        }
        numbers
    });
    for value in 0..2 {
        let id = client.xadd("stream", "*", [("number", value)]).wait();
        id.expect("it is added");
    }
    while entries_read(client.xinfo_groups("stream").wait()) < 2 || !blocked(&server) {}
    stopper.stop();
    assert_eq!(reads.join().expect("no panic"), [0, 1]);
}

async fn next_of<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

#[test]
fn consumers_and_subscribers_are_streams() {
    let server = server();
    run(async {
        let client = connect(to(&server)).await;
        add(&client, 0..1).await;
        let mut consumer = consumer(&client, "me", all()).await;
        let delivery = next_of(&mut consumer).await.expect("there is one");
        assert_eq!(number(&delivery.expect("it works")), 0);
        consumer.stopper().stop();
        assert!(next_of(&mut consumer).await.is_none());

        let mut subscriber = client.subscriber(10);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it subscribes");
        server
            .command(&["PUBLISH", "news", "x"])
            .expect("it answers");
        let event = next_of(&mut subscriber).await;
        assert!(matches!(event, Some(Event::Message(_))), "{event:?}");
    });
}
