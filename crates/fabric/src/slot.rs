//! One record of 64 bytes, one writer, any number of readers, no coherence needed.
//!
//! A slot is one cache line: 56 body bytes, then the commit word
//! `nonce (32 bits) << 32 | lap (32 bits)`. The nonce is the region's and never zero; the lap
//! tells this use of the slot from earlier ones. Stale bytes, of another region or an older lap,
//! therefore never look like a record, and nothing is ever reset. (Memory full of random bytes
//! could match one 64-bit word by a chance of 2^-64; where any lap is taken, 2^-32.)
//!
//! Publishing is a seqlock over one line. Its pairs of orderings:
//!
//! | writer | reader | what it gives |
//! | --- | --- | --- |
//! | release store of the commit word | first acquire load of it | the body read is at least this one |
//! | release fence after commit := 0 | acquire fence before the second load | a body word of a later lap read → the second load sees 0 or that lap |
//!
//! A line reaches memory as a whole, so without coherence the same argument holds line by line.

use crate::canary::{Canary, sings};
use std::sync::atomic::Ordering;

use crate::memory::{LINE_BYTES, Memory};
use crate::sync::fence;

/// Bytes of a slot.
pub const SLOT_BYTES: u64 = LINE_BYTES;
/// Bytes of a slot's body.
pub const BODY_BYTES: usize = 56;
/// Bytes of a pair of slots that holds one mutable row.
pub const PAIR_BYTES: u64 = 2 * SLOT_BYTES;

/// Offset of the commit word within a slot.
const COMMIT_AT: u64 = BODY_BYTES as u64;
/// Commit word of a slot that is being written; no region has nonce 0.
pub(crate) const IN_PROGRESS: u64 = 0;
/// Attempts to read a row that its writer keeps rewriting.
const READ_ATTEMPTS_MAX: u32 = 64;

const _: () = assert!(COMMIT_AT + 8 == SLOT_BYTES);

/// A slot's body.
pub type Body = [u8; BODY_BYTES];

/// The commit word of `lap` in the region with this `nonce`.
#[inline]
pub const fn commit_word(nonce: u32, lap: u32) -> u64 {
    (nonce as u64) << 32 | lap as u64
}

/// Writes a slot and makes it visible; on return every later observer sees it.
///
/// Only the slot's one writer calls this, and only when nobody may still need the old content:
/// a reader of the old lap notices and gets nothing.
#[inline]
pub fn publish<M: Memory>(memory: &M, at: u64, body: &Body, commit: u64) {
    publish_later(memory, at, body, commit);
    if !sings(Canary::SlotFence) {
        memory.fence();
    }
}

/// As [`publish`], but later observers are sure to see it only after the next fence. Several
/// records then share one.
#[inline]
pub fn publish_later<M: Memory>(memory: &M, at: u64, body: &Body, commit: u64) {
    debug_assert_ne!(commit >> 32, 0, "a region's nonce is never zero");
    memory.store(at + COMMIT_AT, IN_PROGRESS);
    // Partner: the acquire fence in `copy_if_still`.
    fence(Ordering::Release);
    memory.write(at, body);
    // Partner: the first load in `observe` and `look`.
    memory.store(at + COMMIT_AT, commit);
    if !sings(Canary::SlotWriteBack) {
        memory.write_back(at, SLOT_BYTES);
    }
}

/// Reads a slot if it holds exactly the record committed as `commit`.
#[inline]
pub fn observe<M: Memory>(memory: &M, at: u64, commit: u64) -> Option<Body> {
    if !sings(Canary::SlotInvalidate) {
        memory.invalidate(at, SLOT_BYTES);
    }
    // Acquire. Partner: the last store in `publish`.
    if memory.load(at + COMMIT_AT) != commit {
        return None;
    }
    copy_if_still(memory, at, commit)
}

/// Reads a slot if it holds a record of this region, of any lap: `(lap, body)`.
pub fn peek<M: Memory>(memory: &M, at: u64, nonce: u32) -> Option<(u32, Body)> {
    match look(memory, at, nonce) {
        Look::Found(lap, body) => Some((lap, body)),
        Look::InProgress | Look::Foreign => None,
    }
}

/// What a place that holds one version at a time shows.
pub(crate) enum Look<T> {
    /// A whole version.
    Found(u32, T),
    /// It is being written, or the writer died while it wrote.
    InProgress,
    /// Nothing of this region.
    Foreign,
}

fn look<M: Memory>(memory: &M, at: u64, nonce: u32) -> Look<Body> {
    if !sings(Canary::SlotInvalidate) {
        memory.invalidate(at, SLOT_BYTES);
    }
    // Acquire. Partner: the last store in `publish`.
    let commit = memory.load(at + COMMIT_AT);
    if commit == IN_PROGRESS {
        return Look::InProgress;
    }
    if commit >> 32 != u64::from(nonce) {
        return Look::Foreign;
    }
    match copy_if_still(memory, at, commit) {
        Some(body) => Look::Found(commit as u32, body),
        None => Look::InProgress,
    }
}

