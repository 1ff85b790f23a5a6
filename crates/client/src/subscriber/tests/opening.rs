//! Brokers that do not answer while the subscription opens, although the cluster says that they are ready.

use super::*;

/// Broker 1 has two messages, broker 2 does not answer for the two seconds that opening may take.
fn with_a_silent_broker(config: SubscriberConfig) -> Script {
    let mut script = Script::open(
        SubscriberConfig {
            open_timeout: Duration::from_secs(2),
            ..config
        },
        2,
    );
    script.subscribe(A, StartAt::Earliest, 0, 2);
    script.connect(B);
    script.feed(A, &batch(0, TOPIC, &[b"a", b"b"]));
    script.tick_at(2 * SECOND - 1);
    assert!(!is_opened(&script));
    script.tick_at(2 * SECOND);
    assert!(is_opened(&script));
    assert_eq!(script.away(), [2], "it is told that something is missing");
    script
}

fn is_opened(script: &Script) -> bool {
    let mut events = script.events.iter();
    events.any(|event| matches!(event, Event::Opened))
}

#[test]
fn a_broker_that_answers_late_is_read_from_the_start_asked_for() {
    for until_end in [false, true] {
        let mut script = with_a_silent_broker(SubscriberConfig {
            until_end,
            ..config()
        });
        assert_eq!(script.taken(), [(0, 2, 0)]);
        script.feed(B, &welcome(2));
        script.tell(B, &subscribed(Order::None, 0, 1));
        script.feed(B, &batch(0, TOPIC, &[b"c"]));
        assert_eq!(script.taken(), [(0, 1, 0)]);
        assert_eq!(script.failure(), None);
        let ended = |event: &Event| matches!(event, Event::End);
        assert_eq!(script.events.iter().any(ended), until_end);
    }
}

#[test]
fn who_never_answers_is_lost_in_time() {
    let mut script = with_a_silent_broker(SubscriberConfig {
        until_end: true,
        ..config()
    });
    let mut now = 2 * SECOND;
    while now < 30 * SECOND {
        assert_eq!(script.failure(), None, "at {now}");
        now += SECOND;
        script.tick_at(now);
    }
    let lost = script.failure();
    assert!(
        matches!(lost, Some(ReadError::BrokerLost { broker: 2, .. })),
        "{lost:?}"
    );
}

#[test]
fn if_nobody_answers_those_who_were_asked_are_named() {
    let mut script = Script::open(config(), 2);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tick_at(2 * SECOND);
    script.tick_at(5 * SECOND);
    let Some(ReadError::Client(ClientError::Unreachable { addresses, .. })) = script.failure()
    else {
        panic!("{:?}", script.failure());
    };
    assert_eq!(
        addresses,
        "127.0.0.1:9401 (broker 1), 127.0.0.1:9402 (broker 2)"
    );
}
