//! Runs seeds until one fails, and says how to run that one again.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use embar_sim::figures::Figures;
use embar_sim::host::Sabotage;
use embar_sim::{Options, Report, run};

/// Simulates the log from seeds; every run is repeatable.
#[derive(Parser)]
#[command(name = "embar-sim", version)]
struct Arguments {
    /// Seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Steps of each run before everything heals.
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Run only this seed, and print everything that happens.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    match simulate(&Arguments::parse()) {
        Ok(code) => code,
        // Nobody reads on: nobody needs to be told.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn simulate(arguments: &Arguments) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let (from, seeds) = arguments
        .seed
        .map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let mut sum = Figures::default();
    for seed in from..from.saturating_add(seeds) {
        let report = run(Options {
            seed,
            steps: arguments.steps,
            sabotage: Sabotage::default(),
            verbose: arguments.seed.is_some(),
        });
        for line in &report.lines {
            writeln!(out, "{line}")?;
        }
        if !tell(&mut out, seed, arguments.steps, &report)? {
            return Ok(ExitCode::FAILURE);
        }
        sum += report.figures;
    }
    writeln!(
        out,
        "{seeds} seeds from {from} on: no rule was broken\n{sum:?}"
    )?;
    Ok(ExitCode::SUCCESS)
}

fn tell(out: &mut impl Write, seed: u64, steps: u64, report: &Report) -> io::Result<bool> {
    let Report { hash, figures, .. } = report;
    match &report.result {
        Ok(()) => writeln!(out, "seed {seed}: ok, trace {hash:016x}, {figures:?}")?,
        Err(violation) => {
            writeln!(
                out,
                "seed {seed}: FAILED, trace {hash:016x}, {figures:?}\n{violation}"
            )?;
            writeln!(
                out,
                "run it again: cargo run -p embar-sim -- --seed {seed} --steps {steps}"
            )?;
        }
    }
    Ok(report.result.is_ok())
}
