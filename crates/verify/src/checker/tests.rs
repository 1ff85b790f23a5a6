//! A good history passes, and each way to spoil it is found.

use super::*;

const ONE: Origin = Origin {
    publisher: 1,
    instance: 0,
};
const TWO: Origin = Origin {
    publisher: 2,
    instance: 0,
};

fn range(origin: Origin, number: u64, count: u64) -> MessageRange {
    MessageRange {
        origin,
        number,
        count,
    }
}

fn at(offset: u64) -> Position {
    Position {
        broker: None,
        offset,
    }
}

type Seen = Vec<(Position, Option<Stamp>)>;

/// Two publishers' messages by turns, as they are in the log from position 0.
fn log(messages: u64) -> Seen {
    (0..messages)
        .map(|offset| {
            let origin = if offset % 2 == 0 { ONE } else { TWO };
            let number = offset / 2;
            (at(offset), Some(Stamp { origin, number }))
        })
        .collect()
}

/// The same log at order `order`, all of it acknowledged, published in good order.
fn checker(order: u32, messages: u64) -> Checker {
    let mut checker = of_order(order);
    for origin in [ONE, TWO] {
        checker.announced(origin, messages / 2);
        checker.ended(origin, messages / 2);
    }
    for (position, stamp) in log(messages) {
        let stamp = stamp.expect("a stamp");
        checker.acknowledged(range(stamp.origin, stamp.number, 1), Some(position));
    }
    checker
}

fn of_order(order: u32) -> Checker {
    with_retention(order, RetentionModel::new(u64::MAX, u64::MAX, 1))
}

fn with_retention(order: u32, retention: RetentionModel) -> Checker {
    Checker::new(order, true, retention)
}

fn found(mut checker: Checker) -> Violations {
    checker.finish(None);
    checker.violations().clone()
}

/// What is found when the reference reader sees `seen` instead of the log.
fn found_in(order: u32, seen: &Seen) -> Violations {
    let mut checker = checker(order, 20);
    checker.read(REFERENCE_READER, seen);
    found(checker)
}

#[test]
fn a_good_history_passes() {
    for order in [0, 1, 2, 5] {
        let mut checker = checker(order, 20);
        let other = checker.add_reader("other");
        let last = checker.add_reader("last");
        checker.begin(other, ReaderStart::At(7));
        checker.read(other, &log(20)[7..]);
        checker.read(REFERENCE_READER, &log(20)[..11]);
        assert!(!checker.is_complete());
        checker.read(REFERENCE_READER, &log(20)[11..]);
        checker.begin(other, ReaderStart::Anywhere);
        checker.read(other, &log(20)[3..]);
        checker.read(last, &log(20));
        assert!(checker.is_complete());
        checker.finish(Some(last));
        assert_eq!(checker.violations().total, 0, "{:?}", checker.violations());
        assert_eq!(checker.messages(other), (30, 0));
    }
}

#[test]
fn a_swapped_pair_breaks_order_and_acknowledgements() {
    let mut seen = log(20);
    let (a, b) = (seen[4].1, seen[6].1);
    (seen[4].1, seen[6].1) = (b, a);
    let of_five = found_in(5, &seen);
    assert_eq!(of_five.of(Kind::OutOfOrder), 1, "{of_five:?}");
    assert_eq!(of_five.of(Kind::Acknowledgement), 2, "{of_five:?}");
    assert!(
        of_five.first[0].contains("message 2 of publisher 1.0 at position 6"),
        "{of_five:?}"
    );
    let of_two = found_in(2, &seen);
    assert_eq!(
        (
            of_two.of(Kind::OutOfOrder),
            of_two.of(Kind::Acknowledgement)
        ),
        (0, 2)
    );
}

#[test]
fn a_loss_counts_once_acknowledged_or_its_publisher_ended() {
    let mut seen = log(20);
    seen.truncate(19);
    let violations = found_in(5, &seen);
    assert_eq!(
        (
            violations.of(Kind::Acknowledgement),
            violations.of(Kind::Lost)
        ),
        (1, 1),
        "{violations:?}"
    );
    let mut unacknowledged = of_order(2);
    unacknowledged.announced(ONE, 3);
    unacknowledged.read(REFERENCE_READER, &log(1)[..1]);
    let mut killed = of_order(2);
    killed.announced(ONE, 3);
    killed.read(REFERENCE_READER, &log(1)[..1]);
    unacknowledged.ended(ONE, 3);
    assert_eq!(found(unacknowledged).of(Kind::Lost), 1);
    assert_eq!(found(killed).total, 0, "a killed one promised nothing");
}

