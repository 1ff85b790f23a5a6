//! One seed from beginning to end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_memory::canary::Canary;

use crate::figures::{Damaged, Figures};
use crate::violation::Violation;
use crate::{protocol, world};

/// Which of the two worlds of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The whole cluster, with its clients.
    #[default]
    Cluster,
    /// The protocol of ordering alone.
    Protocol,
}

impl Part {
    /// All that a seed is run in; the quick one first.
    pub const ALL: [Self; 2] = [Self::Protocol, Self::Cluster];

    /// As the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Protocol => "protocol",
        }
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed; equal options give equal runs.
    pub seed: u64,
    /// The world.
    pub part: Part,
    /// Steps of a cluster before everything heals.
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
    /// What the run of a cluster went through.
    pub figures: Figures,
    /// What the run of a protocol went through.
    pub seen: BTreeMap<&'static str, u64>,
    /// What memory of a cluster was damaged.
    pub damaged: Damaged,
    /// The first broken rule.
    pub result: Result<(), Violation>,
    /// The trace, if it was asked for.
    pub lines: Vec<String>,
}

/// Runs a seed.
pub fn run(options: Options) -> Report {
    match options.part {
        Part::Cluster => cluster(options),
        Part::Protocol => protocol::run(options),
    }
}

fn cluster(options: Options) -> Report {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world::begin(options.seed, options.canary, options.verbose)?;
        for _ in 0..options.steps * world::endurance() {
            world::step()?;
        }
        world::finish()
    }));
    let result = ran.unwrap_or_else(|panic| Err(Violation::of_panic(panic)));
    let (hash, figures, damaged, lines) = match world::end() {
        Some(remains) => {
            let hash = remains.trace.hash();
            let lines = remains.trace.into_lines();
            (hash, remains.figures, remains.damaged, lines)
        }
        None => Default::default(),
    };
    Report {
        hash,
        figures,
        damaged,
        seen: BTreeMap::new(),
        result,
        lines,
    }
}
