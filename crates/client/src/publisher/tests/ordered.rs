//! Topics with one order over all brokers: numbers, and what brokers answer to them.

use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::control::{OpenSession, PublisherOpened, Secret, SessionHeld, SessionOpened};
use embar_wire::topic::Order;

use super::super::receipt::Position;
use super::script::opened;
use super::*;

pub(super) const MILLISECOND: u64 = SECOND / 1_000;
pub(super) const SLOT: u32 = 4;
/// With which the session began there.
pub(super) const FIRST_EPOCH: u32 = 6;

pub(super) fn announced(epoch: u32, mark: u64, window: u32) -> PublisherOpened {
    let Control::PublisherOpened(opened) = opened() else {
        panic!("another answer");
    };
    PublisherOpened {
        order: Order::TotalPerPublisher,
        session: SLOT,
        session_epoch: epoch,
        first_epoch: FIRST_EPOCH,
        mark,
        window,
        ..opened
    }
}

pub(super) fn answer(epoch: u32, mark: u64, window: u32) -> Control {
    Control::PublisherOpened(announced(epoch, mark, window))
}

/// Epoch 7 from number 100 on.
pub(super) fn open(config: PublisherConfig) -> Script {
    Script::open_with(config, &answer(7, 100, 64))
}

pub(super) fn granted(session_epoch: u32, mark: u64) -> Control {
    Control::SessionOpened(SessionOpened {
        session: SLOT,
        session_epoch,
        mark,
        first_epoch: FIRST_EPOCH,
    })
}

/// Batch, epoch and number of the first that the reactor has on this channel, which must not be marked.
pub(super) fn sending(script: &Script, channel: ChannelId) -> Option<(u64, u32, u64)> {
    run(script, channel).into_iter().next()
}

/// The same of all that it has there.
pub(super) fn run(script: &Script, channel: ChannelId) -> Vec<(u64, u32, u64)> {
    let headers = script.headers(channel).into_iter();
    let seen = headers.map(|header| {
        assert_eq!(header.flags().bits(), 0, "it is stored once, so unmarked");
        (header.append_time().0, header.epoch(), header.sequence())
    });
    seen.collect()
}

/// Submits batches 0 and 1, which go to A and B, in whichever order; returns the channels in that order.
pub(super) fn two_out(script: &mut Script) -> (ChannelId, ChannelId) {
    script.submit(0);
    let (first, second) = if script.sending(A).is_some() {
        (A, B)
    } else {
        (B, A)
    };
    script.submit(1);
    assert_eq!(sending(script, first), Some((0, 7, 100)));
    assert_eq!(sending(script, second), Some((1, 7, 101)));
    script.sent(first);
    script.sent(second);
    (first, second)
}

pub(super) fn at(offset: u64) -> Outcome {
    let broker = None;
    Outcome::Stored(Position { broker, offset })
}

pub(super) fn requests(script: &mut Script, channel: ChannelId) -> Vec<Control> {
    std::mem::take(&mut script.sockets.channel(channel).sent)
}

pub(super) fn asks_for_an_epoch(gives_up: u32) -> [Control; 1] {
    [Control::OpenSession(OpenSession { gives_up })]
}

pub(super) fn failure(script: &Script) -> Option<&ClientError> {
    script.events.iter().find_map(|event| match event {
        Event::Failed(error) => Some(error),
        _ => None,
    })
}

#[test]
fn numbers_follow_the_mark_and_positions_have_no_broker() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.ack(second, 0, &[POSITION_UNKNOWN]);
    script.ack(first, 0, &[40]);
    let stored = [(1, Outcome::StoredSomewhere), (0, at(40))];
    assert_eq!(script.outcomes(), stored);
    assert_eq!(script.core.next_tick(), None, "idle: nothing to wait for");
}

#[test]
fn a_batch_has_no_number_before_a_connection_takes_it() {
    let mut script = Script::open_with(config(), &answer(7, 100, 64));
    script.lose(A);
    script.lose(B);
    script.submit(0);
    script.tick_at(30 * SECOND);
    let timed_out = Outcome::Failed(Failure::TimedOut);
    assert_eq!(script.outcomes(), [(0, timed_out)]);
    script.submit(1);
    script.announce(B, &answer(7, 100, 64));
    assert_eq!(
        sending(&script, B),
        Some((1, 7, 100)),
        "no number is missing"
    );
}

