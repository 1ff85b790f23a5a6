//! Several brokers that serve one order together.

use embar_wire::control::BrokerState;
use embar_wire::share::{BrokerSet, Share};

use super::*;
use crate::testing::{cluster_of, cluster_with};

const DATA: u32 = 3;
/// All batches of these tests are large...
const LARGE: u32 = 100;
/// ...and so many show that they are.
const BEFORE: u64 = 4;

pub(super) fn shared() -> SubscriberConfig {
    SubscriberConfig {
        shared_batch_bytes: Some(LARGE),
        ..config()
    }
}

fn ordered() -> Control {
    cluster_with(DATA, None, Some(Order::TotalPerPublisher))
}

fn connecting(script: &mut Script) -> Vec<ChannelId> {
    let channels = (1..=DATA).map(ChannelId);
    let connects = |it: &ChannelId| {
        let socket = script.sockets.channel(*it);
        socket.connecting.is_some() && !socket.closing
    };
    channels.filter(connects).collect()
}

/// Connections that are to end end.
fn end_closing(script: &mut Script) {
    let channels = (1..=DATA).map(ChannelId);
    while let Some(channel) = channels
        .clone()
        .find(|it| script.sockets.channel(*it).closing)
    {
        script.lose(channel);
    }
}

/// Time passes, in which this process runs.
pub(super) fn pass(script: &mut Script, time: u64) {
    let end = script.now.0 + time;
    while let Some(due) = script.core.next_tick().filter(|due| due.0 < end) {
        script.tick_at(due.0.max(script.now.0 + 1));
    }
    script.tick_at(end);
}

/// What a channel asked for last, and forgets then.
fn asked(script: &mut Script, channel: ChannelId) -> Option<(StartAt, Share)> {
    match script.sockets.channel(channel).sent.pop()? {
        Control::Subscribe(it) => {
            assert_eq!(it.isolation, Isolation::Latest, "that of the subscriber");
            Some((it.start, it.share))
        }
        other => panic!("{other:?}"),
    }
}

fn connect(script: &mut Script, channel: ChannelId) -> (StartAt, Share) {
    script.connect(channel);
    assert!(script.feed(channel, &welcome(channel.0)).is_empty());
    asked(script, channel).expect("it subscribes")
}

fn answer(script: &mut Script, channel: ChannelId, start: u64) {
    let end = start.max(100);
    script.tell(channel, &subscribed(Order::TotalPerPublisher, start, end));
}

pub(super) fn send(script: &mut Script, channel: ChannelId, position: u64) {
    assert!(
        script
            .feed(channel, &batch(position, TOPIC, &[b"large"]))
            .is_empty(),
        "position {position} has no room"
    );
}

/// The positions that were delivered; their buffers go back.
pub(super) fn positions(script: &mut Script) -> Vec<u64> {
    script.taken().into_iter().map(|(base, ..)| base).collect()
}

fn own() -> Share {
    Share::Own { large_bytes: LARGE }
}

fn without(channels: &[ChannelId]) -> Share {
    let mut brokers = BrokerSet::default();
    assert!(channels.iter().all(|channel| brokers.insert(channel.0)));
    Share::Without {
        brokers,
        large_bytes: LARGE,
    }
}

/// A server that has sent the first batches, and those of whom help was asked for.
fn large(config: SubscriberConfig) -> (Script, ChannelId, Vec<ChannelId>) {
    let mut script = Script::open_with(config, &ordered());
    let server = connecting(&mut script)[0];
    assert_eq!(connecting(&mut script), [server], "one at first");
    assert_eq!(
        connect(&mut script, server),
        (StartAt::Earliest, Share::All)
    );
    answer(&mut script, server, 0);
    for position in 0..BEFORE {
        send(&mut script, server, position);
        assert_eq!(positions(&mut script), [position]);
    }
    let helpers = connecting(&mut script);
    (script, server, helpers)
}

/// The same, and both others help.
pub(super) fn together(config: SubscriberConfig) -> (Script, ChannelId, [ChannelId; 2]) {
    let (mut script, server, helpers) = large(config);
    let helpers: [ChannelId; 2] = helpers.try_into().expect("both others");
    for (index, helper) in helpers.into_iter().enumerate() {
        let wanted = (StartAt::Offset(BEFORE), own());
        assert_eq!(connect(&mut script, helper), wanted);
        assert_eq!(asked(&mut script, server), None, "not before it answers");
        answer(&mut script, helper, BEFORE);
        let share = without(&helpers[..=index]);
        assert_eq!(asked(&mut script, server), Some((StartAt::Latest, share)));
        answer(&mut script, server, BEFORE);
    }
    (script, server, helpers)
}

