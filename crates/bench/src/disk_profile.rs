//! Where the time of the way to and from the disks went, and how much was written for what was published.

use anyhow::Result;
use embar_client::Admin;
use embar_meter::Snapshot;
use embar_meter::table::grouped;
use embar_wire::control::BrokerState;
use serde::Serialize;

use super::plan::BenchPlan;

/// That of all brokers together, since each of them started: one of them writes, and those that take data read. `None` where the log
/// has no disks.
///
/// # Errors
/// A broker does not answer.
pub fn of_all(admin: &Admin) -> Result<Option<Snapshot>> {
    let brokers = admin.metadata().wait()?.brokers;
    let present = brokers.iter().filter(|it| it.state != BrokerState::Left);
    let profiles = present.map(|broker| Ok(admin.disk_profile(broker.id).wait()?));
    let profiles = profiles.collect::<Result<Vec<_>>>()?.into_iter().flatten();
    Ok(profiles.reduce(|sum, it| sum.merge(&it)))
}

/// The same of a cluster of this plan, which is not asked if it has no disks.
///
/// # Errors
/// A broker does not answer.
pub fn of_plan(admin: &Admin, plan: &BenchPlan) -> Result<Option<Snapshot>> {
    match plan.data.is_empty() {
        true => Ok(None),
        false => of_all(admin),
    }
}

/// What was added after an earlier one.
pub fn since(now: Option<Snapshot>, before: Option<Snapshot>) -> Option<Snapshot> {
    match (now, before) {
        (Some(now), Some(before)) => Some(now.since(&before)),
        (now, _) => now,
    }
}

/// Numbers derived from the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DiskDerived {
    /// Bytes written for each byte of payload; `None` while nothing was written.
    pub write_amplification: Option<f64>,
    /// Bytes of a commit.
    pub bytes_per_commit: Option<f64>,
}

impl DiskDerived {
    /// Derives them from a profile of disks.
    pub fn of(profile: &Snapshot) -> Self {
        let counter = |name: &str| profile.counter(name).unwrap_or(0) as f64;
        let ratio = |a: f64, b: f64| (b > 0.0).then(|| a / b);
        Self {
            write_amplification: ratio(counter("bytes"), counter("payload_bytes")),
            bytes_per_commit: ratio(counter("bytes"), counter("commits")),
        }
    }
}

/// A profile with the numbers derived from it.
pub fn text(profile: &Snapshot) -> String {
    let derived = DiskDerived::of(profile);
    let amplification = derived
        .write_amplification
        .map(|it| ("write amplification".to_owned(), format!("{it:.3}")));
    let commit = derived
        .bytes_per_commit
        .map(|it| ("bytes per commit".to_owned(), grouped(it as u64)));
    let lines: Vec<_> = amplification.into_iter().chain(commit).collect();
    profile.with_lines(&lines).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_compared_with_what_was_published() {
        let schema = &embar_broker::profile::disk::SCHEMA;
        let counters = |values: [u64; 5]| {
            let names = schema.counters.iter().map(|name| (*name).to_owned());
            Snapshot::new(schema.title, [], names.zip(values))
        };
        let before = counters([1, 1000, 1000, 0, 0]);
        let now = counters([5, 9000, 8000, 0, 0]);
        let added = since(Some(now), Some(before)).expect("there are disks");
        let derived = DiskDerived::of(&added);
        assert_eq!(derived.write_amplification, Some(8.0 / 7.0));
        assert_eq!(derived.bytes_per_commit, Some(2000.0));
        assert!(text(&added).contains("write amplification  1.143"));
        let nothing = counters([0; 5]);
        assert_eq!(DiskDerived::of(&nothing), DiskDerived::default());
        assert!(!text(&nothing).contains("amplification"));
    }
}
