//! What callers learn when the network loses packets, compared with what the servers did.
//!
//! No connection is closed here, and no error says that a host is gone: packets just do not arrive, in
//! one direction or in both. Each server has a host of its own, which `embar_redis_servers::Net` can cut
//! off.

use std::time::Duration;

use embar_redis::command::Route;
use embar_redis::commands::strings::StringCommands;
use embar_redis::pubsub::{Event, Kind, Message};
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Cluster, ClusterOptions, Lost, Net, Options, Server};
use tokio::task::JoinHandle;

use crate::support::{self, LONG, Load, to, to_cluster, until};

/// After this much silence a client gives up a connection.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// After this time the kernel notices that an idle connection is dead: it counts in whole seconds, and
/// probes twice.
const KERNEL_NOTICES: Duration = Duration::from_secs(4);

/// No test takes so long: what does hangs.
const LONGEST: Duration = Duration::from_secs(300);

fn run<R>(test: impl Future<Output = R>) -> R {
    let ends = async { tokio::time::timeout(LONGEST, test).await };
    support::run(ends).expect("it ends")
}

fn cluster(net: &Net, masters: usize, replicas: usize) -> Cluster {
    let options = ClusterOptions {
        masters,
        replicas,
        hosts: net.hosts(),
        ..ClusterOptions::default()
    };
    Cluster::start(&options).expect("redis-server runs")
}

/// Gives up dead connections sooner than by default, and commands never: so a caller that learns of a
/// dead connection does not learn of it by chance.
fn hasty(mut config: Config) -> Config {
    config.timeout = LONGEST;
    config.dead_after = DEAD_AFTER;
    config.connect_timeout = Duration::from_millis(300);
    config.retries.backoff_max = Duration::from_millis(100);
    config
}

/// Gives up neither connections nor attempts to connect during a test.
fn patient(config: Config) -> Config {
    let mut config = hasty(config);
    config.dead_after = LONGEST;
    config.connect_timeout = LONGEST;
    config
}

/// Reads keys of healthy shards.
async fn expect_reads(client: &Client, keys: &[String]) {
    for key in keys {
        let read = client.get::<Option<u64>, _>(key).timeout(LONG).await;
        read.expect("its shard is reached");
    }
}

/// Increments a key whose shard is cut off.
fn increment(client: &Client, key: &str) -> JoinHandle<Result<i64, Error>> {
    let (client, key) = (client.clone(), format!("count{{{key}}}"));
    tokio::spawn(async move { client.incr(key).await })
}

fn lose(net: &Net, server: &Server, lost: Lost) {
    net.lose(ip(server), lost).expect("it is cut");
}

fn heal(net: &Net, server: &Server, lost: Lost) {
    net.heal(ip(server), lost).expect("it is healed");
}

fn ip(server: &Server) -> std::net::Ipv4Addr {
    match server.address().ip() {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(ip) => panic!("{ip} is no address of the network"),
    }
}

/// A key that this node serves.
fn key_of(cluster: &Cluster, node: usize) -> String {
    (0..1000)
        .map(|number| format!("key-{number}"))
        .find(|key| cluster.owner_of(slot(key.as_bytes())).ok() == Some(node))
        .expect("each node has some of so many keys")
}

/// How many attempts to connect failed.
fn connects_failed(client: &Client) -> u64 {
    client.metrics().total().connects_failed
}

