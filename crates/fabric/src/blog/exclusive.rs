//! Slices of a memory are shown to one user of a process at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::{FileId, Memory};

/// The right to show slices of a memory. No other exists in this process for the same bytes: not for
/// the same memory, and not for another mapping of the same file.
pub(crate) struct Exclusive<M: Memory>(Arc<M>);

impl<M: Memory> Exclusive<M> {
    /// # Panics
    /// While there is another one for the same bytes.
    pub(crate) fn take(memory: &Arc<M>) -> Self {
        let fresh = held().insert(Bytes::of(memory));
        assert!(
            fresh,
            "this blog is in use already: drop it, and all that was allocated from it, first"
        );
        Self(Arc::clone(memory))
    }

    pub(crate) fn get(&self) -> &M {
        &self.0
    }
}

impl<M: Memory> Drop for Exclusive<M> {
    fn drop(&mut self) {
        held().remove(&Bytes::of(&self.0));
    }
}

/// Whose slices would overlap. The holder keeps its memory, so that what is in the set is never taken
/// for another: a file that is mapped keeps its number although it has no name any more.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Bytes {
    OfFile(FileId),
    /// Of memory that is not of a file, by its address.
    At(usize),
}

impl Bytes {
    fn of<M: Memory>(memory: &Arc<M>) -> Self {
        let at = || Self::At(Arc::as_ptr(memory).addr());
        memory.file().map_or_else(at, Self::OfFile)
    }
}

fn held() -> MutexGuard<'static, BTreeSet<Bytes>> {
    static HELD: Mutex<BTreeSet<Bytes>> = Mutex::new(BTreeSet::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
