//! A slot: the cache line of shared memory that holds one record. One process writes it, any number read it, and no
//! hardware has to keep their caches coherent. Two slots together hold a *row*: a record that changes. Its
//! writer stores each version in one of them and then in the other, so that neither a crash nor the loss of
//! one slot loses the row.
//!
//! A slot has 56 bytes of body, then the commit word `check (32 bits) << 32 | lap (32 bits)`. The lap counts how often the
//! slot was used. So the writer never has to reset a slot, and a reader that waits for a record sees by one load that it
//! is not there yet. The check is a CRC-32C of the body, the lap, the region's nonce (a random number that each region
//! has of its own) and the record's address. So no reader takes stale bytes, bytes of another region, or bytes
//! that belong elsewhere for a record.
//!
//! *Each reader repairs one wrong bit.* Two records of one address differ in at least six bits, check included. So
//! readers take a line that is one bit away from a record for that record. What is further away is [`Seen::Damaged`]: no
//! reader takes it for a record, or for nothing. Readers report both (see [`Memory::note_damage`]). A slot that was
//! never written is zero: the region begins so.
//!
//! Publishing is a seqlock (a reader that sees the writer at work reads again) over one line. Its pairs of orderings:
//!
//! | writer | reader | what it gives |
//! | --- | --- | --- |
//! | release store of the commit word | first acquire load of it | the body read is at least this one |
//! | release fence after commit := in progress | acquire fence before the second load | a body word of a later lap read → the second load sees "in progress" or that lap |
//!
//! Without coherence a line still reaches memory as a whole, so the table holds there, too.

mod check;

use embar_memory::canary::{Canary, injected};
use std::sync::atomic::Ordering;

use embar_memory::{Damage, LINE_BYTES, Memory};

use crate::sync::{fence, spin_loop};
use check::{Place, Sound};

/// Bytes of a slot.
pub const SLOT_BYTES: u64 = LINE_BYTES;
/// Bytes of a slot's body.
pub const BODY_BYTES: usize = 56;
/// Bytes of a pair of slots that holds one mutable row.
pub const PAIR_BYTES: u64 = 2 * SLOT_BYTES;

/// Offset of the commit word within a slot.
const COMMIT_AT: u64 = BODY_BYTES as u64;
/// Commit word of a slot that was never written.
const BLANK: u64 = 0;
/// Commit word of a slot that is being written: no record's.
pub(crate) const IN_PROGRESS: u64 = 0xA5A5_5A5A << 32;
/// Attempts to read a row that its writer keeps rewriting.
const READ_ATTEMPTS_MAX: u32 = 64;

const _: () = assert!(COMMIT_AT + 8 == SLOT_BYTES);

/// A slot's body.
pub type Body = [u8; BODY_BYTES];

/// What a place shows to one who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<T> {
    /// Nothing, or not yet.
    Nothing,
    /// What was published there.
    Found(T),
    /// Something was published there, and is lost: more than one bit of it is wrong.
    Damaged,
}

impl<T> Seen<T> {
    /// What was published, where damage and nothing come to the same.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(found) => Some(found),
            Self::Nothing | Self::Damaged => None,
        }
    }

    /// Whether something is there that cannot be read.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged)
    }

    /// The same, of something else.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Nothing => Seen::Nothing,
            Self::Found(found) => Seen::Found(f(found)),
            Self::Damaged => Seen::Damaged,
        }
    }
}

/// Writes a slot and makes it visible; on return every later observer sees it.
///
/// Only the slot's one writer calls this, and only when no reader may still need the old content:
/// a reader of the old lap notices and gets nothing.
#[inline]
pub fn publish<M: Memory>(memory: &M, at: u64, body: &Body, nonce: u32, lap: u32) {
    publish_later(memory, at, body, nonce, lap);
    if !injected(Canary::SlotFence) {
        memory.fence();
    }
}

