//! `cargo xtask test`: everything that must hold before a change goes in.
//!
//! Steps run in order, the quick ones first, and the first that fails ends the run with the line
//! that repeats it. Nothing is compiled twice without need: clippy and rustdoc share one set of
//! checked dependencies, all tests share another, and only what the models and the simulator need
//! is built once more.

use crate::command::Call;
use crate::left_out::LeftOut;
use crate::results::Results;
use crate::workspace::Workspace;
use crate::{api, lint, loom, needs, outside, sim};
use anyhow::{Context, anyhow};
use clap::ValueEnum;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// Features that tests run with; not all, because with some a part is broken on purpose.
const TESTED_FEATURES: [&str; 2] = [
    "--features",
    "embar-session/admin,embar-session/tls,embar-rpc/tls,embar-redis/tls,embar-redis/prometheus",
];

/// Folders with a workspace of their own.
const OTHER_WORKSPACES: [&str; 4] = [
    "outside",
    "benches/peers",
    "benches/log-peers",
    "benches/session-peers",
];

/// Those that are checked and tested here, because they need few other crates.
const LIGHT_WORKSPACES: [&str; 1] = ["benches/log-peers"];

/// `cargo xtask test`
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these steps, in this order; all of them when none is named
    #[arg(value_enum)]
    steps: Vec<Step>,
    /// Succeed although tests that cut networks could not run, where root alone may do that
    #[arg(long)]
    without_networks: bool,
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
    /// The public API of the libraries is the listed one
    Api,
    /// A program outside of the workspace uses each library by its public API alone
    Outside,
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
    let left_out = match steps.contains(&Step::Tests) {
        true => LeftOut::find(arguments.without_networks)?,
        false => LeftOut::nothing(),
    };
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
        done.push(step.run(workspace, &left_out)?);
    }
    report(&done, begin.elapsed());
    left_out.report()
}

impl Step {
    fn run(self, workspace: &Workspace, left_out: &LeftOut) -> anyhow::Result<Done> {
        let begin = Instant::now();
        let mut results = Results::default();
        let outcome = self.run_all(workspace, left_out, &mut results);
        let (name, took) = (self.name(), begin.elapsed());
        let seconds = took.as_secs_f32();
        if results.any() && outcome.is_err() {
            eprintln!("\n{results}");
        }
        outcome.with_context(|| format!("{name} failed after {seconds:.1} s"))?;
        eprintln!("    {name}: ok in {seconds:.1} s");
        Ok(Done {
            step: self,
            took,
            results,
        })
    }

    fn run_all(
        self,
        workspace: &Workspace,
        left_out: &LeftOut,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let done_here = match self {
            Self::Lint => Some((lint::run(workspace), "cargo xtask lint")),
            Self::Api => Some((api::check(workspace), "cargo xtask api")),
            Self::Outside => Some((outside::run(workspace), "cargo xtask test outside")),
            _ => None,
        };
        if let Some((outcome, line)) = done_here {
            return outcome.map_err(|error| again(&error, &line));
        }
        for mut call in self.calls(workspace)? {
            if let Some((name, file)) = left_out.variable().filter(|_| self == Self::Tests) {
                call = call.env(name, file);
            }
            let outcome = if self.has_results() {
                call.run_tests(workspace, results)
            } else {
                call.run(workspace)
            };
            outcome.map_err(|error| again(&error, &call))?;
        }
        Ok(())
    }

    /// What it starts; nothing for what this program does itself.
    fn calls(self, workspace: &Workspace) -> anyhow::Result<Vec<Call>> {
        let call = match self {
            Self::Format => {
                let others = OTHER_WORKSPACES.map(|folder| {
                    Call::cargo("fmt --check --manifest-path").arg(format!("{folder}/Cargo.toml"))
                });
                let calls = std::iter::once(Call::cargo("fmt --all --check")).chain(others);
                return Ok(calls.collect());
            }
            Self::Lint | Self::Api | Self::Outside => return Ok(Vec::new()),
            Self::Clippy => {
                let main = Call::cargo("clippy --locked --workspace --all-targets --all-features");
                let light = light(workspace, "clippy --locked --all-targets");
                let calls = std::iter::once(main).chain(light);
                return Ok(calls
                    .map(|call| call.args(["--", "-D", "warnings"]))
                    .collect());
            }
            Self::Docs => Call::cargo("doc --locked --workspace --no-deps --all-features")
                .add_flag("RUSTDOCFLAGS", "-D warnings"),
            Self::Loom => loom::command(workspace)?,
            Self::Tests => {
                let main = Call::cargo("test --locked --workspace --lib --bins --tests --examples")
                    .args(TESTED_FEATURES);
                let light = light(workspace, "test --locked");
                return Ok(std::iter::once(main).chain(light).collect());
            }
            Self::Doctests => Call::cargo("test --locked --workspace --doc").args(TESTED_FEATURES),
            Self::Sim => return Ok(sim::seeds(workspace, &TESTED_FEATURES).into()),
        };
        Ok(vec![call])
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

/// The same in each light workspace, where the main one builds.
fn light(workspace: &Workspace, arguments: &str) -> impl Iterator<Item = Call> {
    LIGHT_WORKSPACES.into_iter().map(move |folder| {
        let manifest = format!("{folder}/Cargo.toml");
        let target = workspace.target_dir().display().to_string();
        Call::cargo(arguments).args(["--manifest-path", &manifest, "--target-dir", &target])
    })
}

fn again(error: &anyhow::Error, line: &impl Display) -> anyhow::Error {
    anyhow!("{error:#}\nRepeat it with:\n  {line}")
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
