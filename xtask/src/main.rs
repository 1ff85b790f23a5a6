//! The chores of this workspace: everything that is checked before a change goes in, and the long
//! searches that are run by hand. `cargo xtask --help` lists them.
//!
//! It starts other programs and reads files. It changes nothing but what [`benchmarks`] draws and [`mod@api`]
//! lists, and never touches a running cluster.
//!
//! Read in this order: [`command`] (starting programs), [`mod@test`] (the steps), then the chores:
//! [`needs`], [`lint`], [`mod@api`], [`mod@outside`], [`loom`], [`fuzz`], [`sim`], [`benchmarks`]; [`results`] adds
//! up what test programs say, and [`left_out`] what they could not try.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is for whoever started it"
)]

mod api;
mod benchmarks;
mod command;
mod fuzz;
mod left_out;
mod lint;
mod loom;
mod needs;
mod outside;
mod programs;
mod results;
mod sim;
mod test;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use workspace::Workspace;

/// Chores of this workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check everything: formatting, lints, documentation, models, tests, simulated seeds
    Test(test::Arguments),
    /// Check the rules of this project that no compiler checks
    Lint,
    /// Compare the public API of the libraries with the lists in the tree, or write the lists
    Api(api::Arguments),
    /// Try every interleaving of the lock-free parts
    Loom(loom::Arguments),
    /// Feed hostile bytes to the decoders for a long time
    Fuzz(fuzz::Arguments),
    /// Run the simulator: `cargo xtask sim --seeds 1000`, `cargo xtask sim --canary DenseCut`
    #[command(disable_help_flag = true)]
    Sim(sim::Arguments),
    /// Run the benches, keep their results, and draw the tables and pictures of the documents
    Benchmarks(benchmarks::Arguments),
    /// Inject each fault in turn, count how often `embar diagnose` names it, try the remedies, and draw the tables of that: 90 minutes
    DiagnoseMatrix,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> anyhow::Result<()> {
    let workspace = Workspace::find();
    match chore {
        Chore::Test(arguments) => test::run(&workspace, &arguments),
        Chore::Lint => lint::run(&workspace),
        Chore::Api(arguments) => api::run(&workspace, &arguments),
        Chore::Loom(arguments) => loom::run(&workspace, arguments),
        Chore::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Chore::Sim(arguments) => sim::run(&workspace, arguments),
        Chore::Benchmarks(arguments) => benchmarks::run(&workspace, arguments),
        Chore::DiagnoseMatrix => {
            benchmarks::record(&workspace, &["diagnose-matrix", "diagnose-remedies"])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Chore};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_the_simulator_takes_is_passed_on_as_it_is() {
        for line in ["--seeds 10000", "--canary DenseCut --from 7", "--help"] {
            let words = ["cargo xtask", "sim"].into_iter().chain(line.split(' '));
            match Arguments::parse_from(words).chore {
                Chore::Sim(arguments) => assert_eq!(arguments.words().join(" "), line),
                _ => panic!("{line} runs something else"),
            }
        }
    }
}
