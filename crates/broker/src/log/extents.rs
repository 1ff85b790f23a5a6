//! The extents of one topic on this broker, oldest first, and how far their batches reach.
//!
//! Invariants
//! - An extent with a batch that is being received, or that waits for its place in the order, is
//!   never evicted.
//! - Batches complete in another order than their space was reserved in, so an extent may hold
//!   younger offsets than its successor: evicting it raises the first offset above all of them,
//!   whichever extent the others lie in.

use std::collections::VecDeque;

use embar_fabric::blog::{Extent, Reservation};
use embar_fabric::geometry::{BLOCK_BYTES_MAX, UNIT_BYTES};
use embar_fabric::memory::Memory;

use super::Place;

struct Link<M: Memory> {
    extent: Extent<M>,
    serial: u64,
    /// Reservations that were neither completed nor abandoned.
    pending: u32,
    /// Highest end of a batch completed in it; 0 = none was.
    end: u64,
    /// Bytes of all batches completed in it.
    bytes: u64,
}

/// See the module.
pub(super) struct Extents<M: Memory> {
    topic: u32,
    ordered: bool,
    links: VecDeque<Link<M>>,
    next_serial: u64,
}

/// The oldest extent that nobody is filling.
pub(super) struct Oldest {
    /// Offset after its last batch.
    pub end: u64,
    /// Bytes of its batches.
    pub bytes: u64,
}

impl<M: Memory> Extents<M> {
    pub fn new(topic: u32, ordered: bool) -> Self {
        Self {
            topic,
            ordered,
            links: VecDeque::new(),
            next_serial: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Bytes of log that they occupy, readable or not.
    pub fn occupied(&self) -> u64 {
        self.links.iter().map(|l| u64::from(l.extent.len())).sum()
    }

    /// Room in the newest extent, or `None` when a new one is needed.
    pub fn place(&mut self, len: u32) -> Option<(Reservation<M>, Place)> {
        let link = self.links.back_mut()?;
        let reservation = link.extent.reserve(len)?;
        link.pending += 1;
        let place = Place {
            topic: self.topic,
            serial: link.serial,
            len,
            order: link.extent.order(),
            ordered: self.ordered,
        };
        Some((reservation, place))
    }

    pub fn push(&mut self, extent: Extent<M>) {
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

    /// Recovery: an extent that holds `bytes` of batches up to `end`, oldest first. It is never evicted
    /// if nobody knows where batches in it are, or were, in the order.
    pub fn adopt(&mut self, extent: Extent<M>, end: u64, bytes: u64, unknown: bool) {
        self.push(extent);
        let link = self.links.back_mut().expect("just pushed");
        (link.end, link.bytes, link.pending) = (end, bytes, unknown.into());
    }

    fn link_mut(&mut self, place: &Place) -> &mut Link<M> {
        let found = self.links.binary_search_by_key(&place.serial, |l| l.serial);
        &mut self.links[found.expect("an extent with a batch on its way is not evicted")]
    }

    /// A batch will not be received: gives its room back when nothing was reserved behind it.
    pub fn abandon(&mut self, place: &Place, reservation: Reservation<M>) {
        let link = self.link_mut(place);
        link.pending -= 1;
        link.extent.give_back(reservation);
    }

    /// A batch that was received gets no offset: its room is free with the extent.
    pub fn forget(&mut self, place: &Place) {
        self.link_mut(place).pending -= 1;
    }

    /// A batch has its offset, and ends at `end`.
    pub fn complete(&mut self, place: &Place, end: u64, bytes: u64) {
        let link = self.link_mut(place);
        link.pending -= 1;
        link.end = link.end.max(end);
        link.bytes += bytes;
    }

    /// The extent that is to be evicted first.
    pub fn oldest(&self) -> Option<Oldest> {
        let oldest = self.links.iter().find(|l| l.pending == 0)?;
        Some(Oldest {
            end: oldest.end,
            bytes: oldest.bytes,
        })
    }

    /// Takes the oldest extent out.
    pub fn take_oldest(&mut self) -> Option<Extent<M>> {
        let oldest = self.links.iter().position(|l| l.pending == 0)?;
        Some(self.links.remove(oldest)?.extent)
    }

    /// Takes out every extent, but for the newest, that holds nothing at or above `first`.
    pub fn take_below(&mut self, first: u64) -> Vec<Extent<M>> {
        let newest = self.links.back().map(|l| l.serial);
        let mut taken = Vec::new();
        let mut kept = VecDeque::with_capacity(self.links.len());
        for link in self.links.drain(..) {
            if link.pending == 0 && link.end <= first && Some(link.serial) != newest {
                taken.push(link.extent);
            } else {
                kept.push_back(link);
            }
        }
        self.links = kept;
        taken
    }

    pub fn clear(&mut self) {
        self.links.clear();
    }
}

/// How large the next extent should be. Small topics take small extents; busy ones take large ones,
/// so that neither the table of extents nor the space lost at their ends grows.
pub(super) fn wanted_bytes(kept_bytes: u64, retention_bytes: u64, len: u32) -> u32 {
    let mut share = kept_bytes / 8;
    if retention_bytes > 0 {
        share = share.min(retention_bytes / 4);
    }
    let share = share.clamp(UNIT_BYTES, BLOCK_BYTES_MAX) as u32;
    let rounded_down = 1 << share.ilog2();
    rounded_down.max(len.next_power_of_two())
}
