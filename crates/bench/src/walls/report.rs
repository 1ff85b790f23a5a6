//! What `bench walls` prints.

use std::fmt;

use anyhow::Result;
use embar_console::size::Size;
use embar_meter::Interval;
use embar_meter::experiment::Outcome;
use embar_meter::stats::LEVEL;
use embar_meter::table::Table;
use serde::Serialize;

use super::plan::{Case, Cluster, Direction, Path, WallsPlan};
use super::rows::Row;
use super::times::{self, TimeRow};
use crate::reader::Reader;

/// GB (10^9 bytes) in a MiB (2^20 bytes).
const GB_PER_MIB: f64 = 1.048_576e-3;

/// Ours beside one wall.
#[derive(Clone, Debug, Serialize)]
pub struct WallRow {
    /// Where the bytes go, and what carries them.
    pub path: Path,
    /// Order level of the topic; 0 where only the wall was measured.
    pub order: u32,
    /// Bytes of a batch.
    pub batch_bytes: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Brokers of ours, the head included; it takes data if it is alone.
    pub brokers: u16,
    /// What became of each message that was read of ours.
    pub reader: Reader,
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
    /// The least rate of ours that we aim at, if there is one, in GB (10^9 bytes) per second.
    pub target_gb_per_s: Option<f64>,
    /// Whether ours is at least all that.
    pub reached: Option<bool>,
}

impl WallRow {
    /// Compares two configurations of an experiment whose values are MiB/s.
    pub fn of(case: Case, row: &Row, brokers: u16, outcome: &Outcome) -> Result<Self> {
        let wall = outcome.series(row.baseline);
        let compare = |changed| outcome.compare(row.baseline, changed);
        let interval = row.changed.map(compare).transpose()?.map(|one| one.ratio);
        let ratio = interval.map(|interval| interval.point);
        let ours_gb_per_s = row
            .changed
            .map(|ours| outcome.series(ours).median() * GB_PER_MIB);
        let enough = |ours: Option<f64>, least: Option<f64>| {
            ours.zip(least).map(|(ours, least)| ours >= least)
        };
        let reached = [
            enough(ratio, row.aim.ratio),
            enough(ours_gb_per_s, row.aim.ours),
        ];
        Ok(Self {
            path: case.path,
            order: row.order,
            batch_bytes: case.batch_bytes,
            message_bytes: case.message_bytes,
            brokers: match row.cluster {
                Cluster::Several => brokers,
                Cluster::One | Cluster::Spinning => 1,
            },
            reader: row.reader,
            wall: row.wall,
            wall_gb_per_s: wall.median() * GB_PER_MIB,
            ours_gb_per_s,
            ratio,
            interval,
            rounds: wall.values().len(),
            target: row.aim.ratio,
            target_gb_per_s: row.aim.ours,
            reached: reached
                .into_iter()
                .flatten()
                .reduce(|one, other| one && other),
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
        both.is_some_and(|(target, interval)| interval.excludes(target, LEVEL))
    }

    /// What is to be known of ours beside its order.
    fn ours(&self) -> String {
        let is_read = matches!(self.path.direction(), Direction::Read | Direction::E2e);
        let reader = is_read.then(|| self.reader.to_string());
        let lone = (self.brokers == 1).then(|| "one broker".to_owned());
        match self.ours_gb_per_s {
            Some(_) => lone
                .into_iter()
                .chain(reader)
                .collect::<Vec<_>>()
                .join(", "),
            None => String::new(),
        }
    }

    fn cells(&self) -> [String; 11] {
        let gb = |rate: f64| format!("{rate:.2}");
        let aims = [
            self.target.map(|least| format!("{least:.2}")),
            self.target_gb_per_s.map(|least| format!("{least:.2} GB/s")),
        ];
        [
            self.path.name().to_owned(),
            self.order.to_string(),
            self.ours(),
            Size(self.batch_bytes.into()).to_string(),
            Size(self.message_bytes.into()).to_string(),
            self.wall.to_owned(),
            gb(self.wall_gb_per_s),
            self.ours_gb_per_s.map(gb).unwrap_or_default(),
            self.interval.map(|of| of.to_string()).unwrap_or_default(),
            aims.into_iter().flatten().collect::<Vec<_>>().join(", "),
            self.in_words().to_owned(),
        ]
    }
}

impl fmt::Display for WallRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [
            path,
            order,
            how,
            batch,
            message,
            wall,
            wall_rate,
            ours,
            ratio,
            ..,
        ] = self.cells();
        write!(
            f,
            "{path}, batches of {batch}, messages of {message}, {wall} {wall_rate} GB/s"
        )?;
        if self.ratio.is_some() {
            let how = if how.is_empty() {
                how
            } else {
                format!(" {how}")
            };
            write!(f, "; order {order}{how} {ours} GB/s: {ratio}")?;
        }
        Ok(())
    }
}

