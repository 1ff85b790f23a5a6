//! Reads the files of `benches/results`: what is kept of each measurement.
//!
//! Of the JSON that a command prints, these types have only the fields from which a table or a picture is drawn. The
//! others are dropped before the result is kept. A field is optional if some kept result lacks it.

use super::numbers::{bytes, grouped};
use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

mod compared;
mod diagnosis;

pub use compared::{Compared, Comparison};
pub use diagnosis::{DiagnoseMatrix, MatrixRow};

/// What a command reports.
pub trait Report: Serialize + DeserializeOwned {}
impl<R: Serialize + DeserializeOwned> Report for R {}

/// A file of `benches/results`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded<R> {
    pub measured: Measured,
    /// The command that made it.
    pub command: String,
    pub report: R,
}

#[cfg(test)]
impl<R: serde::de::DeserializeOwned> Recorded<R> {
    /// A report of this JSON, measured on a machine that does not matter.
    pub fn for_test(report: &str) -> Self {
        Self {
            measured: Measured {
                machine: "2 cores".into(),
                commit: "1234567".into(),
                date: None,
                note: None,
            },
            command: "measure".into(),
            report: serde_json::from_str(report).expect("a report"),
        }
    }
}

/// Where, when, and of what.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub machine: String,
    /// What was checked out, abbreviated; with `+` if something else was changed.
    pub commit: String,
    /// `2026-01-31`, in UTC; `null` if it was not written down.
    pub date: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A figure with its interval; either may not have been written down.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Interval {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Interval {
    /// Of what takes `self` as long: twice the time is half the speed.
    pub fn inverse(self) -> Self {
        let inverse = |number: Option<f64>| number.map(|number| 1.0 / number);
        Self {
            point: inverse(self.point),
            low: inverse(self.high),
            high: inverse(self.low),
        }
    }
}

/// `embar bench publish` and `embar bench read`.
#[derive(Serialize, Deserialize)]
pub struct Throughput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_mib_per_s: Option<f64>,
    pub messages_per_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<Walls>,
}

/// What bare sockets did in the same run.
#[derive(Serialize, Deserialize)]
pub struct Walls {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_to_working: Option<Ratio>,
    pub ratio_to_bare: Ratio,
}

/// One comparison of two configurations.
#[derive(Serialize, Deserialize)]
pub struct Ratio {
    pub ratio: Interval,
}

/// `embar bench e2e`
#[derive(Serialize, Deserialize)]
pub struct EndToEnd {
    pub trials: Vec<Delivery>,
}

#[derive(Serialize, Deserialize)]
pub struct Delivery {
    pub latency_us: Percentiles,
}

/// Microseconds.
#[derive(Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
}

/// `embar bench metering`
#[derive(Serialize, Deserialize)]
pub struct Metering {
    pub series: Vec<Series>,
    pub metering_cost: MeteringCost,
}

#[derive(Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub median_mib_per_s: f64,
}

#[derive(Serialize, Deserialize)]
pub struct MeteringCost {
    pub pairs: u64,
    pub loss: Loss,
}

/// Shares of the rate: 0.01 is one in a hundred.
#[derive(Serialize, Deserialize)]
pub struct Loss {
    pub point: f64,
    pub upper: f64,
}

/// `embar bench latency`
#[derive(Serialize, Deserialize)]
pub struct Latency {
    pub alone: Vec<OrderLatency>,
    pub loaded: Vec<OrderLatency>,
}

#[derive(Serialize, Deserialize)]
pub struct OrderLatency {
    /// `null` of the bare round trip.
    pub order: Option<u8>,
    pub latency_us: Percentiles,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
}

/// `embar bench session`
#[derive(Serialize, Deserialize)]
pub struct Sessions {
    pub median: BTreeMap<String, SessionMedian>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<SessionWall>,
    pub comparisons: Vec<Comparison>,
}

#[derive(Serialize, Deserialize)]
pub struct SessionMedian {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<SessionIntervals>,
}

#[derive(Serialize, Deserialize)]
pub struct SessionIntervals {
    pub messages_per_s: Interval,
}

#[derive(Serialize, Deserialize)]
pub struct SessionWall {
    pub median: SessionMedian,
}

impl Sessions {
    /// The `metric` of a phase divided by that of bare sockets.
    pub fn to_wall(&self, metric: &str, phase: &str) -> Option<Interval> {
        let found = self.comparisons.iter().find(|one| {
            one.metric.as_deref() == Some(metric) && one.baseline == "wall" && one.changed == phase
        })?;
        Some(found.ratio)
    }
}

/// `table` of `benches/peers`
#[derive(Serialize, Deserialize)]
pub struct Peers {
    pub columns: Vec<String>,
    pub cells: Vec<PeerCell>,
}

