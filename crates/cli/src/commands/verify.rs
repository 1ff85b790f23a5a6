//! `embar verify`: whether the log keeps its promises.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use embar_bench::private_cluster::sweep;
use embar_broker::BrokerConfig;
use embar_client::{Acks, Transport};
use embar_console::size::{Size, parse_duration};
use embar_verify::claims::{self, ClaimsPlan};
use embar_verify::faults::{Action, DurationRange, Fault, Victim};
use embar_verify::findings::{Findings, NotKept};
use embar_verify::hostile::Pose;
use embar_verify::loop_disk::{self, FileSystem};
use embar_verify::plan::VerifyPlan;
use embar_verify::power_plan::PowerPlan;
use embar_verify::run;
use embar_verify::sessions::{self, SessionsPlan};

use crate::context::Context;
use crate::exit;
use crate::replication_factor::replication_factor;

/// Verify that the log keeps its promises while its processes are killed, stopped, and come and go
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct VerifyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    Order(OrderArgs),
    Sessions(SessionsArgs),
    Claims(ClaimsArgs),
}

/// Publish and read a topic, and check its order, with faults
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar verify order --faults all --duration 10m              everything that can be done
  embar verify order --faults all --region-size 128MiB        and the log is full
  embar verify order --kill sequencer --every 2s              takeovers
  embar verify order --kill broker --kill publisher --duration 10m
  embar verify order --pause sequencer --pause broker --pause-for 500ms..3s
  embar verify order --pause publisher --every 1s --pause-for 800ms --region-size 256MiB
  embar verify order --transport shm --faults all         all clients through shared memory
  embar verify order --transport shm --hostile publisher --hostile subscriber
  embar verify order --acks 2 --cut power --cuts 200      all memory is lost, disks are cut
  embar verify order --order 2 --publishers 32 --rate 100000 --batch-size 1KiB --json

It starts a cluster of its own on free ports and removes it. Publishers are processes, and send
messages that carry who sent them, their number and a checksum. Every interval each of the faults
hits one process: a killed one is started again, a stopped one goes on after a while. When the whole
cluster is killed, it starts again once all are dead. A broker that left joins again after a while,
or another takes its place. The first subscriber sees everything, the others begin anywhere and come
back. One publisher of four gives up what no broker takes within 250 ms.

It checks that all subscribers see the same message at each position, that positions have no hole,
that every acknowledged message is where its acknowledgement says, that nothing is gone for which
there was room, that each publisher's messages come once (order 2 and 5) and in their order (order
5), that nothing is damaged or was never sent, and that no client waits longer than 30 s. Messages
of a killed publisher that were not acknowledged may be there or not; messages of which a publisher
learned that they are not stored are not there. What was acknowledged can be read at once, from any
broker. A topic that is deleted and created again beside has its own messages, and none of the one
before. Orders 0 and 1 are held to what they promise: each broker's own order, and messages at least
once.

Hostile clients connect through shared memory, greet, publish and read in every wrong way that they
know, each attack on a connection of its own, and are stopped and killed in the middle. All else
must be as without them: brokers that live, and all promises to others.

With --cut power the topic is on disks: file systems of their own, in files and on loop devices,
which needs root, and the programs of the packages e2fsprogs, xfsprogs and mount. At random
moments the file systems stop, what they had not synced is gone, all brokers are killed, and the
memory is removed. Then the power is back and the cluster starts again. After each cut, and after
one more at the end, the disks are read: every message that was acknowledged with acks 2 must be
there, once and in order, and no position may have changed. There are no subscribers: the disks
themselves are read. The order is 2 or 5.

It also measures by how much a timer of its own was late at most. A wait that was too long is
always a violation. Where that timer was late by a tenth of the wait, its words add that the
machine was too busy to tell whether brokers were too slow.

A wait for an acknowledgement counts from the fault, if it began after it and before the next one.

The log is full once more was published than the region has room for, and older messages make room.
A reader that is too slow then gets an error; one that keeps up misses nothing. It also looks all
the time at what brokers say can be read: a full log must hold most of what one broker has room
for.