#[test]
fn lost_batches_go_again_by_number_before_new_ones() {
    let mut script = open(PublisherConfig {
        on_broker_loss: OnBrokerLoss::InDoubt,
        ..config()
    });
    let (first, second) = two_out(&mut script);
    script.submit(2);
    script.submit(3);
    assert_eq!(sending(&script, first), Some((2, 7, 102)));
    script.sent(second);
    script.lose(first);
    script.tick_at(31 * SECOND);
    assert_eq!(script.outcomes(), [], "not given up in time either");
    script.submit(4);
    // Nothing was heard of the second channel for too long, too.
    script.lose(second);
    script.tick_at(32 * SECOND);
    script.announce(second, &answer(7, 100, 64));
    let lost: Vec<_> = (0..4).map(|batch| (batch, 7, 100 + batch)).collect();
    assert_eq!(run(&script, second), lost);
    script.sent(second);
    assert_eq!(sending(&script, second), None, "a new one waits for room");
    script.ack(second, 0, &[0, 1, 2, 3]);
    assert_eq!(sending(&script, second), Some((4, 7, 104)), "then new ones");
}

#[test]
fn a_connection_that_comes_back_resumes_as_the_same_instance() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    let a = script.announce(A, &answer(7, 100, 64));
    let b = script.announce(B, &answer(7, 100, 64));
    assert!(!a.resumes);
    assert_eq!((a.instance, a.producer), (b.instance, b.producer));
    script.lose(B);
    script.tick_at(SECOND);
    let again = script.announce(B, &answer(7, 100, 64));
    assert_eq!((again.instance, again.resumes), (a.instance, true));
}

#[test]
fn the_window_is_counted_from_the_lowest_number_without_an_answer() {
    let mut script = Script::open_with(config(), &answer(7, 100, 2));
    let (first, second) = two_out(&mut script);
    script.submit(2);
    script.ack(second, 0, &[1]);
    assert_eq!((script.sending(A), script.sending(B)), (None, None));
    script.ack(first, 0, &[0]);
    let sent = [A, B].map(|channel| sending(&script, channel));
    assert!(sent.contains(&Some((2, 7, 102))), "{sent:?}");
}

#[test]
fn what_finds_no_room_is_sent_again_soon_on_a_connection_that_stays() {
    for code in [
        ErrorCode::HeldFull,
        ErrorCode::BeyondWindow,
        ErrorCode::NoSequencer,
    ] {
        let mut script = open(PublisherConfig {
            batches_in_flight: 4,
            ..config()
        });
        let (_, second) = two_out(&mut script);
        script.submit(2);
        let channel = if script.sending(A).is_some() { A } else { B };
        script.sent(channel);
        script.refuse(second, 0, code, &[0]);
        script.submit(3);
        assert_eq!((script.sending(A), script.sending(B)), (None, None));
        let again = script.core.next_tick().expect("soon");
        assert!(again <= Now(5 * MILLISECOND), "{again:?}");
        script.tick_at(again.0);
        let sent = [A, B].map(|channel| run(&script, channel)).concat();
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent.contains(&(1, 7, 101)), "{sent:?}");
        assert!(sent.contains(&(3, 7, 103)), "{sent:?}");
        let open = [A, B].map(|channel| !script.sockets.channel(channel).closing);
        assert_eq!(open, [true, true], "{code}");
        assert_eq!(script.outcomes(), []);
    }
}

#[test]
fn an_answer_faster_than_the_reactor_waits_for_it() {
    let mut script = open(config());
    script.submit(0);
    let channel = if script.sending(A).is_some() { A } else { B };
    script.refuse(channel, 0, ErrorCode::Fenced, &[100]);
    let other = if channel == A { B } else { A };
    let asked = [A, B]
        .map(|channel| requests(&mut script, channel))
        .concat();
    assert_eq!(
        asked,
        [],
        "the reactor still reads the batch: nothing is known of it"
    );
    script.sent(channel);
    assert_eq!(
        requests(&mut script, channel).len() + requests(&mut script, other).len(),
        1
    );
}

