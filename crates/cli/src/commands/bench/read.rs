//! `embar bench read`: measures reading back what was published.

use anyhow::{Result, anyhow};
use clap::Args;
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::read::{ReadJob, ReadTrial};
use embar_bench::reader::Reader;
use embar_bench::report::{
    Derived, SeriesReport, Summary, costs_table, merged, profile_text, series, summary_line,
    trials_table,
};
use embar_bench::usage::{Costs, median};
use embar_bench::wall::drive::{Receivers, Wall, WallPlan};
use embar_bench::{publish, retained};
use embar_client::Acks;
use embar_console::size::Size;
use embar_meter::experiment::{Comparison, Experiment, Outcome, Sample};
use serde::Serialize;

use super::publish::show_progress;
use super::{CommonArgs, wall_of};
use crate::context::Context;

/// Publish what fits, then read all of it back, each message verified
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench read
  embar bench read --wall --trials 8        against what the machine allows, in one run
  embar bench read -m 64 -s 512MiB --json
  embar bench read --transport shm --reader touches    in place, each byte read once

One cluster is started and filled once; each trial reads everything from the start with a new
subscriber. Each message carries a sequence number and a checksum of all its bytes, and each
must arrive exactly once, which a reader that verifies checks; others count.

JSON, one object: config; reader; trials[] with mib_per_s, messages_per_s, seconds,
tcp_connections, unix_connections and shm_connections (made to brokers), client and brokers
(costs); median_mib_per_s, min_mib_per_s, max_mib_per_s, messages_per_s; costs; subscriber_profile;
recv_calls_per_batch, bytes_per_recv, recv_eagain (of the subscriber); wall with --wall: series[],
ratio_to_bare")]
pub struct ReadArgs {
    /// Bytes to publish and read; without it, 60 % of the region, which is retained for certain
    #[arg(short, long, value_name = "SIZE")]
    size: Option<Size>,
    /// What becomes of each message
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Reader::Verifies)]
    reader: Reader,
    /// Also measure the machine, in the same run, and print the ratio
    #[arg(long)]
    wall: bool,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a BenchPlan,
    reader: Reader,
    trials: &'a [ReadTrial],
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    subscriber_profile: Option<embar_meter::Snapshot>,
    #[serde(flatten)]
    derived: Derived,
    wall: Option<WallReport>,
}

#[derive(Serialize)]
struct WallReport {
    config: WallPlan,
    series: Vec<SeriesReport>,
    ratio_to_bare: Comparison,
}

/// Runs it and prints the report.
pub fn run(args: &ReadArgs, context: &Context) -> Result<()> {
    let size = args
        .size
        .map_or(args.common.load.region_size.0 / 10 * 6, |size| size.0);
    let plan = args.common.plan(size, Acks::Readable, Metering::On)?;
    plan.validate(true)?;
    context.output.say(format_args!(
        "read by one who {}: {}",
        args.reader,
        plan.describe()
    ))?;
    let mut private = PrivateCluster::start("bench-", &plan, true, &context.work)?;
    fill(&mut private, &plan, context)?;
    let wall = wall_of(&plan);
    let receivers = args
        .wall
        .then(|| Receivers::start(&wall, &context.work))
        .transpose()?;
    let names: &[&str] = if args.wall {
        &["bare wall, reading", "read"]
    } else {
        &["read"]
    };
    let mut trials = Vec::new();
    let outcome = Experiment::new(names.iter().copied())
        .unit("MiB/s")
        .warmup(plan.warmup)
        .trials(plan.trials)
        .run(|index, round| {
            let rate = if names[index] == "read" {
                let trial = trial(&mut private, &plan, args.reader, context)?;
                let rate = trial.rate.mib_per_s;
                if !round.warmup {
                    trials.push(trial);
                }
                rate
            } else {
                receivers
                    .as_ref()
                    .ok_or_else(|| anyhow!("the wall has no receivers"))?
                    .run(Wall::ReadBare, &wall)?
            };
            show_progress(context, names[index], round, rate);
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    private.stop();
    report(&plan, args.reader, &trials, &outcome, context)
}

/// Publishes everything and makes sure that it is still there.
fn fill(private: &mut PrivateCluster, plan: &BenchPlan, context: &Context) -> Result<()> {
    let job = publish::PublishJob {
        plan: plan.clone(),
        metering: true,
        stamped: true,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        data_brokers: private.data_brokers(),
        bar: context.work.bar("publishing", plan.total_bytes),
    };
    let connector = job.connector.clone();
    private
        .cluster
        .run("bench-fill", move |abort| job.run(abort))?;
    retained::check(&connector, plan)
}

fn trial(
    private: &mut PrivateCluster,
    plan: &BenchPlan,
    reader: Reader,
    context: &Context,
) -> Result<ReadTrial> {
    let job = ReadJob {
        topic: plan.topic.clone(),
        reader,
        messages: plan.messages,
        message_bytes: plan.message_bytes,
        metering: true,
        spin: plan.spin,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        bar: context.work.bar("reading", plan.total_bytes),
    };
    private
        .cluster
        .run("bench-read", move |abort| job.run(abort))
}

fn report(
    plan: &BenchPlan,
    reader: Reader,
    trials: &[ReadTrial],
    outcome: &Outcome,
    context: &Context,
) -> Result<()> {
    let subscriber_profile = merged(trials.iter().map(|trial| trial.subscriber_profile.as_ref()));
    let wall = match outcome.configs().len() {
        2 => Some(WallReport {
            config: wall_of(plan),
            series: series(outcome),
            ratio_to_bare: outcome.compare(0, 1)?,
        }),
        _ => None,
    };
    let report = Report {
        bench: "read",
        config: plan,
        reader,
        trials,
        summary: Summary::of(&trials.iter().map(|trial| trial.rate).collect::<Vec<_>>())?,
        costs: median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        derived: subscriber_profile
            .as_ref()
            .map(Derived::of)
            .unwrap_or_default(),
        subscriber_profile,
        wall,
    };
    let output = &context.output;
    output.json(&report)?;
    let numbered = trials
        .iter()
        .enumerate()
        .map(|(index, trial)| ((index + 1).to_string(), trial.rate));
    output.say(format_args!("\n{}", trials_table(numbered)))?;
    output.say(summary_line(output.paint(), &report.summary))?;
    output.say("every message arrived once and unchanged, in every trial")?;
    output.say(format_args!("\n{}", costs_table(&report.costs)))?;
    if let Some(profile) = &report.subscriber_profile {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    if let Some(wall) = &report.wall {
        output.say(format_args!(
            "\n{outcome}\nread is {:.3} of the bare wall",
            wall.ratio_to_bare.ratio
        ))?;
    }
    Ok(())
}
