//! What is whole of the runs of one commit.

use std::ops::Range;

use embar_frame::{Crc, crc32c};
use embar_wire::limits::BATCH_HEADER_BYTES;

use crate::format::{BatchRun, Run, RunKind};
use crate::scan::{Depth, Found};

/// What is whole of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckedRun {
    pub is_whole: bool,
    pub batches: u64,
    /// Positions whose batches are whole...
    pub whole: Vec<Range<u64>>,
    /// ...and the others.
    pub lost: Vec<Range<u64>>,
    /// It is not whole, and where it lies there are zeros: it was given back, if its topic is gone.
    pub has_hole: bool,
    /// The bytes of a fact.
    pub fact: Vec<u8>,
}

/// Checks all runs of a commit, of which `commit` are all bytes.
pub(super) fn check(found: &Found, commit: &[u8], depth: Depth) -> Vec<CheckedRun> {
    let runs = found.runs.iter();
    let checked = runs.map(|run| {
        let bytes = &commit[run.at as usize..(run.at + run.bytes) as usize];
        match run.kind {
            RunKind::Batches => {
                let checked = check_batches(run, bytes, depth);
                CheckedRun {
                    has_hole: !checked.is_whole && has_hole(run, commit),
                    ..checked
                }
            }
            RunKind::Fact | RunKind::Next => CheckedRun {
                is_whole: crc32c(bytes) == run.crc,
                fact: bytes.to_vec(),
                ..CheckedRun::default()
            },
        }
    });
    checked.collect()
}

/// The smallest blocks of a device: of a hole that a power cut interrupts, any of them may be there.
const BLOCK_BYTES: usize = 512;

/// Whether a block that has a part of the run is all zeros. Runs that lie beside each other are given back together.
fn has_hole(run: &Run, commit: &[u8]) -> bool {
    let (first, end) = (run.at as usize, (run.at + run.bytes) as usize);
    let blocks = first / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
    let mut blocks = blocks.filter_map(|it| commit.get(it * BLOCK_BYTES..(it + 1) * BLOCK_BYTES));
    blocks.any(|block| block.iter().all(|byte| *byte == 0))
}

fn check_batches(run: &Run, bytes: &[u8], depth: Depth) -> CheckedRun {
    let mut checked = CheckedRun::default();
    let (mut crc, mut next, mut used) = (Crc::new(), run.first, 0);
    for (header, batch) in BatchRun::new(run, bytes) {
        crc.update(header.as_bytes());
        let positions = next..next.saturating_add(header.message_count().into());
        next = positions.end;
        used += batch.len();
        let payload = &batch[BATCH_HEADER_BYTES..];
        let is_whole = depth == Depth::Tables || header.check_payload(payload).is_ok();
        checked.batches += u64::from(is_whole);
        match is_whole {
            true => checked.whole.push(positions),
            false => checked.lost.push(positions),
        }
    }
    checked.is_whole = checked.lost.is_empty();
    if (used, next) != (bytes.len(), run.end()) {
        // Where a header is damaged, nothing says where the next batch begins.
        checked.is_whole = false;
        checked.lost.push(next..run.end().max(next));
    } else if crc.value() != run.crc {
        // All are batches, and not those that were written.
        checked = CheckedRun {
            lost: std::iter::once(run.first..run.end()).collect(),
            ..CheckedRun::default()
        };
    }
    checked
}
