//! `embar bench redis`: measures the Redis client against servers that run already.

use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use embar_bench::redis::figures::RedisRun;
use embar_bench::redis::measure::RedisBench;
use embar_bench::redis::plan::{Driver, Habits, Operations, RedisPlan};
use embar_bench::redis::report::RedisReport;
use embar_bench::redis::work::{Mix, Shape};
use embar_console::size::{Size, parse_duration};
use embar_redis::Config;
use embar_redis::config::Mode;

use crate::context::Context;
use crate::exit;

/// Operations per second, latency and cost of the Redis client
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench redis --operation all --duration 15 --callers 64 --cluster 127.0.0.1:7000
  embar bench redis --operation get --pipeline 32 --standalone 127.0.0.1:6379
  embar bench redis --operation mixed --mix 80:20 --runs 5 --cluster 127.0.0.1:7000,127.0.0.1:7001
  embar bench redis --callers 0 --blocking-threads 4 --driver thread --url redis://:pw@10.0.0.7/2

Keys are decimal numbers, filled up with zeros; --keyspace of them are written before anything is
measured, over what was there, and are left there. Every value that is read is checked.

A caller has one operation in flight, or one explicit pipeline of --pipeline operations, each of
which then takes as long as the pipeline. Errors and wrong values are no operations. A wrong value
ends in exit code 4, an operation that never succeeded in 1, a server that is not there in 3.
Values are looked at where they were received; --owned-values has them copied, as other clients do.

CPU is processor time of this process, user and kernel mode, for each operation, what the bench
itself does included. Replies by write and by read tell how many operations left, and came back,
in one call to the kernel.

--profile adds where the time went, and what was allocated there:
  Submit    the command's place in the send ring, and its reply slot
  Encode    its bytes, written into that place
  Send      calls to the kernel that send what has gathered
  Receive   looking for bytes and receiving them; with --driver thread that is not distinguished
            from waiting, and left out
  Parse     cutting bytes into replies
  Complete  waking callers, and reading the value out of the reply
It is time by the clock, which a busy machine makes longer. A pipeline is one command for each node
that takes part in it. Allocations are those of all threads, for each operation; what is outside the
stages is mostly that of the bench and its runtime. Profiling takes time itself: do not compare runs
with it to runs without.

JSON, one object: plan; operations[] with operation, runs, ops_per_s, ops_per_s_spread, hits,
misses, sets, errors, wrong, p50_ns, p99_ns, p999_ns, client_cpu_us_per_op, replies_per_write,
replies_per_read: medians of all runs, and sums of counts; runs[] with the same of each run, run,
seconds, operations, callers, max_ns, tasks and blocking_threads (apart, if there are threads),
first_error and profile: title, stages[] with name, total_ns, count, avg_ns, share, allocations,
allocated_bytes, allocations_per_op and allocated_bytes_per_op; these four again for the whole
process; operations and cpu_ns")]
pub struct RedisArgs {
    /// What callers do
    #[arg(long, value_name = "WHAT", default_value = "all", value_enum)]
    operation: Operations,
    #[command(flatten)]
    server: Server,
    /// Time of each run; a bare number is seconds
    #[arg(long, value_name = "TIME", default_value = "15", value_parser = parse_duration)]
    duration: Duration,
    /// Time before each run in which nothing is counted
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_duration)]
    warmup: Duration,
    /// Runs of each operation; medians and spread are printed of several
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: usize,
    /// Tasks that do one operation after the other
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    callers: u64,
    /// Threads that do the same and block; reported apart
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000))]
    blocking_threads: u64,
    /// Threads on which tasks run [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Operations of each pipeline; 1 for none
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pipeline: u64,
    /// Connections to each node [default: 1, or what the URL says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    mux_per_node: Option<u16>,
    /// How connections are served
    #[arg(long, value_name = "WHERE", default_value = "task", value_enum)]
    driver: Driver,
    /// Bytes of a key
    #[arg(long, value_name = "SIZE", default_value = "16")]
    key_size: Size,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "256")]
    value_size: Size,
    /// How many different keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keyspace: u64,
    /// GETs to SETs of mixed operations
    #[arg(long, value_name = "GET:SET", default_value = "80:20")]
    mix: Mix,
    /// How long an operation may take [default: 5s, or what the URL says]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Copy each value out of its reply
    #[arg(long)]
    owned_values: bool,
    /// Do not write the keys first
    #[arg(long)]
    no_load: bool,
    /// Tell where the time went and what was allocated, by stage
    #[arg(long)]
    profile: bool,
}

