//! The rows of `bench walls` whose figures are times.

use std::fmt;

use anyhow::Result;
use embar_console::size::Size;
use embar_meter::Interval;
use embar_meter::experiment::Outcome;
use embar_meter::stats::median;
use embar_meter::table::Table;
use serde::Serialize;

use super::plan::{Case, Cluster, Path};
use super::rows::Row;

/// The time of ours beside that of one wall.
#[derive(Clone, Debug, Serialize)]
pub struct TimeRow {
    /// What is timed.
    pub path: Path,
    /// Order level of the topic; 0 where only the wall was measured.
    pub order: u32,
    /// Whether broker and clients of ours looked for the next message before they slept.
    pub spins: bool,
    /// Bytes of a message of ours.
    pub message_bytes: u32,
    /// What ours is compared with.
    pub wall: &'static str,
    /// Half of its round trips take no longer, in nanoseconds: the median of the trials.
    pub wall_p50_ns: f64,
    /// 99 of 100 take no longer.
    pub wall_p99_ns: f64,
    /// As `wall_p50_ns`; `None` where only the wall was measured.
    pub ours_p50_ns: Option<f64>,
    /// As `wall_p99_ns`.
    pub ours_p99_ns: Option<f64>,
    /// Median of ours divided by the wall, round by round: of what half of the round trips take.
    pub ratio: Option<f64>,
    /// Where this median is, with its confidence.
    pub interval: Option<Interval>,
    /// Rounds.
    pub rounds: usize,
    /// The greatest ratio that we aim at, if there is one.
    pub target: Option<f64>,
    /// The longest `ours_p50_ns` that we aim at, if there is one.
    pub target_ns: Option<f64>,
    /// Whether ours is at most all that.
    pub reached: Option<bool>,
}

impl TimeRow {
    /// Compares two configurations of an experiment whose values are times that half of the round trips do not exceed;
    /// `p99_ns` has the others.
    pub fn of(case: Case, row: &Row, outcome: &Outcome, p99_ns: &[Vec<f64>]) -> Result<Self> {
        let wall = outcome.series(row.baseline);
        let compare = |changed| outcome.compare(row.baseline, changed);
        let interval = row.changed.map(compare).transpose()?.map(|one| one.ratio);
        let ratio = interval.map(|interval| interval.point);
        let ours_p50_ns = row.changed.map(|ours| outcome.series(ours).median());
        let slow = |config: usize| median(&p99_ns[config]);
        let within =
            |ours: Option<f64>, most: Option<f64>| ours.zip(most).map(|(ours, most)| ours <= most);
        let reached = [
            within(ratio, row.aim.ratio),
            within(ours_p50_ns, row.aim.ours),
        ];
        Ok(Self {
            path: case.path,
            order: row.order,
            spins: row.cluster == Cluster::Spinning,
            message_bytes: case.message_bytes,
            wall: row.wall,
            wall_p50_ns: wall.median(),
            wall_p99_ns: slow(row.baseline).unwrap_or_default(),
            ours_p50_ns,
            ours_p99_ns: row.changed.and_then(slow),
            ratio,
            interval,
            rounds: wall.values().len(),
            target: row.aim.ratio,
            target_ns: row.aim.ours,
            reached: reached
                .into_iter()
                .flatten()
                .reduce(|one, other| one && other),
        })
    }

    /// How ours waits.
    fn waits(&self) -> &'static str {
        match (self.ours_p50_ns, self.spins) {
            (None, _) => "",
            (_, true) => "spinning",
            (_, false) => "sleeping",
        }
    }

    fn cells(&self) -> [String; 10] {
        let ns = |time: f64| format!("{time:.0}");
        let ours = |time: Option<f64>| time.map(ns).unwrap_or_default();
        let aims = [
            self.target.map(|most| format!("{most:.2}")),
            self.target_ns.map(|most| format!("{most:.0} ns")),
        ];
        [
            self.path.name().to_owned(),
            self.order.to_string(),
            self.waits().to_owned(),
            self.wall.to_owned(),
            ns(self.wall_p50_ns),
            ns(self.wall_p99_ns),
            ours(self.ours_p50_ns),
            ours(self.ours_p99_ns),
            self.interval.map(|of| of.to_string()).unwrap_or_default(),
            aims.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]
    }
}

impl fmt::Display for TimeRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [
            path,
            order,
            waits,
            wall,
            wall_p50,
            wall_p99,
            p50,
            p99,
            ratio,
            _,
        ] = self.cells();
        write!(f, "{path}, {wall} p50 {wall_p50} ns, p99 {wall_p99} ns")?;
        if self.ratio.is_some() {
            let message = Size(self.message_bytes.into());
            write!(
                f,
                "; order {order}, {waits}, messages of {message}: p50 {p50} ns, p99 {p99} ns: {ratio}"
            )?;
        }
        Ok(())
    }
}

/// All of them, for people.
pub fn table(rows: &[TimeRow]) -> Table {
    let mut table = Table::new([
        "path",
        "order",
        "ours waits",
        "beside",
        "p50 ns",
        "p99 ns",
        "ours p50 ns",
        "ours p99 ns",
        "ratio of p50",
        "aim, at most",
    ]);
    for row in rows {
        table.row(row.cells());
    }
    table
}

#[cfg(test)]
mod tests {
    use embar_meter::experiment::{Better, Experiment, Sample};

    use super::*;
    use crate::reader::Reader;
    use crate::walls::rows::Aim;

    const CASE: Case = Case {
        path: Path::AckShm,
        batch_bytes: 256 << 10,
        message_bytes: 1024,
    };

    fn row(changed: Option<usize>) -> Row {
        Row {
            wall: "hand-over",
            order: 0,
            reader: Reader::Verifies,
            cluster: Cluster::Spinning,
            baseline: 0,
            changed,
            aim: Aim {
                ratio: Some(20.0),
                ours: Some(3000.0),
            },
        }
    }

    fn outcome(values: &[f64]) -> Outcome {
        let experiment = Experiment::new(values.iter().map(f64::to_string)).better(Better::Lower);
        let trial = |index: usize, _| Ok::<_, anyhow::Error>(Sample::from(values[index]));
        experiment.trials(6).run(trial).expect("trials")
    }

    #[test]
    fn a_time_must_not_exceed_its_aims() {
        let of = |wall: f64, ours: f64| {
            let slow = [vec![500.0, 700.0, 600.0], vec![9000.0]];
            TimeRow::of(CASE, &row(Some(1)), &outcome(&[wall, ours]), &slow).expect("a row")
        };
        let row = of(200.0, 2500.0);
        assert_eq!(row.reached, Some(true));
        assert_eq!((row.wall_p99_ns, row.ours_p99_ns), (600.0, Some(9000.0)));
        assert_eq!(of(200.0, 3100.0).reached, Some(false), "too long by itself");
        assert_eq!(of(100.0, 2500.0).reached, Some(false), "beside the wall");
        let text = table(&[row]).to_string();
        assert!(text.contains("20.00, 3000 ns"), "{text}");
    }

    #[test]
    fn a_wall_alone_has_no_ratio() {
        let alone = TimeRow::of(CASE, &row(None), &outcome(&[200.0]), &[vec![300.0]]);
        let alone = alone.expect("a row");
        assert_eq!(
            (alone.ours_p50_ns, alone.ratio, alone.reached),
            (None, None, None)
        );
        assert!(alone.to_string().ends_with("p99 300 ns"), "{alone}");
    }
}
