//! Iterators over keys, while slots move, replicas take over, and servers restart.

use std::collections::BTreeSet;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::Secret;
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error, Scan};
use embar_redis_servers::{Cluster, ClusterOptions, MoveState, Options, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

/// So many keys.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

/// A server with these keeps its keys when it is killed.
fn persistent() -> Vec<String> {
    ["--appendonly yes", "--appendfsync always"]
        .map(str::to_owned)
        .to_vec()
}

/// Waits until all nodes know the newest epoch: one that does not know it would claim a slot with an older one.
async fn agreed(cluster: &Cluster) {
    let epoch = |node: &Server| {
        let info = node.command(&["CLUSTER", "INFO"]).expect("it answers");
        let mut lines = info.lines();
        let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        epoch.expect("a number").to_owned()
    };
    until("all know the epoch", async || {
        let epochs: BTreeSet<_> = cluster.nodes().iter().map(epoch).collect();
        epochs.len() == 1
    })
    .await;
}

async fn patient(mut config: Config) -> Client {
    config.timeout = LONG;
    Client::with(config).await.expect("it connects")
}

/// A client of a cluster that has these keys.
async fn filled(cluster: &Cluster, keys: &[String]) -> Client {
    let client = patient(to_cluster(cluster)).await;
    let pairs = keys.iter().map(|key| (key, 1));
    client.set_all(pairs).await.expect("they are set");
    client
}

/// The next key.
async fn next(scan: &mut Scan<'_>) -> Option<String> {
    let key = scan.next().await.expect("the nodes answer")?;
    Some(String::from_utf8(key).expect("a text"))
}

/// The keys that are left, each as often as the scan reports it.
async fn rest(mut scan: Scan<'_>) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(key) = next(&mut scan).await {
        found.push(key);
    }
    found
}

fn assert_complete(found: impl IntoIterator<Item = String>, keys: &[String]) {
    let found: BTreeSet<String> = found.into_iter().collect();
    let missing: Vec<_> = keys.iter().filter(|key| !found.contains(*key)).collect();
    assert!(
        missing.is_empty(),
        "{} are missing: {missing:?}",
        missing.len()
    );
}

fn owner(cluster: &Cluster, key: &str) -> usize {
    let owner = cluster.owner_of(slot(key.as_bytes()));
    owner.expect("it is served")
}

