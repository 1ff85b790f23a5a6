//! What callers learn when servers and connections fail, compared with what the servers did.
//!
//! Each increment is accounted for: executed, not executed, or reported as of unknown outcome; none is
//! executed twice. Each value carries its key: no reply ever goes to another caller.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error};
use embar_redis_servers::MoveState;

use crate::support::{LONG, Load, cluster, endpoint, run, server, to, to_cluster, until};

#[test]
fn killed_connections_lose_nothing_and_repeat_nothing() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let load = Load::start(&client, 32);
        for _ in 0..20 {
            load.goes_on(100).await;
            server
                .command(&["CLIENT", "KILL", "TYPE", "normal"])
                .expect("it answers");
        }
        load.goes_on(100).await;
        load.settle(&client, 0).await;
        let stats = server.command(&["INFO", "stats"]).expect("it answers");
        let made = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        let made: u32 = made
            .and_then(|made| made.trim().parse().ok())
            .expect("it counts");
        assert!(made > 20, "each kill hit: {made}");
    });
}

#[test]
fn slots_that_move_under_load_lose_nothing() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let load = Load::start(&client, 32);
        load.goes_on(500).await;
        // In one direction, as when a node is emptied: two servers that both give and take slots may end
        // up each saying that the other has a slot.
        let slots = (0..32).map(|number| slot(format!("counter-{number}").as_bytes()));
        for slot in slots.filter(|slot| cluster.owner_of(*slot).ok() == Some(0)) {
            cluster
                .move_slot(slot, 0, 1, MoveState::Done)
                .expect("it moves");
        }
        load.goes_on(500).await;
        let sum = load.settle(&client, 0).await;
        assert_eq!((sum.unknown, sum.not_done), (0, 0), "{sum:?}");
    });
}

#[test]
fn a_killed_primary_is_replaced_and_delays_no_other() {
    let mut cluster = cluster(3, 1);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let load = Load::start(&client, 32);
        load.goes_on(500).await;
        // A key of a shard that lives on.
        let dead = cluster.owner_of(slot(b"counter-0")).expect("it is served");
        let other = (0..100)
            .map(|number| format!("other-{number}"))
            .find(|key| cluster.owner_of(slot(key.as_bytes())).ok() != Some(dead))
            .expect("not all keys are in one shard");
        cluster.kill(dead);
        let waiting = {
            let client = client.clone();
            let until_taken_over = async move {
                while let Err(_no_primary) = client.incr("counter-0-again{counter-0}").await {}
            };
            tokio::spawn(tokio::time::timeout(LONG, until_taken_over))
        };
        let mut meanwhile = 0;
        while !waiting.is_finished() {
            client.incr(&other).await.expect("its shard lives");
            meanwhile += 1;
        }
        let taken_over = waiting.await.expect("no panic");
        taken_over.expect("a replica takes over");
        assert!(meanwhile > 2, "{meanwhile} commands meanwhile");
        load.goes_on(500).await;
        // The server loses what it acknowledged and had not passed on to its replica.
        let in_flight = 32 * 4;
        load.settle(&client, in_flight).await;
    });
}

#[test]
fn a_stalled_node_is_given_up_in_time_and_goes_on_afterwards() {
    let cluster = cluster(3, 0);
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = Duration::from_millis(300);
        // Longer than the test: a command that waits for that waits too long.
        config.dead_after = 2 * LONG;
        let client = Client::with(config).await.expect("it connects");
        let load = Load::start(&client, 16);
        load.goes_on(300).await;
        let stalled = cluster.owner_of(slot(b"counter-0")).expect("it is served");
        let live = (0..100)
            .map(|number| format!("other-{number}"))
            .find(|key| cluster.owner_of(slot(key.as_bytes())).ok() != Some(stalled))
            .expect("not all keys are in one shard");
        cluster.nodes()[stalled].pause();
        let error = client
            .incr("{counter-0}")
            .await
            .expect_err("the node is silent");
        assert_eq!(error, Error::TimedOut);
        let live = client.incr(&live).timeout(LONG).await;
        live.expect("other nodes answer");
        cluster.nodes()[stalled].resume();
        until("it goes on", async || {
            client.incr("{counter-0}x").await.is_ok()
        })
        .await;
        load.goes_on(300).await;
        load.settle(&client, 0).await;
    });
}

#[test]
fn a_server_that_comes_back_is_used_again_and_reads_never_fail_meanwhile() {
    let mut server = server();
    run(async {
        let mut config = to(&server);
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
        server.kill();
        let reading = {
            let client = client.clone();
            tokio::spawn(async move { client.get::<Option<u32>, _>("key").await })
        };
        until("connecting fails", async || {
            client.metrics().total().connects_failed > 2
        })
        .await;
        server.restart().expect("it starts again");
        // The server has lost its data, as it stores them nowhere; the client sends the read again.
        assert_eq!(reading.await.expect("no panic"), Ok(None));
        client.set("key", 2).await.expect("it is set");
        assert_eq!(client.get::<u32, _>("key").await, Ok(2));
    });
}

#[test]
fn a_closed_client_refuses() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let other = client.clone();
    drop(client);
    other.set("key", 1).wait().expect("a clone lives");
    server.pause();
    let error = other
        .get::<Option<u32>, _>("key")
        .timeout(Duration::from_millis(50))
        .wait()
        .expect_err("it says nothing");
    assert_eq!(error, Error::TimedOut);
    server.resume();
    drop(other);
}

#[test]
fn deadlines_hold_while_a_stalled_node_is_asked_for_the_topology() {
    let mut cluster = cluster(3, 0);
    run(async {
        // The answer, or the end of the connection, would come after the end of the test.
        let mut config = to_cluster(&cluster);
        config.timeout = 2 * LONG;
        config.connect_timeout = 2 * LONG;
        config.dead_after = 2 * LONG;
        let client = Client::with(config).await.expect("it connects");
        let dead = (0..100)
            .map(|number| format!("key-{number}"))
            .find(|key| cluster.owner_of(slot(key.as_bytes())).ok() == Some(1))
            .expect("each node has some of so many keys");
        // A node that the client asks is silent, and there is a reason to ask.
        cluster.nodes()[0].pause();
        cluster.kill(1);
        for _ in 0..5 {
            let get = client.get::<Option<u32>, _>(&dead);
            let get = get.timeout(Duration::from_millis(100));
            let error = tokio::time::timeout(LONG, get).await;
            let error = error.expect("it ends");
            assert!(matches!(error, Err(Error::Unavailable { .. })), "{error:?}");
        }
        cluster.nodes()[0].resume();
    });
}

#[test]
fn a_server_that_is_not_redis_is_an_error_and_connected_to_with_pauses() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let connects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connects);
    thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            let _ = stream.expect("a connection").write_all(answer);
        }
    });
    run(async {
        let mut config = Config::standalone(endpoint(address));
        config.timeout = Duration::from_secs(1);
        let error = Client::with(config).await.expect_err("it is no Redis");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    });
    // Each pause is up to twice as long as the one before, from 5 ms on.
    let connects = connects.load(Ordering::Relaxed);
    assert!((1..40).contains(&connects), "{connects} in a second");
}
