//! `embar bench metering`: measures what the stage timers cost.

use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::publish::{create_topic, open};
use embar_bench::report::{SeriesReport, series};
use embar_client::{Admin, Publisher};
use embar_console::connect::Connector;
use embar_console::size::Size;
use embar_meter::experiment::{Comparison, Experiment, Outcome, Sample};
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use serde::Serialize;

use super::CommonArgs;
use crate::context::Context;

/// What the stage timers cost: many short slices with and without, in turn
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench metering                       600 pairs of 256 MiB: some 90 s
  embar bench metering -m 64 --pairs 200     quicker, with a wider interval
  embar bench metering --json

One cluster and one publisher serve the whole run; between slices the timers of all of them are
switched. Slices are short so that there can be many: what the machine does besides hits both
kinds alike. A slice ends with its last acknowledgement.

JSON, one object: config; series[] with the rates of both kinds in MiB/s; metering_cost with the
ratio on/off, its interval, the verdict, and the loss with its 95 % upper bound")]
pub struct MeteringArgs {
    /// Bytes of each slice
    #[arg(short, long, value_name = "SIZE", default_value = "256MiB")]
    size: Size,
    /// Slices of each kind
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a BenchPlan,
    series: Vec<SeriesReport>,
    metering_cost: Comparison,
}

/// Runs it and prints the report.
pub fn run(args: &MeteringArgs, context: &Context) -> Result<()> {
    let mut plan = args.common.plan(args.size.0, 1, Metering::On)?;
    plan.trials = args.pairs as usize;
    plan.warmup = plan.warmup.max(2);
    plan.validate(false)?;
    args.common.needs_one_publisher("bench metering")?;
    let output = &context.output;
    output.say(format_args!("metering: slices of {}", plan.describe()))?;
    let mut private = PrivateCluster::start("bench-", &plan, true, &context.work)?;
    let slices = Slices {
        plan: plan.clone(),
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        data_brokers: private.data_brokers(),
        message: filler(plan.message_bytes as usize),
    };
    let outcome = private
        .cluster
        .run("bench-metering", move |abort| slices.run(abort))?;
    private.stop();
    let report = Report {
        bench: "metering",
        config: &plan,
        series: series(&outcome),
        metering_cost: outcome.compare(0, 1)?,
    };
    output.json(&report)?;
    output.say(format_args!("\n{outcome}"))?;
    let loss = &report.metering_cost.loss;
    output.say(format_args!("cost of metering: {loss}"))
}

/// Slices of one long publishing.
struct Slices {
    plan: BenchPlan,
    connector: Connector,
    data_brokers: Vec<u32>,
    message: Vec<u8>,
}

impl Slices {
    fn run(&self, abort: &Abort) -> Result<Outcome> {
        let admin = self.connector.admin()?;
        create_topic(&admin, &self.plan)?;
        let (publisher, _reporter) = open(&self.plan, &self.connector, true)?;
        let outcome = Experiment::new(["metering off", "metering on"])
            .unit("MiB/s")
            .warmup(self.plan.warmup)
            .trials(self.plan.trials)
            .run(|index, _| {
                self.switch(&admin, &publisher, index == 1)?;
                self.slice(&publisher, abort).map(Sample::from)
            })
            .map_err(trial_failed)?;
        publisher.close()?;
        Ok(outcome)
    }

    fn switch(&self, admin: &Admin, publisher: &Publisher, on: bool) -> Result<()> {
        publisher.set_metering(on);
        self.data_brokers.iter().try_for_each(|broker| {
            let switched = admin.set_metering(*broker, on).wait();
            switched.with_context(|| format!("cannot switch the timers of broker {broker}"))
        })
    }

    /// MiB per second, up to the last acknowledgement.
    fn slice(&self, publisher: &Publisher, abort: &Abort) -> Result<f64> {
        let started = Instant::now();
        for _ in 0..self.plan.messages {
            publisher.publish(&self.message)?;
        }
        publisher.flush()?;
        abort.check()?;
        let mib = self.plan.total_bytes as f64 / f64::from(1 << 20);
        Ok(mib / started.elapsed().as_secs_f64())
    }
}
