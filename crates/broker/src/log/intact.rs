//! Whether the bytes of a batch that a dead broker left are still those that its record describes.
//!
//! Before it died, the broker may have learned that the batch has no position, and used the memory again.

use embar_fabric::PbrRecord;
use embar_fabric::region::Region;
use embar_frame::Crc;
use embar_memory::{Foreign, Memory};
use embar_wire::batch::BatchHeader;
use embar_wire::limits::BATCH_HEADER_BYTES;

/// Bytes copied at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Whether the batch that `record` points to is whole in the payload file of `row`.
pub fn is_intact<M: Memory>(region: &Region<M>, row: u16, record: &PbrRecord) -> bool {
    let Some(batch) = region.foreign(row, record.payload_at, record.len) else {
        return false;
    };
    batch.invalidate();
    header_of(&batch).is_some_and(|header| {
        matches_record(&header, record) && payload_crc(&batch) == record.payload_crc
    })
}

/// Whether `bytes` are the header of the batch that `record` describes.
pub(super) fn is_header_of(bytes: &[u8], record: &PbrRecord) -> bool {
    BatchHeader::parse(bytes, record.len).is_ok_and(|header| matches_record(&header, record))
}

fn header_of<M: Memory>(batch: &Foreign<M>) -> Option<BatchHeader> {
    let mut header = [0; BATCH_HEADER_BYTES];
    if batch.len() < header.len() {
        return None;
    }
    batch.copy_to(0, &mut header);
    BatchHeader::parse(&header, u32::try_from(batch.len()).ok()?).ok()
}

fn matches_record(header: &BatchHeader, record: &PbrRecord) -> bool {
    header.frame_len() == record.len
        && header.topic() == record.chain
        && header.producer() == record.producer
        && header.sequence() == record.sequence
        && header.epoch() == record.session_epoch
        && header.message_count() == record.count
        && header.payload_crc() == record.payload_crc
}

fn payload_crc<M: Memory>(batch: &Foreign<M>) -> u32 {
    let mut crc = Crc::new();
    let mut chunk = vec![0; CHUNK_BYTES.min(batch.len())];
    let mut at = BATCH_HEADER_BYTES;
    while at < batch.len() {
        let len = chunk.len().min(batch.len() - at);
        batch.copy_to(at, &mut chunk[..len]);
        crc.update(&chunk[..len]);
        at += len;
    }
    crc.value()
}
