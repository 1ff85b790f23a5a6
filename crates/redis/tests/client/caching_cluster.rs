//! Reads through the cache, in a cluster whose slots move and whose nodes fail.

use std::time::Duration;

use embar_redis::Client;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::ReadFrom;
use embar_redis::slot::slot;
use embar_redis_servers::MoveState;

use crate::caching::{LONG_AGE, cache, calls, set, with_cache};
use crate::support::{LONG, cluster, run, to_cluster, until};

/// Waits until this is what the cache gives.
async fn until_read(client: &Client, key: &str, value: &str) {
    let cached = client.cached(LONG_AGE);
    until("it is read anew", async || {
        cached.get::<String, _>(key).await.as_deref() == Ok(value)
    })
    .await;
}

#[test]
fn the_keys_of_a_slot_that_moves_are_read_at_its_new_node() {
    let cluster = cluster(3, 0);
    let key = "key";
    let slot = slot(key.as_bytes());
    let from = cluster.owner_of(slot).expect("a node serves it");
    let to = (from + 1) % 3;
    run(async {
        let client = Client::with(with_cache(to_cluster(&cluster))).await;
        let client = client.expect("it connects");
        let cached = client.cached(LONG_AGE);
        client.set(key, "old").await.expect("it is set");
        for _ in 0..2 {
            assert_eq!(cached.get::<String, _>(key).await.as_deref(), Ok("old"));
        }
        for step in [MoveState::Migrating, MoveState::KeysMoved] {
            cluster.move_slot(slot, from, to, step).expect("it moves");
        }
        // The old node reports that the key has gone, and leads to the new one. Nobody reports what is read there so.
        let gets = || calls(&cluster.nodes()[to], "get");
        until("it is read there", async || {
            let value = cached.get::<String, _>(key).await;
            assert_eq!(value.as_deref(), Ok("old"));
            gets() > 0
        })
        .await;
        let before = gets();
        for _ in 0..3 {
            assert_eq!(cached.get::<String, _>(key).await.as_deref(), Ok("old"));
        }
        assert_eq!(gets(), before + 3, "each is asked for");
        cluster
            .move_slot(slot, from, to, MoveState::Done)
            .expect("it moves");
        until("it is kept again", async || {
            let hits = cache(&client).hits;
            let value = cached.get::<String, _>(key).await;
            assert_eq!(value.as_deref(), Ok("old"));
            cache(&client).hits > hits
        })
        .await;
        set(&cluster.nodes()[to], key, "new");
        until_read(&client, key, "new").await;
    });
}

#[test]
fn a_slot_that_is_given_away_without_its_keys_takes_its_entries_along() {
    let cluster = cluster(3, 0);
    let key = "key";
    let slot = slot(key.as_bytes());
    let from = cluster.owner_of(slot).expect("a node serves it");
    let to = (from + 1) % 3;
    run(async {
        let mut config = with_cache(to_cluster(&cluster));
        config.refresh_interval = Duration::from_millis(20);
        let client = Client::with(config).await.expect("it connects");
        // Of a key that is not there, nothing is moved that the server could report.
        let cached = client.cached(LONG_AGE);
        let nothing = cached.get::<Option<String>, _>(key).await;
        assert_eq!(nothing, Ok(None));
        cluster
            .move_slot(slot, from, to, MoveState::Done)
            .expect("it moves");
        set(&cluster.nodes()[to], key, "new");
        until_read(&client, key, "new").await;
    });
}

#[test]
fn after_a_failover_the_new_primary_is_read() {
    let mut cluster = cluster(3, 1);
    let key = "key";
    let primary = cluster
        .owner_of(slot(key.as_bytes()))
        .expect("a node serves it");
    run(async {
        let client = Client::with(with_cache(to_cluster(&cluster))).await;
        let client = client.expect("it connects");
        client.set(key, "old").await.expect("it is set");
        let replica = primary + 3;
        until("the replica has it", async || {
            let size = cluster.nodes()[replica].command(&["DBSIZE"]);
            size.is_ok_and(|size| size.trim() == "1")
        })
        .await;
        let cached = client.cached(LONG_AGE);
        assert_eq!(cached.get::<String, _>(key).await.as_deref(), Ok("old"));
        cluster.kill(primary);
        until("the replica takes over", async || {
            let role = cluster.nodes()[replica].command(&["ROLE"]);
            role.is_ok_and(|role| role.starts_with("master"))
        })
        .await;
        set(&cluster.nodes()[replica], key, "new");
        until_read(&client, key, "new").await;
        set(&cluster.nodes()[replica], key, "newer");
        until_read(&client, key, "newer").await;
    });
}

#[test]
fn replicas_report_what_changes_there() {
    let cluster = cluster(1, 1);
    let key = "key";
    run(async {
        let mut config = with_cache(to_cluster(&cluster));
        config.read_from = ReadFrom::Replica;
        config.timeout = LONG;
        let client = Client::with(config).await.expect("it connects");
        client.set(key, "old").await.expect("it is set");
        until_read(&client, key, "old").await;
        let cached = client.cached(LONG_AGE);
        let replica = &cluster.nodes()[1];
        let gets = calls(replica, "get");
        for _ in 0..3 {
            assert_eq!(cached.get::<String, _>(key).await.as_deref(), Ok("old"));
        }
        // The last one that was read anew may have been dropped by a report of the SET.
        assert!(calls(replica, "get") <= gets + 1);
        assert_eq!(calls(&cluster.nodes()[0], "get"), 0);
        set(&cluster.nodes()[0], key, "new");
        until_read(&client, key, "new").await;
    });
}
