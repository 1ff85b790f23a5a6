//! Clusters that lose their memory: the session there is what the disks know of it.

use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::control::{OpenPublisher, PublisherOpened, SessionHeld, SessionOpened};
use embar_wire::topic::Order;

use super::ordered::{
    FIRST_EPOCH, SLOT, announced, answer, asks_for_an_epoch, at, failure, granted, open, requests,
    run, sending, two_out,
};
use super::*;
use crate::testing::REGION;

/// As the disks know it where nothing else is said: in an older epoch, at another place.
fn restored(mark: u64) -> PublisherOpened {
    PublisherOpened {
        session: SLOT + 1,
        session_epoch: 5,
        first_epoch: 3,
        ..announced(5, mark, 64)
    }
}

/// All connections end, and the brokers are of another region from now on.
fn lose_memory(script: &mut Script) {
    script.lose(A);
    script.lose(B);
    script.region = REGION + 1;
    script.tick_at(script.now.0 + SECOND);
}

/// What the channel announces in the new region, where its broker answers this.
fn announce(script: &mut Script, channel: ChannelId, opened: PublisherOpened) -> OpenPublisher {
    script.announce(channel, &Control::PublisherOpened(opened))
}

/// Three batches are submitted, and went out as numbers 100 to 102. Returns the channel that has the first and the last
/// of them, and the other one.
fn three_out(script: &mut Script) -> (ChannelId, ChannelId) {
    let (first, second) = two_out(script);
    script.submit(2);
    let (both, one) = match sending(script, first) {
        Some(_) => (first, second),
        None => (second, first),
    };
    assert_eq!(sending(script, both), Some((2, 7, 102)));
    script.sent(both);
    (both, one)
}

#[test]
fn a_publisher_of_which_the_disks_have_nothing_publishes_all_of_it_again() {
    let mut script = Script::open_with(config(), &answer(7, 0, 64));
    script.submit(0);
    script.submit(1);
    lose_memory(&mut script);
    let asked = announce(&mut script, A, restored(0));
    assert_eq!((asked.resumes, asked.takes_over), (false, 0));
    assert_eq!(run(&script, A), [(0, 5, 0), (1, 5, 1)]);
    let asked = announce(&mut script, B, restored(0));
    assert!(asked.resumes, "it is answered in this region");
    assert_eq!(sending(&script, B), None, "once");
    script.sent(A);
    script.ack(A, 0, &[40, 41]);
    assert_eq!(script.outcomes(), [(0, at(40)), (1, at(41))]);
}

#[test]
fn a_restored_session_goes_on_behind_what_the_disks_have() {
    let mut script = open(config());
    three_out(&mut script);
    lose_memory(&mut script);
    announce(&mut script, A, restored(102));
    let somewhere = |batch| (batch, Outcome::StoredSomewhere);
    assert_eq!(script.outcomes(), [somewhere(0), somewhere(1)]);
    assert_eq!(run(&script, A), [(2, 5, 102)]);
    script.sent(A);
    // Epochs go on from the one there.
    script.refuse(A, 0, ErrorCode::Fenced, &[102]);
    assert_eq!(requests(&mut script, A), asks_for_an_epoch(5));
    let next = SessionOpened {
        session: SLOT + 1,
        session_epoch: 6,
        mark: 102,
        first_epoch: 3,
    };
    script.tell(A, &Control::SessionOpened(next));
    assert_eq!(run(&script, A), [(2, 6, 102)]);
}

#[test]
fn a_session_that_an_earlier_instance_has_is_taken_over_again() {
    let held = Control::SessionHeld(SessionHeld { session_epoch: 5 });
    // Some of what that instance stored is lost, too. It was not acknowledged to this one.
    for mark in [100, 96] {
        let mut script = open(config());
        two_out(&mut script);
        lose_memory(&mut script);
        let asked = script.announce(A, &held);
        assert!(!asked.resumes);
        let again = requests(&mut script, A);
        let [Control::OpenPublisher(again)] = &again[..] else {
            panic!("{again:?}");
        };
        assert_eq!((again.resumes, again.takes_over), (false, 5));
        let taken = PublisherOpened {
            session_epoch: 6,
            ..restored(mark)
        };
        script.tell(A, &Control::PublisherOpened(taken));
        assert_eq!(run(&script, A), [(0, 6, mark), (1, 6, mark + 1)]);
    }
}

