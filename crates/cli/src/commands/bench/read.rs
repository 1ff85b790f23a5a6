//! `embar bench read`: measures reading back what was published, from memory or, after all of that was lost, from disks.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use embar_bench::beside_reader::{BesideReaderJob, BesideReaderTrial};
use embar_bench::disk::beside::{DEPTHS, DiskWalls};
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::private_cluster::PrivateCluster;
use embar_bench::publish::PublishJob;
use embar_bench::read::{ReadJob, ReadTrial};
use embar_bench::reader::Reader;
use embar_bench::wall::drive::{Receivers, Wall};
use embar_bench::{disk_profile, retained};
use embar_client::Acks;
use embar_console::size::Size;
use embar_meter::Snapshot;
use embar_meter::experiment::{Experiment, Outcome, Sample};

use super::publish::show_progress;
use super::{CommonArgs, wall_of};
use crate::context::Context;
use crate::exit;

mod report;

/// The topic of the publisher that a cold reader is measured beside.
const BESIDE: &str = "bench-beside";

/// Publish what fits, then read all of it back, each message verified
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench read
  embar bench read --wall --trials 8        against what the machine allows, in one run
  embar bench read -m 64 -s 512MiB --json
  embar bench read --transport shm --reader touches    in place, each byte read once
  embar bench read --cold --replication-factor 2 --data /var/lib/embar --wall
  embar bench read --cold --with-publisher -s 1GiB --replication-factor 2 --data /var/lib/embar

One cluster is started and filled once; each trial reads everything from the start with a new
subscriber. Each message carries a sequence number and a checksum of all its bytes, and each
must arrive exactly once, which a reader that verifies checks; others count.

With --cold the topic is on disks. Once all is published at acks 2 the cluster ends, its memory is
removed, and it starts again with its disks. So each trial reads from a disk, past the page cache
where the file system can. --wall then also measures reads of 1 MiB of a file beside it, 1, 2 and 4
at once, at most 512 MiB. --with-publisher publishes to another topic, in trials with a cold reader
beside it and without, by turns.

JSON, one object: config; reader; cold; trials[] with mib_per_s, messages_per_s, seconds,
tcp_connections, unix_connections and shm_connections (made to brokers), client and brokers
(costs); median_mib_per_s, min_mib_per_s, max_mib_per_s, messages_per_s; costs; subscriber_profile;
disk_profile, null unless cold; recv_calls_per_batch, bytes_per_recv, recv_eagain (of the
subscriber); wall with --wall: series[], ratio_to_bare, and disk, null or {io_bytes, depth, bytes,
ratio}: the fastest reads; publisher with --with-publisher: bytes, acks, trials[] with publish and
read_mib_per_s (what the reader read meanwhile, null without one), ratio (with a reader to without)")]
pub struct ReadArgs {
    /// Bytes to publish and read [default: 60 % of the region, which is retained for certain; with --cold one and a half
    /// times the region]
    #[arg(short, long, value_name = "SIZE")]
    size: Option<Size>,
    /// What becomes of each message
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Reader::Verifies)]
    reader: Reader,
    /// Read from disks, when nothing is in memory any more
    #[arg(long, requires = "data")]
    cold: bool,
    /// Also measure what a cold reader costs who publishes so many bytes in each trial [default: 512MiB]
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "512MiB", requires = "cold")]
    with_publisher: Option<Size>,
    /// Level of the acknowledgements of that publisher: 1, or 2 or all
    #[arg(short, long, value_name = "N", default_value_t = Acks::Readable, requires = "with_publisher")]
    acks: Acks,
    /// Also measure the machine, in the same run, and print the ratio
    #[arg(long)]
    wall: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// What is measured, by turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    BareWall,
    /// Reads of a file, so many at once.
    DiskWall {
        depth: u16,
    },
    Read,
    /// A publisher, alone or with a cold reader beside it.
    Publish {
        beside_reader: bool,
    },
}

impl Config {
    fn name(self) -> String {
        match self {
            Self::BareWall => "bare wall, reading".into(),
            Self::DiskWall { depth } => format!("disk wall, {depth} at once"),
            Self::Read => "read".into(),
            Self::Publish {
                beside_reader: false,
            } => "publish alone".into(),
            Self::Publish {
                beside_reader: true,
            } => "publish beside a cold reader".into(),
        }
    }
}

fn configs(args: &ReadArgs) -> Vec<Config> {
    let mut configs = Vec::new();
    if args.wall {
        configs.push(Config::BareWall);
        if args.cold {
            configs.extend(DEPTHS.map(|depth| Config::DiskWall { depth }));
        }
    }
    configs.push(Config::Read);
    if args.with_publisher.is_some() {
        let both = [false, true];
        configs.extend(both.map(|beside_reader| Config::Publish { beside_reader }));
    }
    configs
}