/// Who is asked.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Server {
    /// Some nodes of a cluster
    #[arg(long, value_name = "HOST:PORT[,..]")]
    cluster: Option<String>,
    /// A server that is no cluster
    #[arg(long, value_name = "HOST:PORT")]
    standalone: Option<String>,
    /// Either, with all options of the client: redis://user:password@host:port/db?option=value
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl Server {
    fn config(&self) -> Result<Config> {
        let url = match (&self.cluster, &self.standalone, &self.url) {
            (Some(nodes), ..) => cluster(nodes),
            (_, Some(server), _) => standalone(server),
            (.., Some(url)) => url.clone(),
            (None, None, None) => return Err(exit::usage("give --cluster, --standalone or --url")),
        };
        config(&url)
    }
}

/// The URL of a cluster with these nodes.
pub(in crate::commands) fn cluster(nodes: &str) -> String {
    format!("redis-cluster://{nodes}")
}

/// The URL of a server.
pub(in crate::commands) fn standalone(server: &str) -> String {
    format!("redis://{server}")
}

/// What a URL says.
pub(in crate::commands) fn config(url: &str) -> Result<Config> {
    Config::from_url(url).map_err(|error| exit::usage(error.to_string()))
}

impl RedisArgs {
    fn config(&self) -> Result<Config> {
        let mut config = self.server.config()?;
        if let Some(connections) = self.mux_per_node {
            config.mux_per_node = connections.into();
        }
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config
            .check()
            .map_err(|error| exit::usage(error.to_string()))?;
        Ok(config)
    }

    fn plan(&self, config: &Config) -> Result<RedisPlan> {
        let processors = || available_parallelism().map_or(1, usize::from);
        let mode = match config.mode == Mode::Cluster {
            true => "cluster",
            false => "server",
        };
        let seeds: Vec<String> = config.seeds.iter().map(ToString::to_string).collect();
        Ok(RedisPlan {
            operations: self.operation.each(),
            mix: self.mix,
            shape: Shape {
                key_size: exit::to_u32(self.key_size, "--key-size")? as usize,
                value_size: exit::to_u32(self.value_size, "--value-size")? as usize,
                keyspace: self.keyspace,
            },
            duration: self.duration,
            warmup: self.warmup,
            runs: self.runs,
            callers: self.callers,
            blocking_threads: self.blocking_threads,
            threads: self.threads.map_or_else(processors, usize::from),
            pipeline: self.pipeline,
            mux_per_node: config.mux_per_node,
            driver: self.driver,
            owned_values: self.owned_values,
            load: !self.no_load,
            profile: self.profile,
            server: format!("{mode} {}", seeds.join(",")),
            habits: Habits::default(),
        })
    }
}

/// Runs it.
pub fn run(args: &RedisArgs, context: &Context) -> Result<()> {
    let config = args.config()?;
    let plan = args.plan(&config)?;
    plan.validate()?;
    context
        .output
        .say(format_args!("redis: {}", plan.describe()))?;
    let runs = collect(&plan, config, context)?;
    let report = RedisReport::of(&plan, &runs);
    context.output.report(&report, report.text())?;
    for run in &runs {
        if let Some(error) = &run.first_error {
            let (name, errors) = (run.operation.name(), run.all.errors);
            context.note(format_args!(
                "{name}: {errors} error(s), the first: {error}"
            ));
        }
    }
    if report.wrong() > 0 {
        let wrong = report.wrong();
        return Err(exit::data(format!(
            "{wrong} value(s) were not those of their keys: does somebody else write to them, or did another bench, \
             with other sizes and --no-load?"
        )));
    }
    match report.all_failed() {
        None => Ok(()),
        Some((name, Some(why))) => Err(anyhow!("no {name} operation succeeded: {why}")),
        Some((name, None)) => Err(anyhow!(
            "no {name} operation ended in time: make --duration longer"
        )),
    }
}

fn collect(plan: &RedisPlan, config: Config, context: &Context) -> Result<Vec<RedisRun>> {
    let bench = RedisBench::new(plan, config, &context.work)?;
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        for operation in &plan.operations {
            let run = RedisRun::of(*operation, number, bench.run(*operation)?);
            context.note(run.describe());
            runs.push(run);
        }
    }
    Ok(runs)
}
