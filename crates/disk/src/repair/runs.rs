//! Puts back the runs of a commit whose table is whole.

use embar_frame::crc32c;
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::copies::Copies;
use crate::bits::{flip, flipped_bit};
use crate::format::{Chain, Run, RunKind, check_runs};
use crate::recover::chain_of;

/// Puts each run of a commit that is damaged back as it was. False where that cannot be done, and the rest was.
pub(super) fn restore(runs: &[Run], commit: &mut [u8], copies: &mut dyn Copies) -> bool {
    let mut is_whole = true;
    for run in runs {
        let alone = std::slice::from_ref(run);
        if check_runs(alone, commit).is_ok() {
            continue;
        }
        let place = run.at as usize..(run.at + run.bytes) as usize;
        let bytes = &commit[place.clone()];
        let restored = match run.kind {
            RunKind::Batches => batches(run, bytes, copies),
            RunKind::Fact => fact(run, bytes, copies),
            RunKind::Next => None,
        };
        let Some(restored) = restored.filter(|it| it.len() == place.len()) else {
            is_whole = false;
            continue;
        };
        let was = commit[place.clone()].to_vec();
        commit[place.clone()].copy_from_slice(&restored);
        if check_runs(alone, commit).is_err() {
            commit[place].copy_from_slice(&was);
            is_whole = false;
        }
    }
    is_whole
}

fn fact(run: &Run, bytes: &[u8], copies: &dyn Copies) -> Option<Vec<u8>> {
    if let Some(bit) = flipped_bit(bytes, run.crc) {
        let mut fact = bytes.to_vec();
        flip(&mut fact, bit);
        return Some(fact);
    }
    let said = copies.facts(run.row, run.first);
    let same = said.into_iter().find(|it| crc32c(it) == run.crc)?;
    Some(same.to_vec())
}

/// All batches of a run: its own where they are whole, and copies of the others.
fn batches(run: &Run, bytes: &[u8], copies: &mut dyn Copies) -> Option<Vec<u8>> {
    let chain = chain_of(run);
    let mut restored = Vec::with_capacity(bytes.len());
    let mut next = run.first;
    while next < run.end() && restored.len() < bytes.len() {
        let own = bytes
            .get(restored.len()..)
            .and_then(|it| whole_batch(it, chain, next));
        let batch = match own {
            Some(own) => own.to_vec(),
            None => copies.batch(chain, next)?,
        };
        next += u64::from(messages_of(&batch)?);
        restored.extend(batch);
    }
    Some(restored)
}

/// The batch that begins these bytes, if it is whole and belongs there.
pub(super) fn whole_batch(bytes: &[u8], chain: Chain, first: u64) -> Option<&[u8]> {
    let header = BatchHeader::parse(bytes, MAX_BATCH_BYTES).ok()?;
    let batch = bytes.get(..header.frame_len() as usize)?;
    let is_it = header.topic() == chain.topic
        && header.base_offset() == first
        && header.check_payload(&batch[BATCH_HEADER_BYTES..]).is_ok();
    is_it.then_some(batch)
}

pub(super) fn messages_of(batch: &[u8]) -> Option<u32> {
    let header = BatchHeader::parse(batch, MAX_BATCH_BYTES).ok()?;
    Some(header.message_count()).filter(|messages| *messages > 0)
}
