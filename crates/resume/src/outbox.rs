//! What an end has sent and its peer has not acknowledged: the replay buffer.
//!
//! A message is encoded into a segment, and copied from there into the send ring of each connection that it goes out by.
//!
//! Invariants
//! - Numbers: `acked` ≤ `written` ≤ `next`, by wrapping distance. What is below `acked` is gone, what is below `written`
//!   was given to the connection at hand, the rest waits for one.
//! - Messages lie in the segments one behind the other, in order. `head` is where number `acked` lies, `cursor` where
//!   `written` does.

use std::collections::VecDeque;

use embar_session::{BudgetShare, MemoryBudget};
use thiserror::Error;

/// What a message takes beside its content: its length and its id.
pub const MESSAGE_HEADER_BYTES: usize = 8;

/// Segments are of this size, unless one message needs more.
pub const SEGMENT_BYTES: usize = 16 << 10;

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OutboxError {
    /// A limit is reached, or the budget has nothing left.
    #[error("too much waits to be acknowledged")]
    Full,
    /// It would not even fit if nothing else were there.
    #[error("a message must not be longer than {max} bytes to be kept")]
    TooLong {
        /// Longest content, in bytes.
        max: usize,
    },
    /// The encoder wrote another length than it announced.
    #[error("the encoder wrote another length than it announced")]
    Encoding,
}

/// A peer acknowledged what it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("number {told} is acknowledged, but only {acked} to {written} can be")]
pub struct OutOfRange {
    /// What the peer said.
    pub told: u64,
    /// What it said before.
    pub acked: u64,
    /// What it may have.
    pub written: u64,
}

struct Segment {
    bytes: Vec<u8>,
    /// Of `bytes`; what is behind it was begun and not finished.
    used: usize,
    _share: Option<BudgetShare>,
}

/// A place between two messages.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    segment: usize,
    offset: usize,
}

/// The replay buffer of one end of a session.
pub struct Outbox {
    segments: VecDeque<Segment>,
    spare: Vec<Segment>,
    /// Most segments in use since it was empty.
    peak: usize,
    /// In the first segment.
    head: usize,
    cursor: Place,
    acked: u64,
    written: u64,
    next: u64,
    /// Of the messages, with their headers.
    bytes: usize,
    max_messages: u64,
    max_bytes: usize,
    budget: Option<MemoryBudget>,
}

impl Outbox {
    /// An empty one, whose first message will have the number `first`. It takes at most `max_messages` messages at a
    /// time, and `max_bytes` bytes of them with [`MESSAGE_HEADER_BYTES`] for each. Its memory is at most twice that and a
    /// segment, and counts in `budget`.
    #[must_use]
    pub fn new(
        first: u64,
        max_messages: u32,
        max_bytes: usize,
        budget: Option<MemoryBudget>,
    ) -> Self {
        Self {
            segments: VecDeque::new(),
            spare: Vec::new(),
            peak: 0,
            head: 0,
            cursor: Place::default(),
            acked: first,
            written: first,
            next: first,
            bytes: 0,
            max_messages: u64::from(max_messages.max(1)),
            max_bytes: max_bytes.min(u32::MAX as usize),
            budget,
        }
    }

