//! What an end has handled of its peer's messages, and when it says so.

/// So many messages are acknowledged together, at most.
const ACK_MESSAGES: u64 = 64;
/// So many bytes are acknowledged together, at most, and the message that exceeds it.
const ACK_BYTES: usize = 16 << 10;
/// An acknowledgement is due when a peer's replay buffer is full to this part, at the latest.
const PART: u64 = 4;

/// When to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckDue {
    /// At once.
    Now,
    /// After the delay: this message is the first since the last one.
    Soon,
    /// A time is set already.
    AsPlanned,
}

/// What was received on a session. Connections are ordered, so a count is all it takes.
#[derive(Debug)]
pub struct Inbox {
    handled: u64,
    told: u64,
    bytes: usize,
    every_messages: u64,
    every_bytes: usize,
}

impl Inbox {
    /// The next message will have the number `first`.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self {
            handled: first,
            told: first,
            bytes: 0,
            every_messages: ACK_MESSAGES,
            every_bytes: ACK_BYTES,
        }
    }

    /// The peer keeps so many messages and bytes, at most, until they are acknowledged. 0: it does not say.
    pub fn peer_keeps(&mut self, messages: u32, bytes: u32) {
        self.every_messages = match u64::from(messages) / PART {
            0 if messages == 0 => ACK_MESSAGES,
            part => part.clamp(1, ACK_MESSAGES),
        };
        self.every_bytes = match bytes as usize / PART as usize {
            0 if bytes == 0 => ACK_BYTES,
            part => part.min(ACK_BYTES),
        };
    }

    /// All messages below this number are handled.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.handled
    }

    /// A message of `len` bytes was handled.
    pub fn handled(&mut self, len: usize) -> AckDue {
        let first = self.handled == self.told;
        self.handled = self.handled.wrapping_add(1);
        self.bytes += len;
        let messages = self.handled.wrapping_sub(self.told);
        if messages >= self.every_messages || self.bytes >= self.every_bytes {
            AckDue::Now
        } else if first {
            AckDue::Soon
        } else {
            AckDue::AsPlanned
        }
    }

    /// Whether there is something to acknowledge.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.handled != self.told
    }

    /// All that is handled was acknowledged.
    pub fn told(&mut self) {
        self.told = self.handled;
        self.bytes = 0;
    }

    /// The peer begins anew with number 0.
    pub fn restart(&mut self) {
        self.handled = 0;
        self.told();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_starts_the_delay_and_numbers_or_bytes_end_it() {
        let mut inbox = Inbox::new(u64::MAX - 3);
        for _ in 0..3 {
            assert_eq!(inbox.handled(1), AckDue::Soon);
            for _ in 0..ACK_MESSAGES - 2 {
                assert_eq!(inbox.handled(1), AckDue::AsPlanned);
            }
            assert_eq!(inbox.handled(1), AckDue::Now);
            assert!(inbox.owes());
            inbox.told();
            assert!(!inbox.owes());
        }
        assert_eq!(inbox.handled(ACK_BYTES), AckDue::Now);
    }

    #[test]
    fn a_peer_that_keeps_little_hears_more_often() {
        let mut inbox = Inbox::new(0);
        inbox.peer_keeps(8, 0);
        assert_eq!(inbox.handled(1), AckDue::Soon);
        assert_eq!(inbox.handled(1), AckDue::Now);
        inbox.told();
        inbox.peer_keeps(1, 40);
        assert_eq!(inbox.handled(0), AckDue::Now);
        inbox.told();
        inbox.peer_keeps(u32::MAX, 40);
        assert_eq!(inbox.handled(9), AckDue::Soon);
        assert_eq!(inbox.handled(1), AckDue::Now);
    }
}
