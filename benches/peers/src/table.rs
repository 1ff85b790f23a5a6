//! All clients in turn, each as a process of its own, several times.
//!
//! Machines differ from hour to hour. So in each round a cell (an operation, a number of callers, a number of threads)
//! is measured with one client after the other, beginning with another one each time, and clients are compared within
//! a round.

mod benchmark;
mod cells;
mod markdown;

use self::benchmark::RedisBenchmark;
use self::cells::{Cell, Column, Comparison, Sample};
use crate::arguments::{Name, Table};
use crate::machine;
use crate::single::Report;
use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::process::Output;
use std::time::Duration;
use std::{env, io};
use tokio::process::Command;
use tokio::time::timeout;

/// How much longer a process may take than it measures: it connects and writes all keys at first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures all there is to measure, and prints it.
pub fn run(arguments: &Table) -> anyhow::Result<()> {
    let lists = [
        arguments.clients.len(),
        arguments.operations.len(),
        arguments.callers.len(),
        arguments.threads.len(),
    ];
    ensure!(!lists.contains(&0), "each list must name something");
    // Processes that we start are placed as we are.
    let placement = arguments.workload.placement.as_deref();
    placement.map(machine::place).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let comparison = runtime.block_on(measure(arguments))?;
    if arguments.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        println!("{}", markdown::tables(&comparison));
    }
    ensure!(
        comparison.problems.is_empty(),
        "not all went well, see above: figures that are marked do not count"
    );
    Ok(())
}

async fn measure(arguments: &Table) -> anyhow::Result<Comparison> {
    let clients = arguments.clients.iter().copied().map(Column::Client);
    let benchmark = arguments.redis_benchmark.then_some(Column::RedisBenchmark);
    let columns: Vec<_> = clients.chain(benchmark).collect();
    let mut cells = cells(arguments, &columns);
    let mut redis_benchmark = match arguments.redis_benchmark {
        true => Some(RedisBenchmark::prepare(arguments).await?),
        false => None,
    };
    let mut problems = Vec::new();
    let steps = arguments.rounds * (cells.len() * columns.len()) as u64;
    // It draws nothing where nobody looks.
    let bar = ProgressBar::new(steps).with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {msg} (about {eta} left)",
    )?);
    for round in 0..arguments.rounds {
        for (number, cell) in cells.iter_mut().enumerate() {
            let first = (round as usize + number) % columns.len();
            for turn in 0..columns.len() {
                let index = (first + turn) % columns.len();
                let column = columns[index];
                bar.set_message(format!("round {}: {column}, {cell}", round + 1));
                let sample = match (column, &mut redis_benchmark) {
                    (Column::Client(client), _) => one(arguments, client, cell).await.map(Some),
                    (Column::RedisBenchmark, Some(benchmark)) => benchmark.measure(cell).await,
                    (Column::RedisBenchmark, None) => Ok(None),
                };
                bar.inc(1);
                let mut problem = |what: String| {
                    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
                    let what = format!("{column}, {cell}, round {}: {what}", round + 1);
                    bar.suspend(|| eprintln!("{what}"));
                    problems.push(what);
                };
                match sample {
                    Ok(sample) => {
                        if let Some(what) = sample.as_ref().and_then(Sample::problem) {
                            problem(what);
                        }
                        cell.samples[index].push(sample);
                    }
                    Err(error) => {
                        problem(format!("{error:#}"));
                        cell.samples[index].push(Some(Sample::failed()));
                    }
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(Comparison::new(
        arguments.rounds,
        &columns,
        &cells,
        problems,
    ))
}

fn cells(arguments: &Table, columns: &[Column]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for threads in &arguments.threads {
        for operation in &arguments.operations {
            for callers in &arguments.callers {
                cells.push(Cell {
                    threads: *threads,
                    operation: *operation,
                    callers: *callers,
                    samples: vec![Vec::new(); columns.len()],
                });
            }
        }
    }
    cells
}

/// One client in one cell, once, by this program as a process of its own.
async fn one(arguments: &Table, client: Name, cell: &Cell) -> anyhow::Result<Sample> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(format!("--client={client}"));
    command.arg(format!("--operation={}", cell.operation));
    command.arg(format!("--callers={}", cell.callers));
    command.arg(format!("--threads={}", cell.threads));
    command.arg(format!("--duration={}", arguments.duration));
    command.args(arguments.workload.arguments());
    if arguments.workload.explicit && client == Name::Embar {
        command.arg("--explicit");
    }
    command.arg("--json");
    let measured = arguments.workload.warm_up + arguments.duration;
    let output = output(command, Duration::try_from_secs_f64(measured)? + PATIENCE).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "it ended with {}: {}",
        output.status,
        said.trim()
    );
    let report: Report = serde_json::from_slice(&output.stdout).context("its report")?;
    Ok(Sample {
        ops_per_s: report.ops_per_s,
        client_cpu_us_per_op: report.client_cpu_us_per_op,
        errors: report.errors,
        misses: report.misses,
        said: said.trim().to_owned(),
        failed: false,
    })
}

/// What a program prints, which is killed when it takes too long.
async fn output(mut command: Command, patience: Duration) -> anyhow::Result<Output> {
    let program = command.as_std().get_program().to_owned();
    match timeout(patience, command.kill_on_drop(true).output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{program:?} is not installed")
        }
        Ok(Err(error)) => Err(error).with_context(|| format!("starting {program:?}")),
        Err(_) => bail!("it was killed after {patience:?}"),
    }
}
