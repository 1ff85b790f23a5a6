//! Whether everything that was published can still be read.

use anyhow::Result;

use super::plan::{BenchPlan, TOPIC};
use embar_console::connect::ConnectArgs;
use embar_console::exit;
use embar_console::size::Size;

/// An error with advice when something was evicted already.
pub fn check(connect: &ConnectArgs, plan: &BenchPlan) -> Result<()> {
    let partitions = connect.admin()?.describe_topic(TOPIC).wait()?.partitions;
    let evicted: u64 = partitions.iter().map(|partition| partition.first).sum();
    if evicted > 0 {
        return Err(exit::usage(format!(
            "{} do not fit into a region of {}: {evicted} messages were evicted; lower --size or raise --region-size",
            Size(plan.total_bytes),
            Size(plan.region_bytes)
        )));
    }
    Ok(())
}