#[derive(Serialize, Deserialize)]
pub struct PeerCell {
    pub threads: u64,
    pub operation: String,
    pub callers: u64,
    /// By column.
    pub clients: Vec<Option<PeerFigures>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_best_peer: Option<Spread>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_redis_benchmark: Option<Spread>,
}

impl PeerCell {
    /// Our client's figures, in the first column.
    pub fn ours(&self) -> Option<&PeerFigures> {
        self.clients.first()?.as_ref()
    }

    /// The fastest other client, by its median.
    pub fn best_peer<'a>(&self, columns: &'a [String]) -> Option<(&'a str, &PeerFigures)> {
        let peers = columns.iter().zip(&self.clients).skip(1);
        let peers = peers.filter_map(|(name, figures)| Some((name.as_str(), figures.as_ref()?)));
        peers.max_by(|(_, a), (_, b)| a.ops_per_s.median.total_cmp(&b.ops_per_s.median))
    }
}

#[derive(Serialize, Deserialize)]
pub struct PeerFigures {
    pub ops_per_s: Middle,
    pub client_cpu_us_per_op: Middle,
}

#[derive(Serialize, Deserialize)]
pub struct Middle {
    pub median: f64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl From<Spread> for Interval {
    fn from(spread: Spread) -> Self {
        Self {
            point: Some(spread.median),
            low: Some(spread.min),
            high: Some(spread.max),
        }
    }
}

/// `embar bench walls`
#[derive(Serialize, Deserialize)]
pub struct BesideWalls {
    pub rows: Vec<BesideWall>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<TimeBesideWall>,
}

/// A row of it.
#[derive(Serialize, Deserialize)]
pub struct BesideWall {
    pub path: String,
    pub order: u8,
    pub batch_bytes: u64,
    #[serde(default = "usual_message_bytes")]
    pub message_bytes: u64,
    /// Brokers of ours.
    #[serde(default = "usual_brokers")]
    pub brokers: u16,
    /// What became of each message that was read.
    #[serde(default = "usual_reader")]
    pub reader: String,
    pub wall: String,
    pub wall_gb_per_s: f64,
    /// `null` where only the wall was measured, as its interval.
    pub ours_gb_per_s: Option<f64>,
    pub interval: Option<Interval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_gb_per_s: Option<f64>,
}

/// What reports had that did not say it, as the two below.
fn usual_brokers() -> u16 {
    4
}

fn usual_reader() -> String {
    "verifies".to_owned()
}

fn usual_message_bytes() -> u64 {
    1024
}

/// A row of it whose figures are times.
#[derive(Serialize, Deserialize)]
pub struct TimeBesideWall {
    pub path: String,
    pub order: u8,
    pub wall: String,
    pub spins: bool,
    pub wall_p50_ns: f64,
    pub wall_p99_ns: f64,
    /// `null` where only the wall was measured, as the other of ours and their interval.
    pub ours_p50_ns: Option<f64>,
    pub ours_p99_ns: Option<f64>,
    pub interval: Option<Interval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ns: Option<f64>,
}

/// `embar bench scale`
#[derive(Serialize, Deserialize)]
pub struct Scale {
    pub curves: Vec<CostCurve>,
}

#[derive(Serialize, Deserialize)]
pub struct CostCurve {
    pub curve: String,
    pub points: Vec<CostPoint>,
    pub cpu_cliffs: Vec<Cliff>,
    pub time_cliffs: Vec<Cliff>,
}

/// Without figures where it could not be run.
#[derive(Serialize, Deserialize)]
pub struct CostPoint {
    pub value: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gib: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_message: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Sides>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Sides {
    pub client: Side,
    pub brokers: Side,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Side {
    pub cpu_s_per_gib: f64,
}

/// From one point to the next the cost of a GiB grows by the factor.
#[derive(Serialize, Deserialize)]
pub struct Cliff {
    pub from: u64,
    pub to: u64,
    pub factor: f64,
}

impl CostCurve {
    /// A point as people write it.
    pub fn show(&self, value: u64) -> String {
        match self.curve.as_str() {
            "messages" | "batches" => bytes(value),
            _ => grouped(value as f64),
        }
    }
}

/// `benches/log-peers`
#[derive(Serialize, Deserialize)]
pub struct LogPeers {
    pub message_size: u64,
    pub rounds: u64,
    pub rows: Vec<LogPeer>,
    /// Each of our settings, divided by the fastest peer over TCP.
    pub of_best_peer: Vec<OfBestLog>,
}

/// One way to use a log.
#[derive(Serialize, Deserialize)]
pub struct LogPeer {
    pub log: String,
    /// By what it is reached: `tcp`, `unix` or `shm`.
    pub way: String,
    pub settings: String,
    pub promises: String,
    pub publish: Option<LogFigures>,
    pub read: Option<LogFigures>,
    pub at_once: Option<LogFigures>,
}

#[derive(Serialize, Deserialize)]
pub struct LogFigures {
    pub mib_per_s: f64,
    pub ours_to_it: Option<Spread>,
}

#[derive(Serialize, Deserialize)]
pub struct OfBestLog {
    pub settings: String,
    pub publish: Option<Spread>,
    pub read: Option<Spread>,
}

/// `benches/session-peers`
#[derive(Serialize, Deserialize)]
pub struct SessionPeers {
    pub payload_bytes: u64,
    pub tests: Vec<SessionPeersTest>,
}

#[derive(Serialize, Deserialize)]
pub struct SessionPeersTest {
    pub test: String,
    pub rows: Vec<SessionPeer>,
    pub of_best_peer: Option<Spread>,
}

/// Costs are those of both ends.
#[derive(Serialize, Deserialize)]
pub struct SessionPeer {
    pub peer: String,
    pub messages_per_s: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub cpu_us_per_message: Option<f64>,
    pub allocations_per_message: Option<f64>,
    pub allocated_bytes_per_message: Option<f64>,
    pub peak_mib: Option<f64>,
    pub ours_to_it: Option<Spread>,
}

/// All that was kept.
pub struct Results {
    pub publish: Recorded<Throughput>,
    pub publish_small: Recorded<Throughput>,
    pub read: Recorded<Throughput>,
    pub e2e: Recorded<EndToEnd>,
    pub metering: Recorded<Metering>,
    pub metering_attached: Recorded<Metering>,
    pub order_small: Recorded<Compared>,
    pub order_large: Recorded<Compared>,
    pub latency: Recorded<Latency>,
    pub session_blocking: Recorded<Sessions>,
    pub session_spinning: Recorded<Sessions>,
    pub session_one_way: Recorded<Sessions>,
    pub redis: Recorded<Peers>,
    pub redis_pipelines: Recorded<Peers>,
    pub walls: Recorded<BesideWalls>,
    pub diagnose_matrix: Recorded<DiagnoseMatrix>,
    pub diagnose_remedies: Recorded<DiagnoseMatrix>,
    pub scale: Recorded<Scale>,
    pub log_peers: Recorded<LogPeers>,
    pub session_peers: Recorded<SessionPeers>,
}

impl Results {
    /// Reads `benches/results`.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            publish: read(root, "publish")?,
            publish_small: read(root, "publish-small")?,
            read: read(root, "read")?,
            e2e: read(root, "e2e")?,
            metering: read(root, "metering")?,
            metering_attached: read(root, "metering-attached")?,
            order_small: read(root, "order-small-batches")?,
            order_large: read(root, "order-large-batches")?,
            latency: read(root, "latency")?,
            session_blocking: read(root, "session-blocking")?,
            session_spinning: read(root, "session-spinning")?,
            session_one_way: read(root, "session-one-way")?,
            redis: read(root, "redis")?,
            redis_pipelines: read(root, "redis-pipelines")?,
            walls: read(root, "walls")?,
            diagnose_matrix: read(root, "diagnose-matrix")?,
            diagnose_remedies: read(root, "diagnose-remedies")?,
            scale: read(root, "scale")?,
            log_peers: read(root, "log-peers")?,
            session_peers: read(root, "session-peers")?,
        })
    }
}