#[test]
fn a_new_epoch_numbers_what_is_not_stored_and_leaves_what_is() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.submit(2);
    script.submit(3);
    script.sent(first);
    assert_eq!(sending(&script, second), Some((3, 7, 103)));
    script.submit(4);
    // The answers of 0 and 2 are lost; 0 is stored.
    script.lose(first);
    script.refuse(second, 0, ErrorCode::Fenced, &[101]);
    script.sent(second);
    assert_eq!(requests(&mut script, second), asks_for_an_epoch(7));
    script.tell(second, &granted(8, 101));
    assert_eq!(script.sending(second), None, "103 has no answer yet");
    script.refuse(second, 1, ErrorCode::Fenced, &[101]);
    let mut sent = Vec::new();
    loop {
        let seen = run(&script, second);
        if seen.is_empty() {
            break;
        }
        let acked = 2 + sent.len() as u64;
        let offsets: Vec<u64> = (50 + acked..).take(seen.len()).collect();
        sent.extend(seen);
        script.sent(second);
        script.ack(second, acked, &offsets);
    }
    // Number 100 only has to be told where it is, and whether it is on all disks.
    let expected = [
        (0, 8, 100),
        (1, 8, 101),
        (2, 8, 102),
        (3, 8, 103),
        (4, 8, 104),
    ];
    assert_eq!(sent, expected);
    let stored: Vec<_> = (0..5).map(|batch| (batch, at(52 + batch))).collect();
    assert_eq!(script.outcomes(), stored);
}

#[test]
fn what_no_connection_has_yet_waits_for_the_new_epoch() {
    let mut script = open(config());
    assert_eq!(two_out(&mut script), (B, A));
    script.submit_unseen(2);
    script.refuse(A, 0, ErrorCode::Fenced, &[100]);
    assert_eq!((script.sending(A), script.sending(B)), (None, None));
    script.tell(A, &granted(8, 100));
    script.refuse(B, 0, ErrorCode::Fenced, &[100]);
    let sent = [A, B].map(|channel| sending(&script, channel));
    assert!(sent.contains(&Some((0, 8, 100))), "{sent:?}");
    assert!(sent.contains(&Some((1, 8, 101))), "{sent:?}");
}

#[test]
fn a_lost_connection_holds_up_no_new_epoch() {
    let mut script = open(config());
    assert_eq!(two_out(&mut script), (B, A));
    script.refuse(A, 0, ErrorCode::Fenced, &[100]);
    assert_eq!(requests(&mut script, A), asks_for_an_epoch(7));
    script.lose(A);
    assert_eq!(
        requests(&mut script, B),
        asks_for_an_epoch(7),
        "then another one"
    );
    script.tell(B, &granted(8, 100));
    assert_eq!(script.sending(B), None, "number 100 has no answer yet");
    script.refuse(B, 0, ErrorCode::Fenced, &[100]);
    assert_eq!(run(&script, B), [(0, 8, 100), (1, 8, 101)]);
}

#[test]
fn an_epoch_that_is_not_granted_in_time_is_asked_for_elsewhere() {
    let mut script = open(config());
    let (_, second) = two_out(&mut script);
    script.refuse(second, 0, ErrorCode::Fenced, &[100]);
    assert_eq!(requests(&mut script, A), asks_for_an_epoch(7));
    script.tick_at(3 * SECOND);
    assert!(script.sockets.channel(A).closing);
    script.lose(A);
    assert_eq!(requests(&mut script, B), asks_for_an_epoch(7));
}

