//! `embar bench session`: measures messages over sessions beside bare sockets. `embar bench session wall` measures bare
//! sockets alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use embar_bench::experiment::trial_failed;
use embar_bench::session::measure::SessionBench;
use embar_bench::session::payloads::Payload;
use embar_bench::session::placement::Placement;
use embar_bench::session::plan::{Phase, ReceiveMode, SendMode, SessionPlan, Test, Transport};
use embar_bench::session::report::{Collected, SessionReport};
use embar_bench::session::run::SessionRun;
use embar_bench::session::summary::WALL;
use embar_console::size::{Size, parse_duration};
use embar_meter::experiment::{Experiment, Sample};

use super::session_drill::{self, DrillArgs};
use crate::context::Context;
use crate::exit;
use crate::output::raw_line;

/// Messages there and back over sessions, in four ways, beside bare sockets
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  embar bench session                                   four phases and the wall, blocking
  embar bench session --spin-us 50                      the same, looking for bytes before sleeping
  embar bench session --one-way --iterations 5000000 --send zerocopy
  embar bench session --half-load --sessions 1000 --payload 4KiB..16KiB --iterations 1000
  embar bench session --send zerocopy --receive zerocopy --in-flight 64 --log sessions.md
  embar bench session serve --listen 10.0.0.7:9500      on one host, and on another:
  embar bench session --connect 10.0.0.7:9500
  embar bench session --attack silent,churn             what honest sessions notice of attacks
  embar bench session --attack all --sessions 4 --runs 3
  embar bench session --idle-sessions 10000             what sessions take that do nothing

The bench is the classic latency test: a message leaves when the echo of the one before it has
arrived. Server and client are threads of this process; with --connect only the client is. Phases:
  baseline           packet objects, copied into and out of the session
  scatter-gather     packet objects, sent from where they are
  zero-copy send     encoded straight into the session's ring
  zero-copy receive  also read from the ring
They run interleaved, with the same bytes over bare sockets, the wall, among them, and in another
order every round. A difference counts only if the interval of the ratios excludes chance.

Every message is checked and accounted for. One that is not back within --timeout is lost, also
if it comes later; its latency counts as long as it was waited for. Any loss ends in exit code 4.

JSON, one object: config; runs[] with phase, run, time, iterations, avg_ns, p50_ns, p99_ns,
p999_ns, max_ns, round_trips_per_s, messages_per_s, mb_per_s (MiB of payload), lost, wrong,
stalls[] {session, sequence, ms, ended}, session_p50_ns[] and session_p99_ns[] of several
sessions; median, by phase, with the same names and interval; wall with runs[] and median;
comparisons[] with metric, baseline, changed, ratio, verdict; memory; lost, wrong

--attack is a drill: an attacker in a process of its own attacks a server with the limits that each
has at first. --sessions honest ones, at least 1, do round trips all the time, and newcomers come
and go. They have the address 127.0.0.1, and the attacker others. --runs rounds of each attack are
--duration long without, and as long with it. It ends in exit code 4 if an honest peer lost a
message, a session or a connection, and in 1 if round trips took longer than --max-ratio allows.
Of --connections, attackers that greet have 1,000 at most, and those that flood 16.

JSON of a drill, one object: config; attacks[] with attack, connections, rounds[] {before, building,
during, attacker, server}, after, harm, p50_ratio, p99_ratio, memory_per_connection, counted, harms;
is_harmed. JSON of idle sessions: sessions, empty_bytes, open_bytes_each, used_bytes_each"
)]
pub struct SessionArgs {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    drill: DrillArgs,
    /// How messages are sent [default: each way in turn]
    #[arg(long, value_name = "MODE", value_enum)]
    send: Option<SendMode>,
    /// How messages are received [default: each way in turn]
    #[arg(long, value_name = "MODE", value_enum)]
    receive: Option<ReceiveMode>,
    /// Messages per second of all sessions together, sent when they are due, whatever came back
    #[arg(long, value_name = "N", conflicts_with_all = ["one_way", "half_load"])]
    rate: Option<u64>,
    /// Find the highest rate first, then measure at half of it
    #[arg(long, conflicts_with = "one_way")]
    half_load: bool,
    /// A server in another process, of `bench session serve`
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
}

