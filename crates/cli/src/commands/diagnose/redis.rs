//! `embar diagnose redis`: names what limits callers of Redis, and tries the remedy.

use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_bench::diagnose::redis::inject::Fault;
use embar_bench::diagnose::redis::plan::{RedisLoad, Servers};
use embar_bench::diagnose::redis::report::RedisReport;
use embar_bench::diagnose::redis::run::{examine, look};
use embar_bench::redis::plan::{Driver, Habits, Operation, RedisPlan};
use embar_bench::redis::work::{Mix, Shape};
use embar_console::size::{Size, parse_duration, parse_span};
use embar_diagnose::Diagnosis;
use embar_diagnose::redis::{Observed, diagnose};
use embar_redis::Config;
use embar_report::secrets::address;

use super::super::bench::redis::{cluster, config, standalone};
use super::{RemedyArgs, save, saved};
use crate::context::Context;
use crate::exit;

/// Name what limits callers of Redis: their client, the servers, or the way between
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar diagnose redis                                    callers and three servers of our own
  embar diagnose redis --callers 256 --threads 1
  embar diagnose redis --cluster 10.0.0.7:7000            callers of ours, and a cluster that runs
  embar diagnose redis --server 10.0.0.7:7000 --for 10s   only look at a cluster that others use
  embar diagnose redis --server rediss://user:secret@10.0.0.7:7000
  embar diagnose redis --inject hot-key=90                a fault on purpose
  embar diagnose redis --inject full-pipe=4 --verify      and its remedy
  embar diagnose redis --save seen.json; embar diagnose redis --from seen.json

It starts servers of its own (redis-server), or calls those that are named, over keys of decimal
numbers as `embar bench redis` does: --keyspace of them are written first, and are left there. It
looks at what the client counts of each node, at what servers say of themselves (INFO, SLOWLOG GET,
CLUSTER SLOTS: the difference of two looks), at PINGs on connections of their own, and at the
threads of callers and servers on this machine. With --server it calls nobody: it asks the servers
that serve slots, and they notice a few questions. What they do not tell is said.

It names: slow-node, hot-key, hot-slot, big-value, blocked-server, server-cpu-bound, full-pipe,
tls-cost, caller-runtime-busy, application-too-slow, too-few-callers, processors-taken-by-others,
processor-quota; and machine-wall and nothing-found, which are no faults. With --server only what
servers know: not what their callers do.

JSON, one object: of, injected[], operations_per_s; limits, findings[] and missing[] as of `embar
diagnose`; observed (all that was looked at: seconds, operations, errors, machine, client, nodes[])
")]
pub struct RedisArgs {
    /// How long to look
    #[arg(long = "for", value_name = "TIME", default_value = "4s", value_parser = parse_span)]
    span: Duration,
    /// How long callers work before
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    warm_up: Duration,
    /// Only look at this server, or the cluster that it belongs to: an address or a URL
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = of_calls(&[]))]
    server: Option<String>,
    /// Call a cluster that runs: some of its nodes
    #[arg(long, value_name = "HOST:PORT[,..]", conflicts_with_all = ["standalone", "url", "nodes"])]
    cluster: Option<String>,
    /// Call a server that runs and is no cluster
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["url", "nodes"])]
    standalone: Option<String>,
    /// Call either, with all options of the client: redis://user:password@host:port/db?option=value
    #[arg(long, value_name = "URL", conflicts_with = "nodes")]
    url: Option<String>,
    /// Servers of our own; 1 is no cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Encrypt connections with servers of our own
    #[arg(long, conflicts_with_all = ["cluster", "standalone", "url"])]
    tls: bool,
    /// Inject a fault; may be given several times. An unknown name lists those that there are
    #[arg(long, value_name = "FAULT=VALUE")]
    inject: Vec<Fault>,
    #[command(flatten)]
    remedies: RemedyArgs,
    /// Also write what was seen to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Diagnose what such a file says, instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = of_calls(&["span", "server", "save"]))]
    from: Option<PathBuf>,
    #[command(flatten)]
    callers: CallerArgs,
}

