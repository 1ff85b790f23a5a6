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
use std::mem;

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
        match self.segments.back_mut() {
            // What it was for was not taken, and it is too small for this.
            Some(last) if last.used == 0 => {
                let before = mem::replace(last, segment);
                self.spare_segment(before);
            }
            _ => self.segments.push_back(segment),
        }
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
mod tests;