#[test]
fn numbers_that_another_instance_used_are_not_taken_for_stored() {
    let mut script = open(config());
    two_out(&mut script);
    lose_memory(&mut script);
    let held = Control::SessionHeld(SessionHeld { session_epoch: 5 });
    script.announce(A, &held);
    script.tell(A, &Control::PublisherOpened(restored(101)));
    let failure = failure(&script);
    assert!(matches!(failure, Some(ClientError::SessionTaken { .. })));
}

#[test]
fn a_later_instance_keeps_the_session() {
    // In the epoch that this one has there is another only if that one took it over there.
    for session_epoch in [7, 8] {
        let mut script = open(config());
        lose_memory(&mut script);
        let held = Control::SessionHeld(SessionHeld { session_epoch });
        script.announce(A, &held);
        let failure = failure(&script);
        assert!(matches!(failure, Some(ClientError::SessionTaken { .. })));
    }
}

#[test]
fn a_publisher_that_has_published_nothing_goes_on_where_another_one_was() {
    let mut script = open(config());
    lose_memory(&mut script);
    let held = Control::SessionHeld(SessionHeld { session_epoch: 5 });
    script.announce(A, &held);
    script.tell(A, &Control::PublisherOpened(restored(120)));
    script.submit(0);
    assert_eq!(run(&script, A), [(0, 5, 120)]);
}

#[test]
fn a_smaller_window_than_before_changes_nothing_for_what_was_numbered() {
    let mut script = open(config());
    three_out(&mut script);
    lose_memory(&mut script);
    let opened = PublisherOpened {
        window: 1,
        ..restored(100)
    };
    announce(&mut script, A, opened);
    assert_eq!(run(&script, A), [(0, 5, 100), (1, 5, 101), (2, 5, 102)]);
}

#[test]
fn acknowledged_batches_that_are_lost_end_the_publisher() {
    // Batches 0 and 2 were acknowledged.
    for (mark, lost) in [(100, 2), (101, 1), (102, 1)] {
        let mut script = open(config());
        let (both, _) = three_out(&mut script);
        script.ack(both, 0, &[40, 42]);
        script.outcomes();
        lose_memory(&mut script);
        announce(&mut script, A, restored(mark));
        let told = failure(&script);
        assert!(
            matches!(told, Some(ClientError::AcknowledgedLost { batches, .. }) if *batches == lost),
            "{mark}: {told:?}"
        );
        let in_doubt = Outcome::Failed(Failure::InDoubt);
        assert_eq!(script.outcomes(), [(1, in_doubt)]);
    }
}

#[test]
fn a_mark_above_all_numbers_is_wrong() {
    let mut script = open(config());
    two_out(&mut script);
    lose_memory(&mut script);
    announce(&mut script, A, restored(103));
    let failure = failure(&script);
    assert!(matches!(failure, Some(ClientError::Protocol { .. })));
}

#[test]
fn a_channel_in_the_old_region_is_left_before_anything_goes_on() {
    let mut script = open(config());
    two_out(&mut script);
    script.lose(A);
    script.sent(B);
    script.region = REGION + 1;
    script.tick_at(SECOND);
    announce(&mut script, A, restored(100));
    script.submit(2);
    assert!(script.sockets.channel(B).closing);
    for channel in [A, B] {
        assert_eq!(sending(&script, channel), None, "B has numbers");
    }
    script.lose(B);
    assert_eq!(run(&script, A), [(0, 5, 100), (1, 5, 101)]);
    assert_eq!(failure(&script), None);
}

#[test]
fn an_answer_from_the_old_region_that_comes_late_moves_nothing() {
    let mut script = open(config());
    script.lose(A);
    script.lose(B);
    script.tick_at(SECOND);
    script.connect(B);
    script.feed(B, &welcome(B.0));
    script.region = REGION + 1;
    announce(&mut script, A, restored(100));
    script.tell(B, &answer(7, 100, 64));
    assert!(script.sockets.channel(B).closing);
    script.submit(0);
    assert_eq!(sending(&script, A), Some((0, 5, 100)));
    script.sent(A);
    script.lose(B);
    script.tick_at(2 * SECOND);
    assert!(announce(&mut script, B, restored(100)).resumes);
    assert_eq!(failure(&script), None);
}

/// A publisher of order 2 at acks 2, of which numbers 100 to 102 went out, and all connections have ended. Those of the
/// first channel were acknowledged: 100 and 102, or 101 if `ahead` says so.
fn total_out(ahead: bool) -> Script {
    let config = PublisherConfig {
        acks: Acks::Durable,
        ..config()
    };
    let opened = Control::PublisherOpened(total(announced(7, 100, 64)));
    let mut script = Script::open_with(config, &opened);
    let (both, one) = three_out(&mut script);
    match ahead {
        true => script.ack(one, 0, &[41]),
        false => script.ack(both, 0, &[40, 42]),
    }
    script.outcomes();
    lose_memory(&mut script);
    script
}

