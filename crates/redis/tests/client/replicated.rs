//! A primary with replicas, without sentinels: the servers themselves say what they are.

use std::time::Duration;

use embar_redis::commands::Commands;
use embar_redis::commands::scripting::ScriptCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, ReadFrom};
use embar_redis::metrics::RetryCause;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Options, Server};

use crate::replicas::gets;
use crate::role_change::{primary_and_replica, replicate, says, swap_roles};
use crate::support::{LONG, Load, endpoint, run, until};

/// A client that knows some of the servers, and looks often how they are.
async fn connect(seeds: &[&Server], read_from: ReadFrom) -> Client {
    let mut config = config(seeds);
    config.read_from = read_from;
    Client::with(config).await.expect("it connects")
}

fn config(seeds: &[&Server]) -> Config {
    let mut config = Config::replicated(seeds.iter().map(|seed| endpoint(seed.address())));
    config.timeout = LONG;
    config.refresh_interval = Duration::from_millis(200);
    config
}

/// The addresses of the primary and the replicas, as the client knows them.
fn roles(client: &Client) -> (Vec<String>, Vec<String>) {
    let (primary, replicas): (Vec<_>, Vec<_>) =
        client.nodes().into_iter().partition(|node| node.slots > 0);
    let addresses =
        |nodes: Vec<embar_redis::NodeInfo>| nodes.into_iter().map(|node| node.address).collect();
    (addresses(primary), addresses(replicas))
}

fn are(client: &Client, primary: &Server, replicas: &[&Server]) -> bool {
    let address = |server: &Server| server.address().to_string();
    let mut wanted: Vec<_> = replicas.iter().map(|it| address(it)).collect();
    let (found, mut others) = roles(client);
    wanted.sort();
    others.sort();
    found == [address(primary)] && others == wanted
}

#[test]
fn one_address_is_enough_to_find_all_and_they_are_one_shard() {
    run(async {
        let (primary, replica) = primary_and_replica().await;
        for seed in [&primary, &replica] {
            let client = connect(&[seed], ReadFrom::Primary).await;
            until("both are known", async || {
                are(&client, &primary, &[&replica])
            })
            .await;
        }
        let mut config = config(&[&replica]);
        config.database = 5;
        let client = Client::with(config).await.expect("it connects");
        let set = cmd("MSET").key("a").arg(1).key("b").arg(2);
        client.send::<_, ()>(set).await.expect("keys of any slots");
        let both = cmd("RENAME").key("a").key("c");
        client.send::<_, ()>(both).await.expect("keys of any slots");
        let mut transaction = client.transaction();
        let (b, c) = (transaction.incr("b"), transaction.incr("c"));
        let results = transaction.run().await.expect("keys of any slots");
        assert_eq!((results.take(b), results.take(c)), (Ok(3), Ok(2)));
        let mut pipeline = client.pipeline();
        let size = (&mut pipeline).execute::<_, u32>(cmd("DBSIZE"));
        let results = pipeline.run().await;
        assert_eq!(results.take(size), Ok(2), "all primaries are the one");
        assert_eq!(
            client.scan(None).collect().await.map(|keys| keys.len()),
            Ok(2)
        );
        // To all nodes.
        let sha: String = client
            .send(cmd("SCRIPT").arg("LOAD").arg("return 7"))
            .await
            .expect("it is loaded");
        for server in [&primary, &replica] {
            let exists = server.command(&["SCRIPT", "EXISTS", &sha]);
            assert_eq!(exists.expect("it answers"), "1");
        }
        // What has no key, and may write, goes to the primary also beside reads of replicas.
        let reader = connect(&[&replica], ReadFrom::PreferReplica).await;
        let mut pipeline = reader.pipeline();
        let _read = pipeline.get::<Option<u32>, _>("none");
        let written = pipeline.eval::<u32>("return redis.call('INCR', 'x')", [""; 0], [""; 0]);
        let results = pipeline.run().await;
        assert_eq!(results.take(written), Ok(1));
        assert_eq!(reader.metrics().retries(RetryCause::ReadOnly), 0);
    });
}

#[test]
fn roles_that_are_swapped_are_followed_without_a_loss() {
    run(async {
        let (first, second) = primary_and_replica().await;
        let mut config = config(&[&first, &second]);
        // Only what servers answer makes it look.
        config.refresh_interval = Duration::from_secs(3600);
        let client = Client::with(config).await.expect("it connects");
        let load = Load::start(&client, 32);
        load.goes_on(300).await;
        for (from, to) in [(&first, &second), (&second, &first)] {
            swap_roles(from, to).await;
            load.goes_on(300).await;
            until("the link is up", async || {
                says(from, "replication", "master_link_status:up")
            })
            .await;
            until("both are known", async || are(&client, to, &[from])).await;
        }
        let sum = load.settle(&client, 0).await;
        assert_eq!((sum.unknown, sum.not_done), (0, 0), "{sum:?}");
        assert_eq!(client.metrics().failovers, 2);
    });
}

