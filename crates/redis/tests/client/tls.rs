//! Encrypted connections: the same as others, and not fooled.

pub mod authority;

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use embar_redis::command::Route;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{AddressMap, Destination, Endpoint};
use embar_redis::pubsub::{Event, Kind};
use embar_redis::rustls::pki_types::{CertificateDer, pem::PemObject};
use embar_redis::rustls::{ClientConfig, RootCertStore};
use embar_redis::slot::slot;
use embar_redis::tls::Tls;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Cluster, ClusterOptions, MoveState, Options, Server, TlsFiles};

use crate::support::{LONG, Load, endpoint, run, server, to, to_cluster, until};
use authority::Authority;

/// The names by which these tests connect to servers.
const HERE: [&str; 1] = ["127.0.0.1"];

fn server_with(files: TlsFiles, extra: &[&str]) -> Server {
    let options = Options {
        tls: Some(files),
        extra: extra.iter().map(ToString::to_string).collect(),
        ..Options::default()
    };
    Server::start(&options).expect("redis-server runs")
}

fn cluster_with(files: TlsFiles) -> Cluster {
    let options = ClusterOptions {
        tls: Some(files),
        ..ClusterOptions::default()
    };
    Cluster::start(&options).expect("redis-server runs")
}

/// Trusts only this authority.
fn trusting(authority: &Authority) -> Tls {
    let mut tls = Tls::default();
    tls.ca_files = vec![authority.file()];
    tls
}

fn encrypted(tls: Tls, mut config: Config) -> Config {
    config.tls = Some(tls);
    config
}

/// With limits of time that no test reaches.
fn patient(mut config: Config) -> Config {
    config.timeout = 2 * LONG;
    config.connect_timeout = 2 * LONG;
    config
}

/// The error of a client that does not connect.
async fn refused(config: Config) -> String {
    let client = tokio::time::timeout(LONG, Client::with(config)).await;
    let error = client.expect("it ends").expect_err("it must not connect");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn callers_notice_no_difference() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&HERE), &[]);
    run(async {
        let config = encrypted(trusting(&authority), to(&server));
        let client = Client::with(config).await.expect("it connects");
        client.set("key", "value").await.expect("it is set");
        assert_eq!(client.get("key").await, Ok("value".to_owned()));

        let mut pipeline = client.pipeline();
        let sums: Vec<_> = (0..500).map(|_| pipeline.incr("sum")).collect();
        let results = pipeline.run().await;
        for (turn, sum) in sums.into_iter().enumerate() {
            assert_eq!(results.take(sum), Ok(turn as i64 + 1));
        }

        let own = client
            .dedicated(Route::of("list"))
            .await
            .expect("it connects");
        let waiting = tokio::spawn(async move {
            own.send::<_, (String, u32)>(cmd("BLPOP").key("list").arg(0))
                .await
        });
        client.set("key", 1).await.expect("others are not held up");
        let _len: u32 = client
            .send(cmd("RPUSH").key("list").arg(7))
            .await
            .expect("it is pushed");
        let popped = waiting.await.expect("no panic");
        assert_eq!(popped, Ok(("list".to_owned(), 7)));

        let load = Load::start(&client, 64);
        load.goes_on(3_000).await;
        let sum = load.settle(&client, 0).await;
        assert_eq!((sum.unknown, sum.not_done), (0, 0), "{sum:?}");
    });
}

#[test]
fn values_of_all_sizes_pass_in_both_directions() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&HERE), &[]);
    let config = encrypted(trusting(&authority), to(&server));
    let client = Client::with_blocking(config).expect("it connects");
    // Around the sizes of a record, of a piece that is encrypted at once, and of the ring.
    let sizes = [
        0, 1, 16_383, 16_384, 16_385, 65_535, 65_537, 130_000, 262_144,
    ];
    for (turn, size) in sizes.into_iter().chain([1 << 20; 3]).enumerate() {
        let value: Vec<u8> = (0..size).map(|at: usize| (at * 7 + turn) as u8).collect();
        client.set("value", &value[..]).wait().expect("it is set");
        let found: Vec<u8> = client.get("value").wait().expect("it is found");
        assert!(found == value, "{size} bytes changed on their way");
    }
    // Many at a time, so that records and replies end anywhere.
    run(async {
        let tasks = (0..16_usize).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let key = format!("large-{number}");
                let value = format!("{key}{}", "x".repeat(number * 100_003));
                for _ in 0..3 {
                    client.set(&key, &value).await.expect("it is set");
                    let found: String = client.get(&key).await.expect("it is found");
                    assert!(found == value, "{key} changed on its way");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no value changes");
        }
    });
}