/// What was measured.
struct Measured {
    configs: Vec<Config>,
    reader: Reader,
    cold: bool,
    trials: Vec<ReadTrial>,
    disk_profile: Option<Snapshot>,
    /// The plan of the publisher beside a cold reader.
    beside: Option<BenchPlan>,
    published: Vec<BesideReaderTrial>,
    outcome: Outcome,
    /// Of each trial of a disk's wall.
    wall_bytes: u64,
}

/// Runs it and prints the report.
pub fn run(args: &ReadArgs, context: &Context) -> Result<()> {
    let plan = plan(args)?;
    let beside = args
        .with_publisher
        .map(|size| beside(&plan, size, args.acks));
    context.output.say(format_args!(
        "read by one who {}{}: {}",
        args.reader,
        if args.cold { ", from disks" } else { "" },
        plan.describe()
    ))?;
    let mut bench = Bench {
        cluster: fill(args.cold, &plan, context)?,
        plan,
        reader: args.reader,
        cold: args.cold,
        context,
        disk_profile: None,
    };
    let configs = configs(args);
    let wall = wall_of(&bench.plan);
    let receivers = args.wall.then(|| Receivers::start(&wall, &context.work));
    let receivers = receivers.transpose()?;
    let walls_of = match args.wall && args.cold {
        true => bench.plan.disks(),
        false => &[],
    };
    let disks = DiskWalls::new(walls_of, bench.plan.total_bytes, &context.work)?;
    disks.fill()?;
    let (mut trials, mut published) = (Vec::new(), Vec::new());
    let outcome = Experiment::new(configs.iter().map(|config| config.name()))
        .unit("MiB/s")
        .warmup(bench.plan.warmup)
        .trials(bench.plan.trials)
        .run(|index, round| {
            let rate = match configs[index] {
                Config::BareWall => {
                    let receivers = receivers.as_ref();
                    let receivers = receivers.context("the wall has no receivers")?;
                    receivers.run(Wall::ReadBare, &wall)?
                }
                Config::DiskWall { depth } => disks.read(depth)?,
                Config::Read => {
                    let trial = bench.read()?;
                    let rate = trial.rate.mib_per_s;
                    if !round.warmup {
                        trials.push(trial);
                    }
                    rate
                }
                Config::Publish { beside_reader } => {
                    let plan = beside.as_ref().context("nobody publishes")?;
                    let trial = bench.publish(plan, beside_reader)?;
                    let rate = trial.publish.rate.mib_per_s;
                    if !round.warmup {
                        published.push(trial);
                    }
                    rate
                }
            };
            show_progress(context, &configs[index].name(), round, rate);
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    let Bench {
        cluster,
        plan,
        disk_profile,
        ..
    } = bench;
    cluster.stop();
    let measured = Measured {
        configs,
        reader: args.reader,
        cold: args.cold,
        trials,
        disk_profile,
        beside,
        published,
        outcome,
        wall_bytes: disks.bytes(),
    };
    report::report(&plan, &measured, context)
}

fn plan(args: &ReadArgs) -> Result<BenchPlan> {
    let region = args.common.load.region_size.0;
    let (default, acks) = match args.cold {
        true => (region / 2 * 3, Acks::Durable),
        false => (region / 10 * 6, Acks::Readable),
    };
    let size = args.size.map_or(default, |size| size.0);
    let plan = args.common.plan(size, acks, Metering::On)?;
    plan.validate(true)?;
    if args.with_publisher.is_some() && args.acks == Acks::None {
        let message = "--acks 0 says nothing of what the log does: give 1 or 2";
        return Err(exit::usage(message));
    }
    Ok(plan)
}

/// What is published beside a cold reader, to a topic of its own.
fn beside(plan: &BenchPlan, size: Size, acks: Acks) -> BenchPlan {
    let messages = (size.0 / u64::from(plan.message_bytes)).max(1);
    BenchPlan {
        topic: BESIDE.to_owned(),
        messages,
        total_bytes: messages * u64::from(plan.message_bytes),
        acks: acks.level(),
        ..plan.clone()
    }
}

/// Publishes everything, and makes sure that it is still there, or that nothing of it is in memory any more.
fn fill(cold: bool, plan: &BenchPlan, context: &Context) -> Result<PrivateCluster> {
    let mut private = PrivateCluster::start("bench-", plan, true, &context.work)?;
    let job = publishing(&private, plan, true, context);
    let connector = job.connector.clone();
    private
        .cluster
        .run("bench-fill", move |abort| job.run(abort))?;
    if cold {
        context.note("starting again without memory");
        return private.lose_memory(&context.work);
    }
    retained::check(&connector, plan)?;
    Ok(private)
}

fn publishing(
    private: &PrivateCluster,
    plan: &BenchPlan,
    stamped: bool,
    context: &Context,
) -> PublishJob {
    PublishJob {
        ack_times: None,
        plan: plan.clone(),
        metering: true,
        stamped,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        data_brokers: private.data_brokers(),
        bar: context.work.bar("publishing", plan.total_bytes),
    }
}

/// What trials work with.
struct Bench<'a> {
    cluster: PrivateCluster,
    plan: BenchPlan,
    reader: Reader,
    cold: bool,
    context: &'a Context,
    /// What the last trial of reading added.
    disk_profile: Option<Snapshot>,
}

impl Bench<'_> {
    fn reading(&self, reader: Reader) -> ReadJob {
        let (plan, work) = (&self.plan, &self.context.work);
        ReadJob {
            topic: plan.topic.clone(),
            reader,
            messages: plan.messages,
            message_bytes: plan.message_bytes,
            metering: true,
            spin: plan.spin,
            connector: plan.connector(self.cluster.cluster.head(), work.progress.clone()),
            pids: self.cluster.pids(),
            bar: work.bar("reading", plan.total_bytes),
        }
    }

    fn read(&mut self) -> Result<ReadTrial> {
        let job = self.reading(self.reader);
        let admin = job.connector.admin()?;
        let before = disk_profile::of_plan(&admin, &self.plan)?;
        let cluster = &mut self.cluster.cluster;
        let trial = cluster.run("bench-read", move |abort| job.run(abort))?;
        let now = disk_profile::of_plan(&admin, &self.plan)?;
        self.disk_profile = disk_profile::since(now, before).filter(|_| self.cold);
        if let Some(profile) = &self.disk_profile {
            let read = profile.counter("read_bytes").unwrap_or(0);
            let published = self.plan.total_bytes;
            // A reader that stopped early, beside a publisher, leaves some blocks behind that were read ahead for it.
            ensure!(
                read >= published / 10 * 9,
                "only {} of {} came from disks: this is no cold reading",
                Size(read),
                Size(published)
            );
        }
        Ok(trial)
    }

    fn publish(&mut self, plan: &BenchPlan, beside_reader: bool) -> Result<BesideReaderTrial> {
        let job = BesideReaderJob {
            publish: publishing(&self.cluster, plan, false, self.context),
            // To check each message would cost the publisher a processor.
            read: beside_reader.then(|| self.reading(Reader::Counts)),
        };
        let cluster = &mut self.cluster.cluster;
        cluster.run("bench-beside", move |abort| job.run(abort))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReadArgs,
    }

    fn parse(line: &str) -> Result<ReadArgs, clap::Error> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.args)
    }

    #[test]
    fn cold_reading_is_of_more_than_memory_holds_and_published_at_acks_2() {
        let durable = "x --cold --replication-factor 2 --data /a --region-size 64MiB";
        let args = parse(durable).expect("options");
        let cold = plan(&args).expect("a plan");
        assert_eq!((cold.total_bytes, cold.acks), (96 << 20, 2));
        assert_eq!(configs(&args), [Config::Read]);
        let in_memory = plan(&parse("x --region-size 10MiB").expect("options"));
        let in_memory = in_memory.expect("a plan");
        assert_eq!((in_memory.total_bytes, in_memory.acks), (6 << 20, 1));
        assert!(parse("x --cold").is_err(), "it needs a disk");
        let no_disk = parse("x --cold --data /a").expect("options");
        assert!(plan(&no_disk).is_err(), "the topic is in memory alone");
    }

    #[test]
    fn a_publisher_is_measured_with_and_without_a_cold_reader() {
        let durable = "x --cold --wall --replication-factor 2 --data /a";
        let args = parse(&format!("{durable} --with-publisher --acks 2")).expect("options");
        let mut all = vec![Config::BareWall];
        all.extend(DEPTHS.map(|depth| Config::DiskWall { depth }));
        all.push(Config::Read);
        all.extend([false, true].map(|beside_reader| Config::Publish { beside_reader }));
        assert_eq!(configs(&args), all);
        let size = args.with_publisher.expect("a size");
        let plan = plan(&args).expect("a plan");
        let other = beside(&plan, size, args.acks);
        assert_eq!((other.total_bytes, other.acks), (512 << 20, 2));
        assert_ne!(other.topic, plan.topic);
        let sized = parse(&format!("{durable} --with-publisher=8MiB")).expect("options");
        assert_eq!(sized.with_publisher, Some(Size(8 << 20)));
        assert!(parse("x --with-publisher").is_err(), "nothing is cold");
    }
}
