//! Topics with one order over all brokers: what is missing goes first, and a session that was another's is over.

use super::ordered::{answer, failure, granted, open, requests, run, sending, two_out};
use super::*;

/// Batches 0 to 3 with the numbers from 100 on, all of them sent; returns the channel of 0 and 2, and that of 1 and 3.
fn four_out(script: &mut Script) -> (ChannelId, ChannelId) {
    let (first, second) = two_out(script);
    for number in 2..4 {
        script.submit(number);
        let channel = [A, B].into_iter().find(|it| script.sending(*it).is_some());
        script.sent(channel.expect("there is room for two each"));
    }
    (first, second)
}

#[test]
fn what_was_lost_is_sent_again_at_once_where_nothing_else_finds_room() {
    let mut script = open(config());
    let (lost, full) = four_out(&mut script);
    script.submit(4);
    assert_eq!(sending(&script, full), None, "two are on their way already");
    // Nothing that the other one carries is stored before what was lost, so no acknowledgement makes room there.
    script.lose(lost);
    assert_eq!(run(&script, full), [(0, 7, 100), (2, 7, 102)]);
    script.sent(full);
    assert_eq!(sending(&script, full), None, "a new one waits for room");
    script.ack(full, 0, &[1, 3, 0, 2]);
    assert_eq!(sending(&script, full), Some((4, 7, 104)));
}

#[test]
fn numbers_that_another_publisher_may_have_used_are_not_stored() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.refuse(second, 0, ErrorCode::Fenced, &[100]);
    let asked = [A, B]
        .map(|channel| requests(&mut script, channel))
        .concat();
    assert_eq!(asked.len(), 1);
    // In epoch 8 the other one stored two batches of its own.
    script.tell(A, &granted(9, 102));
    script.refuse(first, 0, ErrorCode::Fenced, &[102]);
    let taken = matches!(
        failure(&script),
        Some(ClientError::SessionTaken { producer: 7, .. })
    );
    assert!(taken, "{:?}", script.events);
    let in_doubt = Outcome::Failed(Failure::InDoubt);
    let mut outcomes = script.outcomes();
    script.lose(A);
    script.lose(B);
    outcomes.extend(script.outcomes());
    outcomes.sort_by_key(|(batch, _)| *batch);
    assert_eq!(outcomes, [(0, in_doubt), (1, in_doubt)]);
}

#[test]
fn a_session_that_another_publisher_had_goes_on_if_nobody_used_it() {
    let mut script = open(config());
    script.lose(B);
    script.tick_at(SECOND);
    script.announce(B, &answer(9, 100, 64));
    let asked = [A, B]
        .map(|channel| requests(&mut script, channel))
        .concat();
    assert_eq!(asked.len(), 1);
    script.tell(A, &granted(9, 100));
    assert_eq!(failure(&script), None);
    script.submit(0);
    let sent = [A, B].map(|channel| sending(&script, channel));
    assert!(sent.contains(&Some((0, 9, 100))), "{sent:?}");
}
