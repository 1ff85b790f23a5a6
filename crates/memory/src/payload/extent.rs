//! One block of a payload file, filled from its start.

use crate::canary::{Canary, injected};
use std::fmt;

use super::block::Block;
use super::span::{Reservation, Span};
use crate::cache_line::LINE_BYTES;
use crate::memory::Memory;

/// A block with a cursor: ranges below the cursor were handed out, those above are free.
///
/// Dropping it gives the block back as soon as no [`Reservation`] and no [`Span`] on it is left.
pub struct Extent<M: Memory> {
    block: Block<M>,
    cursor: u32,
    /// Bytes at the start that the owner before had committed; nothing is ever reserved there.
    recovered: u32,
    /// Nothing is to be reserved in it: readers of the owner before may read where nothing was recovered.
    closed: bool,
}

impl<M: Memory> Extent<M> {
    pub(super) fn new(block: Block<M>) -> Self {
        Self {
            block,
            cursor: 0,
            recovered: 0,
            closed: false,
        }
    }

    /// The same, found at recovery.
    pub(super) fn found(block: Block<M>) -> Self {
        let closed = block.is_held();
        let mut found = Self::new(block);
        found.closed = closed;
        found
    }

    #[cfg(test)]
    pub(super) fn block(&self) -> &Block<M> {
        &self.block
    }

    /// Offset of the block in the payload file.
    pub fn at(&self) -> u64 {
        self.block.at()
    }

    /// Bytes of the block.
    pub fn len(&self) -> u32 {
        self.block.len()
    }

    /// Whether nothing was reserved in it yet.
    pub fn is_empty(&self) -> bool {
        self.cursor == 0
    }

    /// The block has 64 KiB << order.
    pub fn order(&self) -> u8 {
        self.block.order()
    }

    /// Bytes at the start that were reserved or recovered. What lies behind them was not, also where no more may be.
    pub fn filled(&self) -> u32 {
        self.cursor
    }

    /// Bytes that may still be reserved.
    pub fn remaining(&self) -> u32 {
        match self.closed {
            true => 0,
            false => self.len() - self.cursor,
        }
    }

    /// Live reservations and spans on this block.
    pub fn pins(&self) -> usize {
        // The extent's own handle does not count.
        self.block.handles() - 1
    }

    /// Whether something of it is [lent](Span::lend): dropped, its block would not be free before that is over.
    pub fn is_lent(&self) -> bool {
        self.block.is_lent()
    }

    /// The next `len` bytes, from a multiple of 64 on; `None` when they do not fit, or `len` is 0.
    ///
    /// A reservation that is dropped leaves a gap that lasts as long as the extent.
    pub fn reserve(&mut self, len: u32) -> Option<Reservation<M>> {
        match self.closed {
            true => None,
            false => self.reserve_unlent(len),
        }
    }

    /// The same, also where readers of the owner before may still have something of the block: these bytes they were
    /// not lent, as the caller knows.
    pub fn reserve_unlent(&mut self, len: u32) -> Option<Reservation<M>> {
        let taken = len.checked_next_multiple_of(LINE_BYTES as u32)?;
        if taken == 0 || taken > self.len() - self.cursor {
            return None;
        }
        let at = self.block.at() + u64::from(self.cursor);
        self.cursor += taken;
        Some(Reservation::new(self.block.clone(), at, len as usize))
    }

    /// Takes back a reservation that will not be used. Its range is free again if nothing was
    /// reserved behind it; otherwise it stays a gap.
    ///
    /// Returns whether it is free again.
    pub fn give_back(&mut self, reservation: Reservation<M>) -> bool {
        let Some(from) = reservation.start_in(&self.block) else {
            return false;
        };
        let taken = (reservation.len() as u64).next_multiple_of(LINE_BYTES);
        let last = from + taken == u64::from(self.cursor);
        if last {
            self.cursor -= taken as u32;
        }
        last
    }

    /// Recovery: the first `cursor` bytes hold what the owner before committed. Rounded up to a
    /// multiple of 64; may be repeated with larger numbers.
    ///
    /// # Panics
    ///
    /// When the number is beyond the end, lower than before, or something was reserved already.
    pub fn set_cursor(&mut self, cursor: u32) {
        assert_eq!(
            self.cursor, self.recovered,
            "recovery comes before the first reservation"
        );
        assert!(
            (self.cursor..=self.len()).contains(&cursor),
            "cursor {cursor} of an extent of {} bytes, {} of them recovered",
            self.len(),
            self.recovered
        );
        self.cursor = cursor.next_multiple_of(LINE_BYTES as u32);
        self.recovered = self.cursor;
    }

    /// Recovery: `len` bytes at `at` of the payload file, as the owner before committed them.
    ///
    /// `None` unless they lie below the cursor that was set by [`Extent::set_cursor`]; both numbers
    /// may come from shared memory.
    pub fn span(&self, at: u64, len: u32) -> Option<Span<M>> {
        let from = at.checked_sub(self.block.at())?;
        let end = from.checked_add(len.into())?;
        if len == 0 || end > self.recovered.into() {
            return None;
        }
        // What the owner before wrote back may be newer than what this host's caches hold.
        if !injected(Canary::SpanInvalidate) {
            self.block.memory().invalidate(at, len.into());
        }
        Some(Span::new(self.block.clone(), at, len as usize))
    }
}

impl<M: Memory> Drop for Extent<M> {
    fn drop(&mut self) {
        // Without pins nobody else can make any.
        if self.pins() > 0 {
            self.block.outlive_extent();
        }
    }
}

impl<M: Memory> fmt::Debug for Extent<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent")
            .field("at", &self.at())
            .field("len", &self.len())
            .field("cursor", &self.cursor)
            .field("pins", &self.pins())
            .finish()
    }
}
