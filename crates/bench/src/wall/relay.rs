//! Batches that came in on some connections of a receiving process and go out again on others, from where they lie in
//! the ring.

use std::collections::VecDeque;

use super::ring::Place;

/// Part of the ring that may wait to be sent: the rest is for batches that come in meanwhile.
const SHARE_OF_RING: u64 = 4;

/// Batches in the order in which they were complete.
pub struct Relay {
    waiting: VecDeque<(Place, usize)>,
    bytes: u64,
    limit: u64,
    changes: u64,
}

impl Relay {
    /// For a ring of so many bytes.
    pub fn new(ring_bytes: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            limit: ring_bytes / SHARE_OF_RING,
            changes: 0,
        }
    }

    /// Grows when somebody who waits may go on: a batch came, or one went.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether so much waits that nobody may take in more.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limit
    }

    /// A batch is complete.
    pub fn push(&mut self, place: Place, batch_bytes: usize) {
        self.bytes += batch_bytes as u64;
        self.changes += 1;
        self.waiting.push_back((place, batch_bytes));
    }

    /// The next batch to send. It counts as waiting until [`Relay::sent`].
    pub fn next(&mut self) -> Option<(Place, usize)> {
        self.waiting.pop_front()
    }

    /// A batch was sent.
    pub fn sent(&mut self, batch_bytes: usize) {
        self.bytes -= batch_bytes as u64;
        self.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wall::ring::Ring;

    #[test]
    fn a_relay_is_full_until_what_was_taken_is_sent() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ring = Ring::new(&dir.path().join("ring"), 32 << 20).expect("a ring");
        let mut relay = Relay::new(8 << 20);
        let (first, second) = (
            ring.take(1 << 20).expect("fits"),
            ring.take(1 << 20).expect("fits"),
        );
        relay.push(first, 1 << 20);
        assert!(!relay.is_full());
        relay.push(second, 1 << 20);
        assert!(relay.is_full());
        let changes = relay.changes();
        assert_eq!(relay.next(), Some((first, 1 << 20)));
        assert!(relay.is_full(), "it is still being sent");
        relay.sent(1 << 20);
        assert!(!relay.is_full() && relay.changes() > changes);
        assert_eq!(relay.next(), Some((second, 1 << 20)));
        assert_eq!(relay.next(), None);
    }
}
