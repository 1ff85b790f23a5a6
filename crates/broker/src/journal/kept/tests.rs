use super::*;

const NO_LIMIT: u64 = u64::MAX;

fn chain(topic: u32) -> Chain {
    Chain { topic, row: 0 }
}

fn counted(number: u64) -> Before {
    Before {
        number,
        nonce: 1,
        commits: 1,
        crc: 1,
    }
}

/// Segments 0, 2, 4 and 6, with 100 bytes of topic 1, and of topic 2 in the first two. They were written at 1000, 1010, 1020 and 1030.
fn kept() -> Kept {
    let mut kept = Kept::default();
    for number in 0..4 {
        let part = Part {
            first: number * 10,
            next: number * 10 + 10,
            bytes: 100,
            newest: 1000 + number * 10,
        };
        let mut chains = BTreeMap::from([(chain(1), part)]);
        if number < 2 {
            chains.insert(chain(2), part);
        }
        kept.push(counted(number * 2), 1000, chains);
    }
    kept
}

fn bytes(bytes: u64) -> Option<Retention> {
    Some(Retention { bytes, age_ns: 0 })
}

fn age(age_ns: u64) -> Option<Retention> {
    Some(Retention { bytes: 0, age_ns })
}

/// The first segment that is needed at a time, where this is to be retained of topics 1 and 2.
fn needed(now: u64, one: Option<Retention>, two: Option<Retention>) -> Option<u64> {
    kept().first_needed(NO_LIMIT, now, |chain| [one, two][chain.topic as usize - 1])
}

#[test]
fn what_a_topic_is_to_retain_stays() {
    let of = |one, two| needed(u64::MAX, one, two);
    assert_eq!(of(bytes(0), None), None, "all of one");
    assert_eq!(of(None, None), Some(7), "both are gone");
    assert_eq!(of(bytes(200), None), Some(4));
    assert_eq!(of(bytes(201), None), Some(2));
    assert_eq!(
        of(bytes(1), bytes(100)),
        Some(2),
        "the other one is in the way"
    );
    assert_eq!(
        of(bytes(1), bytes(1)),
        Some(2),
        "as the only segment that has any of it"
    );
}

#[test]
fn a_segment_goes_when_its_newest_batch_is_too_old() {
    let of = |now| needed(now, age(100), None);
    assert_eq!(of(1099), None, "one nanosecond young");
    assert_eq!(of(1100), Some(2));
    assert_eq!(of(1119), Some(2 * 2));
    assert_eq!(of(1130), Some(7));
    assert_eq!(
        needed(1130, age(100), age(200)),
        None,
        "the other one is in the way"
    );
    assert_eq!(needed(1200, age(100), age(200)), Some(2));
}

#[test]
fn a_clock_that_went_back_throws_nothing_away() {
    assert_eq!(needed(5, age(1), None), None);
    assert_eq!(needed(0, age(1), age(1)), None);
}

#[test]
fn a_segment_goes_by_size_or_by_age() {
    let both = Some(Retention {
        bytes: 200,
        age_ns: 100,
    });
    assert_eq!(needed(1000, both, None), Some(4), "it has enough");
    assert_eq!(needed(1120, both, None), Some(6), "it is too old");
    assert_eq!(
        needed(1110, bytes(300), age(100)),
        Some(2),
        "one by its size, the other by its age"
    );
}

#[test]
fn a_disk_has_no_more_than_it_is_to_have() {
    let of = |limit| kept().first_needed(limit, 0, |_| bytes(0));
    assert_eq!(of(4000), None);
    assert_eq!(of(3999), Some(2));
    assert_eq!(of(0), Some(7));
}

#[test]
fn what_was_removed_is_forgotten() {
    let mut kept = kept();
    assert_eq!(kept.remove_below(4), [0, 2]);
    assert_eq!(kept.first_of(chain(1)), Some(20));
    assert_eq!(kept.first_of(chain(2)), None);
    assert_eq!(kept.newest(), 1030);
    assert_eq!(kept.first_needed(2000, 0, |_| bytes(0)), None);
}

#[test]
fn what_topics_had_that_are_gone_is_given_back_once() {
    let mut kept = kept();
    let gone = BTreeSet::from([2]);
    assert_eq!(kept.topics(), BTreeSet::from([1, 2]));
    let of = |number| Some((counted(number), BTreeSet::from([2])));
    assert_eq!(kept.take_gone(&BTreeSet::new()), None);
    assert_eq!(kept.take_gone(&gone), of(0));
    assert_eq!(kept.take_gone(&gone), of(2));
    assert_eq!(kept.take_gone(&gone), None);
    assert_eq!(kept.first_of(chain(1)), Some(0), "the others are whole");
    kept.gave_back(0, 90);
    let first = |limit| kept.first_needed(limit, 0, |_| bytes(0));
    assert_eq!(first(3910), None, "a disk has less by that");
    assert_eq!(first(3909), Some(2));
    assert_eq!(kept.remove_below(100).len(), 4);
    assert_eq!(kept.newest(), 0);
}
