//! Every limit of the protocol, in one place, with its unit in its name.
//!
//! Constants are what the format can carry; [`Limits`] is what one connection agreed to, never more.

/// One cache line: batches start and end on line boundaries.
pub const LINE_BYTES: usize = 64;
/// Size of a batch's header, its frame header included.
pub const BATCH_HEADER_BYTES: usize = LINE_BYTES;
/// Size of the header of one message in a batch.
pub const MESSAGE_HEADER_BYTES: usize = 8;
/// Messages start at multiples of this within a batch.
pub const MESSAGE_ALIGN_BYTES: usize = 8;

/// Largest batch frame, header included: the largest extent the log can hold.
pub const MAX_BATCH_BYTES: u32 = 16 << 20;
/// Smallest batch frame: the header and one line of payload.
pub const MIN_BATCH_BYTES: u32 = 2 * LINE_BYTES as u32;
/// Batch size a publisher uses by default.
pub const DEFAULT_BATCH_BYTES: u32 = 2 << 20;

/// Largest record (message header, headers, key, value and padding) that any batch can hold.
pub const MAX_RECORD_BYTES: u32 = MAX_BATCH_BYTES - BATCH_HEADER_BYTES as u32;
/// Largest message a topic takes unless it was created with another limit: headers, key and value.
pub const DEFAULT_MAX_MESSAGE_BYTES: u32 = 1 << 20;
/// Longest key; 0xFFFF is taken: it means "no key".
pub const MAX_KEY_BYTES: usize = 0xFFFE;
/// Longest block of headers in one message, with its length fields.
pub const MAX_HEADERS_BYTES: usize = 0xFFFF;
/// Longest name of one message header.
pub const MAX_HEADER_NAME_BYTES: usize = 0xFF;

/// Largest body of a control frame. Large enough for a list of [`MAX_LISTED_TOPICS`] longest names.
pub const MAX_CONTROL_BYTES: u32 = 128 << 10;
/// Largest body of a control frame that brokers accept: requests are small, only answers are long.
pub const MAX_REQUEST_BYTES: u32 = 4 << 10;
/// Most batches that one ack frame acknowledges.
pub const MAX_ACK_BATCHES: usize = 4096;
/// Largest body of an ack frame.
pub const MAX_ACK_BYTES: u32 = 16 + 8 * MAX_ACK_BATCHES as u32;

/// Longest topic name.
pub const MAX_TOPIC_NAME_BYTES: usize = 249;
/// Most topics in one answer: of more the rest is asked for next.
pub const MAX_LISTED_TOPICS: usize = 256;
/// Most brokers of a cluster.
pub const MAX_BROKERS: usize = 128;
/// Largest replication factor of a topic: memory and eight disks.
pub const MAX_REPLICATION_FACTOR: u8 = 9;

/// What a topic costs in a list beyond its name: six numbers and the tags, as Protobuf.
const TOPIC_ENTRY_BYTES: usize = 64;

const _: () = {
    assert!((MAX_BATCH_BYTES as usize).is_multiple_of(LINE_BYTES));
    assert!(DEFAULT_BATCH_BYTES <= MAX_BATCH_BYTES);
    assert!(MIN_BATCH_BYTES <= DEFAULT_BATCH_BYTES);
    assert!(LINE_BYTES.is_multiple_of(MESSAGE_ALIGN_BYTES));
    assert!(MESSAGE_HEADER_BYTES == MESSAGE_ALIGN_BYTES);
    // The largest default message, with the longest key, fits the default batch.
    assert!(DEFAULT_MAX_MESSAGE_BYTES + 64 <= DEFAULT_BATCH_BYTES - BATCH_HEADER_BYTES as u32);
    assert!(
        MAX_LISTED_TOPICS * (MAX_TOPIC_NAME_BYTES + TOPIC_ENTRY_BYTES)
            <= MAX_CONTROL_BYTES as usize
    );
    assert!(MAX_ACK_BYTES <= MAX_CONTROL_BYTES);
    assert!(MAX_REQUEST_BYTES <= MAX_CONTROL_BYTES);
    assert!(MAX_TOPIC_NAME_BYTES + TOPIC_ENTRY_BYTES <= MAX_REQUEST_BYTES as usize);
};

/// What one connection accepts. Checked before anything is read into memory or allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of a control frame, in bytes.
    pub max_control_bytes: u32,
    /// Largest batch frame, header included, in bytes.
    pub max_batch_bytes: u32,
}

impl Limits {
    /// These limits, lowered to what the format can carry.
    #[must_use]
    pub fn new(max_control_bytes: u32, max_batch_bytes: u32) -> Self {
        Self {
            max_control_bytes: max_control_bytes.min(MAX_CONTROL_BYTES),
            max_batch_bytes: max_batch_bytes.min(MAX_BATCH_BYTES),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(MAX_CONTROL_BYTES, MAX_BATCH_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_never_exceed_the_format() {
        assert_eq!(Limits::new(u32::MAX, u32::MAX), Limits::default());
        assert_eq!(Limits::new(100, 200).max_batch_bytes, 200);
    }
}
