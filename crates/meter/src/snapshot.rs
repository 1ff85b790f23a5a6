//! The sums of a profile at one moment, as a value: send it as JSON, subtract an earlier one, merge several, print it.

use std::fmt;

use crate::table::{Table, grouped};

/// One stage's sums.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StageRow {
    /// Name of the stage.
    pub name: String,
    /// Time spent in it by all threads, nanoseconds.
    pub total_ns: u64,
    /// Events counted.
    pub count: u64,
    /// `total_ns / count`, zero when nothing was counted.
    pub avg_ns: f64,
    /// Part of the pipeline's time spent here, 0 to 1; zero when no time was recorded at all.
    pub share: f64,
}

/// The sums of all recorders of a profile, or of several profiles, or of the time between two snapshots.
///
/// `Display` prints the table; [`Snapshot::with_lines`] appends lines the caller derived from it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Snapshot {
    /// Title of the table, without brackets.
    pub title: String,
    /// Stages in the order of the schema.
    pub stages: Vec<StageRow>,
    /// Counters in the order of the schema.
    pub counters: Vec<(String, u64)>,
}

impl Snapshot {
    /// Builds a snapshot from `(name, total_ns, count)` of each stage and `(name, value)` of each counter; averages and
    /// shares follow.
    pub fn new(
        title: impl Into<String>,
        stages: impl IntoIterator<Item = (String, u64, u64)>,
        counters: impl IntoIterator<Item = (String, u64)>,
    ) -> Self {
        let mut stages: Vec<StageRow> = stages
            .into_iter()
            .map(|(name, total_ns, count)| StageRow {
                name,
                total_ns,
                count,
                avg_ns: ratio(total_ns, count),
                share: 0.0,
            })
            .collect();
        let pipeline = sum(&stages);
        for stage in &mut stages {
            stage.share = ratio(stage.total_ns, pipeline);
        }
        Self {
            title: title.into(),
            stages,
            counters: counters.into_iter().collect(),
        }
    }

    /// What was added after `earlier` was taken. Stages and counters are matched by name; one that `earlier` lacks
    /// counts from zero, one that shrank (another process answered) is zero.
    pub fn since(&self, earlier: &Self) -> Self {
        Self::new(
            &*self.title,
            self.stages.iter().map(|row| {
                let (total_ns, count) = earlier
                    .stage(&row.name)
                    .map_or((0, 0), |e| (e.total_ns, e.count));
                (
                    row.name.clone(),
                    row.total_ns.saturating_sub(total_ns),
                    row.count.saturating_sub(count),
                )
            }),
            self.counters.iter().map(|(name, value)| {
                let before = earlier.counter(name).unwrap_or(0);
                (name.clone(), value.saturating_sub(before))
            }),
        )
    }

    /// The sums of both, matched by name; what only `other` has is appended. Keeps this title.
    pub fn merge(&self, other: &Self) -> Self {
        let stages = self.stages.iter().map(|row| {
            let (total_ns, count) = other
                .stage(&row.name)
                .map_or((0, 0), |o| (o.total_ns, o.count));
            (
                row.name.clone(),
                row.total_ns.saturating_add(total_ns),
                row.count.saturating_add(count),
            )
        });
        let new_stages = other
            .stages
            .iter()
            .filter(|row| self.stage(&row.name).is_none());
        let counters = self.counters.iter().map(|(name, value)| {
            let more = other.counter(name).unwrap_or(0);
            (name.clone(), value.saturating_add(more))
        });
        let new_counters = other
            .counters
            .iter()
            .filter(|(name, _)| self.counter(name).is_none());
        Self::new(
            &*self.title,
            stages.chain(new_stages.map(|row| (row.name.clone(), row.total_ns, row.count))),
            counters.chain(new_counters.cloned()),
        )
    }

    /// The stage with this name.
    pub fn stage(&self, name: &str) -> Option<&StageRow> {
        self.stages.iter().find(|row| row.name == name)
    }

    /// The value of the counter with this name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| *value)
    }

    /// Time spent in all stages by all threads, nanoseconds.
    pub fn total_ns(&self) -> u64 {
        sum(&self.stages)
    }

    /// The stage that took the most time, the first of equals; `None` when no time was recorded.
    pub fn largest(&self) -> Option<&StageRow> {
        self.stages
            .iter()
            .rev()
            .max_by_key(|row| row.total_ns)
            .filter(|row| row.total_ns > 0)
    }

    /// The same table followed by lines that the caller derived, such as bytes per receive call.
    pub fn with_lines<'a>(&'a self, lines: &'a [(String, String)]) -> WithLines<'a> {
        WithLines {
            snapshot: self,
            lines,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, lines: &[(String, String)]) -> fmt::Result {
        let mut table = Table::new([
            "Component",
            "total (us)",
            "count",
            "avg (ns)",
            "% of pipeline",
        ]);
        for row in &self.stages {
            table.row([
                row.name.clone(),
                grouped(micros(row.total_ns)),
                grouped(row.count),
                nanos(row.avg_ns),
                format!("{:.2}%", row.share * 100.0),
            ]);
        }
        let total = self.total_ns();
        let whole = if total > 0 { "100.00%" } else { "0.00%" };
        table.row(["TOTAL", &grouped(micros(total)), "-", "-", whole]);
        for (name, value) in &self.counters {
            table.row([name.clone(), String::new(), grouped(*value)]);
        }
        write!(f, "[{}]\n{table}", self.title)?;
        let width = lines
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        lines
            .iter()
            .try_for_each(|(name, value)| write!(f, "\n{name:<width$}  {value}"))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &[])
    }
}

/// A snapshot's table with more lines under it, see [`Snapshot::with_lines`].
#[derive(Clone, Copy, Debug)]
pub struct WithLines<'a> {
    snapshot: &'a Snapshot,
    lines: &'a [(String, String)],
}

impl fmt::Display for WithLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot.write(f, self.lines)
    }
}

/// A snapshot may come from a peer, so even the sum is guarded against overflow.
fn sum(stages: &[StageRow]) -> u64 {
    stages
        .iter()
        .fold(0, |sum, row| sum.saturating_add(row.total_ns))
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn micros(ns: u64) -> u64 {
    ns.saturating_add(500) / 1_000
}

/// Whole nanoseconds, or one decimal where the whole number would hide most of the value.
fn nanos(ns: f64) -> String {
    if ns > 0.0 && ns < 100.0 {
        format!("{ns:.1}")
    } else {
        grouped(ns.round() as u64)
    }
}
