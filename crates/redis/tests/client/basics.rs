//! One server that works.

use std::time::Duration;

use embar_redis::command::{Class, Fixed, Route};
use embar_redis::commands::strings::StringCommands;
use embar_redis::config::{Endpoint, OnFull, ProtocolVersion, Secret};
use embar_redis::pubsub::Kind;
use embar_redis::resp::{ErrorKind, ServerError};
use embar_redis::{Client, Config, Error, prefix};
use embar_redis_servers::{Options, Server};

use crate::support::{LONG, endpoint, run, server, to, until};

#[test]
fn what_was_set_is_found_and_nothing_else() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let nothing: Option<String> = client.get("absent").await.expect("it answers");
        assert_eq!(nothing, None);
        client.set("key", "value").await.expect("it is set");
        assert_eq!(client.get::<String, _>("key").await.as_deref(), Ok("value"));
        assert_eq!(client.incr("counter").await, Ok(1));
        let error = client.incr("key").await.expect_err("it is no number");
        assert!(matches!(error, Error::Server(_)) && !error.may_have_executed());
        let kept: Result<i64, ServerError> = client
            .send(incr("key"))
            .await
            .expect("an error may be asked for, too");
        assert_eq!(kept.map_err(|error| error.kind), Err(ErrorKind::Other));
        let wrong = client.get::<i64, _>("key").await;
        assert!(matches!(wrong, Err(Error::WrongType(_))), "{wrong:?}");
    });
}

fn incr(key: &str) -> Fixed<(&str,)> {
    let route = Route::of(key);
    Fixed::new(prefix!(2, 4, "INCR"), (key,), route, Class::Write)
}

#[test]
fn it_works_without_an_executor() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for turn in 0..200 {
                    let key = format!("{caller}-{turn}");
                    client.set(&key, turn).wait().expect("it is set");
                    assert_eq!(client.get::<u32, _>(&key).wait(), Ok(turn));
                }
            });
        }
    });
}

#[test]
fn both_versions_of_the_protocol_and_unix_sockets_work() {
    let server = server();
    run(async {
        for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
            for place in [
                endpoint(server.address()),
                Endpoint::Unix(server.unix_socket()),
            ] {
                let mut config = Config::standalone(place);
                config.protocol = protocol;
                config.client_name = Some("me".to_owned());
                config.database = 3;
                let client = Client::with(config).await.expect("it connects");
                client.set("key", 7).await.expect("it is set");
                assert_eq!(client.get::<u8, _>("key").await, Ok(7));
            }
        }
    });
    let clients = server.command(&["CLIENT", "LIST"]).expect("it answers");
    assert!(
        clients.lines().all(|line| !line.contains("name=me")),
        "closed: {clients}"
    );
    let keys = server.command(&["INFO", "keyspace"]).expect("it answers");
    assert!(
        keys.contains("db3:keys=1"),
        "the database was selected: {keys}"
    );
}

#[test]
fn a_wrong_password_is_an_error_that_says_so() {
    let options = Options {
        password: Some("secret".to_owned()),
        ..Options::default()
    };
    let server = Server::start(&options).expect("redis-server runs");
    let with = |password: Option<&str>| {
        let mut config = to(&server);
        config.password = password.map(Secret::new);
        config.timeout = Duration::from_millis(500);
        config
    };
    run(async {
        for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
            let mut right = with(Some("secret"));
            right.protocol = protocol;
            let client = Client::with(right).await.expect("it connects");
            client.set("key", 1).await.expect("it is set");
            let mut wrong = with(Some("guess"));
            wrong.protocol = protocol;
            let error = Client::with(wrong).await.expect_err("it is wrong");
            assert!(error.to_string().contains("WRONGPASS"), "{error}");
        }
        let error = Client::with(with(None)).await.expect_err("none is given");
        assert!(error.to_string().contains("NOAUTH"), "{error}");
    });
}

#[test]
fn without_a_server_the_error_comes_in_time_and_says_why() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it has one");
    drop(free);
    let mut config = Config::standalone(endpoint(address));
    config.timeout = Duration::from_millis(300);
    run(async {
        let client = tokio::time::timeout(LONG, Client::with(config)).await;
        let error = client.expect("it ends").expect_err("no server is there");
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    });
}

#[test]
fn a_request_that_is_dropped_gives_its_reply_to_nobody() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        for turn in 0..500 {
            let key = format!("key{turn}");
            client.set(&key, &key).await.expect("it is set");
        }
        for turn in 0..500 {
            let other = format!("key{}", (turn + 1) % 500);
            let abandoned = client.get::<String, _>(&other);
            // Polled once, so the client has sent it.
            let polled = tokio::time::timeout(Duration::ZERO, abandoned).await;
            drop(polled);
            let key = format!("key{turn}");
            assert_eq!(client.get::<String, _>(&key).await.as_ref(), Ok(&key));
        }
    });
}

#[test]
fn large_values_come_back_whole() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        for len in [0, 1, 1 << 10, 64 << 10, 200 << 10, 3 << 20, 20 << 20] {
            let value: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            let (set, small) = tokio::join!(client.set("large", &value), client.set("small", 1));
            set.and(small).expect("they are set");
            let found: Vec<u8> = client.get("large").await.expect("it is there");
            assert!(found == value, "{len} bytes");
        }
    });
}

#[test]
fn a_full_client_refuses_if_the_configuration_says_so() {
    let server = server();
    let mut config = to(&server);
    config.max_in_flight = 2;
    config.on_full = OnFull::Refuse;
    run(async {
        let client = Client::with(config).await.expect("it connects");
        server.pause();
        let (one, two) = (
            client.get::<Option<u8>, _>("a"),
            client.get::<Option<u8>, _>("b"),
        );
        let three = async {
            tokio::task::yield_now().await;
            let refused = client.get::<Option<u8>, _>("c").await;
            server.resume();
            refused
        };
        let (one, two, three) = tokio::join!(one, two, three);
        assert_eq!((one, two, three), (Ok(None), Ok(None), Err(Error::Busy)));
    });
}

#[test]
fn a_reply_that_does_not_come_is_given_up_and_the_connection_goes_on() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        server.pause();
        let late = client.incr("counter").timeout(Duration::from_millis(100));
        let late = tokio::time::timeout(LONG, late).await;
        let error = late.expect("it ends").expect_err("it cannot come");
        assert_eq!(error, Error::TimedOut);
        server.resume();
        // The server has executed the first one by now, as the error says it may.
        assert_eq!(client.incr("counter").await, Ok(2));
    });
}

#[test]
fn the_longest_durations_work() {
    let mut server = server();
    let mut config = to(&server);
    config.timeout = Duration::MAX;
    config.connect_timeout = Duration::MAX;
    config.dead_after = Duration::MAX;
    config.refresh_interval = Duration::MAX;
    config.retries.backoff_max = Duration::MAX;
    run(async {
        let client = Client::with(config).await.expect("it connects");
        let subscriber = client.subscriber(1);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is confirmed");
        let own = client.dedicated(Route::Any).await.expect("it connects");
        own.set("key", 1).await.expect("it is set");
        server.kill();
        let reading = {
            let client = client.clone();
            let read = async move { client.get::<Option<u8>, _>("key").await };
            tokio::spawn(read)
        };
        until("it notices", async || {
            client.metrics().total().connects_failed > 0
        })
        .await;
        server.restart().expect("it starts again");
        let get = client.get::<Option<u8>, _>("key");
        assert_eq!(get.timeout(Duration::MAX).await, Ok(None));
        assert_eq!(reading.await.expect("no panic"), Ok(None));
    });
}
