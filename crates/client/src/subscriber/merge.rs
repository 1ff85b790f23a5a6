//! Puts batches of one order that come by several connections back into their order.
//!
//! Positions are dense, so whoever has the next one needs no word from the others: batches that are ahead wait, and each
//! delivery is the batch at the next position. What waits is bounded by the buffers of the connections, which are received
//! into one at a time, in the order of each share.

use std::collections::{BTreeMap, VecDeque};

use super::model::{Delivered, Event};
use crate::connection::ChannelId;

/// What comes next in an order, and what is there of it.
#[derive(Debug, Default)]
pub(super) struct Merge {
    /// The next position to deliver, once it is known.
    next: Option<u64>,
    /// By the position of the first message that is wanted.
    ahead: BTreeMap<u64, Delivered>,
    /// In their order.
    ready: VecDeque<Event>,
    /// What came twice.
    surplus: Vec<Delivered>,
    /// Batches of at least as many bytes are large.
    large_bytes: u32,
    large_in_a_row: u32,
    small_in_a_row: u32,
    delivered: u64,
    /// Of them.
    large: u64,
}

impl Merge {
    pub(super) fn new(large_bytes: u32) -> Self {
        Self {
            large_bytes,
            ..Self::default()
        }
    }

    /// From now on batches of at least so many bytes are large.
    pub(super) fn set_large(&mut self, bytes: u32) {
        self.large_bytes = bytes;
    }

    /// Takes all events, and puts batches where they belong.
    pub(super) fn take(&mut self, events: &mut VecDeque<Event>) {
        for event in events.drain(..) {
            match event {
                Event::Deliver(delivered) => self.place(delivered),
                Event::Started { start: at, .. } | Event::Skipped { to: at, .. } => {
                    self.next = self.next.max(Some(at));
                    self.ready.push_back(event);
                }
                other => self.ready.push_back(other),
            }
        }
        self.deliver();
    }

