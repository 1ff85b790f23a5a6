//! What `bench disk` prints.

use std::fmt;

use anyhow::Result;
use embar_console::size::Size;
use embar_meter::Interval;
use embar_meter::stats::{Series, paired_ratio};
use embar_meter::table::Table;
use serde::Serialize;

use super::plan::{DiskPlan, Work};
use crate::experiment::Surroundings;

/// Bytes of the writes that journals are compared with, if these were measured.
const WALL_BYTES: u32 = 1 << 20;

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct DiskRow {
    /// What was done: write, read, journal or recover.
    pub work: &'static str,
    /// Bytes of each write or read, or of each batch.
    pub bytes: u32,
    /// How many were on their way at once.
    pub depth: Option<u16>,
    /// Median of the trials, in MiB (2^20 bytes) per second.
    pub mib_per_s: f64,
    /// The slowest trial, and the fastest.
    pub mib_per_s_min: f64,
    /// The fastest.
    pub mib_per_s_max: f64,
    /// What half of the writes or reads did not exceed, in microseconds.
    pub p50_us: Option<f64>,
    /// What 99 of 100 did not exceed, in microseconds.
    pub p99_us: Option<f64>,
    /// Of a journal or a recovery: its rate divided by that of the wall, round by round.
    pub ratio: Option<Interval>,
    /// What it is compared with.
    pub wall: Option<String>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct DiskReport {
    /// The directory.
    data: String,
    /// Whether files were written and read past the page cache.
    direct: bool,
    /// Bytes of a trial.
    total_bytes: u64,
    /// Trials of each.
    trials: usize,
    rows: Vec<DiskRow>,
    surroundings: Surroundings,
}

/// A work with its rates, and the medians of its times.
pub type Seen = (Work, Series, Option<f64>, Option<f64>);

impl DiskReport {
    pub(super) fn new(
        plan: &DiskPlan,
        direct: bool,
        seen: Vec<Seen>,
        surroundings: Surroundings,
    ) -> Result<Self> {
        let rows = seen.iter().map(|one| row(one, &seen));
        Ok(Self {
            data: plan.data.display().to_string(),
            direct,
            total_bytes: plan.total_bytes,
            trials: plan.trials,
            rows: rows.collect::<Result<_>>()?,
            surroundings,
        })
    }
}

fn row((work, series, p50_ns, p99_ns): &Seen, all: &[Seen]) -> Result<DiskRow> {
    let (name, bytes, depth) = match *work {
        Work::Write { io_bytes, depth } => ("write", io_bytes, Some(depth)),
        Work::Read { io_bytes, depth } => ("read", io_bytes, Some(depth)),
        Work::Journal { batch_bytes } => ("journal", batch_bytes, None),
        Work::Recover { batch_bytes } => ("recover", batch_bytes, None),
    };
    let wall = wall_of(*work, all);
    let ratio = wall.map(|(_, wall, ..)| paired_ratio(wall, series));
    Ok(DiskRow {
        work: name,
        bytes,
        depth,
        mib_per_s: series.median(),
        mib_per_s_min: series.min(),
        mib_per_s_max: series.max(),
        p50_us: p50_ns.map(|ns| ns / 1e3),
        p99_us: p99_ns.map(|ns| ns / 1e3),
        ratio: ratio.transpose()?,
        wall: wall.map(|(work, ..)| describe(*work)),
    })
}

/// What a journal or a recovery is compared with: the fastest writes of 1 MiB, or of whatever size, and the fastest reads.
fn wall_of(work: Work, all: &[Seen]) -> Option<&Seen> {
    let fastest = |is_one: &dyn Fn(&Work) -> bool| {
        let those = all.iter().filter(|(work, ..)| is_one(work));
        those.max_by(|(_, one, ..), (_, other, ..)| one.median().total_cmp(&other.median()))
    };
    let of_a_mib = |work: &Work| {
        matches!(
            work,
            Work::Write {
                io_bytes: WALL_BYTES,
                ..
            }
        )
    };
    match work {
        Work::Journal { .. } => {
            fastest(&of_a_mib).or_else(|| fastest(&|work| matches!(work, Work::Write { .. })))
        }
        Work::Recover { .. } => fastest(&|work| matches!(work, Work::Read { .. })),
        Work::Write { .. } | Work::Read { .. } => None,
    }
}

fn describe(work: Work) -> String {
    match work {
        Work::Write { io_bytes, depth } => {
            format!("writes of {}, {depth} at once", Size(io_bytes.into()))
        }
        Work::Read { io_bytes, depth } => {
            format!("reads of {}, {depth} at once", Size(io_bytes.into()))
        }
        Work::Journal { batch_bytes } => {
            format!("a journal of batches of {}", Size(batch_bytes.into()))
        }
        Work::Recover { batch_bytes } => {
            format!("recovery of batches of {}", Size(batch_bytes.into()))
        }
    }
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "what",
            "bytes",
            "at once",
            "MiB/s",
            "min",
            "max",
            "p50 (us)",
            "p99 (us)",
            "of the wall",
        ]);
        for row in &self.rows {
            let time = |us: Option<f64>| us.map_or(String::new(), |us| format!("{us:.0}"));
            let ratio = row.ratio.map(|it| format!("{it:.2}"));
            table.row([
                row.work.to_owned(),
                Size(row.bytes.into()).to_string(),
                row.depth.map_or(String::new(), |depth| depth.to_string()),
                format!("{:.0}", row.mib_per_s),
                format!("{:.0}", row.mib_per_s_min),
                format!("{:.0}", row.mib_per_s_max),
                time(row.p50_us),
                time(row.p99_us),
                ratio.unwrap_or_default(),
            ]);
        }
        writeln!(f, "{table}")?;
        let walls = self.rows.iter().filter_map(|row| {
            let wall = row.wall.as_ref()?;
            Some(format!("{} {}: {wall}", row.work, Size(row.bytes.into())))
        });
        for wall in walls {
            writeln!(f, "the wall of {wall}")?;
        }
        if !self.direct {
            writeln!(
                f,
                "{} cannot be written past the page cache: what is read may come from memory, and what is synced costs more",
                self.data
            )?;
        }
        write!(f, "{}", self.surroundings)
    }
}
