//! A batch as its record describes it, whether the record is in the index (orders 0 and 1) or in the order (orders 2
//! and 5). Whoever takes the batch's bytes from the payload file compares their header with it.

use embar_fabric::records::{GoiRecord, IndexRecord};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::MAX_BATCH_BYTES;

/// A batch as its record in the index or in the order describes it. Nothing says that the batch is there.
#[derive(Clone, Copy)]
pub(super) struct BatchRecord {
    /// Offset of its first message.
    pub base: u64,
    /// Messages in it.
    pub count: u32,
    pub producer: u64,
    pub sequence: u64,
    /// Where it lies in the payload file, in bytes.
    pub payload_at: u64,
    /// Bytes, header included.
    pub len: u32,
    /// Order of its extent: 64 KiB << order.
    pub extent_order: u8,
    /// Whether the header has the offset. Headers of ordered topics do not.
    pub is_stamped: bool,
}

impl From<&IndexRecord> for BatchRecord {
    fn from(record: &IndexRecord) -> Self {
        Self {
            base: record.base,
            count: record.count,
            producer: record.producer,
            sequence: record.sequence,
            payload_at: record.payload_at,
            len: record.len,
            extent_order: record.extent_order,
            is_stamped: true,
        }
    }
}

impl From<&GoiRecord> for BatchRecord {
    fn from(record: &GoiRecord) -> Self {
        Self {
            base: record.base,
            count: record.count,
            producer: record.producer,
            sequence: record.sequence,
            payload_at: record.payload_at,
            len: record.len,
            extent_order: record.extent_order(),
            is_stamped: false,
        }
    }
}

/// The header that `bytes` begin with, if it is that of the batch of an ordered topic to which a record of the order points.
pub fn ordered_header(record: &GoiRecord, topic: u32, bytes: &[u8]) -> Option<BatchHeader> {
    BatchRecord::from(record).header_in(bytes, topic)
}

/// The same of a topic that is not ordered, to which a record of an index points.
pub fn indexed_header(record: &IndexRecord, topic: u32, bytes: &[u8]) -> Option<BatchHeader> {
    BatchRecord::from(record).header_in(bytes, topic)
}

impl BatchRecord {
    /// Offset after its last message.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.count.into())
    }

    /// The header that `bytes` begin with, if it is that of this batch.
    pub fn header_in(&self, bytes: &[u8], topic: u32) -> Option<BatchHeader> {
        let header = BatchHeader::parse(bytes, MAX_BATCH_BYTES).ok()?;
        let found = (header.producer(), header.sequence(), header.topic());
        let lengths = (header.frame_len(), header.message_count());
        let same = found == (self.producer, self.sequence, topic)
            && lengths == (self.len, self.count)
            && (!self.is_stamped || header.base_offset() == self.base);
        same.then_some(header)
    }
}