#[test]
fn messages_arrive_and_subscriptions_come_back() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&HERE), &[]);
    run(async {
        let config = encrypted(trusting(&authority), to(&server));
        let client = Client::with(config).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        subscriber
            .subscribe(Kind::Channel, "news")
            .await
            .expect("it is confirmed");
        for turn in 0..2 {
            until("somebody listens", async || {
                let publish = cmd("PUBLISH").key("news").arg(turn);
                client.send::<_, u32>(publish).await == Ok(1)
            })
            .await;
            loop {
                let next = tokio::time::timeout(LONG, subscriber.next());
                let event = next.await.expect("it comes").expect("it is open");
                if let Event::Message(message) = event {
                    assert_eq!(message.payload, turn.to_string().into_bytes());
                    break;
                }
            }
            server
                .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .expect("it answers");
        }
    });
}

#[test]
fn a_cluster_is_followed_wherever_its_slots_go() {
    let authority = Authority::new();
    let cluster = cluster_with(authority.certify(&HERE));
    run(async {
        let config = encrypted(trusting(&authority), to_cluster(&cluster));
        let client = Client::with(config).await.expect("it connects");
        let mut owners = HashSet::new();
        for turn in 0..60 {
            let key = format!("key{turn}");
            client.set(&key, turn).await.expect("it is set");
            assert_eq!(client.get::<u32, _>(&key).await, Ok(turn));
            owners.insert(
                cluster
                    .owner_of(slot(key.as_bytes()))
                    .expect("it is served"),
            );
        }
        assert_eq!(owners.len(), 3, "all masters took part");

        let moving = slot(b"key7");
        let from = cluster.owner_of(moving).expect("it is served");
        let to = (from + 1) % 3;
        // ASK for keys that are not there, then MOVED.
        for state in [MoveState::Migrating, MoveState::Done] {
            cluster
                .move_slot(moving, from, to, state)
                .expect("it moves");
            for turn in 0..5 {
                let key = format!("{{key7}}{state:?}{turn}");
                client.set(&key, turn).await.expect("it is set");
                assert_eq!(client.get::<u32, _>(&key).await, Ok(turn));
            }
            assert_eq!(client.get::<u32, _>("key7").await, Ok(7));
        }

        let subscriber = client.subscriber(10);
        subscriber
            .subscribe(Kind::Sharded, "key7")
            .await
            .expect("it is confirmed");
        let load = Load::start(&client, 64);
        load.goes_on(1_000).await;
        let sum = load.settle(&client, 0).await;
        assert_eq!((sum.unknown, sum.not_done), (0, 0), "{sum:?}");
    });
}

#[test]
fn a_server_whose_authority_is_not_trusted_is_refused_at_once() {
    let (known, other) = (Authority::new(), Authority::new());
    let server = server_with(other.certify(&HERE), &[]);
    run(async {
        let config = encrypted(trusting(&known), patient(to(&server)));
        let error = refused(config).await;
        assert!(
            error.contains("UnknownIssuer") && error.contains("tls_ca_file"),
            "{error}"
        );
        // One of several authorities is enough.
        let mut both = trusting(&known);
        both.ca_files.push(other.file());
        let client = Client::with(encrypted(both, to(&server))).await;
        client
            .expect("it is trusted")
            .set("key", 1)
            .await
            .expect("it is set");
        let mut anybody = trusting(&known);
        anybody.danger_accept_any_certificate = true;
        let client = Client::with(encrypted(anybody, to(&server))).await;
        client
            .expect("all are trusted")
            .set("key", 1)
            .await
            .expect("it is set");
    });
    // The same with a seed of a cluster, and without an executor.
    let config = Config::cluster([endpoint(server.address())]);
    let error = Client::with_blocking(encrypted(trusting(&known), config));
    let error = error.expect_err("it must not connect").to_string();
    assert!(error.contains("tls_ca_file"), "{error}");
}

/// The URL for [`as_the_machine_trusts`].
const URL: &str = "URL_OF_THIS_TEST";

#[test]
fn without_an_authority_the_client_trusts_those_of_the_machine() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&HERE), &[]);
    // The environment names them, and all tests of a process share that.
    let connects = |authorities: &Authority| {
        let program = std::env::current_exe().expect("this one");
        let child = std::process::Command::new(program)
            .args(["--exact", "tls::as_the_machine_trusts", "--ignored"])
            .env("SSL_CERT_FILE", authorities.file())
            .env(URL, format!("rediss://{}", server.address()))
            .output();
        let output = child.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("running 1 test"), "{text}");
        output.status.success()
    };
    assert!(connects(&authority));
    assert!(!connects(&Authority::new()));
}

