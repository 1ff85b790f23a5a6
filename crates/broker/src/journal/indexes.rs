//! The indexes of all brokers, as the writer of a disk follows them. At orders 0 and 1 they have what comes next.

use std::collections::{BTreeMap, BTreeSet};

use embar_disk::Chain;
use embar_fabric::geometry::topic_record_of;
use embar_fabric::region::Region;
use embar_fabric::{IndexCursor, IndexFollower, IndexRecord, Window};
use embar_memory::Memory;

/// What comes next is not kept any more, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// The index of each broker that has one.
pub(super) struct Indexes<M: Memory> {
    region: Region<M>,
    /// What is read of them.
    chains: BTreeSet<Chain>,
    by_row: BTreeMap<u16, IndexFollower<M>>,
    /// Kept for its memory.
    grown: Vec<u32>,
}

impl<M: Memory> Indexes<M> {
    pub fn new(region: &Region<M>) -> Self {
        Self {
            region: region.clone(),
            chains: BTreeSet::new(),
            by_row: BTreeMap::new(),
            grown: Vec::new(),
        }
    }

    /// Reads the chains of a topic from now on: one of each broker that takes data. Returns them.
    pub fn follow(&mut self, topic: u32) -> Vec<Chain> {
        let rows = self.region.geometry().data_rows();
        let chains: Vec<Chain> = rows.map(|row| Chain { topic, row }).collect();
        self.chains.extend(&chains);
        chains
    }

    /// Reads a chain no more.
    pub fn unfollow(&mut self, chain: Chain) {
        self.chains.remove(&chain);
    }

    /// Appends those of the chains that may have grown since the last call, and others.
    pub fn take_grown(&mut self, out: &mut Vec<Chain>) {
        if self.chains.is_empty() {
            return;
        }
        for row in self.region.geometry().data_rows() {
            // Nobody has appended anything yet.
            if !self.by_row.contains_key(&row) && self.region.incarnation(row) == 0 {
                continue;
            }
            let follower = self.by_row.entry(row);
            let follower = follower.or_insert_with(|| self.region.index_follower(row));
            if follower.take_grown(&mut self.grown) {
                let grown = self.grown.drain(..);
                out.extend(grown.map(|topic| Chain { topic, row }));
            } else {
                self.grown.clear();
                out.extend(self.chains.iter().filter(|chain| chain.row == row));
            }
        }
    }

    /// Appends what comes next of a broker's chain, at most `limit` records.
    pub fn read(
        &mut self,
        row: u16,
        cursor: &mut IndexCursor,
        limit: usize,
        out: &mut Vec<IndexRecord>,
    ) -> Result<(), Gone> {
        let window_of = |cursor: &IndexCursor| window(&self.region, row, cursor.chain());
        let (Some(follower), Some(window)) = (self.by_row.get_mut(&row), window_of(cursor)) else {
            return Ok(());
        };
        if cursor.next() < window.first {
            return Err(Gone);
        }
        let read = follower.read(cursor, window.next, limit, out);
        // The topic may have been deleted meanwhile.
        match read.is_err() && window_of(cursor).is_some() {
            true => Err(Gone),
            false => Ok(()),
        }
    }
}

/// What a broker says that it has of a topic, if that can be known at the moment.
fn window<M: Memory>(region: &Region<M>, row: u16, topic: u32) -> Option<Window> {
    let window = region.window(row, topic_record_of(topic)).found();
    window.filter(|window| window.chain == topic)
}
