use std::time::{Duration, Instant};

use embar_fabric::{Geometry, LaneProgress, LaneReader, LaneWriter, Memory, PbrRecord};

use crate::common::small;
use crate::setup::Setup;

fn record(n: u64) -> PbrRecord {
    PbrRecord {
        sequence: n,
        blog_at: n * 64,
        len: n as u32,
        ..Default::default()
    }
}

fn put<M: Memory>(writer: &mut LaneWriter<M>, n: u64) -> Option<u64> {
    let slot = writer.reserve()?;
    Some(writer.publish(slot, &record(n)))
}

fn take<M: Memory>(reader: &mut LaneReader<M>) -> Option<u64> {
    reader.next().map(|(_, record)| record.sequence)
}

fn both(n: u64) -> LaneProgress {
    LaneProgress {
        consumed: n,
        completed: n,
    }
}

pub fn the_smallest_ring_wraps<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 1);
    let mut reader = there.lane_reader(1, 1);
    let mut progress = there.lane_progress_writer(1, 1);
    assert_eq!(take(&mut reader), None, "garbage is not a record");
    for n in 0..50 {
        assert_eq!(put(&mut writer, n), Some(n));
        let (sequence, found) = reader.next().expect("published");
        assert_eq!((sequence, found), (n, record(n)));
        assert_eq!(
            take(&mut reader),
            None,
            "the slot's older lap is not a record"
        );
        progress.advance(both(n + 1));
    }
    assert_eq!(here.lane_progress(1, 1), both(50));
    assert_eq!(
        take(&mut there.lane_reader(1, 0)),
        None,
        "a lane of its own"
    );
}

pub fn a_full_ring_refuses<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
    let mut progress = there.lane_progress_writer(1, 0);
    assert_eq!(put(&mut writer, 0), Some(0));
    assert_eq!(put(&mut writer, 1), Some(1));
    assert!(
        writer.reserve().is_none(),
        "both slots hold what nobody consumed"
    );
    progress.advance(LaneProgress {
        consumed: 0,
        completed: 0,
    });
    assert!(
        writer.reserve().is_none(),
        "zero consumed is not full, nor empty"
    );
    progress.advance(LaneProgress {
        consumed: 1,
        completed: 0,
    });
    assert_eq!(put(&mut writer, 2), Some(2));
    assert!(writer.reserve().is_none());
    assert_eq!(
        writer.progress(),
        LaneProgress {
            consumed: 1,
            completed: 0
        }
    );
    progress.advance(LaneProgress {
        consumed: 0,
        completed: 1,
    });
    assert_eq!(writer.progress(), both(1), "numbers never fall");
    assert!(writer.reserve().is_none());
}

pub fn a_new_writer_is_never_mistaken_for_the_old<S: Setup>() {
    for consumed in 0..=5 {
        let setup = S::new(&small());
        let (first, second, there) = (setup.host(), setup.host(), setup.host());
        let mut reader = there.lane_reader(1, 0);
        let mut progress = there.lane_progress_writer(1, 0);
        let mut writer = first.lane_writer(&first.claim_unlocked(1), 0);
        for n in 0..5 {
            assert_eq!(put(&mut writer, n), Some(n));
            if n < consumed {
                assert_eq!(take(&mut reader), Some(n));
                progress.advance(both(n + 1));
            } else if n + 1 >= consumed + 2 {
                break;
            }
        }
        let dead_next = writer.next();
        drop(writer);
        let mut writer = second.lane_writer(&second.claim_unlocked(1), 0);
        assert_eq!(writer.next(), dead_next, "above all that was published");
        let mut late = there.lane_reader(1, 0);
        assert_eq!(take(&mut late), None, "nothing of the old writer");
        assert_eq!(put(&mut writer, 100), Some(dead_next));
        assert_eq!(put(&mut writer, 101), Some(dead_next + 1));
        assert!(writer.reserve().is_none(), "full");
        // Whoever was reading goes on with the new writer's records.
        assert_eq!(take(&mut reader), Some(100));
        assert_eq!(take(&mut reader), Some(101));
        assert_eq!(take(&mut late), Some(100));
        progress.advance(both(reader.position()));
        assert_eq!(put(&mut writer, 102), Some(dead_next + 2));
        assert_eq!(take(&mut reader), Some(102));
    }
}

pub fn a_wild_consumer_does_not_overwrite<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.lane_writer(&here.claim_unlocked(1), 0);
    put(&mut writer, 0).expect("empty");
    there.lane_progress_writer(1, 0).advance(both(u64::MAX));
    assert_eq!(writer.progress(), both(1));
    assert_eq!(put(&mut writer, 1), Some(1));
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
            let mut n = 0;
            while n < RECORDS {
                match put(&mut writer, n) {
                    Some(_) => n += 1,
                    None => std::thread::yield_now(),
                }
                assert!(Instant::now() < deadline, "stuck at {n}");
            }
        });
        let mut reader = there.lane_reader(1, 0);
        let mut progress = there.lane_progress_writer(1, 0);
        let mut n = 0;
        while n < RECORDS {
            match reader.next() {
                Some((sequence, found)) => {
                    assert_eq!((sequence, found), (n, record(n)));
                    n += 1;
                    progress.advance(both(n));
                }
                None => std::thread::yield_now(),
            }
            assert!(Instant::now() < deadline, "stuck at {n}");
        }
    });
}
