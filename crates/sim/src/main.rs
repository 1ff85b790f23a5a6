//! Runs seeds until one fails, and prints the command that runs that one again; or breaks rules on purpose, and
//! prints which seed noticed.
#![forbid(unsafe_code)]

mod output;
mod progress;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use embar_memory::canary::Canary;
use embar_sim::search::{Search, Sums};
use embar_sim::{Options, Part, canaries, run};

use progress::Progress;

/// Seeds to run.
const SEEDS: u64 = 100;

/// Simulates a whole cluster, its protocol alone, and streams by shared memory, from seeds; every run is repeatable.
#[derive(Parser)]
#[command(name = "embar-sim", bin_name = "cargo xtask sim", version)]
struct Arguments {
    /// Seeds to run; without this 100, and with a canary at most 10,000
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Steps of each cluster before everything heals
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Only in this world
    #[arg(long)]
    only: Option<Only>,
    /// Run only this seed, and print everything that happens
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Go on behind a seed that fails
    #[arg(long)]
    keep_going: bool,
    /// Break this rule: a seed must fail, and so does the program
    #[arg(long, value_parser = canary)]
    canary: Option<Canary>,
    /// Break each rule in turn: every one must be noticed
    #[arg(long, conflicts_with_all = ["canary", "seed", "keep_going"])]
    canaries: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Only {
    /// The whole cluster, with its clients
    Cluster,
    /// The protocol of ordering
    Protocol,
    /// Streams by shared memory
    Streams,
}

impl Arguments {
    fn parts(&self) -> &'static [Part] {
        match self.only {
            None => &Part::ALL,
            Some(Only::Cluster) => &[Part::Cluster],
            Some(Only::Protocol) => &[Part::Protocol],
            Some(Only::Streams) => &[Part::Streams],
        }
    }

    fn search(&self, canary: Option<Canary>) -> Search {
        let usual = canary.map_or(SEEDS, |_| canaries::SEEDS);
        Search {
            from: self.from,
            seeds: self.seeds.unwrap_or(usual),
            parts: self.parts(),
            steps: self.steps,
            canary,
            keeps_going: self.keep_going,
        }
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
    // The report of a seed says what it panicked with.
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = io::stdout().lock();
    let done = if arguments.canaries {
        all_canaries(&arguments, &mut out)
    } else if let Some(seed) = arguments.seed {
        one(&arguments, seed, &mut out)
    } else {
        many(&arguments, &mut out)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of the output has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// One seed, and all that happens in it.
fn one(arguments: &Arguments, seed: u64, out: &mut impl Write) -> io::Result<bool> {
    for part in arguments.parts() {
        let options = Options {
            seed,
            part: *part,
            steps: arguments.steps,
            canary: arguments.canary,
            verbose: true,
        };
        let report = run(options);
        for line in &report.lines {
            writeln!(out, "{line}")?;
        }
        if let Err(violation) = &report.result {
            output::failure(out, &options, violation)?;
            return Ok(false);
        }
        let mut sums = Sums::default();
        sums += &report;
        let (part, hash) = (part.name(), report.hash);
        writeln!(out, "seed {seed}, {part}: ok, trace {hash:016x}")?;
        output::sums(out, &sums)?;
    }
    Ok(true)
}

fn many(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let search = arguments.search(arguments.canary);
    let begin = Instant::now();
    let progress = Progress::new(search.runs());
    let (sums, failures) = search.run(|sums, failure| {
        progress.show(sums);
        if let Some(failure) = failure {
            progress.report(failure);
        }
    });
    progress.end();
    for failure in &failures {
        output::end_of_trace(out, &failure.options)?;
        output::failure(out, &failure.options, &failure.violation)?;
    }
    let seconds = begin.elapsed().as_secs_f32();
    let (runs, from, seeds) = (sums.runs, search.from, search.seeds);
    writeln!(
        out,
        "\n{runs} runs of {seeds} seeds from {from} on, in {seconds:.1} s"
    )?;
    output::sums(out, &sums)?;
    if !failures.is_empty() {
        writeln!(out, "{} runs broke a rule: see above", failures.len())?;
        return Ok(false);
    }
    writeln!(out, "no rule was broken")?;
    let missing = search.missing(&sums);
    if !missing.is_empty() {
        writeln!(out, "never happened: {}", missing.join(", "))?;
    }
    Ok(missing.is_empty())
}

fn all_canaries(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let mut unnoticed = Vec::new();
    let of_disks = |canary: &&Canary| Canary::OF_DISKS.contains(canary);
    for canary in Canary::ALL.iter().filter(|canary| !of_disks(canary)) {
        let search = arguments.search(Some(*canary));
        let begin = Instant::now();
        let progress = Progress::new(search.runs());
        let (_, failures) = search.run(|sums, _| progress.show(sums));
        progress.end();
        let (name, seconds) = (canary.name(), begin.elapsed().as_secs_f32());
        match failures.first() {
            Some(failure) => {
                let Options { seed, part, .. } = failure.options;
                let what = output::first_line(&failure.violation);
                let part = part.name();
                writeln!(out, "{name:<20}{seconds:>6.1} s  {part} {seed}: {what}")?;
            }
            None => {
                unnoticed.push(name);
                let what = canary.what();
                writeln!(out, "{name:<20}{seconds:>6.1} s  NOT NOTICED:{what}")?;
            }
        }
        out.flush()?;
    }
    if !unnoticed.is_empty() {
        writeln!(out, "not noticed: {}", unnoticed.join(", "))?;
    }
    Ok(unnoticed.is_empty())
}
