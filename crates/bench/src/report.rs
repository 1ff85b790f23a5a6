//! What the benches of the log print: tables, profiles and summaries for people, and the same figures as JSON.

use std::path::Path;

use anyhow::Result;
use embar_console::paint::Paint;
use embar_console::size::Size;
use embar_meter::experiment::Outcome;
use embar_meter::results::{self, ResultRow};
use embar_meter::table::{Table, grouped};
use embar_meter::{Series, Snapshot};
use serde::Serialize;

use super::plan::BenchPlan;
use super::publish::PublishTrial;
use super::usage::{Cost, Costs, Rate};

/// Median and extremes of the trials.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// The value in the middle.
    pub median_mib_per_s: f64,
    /// The slowest trial.
    pub min_mib_per_s: f64,
    /// The fastest trial.
    pub max_mib_per_s: f64,
    /// The median.
    pub messages_per_s: f64,
}

impl Summary {
    /// Sums up at least one trial.
    pub fn of(rates: &[Rate]) -> Result<Self> {
        let series = Series::new(rates.iter().map(|rate| rate.mib_per_s).collect::<Vec<_>>())?;
        let messages = Series::new(
            rates
                .iter()
                .map(|rate| rate.messages_per_s)
                .collect::<Vec<_>>(),
        )?;
        Ok(Self {
            median_mib_per_s: series.median(),
            min_mib_per_s: series.min(),
            max_mib_per_s: series.max(),
            messages_per_s: messages.median(),
        })
    }
}

/// Numbers derived from the counters of the brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Derived {
    /// `recv` calls for one batch.
    pub recv_calls_per_batch: f64,
    /// Bytes that one `recv` returned.
    pub bytes_per_recv: f64,
    /// `recv` calls that found nothing.
    pub recv_eagain: u64,
    /// Batches that brokers refused.
    pub refused_batches: u64,
}

impl Derived {
    /// Derives them from a profile of brokers or of a subscriber.
    pub fn of(profile: &Snapshot) -> Self {
        let counter = |name: &str| profile.counter(name).unwrap_or(0);
        let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        Self {
            recv_calls_per_batch: ratio(counter("recv_calls"), counter("batches")),
            bytes_per_recv: ratio(counter("recv_bytes"), counter("recv_calls")),
            recv_eagain: counter("recv_eagain"),
            refused_batches: counter("refused_batches"),
        }
    }

    /// Lines under a profile's table.
    pub fn lines(&self) -> Vec<(String, String)> {
        vec![
            (
                "recv calls per batch".into(),
                format!("{:.2}", self.recv_calls_per_batch),
            ),
            ("bytes per recv".into(), grouped(self.bytes_per_recv as u64)),
        ]
    }
}

/// A profile with the numbers derived from it.
pub fn profile_text(profile: &Snapshot) -> String {
    let derived = Derived::of(profile);
    if profile.counter("recv_calls").is_some() {
        profile.with_lines(&derived.lines()).to_string()
    } else {
        profile.to_string()
    }
}

/// Merges the profiles that there are; `None` if there are none.
pub fn merged<'a>(profiles: impl IntoIterator<Item = Option<&'a Snapshot>>) -> Option<Snapshot> {
    profiles
        .into_iter()
        .flatten()
        .fold(None, |sum: Option<Snapshot>, profile| {
            Some(sum.map_or_else(|| profile.clone(), |sum| sum.merge(profile)))
        })
}

/// One line per trial.
pub fn trials_table(rates: impl IntoIterator<Item = (String, Rate)>) -> Table {
    let mut table = Table::new(["trial", "MiB/s", "messages/s", "seconds"]);
    for (name, rate) in rates {
        table.row([
            name,
            format!("{:.1}", rate.mib_per_s),
            grouped(rate.messages_per_s as u64),
            format!("{:.3}", rate.seconds),
        ]);
    }
    table
}

/// What the trials cost; medians.
pub fn costs_table(costs: &Costs) -> Table {
    let mut table = Table::new(["cost", "client", "brokers"]);
    let mut row = |name: &str, show: &dyn Fn(&Cost) -> String| {
        table.row([name.to_owned(), show(&costs.client), show(&costs.brokers)]);
    };
    row("CPU s per GiB", &|cost| {
        format!("{:.3}", cost.cpu_s_per_gib)
    });
    row("  of it in the kernel", &|cost| {
        format!("{:.3}", cost.system_s_per_gib)
    });
    row("CPUs busy", &|cost| format!("{:.2}", cost.cpus));
    row("minor faults per GiB", &|cost| {
        grouped(cost.minor_faults_per_gib as u64)
    });
    row("peak memory", &|cost| Size(cost.peak_rss_bytes).to_string());
    table
}

