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

/// The lane that connects; there is one at most.
fn connecting(script: &mut Script) -> Option<Lane> {
    let lanes = (1..=DATA).map(Lane);
    let mut connecting = lanes.filter(|lane| script.sockets.lane(*lane).connecting.is_some());
    let first = connecting.next();
    assert_eq!(connecting.next(), None, "one is enough");
    first
}

/// Lets the chosen broker serve from `start`, up to `next` and further.
fn serve(script: &mut Script, wanted: StartAt, start: u64, next: u64) -> Lane {
    let lane = connecting(script).expect("a broker is chosen");
    script.ask(lane, wanted);
    script.tell(lane, &subscribed(Order::TotalPerPublisher, start, next));
    lane
}

fn resume(script: &mut Script, at: u64) -> Lane {
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
fn out_of_reach(script: &mut Script, lane: Lane) {
    script.tell(lane, &refusal(ErrorCode::OutOfReach, true, None));
    script.lose(lane);
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
    let lane = serve(&mut script, StartAt::Earliest, 0, 9);
    out_of_reach(&mut script, lane);
    for tenth in 1.. {
        assert!(tenth < 600, "it goes on for ever");
        script.tick_at(tenth * SECOND / 10);
        if script.failure().is_some() {
            break;
        }
        if connecting(&mut script).is_some() {
            let lane = serve(&mut script, StartAt::Offset(0), 0, 9);
            out_of_reach(&mut script, lane);
        }
    }
    let failure = script.failure();
    assert!(
        matches!(failure, Some(Error::AllBrokersLost { .. })),
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
                Some(Error::BadSetting {
                    setting: "from",
                    ..
                })
            ),
            "{:?}",
            script.events
        );
    }
}

/// The broker sends what cannot be used, and another one is to send it.
fn fail(script: &mut Script, lane: Lane, wrong: &[u8], position: u64) -> Option<Lane> {
    script.feed(lane, wrong);
    if script.failure().is_some() {
        return None;
    }
    assert!(script.sockets.lane(lane).closing);
    script.lose(lane);
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
        let mut lane = serve(&mut script, StartAt::Earliest, 0, 9);
        script.feed(lane, &batch(0, TOPIC, &[b"a", b"b", b"c", b"d"]));
        let mut tries = 0;
        while let Some(next) = fail(&mut script, lane, &wrong, 4) {
            (lane, tries) = (next, tries + 1);
        }
        assert_eq!(tries, 7, "the eighth is the last");
        let told = script.failure();
        assert!(
            matches!(told, Some(Error::Corrupt { offset: 4, .. })),
            "{told:?}"
        );
        assert_eq!(script.taken(), [(0, 4, 0)]);
    }
}

#[test]
fn a_position_that_no_broker_can_read_is_reported_in_the_end() {
    let mut script = open(config());
    let mut lane = serve(&mut script, StartAt::Earliest, 0, 9);
    script.feed(lane, &batch(0, TOPIC, &[b"a", b"b", b"c", b"d"]));
    let damaged = frame(&refusal(ErrorCode::Damaged, false, None));
    for attempt in 1..=8 {
        assert!(script.failure().is_none(), "attempt {attempt}");
        script.feed(lane, &damaged);
        script.lose(lane);
        script.tick_at(script.now.0 + 2 * SECOND);
        if attempt < 8 {
            lane = resume(&mut script, 4);
        }
    }
    let Some(Error::Corrupt { offset, cause, .. }) = script.failure() else {
        panic!("{:?}", script.failure());
    };
    assert_eq!((*offset, cause.as_str()), (4, "Damaged"));
}

#[test]
fn a_position_that_is_read_after_all_is_no_damage() {
    let mut script = open(config());
    let mut lane = serve(&mut script, StartAt::Earliest, 0, 9);
    for position in 0..3 {
        for _ in 0..5 {
            let wrong = batch(position + 1, TOPIC, &[b"a"]);
            lane = fail(&mut script, lane, &wrong, position).expect("not for good");
        }
        script.feed(lane, &batch(position, TOPIC, &[b"a"]));
    }
    assert_eq!(script.taken().len(), 3);
}

#[test]
fn only_the_absence_of_all_brokers_ends_it() {
    let mut script = open(config());
    let mut lane = serve(&mut script, StartAt::Earliest, 0, 0);
    for _ in 0..20 {
        script.lose(lane);
        script.tell_cluster(&cluster_with(DATA, None, Some(Order::TotalPerPublisher)));
        script.tick_at(script.now.0 + 2 * SECOND);
        lane = resume(&mut script, 0);
    }
    let lost_at = script.now.0;
    script.lose(lane);
    script.tell_cluster(&cluster_with(0, None, Some(Order::TotalPerPublisher)));
    for lane in (1..=DATA).map(Lane) {
        if script.sockets.lane(lane).connecting.is_some() {
            script.lose(lane);
        }
    }
    script.tick_at(lost_at + 30 * SECOND - 1);
    assert_eq!(script.failure(), None);
    script.tick_at(lost_at + 30 * SECOND);
    let told = script.failure();
    assert!(
        matches!(told, Some(Error::AllBrokersLost { .. })),
        "{told:?}"
    );
}