/// The options that say who is called, how, and what is tried then, and these others: whoever calls nobody cannot heed them.
fn of_calls(others: &[&'static str]) -> Vec<&'static str> {
    let own = [
        "cluster",
        "standalone",
        "url",
        "nodes",
        "tls",
        "warm_up",
        "inject",
        "verify",
        "pairs",
        "remedies",
    ];
    [&own, &CallerArgs::IDS[..], others].concat()
}

/// What callers are like.
#[derive(Args, Debug)]
#[command(next_help_heading = "Callers")]
struct CallerArgs {
    /// Tasks that do one operation after the other
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    callers: u64,
    /// Threads on which they run [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// GETs to SETs
    #[arg(long, value_name = "GET:SET", default_value = "80:20")]
    mix: Mix,
    /// Operations of each pipeline; 1 for none
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pipeline: u64,
    /// Connections to each node [default: 1, or what the URL says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    mux_per_node: Option<u16>,
    /// Commands that a connection may have in flight [default: 4096, or what the URL says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_in_flight: Option<u32>,
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
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    keyspace: u64,
}

impl CallerArgs {
    /// All of them, as clap knows them.
    const IDS: [&str; 10] = [
        "callers",
        "threads",
        "mix",
        "pipeline",
        "mux_per_node",
        "max_in_flight",
        "driver",
        "key_size",
        "value_size",
        "keyspace",
    ];
}

impl RedisArgs {
    /// Servers that run already, if some are named.
    fn given(&self) -> Result<Option<Config>> {
        let url = match (&self.cluster, &self.standalone, &self.url) {
            (Some(nodes), ..) => cluster(nodes),
            (_, Some(server), _) => standalone(server),
            (.., Some(url)) => url.clone(),
            (None, None, None) => return Ok(None),
        };
        config(&url).map(Some)
    }

    fn plan(&self) -> Result<RedisLoad> {
        let processors = || available_parallelism().map_or(1, usize::from);
        let (given, of) = (self.given()?, &self.callers);
        let usual = given.as_ref().map_or(1, |it| it.mux_per_node);
        let bench = RedisPlan {
            operations: vec![Operation::Mixed],
            mix: of.mix,
            shape: Shape {
                key_size: exit::to_u32(of.key_size, "--key-size")? as usize,
                value_size: exit::to_u32(of.value_size, "--value-size")? as usize,
                keyspace: of.keyspace,
            },
            duration: self.span,
            warmup: self.warm_up,
            runs: 1,
            callers: of.callers,
            blocking_threads: 0,
            threads: of.threads.map_or_else(processors, usize::from),
            pipeline: of.pipeline,
            mux_per_node: of.mux_per_node.map_or(usual, usize::from),
            driver: of.driver,
            owned_values: false,
            load: true,
            profile: false,
            server: self.of(),
            habits: Habits::default(),
        };
        let plan = RedisLoad {
            bench,
            operation: Operation::Mixed,
            servers: match given {
                Some(config) => Servers::Given(Box::new(config)),
                None => Servers::Own(self.nodes.into()),
            },
            span: self.span,
            max_in_flight: of.max_in_flight.map(|it| it as usize),
            by_tls: self.tls,
            faults: Vec::new(),
        };
        Ok(plan.with_faults(self.inject.clone())?)
    }

    /// What is looked at, without secrets.
    fn of(&self) -> String {
        match (&self.cluster, &self.standalone, &self.url) {
            (Some(nodes), ..) => format!("callers of the cluster {}", address(nodes)),
            (_, Some(server), _) => format!("callers of the server {}", address(server)),
            (.., Some(_)) => "callers of the servers of a URL".to_owned(),
            (None, None, None) => "callers and servers of our own".to_owned(),
        }
    }
}

/// Measures, and says what limits.
pub fn run(args: &RedisArgs, context: &Context) -> Result<()> {
    if let Some(path) = &args.from {
        let observed: Observed = saved(path, "embar diagnose redis")?;
        let of = path.display().to_string();
        return show(of, &[], &observed, &diagnose(&observed), context);
    }
    if let Some(server) = &args.server {
        let is_url = server.contains("://") || server.starts_with("unix:");
        let url = if is_url {
            server.clone()
        } else {
            standalone(server)
        };
        let config = config(&url)?;
        let seeds: Vec<String> = config.seeds.iter().map(ToString::to_string).collect();
        let observed = look(&config, args.span, &context.work)?;
        save(args.save.as_deref(), &observed)?;
        let of = format!("the servers at {}", seeds.join(","));
        return show(of, &[], &observed, &diagnose(&observed), context);
    }
    args.remedies.check()?;
    let plan = args.plan()?;
    let observed = examine(&plan, &context.work)?;
    save(args.save.as_deref(), &observed)?;
    let mut diagnosis = diagnose(&observed);
    let tried = args.remedies.try_on(&mut diagnosis, &plan, context);
    show(args.of(), &args.inject, &observed, &diagnosis, context)?;
    tried
}

fn show(
    of: String,
    injected: &[Fault],
    observed: &Observed,
    diagnosis: &Diagnosis,
    context: &Context,
) -> Result<()> {
    let report = RedisReport {
        of,
        injected: injected.iter().map(Fault::to_string).collect(),
        operations_per_s: observed.operations_per_s(),
        diagnosis,
        observed,
    };
    context.output.report(&report, format_args!("{report}"))
}