/// As [`publish`], but later observers are sure to see it only after the next fence. Several
/// records then share one.
#[inline]
pub fn publish_later<M: Memory>(memory: &M, at: u64, body: &Body, nonce: u32, lap: u32) {
    debug_assert_ne!(nonce, 0, "a region's nonce is never zero");
    memory.store(at + COMMIT_AT, IN_PROGRESS);
    // Partner: the acquire fence in `copy_if_still`.
    fence(Ordering::Release);
    memory.write(at, body);
    // Partner: the first load in `observe` and `look`.
    memory.store(at + COMMIT_AT, Place { nonce, at }.word_of(lap, body));
    if !injected(Canary::SlotWriteBack) {
        memory.write_back(at, SLOT_BYTES);
    }
}

/// Reads a slot if it holds the record of this lap. One whose lap has a wrong bit is not seen: see
/// [`observe_closely`].
#[inline]
pub fn observe<M: Memory>(memory: &M, at: u64, nonce: u32, lap: u32) -> Seen<Body> {
    if !injected(Canary::SlotInvalidate) {
        memory.invalidate(at, SLOT_BYTES);
    }
    // Acquire. Partner: the last store in `publish`.
    let commit = memory.load(at + COMMIT_AT);
    if commit as u32 != lap || check::is_mark(commit) {
        return Seen::Nothing;
    }
    let Some(body) = copy_if_still(memory, at, commit) else {
        return Seen::Nothing;
    };
    match read(memory, Place { nonce, at }, commit, body) {
        Look::Found(its, body) if its == lap => Seen::Found(body),
        Look::Found(..) | Look::InProgress | Look::Blank => Seen::Nothing,
        Look::Damaged(_) => Seen::Damaged,
    }
}

/// As [`observe`], and sure to see the record: also where nothing is yet, all of the line is looked
/// at.
#[inline]
pub fn observe_closely<M: Memory>(memory: &M, at: u64, nonce: u32, lap: u32) -> Seen<Body> {
    match look(memory, at, nonce) {
        Look::Found(its, body) if its == lap => Seen::Found(body),
        Look::Damaged(its) if its == lap => Seen::Damaged,
        Look::Found(..) | Look::InProgress | Look::Blank | Look::Damaged(_) => Seen::Nothing,
    }
}

/// Reads a slot if it holds a record of this region, of any lap: `(lap, body)`.
pub fn peek<M: Memory>(memory: &M, at: u64, nonce: u32) -> Seen<(u32, Body)> {
    match look(memory, at, nonce) {
        Look::Found(lap, body) => Seen::Found((lap, body)),
        Look::InProgress | Look::Blank => Seen::Nothing,
        Look::Damaged(_) => Seen::Damaged,
    }
}

/// Whether nothing was ever written to a slot.
pub(crate) fn is_blank<M: Memory>(memory: &M, at: u64, nonce: u32) -> bool {
    matches!(look(memory, at, nonce), Look::Blank)
}

/// What a place that holds one version at a time shows.
pub(crate) enum Look<T> {
    /// A whole version.
    Found(u32, T),
    /// It is being written, or the writer died while it wrote.
    InProgress,
    /// Nothing was ever written.
    Blank,
    /// Not what was written. The number may be the version's, or anything.
    Damaged(u32),
}

/// What a slot shows, all of whose line is looked at.
pub(crate) fn look<M: Memory>(memory: &M, at: u64, nonce: u32) -> Look<Body> {
    if !injected(Canary::SlotInvalidate) {
        memory.invalidate(at, SLOT_BYTES);
    }
    // Acquire. Partner: the last store in `publish`.
    let commit = memory.load(at + COMMIT_AT);
    if let Some(mark) = mark_of(commit) {
        return mark;
    }
    match copy_if_still(memory, at, commit) {
        Some(body) => read(memory, Place { nonce, at }, commit, body),
        None => Look::InProgress,
    }
}

/// What a commit word says that is no record's.
pub(crate) fn mark_of<T>(commit: u64) -> Option<Look<T>> {
    if !check::is_mark(commit) {
        return None;
    }
    Some(if check::is_near(commit, BLANK) {
        Look::Blank
    } else {
        Look::InProgress
    })
}

