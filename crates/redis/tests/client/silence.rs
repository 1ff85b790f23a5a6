//! Servers that owe replies and say nothing, because they are busy or because they are gone. A paused process is
//! like either: its kernel accepts what is sent.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::ReadFrom;
use embar_redis::metrics::RetryCause;
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd};
use embar_redis_servers::{Options, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// Nothing in a test waits for as little by itself.
const DEAD_AFTER: Duration = Duration::from_millis(200);

fn in_flight(client: &Client) -> u64 {
    client.metrics().total().stats.in_flight
}

async fn submitted(client: &Client, count: u64) {
    until("it is submitted", async || in_flight(client) == count).await;
}

#[test]
fn a_command_that_may_take_long_costs_its_neighbours_no_connection() {
    let server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = LONG;
        config.dead_after = DEAD_AFTER;
        let client = Client::with(config).await.expect("it connects");
        client.set("key", "value").await.expect("it is set");
        let before = client.metrics().total().connects;
        server.pause();
        let slow = {
            let client = client.clone();
            tokio::spawn(async move { client.get::<String, _>("key").await })
        };
        submitted(&client, 1).await;
        let write = {
            let client = client.clone();
            tokio::spawn(async move { client.incr("counter").await })
        };
        submitted(&client, 2).await;
        // Neighbours give up in their own time. The last one does so long after `dead_after`.
        for timeout in [DEAD_AFTER / 10, 4 * DEAD_AFTER] {
            let late = client.get::<Option<String>, _>("other").timeout(timeout);
            assert_eq!(late.await, Err(Error::TimedOut));
        }
        server.resume();
        assert_eq!(slow.await.expect("no panic").as_deref(), Ok("value"));
        assert_eq!(write.await.expect("no panic"), Ok(1));
        // Late replies go to nobody else.
        assert_eq!(client.get::<String, _>("key").await.as_deref(), Ok("value"));
        assert_eq!(client.metrics().total().connects, before);
        assert_eq!(client.metrics().retries(RetryCause::Unknown), 0);
    });
}

#[test]
fn a_server_that_is_busy_for_long_answers_all_that_wait() {
    let options = Options {
        extra: vec!["--enable-debug-command yes".to_owned()],
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    run(async {
        let mut config = to(&server);
        config.timeout = LONG;
        config.dead_after = DEAD_AFTER;
        let client = Client::with(config).await.expect("it connects");
        let slow = {
            let client = client.clone();
            let sleep = async move { client.send::<_, ()>(cmd("DEBUG").arg("SLEEP").arg(1)).await };
            tokio::spawn(sleep)
        };
        submitted(&client, 1).await;
        assert_eq!(client.incr("counter").await, Ok(1));
        assert_eq!(slow.await.expect("no panic"), Ok(()));
    });
}

#[test]
fn a_read_that_took_too_long_is_not_sent_again_and_its_neighbours_are() {
    let server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = LONG;
        config.dead_after = DEAD_AFTER;
        let client = Client::with(config).await.expect("it connects");
        client.set("key", "value").await.expect("it is set");
        server.pause();
        let slow = {
            let client = client.clone();
            let read = async move {
                let read = client.send::<_, u64>(cmd("STRLEN").key("key"));
                read.timeout(DEAD_AFTER / 2).await
            };
            tokio::spawn(read)
        };
        submitted(&client, 1).await;
        let neighbour = {
            let client = client.clone();
            tokio::spawn(async move { client.get::<String, _>("key").await })
        };
        assert_eq!(slow.await.expect("no panic"), Err(Error::TimedOut));
        until("the connection is given up", async || {
            client.metrics().retries(RetryCause::Unknown) == 1
        })
        .await;
        server.resume();
        assert_eq!(neighbour.await.expect("no panic").as_deref(), Ok("value"));
        let stats = server.command(&["INFO", "commandstats"]);
        let stats = stats.expect("it answers");
        // The server may have found the first connection closed before it read from it.
        let slow = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_strlen:"));
        let once = slow.is_none_or(|line| line.contains(":calls=1,"));
        assert!(once, "{slow:?}");
    });
}

#[test]
fn a_silent_node_that_was_replaced_is_left_by_what_waits_there() {
    let cluster = cluster(3, 1);
    run(async {
        let mut config = to_cluster(&cluster);
        // Nothing else leads away from the node in time.
        config.timeout = 2 * LONG;
        config.refresh_interval = 2 * LONG;
        config.dead_after = Duration::from_secs(1);
        let client = Client::with(config).await.expect("it connects");
        client.set("key", "value").await.expect("it is set");
        let silent = cluster.owner_of(slot(b"key")).expect("it is served");
        let primary = &cluster.nodes()[silent];
        until("its replica has it", async || {
            let has_it = |replica: &Server| {
                let size = replica.command(&["DBSIZE"]);
                size.is_ok_and(|size| size.trim() == "1")
            };
            cluster.replicas().iter().any(has_it)
        })
        .await;
        primary.pause();
        let read = tokio::time::timeout(LONG, client.get::<String, _>("key")).await;
        let read = read.expect("another node answers");
        assert_eq!(read.as_deref(), Ok("value"));
        primary.resume();
    });
}

#[test]
fn a_silent_replica_gets_no_new_reads() {
    let cluster = cluster(1, 1);
    for node in cluster.nodes() {
        // The cluster does not notice.
        let patient = ["CONFIG", "SET", "cluster-node-timeout", "600000"];
        node.command(&patient).expect("it is set");
    }
    run(async {
        let mut config = to_cluster(&cluster);
        config.read_from = ReadFrom::PreferReplica;
        config.timeout = 2 * LONG;
        config.dead_after = DEAD_AFTER;
        let (primary, replica) = (&cluster.nodes()[0], &cluster.replicas()[0]);
        // The cluster names a replica once that has something.
        primary
            .command(&["SET", "key", "value"])
            .expect("it is set");
        let port = replica.port().to_string();
        until("the replica is named", async || {
            let said = primary.command(&["CLUSTER", "SLOTS"]);
            said.is_ok_and(|said| said.contains(&port))
        })
        .await;
        let client = Client::with(config).await.expect("it connects");
        until("reads go to the replica", async || {
            let read = client.get::<Option<String>, _>("key").await;
            read.is_ok()
                && replica
                    .command(&["INFO", "commandstats"])
                    .is_ok_and(|said| said.contains("cmdstat_get:"))
        })
        .await;
        replica.pause();
        // It may take its time, so its connection is not given up.
        let oldest = {
            let client = client.clone();
            tokio::spawn(async move { client.get::<Option<String>, _>("key").await })
        };
        until("it is submitted", async || in_flight(&client) > 0).await;
        until("reads go elsewhere", async || {
            let read = client.get::<Option<String>, _>("key");
            read.timeout(DEAD_AFTER).await.is_ok()
        })
        .await;
        replica.resume();
        let oldest = oldest.await.expect("no panic");
        assert_eq!(oldest, Ok(Some("value".to_owned())));
    });
}
