//! The side of a connection that publishes: what it copies into its outbox, what it only names, and when it may use the
//! room again.
//!
//! Each value has the writing of one outbox. The outbox's counter of consumed records and its word for sleepers are
//! written by others of this process ([`Receiver`](super::Receiver), [`Nap`](super::Nap)), each on a line of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::layout::{
    COMMIT_AT, CONSUMED_AT, GRAIN_BYTES, INLINE_MAX, LINE_BYTES, RECORD_BYTES, Record, Sizes,
    WITHDRAWN_AT, violation,
};
use super::nap::{Bell, NEWS};
use super::sync::{Ordering, fence};

/// Bytes that may be named and not yet consumed before no more are: what keeps a publisher's buffers from all being at one
/// stopped peer.
pub const WINDOW_BYTES: usize = 8 << 20;
/// The same, in references.
pub const WINDOW_REFERENCES: usize = 64;

/// A piece that is copied is no larger than this part of the ring: so the reader begins before the writer has filled it.
const PIECES_PER_RING: u64 = 8;

/// Rather than splitting a piece for fewer bytes than this at the end of the ring, the writer leaves them out.
const TAIL_MIN_BYTES: u64 = 4096;

/// Publishes records in the outbox `own`; `K` keeps what records refer to.
pub struct Sender<O: Memory, I: Memory, K> {
    own: Arc<O>,
    peer: Arc<I>,
    sizes: Sizes,
    /// Records published.
    published: u64,
    /// Records that the peer is through with, as far as was looked.
    consumed: u64,
    /// Bytes taken in the ring so far, those left out included.
    taken: u64,
    /// Bytes that are free again, of those taken.
    freed: u64,
    /// `taken` behind each record, by its place.
    ends: Box<[u64]>,
    /// What the peer may still read, by the record that names it.
    kept: VecDeque<(u64, usize, K)>,
    kept_bytes: usize,
    ended: bool,
    withdrawn: bool,
    bell: Bell,
}

impl<O: Memory, I: Memory, K> Sender<O, I, K> {
    /// Of an outbox in which nothing was written yet.
    pub fn new(own: Arc<O>, peer: Arc<I>, sizes: Sizes) -> Self {
        Self {
            own,
            peer,
            sizes,
            published: 0,
            consumed: 0,
            taken: 0,
            freed: 0,
            ends: vec![0; sizes.records as usize].into(),
            kept: VecDeque::with_capacity(WINDOW_REFERENCES),
            kept_bytes: 0,
            ended: false,
            withdrawn: false,
            bell: Bell::default(),
        }
    }

    /// Looks what the peer consumed, and lets go of it.
    ///
    /// # Errors
    /// `InvalidData` if it is more than was published, or less than before.
    pub fn refresh(&mut self) -> io::Result<()> {
        self.peer.invalidate(CONSUMED_AT, 8);
        let consumed = self.peer.load(CONSUMED_AT);
        if consumed == self.consumed {
            return Ok(());
        }
        let lies = consumed < self.consumed || consumed > self.published;
        if lies && !injected(Canary::StreamCounter) {
            return Err(violation(format!(
                "it says that it consumed {consumed} records, of {} published and {} consumed before",
                self.published, self.consumed
            )));
        }
        self.consumed = consumed;
        let last = (consumed - 1) & u64::from(self.sizes.records - 1);
        self.freed = self.ends[last as usize];
        let through = consumed + u64::from(injected(Canary::StreamKept));
        while let Some((record, ..)) = self.kept.front()
            && *record < through
            && let Some((_, len, _)) = self.kept.pop_front()
        {
            self.kept_bytes -= len;
        }
        Ok(())
    }

    /// Whether another record can be published. One place is kept for the end.
    fn has_record(&self) -> bool {
        !self.has_ended() && self.published - self.consumed < u64::from(self.sizes.records) - 1
    }

    /// Copies the first of `bytes` and publishes them; returns how many, 0 if there is no room.
    pub fn copy(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() || !self.has_record() {
            return 0;
        }
        if bytes.len() <= INLINE_MAX {
            let mut inline = [0; INLINE_MAX];
            inline[..bytes.len()].copy_from_slice(bytes);
            self.publish(&Record::Inline {
                len: bytes.len(),
                bytes: inline,
            });
            return bytes.len();
        }
        let Some((at, len)) = self.take_room(bytes.len()) else {
            return 0;
        };
        let place = self.sizes.bytes_at() + at;
        self.own.write(place, &bytes[..len]);
        if !injected(Canary::StreamBytesFence) {
            self.own.write_back(place, len as u64);
            self.own.fence();
        }
        self.publish(&Record::Bytes {
            at: at as u32,
            len: len as u32,
        });
        len
    }