/// Makes out what a line says that did not change while it was copied.
#[inline]
fn read<M: Memory>(memory: &M, place: Place, commit: u64, body: Body) -> Look<Body> {
    match place.read(commit, body) {
        Sound::Whole(body) => Look::Found(commit as u32, body),
        Sound::Repaired(lap, body) => {
            memory.note_damage(place.at, Damage::Repaired);
            Look::Found(lap, body)
        }
        Sound::Lost => {
            memory.note_damage(place.at, Damage::Lost);
            Look::Damaged(commit as u32)
        }
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
    publish(memory, slot, body, nonce, version);
}

/// Rewrites both slots of a row, one after the other, so that either can be lost; returns the version
/// after `version` that is the newest then.
///
/// The slot that was written last is the second one, unless it cannot be read: what can be read is not
/// overwritten before the other slot holds its successor.
#[inline]
pub(crate) fn rewrite_both<M: Memory>(
    memory: &M,
    at: u64,
    nonce: u32,
    version: u32,
    body: &Body,
) -> u32 {
    let last = at + u64::from(version % 2) * SLOT_BYTES;
    let first = after(version, &look(memory, last, nonce));
    let second = first.wrapping_add(1);
    if !injected(Canary::SecondCopy) {
        rewrite(memory, at, nonce, first, body);
    }
    rewrite(memory, at, nonce, second, body);
    second
}

/// Whether a slot of a row does not hold `body`, which its writer stored last in both.
pub(crate) fn is_row_lost<M: Memory>(memory: &M, at: u64, nonce: u32, body: &Body) -> bool {
    [at, at + SLOT_BYTES]
        .into_iter()
        .any(|slot| !matches!(look(memory, slot, nonce), Look::Found(_, its) if its == *body))
}

/// The version to store first, where the place of the one stored last shows `last`: the next one, or
/// the one after it, whose place is the same, if nothing can be read there.
pub(crate) fn after<T>(version: u32, last: &Look<T>) -> u32 {
    let is_lost = !matches!(last, Look::Found(..));
    version.wrapping_add(if is_lost { 2 } else { 1 })
}

/// Reads a mutable row: the newest `(version, body)`, or nothing when it was never written.
///
/// Also nothing when the writer overtook every one of a bounded number of attempts. A reader that
/// reads again never gets an older version than before. Where one of the two slots cannot be read, the other one
/// holds the row: a writer stores it in both.
pub fn read_row<M: Memory>(memory: &M, at: u64, nonce: u32) -> Seen<(u32, Body)> {
    newest(|slot| look(memory, at + slot * SLOT_BYTES, nonce))
}

/// The newest of two places whose one writer fills them by turns; `look(0)` and `look(1)` read one.
///
/// What is returned was the newest at some moment of the call: if both places hold a version,
/// the higher one was. If the first is being written, the second held the version before. If the
/// second is being written, the first held the version before only if it still does: the writer
/// may have filled both since it was read.
pub(crate) fn newest<T>(look: impl Fn(u64) -> Look<T>) -> Seen<(u32, T)> {
    let mut damaged = false;
    for _ in 0..READ_ATTEMPTS_MAX {
        match (look(0), look(1)) {
            (Look::Found(a, first), Look::Found(b, second)) => {
                return Seen::Found(if newer(b, a) { (b, second) } else { (a, first) });
            }
            (_, Look::Found(version, second)) => return Seen::Found((version, second)),
            (Look::Found(version, _), _) => {
                if let Look::Found(still, first) = look(0)
                    && still == version
                {
                    return Seen::Found((version, first));
                }
            }
            (Look::Blank, Look::Blank) => return Seen::Nothing,
            (Look::Damaged(_), Look::Damaged(_) | Look::Blank)
            | (Look::Blank, Look::Damaged(_)) => return Seen::Damaged,
            (first, second) => {
                let lost = |it: &Look<T>| matches!(it, Look::Damaged(_));
                damaged |= lost(&first) || lost(&second);
            }
        }
        spin_loop();
    }
    if damaged {
        Seen::Damaged
    } else {
        Seen::Nothing
    }
}

/// Whether version `a` was written after `b`, although versions wrap.
fn newer(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(all(test, not(loom)))]
mod tests;