#[test]
fn smaller_batches_are_shared_out_where_brokers_lend_their_memory() {
    let medium = vec![1; 200 << 10];
    for shares_memory in [false, true] {
        let config = SubscriberConfig {
            shared_batch_bytes: Some(256 << 10),
            ..config()
        };
        let mut script = Script::open_with(config, &ordered());
        script.shares_memory = shares_memory;
        let server = connecting(&mut script)[0];
        connect(&mut script, server);
        answer(&mut script, server, 0);
        for position in 0..BEFORE {
            let batch = batch(position, TOPIC, &[&medium]);
            assert!(script.feed(server, &batch).is_empty());
            assert_eq!(positions(&mut script), [position]);
        }
        let helpers = connecting(&mut script);
        assert_eq!(helpers.is_empty(), !shares_memory);
        if let Some(helper) = helpers.first() {
            let large_bytes = 128 << 10;
            let (_, share) = connect(&mut script, *helper);
            assert_eq!(share, Share::Own { large_bytes });
        }
    }
}

/// All connections end, and one goes on alone from `position`.
fn goes_on_alone(script: &mut Script, position: u64) -> ChannelId {
    end_closing(script);
    let [alone] = connecting(script)[..] else {
        panic!("one connects: {:?}", connecting(script));
    };
    let wanted = (StartAt::Offset(position), Share::All);
    assert_eq!(connect(script, alone), wanted);
    answer(script, alone, position);
    for position in position..position + 3 {
        send(script, alone, position);
        assert_eq!(positions(script), [position]);
    }
    assert_eq!(script.failure(), None);
    alone
}

#[test]
fn batches_of_several_brokers_are_delivered_in_their_order() {
    let (mut script, server, helpers) = together(shared());
    let brokers = [server, helpers[0], helpers[1]];
    let mut random = SplitMix64::new(7);
    for round in 0..200 {
        let first = BEFORE + 6 * round;
        // Who stores which, and in which order they send: no broker more than it has buffers for.
        let mut batches: Vec<(u64, ChannelId)> = (0..6)
            .map(|index| (first + index, brokers[index as usize % 3]))
            .collect();
        batches.sort_by_key(|(position, broker)| (random.next_u64() % 3, *broker, *position));
        batches.sort_by_key(|(position, _)| position / 3);
        for (position, broker) in batches {
            send(&mut script, broker, position);
        }
        let expected: Vec<u64> = (first..first + 6).collect();
        assert_eq!(positions(&mut script), expected, "round {round}");
    }
    assert!(!script.core.is_starved());
}

#[test]
fn what_both_send_at_first_is_delivered_once() {
    let (mut script, server, helpers) = large(shared());
    let helper = helpers[0];
    connect(&mut script, helper);
    send(&mut script, server, 4);
    answer(&mut script, helper, BEFORE);
    send(&mut script, helper, 4);
    send(&mut script, server, 5);
    assert_eq!(positions(&mut script), [4, 5]);
    for (channel, position) in [(helper, 6), (server, 6), (server, 7)] {
        send(&mut script, channel, position);
    }
    assert_eq!(positions(&mut script), [6, 7]);
    send(&mut script, server, 9);
    send(&mut script, helper, 8);
    assert_eq!(positions(&mut script), [8, 9]);
}

#[test]
fn a_helper_that_does_not_come_to_help_changes_nothing() {
    let (mut script, server, helpers) = large(shared());
    connect(&mut script, helpers[0]);
    script.tell(
        helpers[0],
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(0)),
    );
    helpers.iter().for_each(|helper| script.lose(*helper));
    assert!(!script.sockets.channel(server).closing);
    assert_eq!(asked(&mut script, server), None);
    send(&mut script, server, 4);
    assert_eq!(positions(&mut script), [4]);
    script.tick_at(60 * SECOND);
    assert_eq!(script.failure(), None, "it is not missed");
}

