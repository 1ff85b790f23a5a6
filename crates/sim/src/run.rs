//! One seed from beginning to end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::figures::Figures;
use crate::host::Sabotage;
use crate::violation::{Invariant, Violation};
use crate::world::World;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed; equal options give equal runs.
    pub seed: u64,
    /// Steps before everything heals.
    pub steps: u64,
    /// A rule to break on purpose.
    pub sabotage: Sabotage,
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
    let mut world = None;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(World::new(options.seed, options.sabotage, options.verbose)?);
        for _ in 0..options.steps {
            world.step()?;
        }
        world.finish()
    }));
    let result = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Violation {
            invariant: Invariant::Panic,
            what: text.unwrap_or("a panic without words").into(),
        })
    });
    let Some(world) = world else {
        return Report {
            hash: 0,
            figures: Figures::default(),
            result,
            lines: Vec::new(),
        };
    };
    Report {
        hash: world.trace.hash(),
        figures: world.figures,
        result,
        lines: world.trace.into_lines(),
    }
}
