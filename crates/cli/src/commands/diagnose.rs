//! `embar diagnose`: names what limits a pipeline, and tries the remedy.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use embar_bench::diagnose::attach::look;
use embar_bench::diagnose::inject::Fault;
use embar_bench::diagnose::matrix::{MatrixPlan, measure};
use embar_bench::diagnose::network::{Network, run_inside};
use embar_bench::diagnose::plan::{LoadPlan, LoadSettings};
use embar_bench::diagnose::report::Report;
use embar_bench::diagnose::run::examine;
use embar_bench::diagnose::verify::{Trials, Tried, verify};
use embar_bench::plan::Metering;
use embar_bench::private_cluster::sweep;
use embar_client::{Acks, Transport};
use embar_console::connect::Connector;
use embar_console::size::{parse_duration, parse_span};
use embar_diagnose::observed::Flow;
use embar_diagnose::{Diagnosis, Observed, diagnose};
use embar_meter::experiment::too_few;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::bench::LoadArgs;
use crate::connect::DEFAULT_BOOTSTRAP;
use crate::context::Context;
use crate::exit;

mod redis;
mod session;

/// Bytes of a trial mean nothing here: a load runs as long as it is looked at.
const ANY_SIZE: u64 = 1 << 30;

/// Name what limits a pipeline, with the numbers that say so, and try the remedy
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  embar diagnose                                         a load of our own, as fast as it goes
  embar diagnose --flow read
  embar diagnose --inject small-rcvbuf=43690 --verify    a fault on purpose, and its remedy
  embar diagnose --inject cpu-hog=2
  embar diagnose --attach                                the cluster that runs, and its clients
  embar diagnose --attach 10.0.0.7:9400 --for 10s
  embar diagnose --save seen.json; embar diagnose --from seen.json
  embar diagnose --matrix 40                             how often it names what was injected
  embar diagnose --matrix 4 --verify                     how often its remedies help
  embar diagnose redis                                   callers of Redis, and its servers
  embar diagnose session                                 message sessions

It starts a cluster of its own, as the benches do, and looks at it with the kernel's readings, the
stages that brokers and clients time, and what a page fault and a system call cost here. With
--attach it looks at a cluster that runs, and at the threads and connections of the brokers and
clients that are this user's (of root: anybody's) and on this machine; they notice nothing. Each
finding has the numbers that say so, a confidence, the most that could be gained without its
cause, and a remedy. It names: application-too-slow, benchmark-itself, copy-bound-sender,
too-few-client-threads, receiver-cpu-bound, hot-lane, hot-broker, more-threads-than-cores,
receive-window-too-small, kernel-buffer-maxima, send-buffer-too-small, small-reads, small-writes,
batches-too-small, linger-too-long, too-few-in-flight, slow-subscriber, sequencer-bound, log-full,
cold-memory, disk-bound, processors-taken-by-others, processor-quota, network-loss, network-delay,
network-rate-limit; and machine-wall and nothing-found, which are no faults.

With --verify the remedy is applied in trials that alternate with trials without it; a finding
whose remedy does not help is withdrawn. cpu-quota needs root; net-rate, net-delay and net-loss
need root, or a user who may make namespaces. --from reads what --save wrote, or what --json
printed.

