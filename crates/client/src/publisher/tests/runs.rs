//! Batches that wait for a connection go by one send, and what becomes of them when it does not get that far.

use embar_wire::batch::{BatchFlags, BatchHeader};

use super::super::model::SealedBatch;
use super::*;

/// As many batches in flight as a test wants.
fn many() -> PublisherConfig {
    PublisherConfig {
        batches_in_flight: 1000,
        ..config()
    }
}

/// Channel A alone, with batch 0 in the reactor and so many behind it in the queue.
fn behind_one(config: PublisherConfig, queued: u64) -> Script {
    let mut script = Script::open(config);
    script.lose(B);
    (0..=queued).for_each(|number| script.submit(number));
    assert_eq!(run(&script), [(0, false)]);
    script
}

/// Numbers of what the reactor has on channel A, and whether they are marked.
fn run(script: &Script) -> Vec<(u64, bool)> {
    let marked = |it: &BatchHeader| it.flags().contains(BatchFlags::POSSIBLE_DUPLICATE);
    let headers = script.headers(A).into_iter();
    headers
        .map(|it| (it.append_time().0, marked(&it)))
        .collect()
}

fn unmarked(numbers: std::ops::Range<u64>) -> Vec<(u64, bool)> {
    numbers.map(|number| (number, false)).collect()
}

fn released(script: &Script) -> usize {
    let released = |event: &&Event| matches!(event, Event::Released { .. });
    script.events.iter().filter(released).count()
}

#[test]
fn what_waits_goes_by_one_send() {
    let mut script = behind_one(many(), 5);
    script.sent(A);
    assert_eq!(run(&script), unmarked(1..6));
    script.ack(A, 0, &[10]);
    script.sent(A);
    script.ack(A, 1, &[11, 12, 13, 14, 15]);
    let all: Vec<_> = (0..6).map(|n| (n, stored(1, 10 + n))).collect();
    assert_eq!(script.outcomes(), all);
}

#[test]
fn a_send_has_at_most_64_batches_and_a_bound_of_bytes() {
    let mut script = behind_one(many(), 100);
    script.sent(A);
    assert_eq!(run(&script), unmarked(1..65));
    script.sent(A);
    assert_eq!(run(&script), unmarked(65..101));
    script.sent(A);

    let large = |script: &mut Script, number| {
        let mut builder = embar_wire::builder::BatchBuilder::new(Vec::new(), 200 << 10);
        builder.try_push(None, &[], &[0; 150 << 10]).expect("fits");
        let bytes = builder.seal(embar_wire::batch::SealFields {
            append_time: embar_wire::time::WallNs(number),
            ..Default::default()
        });
        let bytes = std::sync::Arc::new(bytes);
        let sealed = SealedBatch {
            number,
            messages: 1,
            bytes,
        };
        script.core.submit(sealed, script.now);
        script.drain();
    };
    (200..204).for_each(|number| large(&mut script, number));
    script.sent(A);
    assert_eq!(run(&script), unmarked(201..203));
}

#[test]
fn acks_of_the_first_of_a_send_free_their_buffers_after_it() {
    let mut script = behind_one(many(), 3);
    script.sent(A);
    script.ack(A, 0, &[10, 11, 12]);
    assert_eq!(released(&script), 1, "the reactor has the others");
    let stored_so_far: Vec<_> = (0..3).map(|n| (n, stored(1, 10 + n))).collect();
    assert_eq!(script.outcomes(), stored_so_far);
    script.sent(A);
    assert_eq!(released(&script), 2);
    script.events.clear();
    script.ack(A, 3, &[13]);
    assert_eq!(released(&script), 1);
    assert_eq!(script.outcomes(), [(3, stored(1, 13))]);
}

#[test]
fn a_lost_send_goes_again_in_its_order_before_what_waited() {
    let mut script = behind_one(many(), 3);
    script.sent(A);
    script.submit(4);
    script.ack(A, 0, &[10, 11]);
    script.lose(A);
    script.tick_at(SECOND);
    script.open_lane(A);
    assert_eq!(run(&script), [(2, true), (3, true), (4, false)]);
}

/// No broker has what the kernel never had, whether the send failed or the connection ended under it.
#[test]
fn what_was_not_handed_over_is_neither_marked_nor_in_doubt() {
    for fails in [true, false] {
        for (policy, lost) in [
            (OnBrokerLoss::Resend, vec![(1, true), (2, true)]),
            (OnBrokerLoss::InDoubt, vec![]),
        ] {
            let config = PublisherConfig {
                on_broker_loss: policy,
                ..many()
            };
            let mut script = behind_one(config, 4);
            script.sent(A);
            script.ack(A, 0, &[10]);
            let each = script.headers(A)[0].frame_len() as usize;
            let mut buf = script.batches.remove(&A).expect("a run");
            buf.advance(each + 1);
            if fails {
                let error = Err(std::io::ErrorKind::BrokenPipe.into());
                script.core.sent(A, buf, &error, script.now);
            } else {
                script.core.cut_short(A, &buf);
                drop(buf);
            }
            script.lose(A);
            let in_doubt = |n| (n, Outcome::Failed(Failure::InDoubt));
            let expected = match policy {
                OnBrokerLoss::Resend => vec![(0, stored(1, 10))],
                // The last goes first to the queue's front.
                OnBrokerLoss::InDoubt => vec![(0, stored(1, 10)), in_doubt(2), in_doubt(1)],
            };
            assert_eq!(script.outcomes(), expected);
            script.tick_at(SECOND);
            script.open_lane(A);
            assert_eq!(run(&script), [lost, unmarked(3..5)].concat());
        }
    }
}

/// All that were in flight keep their numbers; what was answered before the loss does not come again.
#[test]
fn numbers_of_a_lost_send_go_again_as_they_were() {
    let answer = super::ordered::answer(7, 100, 64);
    let mut script = Script::open_with(many(), &answer);
    script.lose(B);
    (0..4).for_each(|number| script.submit(number));
    script.sent(A);
    let numbers = |script: &Script| -> Vec<(u64, u64)> {
        let headers = script.headers(A).into_iter();
        headers
            .map(|it| (it.append_time().0, it.sequence()))
            .collect()
    };
    assert_eq!(numbers(&script), [(1, 101), (2, 102), (3, 103)]);
    script.ack(A, 0, &[10, 11]);
    script.submit(4);
    script.lose(A);
    script.tick_at(SECOND);
    script.announce(A, &super::ordered::answer(7, 102, 64));
    assert_eq!(numbers(&script), [(2, 102), (3, 103), (4, 104)]);
}

#[test]
fn without_acks_all_of_a_send_is_done_when_it_is() {
    let mut script = behind_one(
        PublisherConfig {
            acks: Acks::None,
            ..many()
        },
        3,
    );
    script.sent(A);
    assert_eq!(script.outcomes(), [(0, Outcome::Sent)]);
    script.sent(A);
    let sent: Vec<_> = (1..4).map(|number| (number, Outcome::Sent)).collect();
    assert_eq!(script.outcomes(), sent);
}

#[test]
fn an_ack_of_more_than_was_sent_is_wrong_in_the_middle_of_a_send() {
    let mut script = behind_one(many(), 3);
    script.sent(A);
    script.ack(A, 0, &[10, 11, 12, 13, 14]);
    script.sent(A);
    assert!(script.sockets.channel(A).closing, "the connection ends");
    assert_eq!(script.outcomes(), []);
}
