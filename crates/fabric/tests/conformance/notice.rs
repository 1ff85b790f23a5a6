use embar_fabric::{Notice, NoticeReader, NoticeWriter};
use embar_memory::Memory;

use crate::common::small;
use crate::setup::Setup;

fn notice(n: u64) -> Notice {
    Notice {
        lane_number: n,
        mark: n * 3,
        epoch: n as u32,
        ..Default::default()
    }
}

/// Publishes the notice that belongs to its number.
fn publish_next<M: Memory>(writer: &mut NoticeWriter<M>) {
    writer.publish(&notice(writer.next()));
}

fn take<M: Memory>(reader: &mut NoticeReader<M>) -> Option<Notice> {
    let found = reader.peek(0).found()?;
    assert_eq!(
        reader.peek(0).found(),
        Some(found),
        "to look is not to take"
    );
    reader.advance();
    Some(found)
}

pub fn notices_come_in_order<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.notice_writer(&here.claim_unlocked(0), 1, 0);
    let mut reader = there.notice_reader(0, 1, 0, 0);
    assert_eq!(take(&mut reader), None, "garbage is not a notice");
    for n in 0..50 {
        publish_next(&mut writer);
        assert_eq!(take(&mut reader), Some(notice(n)));
        assert_eq!(take(&mut reader), None, "an older lap is not a notice");
    }
    reader.back(1);
    assert_eq!(take(&mut reader), Some(notice(49)), "given back");
}

pub fn as_many_are_kept_as_records_may_wait<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let slots = u64::from(small().lane_slots);
    let mut writer = here.notice_writer(&here.claim_unlocked(0), 1, 0);
    let mut reader = there.notice_reader(0, 1, 0, 0);
    for round in 0..5 {
        for _ in 0..slots {
            publish_next(&mut writer);
        }
        for n in round * slots..(round + 1) * slots {
            assert_eq!(take(&mut reader), Some(notice(n)));
        }
    }
    // One more than the rule allows: what is lost is missed, and never taken for another.
    for _ in 0..=slots {
        publish_next(&mut writer);
    }
    assert_eq!(take(&mut reader), None);
}

pub fn a_new_epoch_goes_on_above<S: Setup>() {
    for count in 0..=5 {
        let setup = S::new(&small());
        let (first, second, there) = (setup.host(), setup.host(), setup.host());
        let mut writer = first.notice_writer(&first.claim_unlocked(0), 1, 0);
        for _ in 0..count {
            publish_next(&mut writer);
        }
        let mut writer = second.notice_writer(&second.claim_unlocked(0), 1, 0);
        assert_eq!(writer.next(), count, "above all that was ever published");
        let mut reader = there.notice_reader(0, 1, 0, writer.next());
        assert_eq!(take(&mut reader), None, "nothing of the epoch before");
        for n in count..count + 5 {
            publish_next(&mut writer);
            assert_eq!(take(&mut reader), Some(notice(n)));
        }
    }
}

pub fn each_area_and_lane_has_its_own<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let (head, standby) = (here.claim_unlocked(0), here.claim_unlocked(3));
    publish_next(&mut here.notice_writer(&head, 1, 0));
    publish_next(&mut here.notice_writer(&standby, 2, 1));
    for (area, row, lane) in [(0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 1, 0), (1, 2, 0)] {
        let mut other = there.notice_reader(area, row, lane, 0);
        assert_eq!(take(&mut other), None, "area {area}, lane {row}.{lane}");
    }
    for (area, row, lane) in [(0, 1, 0), (1, 2, 1)] {
        let mut reader = there.notice_reader(area, row, lane, 0);
        assert_eq!(take(&mut reader), Some(notice(0)));
    }
}
