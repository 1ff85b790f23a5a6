//! Lanes, notices, and who sleeps.

use embar_fabric::layout::TableId;
use embar_fabric::slot::SLOT_BYTES;
use embar_fabric::{LaneGrant, LaneReader, Notice, PbrRecord};
use loom::sync::{Arc, Notify};

use crate::memory::{
    Modelled, entry, explore_region, explore_region_within, record as record_at, row, spawn_roomy,
    words,
};

/// A record that shows when it is torn.
fn record(n: u64) -> PbrRecord {
    PbrRecord {
        payload_at: n + 1,
        incarnation: n as u32 + 1,
        ..Default::default()
    }
}

/// Takes the next record, if it is there, and checks that it is the one and whole.
fn take(reader: &mut LaneReader<Modelled>) -> Option<u64> {
    let expected = reader.position();
    let (number, found) = reader.take().found()?;
    assert_eq!((number, found), (expected, record(number)));
    Some(number)
}

/// Differs only in the words that are modelled.
fn notice(n: u64) -> Notice {
    let mut reserved = [0; 20];
    reserved[12..].fill(n as u8 + 1);
    Notice {
        lane_number: n + 1,
        reserved,
        ..Default::default()
    }
}

/// The writer overwrites what was granted and nothing else, and the grant is a row of memory.
#[test]
fn no_record_is_overwritten_before_it_is_granted() {
    explore_region_within(
        1,
        |layout| {
            let slots = entry(layout, TableId::LaneSlots, 2);
            let slots = [slots, slots + 64].into_iter();
            let grant = entry(layout, TableId::LaneGrants, 1);
            let slots = slots.flat_map(record_at);
            slots.chain(row(grant, &[0]))
        },
        |region| {
            let mut writer = region.lane_writer(&region.claim_unlocked(1), 0);
            for n in 0..2 {
                assert_eq!(writer.publish(0, &record(n)), n);
            }
            assert!(!writer.has_room(0));
            let mut grant = region.lane_grant_writer(&region.claim_unlocked(0), 1, 0);
            grant.store(&LaneGrant::default());
            let there = region.clone();
            let thread = spawn_roomy(move || {
                for _ in 0..2 {
                    let granted = there
                        .lane_grant(0, 1, 0)
                        .found()
                        .map_or(0, |grant| grant.consumed);
                    while writer.has_room(granted) {
                        writer.publish(granted, &record(writer.next()));
                    }
                }
                writer.next()
            });
            let mut reader = region.lane_reader(1, 0);
            for _ in 0..2 {
                let taken = take(&mut reader);
                assert!(taken.is_some(), "overwritten before it was granted");
                grant.store(&LaneGrant {
                    consumed: reader.position(),
                    ..Default::default()
                });
            }
            let published = thread.join().unwrap();
            while reader.position() < published {
                assert!(take(&mut reader).is_some(), "a record is lost");
            }
            assert_eq!(take(&mut reader), None);
        },
    );
}

/// A notice answers a record, and the next record needs an answer read: so the ring of notices
/// never overflows, although its reader does not say how far it has read.
#[test]
fn no_notice_is_overwritten_before_it_is_read() {
    explore_region(
        |layout| {
            let lane = record_at(entry(layout, TableId::LaneSlots, 2));
            let notices = entry(layout, TableId::Notices, 2);
            let copies = [notices, notices + SLOT_BYTES]
                .into_iter()
                .flat_map(record_at);
            lane.chain(copies)
        },
        |region| {
            let (broker, head) = (region.claim_unlocked(1), region.claim_unlocked(0));
            let mut lane = region.lane_writer(&broker, 0);
            let mut notices = region.notice_writer(&head, 1, 0);
            for n in 0..2 {
                lane.publish(0, &record(n));
                notices.publish(&notice(n));
            }
            let mut unread = region.notice_reader(0, 1, 0, 0);
            let thread = spawn_roomy(move || {
                assert_eq!(
                    unread.peek(0).found(),
                    Some(notice(0)),
                    "answered and not read yet"
                );
                unread.advance();
                lane.publish(2, &record(2));
                assert_eq!(unread.peek(0).found(), Some(notice(1)));
                unread.advance();
                unread
            });
            let mut reader = region.lane_reader(1, 0);
            reader.seek(2);
            let mut answered = 2;
            for _ in 0..2 {
                if let Some(number) = take(&mut reader) {
                    notices.publish(&notice(number));
                    answered += 1;
                }
            }
            let mut unread = thread.join().unwrap();
            for n in 2..answered {
                assert_eq!(unread.peek(0).found(), Some(notice(n)));
                unread.advance();
            }
            assert_eq!(unread.peek(0).found(), None);
        },
    );
}

/// A wake-up that got lost leaves the sleeper in `wait`, which the model checker reports.
#[test]
fn no_wake_up_is_lost() {
    explore_region(
        |layout| {
            let lane = record_at(entry(layout, TableId::LaneSlots, 2));
            // Row 0 has two sleepers: its lane's thread and the sequencer.
            let asleep = words(entry(layout, TableId::Sleepers, 1), &[0]);
            lane.chain(asleep)
        },
        |region| {
            let wakeup = Arc::new(Notify::new());
            let mut lane = region.lane_writer(&region.claim_unlocked(1), 0);
            let sequencer = || region.sleep_flag(0, region.sequencer_thread());
            let (waker, ring) = (sequencer(), Arc::clone(&wakeup));
            let thread = spawn_roomy(move || {
                lane.publish(0, &record(0));
                if waker.is_asleep() {
                    ring.notify();
                }
            });
            let (sleeper, mut reader) = (sequencer(), region.lane_reader(1, 0));
            sleeper.set(true);
            while take(&mut reader).is_none() {
                wakeup.wait();
            }
            sleeper.set(false);
            thread.join().unwrap();
        },
    );
}
