//! Compares what was acknowledged with what is there, for one stream: whichever is known first waits for the other.

use std::collections::BTreeMap;

use super::ranges::Ranges;
use super::stamp::{Origin, Stamp};

/// Consecutive messages of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRange {
    /// Their origin.
    pub origin: Origin,
    /// The number of the first.
    pub number: u64,
    /// How many.
    pub count: u64,
}

impl MessageRange {
    fn end(self) -> u64 {
        self.number + self.count
    }

    fn skip(self, count: u64) -> Self {
        Self {
            number: self.number + count,
            count: self.count - count,
            ..self
        }
    }
}

/// An acknowledgement that is not true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FalseAck {
    /// Where the first of its messages should be.
    pub offset: u64,
    /// What was acknowledged.
    pub range: MessageRange,
}

/// Acknowledgements and messages of one stream.
#[derive(Debug, Default)]
pub struct AckCheck {
    /// By the position of their first message: acknowledged, and not seen yet.
    acknowledged: BTreeMap<u64, MessageRange>,
    /// By the position of their first message: seen, and not acknowledged yet.
    seen: BTreeMap<u64, MessageRange>,
    /// Everything below was seen, or skipped.
    next: u64,
    /// Positions that the reader skipped when it was overtaken.
    skipped: Ranges,
    /// Acknowledged at skipped positions: whether they are there is not known.
    excused: Vec<MessageRange>,
}

impl AckCheck {
    /// The publisher got an acknowledgement: the messages of `range` are at `offset` and behind.
    pub fn acknowledge(&mut self, offset: u64, range: MessageRange) -> Result<(), FalseAck> {
        if offset.saturating_add(range.count) <= self.next {
            return self.take_seen(offset, range);
        }
        match self.acknowledged.insert(offset, range) {
            None => Ok(()),
            Some(range) => Err(FalseAck { offset, range }),
        }
    }

    /// The reader saw a message at `offset`; offsets ascend.
    pub fn see(&mut self, offset: u64, stamp: Stamp) {
        self.next = offset.saturating_add(1);
        if let Some((first, range)) = self.seen.iter_mut().next_back()
            && first + range.count == offset
            && (range.origin, range.end()) == (stamp.origin, stamp.number)
        {
            range.count += 1;
            return;
        }
        let range = MessageRange {
            origin: stamp.origin,
            number: stamp.number,
            count: 1,
        };
        self.seen.insert(offset, range);
    }

    /// The reader goes on at `first`: what is before is gone.
    pub fn skip(&mut self, first: u64) {
        if first > self.next {
            self.skipped.insert(self.next, first - self.next);
            self.next = first;
        }
    }

    /// What was acknowledged at skipped positions, since the last call.
    pub fn take_excused(&mut self) -> Vec<MessageRange> {
        std::mem::take(&mut self.excused)
    }

    /// Compares what was acknowledged with what was seen meanwhile.
    pub fn match_seen(&mut self) -> Vec<FalseAck> {
        let mut false_ack = Vec::new();
        while let Some(first) = self.acknowledged.first_entry()
            && first.key().saturating_add(first.get().count) <= self.next
        {
            let (offset, range) = first.remove_entry();
            false_ack.extend(self.take_seen(offset, range).err());
        }
        false_ack
    }

    /// Whether something was acknowledged and is not seen yet.
    pub fn is_waiting(&self) -> bool {
        !self.acknowledged.is_empty()
    }

