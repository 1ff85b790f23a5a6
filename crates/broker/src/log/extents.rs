//! The extents of one topic on this broker, by age, and how far their batches reach.
//!
//! Batches complete in another order than their space was reserved in, so an extent may hold
//! younger batches than its successor. Extents are evicted in the order of their youngest batch: this is the
//! order in which readers lose no more than eviction gives back.
//!
//! Invariants
//! - An extent with a pending batch, which is being received or waits for its location in the order, is
//!   never evicted. Once all else in it is gone it is *wanted*: its batch goes on in staging memory.
//! - Of what was reserved, `dead_bytes` can neither be read nor come to be: batches below the first
//!   offset and batches that were abandoned, in extents that are still here.
//! - `pinned_bytes` can be read, beside something pending in an extent that is full, or beside a batch that
//!   waits for others. An eviction of younger ones takes them along, and they give nothing back.

use std::ops::Range;

use embar_memory::canary::{Canary, injected};
use embar_memory::payload::{BLOCK_BYTES_MAX, UNIT_BYTES};
use embar_memory::{Extent, Memory, Reservation};

use super::sizes::Size;
use super::sorted::Sorted;
use super::{BatchSpace, Location};

struct Entry<M: Memory> {
    extent: Extent<M>,
    /// Reservations that are neither completed nor abandoned.
    pending: u32,
    /// Highest end of a batch completed in it; 0 = none was.
    end: u64,
    /// Bytes of batches completed in it that can be read.
    live_bytes: u64,
    /// Bytes of it that will never be read.
    dead_bytes: u64,
    /// Bytes of all extents pushed so far, this one included.
    pushed_bytes: u64,
    wanted: bool,
    /// What can be read of it is among the pinned bytes.
    pinned: bool,
}

impl<M: Memory> Entry<M> {
    /// Pins what can be read of it. Returns what of that was not pinned before.
    fn pin(&mut self) -> u64 {
        match std::mem::replace(&mut self.pinned, true) {
            true => 0,
            false => self.live_bytes,
        }
    }
}

/// The extents of one topic.
pub(super) struct Extents<M: Memory> {
    topic: u32,
    is_ordered: bool,
    /// What the topic is to retain; 0: as much as fits.
    retention_bytes: u64,
    /// By serial number, in the order in which they were pushed.
    entries: Sorted<u64, Entry<M>>,
    /// Numbers of the extents by their places in the log.
    by_place: Sorted<u64, u64>,
    next_serial: u64,
    /// All but the newest in which nothing is pending, by the end of their youngest batch.
    settled: Sorted<(u64, u64)>,
    /// All but the newest in which something is pending.
    unsettled: Sorted<u64>,
    /// Those of them that are not wanted.
    unwanted: Sorted<u64>,
    occupied_bytes: u64,
    dead_bytes: u64,
    pinned_bytes: u64,
    pending_bytes: u64,
    /// Of all extents ever pushed.
    pushed_bytes: u64,
    wants_more: bool,
    pins_changed: bool,
    /// What ends above this position cannot go: not all disks of the topic have it.
    durable: u64,
}

/// The extent that is to be evicted first.
#[derive(Clone, Copy)]
pub(super) struct Victim {
    /// Offset after its youngest batch.
    pub end: u64,
    /// Bytes of log that it gives back.
    pub bytes: u32,
    /// Bytes that become unreadable with it, and that give nothing back.
    pub beside_bytes: u64,
    /// Its number.
    serial: u64,
}

/// An extent as the search for a block sees it.
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
    /// Whether something of it is lent, so that its room is of no use yet if it goes.
    pub is_lent: bool,
}

impl<M: Memory> Extents<M> {
    pub fn new(topic: u32, is_ordered: bool, retention_bytes: u64) -> Self {
        Self {
            topic,
            is_ordered,
            retention_bytes,
            entries: Sorted::new(),
            by_place: Sorted::new(),
            next_serial: 0,
            settled: Sorted::new(),
            unsettled: Sorted::new(),
            unwanted: Sorted::new(),
            occupied_bytes: 0,
            dead_bytes: 0,
            pinned_bytes: 0,
            pending_bytes: 0,
            pushed_bytes: 0,
            wants_more: false,
            pins_changed: false,
            durable: u64::MAX,
        }
    }

    /// Of a topic that is on disks: nothing from this position on may be evicted.
    pub fn set_durable(&mut self, next: u64) {
        self.durable = next;
    }

