//! One seed from beginning to end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_fabric::canary::Canary;

use crate::figures::Figures;
use crate::violation::{Invariant, Violation};
use crate::world;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed; equal options give equal runs.
    pub seed: u64,
    /// Steps before everything heals.
    pub steps: u64,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// Keep the text of the trace.
    pub verbose: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// Equal for equal runs.
    pub hash: u64,
    /// What the run went through.
    pub figures: Figures,
    /// The first broken rule.
    pub result: Result<(), Violation>,
    /// The trace, if it was asked for.
    pub lines: Vec<String>,
}

/// Runs a seed.
pub fn run(options: Options) -> Report {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world::begin(options.seed, options.canary, options.verbose)?;
        for _ in 0..options.steps {
            world::step()?;
        }
        world::finish()
    }));
    let result = ran.unwrap_or_else(|panic| {
        let panic = match panic.downcast::<Violation>() {
            Ok(violation) => return Err(*violation),
            Err(panic) => panic,
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Violation {
            invariant: Invariant::Panic,
            what: text.unwrap_or("a panic without words").into(),
        })
    });
    match world::end() {
        Some(remains) => Report {
            hash: remains.trace.hash(),
            figures: remains.figures,
            result,
            lines: remains.trace.into_lines(),
        },
        None => Report {
            hash: 0,
            figures: Figures::default(),
            result,
            lines: Vec::new(),
        },
    }
}
