//! Subscribers: what they receive while servers fail and slots move.

use std::time::Duration;

use embar_redis::command::{Class, Fixed, Route};
use embar_redis::config::ProtocolVersion;
use embar_redis::pubsub::{Event, Kind, Message, Subscriber};
use embar_redis::resp::ErrorKind;
use embar_redis::slot::slot;
use embar_redis::{Client, Error, cmd, prefix};
use embar_redis_servers::{MoveState, Server};

use crate::support::{LONG, cluster, run, server, to, to_cluster, until};

async fn next(subscriber: &mut Subscriber) -> Event {
    let next = tokio::time::timeout(LONG, subscriber.next());
    next.await.expect("an event comes").expect("it is open")
}

async fn publish(client: &Client, command: &str, channel: &str, payload: &str) -> u32 {
    let publish = cmd(command).key(channel).arg(payload);
    client.send(publish).await.expect("it is published")
}

fn message(kind: Kind, channel: &str, pattern: Option<&str>, payload: &str) -> Event {
    Event::Message(Message {
        kind,
        channel: channel.into(),
        pattern: pattern.map(Into::into),
        payload: payload.into(),
    })
}

#[test]
fn messages_arrive_in_both_versions_of_the_protocol() {
    let server = server();
    run(async {
        for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
            let mut config = to(&server);
            config.protocol = protocol;
            let client = Client::with(config).await.expect("it connects");
            let mut subscriber = client.subscriber(100);
            subscriber
                .subscribe(Kind::Channel, "news")
                .await
                .expect("it is confirmed");
            subscriber
                .subscribe(Kind::Pattern, "w*")
                .await
                .expect("it is confirmed");
            subscriber
                .subscribe(Kind::Channel, "news")
                .await
                .expect("it is already");
            assert_eq!(publish(&client, "PUBLISH", "news", "one").await, 1);
            assert_eq!(publish(&client, "PUBLISH", "weather", "two").await, 1);
            let one = message(Kind::Channel, "news", None, "one");
            let two = message(Kind::Pattern, "weather", Some("w*"), "two");
            assert_eq!(next(&mut subscriber).await, one);
            assert_eq!(next(&mut subscriber).await, two);
            subscriber.unsubscribe(Kind::Channel, "news");
            until("it hears no more of that", async || {
                publish(&client, "PUBLISH", "news", "three").await == 0
            })
            .await;
        }
    });
}

#[test]
fn it_works_without_an_executor() {
    let server = server();
    let client = Client::with_blocking(to(&server)).expect("it connects");
    let mut subscriber = client.subscriber(10);
    subscriber
        .subscribe_blocking(Kind::Channel, "news")
        .expect("it is confirmed");
    let publish = cmd("PUBLISH").key("news").arg("one");
    assert_eq!(client.send::<_, u32>(publish).wait(), Ok(1));
    let one = message(Kind::Channel, "news", None, "one");
    assert_eq!(subscriber.next_blocking(), Ok(one));
}

#[test]
fn subscriptions_are_renewed_and_the_gap_is_reported() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        subscriber
            .subscribe(Kind::Channel, "news")
            .await
            .expect("it is confirmed");
        for _ in 0..5 {
            server
                .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .expect("it answers");
            assert_eq!(next(&mut subscriber).await, Event::Interrupted);
            until("it is subscribed again", async || {
                publish(&client, "PUBLISH", "news", "one").await == 1
            })
            .await;
            let one = message(Kind::Channel, "news", None, "one");
            assert_eq!(next(&mut subscriber).await, one);
        }
    });
}

#[test]
fn a_slow_reader_loses_messages_and_learns_how_many() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(3);
        subscriber
            .subscribe(Kind::Channel, "news")
            .await
            .expect("it is confirmed");
        let other = client.subscriber(100);
        other
            .subscribe(Kind::Channel, "news")
            .await
            .expect("it is confirmed");
        for number in 0..10 {
            publish(&client, "PUBLISH", "news", &number.to_string()).await;
        }
        let mut other = other;
        for number in 0..10 {
            let expected = message(Kind::Channel, "news", None, &number.to_string());
            assert_eq!(next(&mut other).await, expected);
        }
        let mut heard = Vec::new();
        let mut lost = 0;
        while heard.len() as u64 + lost < 10 {
            match next(&mut subscriber).await {
                Event::Message(message) => heard.push(message.payload),
                Event::Lost(count) => lost += count,
                other => panic!("{other:?}"),
            }
        }
        // The last ones may come only after the first ones were taken.
        assert_eq!(heard[..3], [b"0", b"1", b"2"]);
        assert!(lost > 0);
        publish(&client, "PUBLISH", "news", "again").await;
        assert_eq!(
            next(&mut subscriber).await,
            message(Kind::Channel, "news", None, "again")
        );
    });
}