JSON, one object: verify, config, seconds, published, acknowledged, unplaced, given_up, not_stored,
reread (acknowledgements that were read at once), timer_late_max_ms, subscribers[] with messages
and repeated, read_at_the_end, read_from_the_first, disk (null, or after the
last power cut messages, repeated, torn_bytes, segments), retained (null, or of a full log looks,
least_bytes, most_bytes, room_bytes of a broker, least_share of that room, and must_share, which
had to be there at the last look: all of it but for the ends of extents, batches under way, and
what was sent more than once as brokers were disturbed), faults, attacks, untried[], missed_faults,
failed_starts, overtaken (brokers that ended as they were stopped for too long, which they must),
first_term, last_term, takeovers, gaps[] with fault, faults, nobody_ms and slowest_publisher_ms
{median, max}, logs (kept if something is broken), violations {total, by_kind, first[]}, tried,
kept. Exit code 4 if a promise was broken, 5 if nothing was tried: no fault, no attack and no
takeover happened.")]
struct OrderArgs {
    /// Publishing processes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    publishers: u32,
    /// Subscribers; none with --cut
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "cut", value_parser = clap::value_parser!(u32).range(1..=64))]
    subscribers: u32,
    /// Order level of the topic: 0, 1, 2 or 5
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = embar_bench::plan::parse_order)]
    order: u32,
    /// 0: nothing is acknowledged, for order 0 and 1; 1: what is readable is; 2 or all: what is on all disks of the topic is
    #[arg(short, long, value_name = "N", default_value_t = Acks::Readable)]
    acks: Acks,
    /// 1: the topic is in memory alone; 2: in memory and on one disk; 3: on two, and so on [default: 1, or 2 with --cut]
    #[arg(long, value_name = "N", value_parser = replication_factor())]
    replication_factor: Option<u8>,
    /// Bytes of one message
    #[arg(short, long, value_name = "SIZE", default_value = "200")]
    message_size: Size,
    /// Bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    batch_size: Size,
    /// Messages per second in all
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// How long to publish
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration, conflicts_with = "cut")]
    duration: Duration,
    /// Kill one of these in each interval; may be given several times
    #[arg(long, value_name = "WHO", value_enum)]
    kill: Vec<Victim>,
    /// Stop one of these for a while in each interval: sequencer, broker or publisher; may be given several times
    #[arg(long, value_name = "WHO", value_enum)]
    pause: Vec<Victim>,
    /// Let a data broker leave the cluster in each interval, and one join after a while
    #[arg(long)]
    drain: bool,
    /// Delete a topic beside in each interval, and create it again
    #[arg(long)]
    delete: bool,
    /// Instead of naming them one by one: all that can be done
    #[arg(long, value_name = "WHICH", value_enum, conflicts_with_all = ["kill", "pause", "drain", "delete"])]
    faults: Option<Faults>,
    /// Cut the power of the disks at a random moment of each interval, and kill all brokers
    #[arg(long, value_name = "WHAT", value_enum)]
    cut: Option<Cut>,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "cut")]
    cuts: u32,
    /// File system of the disks that are cut: ext4 or xfs
    #[arg(
        long,
        value_name = "KIND",
        value_enum,
        default_value = "ext4",
        requires = "cut"
    )]
    file_system: FileSystem,
    /// A client beside that keeps to no rule of shared memory; may be given several times
    #[arg(long, value_name = "POSE", value_enum)]
    hostile: Vec<Pose>,
    /// The interval of faults [default: 2s, or 10s with --faults all]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    every: Option<Duration>,
    /// How long a process is stopped, or a broker away: one time, or from one to another
    #[arg(long, value_name = "TIME", default_value = "500ms..3s")]
    pause_for: DurationRange,
    /// How clients connect, in turn: tcp, unix, shm (shared memory) or auto, several with commas
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto,tcp,unix",
        value_delimiter = ','
    )]
    transport: Vec<Transport>,
    /// Brokers, the head included; the head only sequences
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=32))]
    brokers: u16,
    /// Brokers beside these that sequence when the head cannot
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=7))]
    standbys: u16,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    region_size: Size,
    /// Bytes that the topic keeps on each broker [default: as much as fits]
    #[arg(long, value_name = "SIZE")]
    retention: Option<Size>,
    /// Where random choices begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Cut {
    /// The power of all disks.
    Power,
}

/// Faults by one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Faults {
    /// Each of them.
    All,
}

/// Kill publishers one handful after the other, and see how soon the next one is served
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar verify sessions                                   20,000 are killed on 4,096 places
  embar verify sessions --places 1000                     on fewer: each is needed more often
  embar verify sessions --killed 200 --places 64 --at-once 20 --session-idle 100ms --json

It starts brokers in this process, on free ports, with a region of their own. Each publisher opens a
topic of order 5 and is acknowledged a message; then its process is killed. The next publisher that
comes must be served in time, and one that lived all the while must still have its place. There must
be more publishers than places: only then does one need the place of another.

JSON, one object: verify, config, seconds, slowest_killed_ms, next_ms, timer_late_max_ms
(by how much the verifier's own timer was late), lived, tried, kept.
Exit code 4 if the next one was not served in time, 5 if no place was needed twice.")]
struct SessionsArgs {
    /// Publishers to kill
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    killed: u32,
    /// Publishers of one process, killed together
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    at_once: u32,
    /// Publishers that the cluster knows at a time
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    places: u32,
    /// Brokers, the head included; the head only sequences
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=32))]
    brokers: u16,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    region_size: Size,
    /// How soon the next publisher is to be served
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    within: Duration,
    /// How long a publisher without a connection keeps its place, as of `embar broker`
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    session_idle: Option<Duration>,
}

/// Claim room in a full log and send hardly anything, and see how a publisher does beside that
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar verify claims                                     40 connections claim 8 MiB each
  embar verify claims --order 5 --connections 200 --rounds 9
  embar verify claims --connections 4 --rounds 1 --round 100ms --at-least 0 --json

It starts brokers in this process, on free ports, with a region of their own, and fills the log.
Then connections announce a batch each, far more than the log holds in all, and send a byte of it
now and then. Nothing that can be read may go for that. By turns a publisher then goes as fast as it
can without them and beside them, and must keep its rate.