/// Takes a record back: no later observer sees it. Only the slot's writer calls this.
pub(crate) fn withdraw<M: Memory>(memory: &M, at: u64) {
    memory.store(at + COMMIT_AT, IN_PROGRESS);
    memory.write_back(at, SLOT_BYTES);
    memory.fence();
}

#[inline]
fn copy_if_still<M: Memory>(memory: &M, at: u64, commit: u64) -> Option<Body> {
    let mut body = [0; BODY_BYTES];
    memory.read(at, &mut body);
    // Partner: the release fence in `publish`.
    fence(Ordering::Acquire);
    (memory.load(at + COMMIT_AT) == commit).then_some(body)
}

/// Rewrites a mutable row: a pair of slots, of which odd and even versions take turns.
///
/// A writer that dies half-way leaves the version before readable. `version` is one above the one
/// written last (wrapping); only the row's one writer calls this.
#[inline]
pub fn rewrite<M: Memory>(memory: &M, at: u64, nonce: u32, version: u32, body: &Body) {
    let slot = at + u64::from(version % 2) * SLOT_BYTES;
    publish(memory, slot, body, commit_word(nonce, version));
}

/// Reads a mutable row: the newest `(version, body)`, or `None` when it was never written.
///
/// Also `None` when the writer overtook every one of a bounded number of attempts. A reader that
/// reads again never gets an older version than before.
pub fn read_row<M: Memory>(memory: &M, at: u64, nonce: u32) -> Option<(u32, Body)> {
    newest(|slot| look(memory, at + slot * SLOT_BYTES, nonce))
}

/// The newest of two places whose one writer fills them by turns; `look(0)` and `look(1)` read one.
///
/// What is returned was the newest at some moment of the call: if both places hold a version,
/// the higher one was. If the first is being written, the second held the version before. If the
/// second is being written, the first held the version before only if it still does: the writer
/// may have filled both since it was read.
pub(crate) fn newest<T>(look: impl Fn(u64) -> Look<T>) -> Option<(u32, T)> {
    for _ in 0..READ_ATTEMPTS_MAX {
        match (look(0), look(1)) {
            (Look::Found(a, first), Look::Found(b, second)) => {
                return Some(if newer(b, a) { (b, second) } else { (a, first) });
            }
            (_, Look::Found(version, second)) => return Some((version, second)),
            (Look::Found(version, _), _) => {
                if let Look::Found(still, first) = look(0)
                    && still == version
                {
                    return Some((version, first));
                }
            }
            (Look::Foreign, Look::Foreign) => return None,
            (Look::InProgress, _) | (_, Look::InProgress) => {}
        }
        std::hint::spin_loop();
    }
    None
}

/// Whether version `a` was written after `b`, although versions wrap.
fn newer(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::{Device, Memory};

    const NONCE: u32 = 0xC0FF_EE01;

    #[test]
    fn garbage_and_older_laps_are_not_records() {
        let memory = Device::new(4096, 7).host(1);
        assert_eq!(observe(&memory, 64, commit_word(NONCE, 1)), None);
        publish(&memory, 64, &[3; 56], commit_word(NONCE, 1));
        assert_eq!(observe(&memory, 64, commit_word(NONCE, 1)), Some([3; 56]));
        assert_eq!(observe(&memory, 64, commit_word(NONCE, 2)), None);
        assert_eq!(observe(&memory, 64, commit_word(NONCE + 1, 1)), None);
        withdraw(&memory, 64);
        assert_eq!(peek(&memory, 64, NONCE), None);
    }

    #[test]
    fn a_row_survives_a_writer_that_dies_half_way() {
        let memory = Device::new(4096, 7).host(1);
        assert_eq!(read_row(&memory, 128, NONCE), None);
        rewrite(&memory, 128, NONCE, 1, &[1; 56]);
        rewrite(&memory, 128, NONCE, 2, &[2; 56]);
        // The third rewrite stops after its first store.
        memory.store(128 + SLOT_BYTES + COMMIT_AT, IN_PROGRESS);
        assert_eq!(read_row(&memory, 128, NONCE), Some((2, [2; 56])));
    }

    #[test]
    fn versions_may_wrap() {
        let memory = Device::new(4096, 7).host(1);
        for version in [u32::MAX - 1, u32::MAX, 0, 1] {
            rewrite(&memory, 0, NONCE, version, &[version as u8; 56]);
            assert_eq!(
                read_row(&memory, 0, NONCE),
                Some((version, [version as u8; 56]))
            );
        }
    }
}