#[derive(Subcommand, Debug)]
enum Other {
    Wall(WallArgs),
    Serve(super::session_serve::ServeArgs),
}

/// Measure bare sockets alone, in the same mode and threads
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench session wall
  embar bench session wall --spin-us 50 --runs 5 --json

Output as that of `bench session`, whose --help says what it means.")]
struct WallArgs {
    #[command(flatten)]
    options: Options,
}

/// What phases and the wall have in common.
#[derive(Args, Debug)]
struct Options {
    /// Messages of each session in each run
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    iterations: u64,
    /// Bytes of the payload of each message; with A..B, all sizes from A to B, evenly spread
    #[arg(long, value_name = "SIZE", default_value = "64")]
    payload: Payload,
    /// Messages under way on each session
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: u32,
    /// Sessions at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: u32,
    /// Runs to measure, of each phase; a verdict takes at least 8
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: usize,
    /// Runs before them to throw away: the first is cold
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Microseconds a thread looks for bytes before it sleeps; 0 for not at all
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    spin_us: u64,
    /// What the sessions run on
    #[arg(long, value_name = "KIND", default_value = "tcp", value_enum)]
    transport: Transport,
    /// Threads of the server, and as many of the client
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// On which processors the threads of server and client run
    #[arg(long, value_name = "WHERE", default_value = "apart", value_enum)]
    placement: Placement,
    /// Bytes of each ring of a session [default: 256KiB; 64KiB of more than 100 sessions]
    #[arg(long, value_name = "SIZE")]
    ring: Option<Size>,
    /// Send one way as fast as possible, and count
    #[arg(long)]
    one_way: bool,
    /// An echo that takes longer is lost; after five times as long without any, a run is given up
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    /// A silence that takes longer is reported as a stall
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    stall: Duration,
    /// Append to this results log, in Markdown
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print a line of comma-separated values for each run, and nothing else
    #[arg(long)]
    csv: bool,
}

impl Options {
    fn plan(&self, args: Option<&SessionArgs>) -> Result<SessionPlan> {
        let test = match args {
            _ if self.one_way => Test::OneWay,
            Some(args) if args.half_load => Test::HalfLoad,
            Some(args) if args.rate.is_some() => Test::Rate,
            _ => Test::Latency,
        };
        let ring = self.ring.map(|size| exit::to_u32(size, "--ring"));
        Ok(SessionPlan {
            test,
            iterations: self.iterations,
            payload: self.payload,
            in_flight: self.in_flight,
            sessions: self.sessions,
            runs: self.runs,
            warmup: self.warmup,
            spin_us: self.spin_us,
            transport: self.transport,
            threads: self.threads,
            placement: self.placement,
            rate: args.and_then(|args| args.rate),
            ring: ring.transpose()?,
            timeout: self.timeout,
            stall: self.stall,
            connect: args.and_then(|args| args.connect.clone()),
        })
    }
}

/// Runs what was asked for.
pub fn run(args: &SessionArgs, context: &Context) -> Result<()> {
    match &args.other {
        Some(Other::Wall(args)) => bench(&args.options, args.options.plan(None)?, &[], context),
        Some(Other::Serve(args)) => super::session_serve::run(args, context),
        None if args.drill.is_asked_for() => {
            let options = &args.options;
            let honest = session_drill::Honest {
                sessions: options.sessions,
                payload: options.payload,
                runs: options.runs,
                threads: options.threads,
                timeout: options.timeout,
            };
            session_drill::run(&args.drill, honest, context)
        }
        None => {
            let phases = Phase::chosen(args.send, args.receive);
            let plan = args.options.plan(Some(args))?;
            bench(&args.options, plan, &phases, context)
        }
    }
}

