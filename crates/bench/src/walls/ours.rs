//! Trials of the log beside the walls: all of them on one cluster, with a topic for each order level.

mod beside;
mod round_trips;

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use embar_client::{Start, Subscriber, Transport};
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_console::progress::Bar;
use embar_supervise::work::Abort;

use super::plan::{Case, Direction, Path, WallsPlan};
use crate::e2e::E2eJob;
use crate::plan::BenchPlan;
use crate::private_cluster::PrivateCluster;
use crate::publish::PublishJob;
use crate::read::ReadJob;
use crate::reader::Reader;
use crate::retained;
use crate::usage::Connections;

/// Threads of a subscriber have names that begin so.
const SUBSCRIBER_THREAD: &str = "embar-sub";
/// Messages between two looks at whose threads there are.
const LOOK_EVERY: u64 = 1024;
/// How long a subscriber may wait for a message.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What trials know of the cluster.
pub struct Ours {
    plan: WallsPlan,
    connector: Connector,
    pids: Vec<u32>,
    data_brokers: Vec<u32>,
    spin: Duration,
}

/// The run has one bar for all trials.
struct NoBar;

impl Bar for NoBar {
    fn set(&self, _done_bytes: u64) {}
}

impl Ours {
    /// Trials on this cluster. Clients whose times are measured look for so long before they sleep.
    pub fn new(
        plan: &WallsPlan,
        private: &PrivateCluster,
        spin: Duration,
        context: &Context,
    ) -> Self {
        Self {
            plan: plan.clone(),
            connector: Connector::to(private.cluster.head(), context.progress.clone()),
            pids: private.pids(),
            data_brokers: private.data_brokers(),
            spin,
        }
    }

    /// Prepares trials of `case`: what is to be read must be there.
    pub fn begin(&self, case: Case, abort: &Abort) -> Result<()> {
        if case.path.is_read() {
            for &order in &self.plan.orders {
                let plan = self.plan_of(case, order);
                self.publish(&plan, true, abort)?;
                retained::check(&self.connector, &plan)?;
            }
        }
        Ok(())
    }

    /// Removes what [`begin`](Self::begin) made.
    pub fn end(&self, path: Path) -> Result<()> {
        if path.is_read() {
            self.plan
                .orders
                .iter()
                .try_for_each(|order| self.delete(&topic(*order)))?;
        }
        Ok(())
    }

    /// How many threads receive for a subscriber of what [`begin`](Self::begin) made. It reads a part of it, because
    /// threads may start when there is work for them.
    pub fn receiving_threads(&self, path: Path, abort: &Abort) -> Result<u16> {
        let order = self
            .plan
            .orders
            .first()
            .context("there is an order level")?;
        let mut subscriber = Subscriber::builder(self.connector.bootstrap())
            .transport(path.client_transport())
            .topic(topic(*order))
            .from(Start::Earliest)
            .until_end(true)
            .open()?;
        let (mut threads, mut messages) = (0, 0u64);
        while subscriber.next_timeout(SILENCE_MAX)?.is_some() {
            messages += 1;
            if messages == 1 || messages.is_multiple_of(LOOK_EVERY) {
                abort.check()?;
                threads = threads.max(threads_named(SUBSCRIBER_THREAD)?);
            }
        }
        ensure!(threads > 0, "a subscriber has no thread of its own");
        Ok(threads)
    }

    /// Runs one trial; returns MiB/s.
    pub fn trial(&self, case: Case, order: u32, reader: Reader, abort: &Abort) -> Result<f64> {
        let plan = self.plan_of(case, order);
        match case.path.direction() {
            Direction::Publish => {
                let rate = self.publish(&plan, false, abort)?;
                self.delete(&plan.topic)?;
                Ok(rate)
            }
            Direction::Read => self.read(&plan, reader, abort),
            Direction::E2e => {
                let rate = self.e2e(&plan, reader, abort)?;
                self.delete(&plan.topic)?;
                Ok(rate)
            }
            Direction::Ack | Direction::Delivery | Direction::Beside => {
                bail!("{} has no rate of one client alone", case.path.name())
            }
        }
    }

    fn plan_of(&self, case: Case, order: u32) -> BenchPlan {
        BenchPlan {
            spin: self.spin,
            ..self.plan.ours(case, order, &topic(order))
        }
    }

    /// The way to the cluster for the clients of a plan.
    fn connector_of(&self, plan: &BenchPlan) -> Connector {
        self.connector.clone().by(plan.transport)
    }

    fn publish(&self, plan: &BenchPlan, stamped: bool, abort: &Abort) -> Result<f64> {
        let job = PublishJob {
            ack_times: None,
            plan: plan.clone(),
            metering: true,
            stamped,
            connector: self.connector_of(plan),
            pids: self.pids.clone(),
            data_brokers: self.data_brokers.clone(),
            bar: Box::new(NoBar),
        };
        let trial = job.run(abort)?;
        check_transport(plan, trial.connections)?;
        Ok(trial.rate.mib_per_s)
    }

    fn read(&self, plan: &BenchPlan, reader: Reader, abort: &Abort) -> Result<f64> {
        let job = ReadJob {
            topic: plan.topic.clone(),
            messages: plan.messages,
            message_bytes: plan.message_bytes,
            reader,
            metering: true,
            spin: plan.spin,
            connector: self.connector_of(plan),
            pids: self.pids.clone(),
            bar: Box::new(NoBar),
        };
        let trial = job.run(abort)?;
        check_transport(plan, trial.connections)?;
        Ok(trial.rate.mib_per_s)
    }

    fn e2e(&self, plan: &BenchPlan, reader: Reader, abort: &Abort) -> Result<f64> {
        let job = E2eJob {
            plan: plan.clone(),
            reader,
            window_bytes: plan.region_bytes / 4,
            bytes_per_s: None,
            metering: true,
            connector: self.connector_of(plan),
            pids: self.pids.clone(),
            data_brokers: self.data_brokers.clone(),
            bar: Box::new(NoBar),
        };
        Ok(job.run(abort)?.rate.mib_per_s)
    }

    fn delete(&self, topic: &str) -> Result<()> {
        let deleted = self.connector.admin()?.delete_topic(topic).wait();
        deleted.with_context(|| format!("cannot delete the topic {topic}"))
    }
}

/// An error if a connection was not of the kind that the path is about.
fn check_transport(plan: &BenchPlan, connections: Connections) -> Result<()> {
    let Connections {
        tcp_connections: tcp,
        unix_connections: unix,
        shm_connections: shm,
    } = connections;
    let other = match plan.transport {
        Transport::Unix => tcp + shm,
        Transport::Shm => tcp + unix,
        _ => unix + shm,
    };
    ensure!(
        other == 0,
        "{other} connections were not by {}",
        plan.transport
    );
    Ok(())
}

/// Threads of this process whose names begin so.
fn threads_named(begin: &str) -> Result<u16> {
    let mut threads = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread that has ended meanwhile has no name.
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        threads += u16::from(name.starts_with(begin));
    }
    Ok(threads)
}

fn topic(order: u32) -> String {
    format!("walls-{order}")
}