JSON, one object: verify, config, seconds, evicted_by_claims, rounds[] with alone_mib_per_s and
beside_mib_per_s, ratio (the median of the rounds), kept.
Exit code 4 if something was evicted, or less than --at-least of the rate was left.")]
struct ClaimsArgs {
    /// Order level of the topic: 0, 1, 2 or 5
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = embar_bench::plan::parse_order)]
    order: u32,
    /// Connections that claim
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Bytes that each of them announces
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    claim: Size,
    /// Each sends one byte so often
    #[arg(long, value_name = "TIME", default_value = "900ms", value_parser = parse_duration)]
    drip: Duration,
    /// Pairs of rounds: one without them, one beside them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long a round takes
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    round: Duration,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    region_size: Size,
    /// Least share of the rate that is to be left
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    at_least: f64,
}

/// Runs it and prints the report.
pub fn run(args: &VerifyArgs, context: &Context) -> Result<()> {
    match &args.what {
        What::Order(args) => verify_order(args, context),
        What::Sessions(args) => {
            let found = sessions::run(&sessions_plan(args), &context.work)?;
            conclude(&found, "raise --killed, or lower --places", context)
        }
        What::Claims(args) => conclude(
            &claims::run(&claims_plan(args), &context.work)?,
            "",
            context,
        ),
    }
}

/// Prints what a check found; `hint` says what to change if it tried nothing. The error is that of the verdict, if there
/// is one: a broken promise counts for more than output that cannot be printed.
fn conclude(found: &impl Findings, hint: &str, context: &Context) -> Result<()> {
    let output = &context.output;
    let printed = output.report(found, found.text(output.paint()));
    match found.verdict() {
        Ok(()) => printed,
        Err(nothing @ NotKept::NothingTried(_)) => {
            let text = format!("{nothing}; {hint}");
            Err(anyhow::Error::from(nothing).context(text))
        }
        Err(broken) => Err(broken.into()),
    }
}

fn claims_plan(args: &ClaimsArgs) -> ClaimsPlan {
    ClaimsPlan {
        order: args.order,
        connections: args.connections,
        claim_bytes: args.claim.0,
        drip: args.drip,
        rounds: args.rounds,
        round: args.round,
        region_bytes: args.region_size.0,
        at_least: args.at_least,
    }
}

fn sessions_plan(args: &SessionsArgs) -> SessionsPlan {
    SessionsPlan {
        killed: args.killed,
        at_once: args.at_once,
        places: args.places,
        brokers: args.brokers,
        region_bytes: args.region_size.0,
        within: args.within,
        session_idle: args
            .session_idle
            .unwrap_or(BrokerConfig::default().session_idle),
    }
}

fn verify_order(args: &OrderArgs, context: &Context) -> Result<()> {
    sweep(&context.work);
    for dir in loop_disk::sweep() {
        let dir = dir.display();
        context.note(format_args!("removed {dir}, left by a run that was killed"));
    }
    let plan = plan(args)?;
    plan.validate()?;
    context
        .output
        .say(format_args!("verify: {}", plan.describe()))?;
    conclude(
        &run::run(&plan, &context.work)?,
        "ask for some, for instance by --faults all",
        context,
    )
}

fn plan(args: &OrderArgs) -> Result<VerifyPlan> {
    let all = |action, victims: &[Victim]| -> Vec<Fault> {
        let faults = victims.iter().map(|victim| Fault {
            action,
            victim: *victim,
        });
        faults.collect()
    };
    Ok(VerifyPlan {
        order: args.order,
        acks: args.acks.level(),
        replication_factor: args.replication_factor.unwrap_or(match args.cut {
            Some(Cut::Power) => 2,
            None => 1,
        }),
        publishers: args.publishers,
        subscribers: match args.cut {
            Some(Cut::Power) => 0,
            None => args.subscribers,
        },
        message_bytes: exit::to_u32(args.message_size, "--message-size")?,
        batch_bytes: exit::to_u32(args.batch_size, "--batch-size")?,
        rate: args.rate,
        duration: args.duration,
        brokers: args.brokers,
        standbys: args.standbys,
        region_bytes: args.region_size.0,
        retention_bytes: args.retention.map_or(0, |size| size.0),
        faults: match args.faults {
            Some(Faults::All) => Fault::ALL.to_vec(),
            None => [
                all(Action::Kill, &args.kill),
                all(Action::Pause, &args.pause),
                args.drain.then_some(Fault::DRAIN).into_iter().collect(),
                args.delete.then_some(Fault::DELETE).into_iter().collect(),
            ]
            .concat(),
        },
        every: args.every.unwrap_or(match args.faults {
            Some(Faults::All) => Duration::from_secs(10),
            None => Duration::from_secs(2),
        }),
        pause_for: args.pause_for,
        transports: args.transport.clone(),
        power: args.cut.map(|Cut::Power| PowerPlan {
            file_system: args.file_system,
            cuts: args.cuts,
        }),
        hostile: args.hostile.clone(),
        seed: args.seed,
    })
}
