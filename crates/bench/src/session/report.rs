//! What is printed, as a table, JSON, CSV, and in the results log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use embar_console::paint::Paint;
use embar_console::size::Size;
use embar_meter::results::append_under;
use embar_meter::stats::Interval;
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::plan::SessionPlan;
use super::run::SessionRun;
use super::summary::{Judgement, Metric, Summary, WALL, judgements};

/// First line of a results log.
pub const LOG_TITLE: &str = "# Session benchmark log";

/// First line of CSV.
const CSV_HEADER: &str = "time,test,phase,run,iterations,payload,in_flight,sessions,spin_us,avg_ns,p50_ns,p99_ns,\
p999_ns,max_ns,packets_per_s,mb_per_s,lost,wrong,stalls,longest_stall_ms";

/// Stalls that are listed one by one.
const STALLS_LISTED: usize = 5;

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct SessionReport<'a> {
    /// Which bench.
    pub bench: &'static str,
    /// What was asked for.
    pub config: &'a SessionPlan,
    /// The runs of all phases, in the order they ran.
    pub runs: &'a [SessionRun],
    /// Medians over the runs of each phase.
    pub median: BTreeMap<&'static str, Summary>,
    /// Bare sockets.
    pub wall: Option<Wall<'a>>,
    /// Why there are no bare sockets to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_wall: Option<&'a str>,
    /// Each phase against the wall, then each against the one before.
    pub comparisons: Vec<Judgement>,
    /// With half load, the highest rate, messages per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages_per_s: Option<f64>,
    /// The memory that the sessions took.
    pub memory: Option<MemoryUse>,
    /// Messages of all runs that were not echoed in time.
    pub lost: u64,
    /// Messages of all runs that were not what was expected.
    pub wrong: u64,
    /// Why the bench ended before all runs were done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<String>,
    #[serde(skip)]
    phases: &'a [&'static str],
}

/// The runs of bare sockets.
#[derive(Debug, Serialize)]
pub struct Wall<'a> {
    /// All runs of bare sockets.
    pub runs: &'a [SessionRun],
    /// Medians over these runs.
    pub median: Summary,
}

/// The memory that sessions took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryUse {
    /// Largest resident set of this process so far, bytes.
    pub peak_rss_bytes: u64,
    /// Address space of all rings of both ends together, bytes: the most that messages can take.
    pub ring_bytes: u64,
}

/// What a bench collected.
#[derive(Debug, Default)]
pub struct Collected {
    /// Runs of the phases.
    pub runs: Vec<SessionRun>,
    /// Runs of bare sockets.
    pub wall: Vec<SessionRun>,
    /// Why there are no runs of bare sockets.
    pub no_wall: Option<&'static str>,
    /// With half load, the highest rate, messages per second.
    pub max_messages_per_s: Option<f64>,
    /// The memory that the sessions took, read at the end.
    pub memory: Option<MemoryUse>,
    /// Why not all runs were done.
    pub ended_early: Option<String>,
}

impl<'a> SessionReport<'a> {
    /// The report on the runs of `phases`.
    pub fn of(plan: &'a SessionPlan, phases: &'a [&'static str], collected: &'a Collected) -> Self {
        let wall_alone = phases.is_empty();
        let runs = if wall_alone {
            &collected.wall
        } else {
            &collected.runs
        };
        let names = if wall_alone { &[WALL][..] } else { phases };
        let all = || collected.runs.iter().chain(&collected.wall);
        Self {
            bench: if wall_alone {
                "session wall"
            } else {
                "session"
            },
            config: plan,
            runs,
            median: names
                .iter()
                .filter_map(|phase| Some((*phase, Summary::of(phase, runs)?)))
                .collect(),
            wall: Summary::of(WALL, &collected.wall).map(|median| Wall {
                runs: &collected.wall,
                median,
            }),
            no_wall: collected.no_wall,
            comparisons: judgements(phases, &collected.wall, &collected.runs),
            max_messages_per_s: collected.max_messages_per_s,
            memory: collected.memory,
            lost: all().map(|run| run.lost).sum(),
            wrong: all().map(|run| run.wrong).sum(),
            ended_early: collected.ended_early.clone(),
            phases,
        }
    }

    /// The wall, then the phases.
    fn summaries(&self) -> impl Iterator<Item = &Summary> {
        let phases = self
            .phases
            .iter()
            .filter_map(|phase| self.median.get(phase));
        self.wall.iter().map(|wall| &wall.median).chain(phases)
    }

    /// Runs of the wall, then those of the phases.
    fn all_runs(&self) -> impl Iterator<Item = &SessionRun> {
        let phases = self.runs.iter().filter(|run| run.phase != WALL);
        self.wall.iter().flat_map(|wall| wall.runs).chain(phases)
    }

    fn runs_table(&self) -> Table {
        let mut table = Table::new([
            "time (UTC)",
            "test",
            "phase",
            "iterations",
            "payload",
            "avg us",
            "P50 us",
            "P99 us",
            "P99.9 us",
            "packets/s",
            "MB/s",
            "lost",
            "stalls",
        ]);
        for run in self.all_runs() {
            let latency = |part: fn(&super::run::Latency) -> f64| {
                run.latency
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |latency| micros(part(latency)))
            };
            table.row([
                run.time.clone(),
                self.config.test.name().to_owned(),
                run.phase.to_owned(),
                run.iterations.to_string(),
                self.config.payload.to_string(),
                latency(|latency| latency.avg_ns),
                latency(|latency| latency.p50_ns),
                latency(|latency| latency.p99_ns),
                latency(|latency| latency.p999_ns),
                grouped(run.messages_per_s.round() as u64),
                format!("{:.2}", run.mb_per_s),
                run.lost.to_string(),
                stalls_cell(run),
            ]);
        }
        table
    }

