//! The rules that checkers check (the invariants I1 to I10 and a few more), and what a checker returns when it finds
//! one broken.

use std::any::Any;
use std::fmt;

/// The rule that was broken; I1 to I10 are those of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// One writer per record: what only grows never falls.
    I1,
    /// A visible record points to complete, written-back, checksummed bytes.
    I2,
    /// Offsets are dense, given once, and never change.
    I3,
    /// Every subscriber sees a contiguous run of the one order.
    I4,
    /// Sessions: in order, each batch once; what was acknowledged comes before what began later.
    I5,
    /// What was acknowledged survives.
    I6,
    /// Nothing is used again while a reader may still read it without finding out.
    I7,
    /// Nothing unfinished of a dead incarnation is seen.
    I8,
    /// Everything has a bound, and all that was taken is given back.
    I9,
    /// No candidate is taken for gone only because time passed for the one that watches it.
    Lease,
    /// No client is held up by others that are slow.
    I10,
    /// Each batch is resolved once, as what became of it; it appears twice only if flagged.
    Delivery,
    /// When all faults are over, everything that was begun ends.
    Liveness,
    /// The code under test panicked.
    Panic,
}

/// A broken rule, and how it shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {what}")]
pub struct Violation {
    /// The rule.
    pub invariant: Invariant,
    /// How it shows.
    pub what: String,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Violation {
    /// The message of a panic in the code under test, or in a checker.
    pub fn of_panic(panic: Box<dyn Any + Send>) -> Self {
        let panic = match panic.downcast::<Self>() {
            Ok(violation) => return *violation,
            Err(panic) => panic,
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self {
            invariant: Invariant::Panic,
            what: text.unwrap_or("a panic without words").into(),
        }
    }
}

/// What every check returns.
pub type Check = Result<(), Violation>;

/// Ok if `holds`.
pub fn ensure(invariant: Invariant, holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds {
        return Ok(());
    }
    Err(Violation {
        invariant,
        what: what(),
    })
}
