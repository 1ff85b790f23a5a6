//! Stamps messages with a sequence number, a time and a checksum of all bytes, and verifies by these that each message
//! arrives once and unchanged.
//!
//! Layout, little-endian: sequence u64, time u64, checksum u32, zero u32, filler. The checksum is that of the first 16
//! bytes xor that of the filler, so that a publisher, whose filler never changes, checksums 16 bytes a message, while a
//! reader checks all of them.

use embar_frame::crc32c;
use embar_meter::random::filler;

/// Smallest message that has room for a stamp.
pub const STAMP_BYTES: usize = 24;

const CHECKED_BYTES: usize = 16;

/// Writes stamped messages, all in one buffer.
pub struct Stamper {
    message: Vec<u8>,
    filler_crc: u32,
}

impl Stamper {
    /// For messages of `bytes` bytes, at least [`STAMP_BYTES`].
    pub fn new(bytes: usize) -> Self {
        assert!(bytes >= STAMP_BYTES, "the plan checks the size of messages");
        let mut message = filler(bytes);
        message[..STAMP_BYTES].fill(0);
        let filler_crc = crc32c(&message[STAMP_BYTES..]);
        Self {
            message,
            filler_crc,
        }
    }

    /// The message with this sequence number and time.
    #[inline]
    pub fn stamp(&mut self, sequence: u64, time: u64) -> &[u8] {
        self.message[..8].copy_from_slice(&sequence.to_le_bytes());
        self.message[8..16].copy_from_slice(&time.to_le_bytes());
        let crc = crc32c(&self.message[..CHECKED_BYTES]) ^ self.filler_crc;
        self.message[16..20].copy_from_slice(&crc.to_le_bytes());
        &self.message
    }
}

/// The time in a message, whether or not it is as it was published.
pub fn time_of(message: &[u8]) -> Option<u64> {
    let time = message.get(8..)?.first_chunk()?;
    Some(u64::from_le_bytes(*time))
}

/// Messages did not arrive as they were published.
#[derive(Debug, thiserror::Error)]
#[error(
    "verification failed: of {expected} messages {missing} are missing{}, {repeated} came more than once, {damaged} are damaged",
    first_missing.map_or_else(String::new, |number| format!(", the first of them number {number}"))
)]
pub struct NotVerified {
    /// Messages that were published.
    pub expected: u64,
    /// Of them, those that did not arrive.
    pub missing: u64,
    /// The number of the first that is missing.
    pub first_missing: Option<u64>,
    /// Messages that arrived again.
    pub repeated: u64,
    /// Messages that were changed on their way, or that another program published.
    pub damaged: u64,
}

/// Checks that each message of a run arrives once and unchanged.
pub struct Verifier {
    bytes: usize,
    seen: Vec<u64>,
    expected: u64,
    arrived: u64,
    repeated: u64,
    damaged: u64,
}

impl Verifier {
    /// Expects the sequence numbers `0..expected` in messages of `bytes` bytes.
    pub fn new(bytes: usize, expected: u64) -> Self {
        Self {
            bytes,
            seen: vec![
                0;
                usize::try_from(expected.div_ceil(64))
                    .expect("a bit per message fits into memory")
            ],
            expected,
            arrived: 0,
            repeated: 0,
            damaged: 0,
        }
    }

    /// Takes a message; returns its time unless it is damaged.
    #[inline]
    pub fn check(&mut self, message: &[u8]) -> Option<u64> {
        let Some((sequence, time)) = self.read(message) else {
            self.damaged += 1;
            return None;
        };
        let (word, bit) = (
            &mut self.seen[(sequence / 64) as usize],
            1 << (sequence % 64),
        );
        if *word & bit == 0 {
            *word |= bit;
            self.arrived += 1;
        } else {
            self.repeated += 1;
        }
        Some(time)
    }

    #[inline]
    fn read(&self, message: &[u8]) -> Option<(u64, u64)> {
        if message.len() != self.bytes {
            return None;
        }
        let (stamp, filler) = message.split_at_checked(STAMP_BYTES)?;
        let word = |at: usize| stamp[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let crc = crc32c(&stamp[..CHECKED_BYTES]) ^ crc32c(filler);
        let (sequence, time) = (word(0)?, word(8)?);
        (stamp[CHECKED_BYTES..20] == crc.to_le_bytes() && sequence < self.expected)
            .then_some((sequence, time))
    }

    /// Whether everything that is expected has arrived.
    pub fn is_complete(&self) -> bool {
        self.arrived == self.expected
    }

    /// An error unless each message arrived once and unchanged.
    pub fn verdict(&self) -> Result<(), NotVerified> {
        if self.is_complete() && self.repeated == 0 && self.damaged == 0 {
            return Ok(());
        }
        Err(NotVerified {
            expected: self.expected,
            missing: self.expected - self.arrived,
            first_missing: self.first_missing(),
            repeated: self.repeated,
            damaged: self.damaged,
        })
    }

    fn first_missing(&self) -> Option<u64> {
        (0..self.expected)
            .find(|sequence| self.seen[(sequence / 64) as usize] & (1 << (sequence % 64)) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(order: &[u64], damage: Option<usize>) -> Result<(), NotVerified> {
        let (mut stamper, mut verifier) = (Stamper::new(100), Verifier::new(100, 70));
        for (index, sequence) in order.iter().enumerate() {
            let mut message = stamper.stamp(*sequence, 5).to_vec();
            if damage == Some(index) {
                message[99] ^= 1;
            } else {
                assert_eq!(Some(5), verifier.read(&message).map(|(_, time)| time));
            }
            verifier.check(&message);
        }
        verifier.verdict()
    }

    #[test]
    fn all_once_in_any_order_is_well() {
        assert!(run(&(0..70).rev().collect::<Vec<_>>(), None).is_ok());
    }

    #[test]
    fn what_is_missing_repeated_or_changed_is_reported() {
        let all: Vec<u64> = (0..70).collect();
        let text = |result: Result<(), NotVerified>| result.expect_err("not well").to_string();
        let missing = text(run(&all[..69], None));
        assert!(
            missing.contains("1 are missing, the first of them number 69"),
            "{missing}"
        );
        let repeated = text(run(&[&all[..], &[3, 3]].concat(), None));
        assert!(repeated.contains("2 came more than once"), "{repeated}");
        let damaged = text(run(&all, Some(8)));
        assert!(
            damaged.contains(
                "1 are missing, the first of them number 8, 0 came more than once, 1 are damaged"
            ),
            "{damaged}"
        );
    }

    #[test]
    fn foreign_messages_are_damaged_and_never_panic() {
        let mut verifier = Verifier::new(100, 70);
        for message in [
            &[][..],
            &[0; 23],
            &[0; 100],
            &[0xff; 100],
            Stamper::new(100).stamp(70, 0),
        ] {
            assert_eq!(verifier.check(message), None);
        }
        assert!(verifier.verdict().is_err());
    }

    #[test]
    fn the_smallest_message_has_no_filler() {
        let mut verifier = Verifier::new(STAMP_BYTES, 1);
        assert_eq!(
            verifier.check(Stamper::new(STAMP_BYTES).stamp(0, 9)),
            Some(9)
        );
        assert!(verifier.verdict().is_ok());
    }
}
