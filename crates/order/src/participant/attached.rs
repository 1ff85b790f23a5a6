//! Counts what holds each session on this broker (its connections and unsettled batches), and publishes which sessions
//! the broker holds. The sequencer gives none of these up.

use embar_fabric::geometry::SESSIONS_PER_ROW;
use embar_fabric::{Attached, Claim, Region, RowWriter};
use embar_memory::Memory;

/// Counts the holders of each session, and shows in the broker's rows which sessions have any.
#[derive(Debug)]
pub(super) struct Holds<M> {
    rows: Vec<(RowWriter<M, Attached>, Attached)>,
    /// By place: connections, and batches that are not settled.
    counts: Vec<u32>,
}

impl<M: Memory> Holds<M> {
    /// None. What older incarnations held does not count.
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        let nothing = Attached {
            incarnation: claim.incarnation(),
            ..Attached::default()
        };
        let numbers = 0..region.geometry().attached_rows();
        let rows = numbers.map(|number| (region.attached_writer(claim, number), nothing));
        Self {
            rows: rows.collect(),
            counts: vec![0; region.geometry().sessions as usize],
        }
    }

    /// One more holds the session.
    pub fn hold(&mut self, session: u32) {
        if let Some(count) = self.counts.get_mut(session as usize) {
            *count += 1;
            if *count == 1 {
                self.say(session, true);
            }
        }
    }

    /// One that held the session does not any more.
    pub fn release(&mut self, session: u32) {
        if let Some(count) = self.counts.get_mut(session as usize) {
            debug_assert!(*count > 0, "whoever releases a session has held it");
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.say(session, false);
            }
        }
    }

    fn say(&mut self, session: u32, is_held: bool) {
        let (number, bit) = (session / SESSIONS_PER_ROW, session % SESSIONS_PER_ROW);
        let (row, said) = &mut self.rows[number as usize];
        let word = &mut said.sessions[(bit / u64::BITS) as usize];
        let bit = 1 << (bit % u64::BITS);
        *word = if is_held { *word | bit } else { *word & !bit };
        row.store(said);
    }
}
