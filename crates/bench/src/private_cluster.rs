//! Starts brokers for one command alone, on free ports and with a region of their own. Also removes what such commands
//! left when they were killed.

use std::time::Duration;

use anyhow::{Result, bail};
use embar_broker::BrokerConfig;
use embar_console::context::Context;
use embar_supervise::logs;
use embar_supervise::regions;
use embar_supervise::{Cluster, ClusterPlan};
use tempfile::TempDir;

use super::plan::BenchPlan;

/// A cluster on free ports with a region of its own. Everything goes when it is dropped, its logs too.
pub struct PrivateCluster {
    /// The processes.
    pub cluster: Cluster,
    logs: TempDir,
}

impl PrivateCluster {
    /// Starts it; `prefix` is one of [`regions::TEMPORARY_PREFIXES`].
    pub fn start(
        prefix: &str,
        plan: &BenchPlan,
        metering: bool,
        context: &Context,
    ) -> Result<Self> {
        Self::start_with(prefix, plan, context, |cluster| {
            cluster.config.metering = metering;
        })
    }

    /// As [`start`](Self::start), with metering; `change` sees the plan of the cluster before it starts.
    pub fn start_with(
        prefix: &str,
        plan: &BenchPlan,
        context: &Context,
        change: impl FnOnce(&mut ClusterPlan),
    ) -> Result<Self> {
        let logs = logs::temporary()?;
        let receive = plan.receive;
        let mut plan = ClusterPlan {
            program: context.program.clone(),
            brokers: plan.brokers,
            spares: 0,
            standbys: 0,
            region: regions::temporary(prefix),
            region_bytes: plan.region_bytes,
            topics: None,
            fresh: true,
            temporary: true,
            kill_with_parent: Vec::new(),
            log_dir: logs.path().to_owned(),
            grace: Duration::from_secs(2),
            config: BrokerConfig {
                network_threads: plan.network_threads,
                receive: plan.receive,
                spin: plan.spin,
                max_batch_bytes: plan.batch_bytes.max(2 << 20),
                ..BrokerConfig::default()
            },
        };
        change(&mut plan);
        let cluster = Cluster::start(plan, context)?;
        if let Some(other) = cluster.brokers().find(|broker| broker.receive != receive) {
            bail!(
                "this machine does not allow brokers to receive as asked for, {receive}: they use {}; start one with `embar broker --head --receive {receive}` to see why",
                other.receive
            );
        }
        Ok(Self { cluster, logs })
    }

    /// Process ids of all brokers.
    pub fn pids(&self) -> Vec<u32> {
        self.cluster.brokers().map(|broker| broker.pid).collect()
    }

    /// Rows of the brokers that take data.
    pub fn data_brokers(&self) -> Vec<u32> {
        let all = self.cluster.brokers().map(|broker| u32::from(broker.id));
        if self.cluster.plan().brokers == 1 {
            all.collect()
        } else {
            all.filter(|id| *id != 0).collect()
        }
    }

    /// Ends it in order.
    pub fn stop(self) {
        let Self { cluster, logs } = self;
        cluster.stop();
        drop(logs);
    }
}

/// Frees what benches and verifications that were killed left in memory, and removes their logs; says so.
pub fn sweep(context: &Context) {
    for dir in regions::sweep().into_iter().chain(logs::sweep()) {
        context.note(format_args!(
            "removed {}, left by a run that was killed",
            dir.display()
        ));
    }
}