#[test]
fn what_was_stored_somewhere_must_be_there() {
    let mut checker = of_order(5);
    checker.announced(ONE, 4);
    checker.acknowledged(range(ONE, 0, 4), None);
    checker.read(REFERENCE_READER, &[(at(0), Some(stamp(ONE, 0)))]);
    let violations = found(checker);
    assert_eq!(violations.of(Kind::Lost), 1);
    assert!(violations.first[0].contains("1 to 3"), "{violations:?}");
}

#[test]
fn a_duplicate_is_found_where_none_may_be() {
    let mut seen = log(20);
    seen.push((at(20), seen[3].1));
    assert_eq!(found_in(5, &seen).of(Kind::Duplicate), 1);
    assert_eq!(found_in(2, &seen).of(Kind::Duplicate), 1);
    assert_eq!(found_in(0, &seen).total, 0, "at least once");
    let mut checker = checker(0, 20);
    checker.read(REFERENCE_READER, &seen);
    assert_eq!(checker.messages(REFERENCE_READER), (21, 1));
}

#[test]
fn a_hole_is_found_and_also_at_the_beginning() {
    let mut seen = log(20);
    seen.remove(9);
    for order in [0, 1, 2, 5] {
        assert_eq!(found_in(order, &seen).of(Kind::Hole), 1);
    }
    let mut checker = checker(5, 20);
    let other = checker.add_reader("other");
    checker.begin(other, ReaderStart::At(4));
    checker.read(other, &log(20)[5..]);
    assert_eq!(checker.violations().of(Kind::Hole), 1);
    checker.read(REFERENCE_READER, &log(20)[1..]);
    assert_eq!(checker.violations().of(Kind::Hole), 2);
}

#[test]
fn readers_that_disagree_are_found_near_and_far() {
    let mut checker = checker(5, 20);
    let other = checker.add_reader("other");
    checker.read(REFERENCE_READER, &log(20));
    let mut seen = log(20);
    (seen[10].1, seen[11].1) = (seen[11].1, seen[10].1);
    checker.read(other, &seen);
    assert_eq!(checker.violations().of(Kind::Disagreement), 2);
    let many =
        super::super::reference_log::BLOCK * (super::super::reference_log::EXACT_BLOCKS as u64 + 2);
    let mut checker = Checker::new(5, false, RetentionModel::new(u64::MAX, u64::MAX, 1));
    let other = checker.add_reader("other");
    checker.read(REFERENCE_READER, &log(many));
    let mut seen = log(many);
    (seen[10].1, seen[11].1) = (seen[11].1, seen[10].1);
    checker.read(other, &seen);
    assert_eq!(checker.violations().of(Kind::Disagreement), 1);
}

#[test]
fn a_log_that_is_shorter_in_the_end_is_found() {
    let mut checker = checker(5, 20);
    let last = checker.add_reader("last");
    checker.read(REFERENCE_READER, &log(20));
    checker.read(last, &log(20)[..18]);
    checker.finish(Some(last));
    assert_eq!(checker.violations().of(Kind::Lost), 1);
}

#[test]
fn a_prefix_that_is_gone_is_found_while_there_is_room_for_it() {
    // Room for one batch of 10 messages, of the two that there are.
    for (batches, lost) in [(u64::MAX, 3), (1, 1)] {
        let mut checker = checker(5, 20);
        checker.retention = RetentionModel::new(u64::MAX, batches, 1);
        for end in [10, 20] {
            checker.begun(ONE, 0);
            checker.retention.reaches(None, end);
            checker.read(REFERENCE_READER, &log(end)[end as usize - 10..]);
        }
        let [late, other] = ["late", "other"].map(|name| checker.add_reader(name));
        for first in [8, 12] {
            checker.begin(late, ReaderStart::Earliest);
            checker.read(late, &log(20)[first..]);
            assert!(!checker.is_whole(late));
        }
        // A reader at 9 learns that it is gone.
        let kept = batches == u64::MAX;
        assert_eq!(checker.evicted(other, None, 9, 10), !kept);
        checker.finish(Some(late));
        let found = checker.violations();
        assert_eq!(
            (found.of(Kind::Lost), found.total),
            (lost, lost),
            "{found:?}"
        );
        assert_eq!(
            found.first[0].contains("late: the earliest is position 8"),
            kept
        );
    }
}

