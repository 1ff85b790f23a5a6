//! What the brokers must still hold: no message may go while there is room for it.
//!
//! The model counts each stream by itself, from its known end: from acknowledgements, from what readers saw, and from what
//! brokers offer. It compares that with the room of one broker, as if that broker had taken all of the stream. Messages
//! whose outcome is open may be in the log, too, so there is that much less room; those that were never stored take none.
//! Messages under way when a broker was disturbed may be sent again, and messages of a publisher that died may have no
//! position in the order: both take room until they have made room themselves. The model leaves out a part of the room,
//! for the ends of extents and pages, and for what is stored and not yet reported. So a log that keeps its promises holds
//! everything that the model demands.
//!
//! The model counts batches over all streams, because nothing says which broker took those whose outcome is open.

use std::collections::{BTreeMap, VecDeque};

use embar_fabric::geometry::Geometry;
use embar_fabric::{goi, index};
use embar_memory::payload::UNIT_BYTES;
use embar_wire::limits::{
    BATCH_HEADER_BYTES, LINE_BYTES, MESSAGE_ALIGN_BYTES, MESSAGE_HEADER_BYTES,
};

use super::plan::VerifyPlan;
use super::reference_log::Stream;

/// Marks for a full room: the precision with which the model knows what may be gone.
const MARKS: u64 = 32;

/// Bytes that one message takes.
pub fn bytes_of(plan: &VerifyPlan) -> u64 {
    let message = plan.message_bytes as usize + MESSAGE_HEADER_BYTES;
    message.next_multiple_of(MESSAGE_ALIGN_BYTES) as u64
}

/// The known length of one stream.
#[derive(Debug)]
struct Length {
    /// Positions below are taken.
    end: u64,
    /// Where the stream ended before, oldest first; what is behind the first mark may have to be there.
    marks: VecDeque<Mark>,
}

/// The end of a stream at one time, when so many batches had begun and so many messages may have been stored in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    position: u64,
    batches: u64,
    wasted: u64,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            end: 0,
            marks: VecDeque::from([Mark::default()]),
        }
    }
}

/// How much was published, and how much of that must still be there.
#[derive(Debug)]
pub struct RetentionModel {
    message_bytes: u64,
    /// Bytes that a broker may keep.
    kept_bytes: u64,
    /// Bytes of them that must be kept.
    bytes: u64,
    /// Batches that must be kept.
    batches: u64,
    /// Batches that were begun.
    begun: u64,
    /// Messages whose outcome is open; negative while an outcome is known before the size of its batch.
    open: i64,
    /// Messages that may have been stored without a position.
    wasted: u64,
    streams: BTreeMap<Stream, Length>,
}

impl RetentionModel {
    /// For brokers with a region of this shape.
    pub fn of(geometry: &Geometry, plan: &VerifyPlan) -> Self {
        // Of an extent up to one batch is lost, so of small ones with large batches nearly half.
        let eighths = match u64::from(plan.batch_bytes) {
            0..=UNIT_BYTES => 6,
            _ => 3,
        };
        // Each term of a sequencer, and each process of a broker, begins a page of its own.
        let records = match plan.order {
            0 | 1 => u64::from(geometry.index_pages) * u64::from(index::PAGE_RECORDS),
            _ => u64::from(geometry.goi_pages) * u64::from(goi::PAGE_RECORDS),
        };
        let kept = match plan.retention_bytes {
            0 => geometry.payload_bytes,
            limit => limit.min(geometry.payload_bytes),
        };
        Self {
            kept_bytes: kept,
            ..Self::new(kept / 8 * eighths, records / 2, bytes_of(plan))
        }
    }

    /// For so many bytes in so many batches, of messages of `message_bytes`.
    pub fn new(bytes: u64, batches: u64, message_bytes: u64) -> Self {
        Self {
            message_bytes,
            kept_bytes: bytes,
            bytes,
            batches,
            begun: 0,
            open: 0,
            wasted: 0,
            streams: BTreeMap::new(),
        }
    }

