//! How often a diagnosis names what was injected: by cause, and case by case.

use std::collections::BTreeMap;

use super::Table;
use crate::benchmarks::results::{DiagnoseMatrix, MatrixRow, Recorded};

/// A row for each cause, a row for each fault, and how near the gains are that were said.
pub fn matrix(recorded: &Recorded<DiagnoseMatrix>) -> String {
    let matrix = &recorded.report;
    let compared: Vec<f64> = matrix.rows.iter().filter_map(apart).collect();
    let near = compared.iter().filter(|it| **it <= NEAR).count();
    let agreeing = format!(
        "In {near} of {} cases the rate that the finding allowed for at most, and the one without the fault, are within a factor of {NEAR} of each other.",
        compared.len()
    );
    let (by_cause, by_case) = (causes(matrix).0, cases(matrix));
    let by_case = by_case.measured(&[(&recorded.command, &recorded.measured)]);
    format!("{by_cause}\n{agreeing}\n\n{by_case}")
}

/// What came of the remedies of the faults that a setting undoes, and how often they gained what was said.
pub fn remedies(recorded: &Recorded<DiagnoseMatrix>) -> String {
    let rows = &recorded.report.rows;
    let all: u64 = rows.iter().map(tried).sum();
    let near: u64 = rows.iter().map(|row| row.as_predicted).sum();
    let agreeing = format!(
        "In {near} of {all} trials ({}) the rate that the finding allowed for at most, and the one with the remedy, were within a factor of {NEAR} of each other, and the trial did not refute the finding.",
        interval(near, all)
    );
    let mut table = Table::new(&[
        "injected",
        "options",
        ">MiB/s",
        ">at most",
        ">with the remedy",
        ">tried",
        ">helped",
        ">not shown",
        ">did not help",
        ">as predicted",
    ]);
    for row in rows {
        let came = |outcome| row.outcomes.get(outcome).unwrap_or(&0).to_string();
        table.row(&[
            format!("`{}`", row.injected),
            row.options.clone(),
            format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
            gain(row.gain_at_most),
            gain(row.gained),
            format!("{} of {}", tried(row), recorded.report.runs),
            came("helped"),
            came("not-shown"),
            came("did-not-help"),
            format!("{} of {}", row.as_predicted, tried(row)),
        ]);
    }
    let table = table.measured(&[(&recorded.command, &recorded.measured)]);
    format!("{agreeing}\n\n{table}")
}

/// Trials of a case: those in which a right finding had a remedy that could be tried.
fn tried(row: &MatrixRow) -> u64 {
    row.outcomes.values().sum()
}

const TWO: &str = "two at once: both among the first three";

/// What the runs of a cause, at all strengths, are called in the first table.
fn cause(row: &MatrixRow) -> &str {
    match (row.injected.as_str(), row.expected.as_slice()) {
        (injected, _) if injected.starts_with("nothing") => "nothing injected: no fault",
        (_, [one]) => one,
        _ => TWO,
    }
}

fn causes(matrix: &DiagnoseMatrix) -> Table {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for row in &matrix.rows {
        let cause = cause(row);
        let (right, of) = counts.entry(cause).or_default();
        *right += match cause {
            TWO => row.among_three,
            _ => row.right,
        };
        *of += matrix.runs;
    }
    let mut table = Table::new(&["cause, at all strengths", ">right", ">95 % interval"]);
    for (cause, (right, of)) in counts {
        table.row(&[
            cause.to_owned(),
            format!("{right} of {of}"),
            interval(right, of),
        ]);
    }
    table
}

fn cases(matrix: &DiagnoseMatrix) -> Table {
    let mut table = Table::new(&[
        "injected",
        "options",
        ">MiB/s",
        ">right first",
        ">95 % interval",
        ">among three",
        ">at most",
        ">without it",
        "named first",
    ]);
    for row in &matrix.rows {
        let mut named: Vec<_> = row.first.iter().collect();
        named.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let named: Vec<_> = named
            .into_iter()
            .map(|(cause, times)| format!("{cause} {times}"))
            .collect();
        table.row(&[
            format!("`{}`", row.injected),
            row.options.clone(),
            format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
            format!("{} of {}", row.right, matrix.runs),
            interval(row.right, matrix.runs),
            format!("{} of {}", row.among_three, matrix.runs),
            gain(row.gain_at_most),
            gain(row.gained),
            named.join(", "),
        ]);
    }
    table
}

/// Rates further apart than this do not agree.
const NEAR: f64 = 1.5;

/// The factor between the rate that was said to be possible, and the one that was seen; of one fault only both are known.
fn apart(row: &MatrixRow) -> Option<f64> {
    let (said, seen) = (1.0 + row.gain_at_most?, 1.0 + row.gained?);
    Some((said / seen).max(seen / said))
}

/// By how much a rate grows: `+85 %`, or `x 3.2` of those that more than double.
fn gain(gain: Option<f64>) -> String {
    match gain {
        None => String::new(),
        Some(gain) if gain > 1.0 => format!("x {:.1}", 1.0 + gain),
        Some(gain) => format!("{:+.0} %", gain * 100.0),
    }
}

fn interval(times: u64, of: u64) -> String {
    let (low, high) = wilson(times, of);
    format!("{:.0} to {:.0} %", low * 100.0, high * 100.0)
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
