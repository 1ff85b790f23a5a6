//! Batches of messages as the log has them: behind a header of 64 bytes, messages with 8 bytes before each.

use embar_frame::Crc;
use embar_memory::streaming;
use embar_wire::limits::{
    BATCH_HEADER_BYTES, LINE_BYTES, MESSAGE_ALIGN_BYTES, MESSAGE_HEADER_BYTES,
};

/// About as many bytes are put together in the first-level cache, before they go past the caches.
const PART_BYTES: usize = 8 << 10;

/// Messages of one size, and batches of one size for them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    batch_bytes: usize,
    message_bytes: usize,
}

impl Shape {
    /// `None` if no message fits.
    pub fn new(batch_bytes: u32, message_bytes: u32) -> Option<Self> {
        let shape = Self {
            batch_bytes: batch_bytes as usize,
            message_bytes: message_bytes as usize,
        };
        (message_bytes > 0 && shape.messages() > 0).then_some(shape)
    }

    /// Bytes of a message.
    pub fn message_bytes(self) -> usize {
        self.message_bytes
    }

    /// Messages of a batch.
    pub fn messages(self) -> u64 {
        (self.batch_bytes.saturating_sub(BATCH_HEADER_BYTES) / self.record()) as u64
    }

    /// Bytes of the values in a batch.
    pub fn value_bytes(self) -> u64 {
        self.messages() * self.message_bytes as u64
    }

    /// Bytes of a batch, without what is left over behind its last message.
    pub fn used(self) -> usize {
        BATCH_HEADER_BYTES + self.messages() as usize * self.record()
    }

    /// Bytes of a message and its header.
    fn record(self) -> usize {
        MESSAGE_HEADER_BYTES + self.message_bytes.next_multiple_of(MESSAGE_ALIGN_BYTES)
    }

    /// Copies `value` into a batch as often as it fits.
    pub fn fill(self, batch: &mut [u8], value: &[u8]) {
        self.fill_part(&mut batch[BATCH_HEADER_BYTES..self.used()], value);
    }

    /// As [`Self::fill`], past the caches. `see` is shown all messages, in parts.
    pub fn stream(self, batch: &mut [u8], value: &[u8], mut see: impl FnMut(&[u8])) {
        // So many messages are whole cache lines.
        let several = LINE_BYTES / MESSAGE_ALIGN_BYTES * self.record();
        let body = &mut batch[BATCH_HEADER_BYTES..self.used()];
        let part_bytes = (PART_BYTES / several).max(1) * several;
        let mut part = vec![0; part_bytes.min(body.len())];
        streaming::fill(body, &mut part, |part| {
            self.fill_part(part, value);
            see(part);
        });
    }

    fn fill_part(self, part: &mut [u8], value: &[u8]) {
        let header = (self.message_bytes as u64).to_le_bytes();
        for place in part.chunks_exact_mut(self.record()) {
            let (head, rest) = place.split_at_mut(MESSAGE_HEADER_BYTES);
            head.copy_from_slice(&header);
            // Each message is another one for all that the compiler knows.
            rest[..value.len()].copy_from_slice(std::hint::black_box(value));
        }
    }
}

/// Copies bytes past the caches, and returns the checksum of what is now in `into`, as who must not trust the writer of
/// `from` does.
pub fn copy_checked(into: &mut [u8], from: &[u8]) -> u32 {
    let mut crc = Crc::new();
    streaming::copy_seen(from, into, |part| crc.update(part));
    crc.value()
}

/// The sum of all whole words: it touches every byte, and does nothing else.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, _rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_filled_with_whole_messages_and_both_ways_fill_alike() {
        for message_bytes in [1, 64, 1000, 5000] {
            let shape = Shape::new(64 << 10, message_bytes).expect("fits");
            let value: Vec<u8> = (0..message_bytes).map(|i| i as u8 | 1).collect();
            let (mut plain, mut checked) = (vec![0; 64 << 10], vec![0; 64 << 10]);
            shape.fill(&mut plain, &value);
            let mut crc = Crc::new();
            shape.stream(&mut checked, &value, |part| crc.update(part));
            assert_eq!(plain, checked);
            let body = &plain[BATCH_HEADER_BYTES..shape.used()];
            assert_eq!(crc.value(), embar_frame::crc32c(body));
            let records = body.chunks_exact(shape.record());
            assert_eq!(records.len() as u64, shape.messages());
            for record in records {
                assert_eq!(&record[8..][..value.len()], value);
            }
            assert!((64 << 10) - shape.used() < shape.record(), "one more fits");
        }
        assert!(Shape::new(128, 57).is_none(), "no room for a message");
        assert!(Shape::new(128, 56).is_some());
    }

    #[test]
    fn a_copy_has_the_checksum_of_its_bytes() {
        let from: Vec<u8> = (0..100_000u32).map(|i| (i * 31 % 251) as u8).collect();
        let mut into = vec![0; from.len()];
        assert_eq!(copy_checked(&mut into, &from), embar_frame::crc32c(&from));
        assert_eq!(into, from);
    }

    #[test]
    fn each_byte_counts_in_the_sum() {
        let mut bytes = vec![0; 4096];
        for at in [0, 7, 8, 4095] {
            bytes[at] += 1;
            let before = sum(&bytes);
            bytes[at] -= 1;
            assert_ne!(sum(&bytes), before, "{at}");
        }
    }
}