#[test]
fn a_later_epoch_in_an_announcement_ends_the_one_at_hand() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.lose(second);
    script.tick_at(SECOND);
    // As when the answer to another connection's request was lost with it.
    script.announce(second, &answer(8, 102, 64));
    let asked = [A, B]
        .map(|channel| requests(&mut script, channel))
        .concat();
    assert_eq!(asked, asks_for_an_epoch(7));
    script.tell(A, &granted(8, 102));
    script.ack(first, 0, &[30]);
    let sent = [A, B].map(|channel| sending(&script, channel));
    assert!(sent.contains(&Some((1, 7, 101))), "{sent:?}");
}

#[test]
fn another_user_of_the_producer_ends_this_one() {
    let told = |script: &Script| {
        let taken = matches!(
            failure(script),
            Some(ClientError::SessionTaken { producer: 7, .. })
        );
        assert!(taken, "{:?}", script.events);
    };
    let in_doubt = Outcome::Failed(Failure::InDoubt);

    let mut script = open(config());
    two_out(&mut script);
    script.lose(B);
    script.tick_at(SECOND);
    script.connect(B);
    script.feed(B, &welcome(2));
    script.tell(B, &refusal(ErrorCode::SessionTaken, false, None));
    script.lose(B);
    told(&script);
    script.lose(A);
    let mut outcomes = script.outcomes();
    outcomes.sort_by_key(|(batch, _)| *batch);
    assert_eq!(outcomes, [(0, in_doubt), (1, in_doubt)]);

    let mut script = open(config());
    let (first, _) = two_out(&mut script);
    script.refuse(first, 0, ErrorCode::Fenced, &[100]);
    script.tell(A, &refusal(ErrorCode::SessionTaken, false, None));
    script.lose(A);
    told(&script);
}

#[test]
fn a_session_that_is_forgotten_ends_the_publisher() {
    let mut script = open(config());
    let (first, _) = two_out(&mut script);
    script.refuse(first, 0, ErrorCode::UnknownSession, &[0]);
    assert!(matches!(
        failure(&script),
        Some(ClientError::SessionLost { .. })
    ));
    assert_eq!(
        script.outcomes(),
        [(0, Outcome::Failed(Failure::InDoubt))],
        "an earlier attempt may have been stored"
    );
}

#[test]
fn a_session_that_was_given_up_ends_the_publisher() {
    let given_up = |script: &Script| {
        let given_up = matches!(failure(script), Some(ClientError::SessionGivenUp { .. }));
        assert!(given_up, "{:?}", script.events);
        for channel in [A, B] {
            assert_eq!(sending(script, channel).map(|it| it.1), None);
        }
    };
    // A broker that is late brings it into being again: elsewhere, or where it was.
    for (session, first_epoch) in [(SLOT + 1, FIRST_EPOCH), (SLOT, 8)] {
        let mut script = open(config());
        script.submit(0);
        let channel = if script.sending(A).is_some() { A } else { B };
        script.sent(channel);
        let other = if channel == A { B } else { A };
        script.lose(other);
        script.tick_at(SECOND);
        let anew = PublisherOpened {
            session,
            first_epoch,
            ..announced(8, 0, 64)
        };
        script.announce(other, &Control::PublisherOpened(anew));
        given_up(&script);
    }

    let mut script = open(config());
    let (first, _) = two_out(&mut script);
    script.refuse(first, 0, ErrorCode::SessionGivenUp, &[0]);
    assert!(matches!(
        failure(&script),
        Some(ClientError::SessionGivenUp { .. })
    ));
    let in_doubt = Outcome::Failed(Failure::InDoubt);
    assert_eq!(script.outcomes(), [(0, in_doubt)]);
}

#[test]
fn an_identity_is_taken_over_from_the_epoch_that_the_broker_named() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    let held = Control::SessionHeld(SessionHeld { session_epoch: 6 });
    for channel in [A, B] {
        let asked = script.announce(channel, &held);
        assert_eq!((asked.takes_over, asked.secret), (0, Secret([3; 16])));
        let again = script.sockets.channel(channel).sent.pop();
        let Some(Control::OpenPublisher(again)) = again else {
            panic!("{again:?}");
        };
        assert_eq!((again.takes_over, again.resumes), (6, false));
        assert_eq!(again.instance, asked.instance);
    }
    script.tell(A, &answer(7, 100, 64));
    script.tell(B, &answer(7, 100, 64));
    assert!(matches!(script.events[..], [Event::Opened { .. }]));
}

