//! The extents of one topic on this broker, by age, and how far their batches reach.
//!
//! Batches complete in another order than their space was reserved in, so an extent may hold
//! younger batches than its successor. Extents are evicted in the order of their youngest batch,
//! which is the order in which they can be evicted without taking more from readers than they give
//! back.
//!
//! Invariants
//! - An extent with a batch that is being received, or that waits for its place in the order, is
//!   never evicted. Once all else in it is gone it is *wanted*: whoever fills it is asked to go
//!   elsewhere.
//! - Of what was reserved, `dead_bytes` can neither be read nor come to be: batches below the first
//!   offset and batches that were given up, in extents that are still here.
//! - `pinned_bytes` can be read, beside something pending in an extent that is full, or beside a batch that
//!   waits for others: what is evicted after them takes them along, and they give nothing back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use embar_memory::canary::{Canary, injected};
use embar_memory::payload::{BLOCK_BYTES_MAX, UNIT_BYTES};
use embar_memory::{Extent, Memory, Reservation};

use super::Place;
use super::sizes::Size;

struct Link<M: Memory> {
    extent: Extent<M>,
    /// Reservations that were neither completed nor abandoned.
    pending: u32,
    /// Highest end of a batch completed in it; 0 = none was.
    end: u64,
    /// Bytes of batches completed in it that can be read.
    live_bytes: u64,
    /// Bytes of it that nobody will read.
    dead_bytes: u64,
    /// Bytes of all extents pushed so far, this one included.
    pushed_bytes: u64,
    wanted: bool,
    /// What can be read of it is among the pinned bytes.
    pinned: bool,
}

impl<M: Memory> Link<M> {
    /// What can be read of it is pinned from now on. Returns what of that was not.
    fn pin(&mut self) -> u64 {
        match std::mem::replace(&mut self.pinned, true) {
            true => 0,
            false => self.live_bytes,
        }
    }
}

/// See the module.
pub(super) struct Extents<M: Memory> {
    topic: u32,
    ordered: bool,
    /// What the topic is to retain; 0: as much as fits.
    retention_bytes: u64,
    links: BTreeMap<u64, Link<M>>,
    /// Numbers of the extents by their places in the log.
    by_place: BTreeMap<u64, u64>,
    next_serial: u64,
    /// All but the newest in which nothing is pending, by the end of their youngest batch.
    settled: BTreeSet<(u64, u64)>,
    /// All but the newest in which something is pending.
    unsettled: BTreeSet<u64>,
    /// Those of them that are not wanted.
    unwanted: BTreeSet<u64>,
    occupied_bytes: u64,
    dead_bytes: u64,
    pinned_bytes: u64,
    pending_bytes: u64,
    /// Of all extents ever pushed.
    pushed_bytes: u64,
    wants_more: bool,
    pins_changed: bool,
}

/// The extent that is to be evicted first.
#[derive(Clone, Copy)]
pub(super) struct Oldest {
    /// Offset after its youngest batch.
    pub end: u64,
    /// Bytes of log that it gives back.
    pub bytes: u32,
    /// Bytes that can be read no more when it goes, and that give nothing back.
    pub beside_bytes: u64,
    /// Its number.
    serial: u64,
}

/// An extent as one that looks for room sees it.
#[derive(Clone, Copy)]
pub(super) struct ExtentState {
    /// Its number.
    pub serial: u64,
    /// Where it begins.
    pub at: u64,
    /// Bytes of log that it gives back.
    pub bytes: u32,
    /// Offset after its youngest batch.
    pub end: u64,
    /// Bytes of it that can be read.
    pub live_bytes: u64,
    /// Whether something is pending in it, so that it cannot go.
    pub stays: bool,
}

impl<M: Memory> Extents<M> {
    pub fn new(topic: u32, ordered: bool, retention_bytes: u64) -> Self {
        Self {
            topic,
            ordered,
            retention_bytes,
            links: BTreeMap::new(),
            by_place: BTreeMap::new(),
            next_serial: 0,
            settled: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            occupied_bytes: 0,
            dead_bytes: 0,
            pinned_bytes: 0,
            pending_bytes: 0,
            pushed_bytes: 0,
            wants_more: false,
            pins_changed: false,
        }
    }

    /// What the topic is to retain; 0: as much as fits.
    pub fn retention_bytes(&self) -> u64 {
        self.retention_bytes
    }

