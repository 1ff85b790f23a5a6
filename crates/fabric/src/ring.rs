//! Rings of records: record number `n`, counted from 0 over the life of the region, lies in slot
//! `n % slots` with lap `n / slots + 1`.
//!
//! Laps have 32 bits, so a ring of 1024 slots is good for 4·10^12 records over the life of its
//! region. Neither end keeps a shared tail: the reader looks whether the slot of the next number
//! holds its lap. The user of a ring keeps its writer from overwriting what was not read.

use std::sync::Arc;

use embar_memory::Memory;

use crate::slot::{self, Body, Look, Seen};

/// Where one ring lies.
#[derive(Debug)]
pub(crate) struct Ring<M> {
    pub memory: Arc<M>,
    pub slots_at: u64,
    /// Bytes from each slot to the next one.
    pub stride: u64,
    pub slots: u32,
    pub nonce: u32,
}

impl<M: Memory> Ring<M> {
    /// Where a number lies, and its lap.
    fn place(&self, number: u64) -> (u64, u32) {
        let slots = u64::from(self.slots);
        let at = self.slots_at + number % slots * self.stride;
        (at, (number / slots + 1) as u32)
    }

    /// Publishes a record; on return every reader sees it.
    #[inline]
    pub fn publish(&self, number: u64, body: &Body) {
        let (at, lap) = self.place(number);
        slot::publish(&*self.memory, at, body, self.nonce, lap);
    }

    /// The record with this number, while the ring holds it.
    #[inline]
    pub fn observe(&self, number: u64) -> Seen<Body> {
        let (at, lap) = self.place(number);
        slot::observe(&*self.memory, at, self.nonce, lap)
    }

    /// As [`Ring::observe`]; a record whose lap has a wrong bit is seen, too. One whose lap is lost is
    /// damaged once the next one is there: before that its lap may have been any.
    #[inline]
    pub fn observe_closely(&self, number: u64) -> Seen<Body> {
        let (at, lap) = self.place(number);
        match slot::look(&*self.memory, at, self.nonce) {
            Look::Found(its, body) if its == lap => Seen::Found(body),
            Look::Damaged(its) if its == lap => Seen::Damaged,
            Look::Damaged(_) if self.holds(number + 1) => Seen::Damaged,
            _ => Seen::Nothing,
        }
    }

    /// Whether the record with this number is there, and can be read.
    fn holds(&self, number: u64) -> bool {
        let (at, lap) = self.place(number);
        let look = slot::look(&*self.memory, at, self.nonce);
        matches!(look, Look::Found(its, _) if its == lap)
    }

    /// Whether the place of a number holds what cannot be read.
    fn is_lost(&self, number: u64) -> bool {
        let (at, _) = self.place(number);
        slot::peek(&*self.memory, at, self.nonce).is_damaged()
    }

    /// The number of the record in each slot that holds one.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let slots = u64::from(self.slots);
        (0..slots).filter_map(move |i| {
            let at = self.slots_at + i * self.stride;
            let (lap, _) = slot::peek(&*self.memory, at, self.nonce).found()?;
            Some(u64::from(lap.checked_sub(1)?) * slots + i)
        })
    }

    /// One above the highest number that any record in the ring carries; 0 when there is none. A place
    /// behind it that cannot be read may have held a higher one.
    pub fn above_all(&self) -> u64 {
        self.above_all_and(0)
    }

    /// As [`Ring::above_all`], where all numbers below `known` are known to have been used: none of their
    /// records may be left.
    pub fn above_all_and(&self, known: u64) -> u64 {
        let above = self.numbers().max().map_or(0, |newest| newest + 1);
        let above = above.max(known);
        let places = above..above + u64::from(self.slots);
        above + places.take_while(|number| self.is_lost(*number)).count() as u64
    }

    /// The lowest number from which on the ring holds every record up to the newest, readable or not.
    pub fn oldest(&self) -> u64 {
        let end = self.above_all();
        let oldest = end.saturating_sub(self.slots.into());
        (oldest..end)
            .rev()
            .take_while(|number| self.observe_closely(*number) != Seen::Nothing)
            .last()
            .unwrap_or(end)
    }
}