JSON, one object: of, injected[], bytes_per_s, limits (uses[] with part, share, without_processor),
findings[] with cause, part, evidence[] (what, value, unit), confidence (0 to 1), gain_at_most
(0.2 is 20 % more), remedy (text, change), verified (null, or ratio with its interval, verdict,
pairs, as_predicted, others, outcome: helped, did-not-help or not-shown), missing[] (what, why),
observed (all that was looked at; over_time[] with seconds, per_s of each step); look_cpu_s with
--attach (processor time that the look took). With --matrix: runs, rows[] with injected, options,
expected[], first (how often each cause came first), right, among_three, bytes_per_s, gain_at_most
(the median said where a right cause came first, or was tried), gained (what the rate is more
without the fault, where that is known), outcomes (how often each came of a remedy that was tried),
as_predicted (how often the rate with it was within a factor of 1.5 of the one that was said to be
possible)
"
)]
pub struct DiagnoseArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Which way messages go
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Way::Publish)]
    flow: Way,
    /// How long to look
    #[arg(long = "for", value_name = "TIME", default_value = "4s", value_parser = parse_span)]
    span: Duration,
    /// How long the load runs before
    #[arg(long, value_name = "TIME", default_value = "1500ms", value_parser = parse_duration)]
    warm_up: Duration,
    /// Look at a cluster that runs: the address of any broker [default: EMBAR_BOOTSTRAP, or 127.0.0.1:9400]
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, require_equals = false, conflicts_with_all = of_one_run(&["warm_up", "matrix", "from"], &["save"]))]
    attach: Option<Option<String>>,
    /// Be killed when the thread ends by which this process, of this id, started us: it may stop us on purpose
    #[arg(long, hide = true, value_name = "PID", requires = "attach")]
    kill_with_parent: Option<i32>,
    /// Inject a fault; may be given several times. An unknown name lists those that there are
    #[arg(long, value_name = "FAULT=VALUE")]
    inject: Vec<Fault>,
    #[command(flatten)]
    remedies: RemedyArgs,
    /// Also write what was seen to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Diagnose what such a file says, instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = of_one_run(&["span", "warm_up", "matrix", "kill_with_parent"], &[]))]
    from: Option<PathBuf>,
    /// Inject each fault in turn, so many times, and count how often it is named; with --verify those that a setting undoes, and what came of it
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u64).range(1..=10_000), conflicts_with_all = of_one_run(&["from"], &["verify", "pairs"]))]
    matrix: Option<u64>,
    #[command(flatten)]
    load: LoadArgs,
}

/// How remedies are tried.
#[derive(Args, Debug)]
struct RemedyArgs {
    /// Try the remedies of the first findings, each beside what runs as it is, by turns
    #[arg(long)]
    verify: bool,
    /// Pairs of trials for each remedy
    #[arg(long, value_name = "N", default_value_t = 8, requires = "verify")]
    pairs: usize,
    /// Findings whose remedies are tried
    #[arg(long, value_name = "N", default_value_t = 1, requires = "verify")]
    remedies: usize,
}

impl RemedyArgs {
    /// Refuses fewer pairs than a verdict takes.
    fn check(&self) -> Result<()> {
        match too_few(self.pairs).filter(|_| self.verify) {
            Some(too_few) => Err(exit::usage(format!("--pairs: {too_few}"))),
            None => Ok(()),
        }
    }

    /// Tries them, if that was asked for. Where that fails, what was found before is still to be shown.
    fn try_on(
        &self,
        diagnosis: &mut Diagnosis,
        load: &impl Tried,
        context: &Context,
    ) -> Result<()> {
        if !self.verify {
            return Ok(());
        }
        let trials = Trials {
            pairs: self.pairs,
            findings: self.remedies,
        };
        verify(diagnosis, load, trials, &context.work)
    }
}

/// What else can be diagnosed.
#[derive(Subcommand, Debug)]
enum What {
    Redis(Box<redis::RedisArgs>),
    Session(session::SessionArgs),
}

/// The options that say what one run is like, but for some, and these others: whoever runs none, or many, cannot heed them.
fn of_one_run(others: &[&'static str], but: &[&'static str]) -> Vec<&'static str> {
    let own = ["flow", "inject", "verify", "pairs", "remedies", "save"];
    let mut all = [&own, &LoadArgs::IDS[..], others].concat();
    all.retain(|it| !but.contains(it));
    all
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// A publisher publishes
    Publish,
    /// A subscriber reads what is there, again and again
    Read,
    /// A publisher publishes, and a subscriber reads what comes
    Both,
}

impl From<Way> for Flow {
    fn from(way: Way) -> Self {
        match way {
            Way::Publish => Self::Publish,
            Way::Read => Self::Read,
            Way::Both => Self::Both,
        }
    }
}

