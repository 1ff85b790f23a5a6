//! What was acknowledged against what is there, for one stream of positions: whatever comes first waits for the other.

use std::collections::BTreeMap;

use super::ranges::Ranges;
use super::stamp::{Origin, Stamp};

/// Consecutive messages of one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose.
    pub origin: Origin,
    /// The number of the first.
    pub number: u64,
    /// How many.
    pub count: u64,
}

impl Run {
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
pub struct Wrong {
    /// Where the first of its messages should be.
    pub offset: u64,
    /// What was acknowledged.
    pub run: Run,
}

/// Of one stream.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By the position of their first message: acknowledged, and not seen yet.
    acknowledged: BTreeMap<u64, Run>,
    /// By the position of their first message: seen, and not acknowledged yet.
    seen: BTreeMap<u64, Run>,
    /// Everything below was seen, or passed over.
    next: u64,
    /// Passed over by a reader that was overtaken.
    skipped: Ranges,
    /// Acknowledged where nobody looked: nobody can tell whether they are there.
    excused: Vec<Run>,
}

impl Ledger {
    /// The messages of `run` are at `offset` and behind, as their publisher was told.
    pub fn acknowledge(&mut self, offset: u64, run: Run) -> Result<(), Wrong> {
        if offset.saturating_add(run.count) <= self.next {
            return self.settle(offset, run);
        }
        match self.acknowledged.insert(offset, run) {
            None => Ok(()),
            Some(run) => Err(Wrong { offset, run }),
        }
    }

    /// A message at `offset`; offsets ascend.
    pub fn see(&mut self, offset: u64, stamp: Stamp) {
        self.next = offset.saturating_add(1);
        if let Some((first, run)) = self.seen.iter_mut().next_back()
            && first + run.count == offset
            && (run.origin, run.end()) == (stamp.origin, stamp.number)
        {
            run.count += 1;
            return;
        }
        let run = Run {
            origin: stamp.origin,
            number: stamp.number,
            count: 1,
        };
        self.seen.insert(offset, run);
    }

    /// The reader goes on at `first`: what is before is gone.
    pub fn skip(&mut self, first: u64) {
        if first > self.next {
            self.skipped.insert(self.next, first - self.next);
            self.next = first;
        }
    }

    /// What was acknowledged at places that were passed over, since the last call.
    pub fn take_excused(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.excused)
    }

    /// Compares what was acknowledged and is now seen.
    pub fn settle_seen(&mut self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        while let Some(first) = self.acknowledged.first_entry()
            && first.key().saturating_add(first.get().count) <= self.next
        {
            let (offset, run) = first.remove_entry();
            wrong.extend(self.settle(offset, run).err());
        }
        wrong
    }

    /// Whether something was acknowledged and is not seen yet.
    pub fn is_waiting(&self) -> bool {
        !self.acknowledged.is_empty()
    }

    /// What was acknowledged and never seen.
    pub fn unseen(&self) -> impl Iterator<Item = Wrong> + '_ {
        let open = self.acknowledged.iter();
        open.map(|(offset, run)| Wrong {
            offset: *offset,
            run: *run,
        })
    }

    /// Takes `run` out of what was seen.
    fn settle(&mut self, offset: u64, run: Run) -> Result<(), Wrong> {
        let wrong = Wrong { offset, run };
        let end = offset.saturating_add(run.count);
        if self.skipped.missing_in(offset, end) != [(offset, end)] {
            self.excused.push(run);
            return Ok(());
        }
        let (first, seen) = self.seen.range(..=offset).next_back().ok_or(wrong)?;
        let (first, seen) = (*first, *seen);
        let before = offset - first;
        if seen.origin != run.origin
            || seen.number + before != run.number
            || before + run.count > seen.count
        {
            return Err(wrong);
        }
        self.seen.remove(&first);
        if before > 0 {
            let head = Run {
                count: before,
                ..seen
            };
            self.seen.insert(first, head);
        }
        let rest = seen.skip(before + run.count);
        if rest.count > 0 {
            self.seen.insert(offset + run.count, rest);
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

    fn run(number: u64, count: u64) -> Run {
        Run {
            origin: ORIGIN,
            number,
            count,
        }
    }

    fn see(ledger: &mut Ledger, offsets: std::ops::Range<u64>, number: u64) {
        for (index, offset) in offsets.enumerate() {
            let stamp = Stamp {
                origin: ORIGIN,
                number: number + index as u64,
            };
            ledger.see(offset, stamp);
        }
    }

    #[test]
    fn either_may_come_first() {
        let mut ledger = Ledger::default();
        see(&mut ledger, 0..10, 100);
        assert_eq!(ledger.acknowledge(3, run(103, 4)), Ok(()));
        assert_eq!(ledger.acknowledge(0, run(100, 3)), Ok(()));
        assert_eq!(ledger.acknowledge(7, run(107, 10)), Ok(()));
        assert_eq!(ledger.unseen().count(), 1);
        see(&mut ledger, 10..17, 110);
        assert_eq!(ledger.settle_seen(), []);
        assert_eq!((ledger.unseen().count(), ledger.seen.len()), (0, 0));
    }

    #[test]
    fn what_is_elsewhere_or_acknowledged_twice_is_wrong() {
        let mut ledger = Ledger::default();
        see(&mut ledger, 0..10, 0);
        assert!(ledger.acknowledge(1, run(0, 2)).is_err(), "shifted by one");
        let other = Run {
            origin: Origin {
                instance: 1,
                ..ORIGIN
            },
            ..run(0, 2)
        };
        assert!(ledger.acknowledge(0, other).is_err(), "of another");
        assert_eq!(ledger.acknowledge(0, run(0, 2)), Ok(()));
        assert!(ledger.acknowledge(0, run(0, 2)).is_err(), "again");
        assert_eq!(ledger.acknowledge(8, run(8, 4)), Ok(()), "not seen yet");
        see(&mut ledger, 10..12, 20);
        assert_eq!(
            ledger.settle_seen(),
            [Wrong {
                offset: 8,
                run: run(8, 4)
            }]
        );
    }

    #[test]
    fn what_was_passed_over_is_excused_whenever_it_is_told() {
        let mut ledger = Ledger::default();
        see(&mut ledger, 0..4, 0);
        assert_eq!(ledger.acknowledge(6, run(6, 2)), Ok(()), "before");
        ledger.skip(10);
        assert_eq!(ledger.acknowledge(4, run(4, 2)), Ok(()), "and behind");
        see(&mut ledger, 10..12, 10);
        assert_eq!(ledger.settle_seen(), []);
        let numbers = ledger.take_excused().into_iter().map(|run| run.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [4, 6]);
        assert!(
            ledger.acknowledge(10, run(9, 2)).is_err(),
            "it is elsewhere"
        );
    }

    #[test]
    fn what_never_came_stays() {
        let mut ledger = Ledger::default();
        see(&mut ledger, 0..4, 0);
        assert_eq!(ledger.acknowledge(4, run(4, 1)), Ok(()));
        assert_eq!(ledger.unseen().map(|wrong| wrong.offset).sum::<u64>(), 4);
        assert_eq!(ledger.settle_seen(), []);
    }
}