#[test]
fn a_broker_that_has_not_seen_as_much_is_passed_over() {
    let mut script = open(config());
    let lane = serve(&mut script, StartAt::Earliest, 0, 0);
    script.feed(lane, &batch(0, TOPIC, &[b"a", b"b"]));
    script.lose(lane);
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
    let lane = connecting(&mut script).expect("one is chosen");
    script.ask(lane, StartAt::Offset(1_000));
    script.tell(lane, &refusal(ErrorCode::OffsetOutOfRange, false, Some(0)));
    script.lose(lane);
    assert_eq!(script.failure(), None);
    script.tick_at(5 * SECOND);
    let code = ErrorCode::OffsetOutOfRange;
    assert!(matches!(script.failure(), Some(Error::Refused { code: told, .. }) if *told == code));
}

#[test]
fn eviction_skips_for_all_brokers() {
    let mut script = open(SubscriberConfig {
        on_evicted: OnEvicted::SkipToFirst,
        ..from(Positions::at(40))
    });
    let lane = connecting(&mut script).expect("one is chosen");
    script.ask(lane, StartAt::Offset(40));
    script.tell(
        lane,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(100)),
    );
    script.lose(lane);
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
    let lane = serve(&mut script, StartAt::Offset(100), 100, 101);
    script.feed(lane, &batch(100, TOPIC, &[b"z"]));
    assert_eq!(script.taken(), [(100, 1, 0)]);
}

#[test]
fn until_end_ends_where_the_first_broker_saw_the_end() {
    let mut script = open(SubscriberConfig {
        until_end: true,
        ..config()
    });
    let lane = serve(&mut script, StartAt::Earliest, 0, 3);
    script.feed(lane, &batch(0, TOPIC, &[b"a", b"b"]));
    script.lose(lane);
    let lane = serve(&mut script, StartAt::Offset(2), 2, 9);
    let ended = |event: &Event| matches!(event, Event::End);
    assert!(!script.events.iter().any(ended));
    script.feed(lane, &batch(2, TOPIC, &[b"c"]));
    assert!(script.events.iter().any(ended), "{:?}", script.events);
    assert_eq!(script.taken(), [(0, 2, 0), (2, 1, 0)]);
    script.lose(lane);
    assert_eq!(connecting(&mut script), None);
}

#[test]
fn a_topic_made_anew_is_not_taken_for_the_old_one() {
    let told = |script: &Script| {
        let failure = script.failure();
        assert!(
            matches!(failure, Some(Error::TopicReplaced { .. })),
            "{failure:?}"
        );
    };
    let mut script = open(config());
    let lane = serve(&mut script, StartAt::Earliest, 0, 0);
    script.lose(lane);
    let lane = connecting(&mut script).expect("another one");
    script.ask(lane, StartAt::Offset(0));
    let anew = Subscribed {
        topic_id: TOPIC + 1,
        order: Order::TotalPerPublisher,
        ..Subscribed::default()
    };
    script.tell(lane, &Control::Subscribed(anew));
    told(&script);

    let mut script = open(config());
    let lane = connecting(&mut script).expect("one is chosen");
    script.ask(lane, StartAt::Earliest);
    script.tell(lane, &subscribed(Order::PerBroker, 0, 0));
    told(&script);
}

#[test]
fn an_order_that_the_first_broker_does_not_know_is_asked_of_the_head() {
    let mut script = Script::open_with(config(), &cluster_with(DATA, None, None));
    assert_eq!(connecting(&mut script), None, "nobody knows how to read it");
    script.connect(Lane::CONTROL);
    script.feed(Lane::CONTROL, &welcome(0));
    script.tell(Lane::CONTROL, &cluster_with(DATA, None, None));
    let topic = Topic {
        name: "t".into(),
        order: Order::TotalPerPublisher,
        ..Topic::default()
    };
    let found = TopicDescription {
        topic,
        ..TopicDescription::default()
    };
    script.tell(Lane::CONTROL, &Control::TopicDescription(found));
    serve(&mut script, StartAt::Earliest, 0, 0);

    let mut script = Script::open_with(config(), &cluster_with(DATA, None, None));
    script.connect(Lane::CONTROL);
    script.feed(Lane::CONTROL, &welcome(0));
    script.tell(Lane::CONTROL, &cluster_with(DATA, None, None));
    let unknown = refusal(ErrorCode::UnknownTopic, false, None);
    script.tell(Lane::CONTROL, &unknown);
    assert!(matches!(script.failure(), Some(Error::UnknownTopic { .. })));
}
