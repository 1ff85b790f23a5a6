//! Names what limits callers of Redis: of one server, or of a cluster, through a client that shares connections.
//!
//! As for the log, [`diagnose`] is a function of numbers. Callers wait for the answers of nodes, so what one node does
//! differently from the others says the most; then what works all the time; and if nobody does, the way there and back.
//!
//! Read [`observed`] (what goes in), then `limits` (what each part does with its time), and `rules`.

mod limits;
pub mod observed;
mod rules;

pub use observed::Observed;

use crate::Diagnosis;
use crate::rules::ranked;

/// Says what limits.
pub fn diagnose(observed: &Observed) -> Diagnosis {
    let limits = limits::of(observed);
    let case = rules::Case {
        observed,
        limits: &limits,
    };
    let findings = ranked(rules::all(&case), &limits);
    Diagnosis {
        limits,
        findings,
        missing: observed.missing.clone(),
    }
}
