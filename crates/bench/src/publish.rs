//! One trial of publishing: threads publish as many bytes as the plan says, and the trial ends with the last
//! acknowledgement. Other benches create their topic and open their publisher here, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use embar_client::{Admin, Publisher, PublisherBuilder, PublisherHandle, TopicSpec, WaitProbe};
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_console::waiting::WaitReporter;
use embar_meter::Snapshot;
use embar_meter::random::filler;
use embar_supervise::work::Abort;
use serde::Serialize;

use super::disk_profile;
use super::plan::BenchPlan;
use super::private_cluster::PrivateCluster;
use super::stalls::{AckTimes, Probe, Stalls};
use super::stamp::Stamper;
use super::usage::{Connections, Costs, Meters, Rate};

/// Messages between two looks at whether to stop.
const LOOK_EVERY: u64 = 8192;

/// What one trial gave.
#[derive(Clone, Debug, Serialize)]
pub struct PublishTrial {
    /// From the first publish to the last acknowledgement.
    #[serde(flatten)]
    pub rate: Rate,
    /// What it cost.
    #[serde(flatten)]
    pub costs: Costs,
    /// How many connections it had, and by which transport.
    #[serde(flatten)]
    pub connections: Connections,
    /// Whether stages were timed.
    pub metering: bool,
    /// Stage times of all brokers together.
    #[serde(skip)]
    pub broker_profile: Option<Snapshot>,
    /// Stage times of the publisher.
    #[serde(skip)]
    pub publisher_profile: Option<Snapshot>,
    /// Stage times of the threads that write and read disks, where there are any.
    #[serde(skip)]
    pub disk_profile: Option<Snapshot>,
    /// How long acknowledgements did not come, if that was asked for.
    pub stalls: Option<Stalls>,
}

/// Starts a cluster, measures once, and removes the cluster. With `probes`, disks are written to meanwhile, to tell how long acknowledgements
/// did not come for another reason than theirs.
pub fn trial(
    plan: &BenchPlan,
    metering: bool,
    probes: bool,
    context: &Context,
) -> Result<PublishTrial> {
    let mut private = PrivateCluster::start("bench-", plan, metering, context)?;
    let probe = match probes {
        true => Some(Probe::start(plan, context)?),
        false => None,
    };
    let job = PublishJob {
        ack_times: probe.as_ref().map(Probe::times),
        plan: plan.clone(),
        metering,
        stamped: false,
        connector: plan.connector(private.cluster.head(), context.progress.clone()),
        pids: private.pids(),
        data_brokers: private.data_brokers(),
        bar: context.bar("publishing", plan.total_bytes),
    };
    let mut trial = private
        .cluster
        .run("bench-publish", move |abort| job.run(abort))?;
    trial.stalls = probe.map(Probe::stop).transpose()?;
    private.stop();
    Ok(trial)
}

/// Publishing to a cluster that runs already.
pub struct PublishJob {
    /// What to publish.
    pub plan: BenchPlan,
    /// Whether stages are timed.
    pub metering: bool,
    /// Whether each message gets a sequence number and a checksum.
    pub stamped: bool,
    /// How clients reach the cluster.
    pub connector: Connector,
    /// Processes of the brokers.
    pub pids: Vec<u32>,
    /// Rows of the brokers that take data.
    pub data_brokers: Vec<u32>,
    /// Shows how many bytes were published.
    pub bar: Box<dyn Bar>,
    /// Times when acknowledgements come, if that is wanted.
    pub ack_times: Option<Arc<AckTimes>>,
}