/// Measures, and says what limits.
pub fn run(args: &DiagnoseArgs, context: &Context) -> Result<()> {
    match &args.what {
        Some(What::Redis(args)) => return redis::run(args, context),
        Some(What::Session(args)) => return session::run(args, context),
        None => {}
    }
    if let Some(path) = &args.from {
        let observed: Observed = saved(path, "embar diagnose")?;
        let diagnosis = diagnose(&observed);
        let of = path.display().to_string();
        let report = report(&of, &[], &observed, &diagnosis);
        return context.output.report(&report, &report);
    }
    if let Some(address) = &args.attach {
        args.kill_with_parent.map_or(Ok(()), kill_with)?;
        let address = address.clone().unwrap_or_else(default_bootstrap);
        let connector = Connector::new(address.as_str(), context.work.progress.clone());
        // By TCP, whose other end says which process a broker is.
        let admin = connector.by(Transport::Tcp).admin()?;
        let observed = look(&admin, args.span, &context.work.interrupt)?.observed;
        save(args.save.as_deref(), &observed)?;
        let of = format!("the cluster at {address}");
        let diagnosis = diagnose(&observed);
        let report = Report {
            look_cpu_s: Some(processor_time().as_secs_f64()),
            ..report(&of, &[], &observed, &diagnosis)
        };
        return context.output.report(&report, &report);
    }
    args.remedies.check()?;
    if let Some(runs) = args.matrix {
        let matrix = measure(
            MatrixPlan {
                runs: usize::try_from(runs)?,
                span: args.span,
                warm_up: args.warm_up,
                pairs: args.remedies.verify.then_some(args.remedies.pairs),
            },
            &context.work,
        )?;
        return context.output.report(&matrix, &matrix);
    }
    let plan = LoadPlan {
        bench: args.load.plan(ANY_SIZE, Acks::Readable, Metering::On)?,
        flow: args.flow.into(),
        span: args.span,
        warm_up: args.warm_up,
        settings: LoadSettings::default(),
        faults: Vec::new(),
    }
    .with_faults(args.inject.clone())?;
    enter(Fault::network(&args.inject), context)?;
    sweep(&context.work);
    let observed = examine(&plan, &context.work)?;
    save(args.save.as_deref(), &observed)?;
    let mut diagnosis = diagnose(&observed);
    let tried = args.remedies.try_on(&mut diagnosis, &plan, context);
    let report = report("a load of our own", &args.inject, &observed, &diagnosis);
    context.output.report(&report, &report)?;
    tried
}

/// Goes on where the network is as bad as that. Elsewhere the process becomes the program once more, in such a one.
fn enter(network: Option<Network>, context: &Context) -> Result<()> {
    if let Some(network) = network
        && !network.make_if_inside()?
    {
        context.work.interrupt.check()?;
        run_inside(&context.work.program, env::args_os().skip(1))?;
    }
    Ok(())
}

fn default_bootstrap() -> String {
    env::var("EMBAR_BOOTSTRAP").unwrap_or_else(|_| DEFAULT_BOOTSTRAP.into())
}

/// Reads what [`save`] wrote for this command, or what it printed with `--json`.
fn saved<T: DeserializeOwned>(path: &Path, command: &str) -> Result<T> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parsed = serde_json::from_str(&text).and_then(|mut saved: Value| {
        // What --json printed has what was seen in it.
        if let Some(observed) = saved.get_mut("observed") {
            saved = observed.take();
        }
        // Sums of such numbers are none.
        match largest(&saved) <= NUMBER_MAX {
            true => serde_json::from_value(saved),
            false => Err(serde::de::Error::custom(
                "it has a number beyond all reason",
            )),
        }
    });
    parsed.map_err(|error| {
        anyhow::Error::msg(format!(
            "{} is not what `{command} --save` or `--json` writes: {error}",
            path.display()
        ))
    })
}

/// No look has seen as much of anything.
const NUMBER_MAX: f64 = 1e20;

/// The largest number of a document, its sign aside.
fn largest(of: &Value) -> f64 {
    match of {
        Value::Number(number) => number.as_f64().map_or(f64::INFINITY, f64::abs),
        Value::Array(all) => all.iter().map(largest).fold(0.0, f64::max),
        Value::Object(all) => all.values().map(largest).fold(0.0, f64::max),
        _ => 0.0,
    }
}

fn save(path: Option<&Path>, observed: &impl Serialize) -> Result<()> {
    let Some(path) = path else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(observed)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn report<'a>(
    of: &str,
    injected: &[Fault],
    observed: &'a Observed,
    diagnosis: &'a Diagnosis,
) -> Report<'a> {
    Report {
        of: of.to_owned(),
        injected: injected.iter().map(Fault::to_string).collect(),
        bytes_per_s: observed.bytes_per_s(),
        diagnosis,
        observed,
        look_cpu_s: None,
    }
}

/// Ties this process to the one that started it.
fn kill_with(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot end with the parent process")?;
    let is_there = getppid().is_some_and(|it| it.as_raw_pid() == parent);
    ensure!(is_there, "the process that started this one is gone");
    Ok(())
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}
