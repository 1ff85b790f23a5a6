//! What all rounds come to: medians, ratios within each round, and a table of them.

use crate::arguments::{Arguments, PAYLOAD_BYTES, Peer, Test};
use crate::single::Report;
use serde::Serialize;
use std::fmt::Write;

/// All of it, as `--json` prints it.
#[derive(Serialize)]
pub struct Comparison {
    payload_bytes: usize,
    rounds: u64,
    tests: Vec<Tested>,
    /// What failed.
    pub problems: Vec<String>,
}

#[derive(Serialize)]
struct Tested {
    test: Test,
    messages: u64,
    rows: Vec<Row>,
    /// Our rate, divided by that of the fastest other one of the same round.
    of_best_peer: Option<Spread>,
}

/// Medians; what was not measured is missing.
#[derive(Serialize)]
struct Row {
    peer: Peer,
    messages_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_us_per_message: Option<f64>,
    allocations_per_message: Option<f64>,
    allocated_bytes_per_message: Option<f64>,
    peak_mib: Option<f64>,
    /// Our rate divided by this one, in each round.
    ours_to_it: Option<Spread>,
}

/// Figures of the same thing: the median, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<_> = figures.collect();
        figures.sort_unstable_by(f64::total_cmp);
        let middle = figures.len() / 2;
        Some(Self {
            median: match figures.len() % 2 {
                0 => f64::midpoint(*figures.get(middle.checked_sub(1)?)?, figures[middle]),
                _ => figures[middle],
            },
            min: *figures.first()?,
            max: *figures.last()?,
        })
    }
}

/// Reports of one of them, by round. Nothing where it failed.
type Rounds = Vec<Option<Report>>;

fn median(rounds: &Rounds, of: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
    let figures = Spread::of(rounds.iter().flatten().filter_map(of))?;
    Some(figures.median)
}

fn rates(rounds: &Rounds) -> Vec<Option<f64>> {
    let rate = |report: &Option<Report>| report.as_ref().map(|report| report.messages_per_s);
    rounds.iter().map(rate).collect()
}

/// `ours` divided by `theirs` in each round that has both.
fn ratios(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Spread> {
    let rounds = ours.iter().zip(theirs);
    Spread::of(rounds.filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?)))
}

impl Tested {
    fn new(arguments: &Arguments, test: Test, reports: &[Rounds]) -> Self {
        let peers = &arguments.peers;
        let ours = peers.iter().position(|peer| *peer == Peer::Embar);
        let ours = ours.map(|ours| rates(&reports[ours]));
        let row = |(peer, rounds): (&Peer, &Rounds)| Row {
            peer: *peer,
            messages_per_s: median(rounds, |report| Some(report.messages_per_s)),
            p50_us: median(rounds, |report| report.p50_us),
            p99_us: median(rounds, |report| report.p99_us),
            cpu_us_per_message: median(rounds, |report| Some(report.cpu_us_per_message)),
            allocations_per_message: median(rounds, |report| report.allocations_per_message),
            allocated_bytes_per_message: median(rounds, |report| {
                report.allocated_bytes_per_message
            }),
            peak_mib: median(rounds, |report| Some(report.peak_mib)),
            ours_to_it: ours.as_ref().and_then(|ours| ratios(ours, &rates(rounds))),
        };
        let others = peers
            .iter()
            .zip(reports)
            .filter(|(peer, _)| **peer != Peer::Embar);
        let others: Vec<_> = others.map(|(_, rounds)| rates(rounds)).collect();
        let best = |round: usize| {
            let rates = others.iter().filter_map(|rates| rates[round]);
            rates.max_by(f64::total_cmp)
        };
        let best: Vec<_> = (0..arguments.rounds as usize).map(best).collect();
        Self {
            test,
            messages: arguments.messages(test),
            rows: peers.iter().zip(reports).map(row).collect(),
            of_best_peer: ours.and_then(|ours| ratios(&ours, &best)),
        }
    }
}

