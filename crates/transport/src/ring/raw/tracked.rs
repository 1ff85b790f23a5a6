//! A ring's memory when loom, the model checker, runs: it reports every access that is not ordered
//! after the one before.

use loom::cell::UnsafeCell;

pub(in super::super) struct Tracked(Vec<UnsafeCell<u8>>);

// SAFETY: that accesses do not overlap is what the models check; loom ends the model before the
// pointer of a racing access is used.
unsafe impl Sync for Tracked {}
// SAFETY: plain bytes.
unsafe impl Send for Tracked {}

impl Tracked {
    pub(in super::super) fn new(capacity: usize) -> Self {
        Self((0..capacity).map(|_| UnsafeCell::new(0)).collect())
    }

    fn cell(&self, position: u32) -> &UnsafeCell<u8> {
        &self.0[position as usize % self.0.len()]
    }

    pub(in super::super) fn write(&self, position: u32, byte: u8) {
        // SAFETY: the pointer is valid inside the closure, and loom has checked for exclusivity.
        self.cell(position).with_mut(|at| unsafe { *at = byte });
    }

    pub(in super::super) fn read(&self, position: u32) -> u8 {
        // SAFETY: as in `write`, with sharing.
        self.cell(position).with(|at| unsafe { *at })
    }
}