#[test]
fn sharded_channels_follow_their_slot() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let mut subscriber = client.subscriber(100);
        for name in ["a", "b", "c", "d"] {
            subscriber
                .subscribe(Kind::Sharded, name)
                .await
                .expect("it is confirmed");
        }
        for name in ["a", "b", "c", "d"] {
            assert_eq!(publish(&client, "SPUBLISH", name, "one").await, 1, "{name}");
            let expected = message(Kind::Sharded, name, None, "one");
            assert_eq!(next(&mut subscriber).await, expected);
        }
        let slot = slot(b"a");
        let from = cluster.owner_of(slot).expect("it is served");
        cluster
            .move_slot(slot, from, (from + 1) % 3, MoveState::Done)
            .expect("it moves");
        assert_eq!(next(&mut subscriber).await, Event::Interrupted);
        until("it is subscribed again", async || {
            publish(&client, "SPUBLISH", "a", "two").await == 1
        })
        .await;
        assert_eq!(
            next(&mut subscriber).await,
            message(Kind::Sharded, "a", None, "two")
        );
    });
}

#[test]
fn a_refused_subscription_is_an_error_and_disturbs_no_other() {
    let server = server();
    let rules = ["ACL", "SETUSER", "default", "resetchannels", "&news"];
    server.command(&rules).expect("it is set");
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        let refused = subscriber.subscribe(Kind::Channel, "secret").await;
        assert!(matches!(refused, Err(Error::Server(_))), "{refused:?}");
        subscriber
            .subscribe(Kind::Channel, "news")
            .await
            .expect("it is confirmed");
        publish(&client, "PUBLISH", "news", "one").await;
        let one = message(Kind::Channel, "news", None, "one");
        assert_eq!(next(&mut subscriber).await, one);
    });
}

fn connection_killed(server: &Server) {
    let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
    server.command(&kill).expect("it answers");
}

#[test]
fn a_subscription_that_the_server_refuses_to_renew_ends() {
    let server = server();
    let allow = |rules: &[&str]| {
        let rules = [&["ACL", "SETUSER", "default"], rules].concat();
        server.command(&rules).expect("it is set");
    };
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        for name in ["news", "other"] {
            let subscribed = subscriber.subscribe(Kind::Channel, name).await;
            subscribed.expect("it is confirmed");
        }
        // The server closes connections whose user may not receive the channel any more.
        allow(&["resetchannels", "&other"]);
        assert_eq!(next(&mut subscriber).await, Event::Interrupted);
        match next(&mut subscriber).await {
            Event::Refused { kind, name, error } => {
                assert_eq!((kind, name.as_slice()), (Kind::Channel, b"news".as_slice()));
                assert_eq!(error.kind, ErrorKind::NoPerm);
            }
            other => panic!("{other:?}"),
        }
        until("the other one is made again", async || {
            publish(&client, "PUBLISH", "other", "one").await == 1
        })
        .await;
        let one = message(Kind::Channel, "other", None, "one");
        assert_eq!(next(&mut subscriber).await, one);
        let refused = subscriber.subscribe(Kind::Channel, "news").await;
        assert!(matches!(refused, Err(Error::Server(_))), "{refused:?}");
        allow(&["allchannels"]);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        assert_eq!(subscribed, Ok(()));
    });
}

/// How often the server was asked to subscribe.
fn requests(server: &Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let stats = stats.expect("it answers");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_subscribe:calls="));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

fn channels(server: &Server) -> usize {
    let stats = server.command(&["INFO", "stats"]).expect("it answers");
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("pubsub_channels:"));
    line.expect("it tells").trim().parse().expect("a number")
}

