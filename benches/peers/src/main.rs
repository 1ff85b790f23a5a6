//! The work of our own Redis bench over other clients, so that figures can be compared.
#![forbid(unsafe_code)]

mod clients;
mod machine;
mod measure;
mod work;

use crate::clients::{Client, Fred, RedisRs, Rustis};
use crate::measure::{Outcome, Run};
use crate::work::Shape;
use clap::{Parser, ValueEnum};
use serde::Serialize;
use std::time::Duration;

/// Measures a Redis cluster client
#[derive(Parser)]
struct Arguments {
    /// Which one
    #[arg(long, value_enum)]
    client: Name,
    /// What the callers do
    #[arg(long, value_enum, default_value = "get")]
    operation: Operation,
    /// Measured time in seconds
    #[arg(long, default_value_t = 15.0)]
    duration: f64,
    /// Time before it in which nothing is counted, in seconds
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Tasks that do one operation after the other
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    callers: u64,
    /// Operations that each caller has in flight: it starts that many and waits for all
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pipeline: u64,
    /// Clients that the callers are spread over, each with connections of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Bytes of a key
    #[arg(long, default_value_t = 16)]
    key_size: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_size: usize,
    /// How many different keys; all are written before the measurement
    #[arg(long, default_value_t = 100_000)]
    keyspace: u64,
    /// Reads to writes of the mixed operation
    #[arg(long, default_value = "80:20", value_parser = mix)]
    mix: (u64, u64),
    /// Some nodes of the cluster
    #[arg(long, default_value = "127.0.0.1:7000", value_delimiter = ',')]
    cluster: Vec<String>,
    /// Worker threads of Tokio; as many as there are processors for it by default
    #[arg(long)]
    threads: Option<usize>,
    /// Processors it may run on, like 0-1,3
    #[arg(long)]
    placement: Option<String>,
    /// Print JSON, on one line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    RedisRs,
    Fred,
    Rustis,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    Set,
    Get,
    Mixed,
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    client: Name,
    operation: Operation,
    callers: u64,
    ops_per_s: f64,
    hits: u64,
    misses: u64,
    errors: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    client_cpu_us_per_op: f64,
    seconds: f64,
}

fn mix(text: &str) -> Result<(u64, u64), String> {
    let part = |text: &str| text.parse::<u32>().map(u64::from).ok();
    let parts = text
        .split_once(':')
        .and_then(|(reads, writes)| part(reads).zip(part(writes)));
    parts.ok_or_else(|| "write it as reads:writes, like 80:20".to_owned())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let placed = arguments
        .placement
        .as_deref()
        .map(machine::place)
        .transpose()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads.or(placed) {
        anyhow::ensure!(threads > 0, "--threads must be at least 1");
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build()?;
    let outcome = runtime.block_on(async {
        // The callers run as tasks beside it, so the thread that waits here does no work.
        match arguments.client {
            Name::RedisRs => measured::<RedisRs>(&arguments).await,
            Name::Fred => measured::<Fred>(&arguments).await,
            Name::Rustis => measured::<Rustis>(&arguments).await,
        }
    })?;
    // Clients that are still connected would have their say about the end.
    runtime.shutdown_background();
    show(&arguments, &outcome)
}

async fn measured<C: Client>(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let (reads, writes) = match arguments.operation {
        Operation::Get => (1, 0),
        Operation::Set => (0, 1),
        Operation::Mixed => arguments.mix,
    };
    let shape = Shape {
        key_size: arguments.key_size,
        value_size: arguments.value_size,
        keyspace: arguments.keyspace,
        reads,
        writes,
    };
    shape.check().map_err(anyhow::Error::msg)?;
    let run = Run {
        shape,
        callers: arguments.callers,
        pipeline: arguments.pipeline,
        warm_up: Duration::try_from_secs_f64(arguments.warm_up)?,
        duration: Duration::try_from_secs_f64(arguments.duration)?,
    };
    let mut clients = Vec::new();
    for _ in 0..arguments.connections {
        clients.push(C::connect(&arguments.cluster).await?);
    }
    measure::load(&clients, &run.shape).await?;
    measure::run(&clients, &run).await
}

fn show(arguments: &Arguments, outcome: &Outcome) -> anyhow::Result<()> {
    let operations = outcome.operations() as f64;
    let seconds = outcome.took.as_secs_f64();
    let at = |quantile| {
        outcome
            .latency
            .as_ref()
            .map_or(0, |latency| latency.value_at_quantile(quantile))
    };
    let report = Report {
        client: arguments.client,
        operation: arguments.operation,
        callers: arguments.callers,
        ops_per_s: operations / seconds,
        hits: outcome.hits,
        misses: outcome.misses,
        errors: outcome.errors,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        client_cpu_us_per_op: outcome.cpu.as_secs_f64() * 1e6 / operations.max(1.0),
        seconds,
    };
    if let Some(error) = &outcome.first_error {
        eprintln!("{} errors, the first: {error}", outcome.errors);
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{:>12.0} operations/s in {seconds:.1} s", report.ops_per_s);
        println!(
            "{:>12} hits, {} misses, {} errors",
            report.hits, report.misses, report.errors
        );
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let [p50, p99, p999] = [report.p50_ns, report.p99_ns, report.p999_ns].map(micros);
        println!("{p50:>12.1} us p50, {p99:.1} us p99, {p999:.1} us p99.9");
        println!(
            "{:>12.2} us of processor per operation",
            report.client_cpu_us_per_op
        );
    }
    Ok(())
}