/// The file of a measurement.
pub fn path(root: &Path, name: &str) -> PathBuf {
    root.join(format!("benches/results/{name}.json"))
}

fn read<R: Report>(root: &Path, name: &str) -> anyhow::Result<Recorded<R>> {
    let path = path(root, name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// What is kept of the JSON that a command prints.
pub fn reduced<R: Report>(json: &str) -> anyhow::Result<Value> {
    let report: R = serde_json::from_str(json)?;
    Ok(serde_json::to_value(report)?)
}

#[cfg(test)]
mod tests {
    use super::{Interval, Throughput, reduced};

    #[test]
    fn only_what_is_drawn_is_kept() {
        let json = r#"{"bench": "read", "median_mib_per_s": 2.5, "messages_per_s": 7.0, "trials": [1, 2]}"#;
        let kept = reduced::<Throughput>(json).unwrap();
        assert_eq!(
            kept.to_string(),
            r#"{"median_mib_per_s":2.5,"messages_per_s":7.0}"#
        );
    }

    #[test]
    fn a_report_of_something_else_is_refused() {
        reduced::<Throughput>(r#"{"bench": "metering", "series": []}"#).unwrap_err();
    }

    #[test]
    fn twice_the_time_is_half_the_speed() {
        let time = Interval {
            point: Some(2.0),
            low: Some(1.0),
            high: Some(4.0),
        };
        let speed = time.inverse();
        assert_eq!(
            (speed.point, speed.low, speed.high),
            (Some(0.5), Some(0.25), Some(1.0))
        );
    }
}