/// Cuts off a server under load, and heals the network: what callers learn in between is true.
fn cut_off_and_back(net: &Net, lost: Lost) {
    let options = Options {
        host: net.hosts().pop(),
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    net.inside(|| {
        run(async {
            let client = Client::with(hasty(to(&server))).await.expect("it connects");
            let load = Load::start(&client, 64);
            load.goes_on(500).await;
            lose(net, &server, lost);
            // The client sends it on a connection that it does not know to be dead.
            let error = client.incr("once").await.expect_err("no reply arrives");
            assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
            // From now on there is no connection, so nothing is in doubt.
            let never = client.incr("never").timeout(DEAD_AFTER).await;
            let error = never.expect_err("there is no way");
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
            // Nor does the client give up a read that has time.
            let reading = {
                let client = client.clone();
                tokio::spawn(async move { client.get::<Option<u64>, _>("once").await })
            };
            let failed = connects_failed(&client) + 2;
            until("connecting fails while it is read", async || {
                connects_failed(&client) >= failed
            })
            .await;
            assert!(!reading.is_finished());
            heal(net, &server, lost);
            let once = tokio::time::timeout(LONG, reading).await;
            let once = once.expect("it ends when the network heals");
            let once = once.expect("no panic").expect("it is read");
            match lost {
                Lost::Replies => assert_eq!(once, Some(1), "only its reply was lost"),
                _ => assert!(once.is_none_or(|value| value == 1), "{once:?}"),
            }
            load.goes_on(500).await;
            let never = client.get::<Option<u64>, _>("never").await;
            assert_eq!(never, Ok(None), "the error said that it was not executed");
            let sum = load.settle(&client, 0).await;
            assert!(sum.unknown > 0, "commands were under way: {sum:?}");
        });
    });
}

#[test]
fn a_server_that_nothing_reaches_is_noticed_and_each_increment_accounted_for() {
    Net::test(1, |net| cut_off_and_back(net, Lost::Requests));
}

#[test]
fn a_server_whose_replies_are_lost_is_noticed_and_each_increment_accounted_for() {
    Net::test(1, |net| cut_off_and_back(net, Lost::Replies));
}

#[test]
fn a_server_that_is_cut_off_is_noticed_and_each_increment_accounted_for() {
    Net::test(1, |net| cut_off_and_back(net, Lost::All));
}

#[test]
fn a_shard_that_is_cut_off_delays_no_other() {
    Net::test(6, |net| {
        let cluster = cluster(net, 3, 1);
        net.inside(|| {
            run(async {
                let client = Client::with(hasty(to_cluster(&cluster)));
                let client = client.await.expect("it connects");
                let load = Load::start(&client, 64);
                load.goes_on(500).await;
                // The first node is the one that the client asks first for the topology.
                let (cut, healthy) = (0, [key_of(&cluster, 1), key_of(&cluster, 2)]);
                let dead = key_of(&cluster, cut);
                client.set(&dead, &dead).await.expect("it is set");
                // This one does not notice in the time of a test that the connection is dead.
                let patient = Client::with(patient(to_cluster(&cluster)));
                let patient = patient.await.expect("it connects");
                expect_reads(&patient, &healthy).await;
                let node = &cluster.nodes()[cut];
                lose(net, node, Lost::All);
                let [noticed, unnoticed] =
                    [&client, &patient].map(|client| increment(client, &dead));
                for _ in 0..100 {
                    expect_reads(&patient, &healthy).await;
                }
                assert!(!unnoticed.is_finished(), "its connection is there");
                // The other one notices, tries again and again to connect, and reads the topology.
                let failed = connects_failed(&client) + 3;
                while !noticed.is_finished() || connects_failed(&client) < failed {
                    expect_reads(&client, &healthy).await;
                }
                let outcome = noticed.await.expect("no panic");
                assert!(
                    matches!(outcome, Err(Error::UnknownOutcome(_))),
                    "{outcome:?}"
                );
                // The nodes reach each other, so no replica took over.
                let incr = client.incr("x{".to_owned() + &dead + "}");
                let error = incr.timeout(DEAD_AFTER).await;
                let error = error.expect_err("there is no way");
                assert!(matches!(error, Error::Unavailable { .. }), "{error}");
                heal(net, node, Lost::All);
                assert_eq!(client.get::<String, _>(&dead).await, Ok(dead));
                load.goes_on(500).await;
                let sum = load.settle(&client, 0).await;
                assert!(sum.unknown > 0, "commands were under way: {sum:?}");
            });
        });
    });
}

#[test]
fn other_nodes_are_reconnected_while_one_is_cut_off() {
    Net::test(3, |net| {
        let cluster = cluster(net, 3, 0);
        net.inside(|| {
            run(async {
                // An attempt to connect to the node that is cut off lasts as long as the test.
                let mut config = hasty(to_cluster(&cluster));
                config.connect_timeout = LONGEST;
                let client = Client::with(config).await.expect("it connects");
                let dead = key_of(&cluster, 0);
                let key = key_of(&cluster, 1);
                lose(net, &cluster.nodes()[0], Lost::All);
                // No other command is in flight, so only the clock ends this one.
                let error = client.incr(&dead).await.expect_err("no reply arrives");
                assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
                let refreshes = || client.metrics().refreshes;
                for _ in 0..10 {
                    let before = refreshes();
                    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
                    cluster.nodes()[1].command(&kill).expect("it answers");
                    until("it is back", async || client.incr(&key).await.is_ok()).await;
                    // The client asks the node that is cut off, too.
                    until("the topology is read", async || refreshes() > before).await;
                }
            });
        });
    });
}

#[test]
fn a_master_that_is_alone_is_replaced_and_joins_again() {
    Net::test(6, |net| {
        let cluster = cluster(net, 3, 1);
        net.inside(|| {
            run(async {
                let client = Client::with(hasty(to_cluster(&cluster)));
                let client = client.await.expect("it connects");
                let load = Load::start(&client, 32);
                load.goes_on(500).await;
                let node = &cluster.nodes()[0];
                let key = key_of(&cluster, 0);
                lose(net, node, Lost::Alone);
                until("a replica takes over", async || {
                    client.incr(&key).await.is_ok()
                })
                .await;
                load.goes_on(500).await;
                heal(net, node, Lost::Alone);
                cluster.wait_ok(LONG).expect("it joins again");
                load.goes_on(500).await;
                // The server loses what it acknowledged before the cut and had not passed on to its replica.
                let in_flight = 32 * 4;
                let sum = load.settle(&client, in_flight).await;
                assert!(sum.unknown > 0, "commands were under way: {sum:?}");
            });
        });
    });
}

#[test]
fn subscribers_notice_a_silent_network_and_subscribe_again_when_it_heals() {
    Net::test(1, |net| {
        let options = Options {
            host: net.hosts().pop(),
            ..Options::default()
        };
        let server = Server::start(&options).expect("redis-server runs");
        net.inside(|| {
            run(async {
                let client = Client::with(hasty(to(&server))).await.expect("it connects");
                let mut subscriber = client.subscriber(100);
                let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
                subscribed.expect("it is confirmed");
                lose(net, &server, Lost::All);
                let event = tokio::time::timeout(LONG, subscriber.next()).await;
                assert_eq!(event.expect("it notices"), Ok(Event::Interrupted));
                heal(net, &server, Lost::All);
                let one = Message {
                    kind: Kind::Channel,
                    channel: "news".into(),
                    pattern: None,
                    payload: "one".into(),
                };
                // The server still counts the dead connection, so its count says nothing.
                until("it is subscribed again", async || {
                    let publish = cmd("PUBLISH").key("news").arg("one");
                    let _received_by = client.send::<_, u32>(publish).await;
                    let soon = Duration::from_millis(50);
                    match tokio::time::timeout(soon, subscriber.next()).await {
                        Ok(event) => event.expect("it is open") == Event::Message(one.clone()),
                        Err(_) => false,
                    }
                })
                .await;
            });
        });
    });
}

#[test]
fn a_blocking_command_fails_on_a_silent_network_not_with_a_silent_server() {
    Net::test(1, |net| {
        let options = Options {
            host: net.hosts().pop(),
            ..Options::default()
        };
        let server = Server::start(&options).expect("redis-server runs");
        net.inside(|| {
            run(async {
                let client = Client::with(hasty(to(&server))).await.expect("it connects");
                let own = client.dedicated(Route::of("list")).await;
                let own = own.expect("it connects");
                let mut waiting = tokio::spawn(async move {
                    let pop = cmd("BLPOP").key("list").arg(0);
                    own.send::<_, (String, u32)>(pop).await
                });
                let early = tokio::time::timeout(KERNEL_NOTICES, &mut waiting).await;
                assert!(early.is_err(), "its server is there: {early:?}");
                lose(net, &server, Lost::All);
                let outcome = tokio::time::timeout(LONG, waiting).await;
                let outcome = outcome.expect("it ends").expect("no panic");
                assert!(
                    matches!(outcome, Err(Error::UnknownOutcome(_))),
                    "{outcome:?}"
                );
            });
        });
    });
}
