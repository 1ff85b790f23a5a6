//! `embar bench`: measures the log, sessions, the Redis client, and what the machine allows. Each bench has a file of
//! its own; the options that several share are here.

mod compare;
mod disk;
mod disk_wall;
mod e2e;
mod latency;
mod metering;
mod on_disks;
mod publish;
mod read;
mod recover;
pub(super) mod redis;
mod scale;
mod session;
mod session_drill;
mod session_serve;
mod walls;

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use embar_bench::plan::{BenchPlan, Metering, TOPIC, parse_order};
use embar_bench::private_cluster::sweep;
use embar_bench::wall::drive::WallPlan;
use embar_bench::wall::stream;
use embar_broker::ReceivePath;
use embar_client::{Acks, Transport};
use embar_console::context::Context as Work;
use embar_console::size::{Size, parse_duration};
use on_disks::OnDisks;
use serde::Serialize;

use crate::context::Context;
use crate::exit;

/// Measure publishing, reading, both at once, sessions, a Redis client, or the machine itself
#[derive(Args, Debug)]
#[command(arg_required_else_help = true, after_help = compare::HELP)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
    #[command(flatten)]
    compare: compare::CompareArgs,
}

#[derive(Subcommand, Debug)]
enum Bench {
    Publish(publish::PublishArgs),
    Read(read::ReadArgs),
    E2e(e2e::E2eArgs),
    Latency(latency::LatencyArgs),
    Walls(walls::WallsArgs),
    Disk(disk::DiskArgs),
    Recover(recover::RecoverArgs),
    Scale(scale::ScaleArgs),
    Metering(metering::MeteringArgs),
    Session(Box<session::SessionArgs>),
    Redis(Box<redis::RedisArgs>),
}

impl Bench {
    /// Its name on the command line.
    fn name(&self) -> &'static str {
        match self {
            Self::Publish(_) => "publish",
            Self::Read(_) => "read",
            Self::E2e(_) => "e2e",
            Self::Latency(_) => "latency",
            Self::Walls(_) => "walls",
            Self::Disk(_) => "disk",
            Self::Recover(_) => "recover",
            Self::Scale(_) => "scale",
            Self::Metering(_) => "metering",
            Self::Session(_) => "session",
            Self::Redis(_) => "redis",
        }
    }
}

/// Runs one bench.
/// `check` is for trials, which are command lines of their own.
pub fn run(args: &BenchArgs, check: &compare::Check, context: &Context) -> Result<()> {
    args.compare.check()?;
    sweep(&context.work);
    if args.compare.is_asked_for() {
        return compare::run(args.bench.name(), &args.compare, check, context);
    }
    match &args.bench {
        Bench::Publish(args) => publish::run(args, context),
        Bench::Read(args) => read::run(args, context),
        Bench::E2e(args) => e2e::run(args, context),
        Bench::Latency(args) => latency::run(args, context),
        Bench::Walls(args) => walls::run(args, context),
        Bench::Disk(args) => disk::run(args, context),
        Bench::Recover(args) => recover::run(args, context),
        Bench::Scale(args) => scale::run(args, context),
        Bench::Metering(args) => metering::run(args, context),
        Bench::Session(args) => session::run(args, context),
        Bench::Redis(args) => redis::run(args, context),
    }
}

/// Options of every bench that starts brokers.
#[derive(Args, Debug)]
struct CommonArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: usize,
    /// Rounds to run before and throw away: the first is cold
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
}

/// Options of every command that publishes or reads at brokers which it starts.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Bytes of one message
    #[arg(short, long, value_name = "SIZE", default_value = "1024")]
    message_size: Size,
    /// Order level of the topic: 0, 1, 2 or 5 [default: 0]
    #[arg(short, long, value_name = "N", value_parser = parse_order)]
    order: Option<u32>,
    #[command(flatten)]
    on_disks: OnDisks,
    /// Client threads, each with a connection, for each data broker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads_per_broker: u32,
    /// Application threads that publish
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    publishers: u32,
    /// Brokers, the head included; the head only sequences unless it is alone
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    brokers: u16,
    /// Threads of each broker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    network_threads: u16,
    /// How brokers receive payloads: direct, staging, blocking or uring [default: that of `embar broker`]
    #[arg(long, value_name = "PATH")]
    receive: Option<ReceivePath>,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    region_size: Size,
    /// Bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    batch_size: Size,
    /// How clients connect to brokers: tcp, unix, shm (shared memory), or auto (the shortest way). TCP unless told
    /// otherwise, so that figures can be compared with those of other runs
    #[arg(long, value_name = "HOW", default_value_t = Transport::Tcp)]
    transport: Transport,
    /// How long clients and brokers look for what comes before they sleep, at the price of busy cores; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    spin: Duration,
}

impl CommonArgs {
    fn plan(&self, size: u64, acks: Acks, metering: Metering) -> Result<BenchPlan> {
        Ok(BenchPlan {
            trials: self.trials,
            warmup: self.warmup,
            ..self.load.plan(size, acks, metering)?
        })
    }

    /// For a bench that publishes from one thread: refuses to look as if it used more.
    fn needs_one_publisher(&self, bench: &str) -> Result<()> {
        if self.load.publishers > 1 {
            let message = format!("{bench} publishes from one thread: leave --publishers out");
            return Err(exit::usage(message));
        }
        Ok(())
    }
}

