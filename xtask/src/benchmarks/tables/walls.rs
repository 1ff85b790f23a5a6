//! The tables of the log beside what the machine allows.

use super::super::comparisons::figures;
use super::super::numbers::bytes;
use super::super::results::{BesideWall, BesideWalls, Recorded, TimeBesideWall};
use super::{Table, code};

/// Each path beside each wall, and the order levels beside order 0. Times follow rates.
pub fn all(recorded: &Recorded<BesideWalls>) -> String {
    let mut table = Table::new(&[
        "path",
        ">batches",
        ">messages",
        ">order",
        "ours",
        "beside",
        ">GB/s",
        ">ours, GB/s",
        "ratio",
        ">aim",
    ]);
    for row in &recorded.report.rows {
        table.row(&[
            code(&row.path),
            bytes(row.batch_bytes),
            bytes(row.message_bytes),
            row.order.to_string(),
            ours(row),
            row.wall.clone(),
            format!("{:.2}", row.wall_gb_per_s),
            row.ours_gb_per_s
                .map(|rate| format!("{rate:.2}"))
                .unwrap_or_default(),
            row.interval.map(figures).unwrap_or_default(),
            aims(row),
        ]);
    }
    let times = &recorded.report.times;
    if !times.is_empty() {
        table.0 += &format!("\n{}", in_time(times).0);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// What is to be known of ours beside its order.
fn ours(row: &BesideWall) -> String {
    let lone = (row.brokers == 1).then_some("one broker");
    let is_read = row.path.starts_with("read") || row.path.starts_with("e2e");
    let reader = is_read.then_some(row.reader.as_str());
    match row.ours_gb_per_s {
        Some(_) => lone
            .into_iter()
            .chain(reader)
            .collect::<Vec<_>>()
            .join(", "),
        None => String::new(),
    }
}

/// The rows whose figures are times.
fn in_time(rows: &[TimeBesideWall]) -> Table {
    let mut table = Table::new(&[
        "path",
        ">order",
        "ours waits",
        "beside",
        ">p50, ns",
        ">p99, ns",
        ">ours, p50",
        ">ours, p99",
        "ratio of p50",
        ">aim, at most",
    ]);
    let ns = |time: f64| format!("{time:.0}");
    let ours = |time: Option<f64>| time.map(ns).unwrap_or_default();
    for row in rows {
        let ratio = row.target.map(|most| format!("{most:.2}"));
        let time = row.target_ns.map(|most| format!("{most:.0} ns"));
        table.row(&[
            code(&row.path),
            row.order.to_string(),
            if row.spins { "spinning" } else { "sleeping" }.to_owned(),
            row.wall.clone(),
            ns(row.wall_p50_ns),
            ns(row.wall_p99_ns),
            ours(row.ours_p50_ns),
            ours(row.ours_p99_ns),
            row.interval.map(figures).unwrap_or_default(),
            both(ratio, time),
        ]);
    }
    table
}

fn aims(row: &BesideWall) -> String {
    let ratio = row.target.map(|least| format!("{least:.2}"));
    let rate = row.target_gb_per_s.map(|least| format!("{least:.2} GB/s"));
    both(ratio, rate)
}

fn both(one: Option<String>, other: Option<String>) -> String {
    let both: Vec<String> = one.into_iter().chain(other).collect();
    both.join(", ")
}

/// The rows for which there is an aim, the order levels side by side.
pub fn in_short(recorded: &Recorded<BesideWalls>) -> String {
    let mut table = Table::new(&[
        "path",
        ">batches",
        ">messages",
        "ours",
        "beside",
        "order 0",
        "order 5",
        ">aim",
    ]);
    let rows = &recorded.report.rows;
    let aimed = rows.iter().filter(|row| row.order == 0);
    for row in aimed.filter(|row| row.target.is_some() && row.interval.is_some()) {
        let is_same = |other: &&BesideWall| {
            let sizes = |row: &BesideWall| (row.batch_bytes, row.message_bytes);
            let kind = |row: &BesideWall| (row.path.clone(), row.wall.clone(), ours(row));
            kind(other) == kind(row) && sizes(other) == sizes(row)
        };
        let at_5 = rows.iter().filter(|other| other.order == 5).find(is_same);
        table.row(&[
            code(&row.path),
            bytes(row.batch_bytes),
            bytes(row.message_bytes),
            ours(row),
            row.wall.clone(),
            row.interval.map(figures).unwrap_or_default(),
            at_5.and_then(|row| row.interval)
                .map(figures)
                .unwrap_or_default(),
            aims(row),
        ]);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

#[cfg(test)]
mod tests {
    use super::{all, in_short};
    use crate::benchmarks::results::Recorded;

    fn row(order: u8, wall: &str, ours: &str) -> String {
        format!(
            r#"{{"path": "read_unix", "order": {order}, "batch_bytes": 16384, "wall": "{wall}", "wall_gb_per_s": 4.0, {ours}}}"#
        )
    }

    #[test]
    fn orders_are_side_by_side_and_walls_alone_have_no_ratio() {
        let ours = |point: f64| {
            format!(
                r#""ours_gb_per_s": 2.0, "interval": {{"point": {point}, "low": 0.4, "high": 0.6}}, "target": 0.75"#
            )
        };
        let rows = [
            row(0, "bare", &ours(0.5)),
            row(5, "bare", &ours(0.45)),
            row(0, "working", r#""ours_gb_per_s": null, "interval": null"#),
        ]
        .join(",");
        let recorded = Recorded::for_test(&format!(r#"{{"rows": [{rows}]}}"#));
        let short = in_short(&recorded);
        let line = "| `read_unix` | 16 KiB | 1 KiB | verifies | bare | 0.50 [0.40, 0.60] | 0.45 [0.40, 0.60] | 0.75 |\n";
        assert!(short.contains(line), "{short}");
        assert!(!short.contains("working"), "{short}");
        let line = "| `read_unix` | 16 KiB | 1 KiB | 0 | | working | 4.00 | | | |\n";
        let text = all(&recorded);
        assert!(text.contains(line), "{text}");
        assert!(text.contains("2.00 | 0.45 [0.40, 0.60] | 0.75 |"), "{text}");
    }
    #[test]
    fn sizes_of_messages_are_apart_and_times_come_last() {
        let of = |message_bytes: u64, order: u8, point: f64| {
            format!(
                r#"{{"path": "publish_shm", "order": {order}, "batch_bytes": 262144, "message_bytes": {message_bytes},
                "wall": "bare", "wall_gb_per_s": 5.0, "ours_gb_per_s": 4.0,
                "interval": {{"point": {point}, "low": 0.4, "high": 0.9}}, "target": 0.7, "target_gb_per_s": 3.84}}"#
            )
        };
        let rows = [
            of(1024, 0, 0.81),
            of(64, 0, 0.72),
            of(1024, 5, 0.83),
            of(64, 5, 0.74),
        ];
        let times = r#"{"path": "ack_shm", "order": 0, "spins": true, "wall": "hand-over", "wall_p50_ns": 151.2, "wall_p99_ns": 300.0,
            "ours_p50_ns": null, "ours_p99_ns": null, "interval": null, "target_ns": 3000.0}"#;
        let rows = rows.join(",");
        let recorded = Recorded::for_test(&format!(r#"{{"rows": [{rows}], "times": [{times}]}}"#));
        let short = in_short(&recorded);
        let line = "| 64 B | | bare | 0.72 [0.40, 0.90] | 0.74 [0.40, 0.90] | 0.70, 3.84 GB/s |\n";
        assert!(short.contains(line), "{short}");
        let text = all(&recorded);
        let line = "| `ack_shm` | 0 | spinning | hand-over | 151 | 300 | | | | 3000 ns |\n";
        assert!(text.contains(line), "{text}");
    }
}