#[test]
#[ignore = "a part of who_names_no_authority_trusts_those_of_the_machine"]
fn as_the_machine_trusts() {
    let url = std::env::var(URL).expect("the test above sets it");
    let config = Config::from_url(&url).expect("it is one");
    let client = Client::with_blocking(config).expect("it connects");
    client.set("key", 1).wait().expect("it is set");
}

#[test]
fn a_certificate_needs_the_name_of_the_connection_or_of_the_configuration() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&["redis.test"]), &[]);
    let cluster = cluster_with(authority.certify(&["redis.test"]));
    let named = |name: &str| {
        let mut tls = trusting(&authority);
        tls.server_name = Some(name.to_owned());
        tls
    };
    run(async {
        for tls in [trusting(&authority), named("other.test")] {
            for config in [to(&server), to_cluster(&cluster)] {
                let error = refused(encrypted(tls.clone(), patient(config))).await;
                assert!(
                    error.contains("redis.test") && error.contains("tls_server_name"),
                    "{error}"
                );
            }
        }
        for config in [to(&server), to_cluster(&cluster)] {
            let client = Client::with(encrypted(named("redis.test"), config)).await;
            let client = client.expect("it has the name that is asked for");
            for turn in 0..30 {
                let set = client.set(format!("key{turn}"), turn).await;
                set.expect("all nodes have it");
            }
        }
        let local = server_with(authority.certify(&["localhost"]), &[]);
        let local = Config::standalone(Endpoint::tcp("localhost", local.port()));
        let client = Client::with(encrypted(trusting(&authority), local)).await;
        client.expect("it is reached by its name");
        let error = Client::with(encrypted(named("a b"), to(&server))).await;
        let error = error.expect_err("nothing has such a name").to_string();
        assert!(error.contains("tls_server_name"), "{error}");
    });
}

#[test]
fn a_server_that_wants_certificates_gets_one() {
    let authority = Authority::new();
    let mine = authority.certify(&["client"]);
    let nobody = Authority::new();
    let stranger = nobody.certify(&["client"]);
    let showing = |files: &TlsFiles| {
        let mut tls = trusting(&authority);
        tls.cert_file = Some(files.cert.clone());
        tls.key_file = Some(files.key.clone());
        tls
    };
    // The older version reports it within the handshake, the newer one later.
    for version in ["TLSv1.2", "TLSv1.3"] {
        let extra = [
            "--tls-auth-clients yes",
            &format!("--tls-protocols {version}"),
        ];
        let server = server_with(authority.certify(&HERE), &extra);
        run(async {
            let client = Client::with(encrypted(showing(&mine), to(&server))).await;
            let client = client.expect("it is accepted");
            client.set("key", 1).await.expect("it is set");
            for tls in [trusting(&authority), showing(&stranger)] {
                let mut config = encrypted(tls, to(&server));
                config.timeout = Duration::from_secs(1);
                let error = refused(config).await;
                assert!(error.contains("tls_cert_file"), "{version}: {error}");
            }
        });
    }
}

#[test]
fn a_port_with_the_other_protocol_is_named() {
    let authority = Authority::new();
    let secret = server_with(authority.certify(&HERE), &[]);
    let plain = server();
    let hasty = |mut config: Config| {
        config.timeout = Duration::from_millis(1500);
        config.connect_timeout = Duration::from_secs(1);
        config
    };
    run(async {
        let error = refused(hasty(to(&secret))).await;
        assert!(error.contains("rediss://"), "{error}");
        // A server takes the handshake for the beginning of a long command, and waits for the rest.
        let config = encrypted(trusting(&authority), to(&plain));
        let error = refused(hasty(config)).await;
        assert!(error.contains("not for TLS"), "{error}");
        secret.pause();
        let config = encrypted(trusting(&authority), to(&secret));
        let error = refused(hasty(config)).await;
        assert!(error.contains("does not answer"), "{error}");
        secret.resume();
    });
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let [mine, other] = [(); 2].map(|()| authority.certify(&["client"]));
    let config = |change: &dyn Fn(&mut Tls)| {
        let mut tls = trusting(&authority);
        change(&mut tls);
        let error = Client::with_blocking(encrypted(tls, Config::default()));
        match error.expect_err("it cannot be used") {
            Error::Config(text) => text,
            error => panic!("{error}"),
        }
    };
    let missing = config(&|tls| tls.ca_files.push("/no/such/file.pem".into()));
    assert!(missing.contains("/no/such/file.pem"), "{missing}");
    let empty = config(&|tls| tls.ca_files = vec![mine.key.clone()]);
    assert!(empty.contains("no certificate"), "{empty}");
    let swapped = config(&|tls| {
        tls.cert_file = Some(mine.cert.clone());
        tls.key_file = Some(other.key.clone());
    });
    assert!(swapped.contains("not that of the certificate"), "{swapped}");
    let broken = authority.file().with_file_name("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\n!\n").expect("room on the disk");
    let broken_is_named = config(&|tls| tls.ca_files = vec![broken.clone()]);
    assert!(broken_is_named.contains("broken.pem"), "{broken_is_named}");
}

