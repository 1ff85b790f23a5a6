//! `cargo xtask sim`: runs the simulator. `cargo xtask test` takes the seeds from here that it tries with every change.

use crate::command::Call;
use crate::workspace::Workspace;

/// How many seeds go with every change. They are always the same ones: who is stopped by a seed
/// finds it again. Others are tried by hand, with `--from`.
const SEEDS: u32 = 80;

/// `cargo xtask sim`
#[derive(clap::Args)]
pub struct Arguments {
    /// Passed on to the simulator; `--help` lists what it takes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Arguments {
    /// What is passed on.
    #[cfg(test)]
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

/// Runs the simulator with the arguments given, optimised: for many seeds.
pub fn run(workspace: &Workspace, arguments: Arguments) -> anyhow::Result<()> {
    Call::cargo("run --locked --quiet --profile checked -p embar-sim --")
        .args(arguments.words)
        .run(workspace)
}

/// The seeds that go with every change. They take less time unoptimised than an optimised build
/// does, and the tests have already built nearly all of it: `--workspace --tests` and the same
/// `features` are what makes cargo build nothing anew.
pub fn seeds(workspace: &Workspace, features: &[&str]) -> [Call; 2] {
    let program = workspace.target_dir().join("debug/embar-sim");
    [
        Call::cargo("build --locked --workspace --bins --tests").args(features.iter().copied()),
        Call::program(program.to_string_lossy()).args([
            "--seeds",
            &SEEDS.to_string(),
            "--from",
            "1",
        ]),
    ]
}