impl LoadArgs {
    /// The names of these options, for commands that have nothing to do with them.
    pub const IDS: [&str; 14] = [
        "message_size",
        "order",
        OnDisks::IDS[0],
        OnDisks::IDS[1],
        OnDisks::IDS[2],
        "threads_per_broker",
        "publishers",
        "brokers",
        "network_threads",
        "receive",
        "region_size",
        "batch_size",
        "transport",
        "spin",
    ];

    /// The plan of one trial of so many bytes.
    pub fn plan(&self, size: u64, acks: Acks, metering: Metering) -> Result<BenchPlan> {
        if self.receive.is_some() && self.transport == Transport::Shm {
            let message = "--receive would change nothing: nobody receives from a socket by shared memory; leave it out, or --transport tcp";
            return Err(exit::usage(message));
        }
        let message_bytes = exit::to_u32(self.message_size, "--message-size")?;
        let messages = size / u64::from(message_bytes.max(1));
        Ok(self.on_disks.of(BenchPlan {
            topic: TOPIC.to_owned(),
            message_bytes,
            messages,
            total_bytes: messages * u64::from(message_bytes),
            order: self.order.unwrap_or(0),
            acks: acks.level(),
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
            threads_per_broker: self.threads_per_broker,
            publishers: self.publishers,
            batch_bytes: exit::to_u32(self.batch_size, "--batch-size")?,
            brokers: self.brokers,
            data_brokers: data_brokers(self.brokers),
            network_threads: self.network_threads,
            receive: self.receive.unwrap_or_default(),
            region_bytes: self.region_size.0,
            trials: 1,
            warmup: 0,
            metering,
            transport: self.transport,
            spin: self.spin,
        }))
    }
}

/// A wall with the connections of a publisher.
fn wall_of(plan: &BenchPlan) -> WallPlan {
    WallPlan {
        transport: match plan.transport {
            Transport::Tcp => stream::Transport::Tcp,
            _ => stream::Transport::Unix,
        },
        receivers: plan.data_brokers,
        connections_per_receiver: plan.threads_per_broker as u16,
        read_connections_per_receiver: 1,
        read_threads: 1,
        batch_bytes: plan.batch_bytes,
        message_bytes: plan.message_bytes,
        total_bytes: plan.total_bytes,
        ring_bytes: plan.region_bytes,
    }
}

/// Says what is to be measured, measures it, and prints the report.
fn measure<R: Serialize + Display>(
    context: &Context,
    what: impl Display,
    run: impl FnOnce(&Work) -> Result<R>,
) -> Result<()> {
    context.output.say(what)?;
    let report = run(&context.work)?;
    context.output.report(&report, format_args!("\n{report}"))
}

fn data_brokers(brokers: u16) -> u16 {
    brokers.max(2) - 1
}

/// Where results are recorded.
#[derive(Args, Debug)]
struct RecordArgs {
    /// Append a row per trial to data/throughput/pub/result.csv
    #[arg(long)]
    record: bool,
    /// Append to this file instead
    #[arg(long, value_name = "FILE")]
    record_to: Option<PathBuf>,
}

impl RecordArgs {
    fn path(&self) -> Option<PathBuf> {
        let default = self
            .record
            .then(|| PathBuf::from(embar_meter::results::DEFAULT_PATH));
        self.record_to.clone().or(default)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        common: CommonArgs,
    }

    #[test]
    fn a_bench_of_one_publisher_refuses_more() {
        for (line, is_refused) in [("x", false), ("x --publishers 2", true)] {
            let line = Line::try_parse_from(line.split_whitespace()).expect("options");
            let refused = line.common.needs_one_publisher("bench x");
            assert_eq!(refused.is_err(), is_refused);
        }
    }

    #[test]
    fn the_plan_is_exactly_what_was_asked_for() {
        let line = "x -m 100 -o 1 --replication-factor 2 --data /mnt/a --threads-per-broker 3 --publishers 2 --trials 5 --warmup 2 --brokers 3 \
                    --network-threads 2 --region-size 64MiB --batch-size 1MiB --transport unix";
        let common = Line::try_parse_from(line.split_whitespace())
            .expect("options")
            .common;
        let plan = common
            .plan(1050, Acks::None, Metering::Off)
            .expect("a plan");
        assert_eq!(
            (plan.message_bytes, plan.messages, plan.total_bytes),
            (100, 10, 1000)
        );
        assert_eq!(
            (
                plan.order,
                plan.acks,
                plan.threads_per_broker,
                plan.publishers
            ),
            (1, 0, 3, 2)
        );
        assert_eq!(
            (plan.trials, plan.warmup, plan.brokers, plan.data_brokers),
            (5, 2, 3, 2)
        );
        assert_eq!(
            (plan.network_threads, plan.region_bytes, plan.batch_bytes),
            (2, 64 << 20, 1 << 20)
        );
        assert_eq!(plan.transport, Transport::Unix);
        assert_eq!(
            (plan.replication_factor, plan.data.as_slice()),
            (2, ["/mnt/a".into()].as_slice())
        );
        let wall = wall_of(&plan);
        assert_eq!(
            (
                wall.receivers,
                wall.connections_per_receiver,
                wall.ring_bytes
            ),
            (2, 3, 64 << 20)
        );
    }

    #[test]
    fn a_single_broker_takes_data() {
        assert_eq!([1, 2, 4].map(data_brokers), [1, 1, 3]);
    }
}
