//! One client, once.

use crate::arguments::{Name, Operation, Single};
use crate::clients::{Client, Embar, Fred, RedisRs, Rustis};
use crate::measure::{self, Outcome, Run};
use crate::work::Shape;
use crate::{explicit, machine};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is printed.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub client: Name,
    pub operation: Operation,
    pub callers: u64,
    pub ops_per_s: f64,
    pub hits: u64,
    pub misses: u64,
    pub errors: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub client_cpu_us_per_op: f64,
    pub seconds: f64,
}

/// Measures it, and prints what came of it.
pub fn run(arguments: &Single) -> anyhow::Result<()> {
    let client = arguments.client.expect("it must be given");
    let explicit = arguments.workload.explicit;
    anyhow::ensure!(
        client == Name::Embar || !explicit,
        "--explicit is for embar only: pipelines of {client} take keys of one node or slot"
    );
    let placement = arguments.workload.placement.as_deref();
    let placed = placement.map(machine::place).transpose()?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let threads = arguments.threads.map(usize::try_from).transpose()?;
    if let Some(threads) = threads.or(placed) {
        anyhow::ensure!(threads > 0, "--threads must be at least 1");
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build()?;
    let outcome = runtime.block_on(async {
        // The callers run as tasks beside it, so the thread that waits here does no work.
        match client {
            Name::Embar if explicit => {
                let (clients, run) = prepared(arguments).await?;
                measure::run(&clients, &run, explicit::call).await
            }
            Name::Embar => measured::<Embar>(arguments).await,
            Name::RedisRs => measured::<RedisRs>(arguments).await,
            Name::Fred => measured::<Fred>(arguments).await,
            Name::Rustis => measured::<Rustis>(arguments).await,
        }
    })?;
    // Clients that are still connected would have their say about the end.
    runtime.shutdown_background();
    show(client, arguments, &outcome)
}

async fn measured<C: Client>(arguments: &Single) -> anyhow::Result<Outcome> {
    let (clients, run) = prepared::<C>(arguments).await?;
    measure::run(&clients, &run, measure::call).await
}

/// Connects, and writes all keys.
async fn prepared<C: Client>(arguments: &Single) -> anyhow::Result<(Vec<C>, Run)> {
    let workload = &arguments.workload;
    let (reads, writes) = match arguments.operation {
        Operation::Get => (1, 0),
        Operation::Set => (0, 1),
        Operation::Mixed => workload.mix,
    };
    let shape = Shape {
        key_size: workload.key_size,
        value_size: workload.value_size,
        keyspace: workload.keyspace,
        reads,
        writes,
    };
    shape.check().map_err(anyhow::Error::msg)?;
    let run = Run {
        shape,
        callers: arguments.callers,
        pipeline: workload.pipeline,
        warm_up: Duration::try_from_secs_f64(workload.warm_up)?,
        duration: Duration::try_from_secs_f64(arguments.duration)?,
    };
    let mut clients = Vec::new();
    for _ in 0..workload.connections {
        clients.push(C::connect(&workload.cluster).await?);
    }
    measure::load(&clients, &run.shape).await?;
    Ok((clients, run))
}

fn show(client: Name, arguments: &Single, outcome: &Outcome) -> anyhow::Result<()> {
    let operations = outcome.operations() as f64;
    let seconds = outcome.took.as_secs_f64();
    let at = |quantile| {
        outcome
            .latency
            .as_ref()
            .map_or(0, |latency| latency.value_at_quantile(quantile))
    };
    let report = Report {
        client,
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
