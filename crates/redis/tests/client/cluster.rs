//! Clusters that change.

use embar_redis::command::{Class, Command, Fixed, Route};
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::ReadFrom;
use embar_redis::slot::slot;
use embar_redis::{Client, prefix};
use embar_redis_servers::{MoveState, Options, Server};

use crate::support::{cluster, endpoint, run, to_cluster, until};

#[test]
fn each_key_is_at_the_node_that_serves_its_slot() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        for turn in 0..300 {
            let key = format!("key{turn}");
            client.set(&key, turn).await.expect("it is set");
            assert_eq!(client.get::<u32, _>(&key).await, Ok(turn));
        }
        let busy = client
            .stats()
            .iter()
            .filter(|(_, stats)| stats.replies > 50)
            .count();
        assert_eq!(busy, 3, "all nodes take part: {:?}", client.stats());
    });
    let sizes = cluster.masters().iter().map(|node| {
        let size = node.command(&["DBSIZE"]).expect("it answers");
        size.trim().parse::<u32>().expect("a number")
    });
    assert_eq!(sizes.sum::<u32>(), 300);
}

#[test]
fn a_node_that_knows_nothing_is_not_believed() {
    let cluster = cluster(3, 0);
    let options = Options {
        cluster: true,
        ..Options::default()
    };
    // As one that was restarted without its memory.
    let forgetful = Server::start(&options).expect("redis-server runs");
    run(async {
        let mut config = to_cluster(&cluster);
        config.seeds.insert(0, endpoint(forgetful.address()));
        let client = Client::with(config).await.expect("it connects");
        for turn in 0..50 {
            let key = format!("key{turn}");
            client.set(&key, turn).await.expect("it is set");
        }
    });
}

#[test]
fn a_slot_that_moves_is_followed_at_every_step() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let slot = slot(b"{tag}");
        let from = cluster.owner_of(slot).expect("it is served");
        let to = (from + 1) % 3;
        for turn in 0..20 {
            client
                .set(format!("{{tag}}{turn}"), turn)
                .await
                .expect("it is set");
        }
        for step in [MoveState::Migrating, MoveState::KeysMoved, MoveState::Done] {
            cluster.move_slot(slot, from, to, step).expect("it moves");
            for turn in 0..20 {
                let key = format!("{{tag}}{turn}");
                assert_eq!(client.get::<u32, _>(&key).await, Ok(turn), "{step:?}");
            }
            let new = format!("{{tag}}new{step:?}");
            client
                .set(&new, 1)
                .await
                .expect("new keys go where the slot goes");
            assert_eq!(client.get::<u32, _>(&new).await, Ok(1), "{step:?}");
        }
        assert_eq!(cluster.owner_of(slot).expect("it is served"), to);
    });
}

#[test]
fn keys_of_all_nodes_are_found_read_set_and_deleted_together() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let keys: Vec<String> = (0..500).map(|number| format!("key{number}")).collect();
        let pairs = keys.iter().zip(0_u32..);
        client.set_all(pairs).await.expect("they are set");
        client.set("other", 1).await.expect("it is set");
        let values: Vec<u32> = client.get_all(&keys).await.expect("they are there");
        assert_eq!(values, (0..500).collect::<Vec<_>>());
        let found = client.scan(Some("key*")).count(50).collect().await;
        let mut found = found.expect("all nodes answer");
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 500);
        assert_eq!(client.del_all(&keys).await, Ok(500));
        let left = client.scan(None).collect().await;
        assert_eq!(left, Ok(vec![b"other".to_vec()]));
    });
}

#[test]
fn replicas_are_read_if_the_policy_says_so() {
    let cluster = cluster(3, 1);
    run(async {
        let mut config = to_cluster(&cluster);
        config.read_from = ReadFrom::Replica;
        let client = Client::with(config).await.expect("it connects");
        for turn in 0..60 {
            let key = format!("key{turn}");
            client.set(&key, turn).await.expect("it is set");
            // Replicas lag behind.
            until("the replica has it", async || {
                client.get::<Option<u32>, _>(&key).await == Ok(Some(turn))
            })
            .await;
        }
        let replicas: Vec<String> = cluster
            .replicas()
            .iter()
            .map(|node| node.address().to_string())
            .collect();
        let read = client.stats().into_iter();
        let read = read.filter(|(node, stats)| replicas.contains(node) && stats.replies > 5);
        assert_eq!(read.count(), 3, "{:?}", client.stats());
    });
}

/// What any node can execute.
fn ping() -> Fixed<()> {
    Fixed::new(prefix!(1, 4, "PING"), (), Route::Any, Class::Read)
}

/// How often a server was asked for this.
fn pings(server: &Server) -> u32 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let ping = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_ping:calls="));
    let ping = ping.and_then(|ping| ping.split(',').next());
    ping.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn commands_without_a_key_go_to_all_nodes_that_live() {
    let mut cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        for turn in 0..50 {
            let key = format!("key{turn}");
            client.set(&key, turn).await.expect("it is set");
        }
        let before: Vec<u32> = cluster.nodes().iter().map(pings).collect();
        for _ in 0..300 {
            let pong = client.send::<_, String>(ping()).await;
            assert_eq!(pong.as_deref(), Ok("PONG"));
        }
        for (node, before) in cluster.nodes().iter().zip(before) {
            let share = pings(node) - before;
            assert!(share >= 50, "{share} of 300");
        }
        for dead in [0, 2] {
            cluster.kill(dead);
            for _ in 0..50 {
                let pong = client.send::<_, String>(ping()).await;
                assert_eq!(pong.as_deref(), Ok("PONG"));
            }
        }
    });
}

#[test]
fn several_commands_in_one_follow_a_slot_that_is_on_its_way() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        client.set("key", "value").await.expect("it is set");
        let slot = slot(b"key");
        let from = cluster.owner_of(slot).expect("it is served");
        cluster
            .move_slot(slot, from, (from + 1) % 3, MoveState::KeysMoved)
            .expect("it moves");
        // The server answers to ASKING first, and that is none of its replies.
        let value = client.send::<_, String>(GetAndPing("key")).await;
        assert_eq!(value.as_deref(), Ok("value"));
    });
}

/// Two commands in one.
struct GetAndPing(&'static str);

impl GetAndPing {
    fn parts(&self) -> (Fixed<(&str,)>, Fixed<()>) {
        let route = Route::of(self.0);
        let get = Fixed::new(prefix!(2, 3, "GET"), (self.0,), route, Class::Read);
        (get, ping())
    }
}

impl Command for GetAndPing {
    fn encoded_len(&self) -> usize {
        let (get, ping) = self.parts();
        get.encoded_len() + ping.encoded_len()
    }

    fn encode(&self, out: &mut [u8]) {
        let (get, ping) = self.parts();
        let (first, second) = out.split_at_mut(get.encoded_len());
        get.encode(first);
        ping.encode(second);
    }

    fn route(&self) -> Route {
        Route::of(self.0)
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn replies(&self) -> u32 {
        2
    }
}
