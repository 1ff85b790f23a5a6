//! The payload files, and what a process may see of each.
//!
//! Of its own it sees slices, through a [`PayloadFile`]; of another's it takes copies, word by word, as
//! [`Foreign`] bytes. Never both by one mapping: a slice is a promise that no other code reads or writes the
//! same bytes in any other way. So a mapping is used in one of these ways, and stays with it. What the
//! memory itself asks of a caller that shows slices of it is in [`embar_memory::payload`]; a region keeps that
//! promise as follows.
//!
//! - *The memory.* A region makes the mappings of its files and never hands them out. What takes memory
//!   that its caller keeps ([`Region::format`], [`Region::from_parts`]) takes only what shows copies.
//! - *The control file* is no payload file: [`Region::open`] refuses two names of one file. Its tables are
//!   atomic words to however many mappings there are, so a region may be opened and cloned at will, and
//!   claims may be made up.
//! - *One payload file.* [`Region::payload_file`] asks for a claim on the very file that is mapped, not on a copy
//!   of it, and hands the claim's lock on. [`Exclusive`] sees to it that there is one within this process.
//! - *One way of seeing.* A region value shows a row either as its own or as foreign, for good.
//! - *Presence.* [`Region::prefault`] holds the [`Exclusive`] for as long as it runs.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use embar_memory::{Exclusive, Foreign, Memory, PayloadFile};

use super::Region;
use crate::error::RegionError;
use crate::owner::Claim;

/// The payload file of one row, as this region value sees it.
#[derive(Debug)]
pub(super) struct Payload<M> {
    /// That of a spare is there once its row was claimed.
    memory: OnceLock<Arc<M>>,
    seen: OnceLock<Seen>,
}

/// In which way a mapping is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Slices of it may be shown.
    AsOwn,
    /// Only copies of it are taken.
    AsForeign,
}

impl<M> Payload<M> {
    pub(super) fn new(memory: Option<Arc<M>>) -> Self {
        Self {
            memory: memory.map_or_else(OnceLock::new, OnceLock::from),
            seen: OnceLock::new(),
        }
    }

    /// Whether it is seen in this way. The first question decides that for good.
    fn settle(&self, how: Seen) -> bool {
        *self.seen.get_or_init(|| how) == how
    }
}

/// Whether no two of these show the same bytes.
pub(super) fn are_apart<'a, M: Memory>(memories: impl Iterator<Item = &'a M>) -> bool {
    let mut seen = BTreeSet::new();
    memories.filter_map(M::file).all(|file| seen.insert(file))
}

impl<M: Memory> Region<M> {
    /// The payload memory of the claimed row, all of it free, but for what readers still have of what an owner before lent. Keeps
    /// the claim's lock until what this returns and everything allocated from it are dropped.
    ///
    /// # Panics
    ///
    /// When the row takes no data, when its memory is in use by an earlier [`PayloadFile`] of this
    /// process, even one that it has by opening the region another time, when the region lives in a
    /// directory and the claim is not one of its own, or when bytes of the row were had as
    /// [foreign](Region::foreign) from this value before it was claimed.
    pub fn payload_file(&self, claim: &Claim) -> PayloadFile<M> {
        let lock = claim.lock_of(self.parts.control.file());
        assert!(
            self.parts.home.is_none() || lock.is_some(),
            "the payload file of a region in a directory needs a claim made by that region"
        );
        let memory = self.payload_memory(claim.row());
        let memory =
            memory.expect("the row takes data, and has its payload file since it was claimed");
        assert!(
            self.take_as_own(claim.row()),
            "bytes of this row were had as another's: open the region again"
        );
        let bytes = self.geometry().payload_bytes;
        let memory = Exclusive::take(memory);
        // SAFETY: the memory shows copies, or is a mapping that only this region has. Of the latter, this
        // region value shows nothing as foreign, as of now; whatever else it does to the payload takes
        // the `Exclusive`; and the claim's lock keeps other processes away.
        let payload_file = unsafe { PayloadFile::over(memory, bytes, lock.cloned()) };
        match claim.lends() {
            Some(file) => payload_file.lending(file.clone()),
            None => payload_file,
        }
    }

    /// Maps the payload file of another row, unless it is mapped, which it stays: that of a spare was
    /// made after this process began. [`Region::foreign`] does so, too, and does not say what went
    /// wrong.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, which may be for want of file descriptors or mappings:
    /// it may go well another time.
    pub fn reach(&self, row: u16) -> Result<(), RegionError> {
        self.find_payload(row).map(drop)
    }

    /// Bytes of the payload file of another row. All numbers may come from shared memory: `None` when
    /// there is no such row, or they are outside of its file. `None`, too, for a row that was claimed
    /// with this value, ever: its owner sees its payload through a [`PayloadFile`].
    pub fn foreign(&self, row: u16, at: u64, len: u32) -> Option<Foreign<M>> {
        let memory = self.payload_memory(row)?;
        let foreign = Foreign::over(memory, at, len as usize)?;
        let payload = self.payload(row)?;
        payload.settle(Seen::AsForeign).then_some(foreign)
    }

    /// The row's payload is seen as this process's own from now on. False for a row that takes
    /// no data, and when it was seen as another's before.
    pub(super) fn take_as_own(&self, row: u16) -> bool {
        self.payload(row).is_some_and(|it| it.settle(Seen::AsOwn))
    }

    fn payload(&self, row: u16) -> Option<&Payload<M>> {
        let first = self.geometry().data_rows().next().unwrap_or(0);
        let cell = row.checked_sub(first).map(usize::from)?;
        self.parts.payloads.get(cell)
    }

    /// The payload file of a row; `None` when the row takes no data, is a spare that was never
    /// claimed, or its file [cannot be mapped](Region::reach).
    pub(crate) fn payload_memory(&self, row: u16) -> Option<&Arc<M>> {
        self.find_payload(row).ok().flatten()
    }

    /// As [`Region::payload_memory`]; `None` when there is no file to look for.
    fn find_payload(&self, row: u16) -> Result<Option<&Arc<M>>, RegionError> {
        let Some(payload) = self.payload(row) else {
            return Ok(None);
        };
        if let (None, Some(home)) = (payload.memory.get(), &self.parts.home) {
            let bytes = self.geometry().payload_bytes;
            let found = (home.map_payload)(&self.parts.control, &home.dir, row, bytes)?;
            let others = self.parts.payloads.iter();
            let others = others.filter(|other| !std::ptr::eq(*other, payload));
            let others = others.filter_map(|other| other.memory.get());
            let files = others.chain([&self.parts.control, &found]);
            let apart = are_apart(files.map(|memory| &**memory));
            if !apart {
                let what = "a payload file is another of its files";
                return Err(RegionError::damaged(&home.dir, what));
            }
            return Ok(Some(payload.memory.get_or_init(|| found)));
        }
        Ok(payload.memory.get())
    }
}
