//! Lets a simulation run others in the middle of whatever a simulated host does.
//!
//! What a host read before the interruption it goes on with afterwards, as a thread does that was
//! paused between two instructions.

use std::cell::Cell;

thread_local! {
    /// Accesses until the next one; 0 = none is planned.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static CALLED: Cell<fn()> = const { Cell::new(|| {}) };
}

/// Calls `f` once, before the access of this thread to any [`Simulated`](super::Simulated) host's
/// memory that follows `accesses` more; with 0, no more.
pub fn interrupt_after(accesses: u64, f: fn()) {
    LEFT.set(accesses);
    CALLED.set(f);
}

/// An access comes.
pub(super) fn count() {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        if left == 1 {
            CALLED.get()();
        }
    }
}
