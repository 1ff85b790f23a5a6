//! Topics with one order over all brokers: one of them serves all messages, and another takes its place.

use std::collections::HashSet;

use embar_wire::control::{ErrorCode, Topic, TopicDescription};

use super::*;
use crate::testing::{cluster_with, refusal};

const DATA: u32 = 3;

fn open(config: SubscriberConfig) -> Script {
    Script::open_with(
        config,
        &cluster_with(DATA, None, Some(Order::TotalPerPublisher)),
    )
}

fn from(positions: Positions) -> SubscriberConfig {
    SubscriberConfig {
        start: Start::Positions(positions),
        ..config()
    }
}

/// The channel that connects; there is one at most.
fn connecting(script: &mut Script) -> Option<ChannelId> {
    let channels = (1..=DATA).map(ChannelId);
    let mut connecting =
        channels.filter(|channel| script.sockets.channel(*channel).connecting.is_some());
    let first = connecting.next();
    assert_eq!(connecting.next(), None, "one is enough");
    first
}

/// Lets the chosen broker serve from `start`, up to `next` and further.
fn serve(script: &mut Script, wanted: StartAt, start: u64, next: u64) -> ChannelId {
    let channel = connecting(script).expect("a broker is chosen");
    script.ask(channel, wanted);
    script.tell(channel, &subscribed(Order::TotalPerPublisher, start, next));
    channel
}

fn resume(script: &mut Script, at: u64) -> ChannelId {
    serve(script, StartAt::Offset(at), at, at)
}

#[test]
fn subscribers_spread_over_brokers_and_each_has_one() {
    let mut chosen = HashSet::new();
    for seed in 0..20 {
        let mut script = open(SubscriberConfig { seed, ..config() });
        chosen.insert(serve(&mut script, StartAt::Earliest, 0, 0));
        let opened = |event: &Event| matches!(event, Event::Opened);
        assert!(script.events.iter().any(opened), "one is enough");
        script.tick_at(SECOND);
        assert_eq!(connecting(&mut script), None);
    }
    assert_eq!(chosen.len(), DATA as usize);
}

#[test]
fn another_broker_goes_on_where_the_last_one_stood() {
    let mut script = open(config());
    let first = serve(&mut script, StartAt::Earliest, 0, 0);
    script.feed(first, &batch(0, TOPIC, &[b"a", b"b"]));
    let half = batch(2, TOPIC, &[&[1; 5000]]);
    script.feed(first, &half[..1000]);
    script.lose(first);
    let second = resume(&mut script, 2);
    assert_ne!(second, first);
    script.feed(second, &half);
    assert!(script.delivered.iter().all(|batch| batch.owner().is_none()));
    assert_eq!(script.taken(), [(0, 2, 0), (2, 1, 0)]);
    script.lose(second);
    let third = resume(&mut script, 3);
    assert!(third != first && third != second, "it was not tried yet");
    let starts = script
        .events
        .iter()
        .filter(|event| matches!(event, Event::Started { .. }));
    assert_eq!(starts.count(), 1);
}

/// The broker that serves cannot get at what comes next.
fn out_of_reach(script: &mut Script, channel: ChannelId) {
    script.tell(channel, &refusal(ErrorCode::OutOfReach, true, None));
    script.lose(channel);
}

#[test]
fn what_one_broker_cannot_reach_is_read_at_another() {
    let mut script = open(config());
    let first = serve(&mut script, StartAt::Earliest, 0, 9);
    out_of_reach(&mut script, first);
    let second = serve(&mut script, StartAt::Offset(0), 0, 9);
    assert_ne!(second, first);
    script.feed(second, &batch(0, TOPIC, &[b"a"]));
    assert_eq!(script.taken(), [(0, 1, 0)]);
    script.tick_at(60 * SECOND);
    assert_eq!(script.failure(), None, "it was there again");
}

#[test]
fn what_no_broker_can_reach_is_lost_after_the_time_given() {
    let mut script = open(config());
    let channel = serve(&mut script, StartAt::Earliest, 0, 9);
    out_of_reach(&mut script, channel);
    for tenth in 1.. {
        assert!(tenth < 600, "it goes on for ever");
        script.tick_at(tenth * SECOND / 10);
        if script.failure().is_some() {
            break;
        }
        if connecting(&mut script).is_some() {
            let channel = serve(&mut script, StartAt::Offset(0), 0, 9);
            out_of_reach(&mut script, channel);
        }
    }
    let failure = script.failure();
    assert!(
        matches!(failure, Some(ReadError::AllBrokersLost { .. })),
        "{failure:?}"
    );
}

#[test]
fn a_broker_that_fails_before_it_serves_leaves_the_start_as_it_was() {
    let mut script = open(SubscriberConfig {
        start: Start::Latest,
        ..config()
    });
    let first = connecting(&mut script).expect("one is chosen");
    script.lose(first);
    let second = serve(&mut script, StartAt::Latest, 70, 70);
    script.lose(second);
    resume(&mut script, 70);
}

