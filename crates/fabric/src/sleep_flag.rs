//! Which threads sleep, so that only those are woken.
//!
//! A thread that is about to sleep sets its flag, looks once more for work, and only then sleeps. A
//! thread that has made work visible looks at the flag afterwards, and wakes the other one if it is set, by
//! [`wakeup`](crate::wakeup). Each side stores before it loads what the other stored, with a full
//! fence in between, so on coherent memory at least one of them sees the other. Between hosts without
//! coherence the flag is a hint, and threads that sleep look again by themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::{LINE_BYTES, Memory};

use crate::sync::fence;

/// The word of a thread that sleeps: with one wrong bit it still does.
const ASLEEP: u64 = u64::MAX;
const AWAKE: u64 = 0;

/// One thread's word that shows whether it sleeps.
#[derive(Debug)]
pub struct SleepFlag<M> {
    memory: Arc<M>,
    at: u64,
}

impl<M: Memory> SleepFlag<M> {
    pub(crate) fn new(memory: Arc<M>, at: u64) -> Self {
        Self { memory, at }
    }

    /// Shows that this thread, whose flag it is, is about to sleep, or is awake. Look for work after this
    /// call.
    pub fn set(&self, asleep: bool) {
        let word = if asleep { ASLEEP } else { AWAKE };
        self.memory.store(self.at, word);
        self.memory.write_back(self.at, LINE_BYTES);
        self.memory.fence();
        // Partner: the fence in `SleepFlag::is_asleep`.
        fence(Ordering::SeqCst);
    }

    /// Whether the thread sleeps, or is about to. Make work visible before this call.
    pub fn is_asleep(&self) -> bool {
        // Partner: the fence in `SleepFlag::set`.
        fence(Ordering::SeqCst);
        self.memory.invalidate(self.at, LINE_BYTES);
        self.memory.load(self.at) != AWAKE
    }
}