    /// Messages that are not acknowledged.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.next.wrapping_sub(self.acked)
    }

    /// Whether all is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.acked == self.next
    }

    /// Messages of which the peer may or may not have some.
    #[must_use]
    pub fn in_doubt(&self) -> u64 {
        self.written.wrapping_sub(self.acked)
    }

    /// Messages that were given to no connection yet, or to none that the peer has read them from.
    #[must_use]
    pub fn unwritten(&self) -> u64 {
        self.next.wrapping_sub(self.written)
    }

    /// The number of the first message that the connection does not have.
    pub(crate) fn first_unwritten(&self) -> u64 {
        self.written
    }

    /// The number of the message that comes next.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether the connection has all messages below `number`, which is at most the next one's.
    pub(crate) fn has_written(&self, number: u64) -> bool {
        self.next.wrapping_sub(number) >= self.unwritten()
    }

    /// Bytes of the messages, with their headers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn memory(&self) -> usize {
        let capacity = |segment: &Segment| segment.bytes.capacity();
        let used = self.segments.iter().map(capacity).sum::<usize>();
        used + self.spare.iter().map(capacity).sum::<usize>()
    }

    /// Whether its own limits let a message of `len` bytes in.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.len() < self.max_messages && self.bytes + MESSAGE_HEADER_BYTES + len <= self.max_bytes
    }

    /// Makes sure that the next message may have `len` bytes.
    ///
    /// # Errors
    /// [`OutboxError::Full`] or [`OutboxError::TooLong`].
    pub fn reserve(&mut self, len: usize) -> Result<(), OutboxError> {
        let need = MESSAGE_HEADER_BYTES.saturating_add(len);
        if need > self.max_bytes {
            let max = self.max_bytes.saturating_sub(MESSAGE_HEADER_BYTES);
            return Err(OutboxError::TooLong { max });
        }
        if !self.has_room(len) {
            return Err(OutboxError::Full);
        }
        let fits = |segment: &Segment| segment.bytes.capacity() - segment.used >= need;
        if !self.segments.back().is_some_and(fits) {
            self.add_segment(need)?;
        }
        Ok(())
    }

    /// Takes a message of `len` bytes, which `fill` appends.
    ///
    /// # Errors
    /// [`OutboxError`]; nothing is taken then.
    pub fn append(
        &mut self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), OutboxError> {
        self.reserve(len)?;
        let need = MESSAGE_HEADER_BYTES + len;
        let Some(segment) = self.segments.back_mut() else {
            return Err(OutboxError::Full);
        };
        segment.bytes.truncate(segment.used);
        segment.bytes.extend_from_slice(&(len as u32).to_le_bytes());
        segment.bytes.extend_from_slice(&id.to_le_bytes());
        segment.bytes.extend_from_slice(&[0; 2]);
        fill(&mut segment.bytes);
        if segment.bytes.len() != segment.used + need {
            segment.bytes.truncate(segment.used);
            return Err(OutboxError::Encoding);
        }
        segment.used += need;
        self.bytes += need;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    #[cold]
    fn add_segment(&mut self, need: usize) -> Result<(), OutboxError> {
        let fits = |segment: &Segment| segment.bytes.capacity() >= need;
        let segment = match self.spare.iter().position(fits) {
            Some(index) => self.spare.swap_remove(index),
            None => {
                let bytes = need.max(SEGMENT_BYTES.min(self.max_bytes));
                if self.memory() + bytes > 2 * self.max_bytes {
                    // None of them fits.
                    self.spare.clear();
                }
                let share = self.budget.as_ref().map(|it| it.try_reserve(bytes));
                Segment {
                    _share: share.transpose().map_err(|_| OutboxError::Full)?,
                    bytes: Vec::with_capacity(bytes),
                    used: 0,
                }
            }
        };
        self.segments.push_back(segment);
        self.peak = self.peak.max(self.segments.len());
        Ok(())
    }

    /// The next message to be given to the connection: its id and its content.
    pub fn next_unwritten(&mut self) -> Option<(u16, &[u8])> {
        if self.written == self.next {
            return None;
        }
        while self.cursor.offset == self.segments[self.cursor.segment].used {
            self.cursor.segment += 1;
            self.cursor.offset = 0;
        }
        let segment = &self.segments[self.cursor.segment];
        let (id, len) = header(segment, self.cursor.offset);
        let start = self.cursor.offset + MESSAGE_HEADER_BYTES;
        Some((id, &segment.bytes[start..start + len]))
    }

    /// The connection has the message that [`Outbox::next_unwritten`] told.
    pub fn wrote(&mut self) {
        if let Some((_, content)) = self.next_unwritten() {
            let len = content.len();
            self.cursor.offset += MESSAGE_HEADER_BYTES + len;
            self.written = self.written.wrapping_add(1);
        }
    }

    /// Takes the only message back that the connection does not have.
    pub fn take_back(&mut self) {
        if self.unwritten() != 1 || self.next_unwritten().is_none() {
            return;
        }
        let Place { segment, offset } = self.cursor;
        let segment = &mut self.segments[segment];
        self.bytes -= segment.used - offset;
        segment.used = offset;
        self.next = self.next.wrapping_sub(1);
    }

    /// The peer has handled all messages below number `told`.
    ///
    /// # Errors
    /// [`OutOfRange`] if that is less than it said before, or more than it was sent; nothing changes then.
    pub fn ack(&mut self, told: u64) -> Result<u64, OutOfRange> {
        let count = self.check(told)?;
        for _ in 0..count {
            self.drop_used_segments();
            let (_, len) = header(&self.segments[0], self.head);
            self.head += MESSAGE_HEADER_BYTES + len;
            self.bytes -= MESSAGE_HEADER_BYTES + len;
        }
        self.acked = told;
        self.drop_used_segments();
        if count > 0 && self.is_empty() {
            self.emptied();
        }
        Ok(count)
    }

    /// How many messages an acknowledgement of all below `told` is about.
    ///
    /// # Errors
    /// As [`Outbox::ack`].
    pub fn check(&self, told: u64) -> Result<u64, OutOfRange> {
        let count = told.wrapping_sub(self.acked);
        if count > self.in_doubt() {
            return Err(OutOfRange {
                told,
                acked: self.acked,
                written: self.written,
            });
        }
        Ok(count)
    }

    fn drop_used_segments(&mut self) {
        while self.segments.len() > 1 && self.head == self.segments[0].used {
            if let Some(segment) = self.segments.pop_front() {
                self.spare_segment(segment);
            }
            self.head = 0;
            match self.cursor.segment.checked_sub(1) {
                Some(segment) => self.cursor.segment = segment,
                None => self.cursor.offset = 0,
            }
        }
    }

    /// Keeps a segment for later, within what the outbox may have: one of a large message may be too small for all that
    /// come.
    fn spare_segment(&mut self, mut segment: Segment) {
        if self.memory() + segment.bytes.capacity() <= 2 * self.max_bytes {
            segment.used = 0;
            segment.bytes.clear();
            self.spare.push(segment);
        }
    }

    /// All is acknowledged: keeps as much memory as was in use since the last time.
    fn emptied(&mut self) {
        if let Some(segment) = self.segments.front_mut() {
            segment.used = 0;
            segment.bytes.clear();
        }
        self.head = 0;
        self.cursor = Place::default();
        self.spare.truncate(self.peak.saturating_sub(1));
        self.peak = self.segments.len();
    }

    /// A connection resumes the session, and its peer has handled all below number `received`: what follows is to be
    /// given to that connection.
    ///
    /// # Errors
    /// As [`Outbox::ack`].
    pub fn resume(&mut self, received: u64) -> Result<(), OutOfRange> {
        self.ack(received)?;
        self.rewind();
        Ok(())
    }

    /// All that is not acknowledged is to be given to the next connection.
    pub fn rewind(&mut self) {
        self.written = self.acked;
        self.cursor = Place {
            segment: 0,
            offset: self.head,
        };
    }

    /// The peer begins anew, and knows nothing of the session: the first message gets number 0. What is in doubt is
    /// either to be sent again, or dropped. Returns how many messages that are.
    pub fn restart(&mut self, send_again: bool) -> u64 {
        let in_doubt = self.in_doubt();
        if !send_again {
            let all = self.written;
            // All that is in doubt may be acknowledged.
            let _ = self.ack(all);
        }
        self.rewind();
        self.next = self.len();
        self.acked = 0;
        self.written = 0;
        in_doubt
    }

    /// Gives all memory back; only for one that is not used any more.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.spare.clear();
        self.head = 0;
        self.cursor = Place::default();
        self.acked = self.next;
        self.written = self.next;
        self.bytes = 0;
    }
}

