//! The simulator.

use crate::command::Cargo;
use crate::workspace::Workspace;

/// How many seeds go with every change. They are always the same ones: who is stopped by a seed
/// finds it again. Others are tried by hand, with `--from`.
const SEEDS: u32 = 200;

/// `cargo xtask sim`
#[derive(clap::Args)]
pub struct Arguments {
    /// Passed on to the simulator; `-- --help` lists what it takes
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs the simulator with the arguments given.
pub fn run(workspace: &Workspace, arguments: Arguments) -> anyhow::Result<()> {
    command().args(arguments.arguments).run(workspace)
}

/// The seeds that go with every change.
pub fn seeds() -> Cargo {
    command().args(["--seeds", &SEEDS.to_string(), "--from", "0"])
}

/// Optimised: a seed is millions of steps, and 200 of them unoptimised take longer than this build.
fn command() -> Cargo {
    Cargo::new("run --locked --quiet --profile checked -p embar-sim --")
}
