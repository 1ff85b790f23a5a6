//! How much of the topic brokers offer while the log is full, observed again and again.

use std::collections::BTreeMap;

use serde::Serialize;

use super::reference_log::Stream;

/// What was observed since messages had to make room for the first time: at orders 0 and 1 of each broker by itself, at
/// the others of all of them together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObservedRetention {
    /// Looks in all.
    pub looks: u64,
    /// Bytes of messages, with their headers, at the look that found least.
    pub least_bytes: u64,
    /// And at the one that found most.
    pub most_bytes: u64,
    /// Bytes that one broker has room for, by its memory or by the topic's retention.
    pub room_bytes: u64,
    /// The least over that room.
    pub least_share: f64,
    /// The share that had to be there at the last look; less is a violation.
    pub must_share: f64,
    /// Where each stream began at the last look.
    #[serde(skip)]
    firsts: BTreeMap<Stream, u64>,
}

impl ObservedRetention {
    /// A look at a stream: `held` bytes can be read, from `first` on; `must` bytes have to be there; one broker may keep
    /// `room`. A stream of which nothing is gone is not full and does not count. Returns whether more is gone than before.
    pub fn look(
        &mut self,
        stream: Stream,
        first: u64,
        (held, must): (u64, u64),
        room: u64,
    ) -> bool {
        if first == 0 {
            return false;
        }
        self.least_bytes = match self.looks {
            0 => held,
            _ => self.least_bytes.min(held),
        };
        self.most_bytes = self.most_bytes.max(held);
        let of_room = |bytes: u64| bytes as f64 / room.max(1) as f64;
        self.room_bytes = room;
        self.least_share = of_room(self.least_bytes);
        self.must_share = of_room(must);
        self.looks += 1;
        let before = self.firsts.insert(stream, first);
        before.is_none_or(|before| first > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_log_is_looked_at() {
        let mut observed = ObservedRetention::default();
        assert!(!observed.look(None, 0, (300, 0), 8000));
        assert_eq!(observed, ObservedRetention::default());
        let looks = [(1, 5000), (1, 2000), (2, 6000)];
        let more_gone = looks.map(|(first, held)| observed.look(None, first, (held, 6000), 8000));
        assert_eq!(more_gone, [true, false, true]);
        let seen = (observed.looks, observed.least_bytes, observed.most_bytes);
        assert_eq!(seen, (3, 2000, 6000));
        assert_eq!((observed.least_share, observed.must_share), (0.25, 0.75));
    }
}
