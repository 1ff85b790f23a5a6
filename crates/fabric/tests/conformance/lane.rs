use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use embar_fabric::{Geometry, LaneGrant, LaneReader, LaneStart, LaneWriter, PbrRecord};
use embar_memory::Memory;

use crate::common::small;
use crate::setup::Setup;

fn record(n: u64) -> PbrRecord {
    PbrRecord {
        sequence: n,
        payload_at: n * 64,
        len: n as u32,
        incarnation: n as u32,
        ..Default::default()
    }
}

/// Publishes the record that belongs to its number.
fn put<M: Memory>(writer: &mut LaneWriter<M>, consumed: u64) -> u64 {
    writer.publish(consumed, &record(writer.next()))
}

/// Takes the next record, which must be the one that belongs to its number.
fn take<M: Memory>(reader: &mut LaneReader<M>) -> Option<u64> {
    let (number, found) = reader.take().found()?;
    assert_eq!(found, record(number));
    Some(number)
}

fn granted(consumed: u64) -> LaneGrant {
    LaneGrant {
        consumed,
        epoch: 1,
        ..Default::default()
    }
}

pub fn the_smallest_ring_wraps<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 1);
    let mut reader = there.lane_reader(1, 1);
    let mut grant = there.lane_grant_writer(&there.claim_unlocked(0), 1, 1);
    assert_eq!(take(&mut reader), None, "garbage is not a record");
    assert_eq!(here.lane_grant(0, 1, 1).found(), None);
    for n in 0..50 {
        let consumed = here
            .lane_grant(0, 1, 1)
            .found()
            .map_or(0, |grant| grant.consumed);
        assert_eq!((consumed, put(&mut writer, consumed)), (n, n));
        assert_eq!(take(&mut reader), Some(n));
        assert_eq!(take(&mut reader), None, "an older lap is not a record");
        grant.store(&granted(reader.position()));
    }
    assert_eq!(here.lane_grant(0, 1, 1).found(), Some(granted(50)));
    assert_eq!(
        here.lane_grant(1, 1, 1).found(),
        None,
        "each area has its own"
    );
    for (row, lane) in [(1, 0), (2, 1)] {
        let mut other = there.lane_reader(row, lane);
        assert_eq!(take(&mut other), None, "a lane of its own");
    }
}

pub fn a_record_is_overwritten_only_when_granted<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
    assert_eq!(writer.slots(), 2);
    put(&mut writer, 0);
    assert!(writer.has_room(0));
    put(&mut writer, 0);
    assert!(!writer.has_room(0) && writer.has_room(1));
    let refused = catch_unwind(AssertUnwindSafe(|| writer.publish(0, &record(2))));
    assert!(refused.is_err());
    let mut reader = there.lane_reader(1, 0);
    assert_eq!(take(&mut reader), Some(0), "the refused one left no trace");
    assert_eq!(put(&mut writer, 1), 2);
    assert!(!writer.has_room(1));
    assert_eq!(put(&mut writer, 3), 3);
    assert_eq!(take(&mut reader), None, "it was granted, and is gone");
    reader.seek(2);
    assert_eq!((take(&mut reader), take(&mut reader)), (Some(2), Some(3)));
    // More than was ever published is no more than all of it.
    assert!(writer.has_room(u64::MAX));
}

pub fn numbers_are_dense_over_incarnations<S: Setup>() {
    for published in 0..=5 {
        let setup = S::new(&small());
        let there = setup.host();
        let mut reader = there.lane_reader(1, 0);
        let mut next = 0;
        for _ in 0..3 {
            let here = setup.host();
            let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
            assert_eq!(writer.next(), next, "above all that was published");
            for _ in 0..published {
                // The last ones are left for the sequencer to take after the writer has died.
                if !writer.has_room(reader.position()) {
                    take(&mut reader).expect("published");
                }
                assert_eq!(put(&mut writer, reader.position()), next);
                next += 1;
            }
        }
        for n in reader.position()..next {
            assert_eq!(take(&mut reader), Some(n));
        }
        assert_eq!(take(&mut reader), None);
    }
}

pub fn a_lane_begins_anew_for_each_epoch<S: Setup>() {
    let setup = S::new(&small());
    let (first, second, there) = (setup.host(), setup.host(), setup.host());
    let start = |start, epoch, incarnation| {
        Some(LaneStart {
            start,
            epoch,
            incarnation,
            ..Default::default()
        })
    };
    let mut writer = first.lane_writer(&first.claim_unlocked(1), 0);
    assert_eq!(there.lane_start(1, 0).found(), None);
    writer.begin(1);
    assert_eq!(there.lane_start(1, 0).found(), start(0, 1, 1));
    put(&mut writer, 0);
    writer.begin(4);
    assert_eq!(there.lane_start(1, 0).found(), start(1, 4, 1));
    put(&mut writer, 0);
    for admitted in [true, false, true] {
        writer.set_admitted(admitted);
        let said = there.lane_start(1, 0).found().expect("begun");
        assert_eq!((said.start, said.admitted), (1, admitted.into()));
    }
    writer.begin(4);
    let said = there.lane_start(1, 0).found().expect("begun");
    assert_eq!((said.start, said.admitted), (2, 1), "it stays admitted");
    let left = said;
    let mut reader = there.lane_reader(1, 0);
    reader.seek(1);
    assert_eq!(take(&mut reader), Some(1));
    drop(writer);
    let mut writer = second.lane_writer(&second.claim_unlocked(1), 0);
    assert_eq!(
        there.lane_start(1, 0).found(),
        Some(left),
        "until it says so"
    );
    writer.begin(4);
    assert_eq!(
        there.lane_start(1, 0).found(),
        start(2, 4, 2),
        "not admitted yet"
    );
    assert_eq!(there.lane_start(1, 1).found(), None, "a lane of its own");
}

pub fn the_oldest_record_of_a_dead_broker_is_found<S: Setup>() {
    let setup = S::new(&Geometry {
        lane_slots: 4,
        ..small()
    });
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
    for published in 0..10_u64 {
        let mut reader = there.lane_reader(1, 0);
        reader.seek_oldest();
        let oldest = published.saturating_sub(4);
        assert_eq!(reader.position(), oldest);
        for n in oldest..published {
            assert_eq!(take(&mut reader), Some(n));
        }
        assert_eq!(take(&mut reader), None);
        put(&mut writer, published);
    }
}

pub fn two_threads_agree<S: Setup>() {
    const RECORDS: u64 = 2000;
    let setup = S::new(&Geometry {
        lane_slots: 4,
        ..small()
    });
    let (here, there) = (setup.host(), setup.host());
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
            while writer.next() < RECORDS {
                let consumed = here
                    .lane_grant(0, 1, 0)
                    .found()
                    .map_or(0, |grant| grant.consumed);
                if writer.has_room(consumed) {
                    put(&mut writer, consumed);
                } else {
                    std::thread::yield_now();
                }
                assert!(Instant::now() < deadline, "stuck at {}", writer.next());
            }
        });
        let mut reader = there.lane_reader(1, 0);
        let mut grant = there.lane_grant_writer(&there.claim_unlocked(0), 1, 0);
        for n in 0..RECORDS {
            let taken = loop {
                if let Some(taken) = take(&mut reader) {
                    break taken;
                }
                assert!(Instant::now() < deadline, "stuck at {n}");
                std::thread::yield_now();
            };
            assert_eq!(taken, n);
            grant.store(&granted(n + 1));
        }
    });
}
