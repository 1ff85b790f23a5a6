//! Brokers tell a subscriber unasked who comes and goes.

use embar_wire::control::{BrokerState, Control, StartAt};
use embar_wire::topic::Order;

use super::super::model::{Event, Start, SubscriberConfig};
use super::{A, B, Script, TOPIC, batch, config, subscribed};
use crate::connection::ChannelId;
use crate::testing::{SECOND, cluster, cluster_now, cluster_of, cluster_with, frame};

const C: ChannelId = ChannelId(3);

/// Broker 1 is there, and broker 2 as told.
fn second(state: BrokerState) -> impl Fn(u32) -> BrokerState {
    move |id| match id {
        2 => state,
        _ => BrokerState::Ready,
    }
}

fn count(script: &Script, is: impl Fn(&Event) -> bool) -> usize {
    script.events.iter().filter(|event| is(event)).count()
}

#[test]
fn a_broker_that_joined_is_read_from_its_first_message() {
    let latest = SubscriberConfig {
        start: Start::Latest,
        ..config()
    };
    let mut script = Script::open(latest, 2);
    script.subscribe(A, StartAt::Latest, 4, 4);
    script.subscribe(B, StartAt::Latest, 5, 5);
    script.tell(A, &cluster_now(3, |_| BrokerState::Ready));
    script.tick_at(script.now.0);
    script.subscribe(C, StartAt::Earliest, 0, 0);
    script.feed(C, &batch(0, TOPIC, &[b"a"]));
    assert_eq!(script.taken(), [(0, 1, 0)]);
}

#[test]
fn what_comes_at_a_broker_that_had_left_and_returns_is_not_missed() {
    let latest = SubscriberConfig {
        start: Start::Latest,
        ..config()
    };
    let mut script = Script::new(latest);
    script.tell_cluster(&cluster_of(2, second(BrokerState::Left), Some(Order::None)));
    script.subscribe(A, StartAt::Latest, 4, 4);
    script.tell(A, &cluster_now(2, |_| BrokerState::Ready));
    script.tick_at(script.now.0);
    // It may have taken messages before it was known to be back.
    script.subscribe(B, StartAt::Earliest, 0, 1);
    script.feed(B, &batch(0, TOPIC, &[b"a"]));
    assert_eq!(script.taken(), [(0, 1, 0)]);
}

#[test]
fn news_between_batches_and_before_the_end_of_one_disturb_nothing() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    let news = frame(&cluster_now(1, |_| BrokerState::Ready));
    let big = vec![7; 100_000];
    let bytes = [
        &batch(0, TOPIC, &[b"a"])[..],
        &news,
        &batch(1, TOPIC, &[&big]),
        &news,
    ];
    for part in bytes.concat().chunks(1000) {
        assert!(script.feed(A, part).is_empty());
    }
    assert_eq!(script.taken(), [(0, 1, 0), (1, 1, 0)]);
    assert!(script.failure().is_none());
}

#[test]
fn a_broker_that_left_and_returns_is_read_where_it_was() {
    let mut script = Script::open(config(), 2);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.subscribe(B, StartAt::Earliest, 0, 9);
    script.feed(B, &batch(0, TOPIC, &[b"a", b"b"]));
    script.lose(B);
    script.tell(A, &cluster_now(2, second(BrokerState::Left)));
    let left = |event: &Event| matches!(event, Event::BrokerLeft { broker: 2 });
    assert_eq!(count(&script, left), 1);
    script.tick_at(60 * SECOND);
    assert!(script.failure().is_none(), "nobody waits for it");
    assert_eq!(script.sockets.channel(B).connecting, None);
    script.tell(A, &cluster_now(2, |_| BrokerState::Ready));
    script.tick_at(script.now.0);
    script.subscribe(B, StartAt::Offset(2), 2, 9);
    script.feed(B, &batch(2, TOPIC, &[b"c"]));
    assert_eq!(script.taken(), [(0, 2, 0), (2, 1, 0)]);
}

#[test]
fn the_end_comes_without_a_broker_that_left() {
    let until_end = SubscriberConfig {
        until_end: true,
        ..config()
    };
    let end = |event: &Event| matches!(event, Event::End);
    // It leaves while it is read.
    let mut script = Script::open(until_end.clone(), 2);
    script.subscribe(A, StartAt::Earliest, 0, 1);
    script.subscribe(B, StartAt::Earliest, 0, 9);
    script.lose(B);
    script.tell(A, &cluster_now(2, second(BrokerState::Left)));
    assert_eq!(count(&script, end), 0);
    script.feed(A, &batch(0, TOPIC, &[b"a"]));
    assert_eq!(count(&script, end), 1);
    // It had left before.
    let mut script = Script::new(until_end.clone());
    script.tell_cluster(&cluster_with(2, None, Some(Order::None)));
    script.subscribe(A, StartAt::Earliest, 0, 0);
    assert_eq!(count(&script, end), 0);
    script.lose(B);
    script.tick_at(SECOND);
    script.tell_cluster(&cluster_now(2, second(BrokerState::Left)));
    assert_eq!(count(&script, end), 1);
}

#[test]
fn one_order_goes_on_at_a_broker_that_joined() {
    let mut script = Script::new(config());
    script.tell_cluster(&cluster_with(1, None, Some(Order::TotalPerPublisher)));
    script.ask(A, StartAt::Earliest);
    script.tell(A, &subscribed(Order::TotalPerPublisher, 0, 9));
    script.feed(A, &batch(0, TOPIC, &[b"a", b"b"]));
    script.tell(A, &cluster_now(2, |_| BrokerState::Ready));
    script.lose(A);
    script.tick_at(script.now.0);
    script.ask(B, StartAt::Offset(2));
    script.tell(B, &subscribed(Order::TotalPerPublisher, 2, 9));
    script.feed(B, &batch(2, TOPIC, &[b"c"]));
    assert_eq!(script.taken(), [(0, 2, 0), (2, 1, 0)]);
}

#[test]
fn a_broker_without_an_address_is_waited_for_in_peace() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 1);
    script.lose(A);
    let Control::ClusterMetadata(mut nowhere) = cluster_now(1, |_| BrokerState::Ready) else {
        panic!("another message");
    };
    nowhere.brokers[1].address = "nowhere".into();
    script.tell_cluster(&Control::ClusterMetadata(nowhere));
    script.tick_at(SECOND);
    assert_eq!(script.sockets.channel(A).connecting, None);
    let next = script.core.next_tick();
    assert!(next.is_some_and(|at| at > script.now), "{next:?}");
    script.tick_at(6 * SECOND);
    script.tell_cluster(&cluster(1));
    script.tick_at(script.now.0);
    script.subscribe(A, StartAt::Offset(0), 0, 1);
}
