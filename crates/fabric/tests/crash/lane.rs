//! A lane's writer dies, and a sequencer that writes notices to a lane.

use embar_fabric::{LaneStart, Notice, PbrRecord};

use crate::anywhere::die_anywhere;

fn record(n: u64) -> PbrRecord {
    PbrRecord {
        sequence: n,
        payload_at: n * 64,
        ..Default::default()
    }
}

fn notice(n: u64) -> Notice {
    Notice {
        lane_number: n,
        mark: n,
        ..Default::default()
    }
}

#[test]
fn a_lane_ends_with_a_whole_record_and_its_next_writer_goes_on() {
    die_anywhere(
        |region, life| {
            let mut lane = region.lane_writer(&region.claim_unlocked(1), 0);
            lane.begin(1);
            for n in 0..2 {
                lane.publish(0, &record(n));
            }
            life.begin_to_end();
            let mut published = 2;
            for n in 2..4 {
                lane.publish(2, &record(n));
                if life.lasts() {
                    published = n + 1;
                }
            }
            published
        },
        |another_host, published| {
            let there = another_host();
            let mut reader = there.lane_reader(1, 0);
            reader.seek(2);
            while let Some((number, found)) = reader.take().found() {
                assert_eq!(found, record(number));
            }
            let end = reader.position();
            assert!((published..=4).contains(&end), "{end}, not {published}");
            let next = another_host();
            let mut lane = next.lane_writer(&next.claim_unlocked(1), 0);
            assert_eq!(lane.next(), end, "without a gap");
            let mut late = there.lane_reader(1, 0);
            late.seek_oldest();
            assert!(late.position() <= end && late.position() + 2 >= end);
            for n in end..end + 3 {
                lane.publish(n, &record(n));
                assert_eq!(reader.take().found(), Some((n, record(n))));
            }
        },
    );
}

#[test]
fn a_lane_begins_where_it_did_or_anew() {
    die_anywhere(
        |region, life| {
            let mut lane = region.lane_writer(&region.claim_unlocked(1), 0);
            lane.begin(1);
            lane.publish(0, &record(0));
            life.begin_to_end();
            lane.begin(2);
            let begun = life.lasts();
            lane.publish(0, &record(1));
            (begun, life.lasts())
        },
        |another_host, (begun, published)| {
            let there = another_host();
            let start = |epoch, start, incarnation| LaneStart {
                start,
                epoch,
                incarnation,
                ..Default::default()
            };
            let found = there.lane_start(1, 0).found().expect("begun");
            assert!(
                found == start(2, 1, 1) || !begun && found == start(1, 0, 1),
                "{found:?}"
            );
            let mut reader = there.lane_reader(1, 0);
            reader.seek(1);
            let there_is = reader.take().found() == Some((1, record(1)));
            assert!(there_is || !published);
            let next = another_host();
            let mut lane = next.lane_writer(&next.claim_unlocked(1), 0);
            lane.begin(2);
            let end = 1 + u64::from(there_is);
            assert_eq!(there.lane_start(1, 0).found(), Some(start(2, end, 2)));
        },
    );
}

#[test]
fn notices_end_with_a_whole_one_and_the_next_epoch_goes_on() {
    die_anywhere(
        |region, life| {
            let mut notices = region.notice_writer(&region.claim_unlocked(0), 1, 0);
            (0..3).for_each(|n| notices.publish(&notice(n)));
            life.begin_to_end();
            let mut published = 3;
            for n in 3..5 {
                notices.publish(&notice(n));
                if life.lasts() {
                    published = n + 1;
                }
            }
            published
        },
        |another_host, published| {
            let there = another_host();
            let mut reader = there.notice_reader(0, 1, 0, 3);
            let mut end = 3;
            while let Some(found) = reader.peek(0).found() {
                assert_eq!(found, notice(end));
                reader.advance();
                end += 1;
            }
            assert!((published..=5).contains(&end), "{end}, not {published}");
            let next = another_host();
            let mut notices = next.notice_writer(&next.claim_unlocked(0), 1, 0);
            assert_eq!(notices.next(), end);
            notices.publish(&notice(end));
            assert_eq!(reader.peek(0).found(), Some(notice(end)));
        },
    );
}
