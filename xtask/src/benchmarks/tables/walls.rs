//! The tables of the log beside what the machine allows.

use super::super::comparisons::figures;
use super::super::numbers::bytes;
use super::super::results::{BesideWall, BesideWalls, Recorded};
use super::{Table, code};

/// Each path beside each wall, and the order levels beside order 0.
pub fn all(recorded: &Recorded<BesideWalls>) -> String {
    let mut table = Table::new(&[
        "path",
        ">batches",
        ">order",
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
            row.order.to_string(),
            row.wall.clone(),
            format!("{:.2}", row.wall_gb_per_s),
            row.ours_gb_per_s
                .map(|rate| format!("{rate:.2}"))
                .unwrap_or_default(),
            row.interval.map(figures).unwrap_or_default(),
            row.target
                .map(|aim| format!("{aim:.2}"))
                .unwrap_or_default(),
        ]);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// The rows for which there is an aim, the order levels side by side.
pub fn in_short(recorded: &Recorded<BesideWalls>) -> String {
    let mut table = Table::new(&["path", ">batches", "beside", "order 0", "order 5", ">aim"]);
    let rows = &recorded.report.rows;
    let aimed = rows.iter().filter(|row| row.order == 0);
    for row in aimed.filter(|row| row.target.is_some() && row.interval.is_some()) {
        let is_same = |other: &&BesideWall| {
            (&other.path, other.batch_bytes, &other.wall) == (&row.path, row.batch_bytes, &row.wall)
        };
        let at_5 = rows.iter().filter(|other| other.order == 5).find(is_same);
        table.row(&[
            code(&row.path),
            bytes(row.batch_bytes),
            row.wall.clone(),
            row.interval.map(figures).unwrap_or_default(),
            at_5.and_then(|row| row.interval)
                .map(figures)
                .unwrap_or_default(),
            row.target
                .map(|aim| format!("{aim:.2}"))
                .unwrap_or_default(),
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
        let line =
            "| `read_unix` | 16 KiB | bare | 0.50 [0.40, 0.60] | 0.45 [0.40, 0.60] | 0.75 |\n";
        assert!(short.contains(line), "{short}");
        assert!(!short.contains("working"), "{short}");
        let line = "| `read_unix` | 16 KiB | 0 | working | 4.00 | | | |\n";
        let text = all(&recorded);
        assert!(text.contains(line), "{text}");
        assert!(text.contains("2.00 | 0.45 [0.40, 0.60] | 0.75 |"), "{text}");
    }
}
