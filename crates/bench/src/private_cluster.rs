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
use super::scratch;

/// Bytes that a disk must have room for beside what is published: the segment that is written is reserved as a whole.
const SPARE_BYTES: u64 = 256 << 20;

/// A cluster on free ports with a region of its own, and with directories of its own on the disks of its plan. Everything goes
/// when it is dropped, its logs too.
pub struct PrivateCluster {
    /// The processes.
    pub cluster: Cluster,
    files: Files,
}

/// What a cluster has on disks.
struct Files {
    logs: TempDir,
    /// One on each disk.
    data: Vec<TempDir>,
}

impl Files {
    fn make(plan: &BenchPlan, context: &Context) -> Result<Self> {
        // A sixteenth more: headers.
        let needed = plan.total_bytes + plan.total_bytes / 16 + SPARE_BYTES;
        let places = plan.data.iter();
        let data = places.map(|place| scratch::make(place, needed, context));
        Ok(Self {
            data: data.collect::<Result<_>>()?,
            logs: logs::temporary()?,
        })
    }
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
        let files = Files::make(plan, context)?;
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
            log_dir: files.logs.path().to_owned(),
            grace: Duration::from_secs(2),
            config: BrokerConfig {
                network_threads: plan.network_threads,
                receive: plan.receive,
                spin: plan.spin,
                max_batch_bytes: plan.batch_bytes.max(2 << 20),
                data: files.data.iter().map(|dir| dir.path().to_owned()).collect(),
                same_device_is_fine: plan.same_device_is_fine,
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
        Ok(Self { cluster, files })
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
        let Self { cluster, files } = self;
        cluster.stop();
        drop(files);
    }

    /// Ends it, and starts it again with what its disks have: nothing of the log is in memory then.
    pub fn lose_memory(self, context: &Context) -> Result<Self> {
        let Self { cluster, files } = self;
        let plan = cluster.plan().clone();
        cluster.stop();
        let cluster = Cluster::start(plan, context)?;
        Ok(Self { cluster, files })
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