#[test]
fn rules_of_the_program_apply() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&HERE), &[]);
    let rules = |authority: &Authority| {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_file(authority.file()).expect("a certificate");
        roots.add(root).expect("it is one");
        let rules = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        {
            let mut tls = Tls::default();
            tls.rules = Some(Arc::new(rules).into());
            tls
        }
    };
    run(async {
        let client = Client::with(encrypted(rules(&authority), to(&server))).await;
        client
            .expect("it connects")
            .set("key", 1)
            .await
            .expect("it is set");
        let error = refused(encrypted(rules(&Authority::new()), to(&server))).await;
        assert!(error.contains("UnknownIssuer"), "{error}");
    });
}

#[test]
fn a_killed_server_loses_nothing_and_repeats_nothing() {
    let authority = Authority::new();
    // So that the server keeps everything that it has acknowledged.
    let extra = ["--appendonly yes", "--appendfsync always"];
    let mut server = server_with(authority.certify(&HERE), &extra);
    run(async {
        let config = encrypted(trusting(&authority), to(&server));
        let client = Client::with(config).await.expect("it connects");
        let load = Load::start(&client, 32);
        for _ in 0..5 {
            load.goes_on(100).await;
            server
                .command(&["CLIENT", "KILL", "TYPE", "normal"])
                .expect("it answers");
        }
        for _ in 0..3 {
            load.goes_on(100).await;
            server.kill();
            server.restart().expect("it starts again");
        }
        load.goes_on(100).await;
        load.settle(&client, 0).await;
    });
}

#[test]
fn only_commands_that_were_encrypted_have_an_unknown_outcome() {
    let authority = Authority::new();
    let extra = ["--appendonly yes", "--appendfsync always"];
    let mut server = server_with(authority.certify(&HERE), &extra);
    run(async {
        let mut config = encrypted(trusting(&authority), to(&server));
        config.timeout = LONG;
        config.dead_after = LONG;
        let client = Client::with(config).await.expect("it connects");
        client.set("sum", 0).await.expect("it is set");
        server.pause();
        // More than the kernel takes for a server that does not read.
        let filling = "x".repeat(1 << 20);
        let mut tasks = Vec::new();
        for turn in 0..24 {
            let (set, incr) = (client.clone(), client.clone());
            let filling = filling.clone();
            tokio::spawn(async move { set.set(format!("filling-{turn}"), filling).await });
            tasks.push(tokio::spawn(async move { incr.incr("sum").await }));
        }
        // The kernel takes no more: the count stays the same for 20 looks.
        let (mut before, mut same) = (0, 0);
        until("all that fits is sent", async || {
            let sent = client.stats()[0].1.bytes_sent;
            same = if sent == before { same + 1 } else { 0 };
            before = sent;
            sent > 1 << 20 && same >= 20
        })
        .await;
        server.kill();
        server.restart().expect("it starts again");
        let (mut done, mut unknown) = (0, 0);
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(_) => done += 1,
                Err(Error::UnknownOutcome(_)) => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // The server was killed before it read any of those of unknown outcome.
        assert_eq!(client.get::<u32, _>("sum").await, Ok(done));
        assert!(done > 0 && unknown > 0, "{done} done, {unknown} unknown");
    });
}

#[test]
fn a_server_that_is_reached_elsewhere_has_the_name_that_the_map_says() {
    let authority = Authority::new();
    let server = server_with(authority.certify(&["redis.internal"]), &[]);
    run(async {
        let announced = Endpoint::tcp("redis.internal", 6379);
        let here = || Destination::from(endpoint(server.address()));
        let config = |destination| {
            let config = Config::standalone(announced.clone());
            let mut config = patient(encrypted(trusting(&authority), config));
            config.address_map = Some(AddressMap::table([(announced.clone(), destination)]));
            config
        };
        let why = refused(config(here())).await;
        assert!(why.contains("tls_server_name"), "{why}");
        let named = config(here().tls_name("redis.internal"));
        let client = Client::with(named).await.expect("it connects");
        client.set("key", 1).await.expect("it is set");
    });
}
