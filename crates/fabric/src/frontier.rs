//! How far chains are on a disk, as the writer of a term says it: one row for each topic and each broker that takes data. Chains that
//! the sequencer orders have one position over all brokers, and use the first.

use std::sync::Arc;

use embar_memory::Memory;

use crate::records::{Frontier, Record};
use crate::slot::{self, PAIR_BYTES};

/// Writes the frontiers of one disk in one area; the disk's writer has the only one.
#[derive(Debug)]
pub struct FrontierTable<M> {
    memory: Arc<M>,
    at: u64,
    nonce: u32,
    rows: u16,
    /// Of each row, once it was needed.
    versions: Vec<Option<u32>>,
}

impl<M: Memory> FrontierTable<M> {
    /// Goes on after the versions that are there, of `topics` times `rows`.
    pub(crate) fn attach(memory: Arc<M>, at: u64, nonce: u32, (topics, rows): (u16, u16)) -> Self {
        Self {
            versions: vec![None; usize::from(topics) * usize::from(rows)],
            memory,
            at,
            nonce,
            rows,
        }
    }

    /// Stores how far a chain is; on return every later reader sees it.
    ///
    /// # Panics
    /// When there is no such topic record, or no such row.
    pub fn store(&mut self, topic: u16, row: u16, frontier: &Frontier) {
        assert!(row < self.rows, "no frontier {row}");
        let place = usize::from(topic) * usize::from(self.rows) + usize::from(row);
        let at = self.at + place as u64 * PAIR_BYTES;
        let known = &mut self.versions[place];
        let last = known.unwrap_or_else(|| {
            let found = slot::read_row(&*self.memory, at, self.nonce).found();
            found.map_or(0, |(version, _)| version)
        });
        let body = frontier.to_body();
        *known = Some(slot::rewrite_both(
            &*self.memory,
            at,
            self.nonce,
            last,
            &body,
        ));
    }
}
