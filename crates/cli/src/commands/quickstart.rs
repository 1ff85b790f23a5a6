//! `embar quickstart`: starts a cluster, publishes, reads everything back, verifies it, and says what limited it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use embar_bench::largest_stage::{LargestStage, sentence};
use embar_bench::plan::{BenchPlan, Metering, TOPIC};
use embar_bench::private_cluster::{PrivateCluster, sweep};
use embar_bench::publish::PublishTrial;
use embar_bench::read::ReadTrial;
use embar_bench::reader::Reader;
use embar_bench::report::profile_text;
use embar_bench::usage::Rate;
use embar_bench::{publish, read, retained};
use embar_broker::ReceivePath;
use embar_client::Transport;
use embar_console::size::Size;
use embar_meter::Snapshot;
use embar_meter::table::grouped;
use serde::Serialize;

use crate::context::Context;
use crate::exit;

/// What goes by each transport for the comparison, at most.
const WAY_BYTES: u64 = 256 << 20;

/// Start a private cluster, publish, read everything back, verify it, and say what limited it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar quickstart
  embar quickstart --size 64MiB --region-size 256MiB     on a machine with little memory

First a part of it goes by each transport, up to 256 MiB by TCP, Unix sockets and shared memory.
Then all of it goes by the one that clients choose by themselves.

Everything runs on free ports of 127.0.0.1 in a region of its own, and nothing is left behind.

JSON, one object: config; ready_s; ways[], each with transport, and publish_mib_per_s and
read_mib_per_s (null where this machine lacks it; error then says why); chosen, the transport of
what follows; publish and read, each with mib_per_s, messages_per_s, seconds and the costs of
client and brokers; verified (messages read back, each once and unchanged); broker_profile,
publisher_profile, subscriber_profile; largest[] with side, stage, share; limits[], the two
sentences")]
pub struct QuickstartArgs {
    /// Bytes to publish
    #[arg(short, long, value_name = "SIZE", default_value = "1GiB")]
    size: Size,
    /// Bytes of one message
    #[arg(short, long, value_name = "SIZE", default_value = "1024")]
    message_size: Size,
    /// Bytes of shared memory; more than --size, so that everything can be read back
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    region_size: Size,
    /// Brokers, the head included
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    brokers: u16,
}

impl QuickstartArgs {
    fn plan(&self) -> Result<BenchPlan> {
        let message_bytes = exit::to_u32(self.message_size, "--message-size")?;
        let messages = self.size.0 / u64::from(message_bytes.max(1));
        let plan = BenchPlan {
            topic: TOPIC.to_owned(),
            message_bytes,
            messages,
            total_bytes: messages * u64::from(message_bytes),
            order: 0,
            acks: 1,
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
            threads_per_broker: 1,
            publishers: 1,
            batch_bytes: 2 << 20,
            brokers: self.brokers,
            data_brokers: self.brokers.max(2) - 1,
            network_threads: 1,
            receive: ReceivePath::default(),
            region_bytes: self.region_size.0,
            trials: 1,
            warmup: 0,
            metering: Metering::On,
            transport: Transport::Auto,
            spin: Duration::ZERO,
        };
        plan.validate(true)?;
        Ok(plan)
    }
}

/// What one transport carried.
#[derive(Serialize)]
struct Way {
    transport: &'static str,
    publish_mib_per_s: Option<f64>,
    read_mib_per_s: Option<f64>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    config: &'a BenchPlan,
    ready_s: f64,
    ways: &'a [Way],
    chosen: &'static str,
    publish: &'a PublishTrial,
    read: &'a ReadTrial,
    verified: u64,
    broker_profile: Option<&'a Snapshot>,
    publisher_profile: Option<&'a Snapshot>,
    subscriber_profile: Option<&'a Snapshot>,
    largest: Vec<LargestStage>,
    limits: [String; 2],
}

/// Runs it all.
pub fn run(args: &QuickstartArgs, context: &Context) -> Result<()> {
    let plan = args.plan()?;
    sweep(&context.work);
    let output = &context.output;
    let brokers = if plan.brokers == 1 {
        "one broker".to_owned()
    } else {
        format!("a head and {} data broker(s)", plan.data_brokers)
    };
    output.say(format_args!(
        "starting {brokers} as processes, with {} of shared memory",
        Size(plan.region_bytes)
    ))?;
    let started = Instant::now();
    let mut private = PrivateCluster::start("quickstart-", &plan, true, &context.work)?;
    let ready = started.elapsed();
    output.say(format_args!(
        "  ready in {:.2} s at {}",
        ready.as_secs_f64(),
        private.cluster.head()
    ))?;
    let ways = compare(&mut private, &plan, context)?;
    let published = publish_all(&mut private, &plan, context)?;
    let chosen = chosen(&published);
    output.say(format_args!("  chosen     {chosen}, for what follows"))?;
    output.say(format_args!(
        "  published  {}, all acknowledged",
        rate(&plan, &published.rate)
    ))?;
    let read = read_all(&mut private, &plan, context)?;
    output.say(format_args!(
        "  read back  {}, each message once and unchanged",
        rate(&plan, &read.rate)
    ))?;
    private.stop();
    let measured = Measured {
        ready,
        ways,
        chosen,
        published,
        read,
    };
    report(&plan, &measured, context)
}

/// What a run found out.
struct Measured {
    ready: Duration,
    ways: Vec<Way>,
    chosen: &'static str,
    published: PublishTrial,
    read: ReadTrial,
}

