//! What the core says that it waits for.

use super::*;
use crate::wait::{Wait, WaitReason};

fn at(script: &Script, now: u64) -> Option<Wait> {
    script.core.waiting_for(Now(0), Now(now))
}

fn whom(script: &Script, now: u64) -> Vec<(Option<u32>, WaitReason)> {
    let waits = at(script, now).expect("it waits");
    let parties = waits.parties.into_iter();
    parties.map(|party| (party.broker, party.reason)).collect()
}

#[test]
fn opening_waits_for_the_directory_and_then_for_brokers() {
    let mut script = Script::new(config());
    let waits = at(&script, SECOND).expect("it is being opened");
    assert_eq!(waits.remaining, Some(Duration::from_secs(4)));
    assert_eq!(
        waits.to_string(),
        "a broker at 127.0.0.1:9400 (it is being connected to)"
    );
    script.tell_cluster(&cluster(2));
    script.subscribe(A, StartAt::Earliest, 0, 0);
    assert_eq!(whom(&script, SECOND), [(Some(2), WaitReason::Connecting)]);
}

#[test]
fn at_the_end_messages_are_waited_for_and_a_lost_broker_for_a_time() {
    let mut script = Script::open(config(), 2);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.subscribe(B, StartAt::Earliest, 0, 0);
    let all = [
        (Some(1), WaitReason::Messages),
        (Some(2), WaitReason::Messages),
    ];
    assert_eq!(whom(&script, SECOND), all);
    let waits = at(&script, 7 * SECOND).expect("it waits");
    assert_eq!(
        (waits.elapsed, waits.remaining),
        (Duration::from_secs(7), None)
    );
    script.now = Now(2 * SECOND);
    script.lose(B);
    let lost = WaitReason::NoAnswer("lost".into());
    assert_eq!(whom(&script, 3 * SECOND), [(Some(2), lost)]);
    let waits = at(&script, 5 * SECOND).expect("it waits");
    assert_eq!(waits.elapsed, Duration::from_secs(3));
    assert_eq!(waits.remaining, Some(Duration::from_secs(27)));
}

#[test]
fn who_does_not_take_what_came_waits_for_nobody() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    for number in 0..2 {
        script.feed(A, &batch(number, TOPIC, &[b"a"]));
    }
    assert_eq!(at(&script, 9 * SECOND), None);
    script.taken();
    assert!(at(&script, 9 * SECOND).is_some());
}

#[test]
fn a_broker_that_cannot_get_at_what_comes_next_is_told() {
    let mut script = Script::open(config(), 1);
    script.subscribe(A, StartAt::Earliest, 0, 0);
    script.tell(A, &refusal(ErrorCode::OutOfReach, true, None));
    script.lose(A);
    script.tick_at(SECOND);
    script.subscribe(A, StartAt::Offset(0), 0, 0);
    let reason = WaitReason::Refused(ErrorCode::OutOfReach);
    assert_eq!(whom(&script, 2 * SECOND), [(Some(1), reason)]);
    script.feed(A, &batch(0, TOPIC, &[b"a"]));
    assert_eq!(whom(&script, 2 * SECOND), [(Some(1), WaitReason::Messages)]);
}