#[test]
fn brokers_that_cannot_help_are_asked_more_and_more_rarely() {
    let (mut script, server, mut helpers) = large(shared());
    let (mut position, mut asked_at) = (BEFORE, Vec::new());
    for _ in 0..4 {
        for helper in helpers {
            connect(&mut script, helper);
            script.tell(helper, &refusal(ErrorCode::OutOfReach, true, None));
            script.lose(helper);
        }
        while connecting(&mut script).is_empty() {
            script.tick_at(script.now.0 + SECOND / 10);
            send(&mut script, server, position);
            assert_eq!(positions(&mut script), [position], "the server goes on");
            position += 1;
        }
        asked_at.push(script.now.0);
        helpers = connecting(&mut script);
    }
    let waited: Vec<u64> = asked_at.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(waited[0] >= SECOND && waited.is_sorted(), "{waited:?}");
    assert!(waited[2] >= 4 * SECOND, "{waited:?}");
    assert_eq!(script.failure(), None);
}

#[test]
fn when_one_of_them_ends_another_goes_on_alone_from_where_all_were() {
    for ends in 0..3 {
        let (mut script, server, helpers) = together(shared());
        let brokers = [server, helpers[0], helpers[1]];
        send(&mut script, brokers[(ends + 1) % 3], 4);
        // The next one is missing.
        send(&mut script, brokers[(ends + 1) % 3], 6);
        send(&mut script, brokers[(ends + 2) % 3], 7);
        assert_eq!(positions(&mut script), [4]);
        script.lose(brokers[ends]);
        let alone = goes_on_alone(&mut script, 5);
        assert_ne!(alone, brokers[ends], "it has failed a moment ago");
    }
}

#[test]
fn they_help_again_after_a_while() {
    let (mut script, _, helpers) = together(shared());
    script.lose(helpers[1]);
    let alone = goes_on_alone(&mut script, BEFORE);
    send(&mut script, alone, 7);
    assert_eq!(positions(&mut script), [7]);
    assert_eq!(connecting(&mut script), [], "not at once");
    script.tick_at(script.now.0 + 10 * SECOND);
    assert_eq!(connecting(&mut script).len(), 2);
}

#[test]
fn a_helper_that_hangs_holds_the_order_up_for_two_seconds() {
    let (mut script, server, helpers) = together(shared());
    send(&mut script, server, 5);
    send(&mut script, helpers[0], 6);
    pass(&mut script, 2 * SECOND - 1);
    assert!(!script.sockets.channel(helpers[1]).closing);
    pass(&mut script, 1);
    assert!(script.sockets.channel(helpers[1]).closing);
    let alone = goes_on_alone(&mut script, 4);
    assert_ne!(alone, helpers[1], "whoever hangs is chosen last");
}

/// A batch that helper sends in parts, one in a second, while something is ahead.
fn send_slowly(parts: usize) -> (Script, ChannelId) {
    let (mut script, server, helpers) = together(shared());
    send(&mut script, server, 5);
    let large = batch(4, TOPIC, &[&[1; 1_000_000]]);
    for part in large.chunks(large.len().div_ceil(parts)) {
        script.feed(helpers[0], part);
        pass(&mut script, SECOND);
        assert_eq!(script.failure(), None);
    }
    (script, helpers[0])
}

#[test]
fn a_helper_that_is_slow_goes_on_if_it_is_fast_enough() {
    let (mut script, helper) = send_slowly(3);
    assert_eq!(positions(&mut script), [4, 5]);
    assert!(!script.sockets.channel(helper).closing);
    let (mut script, helper) = send_slowly(10);
    assert_eq!(positions(&mut script), [] as [u64; 0]);
    assert!(script.sockets.channel(helper).closing);
    goes_on_alone(&mut script, 4);
}

#[test]
fn a_subscriber_that_stood_still_blames_nobody() {
    let (mut script, server, helpers) = together(shared());
    send(&mut script, server, 5);
    script.tick_at(script.now.0 + 5 * SECOND);
    assert!(!script.sockets.channel(helpers[0]).closing);
    send(&mut script, helpers[0], 4);
    assert_eq!(positions(&mut script), [4, 5]);
}

