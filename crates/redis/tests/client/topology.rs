//! Which nodes a client asks for the topology, and which of them it believes.

use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, Secret};
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error};
use embar_redis_servers::{Cluster, ClusterOptions, Lost, Net, Server};

use crate::support::{LONG, cluster, endpoint, run, server, to_cluster, until};

/// Reads the topology again and again.
fn curious(cluster: &Cluster) -> Config {
    let mut config = to_cluster(cluster);
    config.refresh_interval = Duration::from_millis(20);
    config
}

/// How often a server was asked which node serves which slot.
fn asked(server: &Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
    let calls = calls.and_then(|calls| calls.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// A key that this node serves.
fn key_of(cluster: &Cluster, node: usize) -> String {
    (0..1000)
        .map(|number| format!("key-{number}"))
        .find(|key| cluster.owner_of(slot(key.as_bytes())).ok() == Some(node))
        .expect("each node has some of so many keys")
}

/// A cluster that goes on without the slots of a shard that is down.
fn partial_cluster(masters: usize, replicas: usize) -> Cluster {
    let options = ClusterOptions {
        masters,
        replicas,
        require_full_coverage: false,
        ..ClusterOptions::default()
    };
    Cluster::start(&options).expect("redis-server runs")
}

#[test]
fn a_primary_that_its_peers_have_replaced_is_not_believed() {
    Net::test(6, |net| {
        let options = ClusterOptions {
            replicas: 1,
            hosts: net.hosts(),
            ..ClusterOptions::default()
        };
        let cluster = Cluster::start(&options).expect("redis-server runs");
        net.inside(|| {
            run(async {
                let mut config = curious(&cluster);
                config.timeout = LONG;
                let client = Client::with(config.clone()).await;
                let client = client.expect("it connects");
                let key = key_of(&cluster, 0);
                client.set(&key, "old").await.expect("it is set");
                let [alone, replica] = [&cluster.nodes()[0], &cluster.nodes()[3]];
                let ip = net.hosts()[0].address();
                net.lose(ip, Lost::Peers).expect("it is cut");
                let at_replica = async || {
                    let role = replica.command(&["ROLE"]).expect("it answers");
                    role.starts_with("master")
                };
                until("the replica takes over", at_replica).await;
                // The old primary still answers that it serves slot 0, and takes no commands.
                let told = alone.command(&["CLUSTER", "SLOTS"]).expect("it answers");
                let first = told.lines().nth(3).expect("a port");
                assert_eq!(first, alone.port().to_string());
                client.set(&key, 0).await.expect("the new primary is found");
                let before = client.metrics().refreshes;
                let mut count = 0;
                while client.metrics().refreshes < before + 20 {
                    count += 1;
                    let incr = client.incr(&key).await;
                    assert_eq!(incr, Ok(count), "it stays there");
                }
                // A client that knows only the old primary is told of the others by it.
                config.seeds = vec![endpoint(alone.address())];
                let other = Client::with(config).await.expect("it connects");
                assert_eq!(other.get::<i64, _>(&key).await, Ok(count));
                assert!(asked(alone) > 0);
                let found = replica.command(&["GET", &key]).expect("it answers");
                assert_eq!(found, count.to_string());
                net.heal(ip, Lost::Peers).expect("it is healed");
                cluster.wait_ok(LONG).expect("it joins again");
                assert_eq!(client.get::<i64, _>(&key).await, Ok(count));
            });
        });
    });
}

#[test]
fn a_client_connects_while_a_shard_is_down() {
    let mut cluster = partial_cluster(3, 0);
    let keys: Vec<String> = (0..3).map(|node| key_of(&cluster, node)).collect();
    cluster.kill(0);
    run(async {
        let mut config = to_cluster(&cluster);
        config.timeout = LONG;
        let client = Client::with(config.clone()).await.expect("it connects");
        let error = set_others(&client, &keys).await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        cluster.restart(0).expect("it starts again");
        until("its keys are set", async || {
            client.set(&keys[0], 1).await.is_ok()
        })
        .await;
        // One that hangs is not to be waited for: it lets connections in.
        config.connect_timeout = 10 * LONG;
        config.dead_after = 10 * LONG;
        cluster.nodes()[0].pause();
        let client = Client::with(config).await.expect("it connects");
        set_others(&client, &keys).await;
    });
}

/// Sets keys of shards that live; the error for the first key, whose shard is down.
async fn set_others(client: &Client, keys: &[String]) -> Error {
    for key in &keys[1..] {
        client.set(key, 1).await.expect("its shard lives");
    }
    let set = client.set(&keys[0], 1).timeout(Duration::from_millis(300));
    set.await.expect_err("its shard is down")
}

#[test]
fn a_client_that_learns_no_topology_says_why() {
    let alone = server();
    let secret = ClusterOptions {
        masters: 1,
        password: Some("secret".to_owned()),
        ..ClusterOptions::default()
    };
    let secret = Cluster::start(&secret).expect("redis-server runs");
    let mut gone = server();
    gone.kill();
    run(async {
        let mut config = Config::cluster([endpoint(alone.address())]);
        config.timeout = LONG;
        let error = Client::with(config).await.expect_err("it is no cluster");
        assert!(matches!(error, Error::Server(_)), "{error:?}");
        assert!(error.to_string().contains("cluster support"), "{error}");
        // Not even if the first seed is gone.
        let mut config = to_cluster(&secret);
        config.seeds.insert(0, endpoint(gone.address()));
        config.password = Some(Secret::new("guess"));
        config.timeout = Duration::from_secs(5);
        let error = Client::with(config).await.expect_err("it is wrong");
        assert!(error.to_string().contains("WRONGPASS"), "{error}");
    });
}

#[test]
fn a_node_that_hangs_holds_up_no_refresh() {
    let mut cluster = partial_cluster(3, 1);
    // It stays in the topology, as nobody takes over from it.
    let stay = ["CONFIG", "SET", "cluster-replica-no-failover", "yes"];
    cluster.nodes()[3].command(&stay).expect("it obeys");
    run(async {
        let mut config = curious(&cluster);
        config.timeout = LONG;
        // Its connection stays, so that the client goes on asking it.
        config.connect_timeout = 10 * LONG;
        config.dead_after = 10 * LONG;
        let client = Client::with(config).await.expect("it connects");
        let key = key_of(&cluster, 1);
        client.set(&key, 1).await.expect("it is set");
        let hung = cluster.nodes()[0].address().to_string();
        // How many refreshes there were, and how many questions it has not answered in time.
        let counts = || {
            let metrics = client.metrics();
            let of_hung = metrics.nodes.iter().find(|node| node.node == hung);
            let timeouts = of_hung.map_or(0, |node| node.stats.timeouts);
            (metrics.refreshes, timeouts)
        };
        cluster.nodes()[0].pause();
        cluster.kill(1);
        // A failover needs two of three primaries, of which one is left.
        cluster.nodes()[4]
            .command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
            .expect("it takes over");
        until("the new primary is found", async || {
            let set = client.set(&key, 2);
            set.timeout(Duration::from_millis(100)).await.is_ok()
        })
        .await;
        let mut in_a_row = 0;
        let mut before = counts();
        until("refreshes end while a question is open", async || {
            let now = counts();
            if now.1 > before.1 {
                in_a_row = 0;
            } else if now.0 > before.0 {
                in_a_row += 1;
            }
            before = now;
            in_a_row == 5
        })
        .await;
        cluster.nodes()[0].resume();
    });
}

#[test]
fn every_node_is_asked_now_and_then() {
    let cluster = cluster(3, 1);
    run(async {
        let client = Client::with(curious(&cluster)).await.expect("it connects");
        until("all were asked", async || {
            cluster.nodes().iter().all(|node| asked(node) > 3)
        })
        .await;
        let refreshes = client.metrics().refreshes;
        let asked: u64 = cluster.nodes().iter().map(asked).sum();
        assert!(asked > refreshes, "{asked} questions in {refreshes}");
    });
}

#[test]
fn a_seed_that_the_cluster_calls_otherwise_is_not_asked_again() {
    let cluster = cluster(2, 0);
    run(async {
        let mut config = curious(&cluster);
        config.seeds = vec![Endpoint::tcp("localhost", cluster.nodes()[0].port())];
        let client = Client::with(config).await.expect("it connects");
        let refreshes = || client.metrics().refreshes;
        let connects = || client.metrics().total().connects;
        until("all nodes are known", async || connects() >= 3).await;
        // On a slow machine all nodes may be late now and then, and then it is asked.
        until("it is not asked", async || {
            let (before, connected) = (refreshes(), connects());
            until("there are more", async || refreshes() > before + 10).await;
            connects() == connected
        })
        .await;
    });
}

#[test]
fn slots_that_nobody_serves_are_no_reason_to_ask_every_node() {
    let cluster = partial_cluster(5, 0);
    for node in cluster.nodes() {
        let forget = ["CLUSTER", "DELSLOTS", "100"];
        node.command(&forget).expect("it obeys");
    }
    run(async {
        let client = Client::with(curious(&cluster)).await.expect("it connects");
        let counts = || {
            let asked: u64 = cluster.nodes().iter().map(asked).sum();
            (asked, client.metrics().refreshes)
        };
        // A slow machine may be late with answers, and then the client does ask more nodes.
        until("some nodes are not asked", async || {
            let before = counts();
            until("there are some", async || counts().1 >= before.1 + 20).await;
            let after = counts();
            after.0 - before.0 < 4 * (after.1 - before.1)
        })
        .await;
    });
}

#[test]
fn a_cluster_that_was_made_anew_is_followed() {
    let cluster = cluster(3, 0);
    let nodes = cluster.nodes();
    run(async {
        let bump = nodes[0].command(&["CLUSTER", "BUMPEPOCH"]);
        bump.expect("it obeys");
        let before = epoch(&nodes[0]);
        until("all know the epoch", async || {
            nodes.iter().all(|node| epoch(node) == before)
        })
        .await;
        let client = Client::with(curious(&cluster)).await.expect("it connects");
        make_anew(&cluster).await;
        assert!(nodes.iter().all(|node| epoch(node) < before));
        let refreshes = || client.metrics().refreshes;
        let anew = refreshes();
        until("it reads the new topology", async || refreshes() > anew + 2).await;
        let moved = client.metrics().moved;
        for number in 0..100 {
            let set = client.set(format!("key{number}"), 1).await;
            set.expect("it is set");
        }
        assert_eq!(client.metrics().moved, moved, "the right nodes are asked");
    });
}

/// A number of `CLUSTER INFO`.
fn info(node: &Server, name: &str) -> String {
    let info = node.command(&["CLUSTER", "INFO"]).expect("it answers");
    let value = info.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field == name).then(|| value.trim().to_owned())
    });
    value.expect("it says so")
}

