//! The metrics of a client, compared with what it did.

use std::time::Duration;

use embar_redis::command::Class;
use embar_redis::commands::strings::StringCommands;
use embar_redis::metrics::{NodeMetrics, RetryCause};
use embar_redis::slot::slot;
use embar_redis::{Client, Error};
use embar_redis_servers::MoveState;

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

fn counts(node: &NodeMetrics) -> [u64; 2] {
    [Class::Read, Class::Write].map(|class| node.latency(class).count())
}

#[test]
fn the_metrics_are_what_the_client_did() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let before = client.metrics().total();
        assert_eq!(
            (before.connects, before.reconnects, before.connects_failed),
            (1, 0, 0)
        );
        for turn in 0..50 {
            client
                .set(format!("key{turn:02}"), "v")
                .await
                .expect("it is set");
        }
        for turn in 0..30 {
            client
                .get::<String, _>(format!("key{turn:02}"))
                .await
                .expect("it is there");
        }
        let mut pipeline = client.pipeline();
        let places: Vec<_> = (0..10).map(|_| pipeline.set("key00", "v")).collect();
        let results = pipeline.run().await;
        places
            .into_iter()
            .for_each(|place| results.take(place).expect("it is set"));
        let set = "*3\r\n$3\r\nSET\r\n$5\r\nkey00\r\n$1\r\nv\r\n".len();
        let get = "*2\r\n$3\r\nGET\r\n$5\r\nkey00\r\n".len();
        let ping = "*1\r\n$4\r\nPING\r\n".len();
        let sent = (ping + 60 * set + 30 * get) as u64;
        // A caller may have its reply a moment before the last count. The client's own first command
        // counts, too.
        until("all is counted", async || {
            let total = client.metrics().total();
            let together = [&total.commands_per_write, &total.replies_per_read];
            together.map(|together| together.sum()) == [82, 82] && total.stats.bytes_sent == sent
        })
        .await;
        let metrics = client.metrics();
        assert_eq!(metrics.nodes.len(), 1);
        let node = &metrics.nodes[0];
        assert_eq!(node.node, server.address().to_string());
        let [reads, writes] = counts(node);
        assert_eq!(
            [reads - counts(&before)[0], writes - counts(&before)[1]],
            [30, 51]
        );
        let received = node.stats.bytes_received - before.stats.bytes_received;
        assert_eq!(
            received,
            (60 * "+OK\r\n".len() + 30 * "$1\r\nv\r\n".len()) as u64
        );
        assert!((1..=82).contains(&node.stats.writes));
        assert_eq!((node.stats.in_flight, node.stats.timeouts), (0, 0));
        let latency = node.latency(Class::Write);
        let (half, most) = (latency.quantile(0.5), latency.quantile(1.0));
        assert!(half > Some(0) && half <= most && most < Some(5_000_000_000));
        assert_eq!(
            (metrics.moved, metrics.asked, metrics.unavailable),
            (0, 0, 0)
        );
        assert!(
            RetryCause::ALL
                .iter()
                .all(|cause| metrics.retries(*cause) == 0)
        );
    });
}

#[test]
fn commands_that_come_together_leave_together() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let callers = (0..64).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    client
                        .set(format!("key{number}"), 1)
                        .await
                        .expect("it is set");
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.expect("no panic");
        }
        let node = client.metrics().total();
        for together in [&node.commands_per_write, &node.replies_per_read] {
            assert!(together.quantile(1.0) > Some(1), "{together:?}");
        }
        assert_eq!(counts(&node)[1], 64 * 50);
    });
}

#[test]
fn a_silent_server_and_a_dead_one_count_differently() {
    let mut server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = Duration::from_millis(400);
        let client = Client::with(config).await.expect("it connects");
        server.pause();
        let short = Duration::from_millis(50);
        let late = client.get::<Option<u32>, _>("key").timeout(short).await;
        assert_eq!(late, Err(Error::TimedOut));
        let seen = client.metrics().total();
        assert_eq!((seen.stats.timeouts, seen.stats.in_flight), (1, 1));
        let lost = {
            let client = client.clone();
            tokio::spawn(async move { client.incr("key").timeout(LONG).await })
        };
        until("it is sent", async || {
            client.metrics().total().stats.in_flight == 2
        })
        .await;
        server.kill();
        let lost = lost.await.expect("no panic");
        assert!(matches!(lost, Err(Error::UnknownOutcome(_))), "{lost:?}");
        assert_eq!(client.metrics().unknown_outcomes, 1);
        let nobody = client.get::<Option<u32>, _>("key").await;
        assert!(
            matches!(nobody, Err(Error::Unavailable { .. })),
            "{nobody:?}"
        );
        let metrics = client.metrics();
        assert_eq!(metrics.unavailable, 1);
        assert!(metrics.total().connects_failed > 0);
        assert_eq!(metrics.total().reconnects, 0);
        server.restart().expect("it starts again");
        until("it is used again", async || {
            client.set("key", 1).await.is_ok()
        })
        .await;
        let total = client.metrics().total();
        assert_eq!((total.connects, total.reconnects), (2, 1));
    });
}

#[test]
fn redirects_and_refreshes_are_counted() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let slot = slot(b"{tag}");
        let from = cluster.owner_of(slot).expect("it is served");
        let to = (from + 1) % 3;
        client.set("{tag}", 1).await.expect("it is set");
        let before = client.metrics();
        assert_eq!((before.moved, before.asked), (0, 0));
        assert!(before.refreshes > 0);
        cluster
            .move_slot(slot, from, to, MoveState::KeysMoved)
            .expect("it moves");
        assert_eq!(client.get::<u32, _>("{tag}").await, Ok(1));
        assert_eq!((client.metrics().moved, client.metrics().asked), (0, 1));
        cluster.finish_move(slot, from, to).expect("it moves");
        assert_eq!(client.get::<u32, _>("{tag}").await, Ok(1));
        assert_eq!((client.metrics().moved, client.metrics().asked), (1, 1));
        until("it is known", async || {
            client.metrics().refreshes > before.refreshes
        })
        .await;
        assert_eq!(client.get::<u32, _>("{tag}").await, Ok(1));
        let after = client.metrics();
        assert_eq!((after.moved, after.failovers), (1, 0));
        assert_eq!(after.nodes.len(), 3);
    });
}

#[test]
fn a_failover_is_counted() {
    let mut cluster = cluster(3, 1);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        client.set("key", 1).await.expect("it is set");
        let primary = cluster.owner_of(slot(b"key")).expect("it is served");
        cluster.kill(primary);
        until("a replica takes over", async || {
            client.set("key", 2).await.is_ok()
        })
        .await;
        until("it is known", async || client.metrics().failovers == 1).await;
    });
}