/// It may have something to send, which nobody knows of.
#[test]
fn a_silent_helper_is_left_after_four_seconds() {
    let (mut script, server, _) = together(shared());
    for position in 4..8 {
        assert!(!script.sockets.channel(server).closing);
        send(&mut script, server, position);
        assert_eq!(positions(&mut script), [position]);
        pass(&mut script, SECOND);
    }
    goes_on_alone(&mut script, 8);
}

#[test]
fn when_the_server_ends_before_they_help_one_of_them_serves() {
    for answered in [false, true] {
        let (mut script, server, helpers) = large(shared());
        connect(&mut script, helpers[0]);
        if answered {
            answer(&mut script, helpers[0], BEFORE);
        }
        script.lose(server);
        let order = Some(Order::TotalPerPublisher);
        script.tell_cluster(&cluster_with(DATA, Some(server.0), order));
        let alone = goes_on_alone(&mut script, BEFORE);
        assert_ne!(alone, server);
    }
}

#[test]
fn what_helpers_brought_is_not_taken_for_evicted() {
    let (mut script, server, helpers) = large(shared());
    connect(&mut script, helpers[0]);
    answer(&mut script, helpers[0], BEFORE);
    for position in BEFORE..10 {
        send(&mut script, helpers[0], position);
        assert_eq!(positions(&mut script), [position]);
    }
    script.tell(
        server,
        &refusal(ErrorCode::OffsetOutOfRange, false, Some(8)),
    );
    assert_eq!(script.failure(), None);
    script.lose(server);
    goes_on_alone(&mut script, 10);
}

#[test]
fn nothing_is_due_after_the_end() {
    let until_end = SubscriberConfig {
        until_end: true,
        ..shared()
    };
    let ways: [fn(&mut Script, ChannelId); 2] = [
        |script, helper| send(script, helper, 98),
        |script, _| script.core.stop(script.now),
    ];
    for end in ways {
        let (mut script, server, helpers) = together(until_end.clone());
        for position in 4..98 {
            send(&mut script, server, position);
            assert_eq!(positions(&mut script), [position]);
        }
        send(&mut script, server, 99);
        end(&mut script, helpers[0]);
        for channel in [server, helpers[0], helpers[1]] {
            script.lose(channel);
        }
        pass(&mut script, 60 * SECOND);
        let due = script.core.next_tick();
        assert!(due.is_none_or(|at| at > script.now), "{due:?}");
    }
}

#[test]
fn when_all_are_gone_the_subscription_ends_in_time() {
    let (mut script, server, helpers) = together(shared());
    script.lose(helpers[0]);
    pass(&mut script, SECOND / 4);
    let order = Some(Order::TotalPerPublisher);
    script.tell_cluster(&cluster_of(DATA, |_| BrokerState::Gone, order));
    script.lose(server);
    script.lose(helpers[1]);
    for channel in connecting(&mut script) {
        script.lose(channel);
    }
    assert_eq!(connecting(&mut script), []);
    let wait = script
        .core
        .waiting_for(script.now, script.now)
        .expect("it waits");
    assert!(
        wait.remaining
            .is_some_and(|it| it <= Duration::from_secs(30))
    );
    pass(&mut script, 30 * SECOND);
    let told = script.failure();
    assert!(
        matches!(told, Some(ReadError::AllBrokersLost { .. })),
        "{told:?}"
    );
}

#[test]
fn help_that_ends_in_trouble_is_asked_for_more_and_more_rarely() {
    let (mut script, _, mut helpers) = together(shared());
    let mut next = BEFORE;
    for pause in [1, 2, 4, 8] {
        script.lose(helpers[1]);
        let alone = goes_on_alone(&mut script, next);
        send(&mut script, alone, next + 3);
        assert_eq!(positions(&mut script), [next + 3]);
        next += 4;
        pass(&mut script, pause * SECOND - 1);
        assert_eq!(connecting(&mut script), [], "{pause} s are not over");
        pass(&mut script, 1);
        helpers = connecting(&mut script).try_into().expect("both others");
        for helper in helpers {
            connect(&mut script, helper);
            answer(&mut script, helper, next);
            asked(&mut script, alone).expect("it leaves out what they send");
            answer(&mut script, alone, next);
        }
    }
}

