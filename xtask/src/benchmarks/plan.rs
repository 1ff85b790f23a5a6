//! The list of all measurements: the command of each, and what is kept of its report.

use super::results::{
    BesideWalls, Compared, DiagnoseMatrix, EndToEnd, Latency, LogPeers, Metering, Peers, Report,
    Scale, SessionPeers, Sessions, Throughput, reduced,
};
use serde_json::Value;

/// One command whose result is kept.
pub struct Measurement {
    /// Names the file in `benches/results`.
    pub name: &'static str,
    /// As a user types it, without `--json`.
    pub command: &'static str,
    /// Keeps what is drawn of the JSON that the command prints.
    pub reduce: fn(&str) -> anyhow::Result<Value>,
}

const fn of<R: Report>(name: &'static str, command: &'static str) -> Measurement {
    Measurement {
        name,
        command,
        reduce: reduced::<R>,
    }
}

/// All of them, in the order in which they run.
pub const MEASUREMENTS: [Measurement; 20] = [
    of::<Throughput>("publish", "embar bench publish -s 10GiB --wall --trials 6"),
    of::<Throughput>(
        "publish-small",
        "embar bench publish -m 64 -s 2GiB --trials 6",
    ),
    of::<Throughput>("read", "embar bench read --wall --trials 6"),
    of::<BesideWalls>("walls", "embar bench walls --trials 6 -s 512MiB"),
    of::<Scale>("scale", "embar bench scale --duration 300ms"),
    of::<EndToEnd>("e2e", "embar bench e2e --rate 200MiB -s 1GiB"),
    of::<Metering>("metering", "embar bench metering"),
    of::<Metering>("metering-attached", "embar bench metering --attached"),
    of::<Compared>(
        "order-small-batches",
        "embar bench publish --compare order=0,1,2,5 -m 1024 --batch-size 16KiB -s 1GiB",
    ),
    of::<Compared>(
        "order-large-batches",
        "embar bench publish --compare order=0,1,2,5 -m 1024 --batch-size 2MiB -s 4GiB --rounds 16",
    ),
    of::<DiagnoseMatrix>(
        "diagnose-matrix",
        "embar diagnose --matrix 20 --for 2s --warm-up 700ms",
    ),
    of::<DiagnoseMatrix>(
        "diagnose-remedies",
        "embar diagnose --matrix 2 --verify --for 2s --warm-up 700ms",
    ),
    of::<Latency>("latency", "embar bench latency --trials 4"),
    of::<Sessions>("session-blocking", "embar bench session"),
    of::<Sessions>("session-spinning", "embar bench session --spin-us 50"),
    of::<Sessions>(
        "session-one-way",
        "embar bench session --one-way --iterations 5000000 --send zerocopy",
    ),
    of::<Peers>(
        "redis",
        "cargo run --release --manifest-path benches/peers/Cargo.toml -- table --rounds 3 --duration 1 --warm-up 0.5",
    ),
    of::<Peers>(
        "redis-pipelines",
        "cargo run --release --manifest-path benches/peers/Cargo.toml -- table --clients embar --explicit \
         --redis-benchmark --pipeline 64 --callers 8 --operations set,get --threads 1",
    ),
    of::<LogPeers>(
        "log-peers",
        "cargo run --release --manifest-path benches/log-peers/Cargo.toml -- --rounds 3",
    ),
    of::<SessionPeers>(
        "session-peers",
        "cargo run --release --manifest-path benches/session-peers/Cargo.toml -- --rounds 6",
    ),
];

/// What the commands of the Redis client measure against.
pub const REDIS_CLUSTER: &str =
    "cargo run --release -p embar-redis-servers --example cluster -- 5 0 7000";

#[cfg(test)]
mod tests {
    use super::MEASUREMENTS;
    use crate::workspace::Workspace;
    use std::collections::HashSet;
    use std::fs;

    #[test]
    fn no_two_measurements_have_one_name() {
        let names: HashSet<_> = MEASUREMENTS.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), MEASUREMENTS.len());
    }
    #[test]
    fn each_kept_result_is_of_a_measurement() {
        let folder = Workspace::find().root().join("benches/results");
        let mut kept = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            if let Some(name) = file.strip_suffix(".json") {
                assert!(MEASUREMENTS.iter().any(|one| one.name == name), "{name}");
                kept += 1;
            }
        }
        assert!(kept > 0);
    }
}