    /// Whether an extent cannot go.
    fn is_kept(&self, entry: &Entry<M>) -> bool {
        entry.pending > 0 || entry.end > self.durable
    }

    /// Whether the extent that would be evicted first cannot go because the disks do not have all of it.
    pub fn await_disks(&self) -> bool {
        self.oldest()
            .is_some_and(|(_, entry)| entry.pending == 0 && entry.end > self.durable)
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

    /// Bytes reserved in them that will never be read.
    pub fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Whether what is pinned has changed since the last call.
    pub fn take_pins_changed(&mut self) -> bool {
        std::mem::take(&mut self.pins_changed)
    }

    /// All extents.
    pub fn all(&self) -> impl Iterator<Item = ExtentState> {
        self.entries.iter().map(|(serial, entry)| ExtentState {
            serial,
            at: entry.extent.at(),
            bytes: entry.extent.len(),
            end: entry.end,
            live_bytes: entry.live_bytes,
            stays: self.is_kept(entry),
            is_lent: entry.extent.is_lent(),
        })
    }

    /// Whether something is pending in an extent, so that it cannot go.
    pub fn stays(&self, serial: u64) -> bool {
        self.entries
            .get(serial)
            .is_some_and(|entry| self.is_kept(entry))
    }

    /// Bytes of batches that are being received, or wait for their location in the order.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes at the ends of the extents, where nothing was reserved.
    pub fn unfilled_bytes(&self) -> u64 {
        let extents = self.entries.values().map(|entry| &entry.extent);
        extents.map(|it| u64::from(it.len() - it.filled())).sum()
    }

    /// Space in the newest extent, or `None` when a new one is needed.
    pub fn reserve(&mut self, len: u32) -> Option<BatchSpace<M>> {
        let serial = self.newest()?;
        let entry = self.entries.get_mut(serial)?;
        let reservation = entry.extent.reserve(len)?;
        entry.pending += 1;
        self.pending_bytes += u64::from(len);
        let location = Location {
            topic: self.topic,
            serial,
            len,
            extent_order: entry.extent.order(),
            is_ordered: self.is_ordered,
        };
        Some(BatchSpace {
            reservation,
            location,
        })
    }

    pub fn push(&mut self, extent: Extent<M>) {
        self.close_newest();
        let bytes = u64::from(extent.len());
        self.occupied_bytes += bytes;
        self.pushed_bytes += bytes;
        self.by_place.insert(extent.at(), self.next_serial);
        let entry = Entry {
            extent,
            pending: 0,
            end: 0,
            live_bytes: 0,
            dead_bytes: 0,
            pushed_bytes: self.pushed_bytes,
            wanted: false,
            pinned: false,
        };
        self.entries.insert(self.next_serial, entry);
        self.next_serial += 1;
    }

    /// Ends the time in which space is reserved in the newest one.
    fn close_newest(&mut self) {
        let Some(serial) = self.newest() else {
            return;
        };
        let entry = self.entries.get_mut(serial).expect("it is there");
        if entry.pending == 0 {
            self.settled.insert((entry.end, serial), ());
            return;
        }
        self.pinned_bytes += entry.pin();
        self.unsettled.insert(serial, ());
        self.unwanted.insert(serial, ());
    }

    /// Pins the extent of a pending batch that waits for others, for as long as that takes. True if more is
    /// pinned than before.
    pub fn pin(&mut self, location: &Location) -> bool {
        let bytes = self.entries.get_mut(location.serial).map_or(0, Entry::pin);
        self.pinned_bytes += bytes;
        bytes > 0
    }

    /// The pinned bytes, if the pending batch at this location waited for others.
    pub fn pinned_bytes_with(&self, location: &Location) -> u64 {
        let entry = self
            .entries
            .get(location.serial)
            .filter(|entry| !entry.pinned);
        self.pinned_bytes + entry.map_or(0, |entry| entry.live_bytes)
    }

    /// Number of the extent that is being filled; none if that was evicted.
    fn newest(&self) -> Option<u64> {
        let newest = self.next_serial.checked_sub(1)?;
        self.entries.contains(newest).then_some(newest)
    }

    /// Recovery: adopts an extent that holds `bytes` of batches up to `end`; the oldest extent comes first. One
    /// that is `unknown` is never evicted: it may hold batches whose positions cannot be known.
    pub fn adopt(&mut self, extent: Extent<M>, end: u64, bytes: u64, unknown: bool) {
        self.push(extent);
        let entry = self.entries.last_mut().expect("just pushed");
        (entry.end, entry.live_bytes, entry.pending) = (end, bytes, unknown.into());
        entry.dead_bytes = u64::from(entry.extent.filled()).saturating_sub(bytes);
        self.dead_bytes += entry.dead_bytes;
    }

    /// Ends the time in which one batch is pending in its extent, after `change`.
    fn settle<R>(&mut self, location: &Location, change: impl FnOnce(&mut Entry<M>) -> R) -> R {
        let entry = self.entries.get_mut(location.serial);
        let entry = entry.expect("an extent with a pending batch is not evicted");
        let (dead_before, live_before) = (entry.dead_bytes, entry.live_bytes);
        let changed = change(entry);
        self.dead_bytes += entry.dead_bytes - dead_before;
        self.pending_bytes -= u64::from(location.len);
        entry.pending -= 1;
        let settled = entry.pending == 0;
        if entry.pinned {
            self.pinned_bytes -= live_before;
            self.pins_changed = true;
            match settled {
                true => entry.pinned = false,
                false => self.pinned_bytes += entry.live_bytes,
            }
        }
        let end = entry.end;
        if settled && self.newest() != Some(location.serial) {
            self.unsettled.remove(location.serial);
            self.unwanted.remove(location.serial);
            self.settled.insert((end, location.serial), ());
        }
        changed
    }

    /// Gives back the space of a batch that will not be received, or gets no offset. It can be reserved again
    /// when nothing was reserved behind it.
    pub fn abandon(&mut self, location: &Location, reservation: Reservation<M>) {
        self.settle(location, |entry| {
            if !entry.extent.give_back(reservation) {
                entry.dead_bytes += u64::from(location.len);
            }
        });
    }

    /// Keeps the extent of a batch for ever: whether that has an offset cannot be known.
    pub fn keep_for_ever(&mut self, location: &Location) {
        if let Some(entry) = self.entries.get_mut(location.serial) {
            entry.dead_bytes += u64::from(location.len);
            self.dead_bytes += u64::from(location.len);
            self.pending_bytes -= u64::from(location.len);
        }
    }

    /// Makes a batch readable that has its offset, and ends at `end`.
    pub fn complete(&mut self, location: &Location, end: u64) {
        self.settle(location, |entry| {
            entry.end = entry.end.max(end);
            entry.live_bytes += u64::from(location.len);
        });
    }

    /// Counts a completed batch, at this place of the log, among those that can be read no more.
    pub fn mark_dead(&mut self, at: u64, bytes: u64) {
        let found = self.by_place.range(0, at + 1).next_back();
        let entry = found.and_then(|(_, serial)| self.entries.get_mut(*serial));
        let entry = entry.expect("an extent with a batch that can be read is not evicted");
        entry.live_bytes -= bytes;
        entry.dead_bytes += bytes;
        self.dead_bytes += bytes;
        if entry.pinned {
            self.pinned_bytes -= bytes;
        }
    }

    /// Whether the extent of a pending batch is wanted, or more than `bytes` of log were begun after
    /// it: the batch would outlive its neighbours by so much, and keep their memory as long.
    pub fn is_late(&self, location: &Location, bytes: u64) -> bool {
        let entry = self.entries.get(location.serial);
        entry.is_some_and(|entry| entry.wanted || self.pushed_bytes - entry.pushed_bytes > bytes)
    }

    /// Marks the extents as wanted that hold nothing at or above `first` but what is pending.
    pub fn want_below(&mut self, first: u64) {
        let entries = &mut self.entries;
        let before = self.unwanted.len();
        self.unwanted.retain(|serial, ()| {
            let entry = entries.get_mut(serial).expect("unwanted extents are here");
            entry.wanted = entry.end <= first;
            !entry.wanted
        });
        self.wants_more |= self.unwanted.len() < before;
    }

    /// Whether more extents are wanted than at the last call.
    pub fn take_wants(&mut self) -> bool {
        std::mem::take(&mut self.wants_more)
    }

    /// The extent that is to be evicted first.
    pub fn victim(&self) -> Option<Victim> {
        let (serial, entry) = self.oldest()?;
        (!self.is_kept(entry)).then(|| Victim {
            end: entry.end,
            bytes: entry.extent.len(),
            beside_bytes: self.pinned_below(entry.end),
            serial,
        })
    }

    /// The extent that goes first, if it can go.
    fn oldest(&self) -> Option<(u64, &Entry<M>)> {
        let first = if injected(Canary::ExtentAge) {
            self.settled.keys().min_by_key(|(_, serial)| *serial)
        } else {
            self.settled.first()
        };
        let serial = match first {
            Some((_, serial)) => serial,
            None => self.newest()?,
        };
        Some((serial, self.entries.get(serial)?))
    }

    /// Bytes that can be read in extents that cannot go, and that end at or below this offset.
    fn pinned_below(&self, end: u64) -> u64 {
        if self.pinned_bytes == 0 {
            return 0;
        }
        let entries = self
            .unsettled
            .keys()
            .filter_map(|serial| self.entries.get(serial));
        let below = entries.filter(|entry| entry.end <= end);
        below.map(|entry| entry.live_bytes).sum()
    }

    /// The next victim among the extents in these places of the log; `None` when the topic has none there.
    pub fn within(&self, places: Range<u64>) -> Option<Victim> {
        let its = || {
            let range = self.by_place.range(places.start, places.end);
            range.filter_map(|(_, serial)| Some((*serial, self.entries.get(*serial)?)))
        };
        let (youngest, entry) = its().max_by_key(|(serial, entry)| {
            // The newest must be the victim itself, as it does not go along with a younger one.
            (self.newest() == Some(*serial), entry.end)
        })?;
        let end = its().map(|(_, entry)| entry.end).max()?;
        Some(Victim {
            end,
            bytes: entry.extent.len(),
            beside_bytes: 0,
            serial: youngest,
        })
    }

    /// Whether the next victim can go and still leave what is to be retained of `bytes` that can be read.
    /// `leaving` sums those below an offset.
    pub fn exceed(&self, bytes: u64, leaving: impl Fn(u64) -> u64) -> bool {
        let retention_bytes = self.retention_bytes;
        if retention_bytes == 0 || self.entries.len() < 2 {
            return false;
        }
        let Some(victim) = self.victim() else {
            return false;
        };
        // Cheap, and nearly always the answer: what can be read of the victim leaves in any case. A client
        // chose the limit, which may be as large as a number can.
        let live_bytes = self
            .entries
            .get(victim.serial)
            .map_or(0, |it| it.live_bytes);
        if bytes < retention_bytes.saturating_add(live_bytes) {
            return false;
        }
        bytes - leaving(victim.end) >= retention_bytes
    }

    /// Takes out the victim, and every other one, but for the newest, that holds nothing at or above `first`;
    /// those in which something is pending become wanted. None of their batches can be read any more.
    pub fn take_with(&mut self, victim: &Victim, first: u64, taken: &mut Vec<Extent<M>>) {
        taken.extend(self.take(victim.serial));
        self.take_below(first, |extent| taken.push(extent));
    }

    fn take(&mut self, serial: u64) -> Option<Extent<M>> {
        let entry = self.entries.remove(serial)?;
        self.settled.remove((entry.end, serial));
        debug_assert_eq!(entry.live_bytes, 0, "its batches were marked as dead");
        self.by_place.remove(entry.extent.at());
        self.occupied_bytes -= u64::from(entry.extent.len());
        self.dead_bytes -= entry.dead_bytes;
        Some(entry.extent)
    }

    /// Gives to `take` every extent, but for the newest, that holds nothing at or above `first`; those in which
    /// something is pending become wanted.
    pub fn take_below(&mut self, first: u64, mut take: impl FnMut(Extent<M>)) {
        self.want_below(first);
        while let Some((end, serial)) = self.settled.first()
            && end <= first
        {
            self.take(serial).map(&mut take);
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        *self = Self {
            next_serial: self.next_serial,
            durable: self.durable,
            ..Self::new(self.topic, self.is_ordered, self.retention_bytes)
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

/// A topic has at least this many extents, unless its batches are larger or its extents the largest: an eviction
/// takes one of them at once.
const EXTENTS_PER_TOPIC: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_region::kept_payload;

    #[test]
    fn the_rest_of_an_extent_that_readers_of_a_dead_broker_keep_is_not_dead() {
        let (payload, _reader) = kept_payload(4 * UNIT_BYTES, 0..UNIT_BYTES);
        let mut found = payload.allocate_at(0, 2).expect("nobody has it");
        found.set_cursor(1024);
        let mut extents = Extents::new(1, false, 0);
        extents.adopt(found, 10, 1000, false);
        assert!(extents.reserve(64).is_none(), "readers have it");
        assert_eq!((extents.dead_bytes(), extents.size().stuck_bytes), (24, 24));
        let all = 1000 + extents.dead_bytes() + extents.unfilled_bytes();
        assert_eq!(all, extents.occupied_bytes());
    }
}