    /// What the topic takes of the log.
    pub fn size(&self) -> Size {
        Size {
            excess_bytes: match self.retention_bytes {
                0 => self.occupied_bytes,
                limit => self.occupied_bytes.saturating_sub(limit),
            },
            occupied_bytes: self.occupied_bytes,
            stuck_bytes: self.dead_bytes + self.pinned_bytes,
        }
    }

    /// Bytes of log that they occupy, readable or not.
    pub fn occupied_bytes(&self) -> u64 {
        self.occupied_bytes
    }

    /// Bytes reserved in them that nobody will ever read.
    pub fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Whether there are others of those than when this was asked last.
    pub fn take_pins_changed(&mut self) -> bool {
        std::mem::take(&mut self.pins_changed)
    }

    /// All extents.
    pub fn all(&self) -> impl Iterator<Item = ExtentState> {
        self.links.iter().map(|(serial, link)| ExtentState {
            serial: *serial,
            at: link.extent.at(),
            bytes: link.extent.len(),
            end: link.end,
            live_bytes: link.live_bytes,
            stays: link.pending > 0,
        })
    }

    /// Whether something is pending in an extent, so that it cannot go.
    pub fn stays(&self, serial: u64) -> bool {
        self.links.get(&serial).is_some_and(|link| link.pending > 0)
    }

    /// Bytes of batches that are being received, or wait for their place in the order.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes at the ends of the extents, where nothing was reserved.
    pub fn unfilled_bytes(&self) -> u64 {
        let links = self.links.values();
        links.map(|link| u64::from(link.extent.remaining())).sum()
    }

    /// Room in the newest extent, or `None` when a new one is needed.
    pub fn place(&mut self, len: u32) -> Option<(Reservation<M>, Place)> {
        let serial = self.newest()?;
        let link = self.links.get_mut(&serial)?;
        let reservation = link.extent.reserve(len)?;
        link.pending += 1;
        self.pending_bytes += u64::from(len);
        let place = Place {
            topic: self.topic,
            serial,
            len,
            order: link.extent.order(),
            ordered: self.ordered,
        };
        Some((reservation, place))
    }

    pub fn push(&mut self, extent: Extent<M>) {
        self.close_newest();
        let bytes = u64::from(extent.len());
        self.occupied_bytes += bytes;
        self.pushed_bytes += bytes;
        self.by_place.insert(extent.at(), self.next_serial);
        let link = Link {
            extent,
            pending: 0,
            end: 0,
            live_bytes: 0,
            dead_bytes: 0,
            pushed_bytes: self.pushed_bytes,
            wanted: false,
            pinned: false,
        };
        self.links.insert(self.next_serial, link);
        self.next_serial += 1;
    }

    /// Nothing more is reserved in the newest one.
    fn close_newest(&mut self) {
        let Some(serial) = self.newest() else {
            return;
        };
        let link = self.links.get_mut(&serial).expect("it is there");
        if link.pending == 0 {
            self.settled.insert((link.end, serial));
            return;
        }
        self.pinned_bytes += link.pin();
        self.unsettled.insert(serial);
        self.unwanted.insert(serial);
    }

    /// A pending batch waits for others, for as long as that takes. True if more is pinned than before.
    pub fn pin(&mut self, place: &Place) -> bool {
        let bytes = self.links.get_mut(&place.serial).map_or(0, Link::pin);
        self.pinned_bytes += bytes;
        bytes > 0
    }

    /// As [`Extents::pinned_bytes`], if the pending batch at this place waited for others.
    pub fn pinned_bytes_with(&self, place: &Place) -> u64 {
        let link = self.links.get(&place.serial).filter(|link| !link.pinned);
        self.pinned_bytes + link.map_or(0, |link| link.live_bytes)
    }

    /// Number of the extent that is being filled; none if that was evicted.
    fn newest(&self) -> Option<u64> {
        let newest = self.next_serial.checked_sub(1)?;
        self.links.contains_key(&newest).then_some(newest)
    }