/// Each of 40 batches of ten is stored by the next of these streams, or nowhere.
fn forty_batches(order: u32, streams: &[Option<Stream>]) -> Checker {
    let mut checker = with_retention(order, RetentionModel::new(10_000, u64::MAX, 36));
    let mut ends = std::collections::BTreeMap::new();
    for turn in 0..40 {
        checker.begun(ONE, 10);
        let range = range(ONE, turn * 10, 10);
        let Some(broker) = streams[turn as usize % streams.len()] else {
            checker.not_stored(range);
            continue;
        };
        let end: &mut u64 = ends.entry(broker).or_default();
        let offset = std::mem::replace(end, *end + 10);
        checker.acknowledged(range, Some(Position { broker, offset }));
    }
    checker
}

#[test]
fn a_stream_keeps_its_room_beside_other_streams() {
    let mut of_two = forty_batches(1, &[Some(Some(1)), Some(Some(2))]);
    assert!(!of_two.evicted(REFERENCE_READER, Some(1), 0, 200));
    let mut half_stored = forty_batches(5, &[Some(None), None]);
    assert!(!half_stored.evicted(REFERENCE_READER, None, 0, 200));
    let mut all_stored = forty_batches(5, &[Some(None)]);
    assert!(all_stored.evicted(REFERENCE_READER, None, 0, 200));
    assert_eq!(all_stored.violations().total, 0);
}

#[test]
fn what_brokers_offer_is_judged_once_for_each_loss() {
    let mut checker = forty_batches(5, &[Some(None)]);
    let held = 400 - 200;
    checker.offered(None, 200, 400);
    assert_eq!(checker.violations().total, 0);
    assert_eq!(checker.retained().least_bytes, held * 36);
    for _ in 0..3 {
        checker.offered(None, 390, 400);
    }
    assert_eq!(checker.violations().of(Kind::Lost), 1);
    let first = &checker.violations().first[0];
    assert!(first.starts_with("what can be read: "), "{first}");
    assert!((checker.retained().least_share - 0.036).abs() < 1e-9);
}

#[test]
fn without_acknowledgements_unseen_messages_may_be_anywhere() {
    let mut checker = Checker::new(0, false, RetentionModel::new(10_000, u64::MAX, 36));
    (0..40).for_each(|_| checker.begun(ONE, 10));
    assert!(
        checker.evicted(REFERENCE_READER, Some(0), 0, 200),
        "all on one broker"
    );
    for number in 0..200 {
        let position = Position {
            broker: Some(1),
            offset: number,
        };
        checker.read(REFERENCE_READER, &[(position, Some(stamp(ONE, number)))]);
    }
    assert!(
        !checker.evicted(REFERENCE_READER, Some(0), 0, 201),
        "half of it is elsewhere"
    );
    // The rest of one that was killed may be stored or not.
    checker.gone(ONE);
    assert!(!checker.evicted(REFERENCE_READER, Some(0), 0, 1));
}

#[test]
fn the_reference_reader_must_not_be_overtaken_either() {
    let mut checker = checker(5, 20);
    checker.begun(ONE, 20);
    checker.read(REFERENCE_READER, &log(20)[..4]);
    assert!(!checker.evicted(REFERENCE_READER, None, 4, 9));
    let first = &checker.violations().first[0];
    assert!(
        first.starts_with("subscriber 0: 4 to 8 are gone"),
        "{first}"
    );
}

#[test]
fn who_has_something_to_read_is_known() {
    let mut checker = of_order(5);
    let other = checker.add_reader("other");
    assert!(!checker.is_behind(REFERENCE_READER) && !checker.is_behind(other));
    checker.acknowledged(range(ONE, 0, 1), Some(at(0)));
    assert!(checker.is_behind(REFERENCE_READER), "no reader saw it yet");
    checker.read(REFERENCE_READER, &log(10));
    assert!(!checker.is_behind(REFERENCE_READER));
    for (begin, is_behind) in [
        (ReaderStart::Earliest, true),
        (ReaderStart::At(9), true),
        (ReaderStart::At(10), false),
        (ReaderStart::Anywhere, false),
    ] {
        checker.begin(other, begin);
        assert_eq!(checker.is_behind(other), is_behind, "{begin:?}");
    }
    // A reader that began before must get what came after.
    checker.read(REFERENCE_READER, &log(12)[10..]);
    assert!(checker.is_behind(other));
    checker.read(other, &log(12)[11..]);
    assert!(!checker.is_behind(other));
    checker.read(REFERENCE_READER, &log(13)[12..]);
    assert!(checker.is_behind(other));
}

#[test]
fn damage_and_foreign_messages_are_found() {
    let mut seen = log(20);
    seen[8].1 = None;
    let violations = found_in(5, &seen);
    assert_eq!(violations.of(Kind::Damaged), 1);
    let mut seen = log(20);
    seen.push((at(20), Some(stamp(ONE, 10))));
    assert_eq!(found_in(5, &seen).of(Kind::NeverSent), 1);
    let stranger = Origin {
        publisher: 9,
        instance: 0,
    };
    seen[20].1 = Some(stamp(stranger, 0));
    assert_eq!(found_in(5, &seen).of(Kind::NeverSent), 1);
}