#[test]
fn many_subscriptions_are_made_and_renewed_with_few_requests() {
    const COUNT: usize = 50_000;
    let server = server();
    run(async {
        let mut config = to(&server);
        // They take seconds of processor time in a build for tests.
        config.timeout = Duration::from_secs(60);
        let client = Client::with(config).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        let names = (0..COUNT).map(|number| format!("news-{number}"));
        let subscribed = subscriber.subscribe_all(Kind::Channel, names).await;
        subscribed.expect("all are confirmed");
        assert_eq!(channels(&server), COUNT);
        let first = requests(&server);
        assert!(first <= COUNT as u64 / 100, "{first}");
        connection_killed(&server);
        assert_eq!(next(&mut subscriber).await, Event::Interrupted);
        until("all are made again", async || channels(&server) == COUNT).await;
        let again = requests(&server) - first;
        assert!(again <= COUNT as u64 / 100, "{again}");
        let last = format!("news-{}", COUNT - 1);
        assert_eq!(publish(&client, "PUBLISH", &last, "one").await, 1);
        let one = message(Kind::Channel, &last, None, "one");
        assert_eq!(next(&mut subscriber).await, one);
    });
}

#[test]
fn of_many_only_those_end_that_the_server_refuses() {
    const COUNT: usize = 3_000;
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(100);
        let secrets = ["secret-1", "secret-2"];
        let news: Vec<_> = (0..COUNT).map(|number| format!("news-{number}")).collect();
        let names = news[..1_234].iter().map(String::as_str);
        let names = names.chain(["secret-1"]);
        let names = names.chain(news[1_234..].iter().map(String::as_str));
        let subscribed = subscriber.subscribe_all(Kind::Channel, names.chain(["secret-2"]));
        subscribed.await.expect("all are confirmed");
        assert_eq!(channels(&server), COUNT + 2);
        let rules = ["ACL", "SETUSER", "default", "resetchannels", "&news-*"];
        server.command(&rules).expect("it is set");
        assert_eq!(next(&mut subscriber).await, Event::Interrupted);
        let mut refused = Vec::new();
        for _ in secrets {
            match next(&mut subscriber).await {
                Event::Refused { name, .. } => refused.push(name),
                other => panic!("{other:?}"),
            }
        }
        refused.sort_unstable();
        assert_eq!(refused, secrets.map(|name| name.as_bytes().to_vec()));
        until("all others are made again", async || {
            channels(&server) == COUNT
        })
        .await;
        let names = ["news-0", "secret-1", "news-1"];
        let subscribed = subscriber.subscribe_all(Kind::Channel, names).await;
        assert!(
            matches!(subscribed, Err(Error::Server(_))),
            "{subscribed:?}"
        );
        assert_eq!(publish(&client, "PUBLISH", "news-1", "one").await, 1);
        let one = message(Kind::Channel, "news-1", None, "one");
        assert_eq!(next(&mut subscriber).await, one);
    });
}

#[test]
fn subscribers_do_not_meet_at_one_node() {
    let cluster = cluster(3, 0);
    run(async {
        let mut config = to_cluster(&cluster);
        config.ring_bytes = 4096;
        let client = Client::with(config).await.expect("it connects");
        // One in 10^10 times they would leave a node out.
        let subscribers: Vec<_> = (0..60).map(|_| client.subscriber(1)).collect();
        for subscriber in &subscribers {
            let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
            subscribed.expect("it is confirmed");
        }
        for node in cluster.nodes() {
            let told = node.command(&["PUBSUB", "NUMSUB", "news"]);
            let told = told.expect("it answers");
            let count: u32 = told.lines().nth(1).expect(&told).parse().expect("a number");
            assert!(count > 0, "{told}");
        }
    });
}

