//! Reads that go to replicas, while those die; and how long a command may take in all.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::ReadFrom;
use embar_redis::metrics::RetryCause;
use embar_redis::{Client, Error};
use embar_redis_servers::{Cluster, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// How often a server has executed GET since it started.
pub fn gets(server: &Server) -> u64 {
    let stats = server
        .command(&["INFO", "commandstats"])
        .expect("it answers");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    line.map_or(0, |line| {
        let calls = line.split(',').next().expect("a number");
        calls.parse().expect("a number")
    })
}

async fn client(cluster: &Cluster, read_from: ReadFrom) -> Client {
    let mut config = to_cluster(cluster);
    config.read_from = read_from;
    config.timeout = LONG;
    Client::with(config).await.expect("it connects")
}

/// Reads keys of many slots. All are there, and no read waits for a dead node.
async fn reads(client: &Client) {
    for turn in 0..60 {
        let value = client.get::<u32, _>(format!("key{turn}")).await;
        assert_eq!(value, Ok(turn));
    }
}

/// Waits until the replica has all keys, and the cluster names it, which it does only once the replica
/// has some.
async fn has_it_all(cluster: &Cluster, replica: &Server) {
    let port = replica.port().to_string();
    until("the replica has it all and is known", async || {
        let said = cluster.nodes()[0].command(&["CLUSTER", "SLOTS"]);
        let size = replica.command(&["DBSIZE"]);
        said.is_ok_and(|said| said.contains(&port)) && size.is_ok_and(|size| size.trim() == "60")
    })
    .await;
}

#[test]
fn dead_replicas_are_passed_over_and_used_again() {
    let mut cluster = cluster(1, 2);
    run(async {
        let writer = client(&cluster, ReadFrom::Primary).await;
        for turn in 0..60 {
            writer
                .set(format!("key{turn}"), turn)
                .await
                .expect("it is set");
        }
        for replica in cluster.replicas() {
            has_it_all(&cluster, replica).await;
        }
        let prefer = client(&cluster, ReadFrom::PreferReplica).await;
        let any = client(&cluster, ReadFrom::Any).await;
        let only = client(&cluster, ReadFrom::Replica).await;
        for (client, of_primary) in [(&prefer, false), (&any, true), (&only, false)] {
            let before: Vec<u64> = cluster.nodes().iter().map(gets).collect();
            reads(client).await;
            let mut counts = cluster
                .nodes()
                .iter()
                .zip(&before)
                .map(|(node, n)| gets(node) - n);
            assert_eq!(counts.next().expect("a primary") > 0, of_primary);
            assert!(counts.all(|count| count > 5), "all replicas take part");
        }
        cluster.kill(1);
        for client in [&prefer, &any, &only] {
            reads(client).await;
        }
        cluster.kill(2);
        reads(&prefer).await;
        reads(&any).await;
        let read = only.get::<Option<u32>, _>("key1");
        let read = read.timeout(Duration::from_secs(1)).await;
        let Err(Error::Unavailable { why }) = read else {
            panic!("there is no replica: {read:?}");
        };
        assert!(
            why.contains("replica") || why.contains("cannot connect"),
            "{why}"
        );
        cluster.restart(1).expect("it starts again");
        let replica = &cluster.nodes()[1];
        // Until then it has no data, and says so.
        has_it_all(&cluster, replica).await;
        until("it is read again", async || {
            reads(&prefer).await;
            gets(replica) > 0
        })
        .await;
        until(
            "a client that reads only replicas reads it again",
            async || only.get::<u32, _>("key1").await == Ok(1),
        )
        .await;
    });
}

#[test]
fn a_shard_without_replicas_says_so() {
    let cluster = cluster(1, 0);
    run(async {
        let only = client(&cluster, ReadFrom::Replica).await;
        only.set("key", 1).await.expect("writes go to the primary");
        let read = only
            .get::<u32, _>("key")
            .timeout(Duration::from_millis(200))
            .await;
        let Err(Error::Unavailable { why }) = read else {
            panic!("there is no replica: {read:?}");
        };
        assert!(why.contains("no replica"), "{why}");
        let prefer = client(&cluster, ReadFrom::PreferReplica).await;
        assert_eq!(prefer.get::<u32, _>("key").await, Ok(1));
    });
}

#[test]
fn a_command_takes_no_longer_than_it_may_however_often_it_is_sent() {
    let server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = Duration::from_millis(1000);
        config.dead_after = Duration::from_millis(700);
        let client = Client::with(config).await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
        // The client gives up the connection after a while, and opens another one, which is silent, too: a
        // command whose time began anew with each connection would never end.
        server.pause();
        // The connection is given up when the oldest command has no time left, and no sooner.
        let oldest = client
            .get::<u32, _>("key")
            .timeout(Duration::from_millis(10));
        assert_eq!(oldest.await, Err(Error::TimedOut));
        for timeout in [None, Some(Duration::from_millis(1200))] {
            let read = client.get::<u32, _>("key");
            let read = match timeout {
                None => read,
                Some(timeout) => read.timeout(timeout),
            };
            let read = tokio::time::timeout(LONG, read).await;
            let read = read.expect("it ends with its time");
            let error = read.expect_err("the server is silent");
            let ended = matches!(error, Error::TimedOut | Error::Unavailable { .. });
            assert!(ended, "{error:?}");
        }
        let sent_again = client.metrics().retries(RetryCause::Unknown);
        assert!(sent_again > 0, "the first connection was given up");
        server.resume();
        until("it goes on", async || {
            client.get::<u32, _>("key").await == Ok(1)
        })
        .await;
    });
}

#[test]
fn a_repeated_write_that_may_have_been_executed_is_not_called_undone() {
    let mut server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = Duration::from_secs(2);
        let client = Client::with(config).await.expect("it connects");
        server.pause();
        let writing = {
            let client = client.clone();
            tokio::spawn(async move { client.incr("key").repeatable().await })
        };
        until("it is sent", async || {
            client.metrics().total().stats.in_flight == 1
        })
        .await;
        // The connection took it, and no other server ever does.
        server.kill();
        let outcome = writing.await.expect("no panic");
        assert!(
            matches!(outcome, Err(Error::UnknownOutcome(_))),
            "{outcome:?}"
        );
    });
}