#[test]
fn a_reader_resumes_at_one_number() {
    let mut script = open(from("7".parse().expect("a position")));
    serve(&mut script, StartAt::Offset(7), 7, 9);
    let mut script = open(from(Positions::new()));
    serve(&mut script, StartAt::Earliest, 0, 9);
}

#[test]
fn positions_of_the_other_kind_are_refused() {
    let offsets = Positions::from_iter([(1, 5)]);
    for (order, positions) in [
        (Order::TotalPerPublisher, offsets),
        (Order::None, Positions::at(5)),
    ] {
        let cluster = cluster_with(DATA, None, Some(order));
        let script = Script::open_with(from(positions), &cluster);
        assert!(
            matches!(
                script.failure(),
                Some(ReadError::Setting(SettingError {
                    setting: "from",
                    ..
                }))
            ),
            "{:?}",
            script.events
        );
    }
}

/// The broker sends what cannot be used, and another one is to send it.
fn fail(script: &mut Script, channel: ChannelId, wrong: &[u8], position: u64) -> Option<ChannelId> {
    script.feed(channel, wrong);
    if script.failure().is_some() {
        return None;
    }
    assert!(script.sockets.channel(channel).closing);
    script.lose(channel);
    script.tick_at(script.now.0 + 2 * SECOND);
    Some(resume(script, position))
}

#[test]
fn bytes_that_changed_are_asked_for_again_and_reported_in_the_end() {
    let mut damaged = batch(4, TOPIC, &[b"abc"]);
    let last = damaged.len() - 60;
    damaged[last] ^= 1;
    for wrong in [damaged, batch(5, TOPIC, &[b"a"]), batch(3, TOPIC, &[b"a"])] {
        let mut script = open(config());
        let mut channel = serve(&mut script, StartAt::Earliest, 0, 9);
        script.feed(channel, &batch(0, TOPIC, &[b"a", b"b", b"c", b"d"]));
        let mut tries = 0;
        while let Some(next) = fail(&mut script, channel, &wrong, 4) {
            (channel, tries) = (next, tries + 1);
        }
        assert_eq!(tries, 7, "the eighth is the last");
        let told = script.failure();
        assert!(
            matches!(told, Some(ReadError::Corrupt { offset: 4, .. })),
            "{told:?}"
        );
        assert_eq!(script.taken(), [(0, 4, 0)]);
    }
}

#[test]
fn a_position_that_no_broker_can_read_is_reported_in_the_end() {
    let mut script = open(config());
    let mut channel = serve(&mut script, StartAt::Earliest, 0, 9);
    script.feed(channel, &batch(0, TOPIC, &[b"a", b"b", b"c", b"d"]));
    let damaged = frame(&refusal(ErrorCode::Damaged, false, None));
    for attempt in 1..=8 {
        assert!(script.failure().is_none(), "attempt {attempt}");
        script.feed(channel, &damaged);
        script.lose(channel);
        script.tick_at(script.now.0 + 2 * SECOND);
        if attempt < 8 {
            channel = resume(&mut script, 4);
        }
    }
    let Some(ReadError::Corrupt { offset, cause, .. }) = script.failure() else {
        panic!("{:?}", script.failure());
    };
    assert_eq!((*offset, cause.as_str()), (4, "Damaged"));
}

#[test]
fn a_position_that_is_read_after_all_is_no_damage() {
    let mut script = open(config());
    let mut channel = serve(&mut script, StartAt::Earliest, 0, 9);
    for position in 0..3 {
        for _ in 0..5 {
            let wrong = batch(position + 1, TOPIC, &[b"a"]);
            channel = fail(&mut script, channel, &wrong, position).expect("not for good");
        }
        script.feed(channel, &batch(position, TOPIC, &[b"a"]));
    }
    assert_eq!(script.taken().len(), 3);
}

#[test]
fn only_the_absence_of_all_brokers_ends_it() {
    let mut script = open(config());
    let mut channel = serve(&mut script, StartAt::Earliest, 0, 0);
    for _ in 0..20 {
        script.lose(channel);
        script.tell_cluster(&cluster_with(DATA, None, Some(Order::TotalPerPublisher)));
        script.tick_at(script.now.0 + 2 * SECOND);
        channel = resume(&mut script, 0);
    }
    let lost_at = script.now.0;
    script.lose(channel);
    script.tell_cluster(&cluster_with(0, None, Some(Order::TotalPerPublisher)));
    for channel in (1..=DATA).map(ChannelId) {
        if script.sockets.channel(channel).connecting.is_some() {
            script.lose(channel);
        }
    }
    script.tick_at(lost_at + 30 * SECOND - 1);
    assert_eq!(script.failure(), None);
    script.tick_at(lost_at + 30 * SECOND);
    let told = script.failure();
    assert!(
        matches!(told, Some(ReadError::AllBrokersLost { .. })),
        "{told:?}"
    );
}

#[test]
fn a_broker_that_has_not_seen_as_much_is_passed_over() {
    let mut script = open(config());
    let channel = serve(&mut script, StartAt::Earliest, 0, 0);
    script.feed(channel, &batch(0, TOPIC, &[b"a", b"b"]));
    script.lose(channel);
    let behind = connecting(&mut script).expect("another one");
    script.ask(behind, StartAt::Offset(2));
    script.tell(
        behind,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(0)),
    );
    script.lose(behind);
    assert_eq!(script.failure(), None);
    assert_ne!(resume(&mut script, 2), behind);
}