#[test]
fn a_channel_moves_on_when_its_node_leaves_the_cluster() {
    let cluster = cluster(3, 0);
    run(async {
        let client = Client::with(to_cluster(&cluster))
            .await
            .expect("it connects");
        let mut subscriber = client.subscriber(100);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is confirmed");
        let hears = |node: &Server| {
            let channels = node.command(&["PUBSUB", "CHANNELS"]);
            channels.expect("it answers").contains("news")
        };
        let nodes = cluster.nodes();
        let leaves = nodes.iter().position(hears).expect("one was asked");
        let heir = (leaves + 1) % 3;
        // It gives all its slots away, so clients do not see it any more.
        let view = nodes[leaves].command(&["CLUSTER", "NODES"]);
        let view = view.expect("it answers");
        let myself = view.lines().find(|line| line.contains("myself"));
        let range = myself.and_then(|line| line.split(' ').next_back());
        let (first, last) = range
            .and_then(|range| range.split_once('-'))
            .expect("it has one range of slots");
        for node in nodes {
            let delete = ["CLUSTER", "DELSLOTSRANGE", first, last];
            node.command(&delete).expect("it forgets");
        }
        let add = ["CLUSTER", "ADDSLOTSRANGE", first, last];
        nodes[heir].command(&add).expect("it takes over");
        // A command for such a key is redirected, so the client reads the topology.
        let slot = first.parse().expect("a slot");
        until("the change is known", async || {
            let ping = Fixed::new(
                prefix!(2, 4, "TYPE"),
                ("x",),
                Route::Slot(slot),
                Class::Read,
            );
            let _redirected = client.send::<_, String>(ping).await;
            !hears(&nodes[leaves])
        })
        .await;
        assert_eq!(next(&mut subscriber).await, Event::Interrupted);
        until("another node tells it", async || {
            publish(&client, "PUBLISH", "news", "one").await;
            let next = tokio::time::timeout(Duration::from_millis(50), subscriber.next());
            let one = message(Kind::Channel, "news", None, "one");
            next.await.is_ok_and(|next| next == Ok(one))
        })
        .await;
    });
}

#[test]
fn other_events_are_not_lost_with_messages() {
    let server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let mut subscriber = client.subscriber(1);
        let subscribed = subscriber.subscribe(Kind::Channel, "news").await;
        subscribed.expect("it is confirmed");
        for number in 0..3 {
            publish(&client, "PUBLISH", "news", &number.to_string()).await;
        }
        connection_killed(&server);
        until("it is subscribed again", async || {
            publish(&client, "PUBLISH", "news", "again").await == 1
        })
        .await;
        let first = message(Kind::Channel, "news", None, "0");
        assert_eq!(next(&mut subscriber).await, first);
        let mut rest = [next(&mut subscriber).await, next(&mut subscriber).await];
        rest.sort_by_key(|event| matches!(event, Event::Lost(_)));
        assert_eq!(rest[0], Event::Interrupted);
        assert!(matches!(rest[1], Event::Lost(2..)), "{rest:?}");
    });
}

#[test]
fn subscriptions_that_end_all_at_once_all_end() {
    let server = server();
    let mut config = to(&server);
    config.ring_bytes = 4096;
    // One thread, which cannot send anything while the test unsubscribes.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = Client::with(config).await.expect("it connects");
        let subscriber = client.subscriber(1);
        let names: Vec<String> = (0..100)
            .map(|number| format!("{number}{}", "x".repeat(1000)))
            .collect();
        for name in &names {
            let subscribed = subscriber.subscribe(Kind::Channel, name).await;
            subscribed.expect("it is confirmed");
        }
        for name in &names[1..] {
            subscriber.unsubscribe(Kind::Channel, name);
        }
        until("only the first is left", async || {
            let channels = server.command(&["PUBSUB", "CHANNELS"]);
            let channels = channels.expect("it answers");
            channels.trim() == names[0]
        })
        .await;
    });
}

#[test]
fn a_subscription_that_no_caller_waits_for_ends() {
    let mut server = server();
    run(async {
        let client = Client::with(to(&server)).await.expect("it connects");
        let subscriber = client.subscriber(1);
        let kept = subscriber.subscribe(Kind::Channel, "kept").await;
        kept.expect("it is confirmed");
        server.kill();
        let dropped = subscriber.subscribe(Kind::Channel, "dropped");
        let dropped = tokio::time::timeout(Duration::from_millis(50), dropped).await;
        assert!(dropped.is_err(), "no server confirms it");
        server.restart().expect("it starts again");
        let two = tokio::join!(
            subscriber.subscribe(Kind::Channel, "both"),
            subscriber.subscribe(Kind::Channel, "both"),
        );
        assert_eq!(two, (Ok(()), Ok(())));
        let channels = server.command(&["PUBSUB", "CHANNELS"]);
        let channels = channels.expect("it answers");
        let mut channels: Vec<_> = channels.lines().collect();
        channels.sort_unstable();
        assert_eq!(channels, ["both", "kept"]);
    });
}