/// Sends a part of the messages by each transport.
fn compare(private: &mut PrivateCluster, plan: &BenchPlan, context: &Context) -> Result<Vec<Way>> {
    let ways = [
        (Transport::Tcp, "TCP"),
        (Transport::Unix, "Unix sockets"),
        (Transport::Shm, "shared memory"),
    ];
    let mut compared = Vec::new();
    for (transport, name) in ways {
        let messages = (WAY_BYTES / u64::from(plan.message_bytes)).clamp(1, plan.messages);
        let part = BenchPlan {
            topic: format!("{TOPIC}-{transport}"),
            messages,
            total_bytes: messages * u64::from(plan.message_bytes),
            transport,
            ..plan.clone()
        };
        let carried = carry(private, &part, context);
        context.work.interrupt.check()?;
        let way = match carried {
            Ok((publish, read)) => Way {
                transport: name,
                publish_mib_per_s: Some(publish),
                read_mib_per_s: Some(read),
                error: None,
            },
            Err(error) if transport != Transport::Tcp => Way {
                transport: name,
                publish_mib_per_s: None,
                read_mib_per_s: None,
                error: Some(format!("{error:#}")),
            },
            Err(error) => return Err(error),
        };
        context.output.say(&way)?;
        compared.push(way);
    }
    Ok(compared)
}

/// Publishes and reads by one transport, and removes the topic; returns how many MiB went per second.
fn carry(private: &mut PrivateCluster, plan: &BenchPlan, context: &Context) -> Result<(f64, f64)> {
    let published = publish_all(private, plan, context)?;
    let read = read_all(private, plan, context)?;
    let connector = plan.connector(private.cluster.head(), context.work.progress.clone());
    connector.admin()?.delete_topic(&plan.topic).wait()?;
    Ok((published.rate.mib_per_s, read.rate.mib_per_s))
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.transport;
        match (self.publish_mib_per_s, self.read_mib_per_s) {
            (Some(publish), Some(read)) => write!(
                f,
                "  {name:<13}  published {publish:>5.0} MiB/s   read back {read:>5.0} MiB/s"
            ),
            _ => write!(
                f,
                "  {name:<13}  not here: {}",
                self.error.as_deref().unwrap_or_default()
            ),
        }
    }
}

/// By which transport the batches went.
fn chosen(published: &PublishTrial) -> &'static str {
    let connections = &published.connections;
    match (connections.shm_connections, connections.unix_connections) {
        (0, 0) => "TCP",
        (0, _) => "Unix sockets",
        _ => "shared memory",
    }
}

fn publish_all(
    private: &mut PrivateCluster,
    plan: &BenchPlan,
    context: &Context,
) -> Result<PublishTrial> {
    let job = publish::PublishJob {
        ack_times: None,
        plan: plan.clone(),
        metering: true,
        stamped: true,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        data_brokers: private.data_brokers(),
        bar: context.work.bar("publishing", plan.total_bytes),
    };
    let connector = job.connector.clone();
    let published = private
        .cluster
        .run("publish", move |abort| job.run(abort))?;
    retained::check(&connector, plan)?;
    Ok(published)
}

fn read_all(
    private: &mut PrivateCluster,
    plan: &BenchPlan,
    context: &Context,
) -> Result<ReadTrial> {
    let job = read::ReadJob {
        topic: plan.topic.clone(),
        reader: Reader::Verifies,
        messages: plan.messages,
        message_bytes: plan.message_bytes,
        metering: true,
        spin: plan.spin,
        connector: plan.connector(private.cluster.head(), context.work.progress.clone()),
        pids: private.pids(),
        bar: context.work.bar("reading", plan.total_bytes),
    };
    private.cluster.run("read", move |abort| job.run(abort))
}

fn rate(plan: &BenchPlan, rate: &Rate) -> String {
    format!(
        "{} messages of {} bytes in {:.2} s: {:.0} MiB/s, {} messages/s",
        grouped(plan.messages),
        plan.message_bytes,
        rate.seconds,
        rate.mib_per_s,
        grouped(rate.messages_per_s as u64)
    )
}

fn report(plan: &BenchPlan, measured: &Measured, context: &Context) -> Result<()> {
    let Measured {
        published, read, ..
    } = measured;
    let largest = |side, profile: &Option<Snapshot>| {
        profile
            .as_ref()
            .and_then(|profile| LargestStage::of(side, profile))
    };
    let publishing: Vec<LargestStage> = [
        largest("brokers", &published.broker_profile),
        largest("publisher", &published.publisher_profile),
    ]
    .into_iter()
    .flatten()
    .collect();
    let reading: Vec<LargestStage> = largest("subscriber", &read.subscriber_profile)
        .into_iter()
        .collect();
    let limits = [
        sentence("Publishing", &publishing),
        sentence("Reading", &reading),
    ];
    let output = &context.output;
    output.json(&Report {
        config: plan,
        ready_s: measured.ready.as_secs_f64(),
        ways: &measured.ways,
        chosen: measured.chosen,
        publish: published,
        read,
        verified: plan.messages,
        broker_profile: published.broker_profile.as_ref(),
        publisher_profile: published.publisher_profile.as_ref(),
        subscriber_profile: read.subscriber_profile.as_ref(),
        largest: publishing.into_iter().chain(reading).collect(),
        limits: limits.clone(),
    })?;
    for profile in [
        &published.broker_profile,
        &published.publisher_profile,
        &read.subscriber_profile,
    ]
    .into_iter()
    .flatten()
    {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    output.say(format_args!(
        "\n{}",
        output.paint().heading("What limited it")
    ))?;
    for limit in &limits {
        output.say(limit)?;
    }
    output.say("\nThe cluster is stopped and its memory is free again. Next: `embar up`, then `embar produce --help`.")
}
