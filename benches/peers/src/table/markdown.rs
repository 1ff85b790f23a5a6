//! Tables for people.

use super::cells::{Comparison, Figures, Spread, Summary};
use std::fmt::Write;

/// Two tables for each number of threads, and what did not go well.
pub fn tables(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut threads: Vec<_> = comparison.cells.iter().map(|cell| cell.threads).collect();
    threads.dedup();
    for threads in threads {
        let cells = || {
            comparison
                .cells
                .iter()
                .filter(move |cell| cell.threads == threads)
        };
        let plural = if threads == 1 { "" } else { "s" };
        let rounds = comparison.rounds;
        let mut table = |title: &str, more: &[&str], row: &dyn Fn(&Summary) -> Vec<String>| {
            let _ = writeln!(
                text,
                "{threads} thread{plural}, {title}, rounds: {rounds}\n"
            );
            let columns = comparison.columns.iter().map(String::as_str);
            let columns: Vec<_> = columns.chain(more.iter().copied()).collect();
            let _ = writeln!(text, "| operation | callers | {} |", columns.join(" | "));
            let _ = writeln!(text, "| --- | ---: |{}", " ---: |".repeat(columns.len()));
            for cell in cells() {
                let (operation, callers) = (cell.operation, cell.callers);
                let row = row(cell).join(" | ");
                let _ = writeln!(text, "| {operation} | {callers} | {row} |");
            }
            text.push('\n');
        };
        let has = |of: fn(&Summary) -> Option<Spread>| cells().any(|cell| of(cell).is_some());
        let best: fn(&Summary) -> Option<Spread> = |cell| cell.of_best_peer;
        let benchmark: fn(&Summary) -> Option<Spread> = |cell| cell.of_redis_benchmark;
        let ratios = [
            (best, "embar / best peer"),
            (benchmark, "embar / redis-benchmark"),
        ];
        let ratios: Vec<_> = ratios.into_iter().filter(|(of, _)| has(*of)).collect();
        let titles: Vec<_> = ratios.iter().map(|(_, title)| *title).collect();
        table(
            "operations per second (median, lowest to highest)",
            &titles,
            &|cell| {
                let rates = cell.clients.iter().map(|client| rate(client.as_ref()));
                let ratios = ratios.iter().map(|(of, _)| ratio(of(cell)));
                rates.chain(ratios).collect()
            },
        );
        table(
            "client processor time, microseconds per operation (median)",
            &[],
            &|cell| {
                let time = |client: &Option<Figures>| match client {
                    Some(of) => format!("{:.2}", of.client_cpu_us_per_op.median),
                    None => NOTHING.to_owned(),
                };
                cell.clients.iter().map(time).collect()
            },
        );
    }
    if !comparison.problems.is_empty() {
        text.push_str("Not all went well; figures marked (!) do not count:\n\n");
        for problem in &comparison.problems {
            let _ = writeln!(text, "- {problem}");
        }
    }
    text.trim_end().to_owned()
}

/// Where there is no figure.
const NOTHING: &str = "-";

fn rate(figures: Option<&Figures>) -> String {
    let Some(Figures {
        ops_per_s, suspect, ..
    }) = figures
    else {
        return NOTHING.to_owned();
    };
    let [median, min, max] = [ops_per_s.median, ops_per_s.min, ops_per_s.max].map(thousands);
    let mark = if *suspect { " (!)" } else { "" };
    format!("{median} ({min} to {max}){mark}")
}

fn ratio(ratio: Option<Spread>) -> String {
    match ratio {
        Some(Spread { median, min, max }) => format!("**{median:.2}** ({min:.2} to {max:.2})"),
        None => NOTHING.to_owned(),
    }
}

/// `1,234,567`
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Figures, Spread, Summary, tables, thousands};
    use crate::arguments::Operation;

    #[test]
    fn numbers_can_be_read() {
        let texts = [0.0, 999.6, 1_000.0, 1_234_567.2].map(thousands);
        assert_eq!(texts, ["0", "1,000", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_table_has_a_row_for_each_cell_and_marks_what_does_not_count() {
        let spread = |median: f64| Spread {
            median,
            min: median / 2.0,
            max: median * 2.0,
        };
        let figures = |ops_per_s, suspect| {
            Some(Figures {
                ops_per_s: spread(ops_per_s),
                client_cpu_us_per_op: spread(1.5),
                suspect,
            })
        };
        let comparison = Comparison {
            rounds: 3,
            columns: vec!["embar".into(), "fred".into(), "rustis".into()],
            cells: vec![Summary {
                threads: 1,
                operation: Operation::Set,
                callers: 64,
                clients: vec![figures(2000.0, false), figures(1000.0, true), None],
                of_best_peer: Some(spread(2.0)),
                of_redis_benchmark: None,
            }],
            problems: vec!["fred: it broke".into()],
        };
        let expected = "\
1 thread, operations per second (median, lowest to highest), rounds: 3

| operation | callers | embar | fred | rustis | embar / best peer |
| --- | ---: | ---: | ---: | ---: | ---: |
| set | 64 | 2,000 (1,000 to 4,000) | 1,000 (500 to 2,000) (!) | - | **2.00** (1.00 to 4.00) |

1 thread, client processor time, microseconds per operation (median), rounds: 3

| operation | callers | embar | fred | rustis |
| --- | ---: | ---: | ---: | ---: |
| set | 64 | 1.50 | 1.50 | - |

Not all went well; figures marked (!) do not count:

- fred: it broke";
        assert_eq!(tables(&comparison), expected);
    }
}
