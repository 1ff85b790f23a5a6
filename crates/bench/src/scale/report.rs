//! What `bench scale` prints.

use std::fmt;

use anyhow::Result;
use embar_meter::stats::median;
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::cliffs::{self, Jump};
use super::load::ScaleTrial;
use super::plan::{Curve, ScalePlan};
use crate::usage::{self, Costs};

/// MB (10^6 bytes) in a MiB.
const MB_PER_MIB: f64 = 1.048_576;

/// What one point gave.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    #[serde(skip)]
    curve: Curve,
    /// Where it is on its curve.
    pub value: u32,
    /// Medians; `None` if it could not be run.
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// Why it could not be run.
    pub failed: Option<String>,
    #[serde(skip)]
    cpu_per_gib: Vec<f64>,
    #[serde(skip)]
    seconds_per_gib: Vec<f64>,
}

/// Medians of the trials of a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// MB (10^6 bytes) of values per second.
    pub mb_per_s: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// CPU seconds of clients and brokers for each GiB of values.
    pub cpu_s_per_gib: f64,
    /// CPU microseconds of clients and brokers for each message.
    pub cpu_us_per_message: f64,
    /// Both sides of it.
    pub costs: Costs,
}

impl Point {
    /// Sums up the trials, or says why there are none.
    pub fn new(curve: Curve, value: u32, trials: Result<Vec<ScaleTrial>>) -> Self {
        let (trials, failed) = match trials {
            Ok(trials) => (trials, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let cpu = |trial: &ScaleTrial| {
            trial.costs.client.cpu_s_per_gib + trial.costs.brokers.cpu_s_per_gib
        };
        let gib = |trial: &ScaleTrial| trial.bytes as f64 / (1u64 << 30) as f64;
        let each = |of: &dyn Fn(&ScaleTrial) -> f64| trials.iter().map(of).collect::<Vec<f64>>();
        let middle = |of: &dyn Fn(&ScaleTrial) -> f64| median(&each(of)).unwrap_or(0.0);
        let figures = (!trials.is_empty()).then(|| Figures {
            mb_per_s: middle(&|trial| trial.rate.mib_per_s * MB_PER_MIB),
            messages_per_s: middle(&|trial| trial.rate.messages_per_s),
            cpu_s_per_gib: middle(&cpu),
            cpu_us_per_message: middle(&|trial| {
                let messages = trial.rate.messages_per_s * trial.rate.seconds;
                cpu(trial) * gib(trial) / messages * 1e6
            }),
            costs: usage::median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        });
        Self {
            curve,
            value,
            figures,
            failed,
            cpu_per_gib: each(&cpu),
            seconds_per_gib: each(&|trial| trial.rate.seconds / gib(trial)),
        }
    }

    fn cells(&self) -> [String; 7] {
        let name = self.curve.name().to_owned();
        let value = self.curve.show(self.value);
        match &self.figures {
            Some(figures) => [
                name,
                value,
                grouped(figures.mb_per_s as u64),
                grouped(figures.messages_per_s as u64),
                format!("{:.3}", figures.costs.client.cpu_s_per_gib),
                format!("{:.3}", figures.costs.brokers.cpu_s_per_gib),
                format!("{:.3}", figures.cpu_us_per_message),
            ],
            None => {
                let mut cells = [const { String::new() }; 7];
                (cells[0], cells[1], cells[2]) = (name, value, "not run".to_owned());
                cells
            }
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (self.curve.name(), self.curve.show(self.value));
        match (&self.figures, &self.failed) {
            (Some(figures), _) => write!(
                f,
                "{name} {value}: {} MB/s, {} messages/s, {:.3} CPU s per GiB, {:.3} CPU us per message",
                grouped(figures.mb_per_s as u64),
                grouped(figures.messages_per_s as u64),
                figures.cpu_s_per_gib,
                figures.cpu_us_per_message
            ),
            (None, failed) => write!(
                f,
                "{name} {value} could not be run: {}",
                failed.as_deref().unwrap_or("it has no trial")
            ),
        }
    }
}

/// One curve.
#[derive(Clone, Debug, Serialize)]
pub struct CurveReport {
    /// What grows.
    pub curve: Curve,
    /// From the smallest to the largest.
    pub points: Vec<Point>,
    /// Where CPU time for each GiB jumps.
    pub cpu_cliffs: Vec<Jump>,
    /// Where time for each GiB jumps: the rate falls.
    pub time_cliffs: Vec<Jump>,
}

impl CurveReport {
    /// Looks for cliffs of more than this factor.
    pub fn new(curve: Curve, points: Vec<Point>, cliff: f64) -> Self {
        let find = |of: fn(&Point) -> &Vec<f64>| {
            let run = points.iter().filter(|point| point.figures.is_some());
            let costs: Vec<_> = run.map(|point| (point.value, of(point).clone())).collect();
            cliffs::find(&costs, cliff)
        };
        Self {
            curve,
            cpu_cliffs: find(|point| &point.cpu_per_gib),
            time_cliffs: find(|point| &point.seconds_per_gib),
            points,
        }
    }
}

/// All curves.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleReport {
    bench: &'static str,
    config: ScalePlan,
    /// In the order in which they were measured.
    pub curves: Vec<CurveReport>,
}

impl ScaleReport {
    /// The report of a run.
    pub fn new(plan: &ScalePlan, curves: Vec<CurveReport>) -> Self {
        Self {
            bench: "scale",
            config: plan.clone(),
            curves,
        }
    }

    fn cliffs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for report in &self.curves {
            let curve = report.curve;
            let mut add = |jumps: &[Jump], what: &str| {
                lines.extend(jumps.iter().map(|jump| {
                    format!(
                        "cliff: from {} to {} {}, {what} per GiB grows {:.2} times",
                        curve.show(jump.from),
                        curve.show(jump.to),
                        curve.name(),
                        jump.factor
                    )
                }));
            };
            add(&report.cpu_cliffs, "CPU time");
            add(&report.time_cliffs, "time");
        }
        lines
    }
}

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "curve",
            "point",
            "MB/s",
            "messages/s",
            "client CPU s per GiB",
            "brokers",
            "CPU us per message",
        ]);
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        for point in points() {
            table.row(point.cells());
        }
        writeln!(f, "{table}")?;
        for point in points().filter(|point| point.figures.is_none()) {
            writeln!(f, "{point}")?;
        }
        let cliffs = self.cliffs();
        if cliffs.is_empty() {
            let factor = self.config.cliff;
            return write!(
                f,
                "no cliff: nowhere does the cost of a GiB grow more than {factor} times from a point to the next"
            );
        }
        write!(f, "{}", cliffs.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::anyhow;

    use super::*;
    use crate::scale::plan::tests::plan;
    use crate::usage::{Cost, Rate};

    fn trial(cpu: f64) -> ScaleTrial {
        let (bytes, messages) = (1 << 30, 1 << 20);
        ScaleTrial {
            rate: Rate::new(bytes, messages, Duration::from_secs(1)),
            bytes,
            costs: Costs {
                client: Cost {
                    cpu_s_per_gib: cpu / 2.0,
                    ..Cost::default()
                },
                brokers: Cost {
                    cpu_s_per_gib: cpu / 2.0,
                    ..Cost::default()
                },
            },
        }
    }

    fn report(costs: &[Option<f64>]) -> ScaleReport {
        let points = costs.iter().zip(Curve::Topics.points());
        let points = points.map(|(cost, value)| {
            let trials = cost.map(|cost| vec![trial(cost); 3]);
            Point::new(
                Curve::Topics,
                *value,
                trials.ok_or_else(|| anyhow!("no room")),
            )
        });
        let curve = CurveReport::new(Curve::Topics, points.collect(), 1.5);
        ScaleReport::new(&plan(), vec![curve])
    }

    #[test]
    fn a_cliff_is_named_with_both_points() {
        let text = report(&[Some(0.5), Some(0.6), Some(1.2)]).to_string();
        assert!(
            text.contains("cliff: from 10 to 100 topics, CPU time per GiB grows 2.00 times"),
            "{text}"
        );
        let flat = report(&[Some(0.5), Some(0.6)]).to_string();
        assert!(flat.contains("no cliff"), "{flat}");
    }

    #[test]
    fn a_point_that_cannot_be_run_says_why_and_hides_no_cliff() {
        let report = report(&[Some(0.5), None, Some(1.2)]);
        let text = report.to_string();
        assert!(
            text.contains("topics 10 could not be run: no room"),
            "{text}"
        );
        assert!(text.contains("from 1 to 100 topics"), "{text}");
        let json = serde_json::to_value(&report).expect("JSON");
        let points = &json["curves"][0]["points"];
        assert_eq!(points[1]["failed"], "no room");
        assert_eq!(points[0]["cpu_s_per_gib"], 0.5);
        let us = points[0]["cpu_us_per_message"].as_f64().expect("a number");
        assert!((us - 0.5 / (1 << 20) as f64 * 1e6).abs() < 1e-9);
    }
}