#[test]
fn a_start_that_one_broker_has_not_seen_is_asked_of_another() {
    let mut script = open(from(Positions::at(1_000)));
    let behind = connecting(&mut script).expect("one is chosen");
    script.ask(behind, StartAt::Offset(1_000));
    script.tell(
        behind,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(0)),
    );
    script.lose(behind);
    assert_eq!(script.failure(), None);
    assert_ne!(resume(&mut script, 1_000), behind);
}

#[test]
fn a_start_behind_the_end_is_refused_when_the_time_to_open_is_over() {
    let mut script = open(from(Positions::at(1_000)));
    let channel = connecting(&mut script).expect("one is chosen");
    script.ask(channel, StartAt::Offset(1_000));
    script.tell(
        channel,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(0)),
    );
    script.lose(channel);
    assert_eq!(script.failure(), None);
    script.tick_at(5 * SECOND);
    let code = ErrorCode::OffsetOutOfRange;
    assert!(
        matches!(script.failure(), Some(ReadError::Client(ClientError::Refused { code: told, .. })) if *told == code)
    );
}

#[test]
fn eviction_skips_for_all_brokers() {
    let mut script = open(SubscriberConfig {
        on_evicted: OnEvicted::SkipToFirst,
        ..from(Positions::at(40))
    });
    let channel = connecting(&mut script).expect("one is chosen");
    script.ask(channel, StartAt::Offset(40));
    script.tell(
        channel,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(100)),
    );
    script.lose(channel);
    let skipped = |event: &Event| {
        matches!(
            event,
            Event::Skipped {
                broker: None,
                to: 100,
                messages: 60
            }
        )
    };
    assert!(script.events.iter().any(skipped), "{:?}", script.events);
    let channel = serve(&mut script, StartAt::Offset(100), 100, 101);
    script.feed(channel, &batch(100, TOPIC, &[b"z"]));
    assert_eq!(script.taken(), [(100, 1, 0)]);
}

#[test]
fn until_end_ends_where_the_first_broker_saw_the_end() {
    let mut script = open(SubscriberConfig {
        until_end: true,
        ..config()
    });
    let channel = serve(&mut script, StartAt::Earliest, 0, 3);
    script.feed(channel, &batch(0, TOPIC, &[b"a", b"b"]));
    script.lose(channel);
    let channel = serve(&mut script, StartAt::Offset(2), 2, 9);
    let ended = |event: &Event| matches!(event, Event::End);
    assert!(!script.events.iter().any(ended));
    script.feed(channel, &batch(2, TOPIC, &[b"c"]));
    assert!(script.events.iter().any(ended), "{:?}", script.events);
    assert_eq!(script.taken(), [(0, 2, 0), (2, 1, 0)]);
    script.lose(channel);
    assert_eq!(connecting(&mut script), None);
}

#[test]
fn a_topic_made_anew_is_not_taken_for_the_old_one() {
    let told = |script: &Script| {
        let failure = script.failure();
        assert!(
            matches!(
                failure,
                Some(ReadError::Client(ClientError::TopicReplaced { .. }))
            ),
            "{failure:?}"
        );
    };
    let mut script = open(config());
    let channel = serve(&mut script, StartAt::Earliest, 0, 0);
    script.lose(channel);
    let channel = connecting(&mut script).expect("another one");
    script.ask(channel, StartAt::Offset(0));
    let anew = Subscribed {
        topic_id: TOPIC + 1,
        order: Order::TotalPerPublisher,
        ..Subscribed::default()
    };
    script.tell(channel, &Control::Subscribed(anew));
    told(&script);

    let mut script = open(config());
    let channel = connecting(&mut script).expect("one is chosen");
    script.ask(channel, StartAt::Earliest);
    script.tell(channel, &subscribed(Order::PerBroker, 0, 0));
    told(&script);
}

#[test]
fn an_order_that_the_first_broker_does_not_know_is_asked_of_the_head() {
    let mut script = Script::open_with(config(), &cluster_with(DATA, None, None));
    assert_eq!(connecting(&mut script), None, "nobody knows how to read it");
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.tell(ChannelId::CONTROL, &cluster_with(DATA, None, None));
    let topic = Topic {
        name: "t".into(),
        order: Order::TotalPerPublisher,
        ..Topic::default()
    };
    let found = TopicDescription {
        topic,
        ..TopicDescription::default()
    };
    script.tell(ChannelId::CONTROL, &Control::TopicDescription(found));
    serve(&mut script, StartAt::Earliest, 0, 0);

    let mut script = Script::open_with(config(), &cluster_with(DATA, None, None));
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.tell(ChannelId::CONTROL, &cluster_with(DATA, None, None));
    let unknown = refusal(ErrorCode::UnknownTopic, false, None);
    script.tell(ChannelId::CONTROL, &unknown);
    assert!(matches!(
        script.failure(),
        Some(ReadError::Client(ClientError::UnknownTopic { .. }))
    ));
}
