//! Topics that were deleted and created again under their names.

use super::*;
use crate::testing::topic_description;

#[test]
fn what_one_broker_calls_the_topic_is_asked_of_all() {
    let mut script = Script::open(config(), 2);
    assert_eq!(script.ask(A, StartAt::Earliest), 0, "any of that name");
    script.tell(A, &subscribed(Order::None, 0, 0));
    assert_eq!(script.ask(B, StartAt::Earliest), TOPIC);
    let anew = Subscribed {
        topic_id: TOPIC + 1,
        ..Subscribed::default()
    };
    script.tell(B, &Control::Subscribed(anew));
    let failure = script.failure();
    assert!(
        matches!(
            failure,
            Some(ReadError::Client(ClientError::TopicReplaced { .. }))
        ),
        "{failure:?}"
    );
}

#[test]
fn a_topic_made_anew_ends_the_subscriber_after_a_grace() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.lose(A);
    let mut now = 0;
    while script.failure().is_none() {
        assert!(now < 20 * SECOND, "it goes on for ever");
        while script.sockets.channel(A).connecting.is_none() {
            now += SECOND / 10;
            script.tick_at(now);
        }
        assert_eq!(script.ask(A, StartAt::Offset(0)), TOPIC);
        script.tell(A, &refusal(ErrorCode::TopicReplaced, false, None));
        script.lose(A);
    }
    assert!(now > 4 * SECOND, "it had no time");
    let failure = script.failure();
    assert!(
        matches!(
            failure,
            Some(ReadError::Client(ClientError::TopicReplaced { .. }))
        ),
        "{failure:?}"
    );
}

/// The head says which topic has that name.
fn head_knows(script: &mut Script, id: u32) {
    script.connect(ChannelId::CONTROL);
    script.feed(ChannelId::CONTROL, &welcome(0));
    script.tell(ChannelId::CONTROL, &cluster(1));
    script.tell(ChannelId::CONTROL, &topic_description(id));
    script.lose(ChannelId::CONTROL);
}

fn is_asked(script: &mut Script, channel: ChannelId) -> bool {
    script.sockets.channel(channel).connecting.is_some()
}

/// The broker knows another topic of that name.
fn refuses(script: &mut Script) {
    assert_eq!(script.ask(A, StartAt::Offset(0)), TOPIC);
    script.tell(A, &refusal(ErrorCode::TopicReplaced, false, None));
    script.lose(A);
}

#[test]
fn a_broker_that_is_slow_to_hear_of_the_topic_is_waited_for_as_long_as_the_head_knows_it() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.lose(A);
    let (mut now, mut refused) = (0, 0);
    // Later it counts as lost, as any broker that does not serve.
    while now < 25 * SECOND {
        now += SECOND / 10;
        script.tick_at(now);
        while is_asked(&mut script, A) || is_asked(&mut script, ChannelId::CONTROL) {
            if is_asked(&mut script, ChannelId::CONTROL) {
                head_knows(&mut script, TOPIC);
            } else {
                refuses(&mut script);
                refused += 1;
            }
            assert!(refused < 300, "it asks without a pause");
        }
        assert!(script.failure().is_none(), "{:?}", script.failure());
    }
    assert!(refused > 4, "it asked {refused} times");
}

#[test]
fn the_head_that_knows_another_topic_ends_the_subscriber_at_once() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.lose(A);
    while !is_asked(&mut script, A) {
        let next = script.now.0 + SECOND / 10;
        script.tick_at(next);
    }
    refuses(&mut script);
    assert!(script.failure().is_none());
    head_knows(&mut script, TOPIC + 1);
    let failure = script.failure();
    assert!(
        matches!(
            failure,
            Some(ReadError::Client(ClientError::TopicReplaced { .. }))
        ),
        "{failure:?}"
    );
}
