//! The newest record of each chain, and its root. Where memory loses the record, nothing behind it shows that
//! there was one, so readers that follow the order wait for it. Where memory loses the root, readers that begin to
//! follow wait for that. Their writer knows, and still has both.

use std::ops::Bound;

use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::GoiWriter;
use crate::slot::Seen;

impl<M: Memory> GoiWriter<M> {
    /// Reads the newest records and the roots of the next few chains back, and stores again what memory has lost;
    /// each call goes on behind the chains of the one before. Returns the chains of which something was lost: every
    /// later reader sees it. Nothing that was appended is to wait for a fence.
    pub fn restore_newest(&mut self, most: usize) -> Vec<u32> {
        let mut restored = Vec::new();
        for _ in 0..most.min(self.chains.len()) {
            let behind = (Bound::Excluded(self.looked_at), Bound::Unbounded);
            let mut chains = self.chains.range(behind).chain(&self.chains);
            let Some(chain) = chains.next().map(|(chain, _)| *chain) else {
                break;
            };
            self.looked_at = chain;
            let was_root_lost = self.restore_root(chain);
            if self.restore(chain) || was_root_lost {
                restored.push(chain);
            }
        }
        restored
    }

    /// Whether the root of a chain was lost, and is there again.
    fn restore_root(&mut self, chain: u32) -> bool {
        let known = self.chains.get_mut(&chain);
        known.is_some_and(|known| known.row.restore(&known.root))
    }

    /// Whether the newest record of a chain was lost, and is there again.
    fn restore(&self, chain: u32) -> bool {
        let known = &self.chains[&chain];
        let Some((page, slot)) = known.pages.back().and_then(|last| {
            let slot = last.records.checked_sub(1)?;
            Some((last.page, slot))
        }) else {
            return false;
        };
        let generation = self.generations[page as usize];
        let seen = self.pages.slot(page, slot, generation);
        if seen == Seen::Found(known.newest) || injected(Canary::NewestRestored) {
            return false;
        }
        self.pages.publish(page, slot, generation, &known.newest);
        true
    }
}