    /// A publisher began a batch; the one before had `messages` messages.
    pub fn begun(&mut self, messages: u64) {
        self.begun += 1;
        self.open += messages as i64;
    }

    /// The outcome of so many messages is known, or will never be.
    pub fn settled(&mut self, messages: i64) {
        self.open -= messages;
    }

    /// A broker was disturbed: messages with an open outcome may be sent once more.
    pub fn disturbed(&mut self) {
        self.wasted += self.open.max(0) as u64;
    }

    /// The outcome of so many messages will never be known. They may take room, and have no position.
    pub fn abandoned(&mut self, messages: i64) {
        self.settled(messages);
        self.wasted += messages.max(0) as u64;
    }

    /// Positions of a stream below `end` are taken.
    pub fn reaches(&mut self, stream: Stream, end: u64) {
        let length = self.streams.entry(stream).or_default();
        if end <= length.end {
            return;
        }
        length.end = end;
        let now = Mark {
            position: end,
            batches: self.begun,
            wasted: self.wasted,
        };
        let last = length.marks.back().copied().unwrap_or_default();
        let bytes = (now.position - last.position).saturating_mul(self.message_bytes);
        if bytes >= self.bytes / MARKS || now.batches - last.batches >= self.batches / MARKS {
            length.marks.push_back(now);
        }
        let marks = self.streams[&stream].marks.iter();
        let gone = marks.take_while(|mark| !self.fits(mark, end, 0)).count();
        if let Some(length) = self.streams.get_mut(&stream) {
            length.marks.drain(..gone);
        }
    }

    /// Whether there is room for everything from a mark to the end of its stream, and for `more` messages.
    fn fits(&self, from: &Mark, end: u64, more: u64) -> bool {
        let batches = self.begun - from.batches;
        let messages = end - from.position + (self.wasted - from.wasted);
        let messages = messages.saturating_add(more);
        let heads = batches.saturating_mul((BATCH_HEADER_BYTES + LINE_BYTES) as u64);
        let bytes = messages.saturating_mul(self.message_bytes);
        bytes.saturating_add(heads) <= self.bytes && batches <= self.batches
    }

    /// The position behind the highest known one of a stream.
    pub fn end(&self, stream: Stream) -> u64 {
        self.streams.get(&stream).map_or(0, |length| length.end)
    }

    /// Everything from this position of a stream on must be there.
    pub fn kept_from(&self, stream: Stream) -> u64 {
        let open = self.open.max(0) as u64;
        let nothing;
        let length = match self.streams.get(&stream) {
            Some(length) => length,
            None => {
                nothing = Length::default();
                &nothing
            }
        };
        let mut marks = length.marks.iter();
        let oldest = marks.find(|mark| self.fits(mark, length.end, open));
        oldest.map_or(length.end.saturating_add(open), |mark| mark.position)
    }

    /// Bytes of so many messages.
    pub fn bytes_of(&self, messages: u64) -> u64 {
        messages.saturating_mul(self.message_bytes)
    }

    /// Bytes that a broker may keep.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use embar_fabric::ClusterShape;

    use super::*;

    const ORDER: Stream = None;

    /// A batch is stored at the end of the stream.
    fn store(model: &mut RetentionModel, stream: Stream, messages: u64) {
        model.begun(messages);
        model.settled(messages as i64);
        model.reaches(stream, model.end(stream) + messages);
    }

