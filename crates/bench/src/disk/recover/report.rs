//! What `bench recover` prints.

use std::fmt;

use anyhow::{Context as _, Result};
use embar_console::size::Size;
use embar_meter::Interval;
use embar_meter::stats::{Series, median, paired_ratio};
use embar_meter::table::Table;
use serde::Serialize;

use super::{RecoverPlan, SEGMENT_BYTES, Work};
use crate::disk::beside::IO_BYTES;
use crate::experiment::Surroundings;
use crate::usage::Cost;

/// Reads of a file, so many at once.
#[derive(Clone, Debug, Serialize)]
struct Reads {
    depth: u16,
    mib_per_s: f64,
}

/// Recovery of what must be read.
#[derive(Clone, Debug, Serialize)]
struct Journal {
    /// Of the batches in it.
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
    mib_per_s_min: f64,
    mib_per_s_max: f64,
    cpu_s_per_gib: f64,
    /// The fastest reads...
    wall_depth: u16,
    /// ...and what recovery is of them, round by round.
    ratio: Interval,
}

/// Recovery of segments that are over.
#[derive(Clone, Debug, Serialize)]
struct Sealed {
    segments: u64,
    /// What they would have if they were full.
    simulated_bytes: u64,
    seconds: f64,
    us_per_segment: f64,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct RecoverReport {
    bench: &'static str,
    data: String,
    /// Whether files were read past the page cache.
    direct: bool,
    batch_bytes: u32,
    trials: usize,
    reads: Vec<Reads>,
    journal: Journal,
    sealed: Option<Sealed>,
    surroundings: Surroundings,
}

impl RecoverReport {
    /// `bytes` is what the batches of the journal have.
    pub(super) fn new(
        plan: &RecoverPlan,
        (bytes, direct): (u64, bool),
        seen: &[(Work, Series)],
        costs: &[Cost],
    ) -> Result<Self> {
        let of = |work: Work| seen.iter().find(|(it, _)| *it == work).map(|(_, it)| it);
        let reads: Vec<(u16, &Series)> = seen
            .iter()
            .filter_map(|(work, series)| match work {
                Work::Read { depth } => Some((*depth, series)),
                Work::Recover | Work::Sealed => None,
            })
            .collect();
        let fastest = reads.iter();
        let fastest =
            fastest.max_by(|(_, one), (_, other)| one.median().total_cmp(&other.median()));
        let (wall_depth, wall) = fastest.context("reads were measured")?;
        let recover = of(Work::Recover).context("a recovery was measured")?;
        let cpu: Vec<_> = costs.iter().map(|cost| cost.cpu_s_per_gib).collect();
        let mib = bytes as f64 / f64::from(1 << 20);
        Ok(Self {
            bench: "recover",
            data: plan.data.display().to_string(),
            direct,
            batch_bytes: plan.batch_bytes,
            trials: plan.trials,
            journal: Journal {
                bytes,
                seconds: mib / recover.median(),
                mib_per_s: recover.median(),
                mib_per_s_min: recover.min(),
                mib_per_s_max: recover.max(),
                cpu_s_per_gib: median(&cpu).unwrap_or_default(),
                wall_depth: *wall_depth,
                ratio: paired_ratio(wall, recover)?,
            },
            reads: reads
                .iter()
                .map(|(depth, series)| Reads {
                    depth: *depth,
                    mib_per_s: series.median(),
                })
                .collect(),
            sealed: of(Work::Sealed).map(|seconds| Sealed {
                segments: plan.segments,
                simulated_bytes: plan.segments * SEGMENT_BYTES,
                seconds: seconds.median(),
                us_per_segment: seconds.median() * 1e6 / plan.segments as f64,
            }),
            surroundings: Surroundings::default(),
        })
    }

    /// With what others did meanwhile.
    pub(super) fn beside(self, surroundings: Surroundings) -> Self {
        Self {
            surroundings,
            ..self
        }
    }
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["what", "MiB/s", "seconds", "CPU s per GiB", "of the reads"]);
        let io = Size(IO_BYTES.into());
        for reads in &self.reads {
            let name = format!("reads of {io}, {} at once", reads.depth);
            let rate = format!("{:.0}", reads.mib_per_s);
            table.row([name, rate, String::new(), String::new(), String::new()]);
        }
        let journal = &self.journal;
        table.row([
            format!("recovery of {}", Size(journal.bytes)),
            format!("{:.0}", journal.mib_per_s),
            format!("{:.3}", journal.seconds),
            format!("{:.3}", journal.cpu_s_per_gib),
            format!("{:.2}", journal.ratio),
        ]);
        if let Some(sealed) = &self.sealed {
            let name = format!("recovery of {} segments that are over", sealed.segments);
            let seconds = format!("{:.3}", sealed.seconds);
            table.row([name, String::new(), seconds, String::new(), String::new()]);
        }
        writeln!(f, "{table}")?;
        if let Some(sealed) = &self.sealed {
            writeln!(
                f,
                "{} segments that are over and have indexes stand for {}: {:.0} us each",
                sealed.segments,
                Size(sealed.simulated_bytes),
                sealed.us_per_segment
            )?;
        }
        if !self.direct {
            writeln!(
                f,
                "{} cannot be read past the page cache: what is read may come from memory",
                self.data
            )?;
        }
        write!(f, "{}", self.surroundings)
    }
}
