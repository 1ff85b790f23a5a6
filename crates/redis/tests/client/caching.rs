//! Reads through the cache, at one server.

use std::sync::Arc;
use std::time::Duration;

use embar_redis::commands::hashes::HashCommands;
use embar_redis::commands::keys::KeyCommands;
use embar_redis::commands::server::ServerCommands;
use embar_redis::commands::sets::SetCommands;
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{CacheConfig, ProtocolVersion, Secret, Tracking};
use embar_redis::metrics::CacheMetrics;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::{Options, Server};

use crate::support::{LONG, run, server, to, until};

pub const LONG_AGE: Duration = Duration::from_secs(3600);

/// Room for all that a test reads.
pub fn with_cache(mut config: Config) -> Config {
    config.cache = Some(CacheConfig::new(16 << 20));
    config.timeout = LONG;
    config
}

pub fn cache(client: &Client) -> CacheMetrics {
    client.metrics().cache.expect("there is a cache")
}

async fn client(server: &Server) -> Client {
    let client = Client::with(with_cache(to(server))).await;
    client.expect("it connects")
}

/// How often a server has executed a command, as its statistics name it.
pub fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let wanted = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&wanted));
    let calls = calls.and_then(|calls| calls.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Another client sets a key.
pub fn set(server: &Server, key: &str, value: &str) {
    let set = server.command(&["SET", key, value]);
    assert_eq!(set.as_deref().map(str::trim).ok(), Some("OK"));
}

#[test]
fn what_was_read_is_not_asked_for_again() {
    let server = server();
    set(&server, "key", "value");
    let hash = server.command(&["HSET", "hash", "a", "1", "b", "2"]);
    hash.expect("it answers");
    run(async {
        let client = client(&server).await;
        let cached = client.cached(LONG_AGE);
        for _ in 0..3 {
            assert_eq!(cached.get::<String, _>("key").await.as_deref(), Ok("value"));
            assert_eq!(cached.get::<Option<u8>, _>("none").await, Ok(None));
            let mut value = Vec::new();
            assert_eq!(cached.get_into("key", &mut value).await, Ok(Some(5)));
            assert_eq!(value, b"value");
            assert_eq!(cached.hget::<u8, _, _>("hash", "a").await, Ok(1));
            let all: std::collections::BTreeMap<String, u8> =
                cached.hgetall("hash").await.expect("it is a hash");
            assert_eq!(all.values().copied().collect::<Vec<_>>(), [1, 2]);
            let exists: u64 = cached.send(cmd("EXISTS").arg("key")).await.expect("it may");
            assert_eq!(exists, 1);
            let values = cached.mget::<Option<String>, _>(["key", "none", "key"]);
            let value = || Some("value".to_owned());
            assert_eq!(values.await, Ok(vec![value(), None, value()]));
        }
        let metrics = cache(&client);
        assert_eq!((metrics.misses, metrics.hits), (5, 22));
        assert_eq!((metrics.entries, metrics.shared), (5, 0));
        assert!(metrics.bytes > 100);
    });
    let all = ["get", "hget", "hgetall", "exists", "pttl", "client|caching"];
    assert_eq!(all.map(|name| calls(&server, name)), [2, 1, 1, 1, 5, 5]);
}

#[test]
fn what_another_client_changes_is_read_anew_in_each_mode() {
    let user = |key: &str| format!("user:{key}");
    let prefixes = Tracking::Prefixes(vec![b"shop:".to_vec(), b"user:".to_vec()]);
    for (tracking, caching) in [
        (Tracking::OptIn, 1),
        (Tracking::All, 0),
        (prefixes, 0),
        (Tracking::Prefixes(Vec::new()), 0),
    ] {
        let server = server();
        set(&server, &user("a"), "1");
        set(&server, &user("b"), "1");
        run(async {
            let mut config = with_cache(to(&server));
            config.cache.as_mut().expect("it is there").tracking = tracking;
            let client = Client::with(config).await.expect("it connects");
            let cached = client.cached(LONG_AGE);
            assert_eq!(cached.get::<u8, _>(user("a")).await, Ok(1));
            assert_eq!(cached.get::<u8, _>(user("a")).await, Ok(1));
            assert_eq!(calls(&server, "get"), 1);
            assert_eq!(calls(&server, "client|caching"), caching);
            assert_eq!(cached.get::<u8, _>(user("b")).await, Ok(1));
            set(&server, &user("a"), "2");
            until("it is read anew", async || {
                cached.get::<u8, _>(user("a")).await == Ok(2)
            })
            .await;
            assert_eq!(cached.get::<u8, _>(user("b")).await, Ok(1));
            assert_eq!(calls(&server, "get"), 3);
            assert_eq!(cache(&client).invalidations, 1);
        });
    }
}

#[test]
fn keys_whose_changes_nobody_reports_go_past_the_cache() {
    let server = server();
    run(async {
        let mut config = with_cache(to(&server));
        let only = Tracking::Prefixes(vec![b"user:".to_vec()]);
        config.cache.as_mut().expect("it is there").tracking = only;
        let client = Client::with(config).await.expect("it connects");
        let cached = client.cached(LONG_AGE);
        for value in 1..4 {
            set(&server, "shop:a", &value.to_string());
            assert_eq!(cached.get::<u8, _>("shop:a").await, Ok(value));
        }
        let metrics = cache(&client);
        assert_eq!((metrics.bypassed, metrics.entries), (3, 0));
        // Without a cache in the configuration, too.
        let plain = Client::with(to(&server)).await.expect("it connects");
        let cached = plain.cached(LONG_AGE);
        assert_eq!(cached.get::<u8, _>("shop:a").await, Ok(3));
        set(&server, "shop:a", "4");
        assert_eq!(cached.get::<u8, _>("shop:a").await, Ok(4));
        assert_eq!(plain.metrics().cache, None);
        let refused = cached.set("shop:a", 5).await;
        let is_it = matches!(refused, Err(Error::NotCacheable { .. }));
        assert!(is_it, "{refused:?}");
    });
}

#[test]
fn a_reply_lives_no_longer_than_its_key_and_than_the_caller_wants() {
    let server = server();
    server
        .command(&["SET", "key", "old", "PX", "300"])
        .expect("it answers");
    run(async {
        let client = client(&server).await;
        set(&server, "other", "1");
        for _ in 0..3 {
            let young = client.cached(Duration::ZERO);
            assert_eq!(young.get::<u8, _>("other").await, Ok(1));
        }
        assert_eq!(calls(&server, "get"), 3);
        let cached = client.cached(LONG_AGE);
        let old = cached.get::<Option<String>, _>("key").await;
        // On a slow machine it has expired before it is read at all.
        let was_there = old.expect("it answers").is_some();
        // The server reports nothing from now on, so the client knows by itself.
        server.pause();
        let mut late = Box::pin(cached.get::<Option<String>, _>("key"));
        until("the reply expires", async || {
            let polled = tokio::time::timeout(Duration::ZERO, &mut late).await;
            if let Ok(value) = &polled {
                assert_eq!(value.as_ref().map(Option::as_deref), Ok(Some("old")));
                late = Box::pin(cached.get::<Option<String>, _>("key"));
            }
            polled.is_err()
        })
        .await;
        server.resume();
        assert_eq!(late.await, Ok(None));
        assert!(!was_there || cache(&client).hits > 0);
    });
}

#[test]
fn when_all_keys_go_all_entries_do() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let cached = client.cached(LONG_AGE);
        for turn in 0..2 {
            for key in ["a", "b", "c"] {
                client.set(key, 1).await.expect("it is set");
                assert_eq!(cached.get::<Option<u8>, _>(key).await, Ok(Some(1)));
            }
            if turn == 0 {
                // Another client does it.
                server.command(&["FLUSHALL"]).expect("it answers");
                until("the report comes", async || {
                    cached.get::<Option<u8>, _>("a").await == Ok(None)
                })
                .await;
            } else {
                client.flushall().await.expect("it answers");
            }
            for key in ["a", "b", "c"] {
                assert_eq!(cached.get::<Option<u8>, _>(key).await, Ok(None));
            }
        }
        client.set("a", 1).await.expect("it is set");
        assert_eq!(cached.get::<u8, _>("a").await, Ok(1));
        let before = cache(&client).entries;
        server.command(&["FLUSHALL"]).expect("it answers");
        until("their memory is given back", async || {
            cache(&client).entries < before
        })
        .await;
    });
}