fn epoch(node: &Server) -> u32 {
    info(node, "cluster_current_epoch")
        .parse()
        .expect("a number")
}

/// All nodes forget everything, and become a cluster in which each has the slots of the one behind it.
async fn make_anew(cluster: &Cluster) {
    let nodes = cluster.nodes();
    for node in nodes {
        node.command(&["FLUSHALL"]).expect("it obeys");
        node.command(&["CLUSTER", "RESET", "HARD"])
            .expect("it obeys");
    }
    let shares = [("5461", "10922"), ("10923", "16383"), ("0", "5460")];
    for ((number, node), (first, last)) in (1..).zip(nodes).zip(shares) {
        let own: u32 = number;
        for command in [
            &["CLUSTER", "SET-CONFIG-EPOCH", &own.to_string()],
            &["CLUSTER", "ADDSLOTSRANGE", first, last][..],
        ] {
            node.command(command).expect("it obeys");
        }
    }
    for other in &nodes[1..] {
        let (ip, port) = (other.address().ip().to_string(), other.port().to_string());
        let meet = ["CLUSTER", "MEET", &ip, &port];
        nodes[0].command(&meet).expect("it obeys");
    }
    until("it is a cluster", async || {
        nodes.iter().all(|node| {
            info(node, "cluster_known_nodes") == "3" && info(node, "cluster_state") == "ok"
        })
    })
    .await;
}

#[test]
fn a_user_who_may_not_see_all_is_served() {
    let cluster = cluster(3, 0);
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "default", "-cluster|info"];
        node.command(&user).expect("it obeys");
    }
    run(async {
        let client = Client::with(curious(&cluster)).await.expect("it connects");
        let before = client.metrics().refreshes;
        until("it is read again", async || {
            client.metrics().refreshes > before + 3
        })
        .await;
        assert_eq!(client.metrics().refreshes_failed, 0);
        for number in 0..50 {
            client
                .set(format!("key{number}"), 1)
                .await
                .expect("it is set");
        }
        assert_eq!(client.metrics().moved, 0);
    });
}