/// How often a server has executed this.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let begin = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&begin));
    let calls = calls.and_then(|calls| calls.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn no_key_is_missed_while_slots_move_to_and_fro() {
    let cluster = cluster(3, 0);
    run(async {
        let keys = keys(400);
        let client = filled(&cluster, &keys).await;
        let mut scan = client.scan(None);
        let mut found = Vec::new();
        let mut moves = 0;
        while let Some(key) = next(&mut scan).await {
            found.push(key);
            // Some of them come back, several times, before and after the node of the moment looked at them.
            if found.len().is_multiple_of(5) && moves < 60 {
                let moving = &keys[moves * 7 % 20];
                let from = owner(&cluster, moving);
                let to = (from + 1 + moves % 2) % 3;
                let slot = slot(moving.as_bytes());
                let moved = cluster.move_slot(slot, from, to, MoveState::Done);
                moved.expect("it moves");
                agreed(&cluster).await;
                moves += 1;
            }
        }
        assert_eq!(moves, 60);
        assert_complete(found, &keys);
    });
}

#[test]
fn a_slot_that_moves_to_a_node_that_was_scanned_already_is_found_there() {
    let cluster = cluster(3, 0);
    run(async {
        let keys = keys(300);
        let client = filled(&cluster, &keys).await;
        let mut scan = client.scan(None);
        let mut found = vec![next(&mut scan).await.expect("there are keys")];
        let scanned = owner(&cluster, &found[0]);
        let now = loop {
            let key = next(&mut scan).await.expect("there are more");
            let owner = owner(&cluster, &key);
            found.push(key);
            if owner != scanned {
                break owner;
            }
        };
        let later = 3 - scanned - now;
        for key in keys
            .iter()
            .filter(|key| owner(&cluster, key) == later)
            .take(10)
        {
            let moved = cluster.move_slot(slot(key.as_bytes()), later, scanned, MoveState::Done);
            moved.expect("it moves");
            agreed(&cluster).await;
        }
        let before = found.len();
        found.extend(rest(scan).await);
        assert_complete(found.iter().cloned(), &keys);
        // Of the node that is scanned again, only these are reported.
        let again = found.len() - keys.len();
        assert!(again <= before.min(15), "{again} twice");
    });
}

#[test]
fn keys_of_a_slot_that_is_half_on_its_way_are_found_at_both_nodes() {
    let cluster = cluster(3, 0);
    run(async {
        let mut keys = keys(100);
        keys.extend((0..60).map(|number| format!("{{tag}}{number}")));
        let client = filled(&cluster, &keys).await;
        let from = owner(&cluster, "{tag}");
        let (slot, to) = (slot(b"{tag}"), (from + 1) % 3);
        cluster.begin_move(slot, from, to).expect("it begins");
        for key in &keys[100..130] {
            let moved = cluster.move_key(key.as_bytes(), from, to);
            moved.expect("it moves");
        }
        assert_complete(rest(client.scan(None)).await, &keys);
        let tagged = rest(client.scan(Some("{tag}*"))).await;
        assert_complete(tagged, &keys[100..]);
        // Its other keys go while it is scanned.
        let mut scan = client.scan(Some("{tag}*"));
        let mut found = vec![next(&mut scan).await.expect("there are keys")];
        cluster.move_keys(slot, from, to).expect("they move");
        cluster.finish_move(slot, from, to).expect("it ends");
        found.extend(rest(scan).await);
        assert_complete(found, &keys[100..]);
    });
}

#[test]
fn a_slot_goes_for_the_first_time_to_a_node_that_the_client_does_not_know() {
    let cluster = cluster(3, 0);
    run(async {
        // The last node has nothing, so no topology names it.
        let client = patient(to_cluster(&cluster)).await;
        drop(client);
        let newcomer = 2;
        let slots = |first: u32, last: u32| [first.to_string(), last.to_string()];
        let [first, last] = slots(10923, 16383);
        for (index, node) in cluster.nodes().iter().enumerate() {
            let ranges = ["CLUSTER", "DELSLOTSRANGE", &first, &last];
            node.command(&ranges).expect("it answers");
            if index == 0 {
                let ranges = ["CLUSTER", "ADDSLOTSRANGE", &first, &last];
                node.command(&ranges).expect("it answers");
            }
        }
        let bumped = cluster.nodes()[0].command(&["CLUSTER", "BUMPEPOCH"]);
        bumped.expect("it answers");
        cluster.wait_ok(LONG).expect("all agree");
        let keys: Vec<_> = (0..60).map(|number| format!("{{tag}}{number}")).collect();
        let client = filled(&cluster, &keys).await;
        assert_eq!(client.nodes().len(), 2, "{:?}", client.nodes());
        let (slot, from) = (slot(b"{tag}"), owner(&cluster, "{tag}"));
        cluster.begin_move(slot, from, newcomer).expect("it begins");
        for key in &keys[..30] {
            let moved = cluster.move_key(key.as_bytes(), from, newcomer);
            moved.expect("it moves");
        }
        assert_complete(rest(client.scan(None)).await, &keys);
    });
}

#[test]
fn a_replica_that_takes_over_is_scanned_from_the_beginning() {
    let mut cluster = cluster(3, 1);
    run(async {
        let keys = keys(600);
        let client = filled(&cluster, &keys).await;
        let size = |node: &Server| node.command(&["DBSIZE"]).expect("it answers");
        for (primary, replica) in cluster.masters().iter().zip(cluster.replicas()) {
            until("the replica has all", async || {
                size(primary) == size(replica)
            })
            .await;
        }
        let mut scan = client.scan(None);
        let mut found = Vec::new();
        for _ in 0..100 {
            found.push(next(&mut scan).await.expect("there are keys"));
        }
        // It is in the midst of its keys.
        let scanned = owner(&cluster, &found[99]);
        assert_eq!(owner(&cluster, &found[0]), scanned);
        cluster.kill(scanned);
        found.extend(rest(scan).await);
        assert_complete(found, &keys);
    });
}

#[test]
fn a_server_that_restarts_is_scanned_from_the_beginning() {
    let options = Options {
        extra: persistent(),
        ..Options::default()
    };
    let mut server = Server::start(&options).expect("redis-server runs");
    run(async {
        let keys = keys(600);
        let client = patient(to(&server)).await;
        let pairs = keys.iter().map(|key| (key, 1));
        client.set_all(pairs).await.expect("they are set");
        let mut scan = client.scan(None);
        let mut found = Vec::new();
        for _ in 0..200 {
            found.push(next(&mut scan).await.expect("there are keys"));
        }
        server.restart().expect("it starts again");
        found.extend(rest(scan).await);
        assert_complete(found, &keys);
    });
}

#[test]
fn a_scan_goes_on_after_its_connection_broke_if_the_server_tells_that_it_is_the_same() {
    for may_ask in [true, false] {
        let server = server();
        let rule = if may_ask { "+info" } else { "-info" };
        let user = [
            "ACL", "SETUSER", "scanner", "on", ">word", "allkeys", "+@all", rule,
        ];
        server.command(&user).expect("it answers");
        run(async {
            let keys = keys(600);
            let mut config = to(&server);
            config.username = Some("scanner".to_owned());
            config.password = Some(Secret::new("word"));
            let client = patient(config).await;
            let pairs = keys.iter().map(|key| (key, 1));
            client.set_all(pairs).await.expect("they are set");
            let mut scan = client.scan(None);
            let mut found = Vec::new();
            for _ in 0..300 {
                found.push(next(&mut scan).await.expect("there are keys"));
            }
            let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            killed.expect("it answers");
            found.extend(rest(scan).await);
            assert_complete(found.iter().cloned(), &keys);
            let twice = found.len() - keys.len();
            assert_eq!(twice < 100, may_ask, "{twice} twice");
        });
    }
}

#[test]
fn a_pattern_with_a_hash_tag_is_looked_for_at_one_node() {
    let cluster = cluster(3, 0);
    run(async {
        let keys: Vec<_> = (0..30).map(|number| format!("{{tag}}{number}")).collect();
        let client = filled(&cluster, &keys).await;
        client.set("other", 1).await.expect("it is set");
        // On another task than the one that asks for it.
        let scan = tokio::spawn(async move { rest(client.scan(Some("{tag}*"))).await });
        let found = scan.await.expect("no panic");
        assert_eq!(found.len(), 30);
        assert_complete(found, &keys);
        let asked = cluster.nodes().iter().map(|node| calls(node, "scan") > 0);
        let asked: Vec<_> = asked.collect();
        let wanted: Vec<_> = (0..3)
            .map(|node| node == owner(&cluster, "{tag}"))
            .collect();
        assert_eq!(asked, wanted);
    });
}

#[test]
fn slots_that_no_node_serves_do_not_hold_up_a_scan() {
    let options = ClusterOptions {
        require_full_coverage: false,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(&options).expect("redis-server runs");
    let orphan = slot(b"key-0");
    for node in cluster.nodes() {
        let delete = node.command(&["CLUSTER", "DELSLOTS", &orphan.to_string()]);
        delete.expect("it answers");
    }
    run(async {
        let keys: Vec<_> = keys(100)
            .into_iter()
            .filter(|key| slot(key.as_bytes()) != orphan)
            .collect();
        let client = filled(&cluster, &keys).await;
        assert_complete(rest(client.scan(None)).await, &keys);
        let none = client.scan(Some("key-0")).collect().await;
        assert_eq!(none, Ok(Vec::new()));
    });
}

#[test]
fn a_user_who_may_not_ask_for_slots_is_told_so() {
    let cluster = cluster(1, 0);
    let user = [
        "ACL",
        "SETUSER",
        "scanner",
        "on",
        ">word",
        "allkeys",
        "+@all",
        "-cluster|nodes",
    ];
    cluster.nodes()[0].command(&user).expect("it answers");
    run(async {
        let mut config = to_cluster(&cluster);
        config.username = Some("scanner".to_owned());
        config.password = Some(Secret::new("word"));
        let client = patient(config).await;
        let error = client.scan(None).next().await.expect_err("it is refused");
        let Error::Server(error) = error else {
            panic!("it is the server's word: {error:?}");
        };
        assert!(error.text.contains("cluster|nodes"), "{}", error.text);
    });
}

#[test]
fn elements_of_one_key_are_found_while_it_moves() {
    let cluster = cluster(3, 0);
    run(async {
        let client = patient(to_cluster(&cluster)).await;
        let fields: Vec<_> = (0..600).map(|number| format!("field-{number}")).collect();
        let add = async |command: &str, pairs: bool| {
            for (number, field) in fields.iter().enumerate() {
                let add = embar_redis::cmd(command).key(format!("{{tag}}{command}"));
                let add = match pairs {
                    true if command == "ZADD" => add.arg(number).arg(field),
                    true => add.arg(field).arg(number),
                    false => add.arg(field),
                };
                client.send::<_, u64>(add).await.expect("it is added");
            }
        };
        add("HSET", true).await;
        add("SADD", false).await;
        add("ZADD", true).await;
        let mut hash = client.scan_hash::<String, u64>("{tag}HSET").count(20);
        let mut set = client.scan_set::<String>("{tag}SADD");
        let mut sorted = client.scan_sorted_set::<String>("{tag}ZADD");
        let (mut found, mut members, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..200 {
            found.push(hash.next().await.expect("it answers").expect("a field"));
            members.push(set.next().await.expect("it answers").expect("a member"));
            scores.push(sorted.next().await.expect("it answers").expect("a member"));
        }
        let from = owner(&cluster, "{tag}");
        let moved = cluster.move_slot(slot(b"{tag}"), from, (from + 1) % 3, MoveState::Done);
        moved.expect("it moves");
        found.extend(hash.collect().await.expect("it answers"));
        members.extend(set.collect().await.expect("it answers"));
        scores.extend(sorted.collect().await.expect("it answers"));
        assert_complete(members, &fields);
        for (field, number) in &found {
            assert_eq!(*field, format!("field-{number}"));
        }
        assert_complete(found.into_iter().map(|(field, _)| field), &fields);
        assert_complete(scores.into_iter().map(|(member, _)| member), &fields);
        let some = client.scan_set::<String>("{tag}SADD").pattern("*-59?");
        assert_eq!(some.collect().await.expect("it answers").len(), 10);
        let other = client.clone();
        let none = async move { other.scan_set::<String>("none").collect().await };
        let none = tokio::spawn(none).await.expect("no panic");
        assert_eq!(none, Ok(Vec::new()));
        let error = client.scan_hash::<String, u64>("{tag}SADD").next().await;
        let error = error.expect_err("it is a set");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    });
}

#[test]
fn elements_are_looked_for_from_the_beginning_after_a_restart() {
    let options = Options {
        extra: persistent(),
        ..Options::default()
    };
    let mut server = Server::start(&options).expect("redis-server runs");
    run(async {
        let client = patient(to(&server)).await;
        let members = keys(600);
        let add = embar_redis::cmd("SADD").key("set").args(&members);
        client.send::<_, u64>(add).await.expect("they are added");
        let mut scan = client.scan_set::<String>("set");
        let mut found = Vec::new();
        for _ in 0..300 {
            found.push(scan.next().await.expect("it answers").expect("a member"));
        }
        server.restart().expect("it starts again");
        found.extend(scan.collect().await.expect("it answers"));
        assert_complete(found, &members);
    });
}