    fn summary_table(&self) -> Table {
        let mut table = Table::new([
            "median of the runs",
            "runs",
            "avg us",
            "P50 us",
            "its interval",
            "P99 us",
            "P99.9 us",
            "packets/s",
            "its interval",
            "MB/s",
            "P50 / wall",
            "rate / wall",
            "lost",
        ]);
        for summary in self.summaries() {
            let us = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), micros);
            let interval = |interval: Option<Interval>, scale: f64, digits: usize| {
                interval.map_or_else(
                    || "-".to_owned(),
                    |i| format!("{:.digits$}..{:.digits$}", i.low / scale, i.high / scale),
                )
            };
            table.row([
                summary.phase.to_owned(),
                summary.runs.to_string(),
                us(summary.avg_ns),
                us(summary.p50_ns),
                interval(summary.interval.p50_ns, 1e3, 2),
                us(summary.p99_ns),
                us(summary.p999_ns),
                grouped(summary.messages_per_s.round() as u64),
                interval(Some(summary.interval.messages_per_s), 1.0, 0),
                format!("{:.2}", summary.mb_per_s),
                self.by_wall(summary.phase, Metric::P50),
                self.by_wall(summary.phase, Metric::Rate),
                summary.lost.to_string(),
            ]);
        }
        table
    }

    fn by_wall(&self, phase: &str, metric: Metric) -> String {
        self.comparisons
            .iter()
            .find(|judgement| {
                let comparison = &judgement.comparison;
                judgement.metric == metric
                    && comparison.baseline == WALL
                    && comparison.changed == phase
            })
            .map_or_else(
                || "-".to_owned(),
                |judgement| format!("{:.3}", judgement.comparison.ratio.point),
            )
    }

    /// A row for each two that are compared; `None` if there are none.
    fn comparisons_table(&self) -> Option<Table> {
        let figures = Metric::ALL.map(|metric| metric.name().to_owned());
        let header = ["ratio of", "to", "runs"].map(str::to_owned);
        let mut table = Table::new(header.into_iter().chain(figures));
        let mut rest = self.comparisons.as_slice();
        while let Some(first) = rest.first() {
            let of = &first.comparison;
            let same = |judgement: &Judgement| {
                let other = &judgement.comparison;
                (&other.changed, &other.baseline) == (&of.changed, &of.baseline)
            };
            let count = rest.iter().take_while(|judgement| same(judgement)).count();
            let (row, others) = rest.split_at(count);
            let figures = Metric::ALL.map(|metric| {
                row.iter()
                    .find(|judgement| judgement.metric == metric)
                    .map_or_else(|| "-".to_owned(), Judgement::cell)
            });
            let names = [
                of.changed.clone(),
                of.baseline.clone(),
                of.pairs.to_string(),
            ];
            table.row(names.into_iter().chain(figures));
            rest = others;
        }
        (!self.comparisons.is_empty()).then_some(table)
    }

    fn tables(&self) -> impl Iterator<Item = Table> {
        [self.runs_table(), self.summary_table()]
            .into_iter()
            .chain(self.comparisons_table())
    }

    /// Lines under the tables.
    fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.comparisons.iter().any(Judgement::is_too_few) {
            lines.push("too few runs for any verdict: it takes at least 8".to_owned());
        }
        lines.extend(self.no_wall.map(str::to_owned));
        if let Some(rate) = self.max_messages_per_s {
            lines.push(format!("highest rate: {} per second", grouped(rate as u64)));
        }
        for summary in self.summaries().filter(|_| self.config.test.is_paced()) {
            if let Some(ratio) = summary.p99_by_p50 {
                lines.push(format!(
                    "{}: P99 is {ratio:.2} of the median",
                    summary.phase
                ));
            }
        }
        if let Some(memory) = self.memory.filter(|_| self.config.sessions > 1) {
            lines.push(format!(
                "memory: {} at most, rings of both ends {}",
                Size(memory.peak_rss_bytes),
                Size(memory.ring_bytes)
            ));
        }
        lines.extend(self.sessions_line());
        lines.extend(self.stall_lines());
        lines.extend(self.ended_early.clone());
        lines.push(self.verdict());
        lines
    }

    /// The medians of the slowest and the fastest session of all runs.
    fn sessions_line(&self) -> Option<String> {
        let phases = self.runs.iter();
        let medians = phases.flat_map(|run| run.session_p50_ns.iter().copied());
        let (low, high) = medians.fold((f64::INFINITY, 0.0_f64), |(low, high), ns| {
            (low.min(ns), high.max(ns))
        });
        (high > 0.0).then(|| {
            format!(
                "sessions: P50 of the fastest {} us, of the slowest {} us",
                micros(low),
                micros(high)
            )
        })
    }

    fn stall_lines(&self) -> Vec<String> {
        let stalls: Vec<String> = self
            .all_runs()
            .flat_map(|run| {
                run.stalls.iter().map(move |stall| {
                    format!(
                        "stall: {:.0} ms in run {} of {}, session {}, message {}{}",
                        stall.ms,
                        run.run,
                        run.phase,
                        stall.session,
                        stall.sequence,
                        if stall.ended { "" } else { ", to the end" }
                    )
                })
            })
            .collect();
        let more = stalls.len().saturating_sub(STALLS_LISTED);
        let mut lines: Vec<String> = stalls.into_iter().take(STALLS_LISTED).collect();
        if more > 0 {
            lines.push(format!("{more} more stalls; JSON has them all"));
        }
        lines
    }

    /// Whether all is well, in words.
    pub fn verdict(&self) -> String {
        let messages: u64 = self.all_runs().map(|run| run.iterations).sum();
        if self.is_sound() {
            format!(
                "all {} messages arrived, in time and unchanged",
                grouped(messages)
            )
        } else {
            format!(
                "of {} messages {} were lost (not back within {} ms, or at all), {} were not what was expected",
                grouped(messages),
                grouped(self.lost),
                self.config.timeout.as_millis(),
                grouped(self.wrong)
            )
        }
    }

    /// Whether every message did what it should.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.wrong == 0 && self.ended_early.is_none()
    }

    /// The report for people.
    pub fn text(&self, paint: Paint) -> String {
        let tables = self.tables().map(|table| format!("\n{table}"));
        let mut lines: Vec<String> = tables.chain([String::new()]).collect();
        lines.extend(self.remarks());
        if let Some(verdict) = lines.last_mut() {
            *verdict = if self.is_sound() {
                paint.good(verdict)
            } else {
                paint.bad(verdict)
            };
        }
        lines.join("\n")
    }

    /// A line per run, with a header.
    pub fn csv(&self) -> String {
        let mut text = format!("{CSV_HEADER}\n");
        let plan = self.config;
        for run in self.all_runs() {
            let latency = run.latency.map_or_else(
                || ",,,,".to_owned(),
                |l| {
                    let parts = [l.avg_ns, l.p50_ns, l.p99_ns, l.p999_ns, l.max_ns];
                    parts.map(|ns| format!("{ns:.0}")).join(",")
                },
            );
            // A quoted comma is right CSV, and most scripts trip over it.
            let phase = run.phase.replace(',', ";");
            let _to_a_string = writeln!(
                text,
                "{},{},{phase},{},{},{},{},{},{},{latency},{:.0},{:.2},{},{},{},{}",
                run.time,
                plan.test.name(),
                run.run,
                run.iterations,
                plan.payload,
                plan.in_flight,
                plan.sessions,
                plan.spin_us,
                run.messages_per_s,
                run.mb_per_s,
                run.lost,
                run.wrong,
                run.stalls.len(),
                run.longest_stall_ms()
                    .map_or_else(String::new, |ms| format!("{ms:.0}")),
            );
        }
        text
    }

    /// Appends it to a results log in Markdown.
    pub fn append_to(&self, path: &Path) -> Result<()> {
        let mut text = format!(
            "\n## {}: {}\n\n",
            self.config.test.name(),
            self.config.describe()
        );
        for table in self.tables() {
            text += &table.to_markdown();
            text += "\n";
        }
        for line in self.remarks() {
            let _to_a_string = writeln!(text, "- {line}");
        }
        Ok(append_under(path, LOG_TITLE, &text)?)
    }
}