#[test]
fn entries_of_a_connection_that_breaks_are_dropped() {
    let server = server();
    set(&server, "key", "old");
    run(async {
        let client = client(&server).await;
        let cached = client.cached(LONG_AGE);
        assert_eq!(cached.get::<String, _>("key").await.as_deref(), Ok("old"));
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        killed.expect("it answers");
        // The server reports this to nobody.
        set(&server, "key", "new");
        until("it is read over another connection", async || {
            cached.get::<String, _>("key").await.as_deref() == Ok("new")
        })
        .await;
        assert_eq!(client.metrics().total().reconnects, 1);
        // That tracks, too.
        set(&server, "key", "newer");
        until("it is reported", async || {
            cached.get::<String, _>("key").await.as_deref() == Ok("newer")
        })
        .await;
    });
}

#[test]
fn a_user_who_may_not_track_reads_without_the_cache() {
    let server = server();
    set(&server, "key", "1");
    let user = |name: &str, may_not: &str| {
        let rules = [name, "on", ">secret", "~*", "&*", "+@all", may_not];
        let words = [["ACL", "SETUSER"].as_slice(), &rules].concat();
        server.command(&words).expect("it answers");
    };
    user("one", "-client|tracking");
    user("two", "-client|caching");
    user("three", "-pttl");
    run(async {
        for name in ["one", "two", "three"] {
            let mut config = with_cache(to(&server));
            config.username = Some(name.to_owned());
            config.password = Some(Secret::new("secret"));
            let client = Client::with(config).await.expect("it connects");
            let cached = client.cached(LONG_AGE);
            for value in 1..4 {
                set(&server, "key", &value.to_string());
                assert_eq!(cached.get::<u8, _>("key").await, Ok(value), "{name}");
            }
            let metrics = cache(&client);
            assert_eq!((metrics.hits, metrics.entries), (0, 0), "{name}");
            // That tracking is refused is known before the first read.
            assert_eq!(metrics.bypassed, if name == "one" { 3 } else { 2 });
        }
    });
}

