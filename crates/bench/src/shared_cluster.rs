//! Runs trials of publishing one after the other on the same cluster. Each trial has a new topic, which is deleted
//! after it.

use anyhow::{Context as _, Result};
use embar_console::connect::Connector;
use embar_console::context::Context;
use embar_supervise::work::Abort;

use super::plan::{BenchPlan, TOPIC};
use super::private_cluster::PrivateCluster;
use super::publish::{PublishJob, PublishTrial};

/// What trials know of the cluster.
pub struct SharedCluster {
    /// How clients reach the cluster.
    pub connector: Connector,
    /// Where trials report their progress.
    pub context: Context,
    metering: bool,
    pids: Vec<u32>,
    data_brokers: Vec<u32>,
}

impl SharedCluster {
    /// `metering`: publishers time their stages. Clients connect as the plan says.
    pub fn new(
        private: &PrivateCluster,
        plan: &BenchPlan,
        metering: bool,
        context: &Context,
    ) -> Self {
        Self {
            connector: plan.connector(private.cluster.head(), context.progress.clone()),
            context: context.clone(),
            metering,
            pids: private.pids(),
            data_brokers: private.data_brokers(),
        }
    }

    /// Runs one trial of publishing, and deletes its topic.
    pub fn publish(&self, plan: &BenchPlan, abort: &Abort) -> Result<PublishTrial> {
        let job = PublishJob {
            ack_times: None,
            plan: plan.clone(),
            metering: self.metering,
            stamped: false,
            connector: self.connector.clone(),
            pids: self.pids.clone(),
            data_brokers: self.data_brokers.clone(),
            bar: self.context.bar("publishing", plan.total_bytes),
        };
        let trial = job.run(abort)?;
        self.delete_topic()?;
        Ok(trial)
    }

    /// Makes room for the next trial's topic.
    pub fn delete_topic(&self) -> Result<()> {
        let deleted = self.connector.admin()?.delete_topic(TOPIC).wait();
        deleted.with_context(|| format!("cannot delete the topic {TOPIC}"))
    }
}
