//! The table of how often a diagnosis names what was injected.

use super::Table;
use crate::benchmarks::results::{DiagnoseMatrix, Recorded};

/// A row for each fault.
pub fn matrix(recorded: &Recorded<DiagnoseMatrix>) -> String {
    let matrix = &recorded.report;
    let mut table = Table::new(&[
        "injected",
        "options",
        ">MiB/s",
        ">right first",
        ">95 % interval",
        ">among three",
        "named first",
    ]);
    for row in &matrix.rows {
        let mut named: Vec<_> = row.first.iter().collect();
        named.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let named: Vec<_> = named
            .into_iter()
            .map(|(cause, times)| format!("{cause} {times}"))
            .collect();
        let (low, high) = wilson(row.right, matrix.runs);
        table.row(&[
            format!("`{}`", row.injected),
            row.options.clone(),
            format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
            format!("{} of {}", row.right, matrix.runs),
            format!("{:.0} to {:.0} %", low * 100.0, high * 100.0),
            format!("{} of {}", row.among_three, matrix.runs),
            named.join(", "),
        ]);
    }
    table.measured(&[(&recorded.command, &recorded.measured)])
}

/// Wilson's interval of a share at 95 % ("Probable Inference, the Law of Succession, and Statistical Inference", 1927).
fn wilson(times: u64, of: u64) -> (f64, f64) {
    const Z: f64 = 1.96;
    if of == 0 {
        return (0.0, 1.0);
    }
    let (n, p) = (of as f64, times as f64 / of as f64);
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let all = 1.0 + Z * Z / n;
    (
        ((middle - half) / all).max(0.0),
        ((middle + half) / all).min(1.0),
    )
}

#[cfg(test)]
mod tests {
    use super::wilson;

    #[test]
    fn few_runs_say_little() {
        let (low, high) = wilson(4, 4);
        assert!((low - 0.51).abs() < 0.01 && (high - 1.0).abs() < 1e-9);
        let (low, high) = wilson(38, 40);
        assert!((low - 0.835).abs() < 0.005 && (high - 0.986).abs() < 0.005);
        assert_eq!(wilson(0, 0), (0.0, 1.0));
    }
}
