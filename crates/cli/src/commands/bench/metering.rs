//! `embar bench metering`: measures what the stage timers cost, and what it costs to be looked at.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::publish::{create_topic, open};
use embar_bench::report::{SeriesReport, series};
use embar_client::{Acks, Admin, Publisher, serve_profiles};
use embar_console::connect::Connector;
use embar_console::size::Size;
use embar_meter::experiment::{Comparison, Experiment, Outcome, Sample};
use embar_meter::random::filler;
use embar_readings::process::{ThreadReading, threads};
use embar_supervise::work::Abort;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::CommonArgs;
use crate::context::Context;

/// Bytes of a slice: a tenth of a second.
const SLICE: u64 = 256 << 20;
/// The same where looks are a tenth of a second apart.
const SLICE_LOOKED_AT: u64 = 2 << 30;
/// Slices are to be longer than it takes until brokers are asked again.
const SLICE_LEAST: Duration = Duration::from_millis(300);
/// How long a look lasts, at most; then another one begins.
const LOOKS_FOR: &str = "720m";
/// Whether it has begun is looked at so often.
const START_LOOK_EVERY: Duration = Duration::from_millis(1);

/// What the stage timers cost, or to be looked at: many slices with and without, in turn
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench metering                       600 pairs of 256 MiB: some 90 s
  embar bench metering -m 64 --pairs 200     quicker, with a wider interval
  embar bench metering --attached            what `embar diagnose --attach` costs: some 15 minutes
  embar bench metering --json

One cluster and one publisher serve the whole run; between slices the timers of all of them are
switched. Slices are short so that there can be many: what the machine does besides hits both
kinds alike. A slice ends with its last acknowledgement.

With --attached the timers stay on, and a process of its own looks at the cluster and its publisher
as `embar diagnose --attach` does. In one slice of each pair it stands still. What a look costs at
its start and its end is no part of that: `embar diagnose --attach` says what it took in all.

JSON, one object: config; series[] with the rates of both kinds in MiB/s; metering_cost with the
ratio on/off (looked at/alone), its interval, the verdict, and the loss with its 95 % upper bound")]
pub struct MeteringArgs {
    /// Bytes of each slice [default: 256MiB, or 2GiB with --attached]
    #[arg(short, long, value_name = "SIZE")]
    size: Option<Size>,
    /// Slices of each kind
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,
    /// Measure what it costs to be looked at
    #[arg(long)]
    attached: bool,
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
    let size = match (args.size, args.attached) {
        (Some(size), _) => size.0,
        (None, true) => SLICE_LOOKED_AT,
        (None, false) => SLICE,
    };
    let mut plan = args.common.plan(size, Acks::Readable, Metering::On)?;
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
        look: args.attached.then(|| Look {
            program: context.work.program.clone(),
            address: private.cluster.head(),
        }),
    };
    let outcome = private
        .cluster
        .run("bench-metering", move |abort| slices.run(abort))?;
    private.stop();
    if args.attached {
        let mib = plan.total_bytes as f64 / f64::from(1 << 20);
        let slice = Duration::from_secs_f64(mib / outcome.series(0).median());
        if slice < SLICE_LEAST {
            context.work.note(format_args!(
                "slices take {} ms, and brokers are asked each {} ms: most are not looked at; choose a larger --size",
                slice.as_millis(),
                SLICE_LEAST.as_millis()
            ));
        }
    }
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
                let mut running = look.start(abort)?;
                experiment.run(|index, _| {
                    running.look(index == 1, abort)?;
                    self.slice(&publisher, abort).map(Sample::from)
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
}

/// How the cluster is looked at.
struct Look {
    program: PathBuf,
    address: SocketAddr,
}

impl Look {
    /// Starts a look that lasts for longer than anybody measures. It ends with this thread, also while it stands still.
    fn start(&self, abort: &Abort) -> Result<Running<'_>> {
        let mut command = Command::new(&self.program);
        command
            .args(["--json", "diagnose", "--attach", &self.address.to_string()])
            .args(["--for", LOOKS_FOR])
            .args(["--kill-with-parent", &process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().context("cannot start the program again")?;
        let mut running = Running { child, look: self };
        // It asks brokers once it is tied to this thread: stopped before, it would outlast it.
        let asks = |it: &ThreadReading| it.name == "embar-admin";
        while !threads(running.child.id())?.iter().any(asks) {
            if let Some(status) = running.child.try_wait()? {
                bail!("the look has ended: {status}");
            }
            abort.check()?;
            thread::sleep(START_LOOK_EVERY);
        }
        Ok(running)
    }
}

/// A look that goes on; it ends with whoever waits for it.
struct Running<'a> {
    child: Child,
    look: &'a Look,
}

impl Running<'_> {
    /// Lets it look, or stand still. Another one goes on where it has come to its end.
    fn look(&mut self, looks: bool, abort: &Abort) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) if status.success() => *self = self.look.start(abort)?,
            Some(status) => bail!("the look has ended: {status}"),
            None => {}
        }
        let signal = match looks {
            true => Signal::CONT,
            false => Signal::STOP,
        };
        kill_process(Pid::from_child(&self.child), signal).context("cannot stop the look")
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to do.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