#[test]
fn a_server_without_resp3_is_read_without_the_cache() {
    let options = Options {
        extra: vec![
            "--rename-command".to_owned(),
            "HELLO".to_owned(),
            String::new(),
        ],
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    run(async {
        let client = client(&server).await;
        let cached = client.cached(LONG_AGE);
        for value in 1..4 {
            set(&server, "key", &value.to_string());
            assert_eq!(cached.get::<u8, _>("key").await, Ok(value));
        }
        assert_eq!(cache(&client).bypassed, 3);
        let mut config = with_cache(to(&server));
        config.protocol = ProtocolVersion::Resp2;
        let error = Client::with(config).await.expect_err("it cannot work");
        assert!(error.to_string().contains("a cache needs RESP3"), "{error}");
    });
}

#[test]
fn the_cache_has_no_more_than_its_bytes() {
    const KEYS: u32 = 3000;
    let server = server();
    run(async {
        let mut config = with_cache(to(&server));
        config.cache = Some(CacheConfig::new(1 << 20));
        let client = Client::with(config).await.expect("it connects");
        let value = |number: u32| format!("{number:01000}");
        let pairs = (0..KEYS).map(|number| (format!("key{number}"), value(number)));
        client.set_all(pairs).await.expect("they are set");
        let cached = client.cached(LONG_AGE);
        for number in 0..KEYS {
            let found = cached.get::<String, _>(format!("key{number}")).await;
            assert_eq!(found, Ok(value(number)));
            assert!(cache(&client).bytes <= 1 << 20);
        }
        let metrics = cache(&client);
        assert_eq!(metrics.evictions, u64::from(KEYS) - metrics.entries);
        assert!((500..1050).contains(&metrics.entries), "{metrics:?}");
        // What came last is there.
        let last = format!("key{}", KEYS - 1);
        let found = cached.get::<String, _>(last).await;
        assert_eq!(found, Ok(value(KEYS - 1)));
        assert_eq!(cache(&client).hits, metrics.hits + 1);
        // One that is larger than the cache is read all the same.
        let large = "x".repeat(2 << 20);
        client.set("large", &large).await.expect("it is set");
        let found = cached.get::<String, _>("large").await;
        assert!(found == Ok(large));
    });
}

#[test]
fn a_thousand_callers_of_a_key_make_one_request_and_who_goes_takes_it_from_nobody() {
    let server = server();
    set(&server, "key", "value");
    run(async {
        let client = Arc::new(client(&server).await);
        server.pause();
        let callers: Vec<_> = (0..1000)
            .map(|_| {
                let client = Arc::clone(&client);
                tokio::spawn(async move { client.cached(LONG_AGE).get::<String, _>("key").await })
            })
            .collect();
        until("all wait", async || {
            let metrics = cache(&client);
            (metrics.misses, metrics.shared) == (1, 999)
        })
        .await;
        // Among them probably the one that sent it.
        for caller in &callers[..10] {
            caller.abort();
        }
        server.resume();
        let mut answered = 0;
        for caller in callers {
            match caller.await {
                Ok(value) => {
                    assert_eq!(value.as_deref(), Ok("value"));
                    answered += 1;
                }
                Err(error) => assert!(error.is_cancelled(), "{error}"),
            }
        }
        assert_eq!(answered, 990);
        assert_eq!(calls(&server, "get"), 1);
        // If all go, nothing is kept of it.
        server.pause();
        let gone = client.cached(LONG_AGE);
        let polled = tokio::time::timeout(Duration::ZERO, gone.get::<String, _>("other")).await;
        assert!(polled.is_err());
        assert_eq!(cache(&client).entries, 1);
        server.resume();
        set(&server, "other", "value");
        let other = gone.get::<String, _>("other").await;
        assert_eq!(other.as_deref(), Ok("value"));
    });
}

#[test]
fn commands_that_are_no_read_of_a_key_are_refused() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let cached = client.cached(LONG_AGE);
        let refused = |outcome: Result<(), Error>| {
            let error = outcome.expect_err("no cache keeps it");
            let is_it = matches!(error, Error::NotCacheable { .. });
            assert!(is_it && !error.may_have_executed(), "{error:?}");
        };
        refused(cached.set("key", 1).await);
        refused(cached.incr("key").await.map(|_| ()));
        refused(cached.ttl("key").await.map(|_| ()));
        refused(cached.srandmember::<(), _>("key").await);
        refused(cached.lcs::<()>("a", "b").await);
        refused(cached.send(cmd("PING")).await);
        let blocks = cached.send::<_, ()>(cmd("BLPOP").arg("key").arg(0)).await;
        assert!(matches!(blocks, Err(Error::NotShared { .. })), "{blocks:?}");
        assert_eq!(cache(&client), CacheMetrics::default());
        assert_eq!(calls(&server, "set"), 0);
        // A server's error is the caller's, and is not kept.
        client.sadd("set", "a").await.expect("it is added");
        for _ in 0..2 {
            let wrong = cached.get::<String, _>("set").await;
            assert!(matches!(wrong, Err(Error::Server(_))), "{wrong:?}");
        }
        assert_eq!(calls(&server, "get"), 2);
        assert_eq!(cache(&client).entries, 0);
    });
}
