//! Brokers that say that the topic was deleted and created again, and what the head says of that.

use super::*;
use crate::testing::topic_description;

/// The topic that [`Script::open`] publishes to.
const TOPIC: u32 = 9;

fn has_failed(script: &Script) -> bool {
    let replaced =
        |event: &Event| matches!(event, Event::Failed(ClientError::TopicReplaced { .. }));
    script.events.iter().any(replaced)
}

fn is_asked(script: &mut Script, channel: ChannelId) -> bool {
    script.sockets.channel(channel).connecting.is_some()
}

/// The broker knows another topic of that name.
fn refuses(script: &mut Script) {
    let refusal = refusal(ErrorCode::TopicReplaced, false, None);
    let asked = script.announce(A, &refusal);
    assert_eq!(asked.topic_id, TOPIC, "no other of that name");
    script.lose(A);
}

/// The head describes the cluster, and which topic has that name if it is asked.
fn head_knows(script: &mut Script, id: u32) {
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.sockets.taken(ChannelId::CONTROL);
    script.tell(ChannelId::CONTROL, &cluster(2));
    if script.sockets.taken(ChannelId::CONTROL) == [FrameId::DescribeTopic] {
        script.tell(ChannelId::CONTROL, &topic_description(id));
    }
    script.lose(ChannelId::CONTROL);
}

#[test]
fn a_topic_made_anew_ends_the_publisher_after_a_grace() {
    let mut script = Script::open(config());
    script.lose(A);
    let mut now = 0;
    while !has_failed(&script) {
        assert!(now < 20 * SECOND, "it goes on for ever");
        while !is_asked(&mut script, A) {
            now += SECOND / 10;
            script.tick_at(now);
        }
        refuses(&mut script);
    }
    assert!(now > 4 * SECOND, "it had no time");
    script.submit(0);
    let gone = Outcome::Failed(Failure::Refused(ErrorCode::UnknownTopic));
    assert_eq!(script.outcomes(), [(0, gone)]);
}

#[test]
fn a_broker_that_is_slow_to_hear_of_the_topic_is_waited_for_as_long_as_the_head_knows_it() {
    let mut script = Script::open(config());
    script.lose(A);
    let (mut now, mut refused) = (0, 0);
    while now < 60 * SECOND {
        now += SECOND / 10;
        script.tick_at(now);
        if is_asked(&mut script, ChannelId::CONTROL) {
            head_knows(&mut script, TOPIC);
        }
        while is_asked(&mut script, A) {
            refuses(&mut script);
            refused += 1;
            assert!(refused < 300, "it asks without a pause");
            if is_asked(&mut script, ChannelId::CONTROL) {
                head_knows(&mut script, TOPIC);
            }
        }
        assert!(!has_failed(&script), "after {now} ns");
    }
    assert!(refused > 10, "it asked {refused} times");
    // At last it heard of it.
    while !is_asked(&mut script, A) {
        now += SECOND / 10;
        script.tick_at(now);
    }
    script.open_lane(A);
    script.submit(0);
    script.submit(1);
    assert!(script.sending(A).is_some() && script.sending(B).is_some());
}

#[test]
fn the_head_that_knows_another_topic_ends_the_publisher_at_once() {
    let mut script = Script::open(config());
    script.lose(A);
    while !is_asked(&mut script, A) {
        let next = script.now.0 + SECOND / 10;
        script.tick_at(next);
    }
    refuses(&mut script);
    assert!(!has_failed(&script));
    head_knows(&mut script, TOPIC + 1);
    assert!(has_failed(&script));
}
