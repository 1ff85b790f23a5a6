//! The session table of one area: what the sequencer knows of each session, in two rows.
//!
//! The [`SessionRow`] changes as the session goes on. The [`SessionOwner`] is stored before the row with which the
//! session begins, and names the first epoch of that row. An owner that names another epoch belongs to a session that
//! never began, or that is over.

use std::sync::Arc;

use embar_memory::Memory;

use crate::records::{Record, SessionOwner, SessionRow};
use crate::slot::{self, PAIR_BYTES};

/// Bytes of a session's rows.
pub(crate) const SESSION_BYTES: u64 = 2 * PAIR_BYTES;
/// Where the owner lies among them.
pub(crate) const OWNER_AT: u64 = PAIR_BYTES;

/// Writes the session table of an area; its sequencer has the only one.
#[derive(Debug)]
pub struct SessionTable<M> {
    memory: Arc<M>,
    at: u64,
    nonce: u32,
    /// Of each session's row and owner, once it was needed: most places are never used.
    versions: Vec<[Option<u32>; 2]>,
}

impl<M: Memory> SessionTable<M> {
    /// Goes on after the versions that are there.
    pub(crate) fn attach(memory: Arc<M>, at: u64, nonce: u32, sessions: u32) -> Self {
        Self {
            versions: vec![[None; 2]; sessions as usize],
            memory,
            at,
            nonce,
        }
    }

    /// Stores a row; on return every later reader sees it.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn store(&mut self, slot: u32, row: &SessionRow) {
        self.rewrite(slot, 0, row);
    }

    /// Stores whose the session is that begins with the row stored next.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn store_owner(&mut self, slot: u32, owner: &SessionOwner) {
        self.rewrite(slot, 1, owner);
    }

    fn rewrite<T: Record>(&mut self, slot: u32, which: usize, record: &T) {
        let known = &mut self.versions[slot as usize][which];
        let at = self.at + u64::from(slot) * SESSION_BYTES + which as u64 * OWNER_AT;
        let last = known.unwrap_or_else(|| {
            let found = slot::read_row(&*self.memory, at, self.nonce).found();
            found.map_or(0, |(version, _)| version)
        });
        let version = slot::rewrite_both(&*self.memory, at, self.nonce, last, &record.to_body());
        *known = Some(version);
    }
}