#[test]
fn of_two_primaries_the_one_that_took_over_counts() {
    run(async {
        let (first, second) = primary_and_replica().await;
        let client = connect(&[&first, &second], ReadFrom::Primary).await;
        client.set("key", 1).await.expect("it is set");
        second
            .command(&["REPLICAOF", "NO", "ONE"])
            .expect("it obeys");
        // The first one goes on as a primary, and does not know.
        until("the client goes to the second one", async || {
            are(&client, &second, &[])
        })
        .await;
        client.set("key", 2).await.expect("it is set");
        assert_eq!(second.command(&["GET", "key"]).expect("it answers"), "2");
        let new = connect(&[&first, &second], ReadFrom::Primary).await;
        assert!(are(&new, &second, &[]));
        // By hand, roles are swapped so.
        replicate(&first, &second).await;
        until("the first one is its replica", async || {
            are(&client, &second, &[&first])
        })
        .await;
        assert_eq!(client.get::<u32, _>("key").await, Ok(2));
    });
}

#[test]
fn a_dead_primary_is_replaced_by_hand() {
    run(async {
        let (mut first, second) = primary_and_replica().await;
        let client = connect(&[&first, &second], ReadFrom::Primary).await;
        client.set("key", 1).await.expect("it is set");
        until("the replica has it", async || {
            second.command(&["GET", "key"]).is_ok_and(|key| key == "1")
        })
        .await;
        first.kill();
        until("the client notices", async || {
            let read = client.get::<u32, _>("key");
            let _unanswered = read.timeout(Duration::from_millis(20)).await;
            client.metrics().refreshes_failed > 0
        })
        .await;
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.incr("key").await })
        };
        second
            .command(&["REPLICAOF", "NO", "ONE"])
            .expect("it obeys");
        assert_eq!(waiting.await.expect("no panic"), Ok(2));
        // The first one comes back without its data, and still takes itself for the primary.
        first.restart().expect("it starts again");
        let refreshes = || client.metrics().refreshes;
        let before = refreshes();
        until("all are asked again", async || refreshes() > before + 2).await;
        assert!(are(&client, &second, &[]));
        assert_eq!(client.get::<u32, _>("key").await, Ok(2));
    });
}

#[test]
fn a_replica_is_read_only_while_it_has_what_the_primary_has() {
    run(async {
        let (primary, mut replica) = primary_and_replica().await;
        let other = Server::start(&Options::default()).expect("redis-server runs");
        let client = connect(&[&primary, &replica], ReadFrom::PreferReplica).await;
        client.set("key", 1).await.expect("it is set");
        replicate(&other, &primary).await;
        until("both are read", async || {
            for turn in 0..60_u32 {
                let _none = client.get::<Option<u32>, _>(format!("key{turn}")).await;
            }
            gets(&replica) > 0 && gets(&other) > 0
        })
        .await;
        // It goes on answering, without news.
        other
            .command(&["REPLICAOF", "127.0.0.1", "1"])
            .expect("it obeys");
        until("it is left", async || are(&client, &primary, &[&replica])).await;
        replica.kill();
        until("the primary is read", async || are(&client, &primary, &[])).await;
        assert_eq!(client.get::<u32, _>("key").await, Ok(1));
        assert_eq!(gets(&primary), 1, "until now replicas were read");
        replica.restart().expect("it starts again");
        let only = connect(&[&primary, &replica], ReadFrom::Replica).await;
        let read = only
            .get::<u32, _>("key")
            .timeout(Duration::from_millis(200));
        let Err(Error::Unavailable { why }) = read.await else {
            panic!("it is no replica yet");
        };
        assert!(why.contains("no replica"), "{why}");
        replicate(&replica, &primary).await;
        assert_eq!(only.get::<u32, _>("key").await, Ok(1));
        // Of nobody else's primary.
        let address = Endpoint::tcp("localhost", replica.port());
        let mut config = Config::replicated([address, endpoint(primary.address())]);
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        assert_eq!(
            client.nodes().len(),
            2,
            "a server with two addresses is one"
        );
    });
}

/// A server that starts again has no data, whatever it was before.
#[test]
fn a_replica_that_comes_back_is_asked_before_it_is_read() {
    run(async {
        let (primary, mut one) = primary_and_replica().await;
        let mut other = Server::start(&Options::default()).expect("redis-server runs");
        replicate(&other, &primary).await;
        let mut config = config(&[&primary, &one, &other]);
        config.read_from = ReadFrom::PreferReplica;
        config.refresh_interval = Duration::from_secs(3600);
        let client = Client::with(config).await.expect("it connects");
        client.set("key", 7).await.expect("it is set");
        until("all have it", async || {
            let has_it =
                |server: &Server| server.command(&["GET", "key"]).is_ok_and(|it| it == "7");
            has_it(&one) && has_it(&other)
        })
        .await;
        // It reads from whichever replica there is.
        let reader = client.clone();
        let reading = tokio::spawn(async move {
            loop {
                assert_eq!(reader.get::<u32, _>("key").await, Ok(7));
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..3 {
            until("both are known", async || {
                are(&client, &primary, &[&one, &other])
            })
            .await;
            // The client looks at once for the first one, and a while later for the second one, which is back by then.
            for replica in [&mut one, &mut other] {
                replica.restart().expect("it starts again");
            }
            for replica in [&one, &other] {
                replicate(replica, &primary).await;
            }
        }
        until("both are known", async || {
            are(&client, &primary, &[&one, &other])
        })
        .await;
        assert!(!reading.is_finished(), "no read found nothing");
        reading.abort();
    });
}