impl PublishJob {
    /// Creates the topic, publishes, waits for the last acknowledgement.
    pub fn run(&self, abort: &Abort) -> Result<PublishTrial> {
        let plan = &self.plan;
        let admin = self.connector.admin()?;
        create_topic(&admin, plan)?;
        let (publisher, _reporter) = self.open()?;
        let before = broker_profile(&admin, &self.data_brokers)?;
        let disks_before = disk_profile::of_plan(&admin, plan)?;
        let done = AtomicU64::new(0);
        let meters = Meters::start(&self.pids)?;
        let started = Instant::now();
        if let Some(times) = &self.ack_times {
            times.begin();
        }
        thread::scope(|scope| -> Result<()> {
            let parts: Vec<_> = (0..plan.publishers)
                .map(|part| {
                    let (publisher, done) = (publisher.handle(), &done);
                    scope.spawn(move || self.publish_part(part, publisher, done, abort))
                })
                .collect();
            parts.into_iter().try_for_each(|part| {
                part.join()
                    .map_err(|_| anyhow!("a publishing thread panicked"))?
            })
        })?;
        publisher.flush()?;
        let elapsed = started.elapsed();
        let costs = meters.stop(plan.total_bytes)?;
        abort.check()?;
        let broker_profile = broker_profile(&admin, &self.data_brokers)?.since(&before);
        let disks = disk_profile::of_plan(&admin, plan)?;
        let publisher_profile = publisher.profile();
        publisher.close()?;
        Ok(PublishTrial {
            rate: Rate::new(plan.total_bytes, plan.messages, elapsed),
            costs,
            connections: Connections::of(&publisher_profile),
            metering: self.metering,
            broker_profile: self.metering.then_some(broker_profile),
            publisher_profile: self.metering.then_some(publisher_profile),
            disk_profile: disk_profile::since(disks, disks_before).filter(|_| self.metering),
            stalls: None,
        })
    }

    fn open(&self) -> Result<(Publisher, WaitReporter)> {
        let mut builder = builder(&self.plan, &self.connector)?.metering(self.metering);
        if let Some(times) = &self.ack_times {
            let times = Arc::clone(times);
            builder = builder.on_ack(move |delivery| times.acked(delivery));
        }
        open_reporting(builder, &self.connector)
    }

    /// Publishes the share of one application thread.
    fn publish_part(
        &self,
        part: u32,
        publisher: PublisherHandle,
        done: &AtomicU64,
        abort: &Abort,
    ) -> Result<()> {
        let (plan, parts) = (&self.plan, u64::from(self.plan.publishers));
        let first = plan.messages * u64::from(part) / parts;
        let end = plan.messages * (u64::from(part) + 1) / parts;
        let bytes = plan.message_bytes as usize;
        let message = filler(bytes);
        let mut stamper = self.stamped.then(|| Stamper::new(bytes));
        let mut next = first;
        while next < end {
            let until = end.min(next + LOOK_EVERY);
            match &mut stamper {
                None => (next..until).try_for_each(|_| publisher.publish(&message).map(drop))?,
                Some(stamper) => {
                    (next..until).try_for_each(|sequence| {
                        publisher.publish(stamper.stamp(sequence, 0)).map(drop)
                    })?;
                }
            }
            let bytes = (until - next) * bytes as u64;
            self.bar
                .set(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
            abort.check()?;
            next = until;
        }
        Ok(())
    }
}

/// Creates the topic of a plan.
pub fn create_topic(admin: &Admin, plan: &BenchPlan) -> Result<()> {
    let spec = TopicSpec::new(&plan.topic)
        .order(plan.order.try_into()?)
        .replication_factor(plan.replication_factor);
    admin
        .create_topic(spec)
        .wait()
        .with_context(|| format!("cannot create the topic {}", plan.topic))?;
    Ok(())
}

/// Opens the publisher of a plan, and a reporter of what it waits for.
pub fn open(
    plan: &BenchPlan,
    connector: &Connector,
    metering: bool,
) -> Result<(Publisher, WaitReporter)> {
    open_reporting(builder(plan, connector)?.metering(metering), connector)
}

fn open_reporting(
    builder: PublisherBuilder,
    connector: &Connector,
) -> Result<(Publisher, WaitReporter)> {
    let probe = WaitProbe::new();
    let reporter = connector.report_waits(&probe, None);
    Ok((builder.wait_probe(&probe).open()?, reporter))
}

/// The publisher of a plan, not open yet.
pub fn builder(plan: &BenchPlan, connector: &Connector) -> Result<PublisherBuilder> {
    Ok(Publisher::builder(connector.bootstrap())
        .transport(connector.transport())
        .topic(&plan.topic)
        .acks(plan.acks.try_into()?)
        .batch_bytes(plan.batch_bytes as usize)
        .threads_per_broker(plan.threads_per_broker)
        .spin(plan.spin)
        .auto_create(false))
}

/// The profile of these brokers together, since each of them started.
pub fn broker_profile(admin: &Admin, brokers: &[u32]) -> Result<Snapshot> {
    let mut merged: Option<Snapshot> = None;
    for broker in brokers {
        let profile = admin.profile(*broker).wait()?;
        merged = Some(match merged {
            None => profile,
            Some(merged) => merged.merge(&profile),
        });
    }
    merged.context("no broker of the cluster takes data yet")
}
