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
    /// The bytes of a fact.
    pub fact: Vec<u8>,
}

/// Checks all runs of a commit, of which `commit` are all bytes.
pub(super) fn check(found: &Found, commit: &[u8], depth: Depth) -> Vec<CheckedRun> {
    let runs = found.runs.iter();
    let checked = runs.map(|run| {
        let bytes = &commit[run.at as usize..(run.at + run.bytes) as usize];
        match run.kind {
            RunKind::Batches => check_batches(run, bytes, depth),
            RunKind::Fact | RunKind::Next => CheckedRun {
                is_whole: crc32c(bytes) == run.crc,
                fact: bytes.to_vec(),
                ..CheckedRun::default()
            },
        }
    });
    checked.collect()
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