fn total(opened: PublisherOpened) -> PublisherOpened {
    PublisherOpened {
        order: Order::Total,
        ..opened
    }
}

#[test]
fn out_of_sequence_batches_keep_their_numbers() {
    let mut script = total_out(true);
    announce(&mut script, A, total(restored(100)));
    assert_eq!(run(&script, A), [(0, 5, 100), (2, 5, 102)]);
    assert_eq!(
        script.sending(A),
        Some((0, false)),
        "a number is stored once"
    );
    script.sent(A);
    // One of them was stored ahead of its turn, and it is not known where.
    script.ack(A, 0, &[50, POSITION_UNKNOWN]);
    let stored = [(0, at(50)), (2, Outcome::StoredSomewhere)];
    assert_eq!(script.outcomes(), stored);
    script.submit(3);
    assert_eq!(run(&script, A), [(3, 5, 103)]);
    assert_eq!(failure(&script), None);
}

#[test]
fn out_of_sequence_what_is_below_the_mark_is_stored() {
    let mut script = total_out(false);
    announce(&mut script, A, total(restored(103)));
    assert_eq!(script.outcomes(), [(1, Outcome::StoredSomewhere)]);
    script.submit(3);
    assert_eq!(run(&script, A), [(3, 5, 103)]);
}

#[test]
fn out_of_sequence_acknowledged_batches_that_are_lost_end_the_publisher() {
    // The mark is not stored, and what comes before the lowest open number is below the mark.
    for (ahead, mark) in [(true, 101), (false, 100)] {
        let mut script = total_out(ahead);
        announce(&mut script, A, total(restored(mark)));
        let told = failure(&script);
        assert!(
            matches!(told, Some(ClientError::AcknowledgedLost { batches: 1, .. })),
            "{mark}: {told:?}"
        );
    }
    // One ahead of the mark: the sequencer waits for it, and takes nothing that is too far ahead of it.
    let mut script = total_out(true);
    announce(&mut script, A, total(restored(100)));
    script.sent(A);
    script.ack(A, 0, &[50]);
    script.refuse(A, 1, ErrorCode::BeyondWindow, &[102]);
    script.tick_at(script.now.0 + SECOND);
    assert_eq!(
        failure(&script),
        None,
        "it may have been sent before the one that was stored"
    );
    assert_eq!(run(&script, A), [(2, 5, 102)]);
    script.sent(A);
    script.refuse(A, 2, ErrorCode::BeyondWindow, &[102]);
    let told = failure(&script);
    assert!(
        matches!(told, Some(ClientError::AcknowledgedLost { .. })),
        "{told:?}"
    );
}

#[test]
fn out_of_sequence_what_another_instance_stored_ahead_is_not_taken_for_its_own() {
    // It is known there in an epoch before its own, so nothing of what was acknowledged to it is.
    let mut script = total_out(true);
    let earlier = PublisherOpened {
        session: SLOT,
        first_epoch: FIRST_EPOCH,
        ..total(restored(100))
    };
    announce(&mut script, A, earlier);
    let told = failure(&script);
    assert!(
        matches!(told, Some(ClientError::AcknowledgedLost { batches: 1, .. })),
        "{told:?}"
    );
}

#[test]
fn out_of_sequence_the_next_epoch_begins_where_numbers_cannot_stay() {
    // The disks count less than was there when this publisher began; or they know it in an epoch before its own, in which all is
    // another instance's.
    for mark in [98, 100] {
        cannot_stay(mark);
    }
}

fn cannot_stay(mark: u64) {
    let config = PublisherConfig {
        acks: Acks::Durable,
        ..config()
    };
    let opened = Control::PublisherOpened(total(announced(7, 100, 64)));
    let mut script = Script::open_with(config, &opened);
    two_out(&mut script);
    lose_memory(&mut script);
    let same_place = PublisherOpened {
        session: SLOT,
        first_epoch: FIRST_EPOCH,
        ..total(restored(mark))
    };
    announce(&mut script, A, same_place);
    assert_eq!(requests(&mut script, A), asks_for_an_epoch(5));
    assert_eq!(script.sending(A), None, "its number may be used");
    script.tell(A, &granted(6, mark));
    assert_eq!(script.sending(A), Some((0, true)));
    let header = script.header(A).expect("it is sent");
    assert_eq!((header.epoch(), header.sequence()), (6, mark));
}