/// What ack 0 means for a number.
pub const ACK_0_NOTE: &str = "ack 0: the clock stops when the kernel has the bytes, so this measures socket buffers, not the log";

/// The median line.
pub fn summary_line(paint: Paint, summary: &Summary) -> String {
    format!(
        "{} {:.1} MiB/s, spread {:.1} to {:.1} MiB/s ({:.1} %), {} messages/s",
        paint.heading("median"),
        summary.median_mib_per_s,
        summary.min_mib_per_s,
        summary.max_mib_per_s,
        (summary.max_mib_per_s - summary.min_mib_per_s) / summary.median_mib_per_s * 100.0,
        grouped(summary.messages_per_s as u64),
    )
}

/// A series of an experiment for JSON.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    /// Name of the configuration.
    pub name: String,
    /// The median, MiB per second.
    pub median_mib_per_s: f64,
    /// Interval of the median.
    pub interval: embar_meter::Interval,
    /// Every trial in order.
    pub trials_mib_per_s: Vec<f64>,
}

/// All series of an experiment.
pub fn series(outcome: &Outcome) -> Vec<SeriesReport> {
    outcome
        .configs()
        .iter()
        .map(|(name, series)| SeriesReport {
            name: name.clone(),
            median_mib_per_s: series.median(),
            interval: embar_meter::stats::median_interval(series),
            trials_mib_per_s: series.values().to_vec(),
        })
        .collect()
}

/// Appends one row per trial to the log of results.
pub fn record(path: &Path, plan: &BenchPlan, trials: &[&PublishTrial]) -> Result<()> {
    for trial in trials {
        results::append(path, &row(plan, trial.rate.mib_per_s))?;
    }
    Ok(())
}

fn row(plan: &BenchPlan, mib_per_s: f64) -> ResultRow {
    ResultRow {
        message_size: plan.message_bytes.into(),
        total_message_size: plan.total_bytes,
        num_threads_per_broker: plan.threads_per_broker,
        ack_level: plan.acks as u8,
        order: plan.order as u8,
        replication_factor: plan.replication_factor.into(),
        replicate_tinode: false,
        num_clients: 1,
        num_brokers_to_kill: 0,
        failure_percentage: 0.0,
        sequencer_type: "EMBAR".into(),
        pub_bandwidth_mbps: mib_per_s,
        sub_bandwidth_mbps: 0.0,
        e2e_bandwidth_mbps: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rate(mib: u64, ms: u64) -> Rate {
        Rate::new(mib << 20, mib, Duration::from_millis(ms))
    }

    #[test]
    fn the_summary_is_about_the_median_and_the_extremes() {
        let summary =
            Summary::of(&[rate(10, 1000), rate(40, 1000), rate(20, 1000)]).expect("trials");
        assert_eq!(
            (
                summary.median_mib_per_s,
                summary.min_mib_per_s,
                summary.max_mib_per_s
            ),
            (20.0, 10.0, 40.0)
        );
        assert_eq!(summary.messages_per_s, 20.0);
        assert!(Summary::of(&[]).is_err());
    }

    #[test]
    fn numbers_are_derived_from_counters_and_never_divide_by_zero() {
        let counters = [
            ("batches", 4),
            ("recv_calls", 8),
            ("recv_bytes", 4096),
            ("refused_batches", 1),
        ];
        let profile = Snapshot::new("P", [], counters.map(|(name, n)| (name.to_owned(), n)));
        let derived = Derived::of(&profile);
        assert_eq!(
            (
                derived.recv_calls_per_batch,
                derived.bytes_per_recv,
                derived.refused_batches
            ),
            (2.0, 512.0, 1)
        );
        assert_eq!(Derived::of(&Snapshot::new("P", [], [])), Derived::default());
    }

    #[test]
    fn profiles_of_several_trials_add_up() {
        let profile = |n| Snapshot::new("P", [("S".to_owned(), n, 1)], []);
        let (one, two) = (profile(1), profile(2));
        assert_eq!(
            merged([Some(&one), None, Some(&two)])
                .and_then(|sum| sum.stage("S").map(|row| row.total_ns)),
            Some(3)
        );
        assert_eq!(merged([None]), None);
    }

    #[test]
    fn recorded_rows_can_be_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data/result.csv");
        let plan = super::super::plan::tests::plan();
        results::append(&path, &row(&plan, 2751.4)).expect("appended");
        let rows = results::read(&path).expect("readable");
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (
                rows[0].message_size,
                rows[0].total_message_size,
                rows[0].pub_bandwidth_mbps
            ),
            (1024, 1 << 20, 2751.4)
        );
    }
}