/// All rows.
#[derive(Clone, Debug, Serialize)]
pub struct WallsReport {
    bench: &'static str,
    config: WallsPlan,
    /// Rates, in the order in which they were measured.
    pub rows: Vec<WallRow>,
    /// Times, likewise.
    pub times: Vec<TimeRow>,
}

impl WallsReport {
    /// The report of a run that has measured nothing yet.
    pub fn new(plan: &WallsPlan) -> Self {
        Self {
            bench: "walls",
            config: plan.clone(),
            rows: Vec::new(),
            times: Vec::new(),
        }
    }
}

impl fmt::Display for WallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "path",
            "order",
            "ours",
            "batch",
            "message",
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
        if !self.rows.is_empty() {
            write!(f, "{table}")?;
        }
        if !self.times.is_empty() {
            let between = if self.rows.is_empty() { "" } else { "\n\n" };
            write!(f, "{between}{}", times::table(&self.times))?;
        }
        let of_rates = self.rows.iter().filter_map(|row| row.interval);
        let of_times = self.times.iter().filter_map(|row| row.interval);
        let least = of_rates
            .chain(of_times)
            .map(|interval| interval.level)
            .fold(1.0, f64::min);
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
    use crate::walls::rows::{Aim, Config, configs, rows};

    fn case(path: Path, message_bytes: u32) -> Case {
        Case {
            path,
            batch_bytes: 2 << 20,
            message_bytes,
        }
    }

    fn outcome(values: &[f64]) -> Outcome {
        let names = values.iter().map(f64::to_string);
        let trial = |index: usize, _| Ok::<_, anyhow::Error>(Sample::from(values[index]));
        Experiment::new(names).trials(6).run(trial).expect("trials")
    }

    #[test]
    fn a_row_has_rates_in_decimal_units_and_says_whether_the_aim_is_reached() {
        let case = case(Path::PublishTcp, 1024);
        let configs = configs(case.path, &[0], false);
        let walls = [1000.0, 500.0];
        assert!(matches!(configs[2], Config::Ours { .. }));
        let outcome = outcome(&[walls[0], walls[1], 480.0]);
        let rows: Vec<WallRow> = rows(case, &configs)
            .iter()
            .map(|row| WallRow::of(case, row, 4, &outcome).expect("a row"))
            .collect();
        let [bare, working] = rows.as_slice() else {
            panic!("two walls: {rows:?}");
        };
        assert!((bare.wall_gb_per_s - 1.048_576).abs() < 1e-9);
        assert_eq!((bare.reached, working.reached), (Some(false), Some(true)));
        assert!((working.ratio.expect("measured") - 0.96).abs() < 1e-9);
        let mut report = WallsReport::new(&crate::walls::plan::tests::plan());
        report.rows = rows;
        let text = report.to_string();
        assert!(text.contains("0.960 [0.960, 0.960]"), "{text}");
        assert!(!text.contains("noise"), "{text}");
    }

    #[test]
    fn a_wall_alone_has_no_ratio() {
        let case = case(Path::E2eTcp, 1024);
        let configs = configs(case.path, &[0], true);
        let row = rows(case, &configs)[0];
        let row = WallRow::of(case, &row, 4, &outcome(&[100.0])).expect("a row");
        assert_eq!(
            (row.ours_gb_per_s, row.ratio, row.reached),
            (None, None, None)
        );
        assert!(row.to_string().ends_with("GB/s"), "{row}");
    }
    #[test]
    fn a_rate_must_reach_its_own_aim_too() {
        let case = case(Path::PublishShm, 64);
        let row = Row {
            wall: "bare",
            order: 0,
            reader: Reader::Verifies,
            cluster: Cluster::Several,
            baseline: 0,
            changed: Some(1),
            aim: Aim {
                ratio: Some(0.7),
                ours: Some(3.84),
            },
        };
        let of = |wall: f64, ours: f64| {
            let outcome = outcome(&[wall, ours].map(|gb| gb / GB_PER_MIB));
            WallRow::of(case, &row, 4, &outcome).expect("a row")
        };
        assert_eq!(of(5.0, 4.0).reached, Some(true));
        assert_eq!(of(4.0, 3.8).reached, Some(false), "too slow by itself");
        assert_eq!(
            of(6.0, 4.0).reached,
            Some(false),
            "too slow beside the wall"
        );
        let cells = of(5.0, 4.0).cells();
        assert!(cells.contains(&"0.70, 3.84 GB/s".to_owned()), "{cells:?}");
    }
}