    #[test]
    fn all_is_kept_until_the_room_is_used_up_and_then_the_latest() {
        // Batches of 10 messages of 87 bytes take 998.
        let mut model = RetentionModel::new(99_800, u64::MAX, 87);
        for _ in 0..100 {
            store(&mut model, ORDER, 10);
            assert_eq!(model.kept_from(ORDER), 0);
        }
        store(&mut model, ORDER, 10);
        // The next marks: after at least 1/32 of the room each, so 4 batches.
        assert_eq!(model.kept_from(ORDER), 40);
        for _ in 0..1000 {
            store(&mut model, ORDER, 10);
            let kept = model.end(ORDER) - model.kept_from(ORDER);
            assert!((960..=1000).contains(&kept), "{kept}");
        }
        assert!(model.streams[&ORDER].marks.len() as u64 <= MARKS + 1);
    }

    #[test]
    fn each_broker_has_the_room_for_itself() {
        let mut model = RetentionModel::new(10_000, u64::MAX, 36);
        for turn in 0..40 {
            store(&mut model, Some(turn % 2), 10);
        }
        for broker in 0..2 {
            assert!(model.kept_from(Some(broker)) < 100, "of 200");
        }
        assert_eq!(model.kept_from(Some(7)), 0, "it has taken nothing");
    }

    #[test]
    fn what_was_not_stored_takes_room_only_while_that_is_unknown() {
        let mut model = RetentionModel::new(9980, u64::MAX, 87);
        (0..5).for_each(|_| store(&mut model, ORDER, 10));
        model.begun(1000);
        assert!(model.kept_from(ORDER) > 50, "all of it may be stored");
        model.settled(1000);
        (0..5).for_each(|_| store(&mut model, ORDER, 10));
        assert!(model.kept_from(ORDER) <= 50);
        // However much of that there is: the room does not fade.
        for _ in 0..1000 {
            model.begun(10);
            model.settled(10);
            store(&mut model, ORDER, 10);
            let kept = model.end(ORDER) - model.kept_from(ORDER);
            assert!((80..=100).contains(&kept), "{kept}");
        }
    }

    #[test]
    fn what_may_be_stored_in_vain_takes_room_until_it_is_gone() {
        let mut model = RetentionModel::new(9980, u64::MAX, 87);
        (0..10).for_each(|_| store(&mut model, ORDER, 10));
        assert_eq!(model.kept_from(ORDER), 0);
        model.begun(30);
        model.disturbed();
        model.settled(30);
        assert!((30..=50).contains(&model.kept_from(ORDER)));
        model.begun(30);
        model.abandoned(30);
        assert!((60..=80).contains(&model.kept_from(ORDER)));
        (0..20).for_each(|_| store(&mut model, ORDER, 10));
        assert!(model.end(ORDER) - model.kept_from(ORDER) >= 90);
    }

    #[test]
    fn tiny_batches_use_up_the_records_first() {
        let mut model = RetentionModel::new(u64::MAX, 64, 8);
        (0..64).for_each(|_| store(&mut model, ORDER, 1));
        assert_eq!(model.kept_from(ORDER), 0);
        store(&mut model, ORDER, 1);
        assert_eq!(model.kept_from(ORDER), 2);
    }

    #[test]
    fn behind_a_batch_larger_than_the_room_nothing_must_be_there() {
        let mut model = RetentionModel::new(1000, 10, 100);
        store(&mut model, ORDER, 11);
        assert_eq!(model.kept_from(ORDER), 11);
    }

    #[test]
    fn a_broker_has_a_share_and_large_batches_need_more_of_it() {
        let shape = ClusterShape {
            region_bytes: 1 << 30,
            data_brokers: 2,
            standbys: 1,
            ..ClusterShape::default()
        };
        let geometry = Geometry::for_cluster(shape).expect("a shape");
        let plan = super::super::plan::tests::plan();
        let small = RetentionModel::of(&geometry, &plan);
        assert!(small.bytes < 3 << 28, "of one broker, not of all");
        assert_eq!(small.message_bytes, 208);
        let large = VerifyPlan {
            batch_bytes: 1 << 20,
            ..plan
        };
        assert_eq!(RetentionModel::of(&geometry, &large).bytes * 2, small.bytes);
    }
}