fn micros(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn stalls_cell(run: &SessionRun) -> String {
    match run.longest_stall_ms() {
        None => "0".to_owned(),
        Some(ms) => format!("{}, longest {ms:.0} ms", run.stalls.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::super::record::Stall;
    use super::super::run::tests::run;
    use super::*;

    const PHASES: [&str; 2] = ["baseline", "zero-copy send"];

    fn collected() -> Collected {
        let mut collected = Collected::default();
        for number in 1..=8 {
            let drift = f64::from(number);
            collected
                .wall
                .push(run(WALL, number as usize, 10.0 + drift, 1e5));
            collected
                .runs
                .push(run(PHASES[0], number as usize, 12.0 + drift, 9e4));
            collected
                .runs
                .push(run(PHASES[1], number as usize, 11.0 + drift, 9.5e4));
        }
        collected
    }

    #[test]
    fn json_has_runs_a_median_of_each_phase_and_the_wall() {
        let (plan, collected) = (plan(), collected());
        let json =
            serde_json::to_value(SessionReport::of(&plan, &PHASES, &collected)).expect("JSON");
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(16));
        assert_eq!(json["median"]["baseline"]["p50_ns"], 16_500.0);
        assert_eq!(json["wall"]["median"]["p50_ns"], 14_500.0);
        assert_eq!(json["comparisons"].as_array().map(Vec::len), Some(9));
        assert_eq!(json["comparisons"][0]["metric"], "p50_ns");
        assert_eq!(json["comparisons"][0]["verdict"], "Slower");
    }

    #[test]
    fn the_wall_alone_is_a_report_like_others() {
        let plan = plan();
        let collected = Collected {
            runs: Vec::new(),
            ..collected()
        };
        let json = serde_json::to_value(SessionReport::of(&plan, &[], &collected)).expect("JSON");
        assert_eq!(json["bench"], "session wall");
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(8));
        assert_eq!(json["median"]["wall"]["runs"], 8);
    }

    #[test]
    fn csv_has_a_line_per_run_and_a_cell_per_column() {
        let (plan, collected) = (plan(), collected());
        let text = SessionReport::of(&plan, &PHASES, &collected).csv();
        let cells: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(cells, [20; 25]);
    }

    #[test]
    fn a_log_has_one_title_and_says_what_is_noise() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log/session.md");
        let (plan, mut collected) = (plan(), collected());
        for (run, index) in collected.runs.iter_mut().zip(0..) {
            run.messages_per_s = 1e5 + f64::from(index * 7 % 5);
        }
        let report = SessionReport::of(&plan, &PHASES, &collected);
        report.append_to(&path).expect("written");
        report.append_to(&path).expect("appended");
        let text = std::fs::read_to_string(&path).expect("a log");
        assert_eq!(text.matches(LOG_TITLE).count(), 1);
        assert!(text.starts_with(LOG_TITLE));
        assert_eq!(text.matches("## LatencyTest").count(), 2);
        assert_eq!(text.matches("| 2026-01-28 09:54:15 |").count(), 2 * 24);
        let row = "| zero-copy send | baseline | 8 |";
        let line = text.lines().find(|line| line.starts_with(row)).expect(row);
        let cells: Vec<&str> = line.split(" | ").collect();
        assert!(cells[3].ends_with("] faster"), "P50 in {line}");
        assert!(
            cells[5].ends_with("] inside the noise |"),
            "packets/s in {line}"
        );
        assert!(text.contains("messages arrived, in time and unchanged"));
    }

    #[test]
    fn losses_and_stalls_are_reported() {
        let plan = plan();
        let mut collected = collected();
        collected.runs[3].lost = 2;
        collected.runs[3].stalls = vec![Stall {
            session: 0,
            sequence: 77,
            ms: 6_200.0,
            ended: true,
        }];
        let report = SessionReport::of(&plan, &PHASES, &collected);
        assert!(!report.is_sound());
        let remarks = report.remarks().join("\n");
        assert!(
            remarks.contains("stall: 6200 ms in run 2 of zero-copy send, session 0, message 77"),
            "{remarks}"
        );
        assert!(remarks.contains("2 were lost"), "{remarks}");
        let table = report.runs_table().to_string();
        assert!(table.contains("1, longest 6200 ms"), "{table}");
    }
}