impl Comparison {
    /// Of reports by test, then by peer, then by round.
    pub fn new(arguments: &Arguments, reports: &[Vec<Rounds>], problems: Vec<String>) -> Self {
        let tested = |(test, reports): (Test, &Vec<Rounds>)| Tested::new(arguments, test, reports);
        Self {
            payload_bytes: PAYLOAD_BYTES,
            rounds: arguments.rounds,
            tests: Test::ALL.into_iter().zip(reports).map(tested).collect(),
            problems,
        }
    }

    /// As people read it.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for tested in &self.tests {
            tested
                .write(self.rounds, &mut text)
                .expect("a string takes all");
        }
        for problem in &self.problems {
            text.push_str(&format!("- failed: {problem}\n"));
        }
        text
    }
}

impl Tested {
    fn write(&self, rounds: u64, text: &mut String) -> std::fmt::Result {
        let Self { test, messages, .. } = self;
        writeln!(
            text,
            "{test}: {messages} messages, rounds: {rounds}. Medians, and costs of both ends.\n"
        )?;
        writeln!(
            text,
            "| | messages/s | ours to it | P50 us | P99 us | CPU us/message | allocations/message | bytes/message | peak MiB |\n\
             | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        )?;
        for row in &self.rows {
            let cells = [
                row.peer.to_string(),
                number(row.messages_per_s, 0),
                ratio(row.ours_to_it),
                number(row.p50_us, 1),
                number(row.p99_us, 1),
                number(row.cpu_us_per_message, 3),
                number(row.allocations_per_message, 2),
                number(row.allocated_bytes_per_message, 0),
                number(row.peak_mib, 1),
            ];
            writeln!(text, "| {} |", cells.join(" | "))?;
        }
        writeln!(
            text,
            "\nours to the best of the others in each round: {}\n",
            ratio(self.of_best_peer)
        )
    }
}

fn number(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
}

fn ratio(spread: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = spread else {
        return "-".to_owned();
    };
    format!("{median:.2} ({min:.2} to {max:.2})")
}

#[cfg(test)]
mod tests {
    use super::{Comparison, ratio};
    use crate::arguments::Arguments;
    use crate::single::Report;
    use clap::Parser;

    #[test]
    fn ours_is_compared_with_the_fastest_of_each_round() {
        let line = [
            "session-peers",
            "--rounds",
            "3",
            "--peers",
            "tonic,embar,zeromq",
        ];
        let arguments = Arguments::try_parse_from(line).unwrap();
        let report = |messages_per_s: f64| Report {
            messages_per_s,
            p50_us: None,
            p99_us: None,
            cpu_us_per_message: 2.0,
            allocations_per_message: None,
            allocated_bytes_per_message: None,
            peak_mib: 1.0,
        };
        let rounds = [
            [Some(1.0), Some(4.0), None],
            [Some(8.0), Some(8.0), Some(8.0)],
            [Some(2.0), Some(1.0), Some(4.0)],
        ];
        let reports = rounds
            .map(|rounds| rounds.map(|rate| rate.map(report)).to_vec())
            .to_vec();
        let none = vec![vec![None; 3]; 3];
        let reports = [none.clone(), reports, none];
        let comparison = Comparison::new(&arguments, &reports, vec!["it ended".into()]);
        let [round_trip, one_way, _] = &comparison.tests[..] else {
            panic!("three tests");
        };
        assert_eq!(round_trip.of_best_peer, None);
        // 8 / 2, 8 / 4, 8 / 4.
        assert_eq!(ratio(one_way.of_best_peer), "2.00 (2.00 to 4.00)");
        assert_eq!(ratio(one_way.rows[0].ours_to_it), "5.00 (2.00 to 8.00)");
        let table = comparison.markdown();
        assert!(
            table.contains("| tonic | 2 | 5.00 (2.00 to 8.00) |  |  | 2.000 |  |  | 1.0 |"),
            "{table}"
        );
        assert!(table.contains("- failed: it ended"), "{table}");
    }
}