#[test]
fn a_killed_publisher_leaves_no_hole_and_does_not_come_back() {
    let next = Origin { instance: 1, ..ONE };
    let history = |numbers: &[(Origin, u64)]| {
        let mut checker = of_order(5);
        checker.announced(ONE, 100);
        checker.announced(next, 100);
        for (offset, (origin, number)) in (0..).zip(numbers) {
            checker.read(
                REFERENCE_READER,
                &[(at(offset), Some(stamp(*origin, *number)))],
            );
        }
        found(checker)
    };
    let good = history(&[(ONE, 0), (ONE, 1), (next, 0), (next, 1)]);
    assert_eq!(good.total, 0, "{good:?}");
    assert_eq!(
        history(&[(ONE, 0), (next, 0), (ONE, 1)]).of(Kind::Deposed),
        1
    );
    assert_eq!(history(&[(ONE, 0), (ONE, 2)]).of(Kind::Lost), 1);
}

#[test]
fn what_was_given_up_may_be_missing() {
    let mut checker = of_order(5);
    checker.announced(ONE, 3);
    checker.given_up(range(ONE, 1, 1));
    checker.ended(ONE, 3);
    checker.read(
        REFERENCE_READER,
        &[(at(0), Some(stamp(ONE, 0))), (at(1), Some(stamp(ONE, 2)))],
    );
    assert!(checker.is_complete());
    assert_eq!(found(checker).total, 0);
}

#[test]
fn only_the_first_violations_are_kept_in_words() {
    let mut seen = log(20);
    seen.iter_mut().for_each(|(_, stamp)| *stamp = None);
    let violations = found_in(5, &seen);
    assert!(violations.total > 20);
    assert_eq!(violations.first.len(), super::super::violation::FIRST_MAX);
}

fn stamp(origin: Origin, number: u64) -> Stamp {
    Stamp { origin, number }
}

#[test]
fn what_is_reported_as_not_stored_must_not_be_there() {
    for order in [0, 2, 5] {
        let mut checker = of_order(order);
        checker.announced(ONE, 20);
        checker.not_stored(range(ONE, 2, 3));
        let stamp = |number| Stamp {
            origin: ONE,
            number,
        };
        let seen = [(at(0), Some(stamp(0))), (at(1), Some(stamp(1)))];
        checker.read(REFERENCE_READER, &seen);
        checker.read(REFERENCE_READER, &[(at(2), Some(stamp(5)))]);
        assert_eq!(checker.violations().total, 0);
        let broken = |mut checker: Checker| {
            checker.finish(None);
            checker.violations().of(Kind::NotStored)
        };
        assert_eq!(broken(checker), 0);
        let mut checker = of_order(order);
        checker.announced(ONE, 20);
        checker.not_stored(range(ONE, 1, 3));
        checker.read(REFERENCE_READER, &seen);
        assert_eq!(broken(checker), 1, "order {order}");
    }
}

#[test]
fn an_overtaken_reference_reader_misses_only_what_it_skipped() {
    let overtaken = |order, lost: &[usize]| {
        let mut checker = checker(order, 20);
        let mut seen = log(20);
        checker.read(REFERENCE_READER, &seen[..6]);
        checker.skip(at(12));
        for position in lost {
            seen[*position].1 = Some(Stamp {
                origin: ONE,
                number: 0,
            });
        }
        checker.read(REFERENCE_READER, &seen[12..]);
        assert!(checker.is_complete() == lost.is_empty());
        found(checker).total
    };
    for order in [0, 2, 5] {
        assert_eq!(overtaken(order, &[]), 0, "order {order}");
        assert_ne!(overtaken(order, &[14]), 0, "order {order}");
    }
}

#[test]
fn a_hole_of_a_killed_publisher_counts_behind_a_skip_too() {
    let killed = |numbers: [u64; 4]| {
        let mut checker = of_order(5);
        checker.announced(ONE, 20);
        let [first, rest @ ..] = numbers.map(|number| {
            Some(Stamp {
                origin: ONE,
                number,
            })
        });
        checker.read(REFERENCE_READER, &[(at(0), first)]);
        checker.skip(at(7));
        let rest: Seen = (7..).map(at).zip(rest).collect();
        checker.read(REFERENCE_READER, &rest);
        found(checker).of(Kind::Lost)
    };
    assert_eq!(killed([0, 7, 8, 9]), 0);
    assert_eq!(killed([0, 7, 9, 10]), 1);
}
