//! One seed from beginning to end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::options::{Options, Part};
use crate::report::Report;
use crate::violation::Violation;
use crate::{protocol, streams, world};

/// Runs a seed.
pub fn run(options: Options) -> Report {
    match options.part {
        Part::Cluster => cluster(options),
        Part::Protocol => protocol::run(options),
        Part::Streams => streams::run(options),
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
