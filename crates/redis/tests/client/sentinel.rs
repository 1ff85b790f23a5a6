//! A primary with replicas, of which sentinels say which is which.

use std::collections::BTreeSet;
use std::time::Duration;

use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, ReadFrom, Secret};
use embar_redis::pubsub::{Event, Kind};
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Lost, MASTER_NAME, Net, Options, SentinelOptions, Sentinels, Server};

use crate::replicas::gets;
use crate::support::{LONG, Load, endpoint, run, until};

fn sentinels(replicas: usize) -> Sentinels {
    start(&SentinelOptions {
        replicas,
        ..SentinelOptions::default()
    })
}

fn start(options: &SentinelOptions) -> Sentinels {
    Sentinels::start(options).expect("redis-server runs")
}

fn to(sentinels: &Sentinels) -> Config {
    let addresses = sentinels.addresses().into_iter().map(endpoint);
    let mut config = Config::sentinels(MASTER_NAME, addresses);
    config.timeout = LONG;
    config
}

/// The address of the primary, as the client knows it.
fn primary(client: &Client) -> Option<String> {
    let nodes = client.nodes().into_iter();
    let mut primaries = nodes.filter(|node| node.slots > 0);
    Some(primaries.next()?.address)
}

fn is_primary(client: &Client, server: &Server) -> bool {
    primary(client).as_deref() == Some(server.address().to_string().as_str())
}

/// Waits until the replicas have all that the primary acknowledged.
async fn passed_on(primary: &Server, replica: &Server) {
    let offset = |server: &Server| {
        let info = server.command(&["INFO", "replication"]);
        let info = info.expect("it answers");
        let mut lines = info.lines();
        lines
            .find_map(|line| line.strip_prefix("master_repl_offset:"))
            .map(str::to_owned)
    };
    until("the replica has all data", async || {
        offset(replica) == offset(primary)
    })
    .await;
}

async fn connect(config: Config) -> Client {
    Client::with(config).await.expect("it connects")
}

/// The error of a client that does not connect, although it has all the time there is.
async fn refused(mut config: Config) -> Error {
    config.timeout = 2 * LONG;
    let client = tokio::time::timeout(LONG, Client::with(config)).await;
    client
        .expect("it ends at once")
        .expect_err("it must not connect")
}

#[test]
fn it_works_with_a_dead_sentinel_and_goes_on_without_any() {
    let mut all = sentinels(1);
    all.sentinels_mut()[0].kill();
    run(async {
        let addresses: Vec<_> = all.addresses().iter().map(ToString::to_string).collect();
        let url = format!(
            "redis-sentinel://{}/3?refresh_interval=100ms#{MASTER_NAME}",
            addresses.join(",")
        );
        let client = Client::connect(&url).await.expect("it connects");
        // Keys of any slots are in one shard, and in the database of the URL.
        let set: () = client
            .send(cmd("MSET").key("a").arg(1).key("b").arg(2))
            .await
            .expect("they are set");
        assert_eq!(set, ());
        assert_eq!(client.send(cmd("DBSIZE")).await, Ok(2));
        let info = all.servers()[0].command(&["INFO", "keyspace"]);
        let info = info.expect("it answers");
        assert!(info.contains("db3:keys=2"), "{info}");
        let known: BTreeSet<_> = client
            .nodes()
            .into_iter()
            .map(|node| node.address)
            .collect();
        let servers = all.servers().iter().map(|it| it.address().to_string());
        assert_eq!(known, servers.collect());
        assert!(is_primary(&client, &all.servers()[0]));

        for sentinel in all.sentinels_mut() {
            sentinel.kill();
        }
        let failed = || client.metrics().refreshes_failed;
        let before = failed();
        until("no sentinel answers", async || failed() > before + 3).await;
        assert_eq!(client.get::<u32, _>("a").await, Ok(1));
        assert_eq!(client.nodes().len(), 2);
    });
}

