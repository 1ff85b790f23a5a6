//! Runs seeds until one fails, and says how to run that one again; or breaks rules on purpose, and says
//! which seed noticed.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use embar_fabric::canary::Canary;
use embar_sim::canaries::{self, Expected};
use embar_sim::figures::Figures;
use embar_sim::{Options, Report, run};

/// Seeds after which everything that can happen must have happened.
const COVERED_AFTER: u64 = 300;
/// Seeds to run.
const SEEDS: u64 = 100;
/// Seeds within which a broken rule is to be noticed.
const CANARY_SEEDS: u64 = 600;
/// Lines of the trace that a failure prints.
const LAST_LINES: usize = 60;

/// Simulates a whole cluster from seeds; every run is repeatable.
#[derive(Parser)]
#[command(name = "embar-sim", version)]
struct Arguments {
    /// Seeds to run: 100, or with a canary at most 600, unless told otherwise.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Steps of each run before everything heals.
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Run only this seed, and print everything that happens.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Break this rule: a seed must fail, and so does the program.
    #[arg(long, value_parser = canary)]
    canary: Option<Canary>,
    /// Break each rule in turn: every one must be noticed.
    #[arg(long, conflicts_with_all = ["canary", "seed"])]
    canaries: bool,
    /// With `--canaries`: only those of the quick selection.
    #[arg(long, requires = "canaries")]
    quick: bool,
}

impl Arguments {
    fn seeds(&self) -> u64 {
        let breaks = self.canaries || self.canary.is_some();
        let usual = if breaks { CANARY_SEEDS } else { SEEDS };
        self.seeds.unwrap_or(usual)
    }
}

fn canary(name: &str) -> Result<Canary, String> {
    let found = Canary::ALL.iter().find(|canary| canary.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = Canary::ALL.iter().map(|canary| canary.name()).collect();
        format!("there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What a run panics with is told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = io::stdout().lock();
    let done = if arguments.canaries {
        all_canaries(&arguments, &mut out)
    } else {
        simulate(&arguments, &mut out)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Nobody reads on: nobody needs to be told.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn simulate(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let (from, seeds) = arguments
        .seed
        .map_or((arguments.from, arguments.seeds()), |seed| (seed, 1));
    let mut sum = Figures::default();
    for seed in from..from.saturating_add(seeds) {
        let options = Options {
            seed,
            steps: arguments.steps,
            canary: arguments.canary,
            verbose: arguments.seed.is_some(),
        };
        let report = run(options);
        for line in &report.lines {
            writeln!(out, "{line}")?;
        }
        if !tell(out, &options, &report)? {
            return Ok(false);
        }
        sum += report.figures;
    }
    writeln!(
        out,
        "{seeds} seeds from {from} on: no rule was broken\n{sum:?}"
    )?;
    let missing = sum.missing();
    if seeds >= COVERED_AFTER && !missing.is_empty() {
        writeln!(out, "never happened: {}", missing.join(", "))?;
        return Ok(false);
    }
    Ok(true)
}

fn tell(out: &mut impl Write, options: &Options, report: &Report) -> io::Result<bool> {
    let Report { hash, figures, .. } = report;
    let Options { seed, steps, .. } = options;
    let Err(violation) = &report.result else {
        writeln!(out, "seed {seed}: ok, trace {hash:016x}, {figures:?}")?;
        return Ok(true);
    };
    if !options.verbose {
        let again = run(Options {
            verbose: true,
            ..*options
        });
        let skipped = again.lines.len().saturating_sub(LAST_LINES);
        for line in &again.lines[skipped..] {
            writeln!(out, "{line}")?;
        }
    }
    writeln!(
        out,
        "seed {seed}: FAILED, trace {hash:016x}, {figures:?}\n{violation}"
    )?;
    let canary = options
        .canary
        .map_or_else(String::new, |canary| format!(" --canary {}", canary.name()));
    writeln!(
        out,
        "run it again: cargo xtask sim --seed {seed} --steps {steps}{canary}"
    )?;
    Ok(false)
}

fn all_canaries(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let seeds = arguments.from..arguments.from.saturating_add(arguments.seeds());
    let mut as_expected = true;
    for canary in Canary::ALL {
        let expected = canaries::expected(*canary);
        if arguments.quick && !canaries::QUICK.contains(canary) {
            continue;
        }
        if let Expected::Redundant(why) = expected {
            writeln!(out, "{:<20} cannot be noticed: {why}", canary.name())?;
            continue;
        }
        match canaries::first_to_notice(*canary, seeds.clone(), arguments.steps) {
            Some((seed, violation)) => {
                writeln!(out, "{:<20} seed {seed}: {violation}", canary.name())?;
            }
            None if let Expected::Rarely(why) = expected => {
                writeln!(out, "{:<20} not noticed: {why}", canary.name())?;
            }
            None => {
                as_expected = false;
                writeln!(out, "{:<20} NOT NOTICED: {}", canary.name(), canary.what())?;
            }
        }
        out.flush()?;
    }
    Ok(as_expected)
}
