//! Who sleeps, so that nobody is woken who is awake.
//!
//! A thread that is about to sleep says so, looks once more for work, and only then sleeps. Whoever
//! has made work visible looks afterwards whether its reader sleeps, and rings its bell if so (how is
//! not known here). Each side stores before it loads what the other stored, with a full fence in
//! between, so on coherent memory at least one of them sees the other. Between hosts without
//! coherence the word is a hint, and sleepers look again by themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::{LINE_BYTES, Memory};

use crate::sync::fence;

/// What the word of a thread says that sleeps: one wrong bit leaves it so.
const ASLEEP: u64 = u64::MAX;
const AWAKE: u64 = 0;

/// The word of one thread.
#[derive(Debug)]
pub struct Sleeper<M> {
    memory: Arc<M>,
    at: u64,
}

impl<M: Memory> Sleeper<M> {
    pub(crate) fn new(memory: Arc<M>, at: u64) -> Self {
        Self { memory, at }
    }

    /// The thread itself says that it is about to sleep, or that it is awake. Look for work after
    /// this call.
    pub fn set(&self, asleep: bool) {
        let word = if asleep { ASLEEP } else { AWAKE };
        self.memory.store(self.at, word);
        self.memory.write_back(self.at, LINE_BYTES);
        self.memory.fence();
        // Partner: the fence in `Sleeper::is_asleep`.
        fence(Ordering::SeqCst);
    }

    /// Whether the thread sleeps, or is about to. Make work visible before this call.
    pub fn is_asleep(&self) -> bool {
        // Partner: the fence in `Sleeper::set`.
        fence(Ordering::SeqCst);
        self.memory.invalidate(self.at, LINE_BYTES);
        self.memory.load(self.at) != AWAKE
    }
}
