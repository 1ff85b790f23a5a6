//! Clears a block of the log for a batch that is larger than the extents that would go next.
//!
//! Invariants
//! - Of all blocks that can be cleared it is the one with which readers lose least.
//! - Where none can be, the search is not repeated before one may be: a batch that waits for one asks in
//!   every round, and a search is a pass over all extents.
//! - A block of which something is lent cannot be cleared. What may be lent leaves most blocks of any size without
//!   ([`Span::lend`](embar_memory::Span::lend)).

use std::collections::BTreeMap;
use std::ops::Range;

use embar_memory::{Extent, Memory};

use super::extents::{ExtentState, Extents};
use super::{AdmitError, Log};

/// Why there is no block to clear.
pub(super) struct NoBlock {
    /// Of this size; nor is there one of a larger size, as that holds some of this.
    bytes: u32,
    /// An extent that cannot go, by topic and number, of each block that has one.
    staying: Vec<(u32, u64)>,
    /// Whether every block has one. In a block without, readers still send from what was evicted, or were lent something.
    everywhere: bool,
    /// The counts when this was last found to be so.
    seen: ReleaseCounts,
}

/// Counts what can make a block possible.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ReleaseCounts {
    /// Batches that were settled, after which their extents can go.
    settled: u64,
    /// Blocks that were freed: no topic has them, and no reader sends from them.
    blocks: u64,
    /// Blocks that were lent, and are not any more.
    returned: u64,
}

impl ReleaseCounts {
    /// Whether readers let go of anything between the two.
    fn has_released_readers(self, before: Self) -> bool {
        (self.blocks, self.returned) != (before.blocks, before.returned)
    }
}

/// The block with which readers lose least.
struct Cheapest {
    /// Bytes that can be read and would be lost: of those that their topics are to retain, and in all.
    cost: (u64, u64),
    places: Range<u64>,
    topics: Vec<u32>,
}

impl<M: Memory> Log<M> {
    /// Evicts what lies in one block of `bytes`: the one with which readers lose least.
    pub(super) fn clear_block(&mut self, bytes: u32) -> Result<Extent<M>, AdmitError> {
        if self.has_no_block(bytes) {
            return Err(AdmitError::Full);
        }
        let cheapest = match self.cheapest_block(bytes) {
            Ok(cheapest) => cheapest,
            Err(none) => {
                self.no_block = Some(none);
                return Err(AdmitError::Full);
            }
        };
        for topic in cheapest.topics {
            while let Some(victim) = self.extents_of(topic)?.within(cheapest.places.clone()) {
                self.evict(topic, &victim);
            }
        }
        self.payload_file.allocate(bytes).ok_or(AdmitError::Full)
    }

    /// Whether what the last search found still keeps every block from being cleared. Cheap where nothing
    /// was released since, else a look at one extent of each block.
    fn has_no_block(&mut self, bytes: u32) -> bool {
        let seen = self.release_counts();
        let Some(mut none) = self.no_block.take_if(|none| none.bytes <= bytes) else {
            return false;
        };
        let lasts = seen == none.seen
            || (none.everywhere || !seen.has_released_readers(none.seen))
                && none.staying.iter().all(|(topic, serial)| {
                    self.extents_of(*topic)
                        .is_ok_and(|extents| extents.stays(*serial))
                });
        if lasts {
            none.seen = seen;
            self.no_block = Some(none);
        }
        lasts
    }

    fn release_counts(&self) -> ReleaseCounts {
        ReleaseCounts {
            settled: self.admission.given_back(),
            blocks: self.payload_file.freed_blocks(),
            returned: self.payload_file.returned_blocks(),
        }
    }