#[test]
fn brokers_that_were_not_needed_are_not_said_to_be_away() {
    let (mut script, _, helpers) = together(shared());
    script.lose(helpers[0]);
    end_closing(&mut script);
    let wait = script
        .core
        .waiting_for(script.now, script.now)
        .expect("it waits");
    let told = format!("{wait:?}");
    assert!(!told.contains("goes on alone"), "{told}");
}

#[test]
fn a_consumer_that_hangs_ends_nothing() {
    let (mut script, server, helpers) = together(shared());
    for (channel, position) in [(helpers[0], 4), (helpers[0], 5), (server, 7), (server, 8)] {
        send(&mut script, channel, position);
    }
    // Position 6 is that helper's, too, which has no buffer for it.
    let rest = batch(6, TOPIC, &[b"large"]);
    assert!(!script.feed(helpers[0], &rest).is_empty());
    for second in 1..60 {
        script.tick_at(second * SECOND);
    }
    assert!(!script.sockets.channel(helpers[0]).closing);
    assert_eq!(positions(&mut script), [4, 5]);
    assert!(script.feed(helpers[0], &rest).is_empty());
    assert_eq!(positions(&mut script), [6, 7, 8]);
}

#[test]
fn nobody_helps_with_small_batches() {
    let config = SubscriberConfig {
        shared_batch_bytes: Some(2000),
        ..config()
    };
    let mut script = Script::open_with(config, &ordered());
    let server = connecting(&mut script)[0];
    connect(&mut script, server);
    answer(&mut script, server, 0);
    let mut position = 0;
    let mut send = |script: &mut Script, bytes: usize| {
        let frame = batch(position, TOPIC, &[&vec![1; bytes]]);
        assert!(script.feed(server, &frame).is_empty());
        assert_eq!(positions(script), [position]);
        position += 1;
    };
    for _ in 0..10 {
        (0..3).for_each(|_| send(&mut script, 5000));
        send(&mut script, 100);
        assert_eq!(connecting(&mut script), []);
    }
    (0..4).for_each(|_| send(&mut script, 5000));
    let helper = connecting(&mut script)[0];
    assert_eq!(connect(&mut script, helper).0, StartAt::Offset(44));
    answer(&mut script, helper, 44);
    for _ in 0..100 {
        send(&mut script, 100);
    }
    script.tick_at(script.now.0 + 3 * SECOND);
    send(&mut script, 100);
    assert!(
        !script.sockets.channel(helper).closing,
        "large ones may come"
    );
    script.tick_at(script.now.0 + SECOND - 1);
    send(&mut script, 5000);
    send(&mut script, 100);
    assert!(!script.sockets.channel(helper).closing);
}

#[test]
fn the_end_is_where_all_of_it_is_there() {
    let until_end = SubscriberConfig {
        until_end: true,
        ..shared()
    };
    let (mut script, server, helpers) = together(until_end);
    let ended = |script: &Script| script.events.iter().any(|it| matches!(it, Event::End));
    for position in 4..98 {
        send(&mut script, server, position);
        assert_eq!(positions(&mut script), [position]);
    }
    send(&mut script, server, 99);
    assert!(!ended(&script), "98 is missing");
    send(&mut script, helpers[0], 98);
    assert!(ended(&script));
    assert_eq!(positions(&mut script), [98, 99]);
}

#[test]
fn damage_is_reported_by_one_that_serves_alone() {
    let (mut script, _, helpers) = together(shared());
    let mut damaged = batch(4, TOPIC, &[b"large"]);
    let last = damaged.len() - 60;
    damaged[last] ^= 1;
    script.feed(helpers[0], &damaged);
    assert_eq!(script.failure(), None);
    let mut alone = goes_on_alone(&mut script, 4);
    damaged = batch(7, TOPIC, &[b"large"]);
    damaged[last] ^= 1;
    for _ in 0..20 {
        script.feed(alone, &damaged);
        if script.failure().is_some() {
            break;
        }
        script.lose(alone);
        script.tick_at(script.now.0 + 2 * SECOND);
        for channel in connecting(&mut script) {
            match connect(&mut script, channel) {
                (StartAt::Offset(7), Share::All) => alone = channel,
                // It is to help, and its time is over before it answers.
                _ => script.lose(channel),
            }
        }
        answer(&mut script, alone, 7);
    }
    let told = script.failure();
    assert!(
        matches!(told, Some(ReadError::Corrupt { offset: 7, .. })),
        "{told:?}"
    );
}
