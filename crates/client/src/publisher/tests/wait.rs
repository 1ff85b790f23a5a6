//! What the core says that it waits for.

use super::ordered::{self, two_out};
use super::*;
use crate::wait::{Wait, WaitReason};

fn at(script: &Script, now: u64) -> Option<Wait> {
    script.core.waiting_for(Now(now))
}

fn whom(script: &Script, now: u64) -> Vec<(Option<u32>, WaitReason)> {
    let waits = at(script, now).expect("it waits");
    let parties = waits.parties.into_iter();
    parties.map(|party| (party.broker, party.reason)).collect()
}

fn lost() -> WaitReason {
    WaitReason::NoAnswer("lost".into())
}

#[test]
fn opening_waits_for_the_directory_and_then_for_brokers() {
    let mut script = Script::new(config());
    let waits = at(&script, SECOND).expect("it is being opened");
    assert_eq!(waits.elapsed, Duration::from_secs(1));
    assert_eq!(waits.remaining, Some(Duration::from_secs(4)));
    assert_eq!(
        waits.to_string(),
        "a broker at 127.0.0.1:9400 (it is being connected to)"
    );
    script.lose(ChannelId::CONTROL);
    assert_eq!(whom(&script, SECOND), [(None, lost())]);
    script.tick_at(SECOND);
    assert_eq!(
        whom(&script, SECOND),
        [(None, lost())],
        "trying again is nothing new"
    );
    script.tell_cluster(2);
    script.open_lane(A);
    assert_eq!(whom(&script, SECOND), [(Some(2), WaitReason::Connecting)]);
    script.connect(B);
    script.feed(B, &welcome(2));
    assert_eq!(whom(&script, SECOND), [(Some(2), WaitReason::Answer)]);
    script.tell(B, &script::opened());
    assert_eq!(at(&script, SECOND), None, "nothing is published");
}

#[test]
fn a_wait_begins_when_a_batch_is_sealed_or_another_was_stored() {
    let mut script = Script::open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    let broker = Some(channel.0);
    assert_eq!(whom(&script, SECOND), [(broker, WaitReason::NotReading)]);
    script.sent(channel);
    assert_eq!(
        whom(&script, SECOND),
        [(broker, WaitReason::Acknowledgement)]
    );
    let waits = at(&script, 3 * SECOND).expect("it waits");
    assert_eq!(waits.elapsed, Duration::from_secs(3));
    assert_eq!(waits.remaining, Some(Duration::from_secs(27)));
    script.submit(1);
    let other = if channel == A { B } else { A };
    script.sent(other);
    script.now = Now(2 * SECOND);
    script.ack(other, 0, &[5]);
    let waits = at(&script, 3 * SECOND).expect("it waits");
    assert_eq!(waits.elapsed, Duration::from_secs(1));
    script.ack(channel, 0, &[6]);
    assert_eq!(at(&script, 9 * SECOND), None);
}

#[test]
fn without_brokers_they_are_waited_for_and_each_is_told_once() {
    let mut script = Script::open(config());
    script.lose(A);
    script.lose(B);
    assert_eq!(at(&script, SECOND), None, "there is nothing to send");
    script.submit(0);
    let all = [(Some(1), lost()), (Some(2), lost())];
    assert_eq!(whom(&script, SECOND), all);
    script.tick_at(SECOND);
    assert_eq!(whom(&script, SECOND), all, "trying again is nothing new");
}

#[test]
fn a_full_log_is_told_until_there_is_room_also_across_connections() {
    let mut script = Script::open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.sent(channel);
    script.lose(if channel == A { B } else { A });
    let full = refusal(ErrorCode::Backpressure, true, None);
    script.tell(channel, &full);
    script.lose(channel);
    let reason = |script: &Script| {
        let whom = whom(script, script.now.0);
        whom.into_iter().find(|it| it.0 == Some(channel.0))
    };
    assert_eq!(
        reason(&script),
        Some((Some(channel.0), WaitReason::LogFull))
    );
    script.tick_at(SECOND);
    script.open_lane(channel);
    script.sent(channel);
    assert_eq!(
        reason(&script),
        Some((Some(channel.0), WaitReason::LogFull))
    );
    script.ack(channel, 0, &[5]);
    script.submit(1);
    script.sent(channel);
    let acknowledgement = Some((Some(channel.0), WaitReason::Acknowledgement));
    assert_eq!(reason(&script), acknowledgement);
}

#[test]
fn a_batch_refused_for_want_of_room_waits_for_it_without_limit() {
    let mut script = ordered::open(config());
    script.tell(A, &with_sequencer(2));
    let (_, second) = two_out(&mut script);
    script.refuse(second, 0, ErrorCode::HeldFull, &[0]);
    let waits = at(&script, SECOND).expect("it waits");
    assert_eq!(waits.remaining, None);
    assert!(
        waits
            .parties
            .iter()
            .any(|it| it.broker == Some(second.0) && it.reason == WaitReason::LogFull),
        "{waits}"
    );
}

#[test]
fn a_cluster_without_a_sequencer_is_told_while_its_brokers_answer() {
    let mut script = ordered::open(config());
    two_out(&mut script);
    assert_eq!(whom(&script, SECOND), [(None, WaitReason::NoSequencer)]);
    script.lose(A);
    script.lose(B);
    let all = [(Some(1), lost()), (Some(2), lost())];
    assert_eq!(whom(&script, SECOND), all);
}

#[test]
fn a_stored_batch_shows_that_the_sequencer_works() {
    let mut script = ordered::open(config());
    let (first, second) = two_out(&mut script);
    assert_eq!(whom(&script, SECOND), [(None, WaitReason::NoSequencer)]);
    script.now = Now(SECOND);
    script.ack(first, 0, &[0]);
    let acknowledgement = [(Some(second.0), WaitReason::Acknowledgement)];
    assert_eq!(whom(&script, 2 * SECOND), acknowledgement);
    script.now = Now(2 * SECOND);
    script.tell(second, &cluster(2));
    assert_eq!(whom(&script, 3 * SECOND), [(None, WaitReason::NoSequencer)]);
}

fn with_sequencer(data: u32) -> Control {
    let Control::ClusterMetadata(mut cluster) = cluster(data) else {
        panic!("another message");
    };
    cluster.sequencer = Some(0);
    Control::ClusterMetadata(cluster)
}
