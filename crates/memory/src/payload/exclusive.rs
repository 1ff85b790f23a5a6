//! The right to make slices of a memory's bytes. Within a process there is one such right for each file, however often
//! the file is mapped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::file_id::FileId;
use crate::memory::Memory;

/// The right to show slices of a memory. No other value exists in this process for the same bytes: not for
/// the same memory, and not for another mapping of the same file.
pub struct Exclusive<M: Memory>(Arc<M>);

impl<M: Memory> Exclusive<M> {
    /// Takes the right for this memory, until the value is dropped.
    ///
    /// # Panics
    /// While there is another one for the same bytes.
    pub fn take(memory: &Arc<M>) -> Self {
        let fresh = held().insert(Bytes::of(memory));
        assert!(
            fresh,
            "this payload file is in use already: drop it, and all that was allocated from it, first"
        );
        Self(Arc::clone(memory))
    }

    /// The memory.
    pub fn get(&self) -> &M {
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
