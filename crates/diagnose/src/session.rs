//! Names what limits message sessions: a client that sends, and a server whose handlers take what comes, or answer it.
//!
//! As for the log, [`diagnose`] is a function of numbers. Messages go from the application into a ring, from there to the socket by
//! whoever has the right to write, and out of the server's ring into a handler; what works all the time limits, and if nobody does, one of the
//! buffers in between is too small, or too little is on its way.
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