fn header(segment: &Segment, at: usize) -> (u16, usize) {
    let bytes = &segment.bytes[at..at + MESSAGE_HEADER_BYTES];
    let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (u16::from_le_bytes([bytes[4], bytes[5]]), len as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(max_messages: u32, max_bytes: usize) -> Outbox {
        Outbox::new(0, max_messages, max_bytes, None)
    }

    fn put(outbox: &mut Outbox, content: &[u8]) -> Result<(), OutboxError> {
        outbox.append(7, content.len(), |to| to.extend_from_slice(content))
    }

    fn write_all(outbox: &mut Outbox) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some((id, content)) = outbox.next_unwritten() {
            assert_eq!(id, 7);
            all.push(content.to_vec());
            outbox.wrote();
        }
        all
    }

    #[test]
    fn what_was_not_acknowledged_is_written_again() {
        let mut outbox = outbox(100, 1 << 20);
        for number in 0..10u8 {
            put(&mut outbox, &[number]).unwrap();
        }
        assert_eq!(write_all(&mut outbox).len(), 10);
        assert_eq!(outbox.ack(4), Ok(4));
        outbox.resume(6).unwrap();
        let again: Vec<Vec<u8>> = (6..10).map(|number| vec![number]).collect();
        assert_eq!(write_all(&mut outbox), again);
        assert_eq!((outbox.len(), outbox.in_doubt()), (4, 4));
        assert_eq!(outbox.ack(10), Ok(4));
        assert!(outbox.is_empty());
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn messages_that_grow_leave_no_memory_behind() {
        const MOST: usize = 256 << 10;
        let mut outbox = outbox(100, MOST);
        put(&mut outbox, b"x").unwrap();
        // Each is longer than all memory that the ones before it left, and one is always unacknowledged.
        for len in 17_000..17_200 {
            put(&mut outbox, &vec![1; len]).unwrap();
            write_all(&mut outbox);
            outbox.ack(outbox.next - 1).unwrap();
            assert!(outbox.memory() <= 2 * MOST + SEGMENT_BYTES, "{len}");
        }
    }

    #[test]
    fn acknowledgements_beyond_what_was_sent_or_backwards_change_nothing() {
        let mut outbox = outbox(100, 1 << 20);
        for _ in 0..5 {
            put(&mut outbox, b"x").unwrap();
        }
        outbox.wrote();
        outbox.wrote();
        outbox.ack(1).unwrap();
        for told in [0, 3, 5, 6, u64::MAX, u64::MAX / 2] {
            let refused = outbox.ack(told).unwrap_err();
            assert_eq!((refused.acked, refused.written), (1, 2), "{told}");
            assert_eq!(outbox.resume(told), Err(refused));
            assert_eq!(outbox.len(), 4);
        }
        assert_eq!(outbox.ack(1), Ok(0), "the same again is fine");
        assert_eq!(outbox.ack(2), Ok(1));
    }

    #[test]
    fn messages_and_bytes_are_bounded_and_acknowledgements_make_room() {
        let mut few = outbox(2, 1 << 20);
        put(&mut few, b"1").unwrap();
        put(&mut few, b"2").unwrap();
        assert_eq!(put(&mut few, b"3"), Err(OutboxError::Full));
        write_all(&mut few);
        few.ack(1).unwrap();
        put(&mut few, b"3").unwrap();
        let mut small = outbox(1000, 100);
        put(&mut small, &[0; 92]).unwrap();
        assert_eq!(put(&mut small, b""), Err(OutboxError::Full));
        assert_eq!(
            put(&mut small, &[0; 93]),
            Err(OutboxError::TooLong { max: 92 })
        );
        write_all(&mut small);
        small.ack(1).unwrap();
        put(&mut small, &[1; 92]).unwrap();
        assert_eq!(write_all(&mut small), [vec![1; 92]]);
    }

    #[test]
    fn memory_counts_in_the_budget_and_its_limit_is_one() {
        let budget = MemoryBudget::new(2 * SEGMENT_BYTES);
        let mut outbox = Outbox::new(0, 1000, 1 << 20, Some(budget.clone()));
        let large = [0; SEGMENT_BYTES - MESSAGE_HEADER_BYTES];
        assert_eq!(budget.used(), 0);
        put(&mut outbox, &large).unwrap();
        put(&mut outbox, &large).unwrap();
        assert_eq!(budget.used(), 2 * SEGMENT_BYTES);
        assert_eq!(outbox.memory(), 2 * SEGMENT_BYTES);
        assert_eq!(put(&mut outbox, b"x"), Err(OutboxError::Full));
        write_all(&mut outbox);
        outbox.ack(2).unwrap();
        put(&mut outbox, b"x").unwrap();
        write_all(&mut outbox);
        outbox.ack(3).unwrap();
        assert_eq!(budget.used(), SEGMENT_BYTES, "a burst's memory goes back");
        outbox.clear();
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn messages_longer_than_a_segment_have_one_of_their_own() {
        let mut outbox = outbox(100, 1 << 20);
        let sizes = [1, SEGMENT_BYTES, 3, 5 * SEGMENT_BYTES, 0, 2];
        for _ in 0..3 {
            for (index, size) in sizes.iter().enumerate() {
                put(&mut outbox, &vec![index as u8; *size]).unwrap();
            }
            for (index, content) in write_all(&mut outbox).iter().enumerate() {
                assert_eq!(content, &vec![index as u8; sizes[index]]);
            }
            let all = outbox.written;
            outbox.ack(all).unwrap();
        }
    }

    #[test]
    fn an_encoder_that_lies_or_panics_leaves_nothing() {
        let mut outbox = outbox(100, 1 << 20);
        put(&mut outbox, b"before").unwrap();
        for lie in [0, 1, 3, 100_000] {
            let filled = outbox.append(7, 2, |to| to.resize(to.len() + lie, 9));
            assert_eq!(filled, Err(OutboxError::Encoding));
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = outbox.append(7, 2, |_| panic!("an encoder"));
        }));
        assert!(panicked.is_err());
        put(&mut outbox, b"behind").unwrap();
        assert_eq!(
            write_all(&mut outbox),
            [b"before".to_vec(), b"behind".to_vec()]
        );
    }

    #[test]
    fn what_no_connection_has_can_be_taken_back() {
        let mut outbox = outbox(100, 1 << 20);
        put(&mut outbox, b"sent").unwrap();
        outbox.wrote();
        put(&mut outbox, b"not").unwrap();
        outbox.take_back();
        assert_eq!((outbox.len(), outbox.unwritten()), (1, 0));
        put(&mut outbox, b"next").unwrap();
        assert_eq!(write_all(&mut outbox), [b"next".to_vec()]);
        outbox.ack(2).unwrap();
        assert_eq!(outbox.bytes(), 0);
    }

    #[test]
    fn after_a_restart_numbers_begin_at_0_with_or_without_what_is_in_doubt() {
        for (send_again, left) in [(true, [1u8, 2, 3].as_slice()), (false, &[3])] {
            let mut outbox = outbox(100, 1 << 20);
            for number in 0..4u8 {
                put(&mut outbox, &[number]).unwrap();
            }
            (0..3).for_each(|_| outbox.wrote());
            outbox.ack(1).unwrap();
            assert_eq!(outbox.restart(send_again), 2);
            let expected: Vec<Vec<u8>> = left.iter().map(|&number| vec![number]).collect();
            assert_eq!(write_all(&mut outbox), expected);
            assert_eq!(outbox.ack(left.len() as u64), Ok(left.len() as u64));
            assert!(outbox.is_empty());
        }
    }

    #[test]
    fn numbers_wrap() {
        let mut outbox = Outbox::new(u64::MAX - 1, 100, 1 << 20, None);
        for number in 0..4u8 {
            put(&mut outbox, &[number]).unwrap();
        }
        outbox.wrote();
        outbox.wrote();
        assert_eq!((outbox.first_unwritten(), outbox.next_number()), (0, 2));
        let written = [u64::MAX - 1, u64::MAX, 0, 1, 2].map(|number| outbox.has_written(number));
        assert_eq!(written, [true, true, true, false, false]);
        write_all(&mut outbox);
        assert!(outbox.has_written(2));
        assert!(outbox.ack(u64::MAX - 2).is_err());
        assert!(outbox.ack(3).is_err());
        assert_eq!(outbox.ack(u64::MAX), Ok(1));
        outbox.resume(0).unwrap();
        assert_eq!(write_all(&mut outbox), [[2], [3]]);
        assert_eq!(outbox.ack(2), Ok(2));
    }
}
