//! `cargo xtask test`: everything that must hold before a change goes in.
//!
//! Steps run in order, the quick ones first, and the first that fails ends the run with the line
//! that repeats it. Nothing is compiled twice without need: clippy and rustdoc share one set of
//! checked dependencies, all tests share another, and only what the models and the simulator need
//! is built once more.

use crate::command::Cargo;
use crate::results::Results;
use crate::workspace::Workspace;
use crate::{lint, loom, needs, sim};
use anyhow::bail;
use clap::ValueEnum;
use std::time::{Duration, Instant};

/// `cargo xtask test`
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these steps, in this order; all of them when none is named
    #[arg(value_enum)]
    steps: Vec<Step>,
}

/// The order here is the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Step {
    /// The code is formatted as rustfmt does it
    Format,
    /// The rules of this project that no compiler checks
    Lint,
    /// Clippy finds nothing
    Clippy,
    /// The documentation builds without a warning
    Docs,
    /// Every interleaving of the lock-free parts
    Loom,
    /// Unit, integration and end-to-end tests, and each fuzz target for a second
    Tests,
    /// The examples in the documentation
    Doctests,
    /// The simulator with its usual seeds
    Sim,
}

/// What a step came to.
struct Done {
    step: Step,
    took: Duration,
    results: Results,
}

/// Runs the steps.
pub fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<()> {
    let steps = match arguments.steps.as_slice() {
        [] => Step::value_variants(),
        named => named,
    };
    needs::check()?;
    let begin = Instant::now();
    let mut done = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        eprintln!(
            "\n==> {}/{} {}: {}",
            index + 1,
            steps.len(),
            step.name(),
            step.help()
        );
        done.push(step.run(workspace)?);
    }
    report(&done, begin.elapsed());
    Ok(())
}

impl Step {
    fn run(self, workspace: &Workspace) -> anyhow::Result<Done> {
        let begin = Instant::now();
        let mut results = Results::default();
        let (outcome, again) = match self.cargo(workspace)? {
            Some(cargo) if self.has_results() => {
                (cargo.run_tests(workspace, &mut results), cargo.to_string())
            }
            Some(cargo) => (cargo.run(workspace), cargo.to_string()),
            None => (lint::run(workspace), "cargo xtask lint".to_owned()),
        };
        let (name, took) = (self.name(), begin.elapsed());
        if let Err(error) = outcome {
            if results.any() {
                eprintln!("\n{results}");
            }
            let seconds = took.as_secs_f32();
            bail!("{name} failed after {seconds:.1} s: {error:#}\nRepeat it with:\n  {again}");
        }
        eprintln!("    {name}: ok in {:.1} s", took.as_secs_f32());
        Ok(Done {
            step: self,
            took,
            results,
        })
    }

    /// What it starts; nothing for what this program does itself.
    fn cargo(self, workspace: &Workspace) -> anyhow::Result<Option<Cargo>> {
        Ok(Some(match self {
            Self::Format => Cargo::new("fmt --all --check"),
            Self::Lint => return Ok(None),
            Self::Clippy => {
                Cargo::new("clippy --locked --workspace --all-targets --all-features --")
                    .args(["-D", "warnings"])
            }
            Self::Docs => Cargo::new("doc --locked --workspace --no-deps --all-features")
                .add_flag("RUSTDOCFLAGS", "-D warnings"),
            Self::Loom => loom::command(workspace)?,
            Self::Tests => Cargo::new("test --locked --workspace --lib --bins --tests --examples"),
            Self::Doctests => Cargo::new("test --locked --workspace --doc"),
            Self::Sim => sim::seeds(),
        }))
    }

    /// Whether test programs run in it.
    fn has_results(self) -> bool {
        matches!(self, Self::Loom | Self::Tests | Self::Doctests)
    }

    fn name(self) -> String {
        let value = self.to_possible_value().expect("no step is hidden");
        value.get_name().to_owned()
    }

    fn help(self) -> String {
        let value = self.to_possible_value().expect("no step is hidden");
        value.get_help().expect("each has one").to_string()
    }
}

/// Where the time went, and the sum of all tests.
fn report(done: &[Done], took: Duration) {
    println!();
    let mut sum = Results::default();
    for one in done {
        let (name, seconds) = (one.step.name(), one.took.as_secs_f32());
        if one.results.any() {
            println!("{name:<10}{seconds:>7.1} s  {}", one.results);
            sum.add(&one.results);
        } else {
            println!("{name:<10}{seconds:>7.1} s  ok");
        }
    }
    println!("{:<10}{:>7.1} s", "all", took.as_secs_f32());
    if sum.any() {
        println!("{sum}");
    }
}