    /// Recovery: an extent that holds `bytes` of batches up to `end`, oldest first. It is never
    /// evicted if nobody knows where batches in it are, or were, in the order.
    pub fn adopt(&mut self, extent: Extent<M>, end: u64, bytes: u64, unknown: bool) {
        self.push(extent);
        let mut newest = self.links.last_entry().expect("just pushed");
        let link = newest.get_mut();
        (link.end, link.live_bytes, link.pending) = (end, bytes, unknown.into());
        let filled = link.extent.len() - link.extent.remaining();
        link.dead_bytes = u64::from(filled).saturating_sub(bytes);
        self.dead_bytes += link.dead_bytes;
    }

    /// Takes one batch out of those that are pending in its extent, after `change`.
    fn settle<R>(&mut self, place: &Place, change: impl FnOnce(&mut Link<M>) -> R) -> R {
        let link = self.links.get_mut(&place.serial);
        let link = link.expect("an extent with a batch on its way is not evicted");
        let (dead_before, live_before) = (link.dead_bytes, link.live_bytes);
        let changed = change(link);
        self.dead_bytes += link.dead_bytes - dead_before;
        self.pending_bytes -= u64::from(place.len);
        link.pending -= 1;
        let settled = link.pending == 0;
        if link.pinned {
            self.pinned_bytes -= live_before;
            self.pins_changed = true;
            match settled {
                true => link.pinned = false,
                false => self.pinned_bytes += link.live_bytes,
            }
        }
        let end = link.end;
        if settled && self.newest() != Some(place.serial) {
            self.unsettled.remove(&place.serial);
            self.unwanted.remove(&place.serial);
            self.settled.insert((end, place.serial));
        }
        changed
    }

    /// A batch will not be received, or gets no offset: gives its room back when nothing was reserved
    /// behind it.
    pub fn abandon(&mut self, place: &Place, reservation: Reservation<M>) {
        self.settle(place, |link| {
            if !link.extent.give_back(reservation) {
                link.dead_bytes += u64::from(place.len);
            }
        });
    }

    /// Nobody will know whether a batch has an offset: its extent stays for ever.
    pub fn leave(&mut self, place: &Place) {
        if let Some(link) = self.links.get_mut(&place.serial) {
            link.dead_bytes += u64::from(place.len);
            self.dead_bytes += u64::from(place.len);
            self.pending_bytes -= u64::from(place.len);
        }
    }

    /// A batch has its offset, and ends at `end`.
    pub fn complete(&mut self, place: &Place, end: u64) {
        self.settle(place, |link| {
            link.end = link.end.max(end);
            link.live_bytes += u64::from(place.len);
        });
    }

    /// A completed batch, at this place of the log, can be read no more.
    pub fn bury(&mut self, at: u64, bytes: u64) {
        let found = self.by_place.range(..=at).next_back();
        let link = found.and_then(|(_, serial)| self.links.get_mut(serial));
        let link = link.expect("an extent with a batch that can be read is not evicted");
        link.live_bytes -= bytes;
        link.dead_bytes += bytes;
        self.dead_bytes += bytes;
        if link.pinned {
            self.pinned_bytes -= bytes;
        }
    }

    /// Whether the extent of a pending batch is wanted, or more than `bytes` of log were begun after
    /// it: there the batch would outlive its neighbours by so much, and their room with it.
    pub fn is_late(&self, place: &Place, bytes: u64) -> bool {
        let link = self.links.get(&place.serial);
        link.is_some_and(|link| link.wanted || self.pushed_bytes - link.pushed_bytes > bytes)
    }

    /// Wants the extents that hold nothing at or above `first` but what is pending.
    pub fn want_below(&mut self, first: u64) {
        let links = &mut self.links;
        let before = self.unwanted.len();
        self.unwanted.retain(|serial| {
            let link = links.get_mut(serial).expect("those are kept");
            link.wanted = link.end <= first;
            !link.wanted
        });
        self.wants_more |= self.unwanted.len() < before;
    }

    /// Whether more extents are wanted than when this was asked last.
    pub fn take_wants(&mut self) -> bool {
        std::mem::take(&mut self.wants_more)
    }

    /// The extent that is to be evicted first.
    pub fn oldest(&self) -> Option<Oldest> {
        let first = if injected(Canary::ExtentAge) {
            self.settled.iter().min_by_key(|(_, serial)| *serial)
        } else {
            self.settled.first()
        };
        let serial = match first {
            Some((_, serial)) => *serial,
            None => self.newest()?,
        };
        let link = &self.links[&serial];
        (link.pending == 0).then(|| Oldest {
            end: link.end,
            bytes: link.extent.len(),
            beside_bytes: self.pinned_below(link.end),
            serial,
        })
    }

