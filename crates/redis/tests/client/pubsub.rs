//! Messages.

use std::time::Duration;

use embar_redis::config::ProtocolVersion;
use embar_redis::pubsub::{Event, Kind, Message, Subscriber};
use embar_redis::slot::slot;
use embar_redis::{Client, Config, Error, cmd};
use embar_redis_servers::MoveState;

use crate::support::{cluster, run, server, to, to_cluster, until};

async fn next(subscriber: &mut Subscriber) -> Event {
    let next = tokio::time::timeout(Duration::from_secs(10), subscriber.next());
    next.await.expect("something happens").expect("it is open")
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
fn what_is_published_is_heard_in_both_versions_of_the_protocol() {
    let server = server();
    run(async {
        for protocol in [ProtocolVersion::Resp2, ProtocolVersion::Resp3] {
            let config = Config {
                protocol,
                ..to(&server)
            };
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
fn subscriptions_are_made_again_and_the_gap_is_told() {
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
fn a_reader_that_is_slow_loses_messages_and_is_told_how_many() {
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
        assert_eq!(heard, [b"0", b"1", b"2"]);
        assert_eq!(lost, 7);
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
fn what_the_server_refuses_is_an_error_and_disturbs_nothing_else() {
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