fn bench(options: &Options, plan: SessionPlan, phases: &[Phase], context: &Context) -> Result<()> {
    plan.validate()?;
    if options.csv && context.output.is_json() {
        return Err(exit::usage(
            "--csv and --json exclude each other: leave one out",
        ));
    }
    if !options.csv {
        let what = format!("session: {}", plan.describe());
        context.output.say(what)?;
    }
    let names: Vec<&'static str> = phases.iter().map(|phase| phase.name()).collect();
    let (plan, collected) = collect(plan, phases, context)?;
    let report = SessionReport::of(&plan, &names, &collected);
    if let Some(path) = &options.log {
        log(&report, path, context)?;
    }
    if options.csv {
        raw_line(&report.csv().trim_end())?;
    } else {
        let paint = context.output.paint();
        context.output.report(&report, report.text(paint))?;
    }
    if report.is_sound() {
        return Ok(());
    }
    let early = report.ended_early.iter().map(|why| format!("; {why}"));
    Err(exit::data(report.verdict() + &early.collect::<String>()))
}

fn log(report: &SessionReport<'_>, path: &Path, context: &Context) -> Result<()> {
    report.append_to(path)?;
    context.note(format_args!("logged in {}", path.display()));
    Ok(())
}

/// Measures. A run that cannot go on ends the bench, and what there is until then is reported.
fn collect(
    mut plan: SessionPlan,
    phases: &[Phase],
    context: &Context,
) -> Result<(SessionPlan, Collected)> {
    let mut collected = Collected::default();
    if plan.test == Test::HalfLoad {
        let phase = *phases.last().expect("the wall has no half load");
        let highest = SessionBench::highest_rate(&plan, phase, &context.work)?;
        plan = plan.at((highest / 2.0).max(1.0) as u64);
        collected.max_messages_per_s = Some(highest);
    }
    let bench = SessionBench::new(&plan, phases, &context.work)?;
    collected.no_wall = bench.no_wall();
    if phases.is_empty()
        && let Some(why) = collected.no_wall
    {
        return Err(exit::usage(why));
    }
    let walls = usize::from(collected.no_wall.is_none());
    let names = std::iter::repeat_n(WALL, walls).chain(phases.iter().map(|phase| phase.name()));
    let names: Vec<&'static str> = names.collect();
    let outcome = Experiment::new(names.iter().copied())
        .warmup(plan.warmup)
        .trials(plan.runs)
        .rotating()
        .run(|index, round| {
            // A warm-up is thrown away, but not what went wrong in it.
            let number = if round.warmup { 0 } else { round.index + 1 };
            let run = match index.checked_sub(walls) {
                None => bench.wall(number)?,
                Some(phase) => bench.run(phases[phase], number)?,
            };
            show_progress(context, names[index], &round.to_string(), &run);
            let ended_early = run.ended_early.clone();
            if !round.warmup || !run.is_sound() {
                let kind = if index < walls {
                    &mut collected.wall
                } else {
                    &mut collected.runs
                };
                kind.push(run);
            }
            match ended_early {
                Some(why) => Err(exit::data(why)),
                None => Ok(Sample::from(1.0)),
            }
        });
    if let Err(error) = outcome.map_err(trial_failed) {
        let lost = collected.runs.iter().any(|run| run.ended_early.is_some());
        if !lost {
            return Err(error);
        }
        collected.ended_early = Some(exit::explain(&error));
    }
    collected.memory = bench.memory();
    Ok((plan, collected))
}

/// Progress for those who wait.
fn show_progress(context: &Context, name: &str, round: &str, run: &SessionRun) {
    let latency = run.latency.map_or_else(String::new, |latency| {
        format!(
            "P50 {:.2} us, P99 {:.2} us, ",
            latency.p50_ns / 1e3,
            latency.p99_ns / 1e3
        )
    });
    let lost = match run.lost {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    context.note(format_args!(
        "{name}, {round}: {latency}{:.0}/s{lost}",
        run.messages_per_s
    ));
}
