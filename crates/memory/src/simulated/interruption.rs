//! Lets a simulation run other hosts in the middle of whatever a simulated host does: it calls the simulator before a
//! chosen access to memory.
//!
//! The interrupted host goes on with what it had read before, as a thread does that was paused between two
//! instructions.

use std::cell::Cell;

thread_local! {
    /// Accesses until the next one; 0 = none is planned.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// What an access to a watched place counts for.
    static WATCHED: Cell<u64> = const { Cell::new(1) };
    static CALLED: Cell<fn()> = const { Cell::new(|| {}) };
}

/// Calls `f` once, before the access of this thread to any [`Simulated`](super::Simulated) host's
/// memory that follows `accesses` more; with 0, no more. One to a place that is
/// [watched](super::Device::watch) counts for `watched` of them: so whatever follows upon what is read
/// there is interrupted more often.
pub fn interrupt_after(accesses: u64, watched: u64, f: fn()) {
    LEFT.set(accesses);
    WATCHED.set(watched);
    CALLED.set(f);
}

/// An access comes.
pub(super) fn count(watched: bool) {
    let left = LEFT.get();
    if left == 0 {
        return;
    }
    let left = left.saturating_sub(if watched { WATCHED.get() } else { 1 });
    LEFT.set(left);
    if left == 0 {
        CALLED.get()();
    }
}
