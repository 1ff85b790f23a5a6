//! `embar bench metering`: measures what the stage timers cost, and what it costs to be looked at.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::publish::{create_topic, open};
use embar_bench::report::{SeriesReport, series};
use embar_client::{Admin, Publisher, serve_profiles};
use embar_console::connect::Connector;
use embar_console::size::{Size, parse_span, show_duration};
use embar_meter::experiment::{Comparison, Experiment, Outcome, Sample};
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use serde::Serialize;

use super::CommonArgs;
use crate::context::Context;

/// What the stage timers cost, or to be looked at: many slices with and without, in turn
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench metering                       600 pairs of 256 MiB: some 90 s
  embar bench metering -m 64 --pairs 200     quicker, with a wider interval
  embar bench metering --attached            what `embar diagnose --attach` costs: some 9 minutes
  embar bench metering --json

One cluster and one publisher serve the whole run; between slices the timers of all of them are
switched. Slices are short so that there can be many: what the machine does besides hits both
kinds alike. A slice ends with its last acknowledgement.

With --attached the timers stay on, and in each second slice a process of its own looks at the
cluster and its publisher as `embar diagnose --attach` does, from its start to its end.

JSON, one object: config; series[] with the rates of both kinds in MiB/s; metering_cost with the
ratio on/off (looked at/alone), its interval, the verdict, and the loss with its 95 % upper bound")]
pub struct MeteringArgs {
    /// Bytes of each slice
    #[arg(
        short,
        long,
        value_name = "SIZE",
        default_value = "256MiB",
        conflicts_with = "attached"
    )]
    size: Size,
    /// Slices of each kind [default: 600, or 60 with --attached]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: Option<u32>,
    /// Measure what it costs to be looked at
    #[arg(long)]
    attached: bool,
    /// How long each look is
    #[arg(long = "for", value_name = "TIME", default_value = "4s", value_parser = parse_span, requires = "attached")]
    span: Duration,
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
    let pairs = args.pairs.unwrap_or(if args.attached { 60 } else { 600 });
    plan.trials = pairs as usize;
    plan.warmup = plan.warmup.max(if args.attached { 1 } else { 2 });
    plan.validate(false)?;
    args.common.needs_one_publisher("bench metering")?;
    let output = &context.output;
    let slices = match args.attached {
        true => show_duration(args.span),
        false => plan.describe(),
    };
    output.say(format_args!("metering: slices of {slices}"))?;
    let mut private = PrivateCluster::start("bench-", &plan, true, &context.work)?;
    let slices = Slices {
        plan: plan.clone(),
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        data_brokers: private.data_brokers(),
        message: filler(plan.message_bytes as usize),
        look: args.attached.then(|| Look {
            program: context.work.program.clone(),
            address: private.cluster.head(),
            span: args.span,
        }),
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
    let what = match args.attached {
        true => "being looked at",
        false => "metering",
    };
    output.say(format_args!("cost of {what}: {loss}"))
}

/// Slices of one long publishing.
struct Slices {
    plan: BenchPlan,
    connector: Connector,
    data_brokers: Vec<u32>,
    message: Vec<u8>,
    /// The look that is measured instead of the timers.
    look: Option<Look>,
}

impl Slices {
    fn run(&self, abort: &Abort) -> Result<Outcome> {
        let admin = self.connector.admin()?;
        create_topic(&admin, &self.plan)?;
        let (publisher, _reporter) = open(&self.plan, &self.connector, true)?;
        let names = match self.look {
            Some(_) => ["alone", "looked at"],
            None => ["metering off", "metering on"],
        };
        let experiment = Experiment::new(names)
            .unit("MiB/s")
            .warmup(self.plan.warmup)
            .trials(self.plan.trials);
        let outcome = match &self.look {
            Some(look) => {
                serve_profiles().context("cannot serve the publisher's stages")?;
                experiment.run(|index, _| {
                    let slice = self.beside(look, &publisher, index == 1, abort);
                    slice.map(Sample::from)
                })
            }
            None => experiment.run(|index, _| {
                self.switch(&admin, &publisher, index == 1)?;
                self.slice(&publisher, abort).map(Sample::from)
            }),
        };
        let outcome = outcome.map_err(trial_failed)?;
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

    /// The same of the time that a look takes, with or without one.
    fn beside(
        &self,
        look: &Look,
        publisher: &Publisher,
        looks: bool,
        abort: &Abort,
    ) -> Result<f64> {
        let mut running = looks.then(|| look.start()).transpose()?;
        let (started, mut messages) = (Instant::now(), 0_u64);
        loop {
            for _ in 0..BETWEEN_CHECKS.div_ceil(self.message.len()) {
                publisher.publish(&self.message)?;
                messages += 1;
            }
            abort.check()?;
            let is_over = match &mut running {
                Some(running) => running.has_ended()?,
                None => started.elapsed() >= look.span,
            };
            if is_over {
                break;
            }
        }
        publisher.flush()?;
        let mib = messages as f64 * self.message.len() as f64 / f64::from(1 << 20);
        Ok(mib / started.elapsed().as_secs_f64())
    }
}

/// Bytes that are published between two looks at the clock.
const BETWEEN_CHECKS: usize = 4 << 20;

/// How the cluster is looked at.
struct Look {
    program: PathBuf,
    address: SocketAddr,
    span: Duration,
}

impl Look {
    fn start(&self) -> Result<Running> {
        let mut command = Command::new(&self.program);
        command
            .args(["--json", "diagnose", "--attach", &self.address.to_string()])
            .args(["--for", &show_duration(self.span)])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().context("cannot start the program again")?;
        Ok(Running(child))
    }
}

/// A look that goes on; it ends with whoever waits for it.
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> Result<bool> {
        let Some(status) = self.0.try_wait()? else {
            return Ok(false);
        };
        ensure!(status.success(), "the look failed: {status}");
        Ok(true)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}