#[test]
fn commands_that_no_server_has_wait_for_the_new_primary_and_run_once() {
    let mut all = sentinels(1);
    run(async {
        let client = connect(to(&all)).await;
        for _ in 0..100 {
            client.incr("count").await.expect("it is counted");
        }
        passed_on(&all.servers()[0], &all.servers()[1]).await;
        all.servers_mut()[0].kill();
        // The outcome of a write would be unknown that goes out before the client notices.
        until("the connection is over", async || {
            let read = client.get::<u32, _>("count");
            let _unanswered = read.timeout(Duration::from_millis(20)).await;
            client.metrics().total().connects_failed > 0
        })
        .await;
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let client = client.clone();
            waiting.push(tokio::spawn(async move { client.incr("count").await }));
        }
        let mut pipeline = client.pipeline();
        let piped: Vec<_> = (0..100).map(|_| pipeline.incr("piped")).collect();
        let mut transaction = client.transaction();
        let queued = transaction.incr("queued");
        let _counted = transaction.incr("count");
        let (results, transacted) = tokio::join!(pipeline.run(), transaction.run());
        for (turn, sum) in (1..).zip(piped) {
            assert_eq!(results.take(sum), Ok(turn));
        }
        let transacted = transacted.expect("it is executed");
        assert_eq!(transacted.take(queued), Ok(1));
        for one in waiting {
            one.await.expect("no panic").expect("it is counted");
        }
        assert_eq!(client.get::<u32, _>("count").await, Ok(201));
        assert!(is_primary(&client, &all.servers()[1]));
        assert_eq!(client.metrics().failovers, 1);
    });
}

#[test]
fn a_primary_that_is_killed_under_load_is_replaced() {
    let mut all = sentinels(2);
    run(async {
        let client = connect(to(&all)).await;
        let load = Load::start(&client, 32);
        load.goes_on(500).await;
        all.servers_mut()[0].kill();
        until("another primary is known", async || {
            !is_primary(&client, &all.servers()[0])
        })
        .await;
        load.goes_on(500).await;
        // The server loses what it acknowledged and had not passed on to its replica.
        let in_flight = 32 * 4;
        load.settle(&client, in_flight).await;
        all.wait_ok(LONG).expect("they are well");
        until("the other replica belongs to it", async || {
            client.nodes().len() == 2
        })
        .await;
    });
}

