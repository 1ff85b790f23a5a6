//! Stale submissions: batches that older incarnations of this broker left in its lanes.
//!
//! A sequencer that does not know what was answered takes the whole batches of a dead broker's lanes
//! for ones that still wait, and the sessions say which of them it has. So a batch without a position must be
//! void when its memory is used again, or it would be ordered where other batches lie. An incarnation voids
//! its own batches when it learns that they have no position; here it voids those whose answers an older one
//! did not learn before it died.

use std::collections::BTreeMap;

use embar_fabric::Seen;
use embar_fabric::records::{PbrKind, PbrRecord};
use embar_memory::{Memory, PayloadFile};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::Log;
use super::intact::is_header_of;
use super::order::void;
use super::topic_recovery::peek;

impl<M: Memory> Log<M> {
    /// Voids what older incarnations submitted and the order does not point to. The sequencer has taken
    /// all that it ever will of it, and no memory was used since. Batches of a topic whose order is damaged
    /// stay: they may be in the part that cannot be read.
    pub(super) fn void_stale(&self) {
        let row = self.claim.row();
        let batches = self.ordered.values().flat_map(|topic| topic.own(row));
        let placed = batches.map(|batch| (batch.payload_at, batch.len));
        let damaged = self.ordered.keys().filter(|id| self.is_damaged(**id));
        let unresolved = damaged.flat_map(|id| self.stale_batches_of(*id));
        let unresolved = unresolved.map(|record| (record.payload_at, record.len));
        let kept: BTreeMap<u64, u64> = placed
            .chain(unresolved)
            .map(|(at, len)| (at, at.saturating_add(len.into())))
            .collect();
        self.each_stale(|record| {
            if !self.is_damaged(record.chain) && !overlaps(&kept, record.payload_at) {
                self.void_batch(record);
            }
        });
    }

    /// The batches of a topic that older incarnations submitted and whose headers are still there.
    pub(super) fn stale_batches_of(&self, topic: u32) -> Vec<PbrRecord> {
        let mut stale = Vec::new();
        self.each_stale(|record| {
            if record.chain == topic && self.has_header(record) {
                stale.push(*record);
            }
        });
        stale
    }

    /// Whether the header of the batch is there that `record` points to, in memory that is free. What
    /// lies in memory that is kept is known by other records.
    fn has_header(&self, record: &PbrRecord) -> bool {
        let place = (record.payload_at, record.len, record.extent_order());
        peek(&self.payload_file, place, |bytes| {
            is_header_of(bytes, record)
        })
        .unwrap_or(false)
    }

    /// Calls `each` with every batch that is still in the lanes.
    fn each_stale(&self, mut each: impl FnMut(&PbrRecord)) {
        for lane in 0..self.region.geometry().lanes {
            let mut reader = self.region.lane_reader(self.claim.row(), lane);
            reader.seek_oldest();
            loop {
                match reader.take() {
                    Seen::Found((_, record)) => {
                        if PbrKind::from_number(record.kind) == Some(PbrKind::Batch) {
                            each(&record);
                        }
                    }
                    // No sequencer can read it, either.
                    Seen::Damaged => {}
                    Seen::Nothing => break,
                }
            }
        }
    }

    /// The record's numbers come from shared memory. Memory that other batches use since is not touched:
    /// whatever lay there before was settled when that memory was given up. Readers of the incarnation before may keep the
    /// block, but not this part of it: of an ordered topic only payload is lent.
    fn void_batch(&self, record: &PbrRecord) {
        let order = record.extent_order();
        if self.has_header(record)
            && let Some((start, _)) = PayloadFile::<M>::locate(record.payload_at, record.len, order)
            && let Some(mut extent) = self.payload_file.allocate_at(start, order)
        {
            extent.set_cursor((record.payload_at - start) as u32);
            if let Some(mut header) = extent.reserve_unlent(BATCH_HEADER_BYTES as u32) {
                void(&mut header);
            }
        }
    }
}

/// Whether a header at `at` lies in one of the ranges, which do not overlap each other.
fn overlaps(ranges: &BTreeMap<u64, u64>, at: u64) -> bool {
    let end = at.saturating_add(BATCH_HEADER_BYTES as u64);
    let before = ranges.range(..end).next_back();
    before.is_some_and(|(_, its_end)| *its_end > at)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use embar_fabric::Geometry;
    use embar_memory::payload::UNIT_BYTES;
    use embar_wire::batch::{BatchHeader, SealFields};
    use embar_wire::builder::BatchBuilder;

    use super::*;
    use crate::log::Watermarks;
    use crate::test_region::{self, kept_payload};

    #[test]
    fn a_batch_is_voided_although_readers_of_a_dead_broker_keep_its_block() {
        let bytes = 2 * UNIT_BYTES;
        let region = test_region::region(&Geometry {
            payload_bytes: bytes,
            ..test_region::geometry()
        });
        let marks = Watermarks {
            high_bytes: bytes,
            low_bytes: bytes,
        };
        let claim = Arc::new(region.claim_unlocked(1));
        let mut log = Log::open(&region, &claim, marks, &[]);
        let (payload, _reader) = kept_payload(bytes, UNIT_BYTES..bytes);
        log.payload_file = payload;
        let mut builder = BatchBuilder::new(Vec::new(), 4096);
        builder.try_push(None, &[], b"message").expect("fits");
        let frame = builder.seal(SealFields::default());
        let len = frame.len() as u32;
        let header = BatchHeader::parse(&frame, len).expect("sealed");
        for at in [0, UNIT_BYTES] {
            // As the dead broker wrote it.
            let mut extent = log.payload_file.allocate_at(at, 0).expect("in no topic");
            let mut written = extent.reserve_unlent(len).expect("fresh");
            written.write(0, &frame);
            written.commit();
            drop(extent);
            let record = PbrRecord {
                payload_at: at,
                len,
                count: header.message_count(),
                payload_crc: header.payload_crc(),
                ..PbrRecord::default()
            };
            assert!(log.has_header(&record), "at {at}");
            log.void_batch(&record);
            assert!(!log.has_header(&record), "at {at}");
        }
    }

    #[test]
    fn a_header_that_touches_a_range_overlaps_it() {
        let ranges = BTreeMap::from([(64, 192), (256, 320)]);
        let found = [0, 64, 128, 192, 256, 320].map(|at| overlaps(&ranges, at));
        assert_eq!(found, [false, true, true, false, true, false]);
        assert!(overlaps(&ranges, 1) && overlaps(&ranges, 193));
        assert!(!overlaps(&ranges, u64::MAX));
    }
}