    /// Takes room in the ring for at most `wanted` bytes: where, and for how many.
    fn take_room(&mut self, wanted: usize) -> Option<(u64, usize)> {
        let ring = u64::from(self.sizes.bytes);
        let wanted = (wanted as u64).min(ring / PIECES_PER_RING);
        let mut at = self.taken & (ring - 1);
        let mut skipped = 0;
        if ring - at < wanted.min(TAIL_MIN_BYTES) {
            skipped = ring - at;
            at = 0;
        }
        let free = (ring - (self.taken - self.freed)).checked_sub(skipped)?;
        let len = wanted.min(free).min(ring - at);
        if len == 0 {
            return None;
        }
        self.taken += skipped + len.next_multiple_of(GRAIN_BYTES);
        Some((at, len as usize))
    }

    /// Whether bytes may be named now, as far as is known.
    pub fn may_name(&self) -> bool {
        self.has_record() && self.kept.len() < WINDOW_REFERENCES && self.kept_bytes < WINDOW_BYTES
    }

    /// Publishes `len` bytes at `at` of a memory that was handed over, and keeps `keep` until the peer consumed them.
    ///
    /// # Panics
    /// If nothing [may be named](Self::may_name).
    pub fn name(&mut self, memory: u8, at: u64, len: u32, keep: K) {
        assert!(self.may_name() && len > 0, "no room for a reference");
        self.kept.push_back((self.published, len as usize, keep));
        self.kept_bytes += len as usize;
        self.publish(&Record::Reference { memory, at, len });
    }

    /// Publishes that no more will come. Does nothing the second time.
    pub fn end(&mut self) {
        if !self.has_ended() {
            self.publish(&Record::End);
            self.ended = true;
        }
    }

    /// Whether nothing more can be published.
    pub fn has_ended(&self) -> bool {
        self.ended || self.withdrawn
    }

    fn publish(&mut self, record: &Record) {
        let at = self.sizes.record_at(self.published);
        self.own.write(at, &record.encode());
        self.ends[(self.published & u64::from(self.sizes.records - 1)) as usize] = self.taken;
        self.published += 1;
        // Partner: the receiver's load of this word.
        self.own.store(at + COMMIT_AT, self.published);
        self.own.write_back(at, RECORD_BYTES);
        self.own.fence();
    }

    /// Whether the peer sleeps and is to be woken for what was published. To be asked when all is published that is to be for
    /// now. True once for each of its sleeps.
    pub fn must_ring(&mut self) -> bool {
        self.bell.must_ring(&*self.peer, NEWS, self.published)
    }

    /// What the peer must have consumed before this side is woken for room: half of what is on its way, so that it is not
    /// woken for every record. `None` if nothing is.
    pub fn wanted(&self) -> Option<u64> {
        let on_its_way = self.published - self.consumed;
        (on_its_way > 0).then(|| self.consumed + on_its_way.div_ceil(2))
    }

    /// Records published so far.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether something is kept that the peer is through with, or says so.
    pub fn may_let_go(&self) -> bool {
        let first = self.kept.front();
        first.is_some_and(|(record, ..)| self.has_consumed(record + 1))
    }

    /// Whether the peer consumed as much, whatever it says.
    pub fn has_consumed(&self, wanted: u64) -> bool {
        self.peer.invalidate(CONSUMED_AT, 8);
        let consumed = self.peer.load(CONSUMED_AT);
        // Nonsense is something to look at, too.
        consumed >= wanted || consumed < self.consumed
    }

    /// Whether the peer consumed all bytes that were published, as far as was looked.
    pub fn all_consumed(&self) -> bool {
        self.consumed + u64::from(self.ended) >= self.published
    }

    /// What is kept because the peer may still read it: references and bytes.
    pub fn kept(&self) -> (usize, usize) {
        (self.kept.len(), self.kept_bytes)
    }

    /// Publishes nothing more, and hands out what the peer may still read and keeps by itself.
    pub fn leave(&mut self) -> impl ExactSizeIterator<Item = K> + use<O, I, K> {
        self.withdrawn = true;
        // Nonsense that the peer says about what it consumed changes nothing now.
        let _ = self.refresh();
        self.kept_bytes = 0;
        let kept = std::mem::take(&mut self.kept);
        kept.into_iter().map(|(.., kept)| kept)
    }

    /// Publishes nothing more, and lets go of what the peer may still read. If there is any, it learns before that nothing
    /// that it was referred to is to be believed any more.
    pub fn withdraw(&mut self) {
        let kept = self.leave();
        if kept.len() > 0 {
            self.own.store(WITHDRAWN_AT, 1);
            self.own.write_back(WITHDRAWN_AT, LINE_BYTES);
            // Before any store into what was named. Partner: the acquire fence of the receiver's look.
            self.own.fence();
            fence(Ordering::SeqCst);
        }
        drop(kept);
    }
}