#[test]
fn a_failover_by_hand_is_followed_at_once() {
    let all = sentinels(1);
    run(async {
        let mut config = to(&all);
        // Only the sentinels can tell.
        config.refresh_interval = Duration::from_secs(3600);
        let client = connect(config).await;
        client.set("key", 7).await.expect("it is set");
        let reading = {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    let read = client.get::<u32, _>("key").await;
                    assert_eq!(read, Ok(7), "a read is sent again");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        for turn in 1..3_u32 {
            let (old, new) = match turn {
                1 => (&all.servers()[0], &all.servers()[1]),
                _ => (&all.servers()[1], &all.servers()[0]),
            };
            assert!(is_primary(&client, old));
            passed_on(old, new).await;
            let index = usize::from(turn == 2);
            until("the client follows", async || {
                // A sentinel gives up when it has not heard from the replica for long, as on a busy machine.
                if matches!(all.named_by(0), Ok(Some(named)) if named == index) {
                    all.fail_over(0).expect("it answers");
                }
                is_primary(&client, new)
            })
            .await;
            assert_eq!(client.incr("count").await, Ok(i64::from(turn)));
            all.wait_ok(LONG).expect("the roles are swapped");
        }
        assert!(!reading.is_finished(), "no read failed");
        reading.abort();
        assert_eq!(client.metrics().failovers, 2);
    });
}

/// The client reaches everybody all the time. The sentinel and the primary that are cut off from all others still name
/// the primary of before, and take writes.
#[test]
fn a_sentinel_that_is_cut_off_is_not_believed() {
    Net::test(5, |net| {
        let hosts = net.hosts();
        let all = start(&SentinelOptions {
            hosts: hosts.clone(),
            ..SentinelOptions::default()
        });
        net.inside(|| {
            run(async {
                let client = connect(to(&all)).await;
                assert!(is_primary(&client, &all.servers()[0]));
                for cut_off in [0, 2] {
                    let host = hosts[cut_off].address();
                    net.lose(host, Lost::Peers).expect("it is cut off");
                }
                until("the others have another primary", async || {
                    [1, 2]
                        .iter()
                        .all(|&it| matches!(all.named_by(it), Ok(Some(1))))
                })
                .await;
                assert_eq!(all.named_by(0).expect("it answers"), Some(0));
                until("the client follows", async || {
                    is_primary(&client, &all.servers()[1])
                })
                .await;
                client.set("key", 1).await.expect("it is set");
                let read = all.servers()[1].command(&["GET", "key"]);
                assert_eq!(read.expect("it answers"), "1");
                for others in [1, 2, 2, 2] {
                    let mut config = to(&all);
                    config.seeds.remove(others);
                    let new = connect(config).await;
                    assert!(is_primary(&new, &all.servers()[1]));
                }
                // Who knows only the one that is cut off learns of the others from that.
                let mut misled = to(&all);
                misled.seeds.truncate(1);
                misled.refresh_interval = Duration::from_millis(100);
                let misled = connect(misled).await;
                until("it asks the others, too", async || {
                    is_primary(&misled, &all.servers()[1])
                })
                .await;
                for cut_off in [0, 2] {
                    let host = hosts[cut_off].address();
                    net.heal(host, Lost::Peers).expect("it was cut off");
                }
            });
        });
    });
}

#[test]
fn sentinels_and_servers_have_passwords_of_their_own() {
    let all = start(&SentinelOptions {
        password: Some("of-servers".to_owned()),
        sentinel_password: Some("of-sentinels".to_owned()),
        ..SentinelOptions::default()
    });
    for sentinel in all.sentinels() {
        let user = [
            "ACL",
            "SETUSER",
            "watcher",
            "on",
            ">secret",
            "+@all",
            "allchannels",
        ];
        sentinel.command(&user).expect("it has another user");
        // It may ask for the address, and nothing else.
        let user = [
            "ACL",
            "SETUSER",
            "asker",
            "on",
            ">secret",
            "+sentinel|get-master-addr-by-name",
        ];
        sentinel.command(&user).expect("it has another user");
    }
    run(async {
        let with = |of_servers: &str, user: Option<&str>, of_sentinels: &str| {
            let mut config = to(&all);
            config.password = Some(Secret::new(of_servers));
            config.sentinel.username = user.map(str::to_owned);
            config.sentinel.password = Some(Secret::new(of_sentinels));
            config
        };
        for (user, password) in [
            (None, "of-sentinels"),
            (Some("watcher"), "secret"),
            (Some("asker"), "secret"),
        ] {
            let client = connect(with("of-servers", user, password)).await;
            client.set("key", 1).await.expect("it is set");
        }
        for config in [
            with("of-sentinels", None, "of-sentinels"),
            with("of-servers", None, "of-servers"),
            with("of-servers", Some("nobody"), "of-sentinels"),
        ] {
            let error = refused(config).await;
            assert!(error.to_string().contains("WRONGPASS"), "{error:?}");
        }
    });
}

#[test]
fn a_name_that_sentinels_do_not_know_is_an_error_at_once() {
    let mut all = sentinels(0);
    all.sentinels_mut()[1].kill();
    run(async {
        let mut config = to(&all);
        config.sentinel.master_name = "theirmaster".to_owned();
        let error = refused(config).await;
        let Error::Config(why) = &error else {
            panic!("{error:?}");
        };
        assert!(
            why.contains("'theirmaster'") && why.contains("SENTINEL MASTERS"),
            "{why}"
        );
        // Nor is any other server a sentinel.
        let mut config = to(&all);
        config.seeds = vec![endpoint(all.servers()[0].address())];
        let error = refused(config).await;
        assert!(error.to_string().contains("SENTINEL"), "{error:?}");
    });
}

#[test]
fn a_server_that_sentinels_name_has_to_be_a_primary() {
    let all = start(&SentinelOptions {
        replicas: 0,
        sentinels: 1,
        ..SentinelOptions::default()
    });
    run(async {
        let server = &all.servers()[0];
        let replicate = ["REPLICAOF", "127.0.0.1", "1"];
        server.command(&replicate).expect("it obeys");
        let mut config = to(&all);
        config.timeout = Duration::from_secs(1);
        let error = Client::with(config).await.expect_err("it is a replica");
        let Error::Unavailable { why } = error else {
            panic!("{error:?}");
        };
        let address = server.address().to_string();
        assert!(
            why.contains(&address) && why.contains("it is a replica"),
            "{why}"
        );
        let connecting = tokio::spawn(connect(to(&all)));
        server
            .command(&["REPLICAOF", "NO", "ONE"])
            .expect("it obeys");
        let client = connecting.await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
    });
}

#[test]
fn subscribers_go_on_at_servers_that_are_left() {
    let mut all = sentinels(1);
    run(async {
        let client = connect(to(&all)).await;
        let mut subscribers = Vec::new();
        // Each begins at another server.
        for _ in 0..4 {
            let subscriber = client.subscriber(100);
            for kind in [Kind::Channel, Kind::Sharded] {
                subscriber
                    .subscribe(kind, "news")
                    .await
                    .expect("it is confirmed");
            }
            subscribers.push(subscriber);
        }
        all.servers_mut()[0].kill();
        until("another primary is known", async || {
            is_primary(&client, &all.servers()[1])
        })
        .await;
        for (command, wanted) in [("PUBLISH", Kind::Channel), ("SPUBLISH", Kind::Sharded)] {
            until("all receive it", async || {
                let publish = cmd(command).key("news").arg("x");
                client.send::<_, u32>(publish).await == Ok(4)
            })
            .await;
            for subscriber in &mut subscribers {
                loop {
                    let event = tokio::time::timeout(LONG, subscriber.next()).await;
                    match event.expect("it comes").expect("it goes on") {
                        Event::Message(message) if message.kind == wanted => break,
                        Event::Message(_) | Event::Interrupted => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    });
}

#[test]
fn replicas_are_read_while_they_live_and_have_all_data() {
    let mut all = sentinels(2);
    run(async {
        let mut config = to(&all);
        config.read_from = ReadFrom::PreferReplica;
        let client = connect(config).await;
        let reads = async || {
            for turn in 0..60_u32 {
                let value = client.get::<u32, _>(format!("key{turn}")).await;
                assert_eq!(value, Ok(turn));
            }
        };
        for turn in 0..60_u32 {
            client
                .set(format!("key{turn}"), turn)
                .await
                .expect("it is set");
        }
        for replica in &all.servers()[1..] {
            passed_on(&all.servers()[0], replica).await;
        }
        until("both are known", async || client.nodes().len() == 3).await;
        reads().await;
        let counts: Vec<_> = all.servers().iter().map(gets).collect();
        assert_eq!(counts[0], 0, "no read at the primary");
        assert!(counts[1] > 5 && counts[2] > 5, "{counts:?}");
        all.servers_mut()[1].kill();
        reads().await;
        all.servers_mut()[1].restart().expect("it starts again");
        // It has no data at first.
        until("it is read again", async || {
            reads().await;
            gets(&all.servers()[1]) > 0
        })
        .await;
        assert_eq!(gets(&all.servers()[0]), 0);
    });
}

#[test]
fn what_sentinels_report_is_looked_at_at_once() {
    let all = sentinels(0);
    run(async {
        let mut config = to(&all);
        // No connection breaks, so only sentinels can tell.
        config.refresh_interval = Duration::from_secs(3600);
        let client = connect(config).await;
        let of = all.servers()[0].address();
        let _replica = Server::start(&Options {
            extra: vec![format!("--replicaof {} {}", of.ip(), of.port())],
            ..Options::default()
        })
        .expect("redis-server runs");
        until("the replica is known", async || client.nodes().len() == 2).await;
    });
}

#[cfg(feature = "tls")]
#[test]
fn connections_to_sentinels_and_servers_are_encrypted() {
    let authority = crate::tls::authority::Authority::new();
    let mut all = start(&SentinelOptions {
        tls: Some(authority.certify(&["127.0.0.1"])),
        ..SentinelOptions::default()
    });
    run(async {
        let addresses: Vec<_> = all.addresses().iter().map(ToString::to_string).collect();
        let ca = authority.file();
        let url = |options: &str| {
            let addresses = addresses.join(",");
            let ca = ca.display();
            format!(
                "rediss-sentinel://{addresses}?timeout=60s&tls_ca_file={ca}{options}#{MASTER_NAME}"
            )
        };
        let client = Client::connect(&url("")).await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
        passed_on(&all.servers()[0], &all.servers()[1]).await;
        let plain = Config::from_url(&url("&sentinel_tls=false")).expect("a good URL");
        assert_eq!(plain.sentinel.tls, None);
        let mut plain = plain;
        plain.timeout = Duration::from_secs(1);
        let error = Client::with(plain).await.expect_err("they take only TLS");
        assert!(error.to_string().contains("no primary is known"), "{error}");
        all.servers_mut()[0].kill();
        until("the client follows", async || {
            is_primary(&client, &all.servers()[1])
        })
        .await;
        assert_eq!(client.get::<u32, _>("key").await, Ok(1));
    });
}

#[test]
fn sentinels_that_the_others_name_are_asked_when_the_seeds_are_gone() {
    let mut all = sentinels(1);
    run(async {
        let mut config = to(&all);
        config.seeds = vec![Endpoint::tcp("localhost", all.sentinels()[0].port())];
        let client = connect(config).await;
        all.sentinels_mut()[0].kill();
        all.servers_mut()[0].kill();
        until("the client follows", async || {
            is_primary(&client, &all.servers()[1])
        })
        .await;
        client.set("key", 1).await.expect("it is set");
    });
}