#[test]
fn an_answer_from_before_a_takeover_ends_nothing() {
    let mut script = Script::new(config());
    script.tell_cluster(2);
    let held = Control::SessionHeld(SessionHeld { session_epoch: 6 });
    script.announce(A, &held);
    script.connect(B);
    script.feed(B, &welcome(2));
    // One channel has the identity already when the other one hears that somebody else has it.
    script.tell(A, &answer(7, 100, 64));
    script.tell(B, &held);
    let again = script.sockets.channel(B).sent.pop();
    let Some(Control::OpenPublisher(again)) = again else {
        panic!("{again:?}");
    };
    assert_eq!((again.takes_over, again.resumes), (0, true));
    script.tell(B, &answer(7, 100, 64));
    assert!(matches!(script.events[..], [Event::Opened { .. }]));
}

#[test]
fn who_had_the_identity_does_not_take_it_back() {
    let mut script = open(config());
    script.lose(B);
    script.tick_at(SECOND);
    let held = Control::SessionHeld(SessionHeld { session_epoch: 9 });
    script.announce(B, &held);
    assert!(matches!(
        failure(&script),
        Some(ClientError::SessionTaken { .. })
    ));
}

#[test]
fn a_wrong_secret_is_told() {
    let mut script = Script::new(config());
    script.tell_cluster(1);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tell(A, &refusal(ErrorCode::WrongSecret, false, None));
    script.lose(A);
    assert!(matches!(
        failure(&script),
        Some(ClientError::WrongSecret { .. })
    ));
}

#[test]
fn a_sequencer_that_loses_what_it_acknowledged_ends_the_publisher() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.ack(first, 0, &[0]);
    script.refuse(second, 0, ErrorCode::Fenced, &[100]);
    script.tell(A, &granted(8, 100));
    assert!(matches!(
        failure(&script),
        Some(ClientError::Protocol { .. })
    ));
}

#[test]
fn a_batch_that_is_refused_again_and_again_ends_the_publisher() {
    let mut script = open(config());
    script.lose(B);
    script.submit(0);
    for attempt in 0..8 {
        assert!(failure(&script).is_none(), "attempt {attempt}");
        assert_eq!(sending(&script, A), Some((0, 7, 100)));
        script.sent(A);
        script.tell(A, &refusal(ErrorCode::BadFrame, false, None));
        script.lose(A);
        if failure(&script).is_none() {
            script.tick_at(script.now.0 + 2 * SECOND);
            script.announce(A, &answer(7, 100, 64));
        }
    }
    let code = ErrorCode::BadFrame;
    assert!(
        matches!(failure(&script), Some(ClientError::Refused { code: told, .. }) if *told == code)
    );
}

#[test]
fn a_topic_of_such_order_needs_acknowledgements() {
    let mut script = Script::new(PublisherConfig {
        acks: Acks::None,
        ..config()
    });
    script.tell_cluster(1);
    script.connect(A);
    script.feed(A, &welcome(1));
    script.tell(A, &refusal(ErrorCode::InvalidArgument, false, None));
    script.lose(A);
    assert!(
        matches!(failure(&script), Some(ClientError::Refused { message, .. }) if message == "InvalidArgument")
    );
}

#[test]
fn the_session_is_closed_when_everything_is_answered_and_not_before() {
    let mut script = open(config());
    let (first, second) = two_out(&mut script);
    script.ack(first, 0, &[0]);
    script.core.close_session(script.now);
    script.drain();
    assert_eq!(
        [A, B]
            .map(|channel| requests(&mut script, channel))
            .concat(),
        []
    );
    script.ack(second, 0, &[1]);
    script.core.close_session(script.now);
    script.drain();
    let said = [A, B]
        .map(|channel| requests(&mut script, channel))
        .concat();
    assert_eq!(said, [Control::CloseSession]);
    script.core.stop(ClientError::Closed, script.now);
    script.drain();
    script.tell(A, &Control::Done);
}
