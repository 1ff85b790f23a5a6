//! What a region must still hold: nothing may go while there is room for it.
//!
//! Everything that is published is counted against what one broker has room for, as if that broker had taken all of it,
//! and a part of its room is left out: for the ends of extents and pages, for batches that were sent again to another
//! broker, and for what was published and not yet counted. So what must be there by this count is there in a log that
//! keeps its promises, whichever brokers were up.

use std::collections::VecDeque;

use embar_fabric::geometry::{Geometry, UNIT_BYTES};
use embar_fabric::{goi, index};
use embar_wire::limits::{
    BATCH_HEADER_BYTES, LINE_BYTES, MESSAGE_ALIGN_BYTES, MESSAGE_HEADER_BYTES,
};

use super::plan::VerifyPlan;

/// How finely it is known what may be gone.
const MARKS: u64 = 32;

/// Bytes that one message takes.
pub fn bytes_of(plan: &VerifyPlan) -> u64 {
    let message = plan.message_bytes as usize + MESSAGE_HEADER_BYTES;
    message.next_multiple_of(MESSAGE_ALIGN_BYTES) as u64
}

/// So much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    messages: u64,
    bytes: u64,
    batches: u64,
}

/// What was published, and how much of that must still be there.
#[derive(Debug)]
pub struct Room {
    message_bytes: u64,
    /// Bytes that are kept.
    bytes: u64,
    /// Batches that are kept.
    batches: u64,
    published: Amount,
    /// What was published at some times before, oldest first; the first of them is the oldest that must be there.
    marks: VecDeque<Amount>,
}

impl Room {
    /// Of a region of this shape.
    pub fn of(geometry: &Geometry, plan: &VerifyPlan) -> Self {
        // Of an extent up to one batch is lost, so of small ones with large batches nearly half.
        let eighths = match u64::from(plan.batch_bytes) {
            0..=UNIT_BYTES => 6,
            _ => 3,
        };
        // Each reign, and each process of a broker, begins a page of its own.
        let records = match plan.order {
            0 | 1 => u64::from(geometry.index_pages) * u64::from(index::PAGE_RECORDS),
            _ => u64::from(geometry.goi_pages) * u64::from(goi::PAGE_RECORDS),
        };
        let kept = match plan.retention_bytes {
            0 => geometry.blog_bytes,
            limit => limit.min(geometry.blog_bytes),
        };
        let bytes = kept / 8 * eighths;
        Self::new(bytes, records / 2, bytes_of(plan))
    }

    /// For so many bytes in so many batches, of messages of `message_bytes`.
    pub fn new(bytes: u64, batches: u64, message_bytes: u64) -> Self {
        Self {
            message_bytes,
            bytes,
            batches,
            published: Amount::default(),
            marks: VecDeque::from([Amount::default()]),
        }
    }

    /// A batch was begun, `messages` after the one before of the same publisher.
    pub fn begun(&mut self, messages: u64) {
        self.published.messages += messages;
        self.published.bytes +=
            messages * self.message_bytes + (BATCH_HEADER_BYTES + LINE_BYTES) as u64;
        self.published.batches += 1;
        let now = self.published;
        let last = self.marks.back().copied().unwrap_or_default();
        if now.bytes - last.bytes >= self.bytes / MARKS
            || now.batches - last.batches >= self.batches / MARKS
        {
            self.marks.push_back(now);
        }
        let fits = |from: &Amount| {
            now.bytes - from.bytes <= self.bytes && now.batches - from.batches <= self.batches
        };
        while self.marks.front().is_some_and(|mark| !fits(mark)) {
            self.marks.pop_front();
        }
    }

    /// The position from which on everything must be there. Where each broker counts its own it is higher than need be.
    pub fn kept_from(&self) -> u64 {
        let oldest = self.marks.front();
        oldest.map_or(self.published.messages, |mark| mark.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_kept_until_the_room_is_used_up_and_then_the_latest() {
        // Batches of 10 messages of 87 bytes take 998.
        let mut room = Room::new(99_800, u64::MAX, 87);
        for _ in 0..100 {
            room.begun(10);
            assert_eq!(room.kept_from(), 0);
        }
        room.begun(10);
        // The next marks: after at least 1/32 of the room each, so 4 batches.
        assert_eq!(room.kept_from(), 40);
        for _ in 0..1000 {
            room.begun(10);
            let kept = room.published.messages - room.kept_from();
            assert!((960..=1000).contains(&kept), "{kept}");
        }
        assert!(room.marks.len() as u64 <= MARKS + 1);
    }

    #[test]
    fn tiny_batches_use_up_the_records_first() {
        let mut room = Room::new(u64::MAX, 64, 8);
        (0..64).for_each(|_| room.begun(1));
        assert_eq!(room.kept_from(), 0);
        room.begun(1);
        assert_eq!(room.kept_from(), 2);
    }

    #[test]
    fn a_batch_larger_than_all_of_it_leaves_nothing_that_must_be_there() {
        let mut room = Room::new(1000, 10, 100);
        room.begun(11);
        assert_eq!(room.kept_from(), 11);
    }

    #[test]
    fn a_broker_has_a_share_and_large_batches_need_more_of_it() {
        let geometry = Geometry::for_cluster(1 << 30, 2, 1, 0, None).expect("a shape");
        let plan = super::super::plan::tests::plan();
        let small = Room::of(&geometry, &plan);
        assert!(small.bytes < 3 << 28, "of one broker, not of all");
        assert_eq!(small.message_bytes, 208);
        let large = VerifyPlan {
            batch_bytes: 1 << 20,
            ..plan
        };
        assert_eq!(Room::of(&geometry, &large).bytes * 2, small.bytes);
    }
}
