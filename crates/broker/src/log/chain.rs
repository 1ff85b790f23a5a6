//! One topic's part of this broker's log: a chain of extents and, in offset
//! order, where each batch lies in them.
//!
//! Invariants
//! - Offsets `[first, next)` are readable, dense, and each belongs to exactly
//!   one entry; `first` only grows.
//! - An extent with a batch still being received is never evicted.
//! - Batches complete in another order than their space was reserved in, so an
//!   extent may hold younger offsets than its successor: evicting it raises
//!   `first` above all of them, whichever extent the others lie in.

use std::collections::VecDeque;

use embar_fabric::blog::{Extent, Reservation, Span};
use embar_fabric::geometry::{BLOCK_BYTES_MAX, UNIT_BYTES};
use embar_fabric::memory::Memory;
use embar_fabric::window::WindowWriter;

use super::Place;

/// One batch that can be read.
pub(super) struct Entry<M: Memory> {
    /// Offset of its first message.
    pub base: u64,
    /// Messages in it.
    pub count: u32,
    /// Its bytes, header included. The log's only lasting pin on them.
    pub span: Span<M>,
}

impl<M: Memory> Entry<M> {
    /// Offset after its last message.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    fn bytes(&self) -> u64 {
        self.span.len() as u64
    }
}

struct Link<M: Memory> {
    extent: Extent<M>,
    serial: u64,
    /// Reservations that were neither completed nor abandoned.
    pending: u32,
    /// Highest `Entry::end` of a batch in it; 0 = none completed here.
    end: u64,
    /// Bytes of all batches completed in it.
    bytes: u64,
}

/// What one step of eviction gave back.
pub(super) struct Evicted<M: Memory> {
    /// The new first offset.
    pub first: u64,
    /// The memory; it is free once this and every reader's span are dropped.
    pub extents: Vec<Extent<M>>,
}

/// See the module.
pub(super) struct Chain<M: Memory> {
    pub id: u32,
    pub first: u64,
    pub next: u64,
    /// Bytes of readable batches.
    pub bytes: u64,
    retention_bytes: u64,
    /// What other processes know of `first` and `next`.
    pub(super) window: WindowWriter<M>,
    links: VecDeque<Link<M>>,
    entries: VecDeque<Entry<M>>,
    next_serial: u64,
    #[cfg(feature = "canary")]
    pub canary: super::canary::Canary,
}

impl<M: Memory> Chain<M> {
    pub fn new(id: u32, retention_bytes: u64, window: WindowWriter<M>) -> Self {
        Self {
            id,
            first: 0,
            next: 0,
            bytes: 0,
            retention_bytes,
            window,
            links: VecDeque::new(),
            entries: VecDeque::new(),
            next_serial: 0,
            #[cfg(feature = "canary")]
            canary: super::canary::Canary::default(),
        }
    }

    /// Tells other processes where this chain begins and ends: a row of this
    /// cell may still speak of a deleted topic.
    pub fn publish_window(&mut self) {
        self.window.reset(self.id, self.first, self.next);
    }

