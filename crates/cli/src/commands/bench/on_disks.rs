//! Options by which the topics of a bench are on disks.

use std::path::PathBuf;

use clap::Args;
use embar_bench::plan::BenchPlan;

use crate::replication_factor::replication_factor;

/// On how many disks topics are, and where these are.
#[derive(Args, Clone, Debug)]
pub struct OnDisks {
    /// 1: the topic is in memory alone; 2: in memory and on one disk; 3: in memory and on two, and so on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = replication_factor())]
    pub replication_factor: u8,
    /// A directory on a disk, once for each disk that topics are on. Each cluster has a new one below it, which is removed
    /// at its end
    #[arg(long, value_name = "DIR")]
    pub data: Vec<PathBuf>,
    /// Take directories on one device, although all are lost when it fails: for tests
    #[arg(long, requires = "data")]
    pub same_device_is_fine: bool,
}

impl OnDisks {
    /// The names of these options.
    pub const IDS: [&str; 3] = ["replication_factor", "data", "same_device_is_fine"];

    /// A plan with these options.
    pub fn of(&self, plan: BenchPlan) -> BenchPlan {
        BenchPlan {
            replication_factor: self.replication_factor,
            data: self.data.clone(),
            same_device_is_fine: self.same_device_is_fine,
            ..plan
        }
    }
}