    /// Searches for that block. A pass over all extents.
    fn cheapest_block(&self, bytes: u32) -> Result<Cheapest, NoBlock> {
        // Readers let go of memory at any time, also of what was looked at already.
        let seen = self.release_counts();
        let local = self.local.values();
        let local = local.map(|it| Occupant::of(it.id, &it.extents, it.bytes));
        let ordered = self.ordered.values();
        let ordered = ordered.map(|it| Occupant::of(it.id, &it.extents, it.bytes));
        let occupants: Vec<Occupant> = local.chain(ordered).collect();
        let size = u64::from(bytes);
        let mut blocks: BTreeMap<u64, Vec<(usize, ExtentState)>> = BTreeMap::new();
        for (occupant, its) in occupants.iter().enumerate() {
            for state in &its.extents {
                let block = state.at / size;
                blocks.entry(block).or_default().push((occupant, *state));
            }
        }
        // The end of the log that is smaller than a block is never one.
        let whole = self.payload_file.total_bytes() / size;
        let mut cheapest: Option<Cheapest> = None;
        let mut staying = Vec::new();
        let mut staying_blocks = 0;
        for (block, extents) in blocks.into_iter().take_while(|(block, _)| *block < whole) {
            let stays = extents.iter().find(|(_, state)| state.stays);
            if let Some((occupant, state)) = stays {
                staying.push((occupants[*occupant].id, state.serial));
                staying_blocks += u64::from(state.bytes).div_ceil(size);
                continue;
            }
            let places = block * size..(block + 1) * size;
            let occupied: u64 = extents.iter().map(|(_, it)| u64::from(it.bytes)).sum();
            // Readers of what was evicted still send from the rest of it, or what would be evicted is lent.
            let is_lent = extents.iter().any(|(_, it)| it.is_lent);
            if is_lent || occupied + self.payload_file.free_bytes_in(places.clone()) < size {
                continue;
            }
            let found = Cheapest::of(places, &extents, &occupants);
            if cheapest.as_ref().is_none_or(|it| found.cost < it.cost) {
                cheapest = Some(found);
            }
        }
        cheapest.ok_or(NoBlock {
            bytes,
            staying,
            everywhere: staying_blocks == whole,
            seen,
        })
    }
}

impl Cheapest {
    /// What lies in these places, each with its topic's place among the occupants.
    fn of(places: Range<u64>, extents: &[(usize, ExtentState)], occupants: &[Occupant]) -> Self {
        let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
        for (occupant, state) in extents {
            let end = ends.entry(*occupant).or_default();
            *end = state.end.max(*end);
        }
        let costs = ends
            .iter()
            .map(|(occupant, end)| occupants[*occupant].cost(*end));
        Self {
            cost: costs.fold((0, 0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1)),
            places,
            topics: ends.into_keys().map(|its| occupants[its].id).collect(),
        }
    }
}

/// A topic as the search for a block sees it.
struct Occupant {
    id: u32,
    extents: Vec<ExtentState>,
    /// What it is to retain; 0: as much as fits.
    retention_bytes: u64,
    /// Bytes of it that can be read.
    bytes: u64,
    /// By the ends of its extents: bytes that can be read in those that end there or below.
    below: Vec<(u64, u64)>,
}

impl Occupant {
    fn of<M: Memory>(id: u32, extents: &Extents<M>, bytes: u64) -> Self {
        let retention_bytes = extents.retention_bytes();
        let extents: Vec<ExtentState> = extents.all().collect();
        let mut below: Vec<_> = extents.iter().map(|it| (it.end, it.live_bytes)).collect();
        below.sort_unstable();
        let mut sum = 0;
        for (_, bytes) in &mut below {
            sum += *bytes;
            *bytes = sum;
        }
        Self {
            id,
            extents,
            retention_bytes,
            bytes,
            below,
        }
    }

    /// What is lost when nothing below `end` can be read any more: bytes that it is to retain, and all.
    fn cost(&self, end: u64) -> (u64, u64) {
        let count = self.below.partition_point(|(its, _)| *its <= end);
        let lost = count.checked_sub(1).map_or(0, |last| self.below[last].1);
        let retained = self.retention_bytes.saturating_sub(self.bytes - lost);
        (retained.min(lost), lost)
    }
}

#[cfg(test)]
mod tests;
