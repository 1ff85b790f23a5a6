//! Topics that were deleted and created again under their names.

use super::*;

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
