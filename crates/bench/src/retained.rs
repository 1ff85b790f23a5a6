//! Checks that the brokers evicted none of the messages that a bench published: only then can it read all of them.

use anyhow::Result;
use embar_console::connect::Connector;
use embar_console::setting::BadSetting;
use embar_console::size::Size;

use super::plan::BenchPlan;

/// An error if something was evicted already.
pub fn check(connector: &Connector, plan: &BenchPlan) -> Result<()> {
    let partitions = connector
        .admin()?
        .describe_topic(&plan.topic)
        .wait()?
        .partitions;
    let evicted: u64 = partitions.iter().map(|partition| partition.first).sum();
    if evicted > 0 {
        let why = format!(
            "{} do not fit into a region of {}: {evicted} messages were evicted",
            Size(plan.total_bytes),
            Size(plan.region_bytes)
        );
        return Err(BadSetting::new(&["total_bytes", "region_bytes"], why).into());
    }
    Ok(())
}
