//! Names what limits a pipeline of publishers, brokers and subscribers, from readings alone.
//!
//! [`diagnose`] is a function: [`Observed`] goes in, what happened in a span of time as plain numbers, and a [`Diagnosis`]
//! comes out, findings ranked by what their remedies could bring. It reads no clock and asks nobody, so a diagnosis can be
//! repeated from a file.
//!
//! Read the files in this order:
//!
//! 1. [`observed`]: what goes in.
//! 2. [`limits`]: what each part does with its time, and what would limit without it.
//! 3. [`cause`] and [`finding`]: what comes out.
//! 4. `rules`: from one to the other, a file for each part of the pipeline.
//! 5. [`picture`]: the pipeline in a terminal.
//! 6. [`redis`]: the same for callers of Redis servers; [`session`]: for message sessions.

#![forbid(unsafe_code)]

pub mod cause;
pub mod finding;
pub mod limits;
pub mod observed;
pub mod picture;
pub mod redis;
mod rules;
pub mod session;

use serde::{Deserialize, Serialize};

pub use cause::Cause;
pub use finding::{Change, Evidence, Finding, Remedy, Verified};
pub use limits::{Limits, Resource};
pub use observed::Observed;

/// What limits, and what each part does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// What each part of the pipeline does with its time.
    pub limits: Limits,
    /// What was found: faults first, ranked by the gain that may be had as far as it is believed; then what is no fault.
    pub findings: Vec<Finding>,
    /// What could not be read, so that no rule could look at it.
    pub missing: Vec<observed::Missing>,
}

impl Diagnosis {
    /// The finding that says what limits: the first one without which the rate would be another, or that is no fault, unless its remedy refuted it
    /// or nothing was found.
    pub fn limiting(&self) -> Option<&Finding> {
        let limits = |it: &&Finding| !it.cause.is_fault() || it.gain_at_most >= rules::GAIN_MIN;
        let first = self.findings.iter().find(limits)?;
        let stands = first.cause != Cause::NothingFound && !first.withdrawn();
        stands.then_some(first)
    }

    /// Puts findings that their remedies refuted behind those that stand, and says so if none does.
    pub fn withdraw(&mut self) {
        self.findings.sort_by_key(Finding::withdrawn);
        if self.findings.iter().all(Finding::withdrawn) {
            self.findings.insert(0, rules::nothing(&self.limits));
        }
    }
}

/// Says what limits.
pub fn diagnose(observed: &Observed) -> Diagnosis {
    let limits = Limits::of(observed);
    let case = rules::Case {
        observed,
        limits: &limits,
    };
    let findings = rules::ranked(rules::all(&case), &limits);
    Diagnosis {
        limits,
        findings,
        missing: observed.missing.clone(),
    }
}
