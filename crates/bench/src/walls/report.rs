//! What `bench walls` prints.

use std::fmt;

use anyhow::Result;
use embar_console::size::Size;
use embar_meter::Interval;
use embar_meter::experiment::Outcome;
use embar_meter::stats::LEVEL;
use embar_meter::table::Table;
use serde::Serialize;

use super::plan::{Path, WallsPlan};
use super::rows::Row;

/// GB (10^9 bytes) in a MiB (2^20 bytes).
const GB_PER_MIB: f64 = 1.048_576e-3;

/// Ours beside one wall.
#[derive(Clone, Debug, Serialize)]
pub struct WallRow {
    /// Where the bytes go, over which sockets.
    pub path: Path,
    /// Order level of the topic; 0 where only the wall was measured.
    pub order: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// What ours is compared with.
    pub wall: &'static str,
    /// Its median, in GB (10^9 bytes) per second.
    pub wall_gb_per_s: f64,
    /// Our median; `None` where only the wall was measured.
    pub ours_gb_per_s: Option<f64>,
    /// Median of ours divided by the wall, round by round.
    pub ratio: Option<f64>,
    /// Where this median is, with its confidence.
    pub interval: Option<Interval>,
    /// Rounds.
    pub rounds: usize,
    /// The least ratio that we aim at, if there is one.
    pub target: Option<f64>,
    /// Whether the ratio is at least that.
    pub reached: Option<bool>,
}

impl WallRow {
    /// Compares two configurations of an experiment whose values are MiB/s.
    pub fn of(path: Path, batch_bytes: u32, row: &Row, outcome: &Outcome) -> Result<Self> {
        let wall = outcome.series(row.baseline);
        let compare = |changed| outcome.compare(row.baseline, changed);
        let interval = row.changed.map(compare).transpose()?.map(|one| one.ratio);
        let ratio = interval.map(|interval| interval.point);
        Ok(Self {
            path,
            order: row.order,
            batch_bytes,
            wall: row.wall,
            wall_gb_per_s: wall.median() * GB_PER_MIB,
            ours_gb_per_s: row
                .changed
                .map(|ours| outcome.series(ours).median() * GB_PER_MIB),
            ratio,
            interval,
            rounds: wall.values().len(),
            target: row.target,
            reached: ratio.zip(row.target).map(|(ratio, target)| ratio >= target),
        })
    }

    fn in_words(&self) -> &'static str {
        match (self.reached, self.is_certain()) {
            (Some(true), true) => "yes",
            (Some(true), false) => "yes, inside the noise",
            (Some(false), true) => "no",
            (Some(false), false) => "no, inside the noise",
            (None, _) => "",
        }
    }

    /// Whether the whole interval is on one side of the aim.
    fn is_certain(&self) -> bool {
        let both = self.target.zip(self.interval);
        both.is_some_and(|(target, interval)| !interval.allows(target))
    }

    fn cells(&self) -> [String; 9] {
        let gb = |rate: f64| format!("{rate:.2}");
        [
            self.path.name().to_owned(),
            self.order.to_string(),
            Size(self.batch_bytes.into()).to_string(),
            self.wall.to_owned(),
            gb(self.wall_gb_per_s),
            self.ours_gb_per_s.map(gb).unwrap_or_default(),
            self.interval.map(|of| of.to_string()).unwrap_or_default(),
            self.target.map(|of| format!("{of:.2}")).unwrap_or_default(),
            self.in_words().to_owned(),
        ]
    }
}

impl fmt::Display for WallRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [path, order, batch, wall, wall_rate, ours, ratio, ..] = self.cells();
        write!(f, "{path}, batches of {batch}, {wall} {wall_rate} GB/s")?;
        if self.ratio.is_some() {
            write!(f, "; order {order} {ours} GB/s: {ratio}")?;
        }
        Ok(())
    }
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct WallsReport {
    bench: &'static str,
    config: WallsPlan,
    /// In the order in which they were measured.
    pub rows: Vec<WallRow>,
}

impl WallsReport {
    /// The report of a run.
    pub fn new(plan: &WallsPlan, rows: Vec<WallRow>) -> Self {
        Self {
            bench: "walls",
            config: plan.clone(),
            rows,
        }
    }
}

impl fmt::Display for WallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "path",
            "order",
            "batch",
            "beside",
            "GB/s",
            "ours GB/s",
            "ratio",
            "aim",
            "reached",
        ]);
        for row in &self.rows {
            table.row(row.cells());
        }
        write!(f, "{table}")?;
        let level = |row: &WallRow| row.interval.map(|interval| interval.level);
        let least = self.rows.iter().filter_map(level).fold(1.0, f64::min);
        if least < LEVEL {
            write!(
                f,
                "\nthe intervals have a confidence of {:.0} %, because so few rounds support no more: run at least 6",
                least * 100.0
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use embar_meter::experiment::{Experiment, Sample};

    use super::*;
    use crate::walls::rows::{Config, configs, rows};

    fn outcome(values: &[f64]) -> Outcome {
        let names = values.iter().map(f64::to_string);
        let trial = |index: usize, _| Ok::<_, anyhow::Error>(Sample::from(values[index]));
        Experiment::new(names).trials(6).run(trial).expect("trials")
    }

    #[test]
    fn a_row_has_rates_in_decimal_units_and_says_whether_the_aim_is_reached() {
        let configs = configs(Path::PublishTcp, &[0], false);
        let walls = [1000.0, 500.0];
        assert!(matches!(configs[2], Config::Ours { .. }));
        let outcome = outcome(&[walls[0], walls[1], 480.0]);
        let rows: Vec<WallRow> = rows(2 << 20, &configs)
            .iter()
            .map(|row| WallRow::of(Path::PublishTcp, 2 << 20, row, &outcome).expect("a row"))
            .collect();
        let [bare, working] = rows.as_slice() else {
            panic!("two walls: {rows:?}");
        };
        assert!((bare.wall_gb_per_s - 1.048_576).abs() < 1e-9);
        assert_eq!((bare.reached, working.reached), (Some(false), Some(true)));
        assert!((working.ratio.expect("measured") - 0.96).abs() < 1e-9);
        let text = WallsReport::new(&crate::walls::plan::tests::plan(), rows).to_string();
        assert!(text.contains("0.960 [0.960, 0.960]"), "{text}");
        assert!(!text.contains("noise"), "{text}");
    }

    #[test]
    fn a_wall_alone_has_no_ratio() {
        let configs = configs(Path::E2eTcp, &[0], true);
        let row = rows(2 << 20, &configs)[0];
        let row = WallRow::of(Path::E2eTcp, 2 << 20, &row, &outcome(&[100.0])).expect("a row");
        assert_eq!(
            (row.ours_gb_per_s, row.ratio, row.reached),
            (None, None, None)
        );
        assert!(row.to_string().ends_with("GB/s"), "{row}");
    }
}