    fn place(&mut self, delivered: Delivered) {
        let begin = delivered.header.base_offset() + u64::from(delivered.skip);
        let is_over = self.next.is_some_and(|next| begin < next);
        if is_over || self.ahead.contains_key(&begin) {
            self.surplus.push(delivered);
        } else {
            self.ahead.insert(begin, delivered);
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.ahead.first_entry()
            && Some(*entry.key()) <= self.next
        {
            let is_next = Some(*entry.key()) == self.next;
            let delivered = entry.remove();
            if !is_next {
                self.surplus.push(delivered);
                continue;
            }
            if delivered.header.frame_len() < self.large_bytes {
                (self.large_in_a_row, self.small_in_a_row) = (0, self.small_in_a_row + 1);
            } else {
                (self.large_in_a_row, self.small_in_a_row) = (self.large_in_a_row + 1, 0);
                self.large += 1;
            }
            self.next = Some(delivered.next);
            self.delivered += 1;
            self.ready.push_back(Event::Deliver(delivered));
        }
    }

    /// The next thing that happened.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// A batch that came twice, or is not wanted any more. Its buffer goes back.
    pub(super) fn next_surplus(&mut self) -> Option<Delivered> {
        self.surplus.pop()
    }

    /// Gives up what is ahead.
    pub(super) fn give_up_ahead(&mut self) {
        self.surplus
            .extend(std::mem::take(&mut self.ahead).into_values());
    }

    /// The next position to deliver, once it is known.
    pub(super) fn next(&self) -> Option<u64> {
        self.next
    }

    /// Batches that wait for others.
    pub(super) fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// Whether a batch of this channel waits for others.
    pub(super) fn is_ahead(&self, channel: ChannelId) -> bool {
        self.ahead.values().any(|it| it.channel == channel)
    }

    /// Counts large buffers that were delivered.
    pub(super) fn large(&self) -> u64 {
        self.large
    }

    /// Counts what was delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How many large buffers were delivered since a small one.
    pub(super) fn large_in_a_row(&self) -> u32 {
        self.large_in_a_row
    }

    /// How many small ones since a large one.
    pub(super) fn small_in_a_row(&self) -> u32 {
        self.small_in_a_row
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{delivered, frame};
    use super::*;

    /// A batch of two messages.
    fn at(base: u64) -> Event {
        Event::Deliver(delivered(&frame(base, 1, &[b"a", b"b"]), 0))
    }

    fn begun_at(start: u64) -> Merge {
        let mut merge = Merge::new(1 << 20);
        let broker = None;
        merge.take(&mut VecDeque::from([Event::Started { broker, start }]));
        assert!(matches!(merge.next_event(), Some(Event::Started { .. })));
        merge
    }

    fn take(merge: &mut Merge, events: impl IntoIterator<Item = Event>) -> Vec<u64> {
        merge.take(&mut events.into_iter().collect());
        let ready = std::iter::from_fn(|| merge.next_event());
        let bases = ready.map(|event| match event {
            Event::Deliver(it) => it.header.base_offset(),
            other => panic!("{other:?}"),
        });
        bases.collect()
    }

    fn surplus(merge: &mut Merge) -> Vec<u64> {
        let surplus = std::iter::from_fn(|| merge.next_surplus());
        surplus.map(|it| it.header.base_offset()).collect()
    }

    #[test]
    fn whatever_order_batches_come_in_they_leave_by_position() {
        let mut random = embar_meter::random::SplitMix64::new(1);
        for _ in 0..200 {
            let mut bases: Vec<u64> = (0..20).map(|index| 100 + 2 * index).collect();
            let expected = bases.clone();
            bases.sort_by_key(|_| random.next_u64());
            let mut merge = begun_at(100);
            let mut left = Vec::new();
            for base in bases {
                left.extend(take(&mut merge, [at(base)]));
            }
            assert_eq!(left, expected);
            assert_eq!((merge.next(), merge.ahead()), (Some(140), 0));
        }
    }

    #[test]
    fn what_comes_twice_is_delivered_once() {
        let mut merge = begun_at(0);
        assert_eq!(take(&mut merge, [at(2), at(2), at(4)]), [] as [u64; 0]);
        assert_eq!(surplus(&mut merge), [2]);
        assert_eq!(take(&mut merge, [at(0), at(0), at(4)]), [0, 2, 4]);
        assert_eq!(surplus(&mut merge).len(), 2);
    }

    #[test]
    fn what_was_evicted_is_passed_over_and_what_is_ahead_of_it_stays() {
        let mut merge = begun_at(0);
        assert!(take(&mut merge, [at(4), at(10)]).is_empty());
        let (broker, to, messages) = (None, 10, 10);
        let skipped = Event::Skipped {
            broker,
            to,
            messages,
        };
        merge.take(&mut VecDeque::from([skipped]));
        assert!(matches!(merge.next_event(), Some(Event::Skipped { .. })));
        assert_eq!(take(&mut merge, []), [10]);
        assert_eq!(surplus(&mut merge), [4]);
    }

    #[test]
    fn the_first_batch_may_begin_before_the_start() {
        let mut merge = begun_at(1);
        let first = Event::Deliver(delivered(&frame(0, 1, &[b"a", b"b"]), 1));
        assert_eq!(take(&mut merge, [at(2), first]), [0, 2]);
        merge.give_up_ahead();
        assert!(surplus(&mut merge).is_empty());
    }

    #[test]
    fn what_is_given_up_comes_back() {
        let mut merge = begun_at(0);
        assert!(take(&mut merge, [at(2), at(6)]).is_empty());
        merge.give_up_ahead();
        assert_eq!(merge.ahead(), 0);
        assert_eq!(surplus(&mut merge).len(), 2);
        assert_eq!(take(&mut merge, [at(0), at(2)]), [0, 2]);
    }
}