    /// Bytes that can be read in extents that stay, and that end at or below this offset.
    fn pinned_below(&self, end: u64) -> u64 {
        if self.pinned_bytes == 0 {
            return 0;
        }
        let links = self.unsettled.iter().map(|serial| &self.links[serial]);
        let below = links.filter(|link| link.end <= end);
        below.map(|link| link.live_bytes).sum()
    }

    /// What goes so that these places of the log are free of this topic; `None` when it has none there.
    pub fn within(&self, places: Range<u64>) -> Option<Oldest> {
        let serials = self
            .by_place
            .range(places.clone())
            .map(|(_, serial)| *serial);
        let youngest = serials.max_by_key(|serial| {
            // The newest must be named, as it does not go by its age.
            (self.newest() == Some(*serial), self.links[serial].end)
        })?;
        let ends = self.by_place.range(places);
        let end = ends.map(|(_, serial)| self.links[serial].end).max()?;
        Some(Oldest {
            end,
            bytes: self.links[&youngest].extent.len(),
            beside_bytes: 0,
            serial: youngest,
        })
    }

    /// Whether the oldest can go and still leave what is to be retained of `bytes` that can be read.
    /// `leaving` sums those below an offset.
    pub fn exceed(&self, bytes: u64, leaving: impl Fn(u64) -> u64) -> bool {
        let retention_bytes = self.retention_bytes;
        if retention_bytes == 0 || self.links.len() < 2 {
            return false;
        }
        let Some(oldest) = self.oldest() else {
            return false;
        };
        // Cheap, and nearly always the answer: what can be read of it leaves in any case. The limit is
        // a client's, and may be as large as a number can.
        if bytes < retention_bytes.saturating_add(self.links[&oldest.serial].live_bytes) {
            return false;
        }
        bytes - leaving(oldest.end) >= retention_bytes
    }

    /// Takes out the one that is to go, and every other one, but for the newest, that holds nothing at or
    /// above `first`, and wants those in which something is pending. None of their batches can be read any
    /// more.
    pub fn take_with(&mut self, oldest: &Oldest, first: u64) -> Vec<Extent<M>> {
        let mut taken: Vec<_> = self.take(oldest.serial).into_iter().collect();
        taken.append(&mut self.take_below(first));
        taken
    }

    fn take(&mut self, serial: u64) -> Option<Extent<M>> {
        let link = self.links.remove(&serial)?;
        self.settled.remove(&(link.end, serial));
        debug_assert_eq!(link.live_bytes, 0, "its batches were buried");
        self.by_place.remove(&link.extent.at());
        self.occupied_bytes -= u64::from(link.extent.len());
        self.dead_bytes -= link.dead_bytes;
        Some(link.extent)
    }

    /// Takes out every extent, but for the newest, that holds nothing at or above `first`, and wants
    /// those in which something is pending.
    pub fn take_below(&mut self, first: u64) -> Vec<Extent<M>> {
        self.want_below(first);
        let mut taken = Vec::new();
        while let Some((end, serial)) = self.settled.first().copied()
            && end <= first
        {
            taken.extend(self.take(serial));
        }
        taken
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        *self = Self {
            next_serial: self.next_serial,
            ..Self::new(self.topic, self.ordered, self.retention_bytes)
        };
    }

    /// How large the next extent should be, of a topic of which so many bytes can be read. Small topics
    /// take small extents; busy ones take large ones, so that neither the table of extents nor the space
    /// lost at their ends grows.
    pub fn wanted_bytes(&self, kept_bytes: u64, len: u32) -> u32 {
        let mut share = kept_bytes / EXTENTS_PER_TOPIC;
        if self.retention_bytes > 0 {
            share = share.min(self.retention_bytes / 4);
        }
        let share = share.clamp(UNIT_BYTES, BLOCK_BYTES_MAX) as u32;
        let rounded_down = 1 << share.ilog2();
        rounded_down.max(len.next_power_of_two())
    }
}

/// A topic has at least this many extents, unless its batches are larger or the extents the largest:
/// one is lost at once when it is evicted.
const EXTENTS_PER_TOPIC: u64 = 16;