    pub fn batches(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Bytes of log that this topic occupies, readable or not.
    pub fn occupied(&self) -> u64 {
        self.links.iter().map(|l| u64::from(l.extent.len())).sum()
    }

    /// Room in the newest extent, or `None` when a new one is needed.
    pub fn place(&mut self, len: u32) -> Option<(Reservation<M>, Place)> {
        let link = self.links.back_mut()?;
        let reservation = link.extent.reserve(len)?;
        link.pending += 1;
        let place = Place {
            topic: self.id,
            serial: link.serial,
            len,
            order: link.extent.order(),
        };
        Some((reservation, place))
    }

    /// Small topics take small extents; busy ones take large ones, so that
    /// neither the table of extents nor the space lost at their ends grows.
    pub fn wanted_extent_bytes(&self, len: u32) -> u32 {
        let mut share = self.bytes / 8;
        if self.retention_bytes > 0 {
            share = share.min(self.retention_bytes / 4);
        }
        let share = share.clamp(UNIT_BYTES, BLOCK_BYTES_MAX) as u32;
        let rounded_down = 1 << share.ilog2();
        rounded_down.max(len.next_power_of_two())
    }

    pub fn push_extent(&mut self, extent: Extent<M>) {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.links.push_back(Link {
            extent,
            serial,
            pending: 0,
            end: 0,
            bytes: 0,
        });
    }

    fn link_mut(&mut self, place: &Place) -> &mut Link<M> {
        let found = self.links.binary_search_by_key(&place.serial, |l| l.serial);
        &mut self.links[found.expect("an extent with a batch on its way is not evicted")]
    }

    /// A reservation will not be completed; gives its room back when nothing
    /// was reserved behind it.
    pub fn abandon(&mut self, place: &Place, reservation: Reservation<M>) {
        let link = self.link_mut(place);
        link.pending -= 1;
        link.extent.give_back(reservation);
    }

    /// Makes a batch readable under the next offsets.
    pub fn append(&mut self, place: &Place, entry: Entry<M>) {
        assert_eq!(entry.base, self.next, "offsets are dense");
        let end = entry.end();
        self.next = end;
        let bytes = entry.bytes();
        self.bytes += bytes;
        self.entries.push_back(entry);
        self.window.raise_next(end);
        let link = self.link_mut(place);
        link.pending -= 1;
        link.end = link.end.max(end);
        link.bytes += bytes;
    }

    /// Tells readers in other processes that nothing below `first` is to be read any more.
    #[cfg(not(feature = "canary"))]
    fn tell_first(&mut self) {
        self.window.raise_first(self.first);
    }

    /// Takes the oldest extent that nobody is filling.
    pub fn evict_oldest(&mut self) -> Option<Evicted<M>> {
        let oldest = self.links.iter().position(|l| l.pending == 0)?;
        let link = self.links.remove(oldest)?;
        self.first = self.first.max(link.end);
        self.tell_first();
        while let Some(entry) = self.entries.front().filter(|e| e.base < self.first) {
            self.bytes -= entry.bytes();
            self.entries.pop_front();
        }
        let mut extents = vec![link.extent];
        // An extent whose batches all lie below `first` holds nothing readable either.
        let newest = self.links.back().map(|l| l.serial);
        let mut kept = VecDeque::with_capacity(self.links.len());
        for link in self.links.drain(..) {
            if link.pending == 0 && link.end <= self.first && Some(link.serial) != newest {
                extents.push(link.extent);
            } else {
                kept.push_back(link);
            }
        }
        self.links = kept;
        Some(Evicted {
            first: self.first,
            extents,
        })
    }

    /// Whether the oldest extent can go and still leave what is to be retained.
    pub fn exceeds_retention(&self) -> bool {
        if self.retention_bytes == 0 || self.links.len() < 2 {
            return false;
        }
        let oldest = self.links.iter().find(|l| l.pending == 0);
        let Some(oldest) = oldest else { return false };
        // Cheap, and nearly always the answer: all of its batches are still counted.
        if self.bytes < self.retention_bytes + oldest.bytes {
            return false;
        }
        let leaving: u64 = self
            .entries
            .iter()
            .take_while(|e| e.base < oldest.end)
            .map(Entry::bytes)
            .sum();
        self.bytes - leaving >= self.retention_bytes
    }

    /// The batches from the one that contains `from`, as long as they follow
    /// each other in memory and fit `max_bytes` (the first one always does).
    /// `from` lies in `[first, next)`.
    pub fn run(&self, from: u64, max_bytes: usize) -> (Span<M>, u64) {
        let start = self.entries.partition_point(|e| e.end() <= from);
        let head = &self.entries[start];
        let (mut span, mut next) = (head.span.clone(), head.end());
        for entry in self.entries.range(start + 1..) {
            if span.len() + entry.span.len() > max_bytes {
                break;
            }
            let Some(longer) = span.join(&entry.span) else {
                break;
            };
            (span, next) = (longer, entry.end());
        }
        (span, next)
    }

    /// Recovery: adopts an extent together with the entries found in it, oldest first.
    pub fn adopt(&mut self, extent: Extent<M>, end: u64) {
        self.push_extent(extent);
        self.links.back_mut().expect("just pushed").end = end;
    }

    /// Recovery: nothing below `next` can be read any more.
    pub fn restart_at(&mut self, next: u64) {
        self.entries.clear();
        self.links.clear();
        self.bytes = 0;
        (self.first, self.next) = (next, next);
    }

    /// Recovery: adopts an entry whose bytes were checked.
    pub fn adopt_entry(&mut self, entry: Entry<M>) {
        if self.entries.is_empty() {
            self.first = entry.base;
        }
        self.next = entry.end();
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }
}
