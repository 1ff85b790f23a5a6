//! The session table of one area: a row for each session that the sequencer knows.

use std::sync::Arc;

use crate::memory::Memory;
use crate::records::{Record, SessionRow};
use crate::slot::{self, PAIR_BYTES};

/// Writes the session table of an area; its sequencer has the only one.
#[derive(Debug)]
pub struct SessionTable<M> {
    memory: Arc<M>,
    at: u64,
    nonce: u32,
    versions: Vec<u32>,
}

impl<M: Memory> SessionTable<M> {
    /// Goes on after the versions that are there.
    pub(crate) fn attach(memory: Arc<M>, at: u64, nonce: u32, sessions: u32) -> Self {
        let version = |slot: u32| {
            let at = at + u64::from(slot) * PAIR_BYTES;
            slot::read_row(&*memory, at, nonce).map_or(0, |(version, _)| version)
        };
        let versions = (0..sessions).map(version).collect();
        Self {
            memory,
            at,
            nonce,
            versions,
        }
    }

    /// Stores a row; on return every later reader sees it.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn store(&mut self, slot: u32, row: &SessionRow) {
        let version = &mut self.versions[slot as usize];
        *version = version.wrapping_add(1);
        let at = self.at + u64::from(slot) * PAIR_BYTES;
        slot::rewrite(&*self.memory, at, self.nonce, *version, &row.to_body());
    }
}