    /// What was acknowledged and never seen.
    pub fn unseen(&self) -> impl Iterator<Item = FalseAck> + '_ {
        let open = self.acknowledged.iter();
        open.map(|(offset, range)| FalseAck {
            offset: *offset,
            range: *range,
        })
    }

    /// Takes `range` out of what was seen.
    fn take_seen(&mut self, offset: u64, range: MessageRange) -> Result<(), FalseAck> {
        let false_ack = FalseAck { offset, range };
        let end = offset.saturating_add(range.count);
        if self.skipped.missing_in(offset, end) != [(offset, end)] {
            self.excused.push(range);
            return Ok(());
        }
        let (first, seen) = self.seen.range(..=offset).next_back().ok_or(false_ack)?;
        let (first, seen) = (*first, *seen);
        let before = offset - first;
        if seen.origin != range.origin
            || seen.number + before != range.number
            || before + range.count > seen.count
        {
            return Err(false_ack);
        }
        self.seen.remove(&first);
        if before > 0 {
            let head = MessageRange {
                count: before,
                ..seen
            };
            self.seen.insert(first, head);
        }
        let rest = seen.skip(before + range.count);
        if rest.count > 0 {
            self.seen.insert(offset + range.count, rest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin {
        publisher: 1,
        instance: 0,
    };

    fn range(number: u64, count: u64) -> MessageRange {
        MessageRange {
            origin: ORIGIN,
            number,
            count,
        }
    }

    fn see(ack_check: &mut AckCheck, offsets: std::ops::Range<u64>, number: u64) {
        for (index, offset) in offsets.enumerate() {
            let stamp = Stamp {
                origin: ORIGIN,
                number: number + index as u64,
            };
            ack_check.see(offset, stamp);
        }
    }

    #[test]
    fn either_may_come_first() {
        let mut ack_check = AckCheck::default();
        see(&mut ack_check, 0..10, 100);
        assert_eq!(ack_check.acknowledge(3, range(103, 4)), Ok(()));
        assert_eq!(ack_check.acknowledge(0, range(100, 3)), Ok(()));
        assert_eq!(ack_check.acknowledge(7, range(107, 10)), Ok(()));
        assert_eq!(ack_check.unseen().count(), 1);
        see(&mut ack_check, 10..17, 110);
        assert_eq!(ack_check.match_seen(), []);
        assert_eq!((ack_check.unseen().count(), ack_check.seen.len()), (0, 0));
    }

    #[test]
    fn what_is_elsewhere_or_acknowledged_twice_is_wrong() {
        let mut ack_check = AckCheck::default();
        see(&mut ack_check, 0..10, 0);
        assert!(
            ack_check.acknowledge(1, range(0, 2)).is_err(),
            "shifted by one"
        );
        let other = MessageRange {
            origin: Origin {
                instance: 1,
                ..ORIGIN
            },
            ..range(0, 2)
        };
        assert!(ack_check.acknowledge(0, other).is_err(), "of another");
        assert_eq!(ack_check.acknowledge(0, range(0, 2)), Ok(()));
        assert!(ack_check.acknowledge(0, range(0, 2)).is_err(), "again");
        assert_eq!(
            ack_check.acknowledge(8, range(8, 4)),
            Ok(()),
            "not seen yet"
        );
        see(&mut ack_check, 10..12, 20);
        assert_eq!(
            ack_check.match_seen(),
            [FalseAck {
                offset: 8,
                range: range(8, 4)
            }]
        );
    }

    #[test]
    fn what_was_skipped_is_excused_whenever_it_was_acknowledged() {
        let mut ack_check = AckCheck::default();
        see(&mut ack_check, 0..4, 0);
        assert_eq!(ack_check.acknowledge(6, range(6, 2)), Ok(()), "before");
        ack_check.skip(10);
        assert_eq!(ack_check.acknowledge(4, range(4, 2)), Ok(()), "and behind");
        see(&mut ack_check, 10..12, 10);
        assert_eq!(ack_check.match_seen(), []);
        let numbers = ack_check
            .take_excused()
            .into_iter()
            .map(|range| range.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [4, 6]);
        assert!(
            ack_check.acknowledge(10, range(9, 2)).is_err(),
            "it is elsewhere"
        );
    }

    #[test]
    fn what_never_came_stays() {
        let mut ack_check = AckCheck::default();
        see(&mut ack_check, 0..4, 0);
        assert_eq!(ack_check.acknowledge(4, range(4, 1)), Ok(()));
        assert_eq!(
            ack_check
                .unseen()
                .map(|false_ack| false_ack.offset)
                .sum::<u64>(),
            4
        );
        assert_eq!(ack_check.match_seen(), []);
    }
}
