//! `embar bench e2e`: measures publishing and reading at once.

use anyhow::Result;
use clap::Args;
use embar_bench::e2e::{E2eJob, E2eTrial};
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::reader::Reader;
use embar_bench::report::{
    Derived, Summary, costs_table, merged, profile_text, summary_line, trials_table,
};
use embar_bench::usage::{Costs, median};
use embar_client::Acks;
use embar_console::size::Size;
use embar_meter::experiment::{Experiment, Sample};
use embar_meter::table::Table;
use serde::Serialize;

use super::CommonArgs;
use super::publish::show_progress;
use crate::context::Context;

/// Publish and subscribe at once: throughput and latency, each message verified
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench e2e                           as fast as it goes; latency of full queues
  embar bench e2e --rate 100MiB -s 1GiB     latency at 100 MiB per second
  embar bench e2e -m 64 -s 256MiB --json
  embar bench e2e --transport shm --reader touches     in place, each byte read once

Each message carries a sequence number, the time it was published and a checksum of all its
bytes; latency is from the call that publishes it to its delivery. Publishing waits when a
quarter of the region is unread, so that nothing is evicted. One application thread publishes,
one reads.

JSON, one object: config; reader; trials[] with mib_per_s, messages_per_s, seconds, latency_us {p50,
p90, p99, p999, max}, client and brokers (costs); median_mib_per_s, min_mib_per_s,
max_mib_per_s, messages_per_s; costs; broker_profile, publisher_profile, subscriber_profile;
recv_calls_per_batch, bytes_per_recv, recv_eagain, refused_batches (brokers)")]
pub struct E2eArgs {
    /// Bytes of each trial
    #[arg(short, long, value_name = "SIZE", default_value = "4GiB")]
    size: Size,
    /// What becomes of each message that is read
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Reader::Verifies)]
    reader: Reader,
    /// Bytes to publish per second; as fast as it goes without
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a BenchPlan,
    reader: Reader,
    rate_bytes_per_s: Option<u64>,
    trials: &'a [E2eTrial],
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    broker_profile: Option<embar_meter::Snapshot>,
    publisher_profile: Option<embar_meter::Snapshot>,
    subscriber_profile: Option<embar_meter::Snapshot>,
    #[serde(flatten)]
    derived: Derived,
}

/// Runs it and prints the report.
pub fn run(args: &E2eArgs, context: &Context) -> Result<()> {
    let plan = args
        .common
        .plan(args.size.0, Acks::Readable, Metering::On)?;
    plan.validate(true)?;
    args.common.needs_one_publisher("bench e2e")?;
    if args.rate.is_some_and(|rate| rate.0 == 0) {
        return Err(crate::exit::usage("--rate must not be 0"));
    }
    context.output.say(format_args!(
        "publish and read at once: {}",
        plan.describe()
    ))?;
    let mut trials = Vec::new();
    Experiment::new(["e2e"])
        .unit("MiB/s")
        .warmup(plan.warmup)
        .trials(plan.trials)
        .run(|_, round| {
            let trial = trial(&plan, args, context)?;
            let rate = trial.rate.mib_per_s;
            show_progress(context, "e2e", round, rate);
            if !round.warmup {
                trials.push(trial);
            }
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    report(&plan, args, &trials, context)
}

fn trial(plan: &BenchPlan, args: &E2eArgs, context: &Context) -> Result<E2eTrial> {
    let mut private = PrivateCluster::start("bench-", plan, true, &context.work)?;
    let job = E2eJob {
        plan: plan.clone(),
        window_bytes: plan.region_bytes / 4,
        reader: args.reader,
        bytes_per_s: args.rate.map(|rate| rate.0),
        metering: true,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        data_brokers: private.data_brokers(),
        bar: context.work.bar("publishing and reading", plan.total_bytes),
    };
    let trial = private
        .cluster
        .run("bench-e2e", move |abort| job.run(abort))?;
    private.stop();
    Ok(trial)
}

fn report(plan: &BenchPlan, args: &E2eArgs, trials: &[E2eTrial], context: &Context) -> Result<()> {
    let broker_profile = merged(trials.iter().map(|trial| Some(&trial.broker_profile)));
    let report = Report {
        bench: "e2e",
        config: plan,
        reader: args.reader,
        rate_bytes_per_s: args.rate.map(|rate| rate.0),
        trials,
        summary: Summary::of(&trials.iter().map(|trial| trial.rate).collect::<Vec<_>>())?,
        costs: median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        derived: broker_profile.as_ref().map(Derived::of).unwrap_or_default(),
        broker_profile,
        publisher_profile: merged(trials.iter().map(|trial| Some(&trial.publisher_profile))),
        subscriber_profile: merged(trials.iter().map(|trial| Some(&trial.subscriber_profile))),
    };
    let output = &context.output;
    output.json(&report)?;
    let numbered = trials
        .iter()
        .enumerate()
        .map(|(index, trial)| ((index + 1).to_string(), trial.rate));
    output.say(format_args!("\n{}", trials_table(numbered)))?;
    output.say(summary_line(output.paint(), &report.summary))?;
    if args.reader == Reader::Verifies {
        output.say("every message arrived once and unchanged")?;
    }
    output.say(format_args!("\n{}", latency_table(trials)))?;
    output.say(format_args!("\n{}", costs_table(&report.costs)))?;
    for profile in [
        &report.broker_profile,
        &report.publisher_profile,
        &report.subscriber_profile,
    ]
    .into_iter()
    .flatten()
    {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    Ok(())
}

fn latency_table(trials: &[E2eTrial]) -> Table {
    let mut table = Table::new(["latency (us), trial", "p50", "p90", "p99", "p99.9", "max"]);
    for (index, trial) in trials.iter().enumerate() {
        let latency = &trial.latency_us;
        let cells = [
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.max,
        ]
        .map(|us| format!("{us:.0}"));
        table.row(std::iter::once((index + 1).to_string()).chain(cells));
    }
    table
}
