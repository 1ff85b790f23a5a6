//! What a comparison prints, and what it appends to logs.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use embar_meter::experiment::{Comparison, Outcome, Stopped};
use embar_meter::results::append_under;
use embar_meter::stats::median_interval;
use embar_meter::{Better, Interval};
use embar_readings::environment::Environment;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::measure::{Measured, Plan};
use crate::experiment::Surroundings;

/// The first line of the file of trials.
const HEADER: &str = "time,command,metric,unit,configuration,trial,value";

/// What a comparison gave.
#[derive(Debug, Serialize)]
pub struct CompareReport<'a> {
    /// The bench.
    bench: &'static str,
    /// What was compared.
    compare: String,
    /// The command line, without the values.
    command: String,
    /// When it ended.
    time: String,
    /// The figure that was compared.
    metric: &'static str,
    /// Its unit.
    unit: &'static str,
    /// Which direction is good.
    better: Better,
    /// Rounds measured.
    rounds: usize,
    /// Why no more were.
    stopped: Stopped,
    /// Each configuration, in the order that was given.
    configurations: Vec<Configuration<'a>>,
    /// Each compared with the first.
    comparisons: Vec<Comparison>,
    /// What it ran on.
    environment: &'a Environment,
    /// What else the machine did.
    surroundings: Surroundings,
    #[serde(skip)]
    outcome: &'a Outcome,
}

/// One configuration and its trials.
#[derive(Debug, Serialize)]
struct Configuration<'a> {
    name: String,
    /// What ran, as the bench says.
    config: &'a Value,
    median: f64,
    interval: Interval,
    trials: Vec<f64>,
}

impl<'a> CompareReport<'a> {
    /// Sums up what was measured.
    pub fn of(
        plan: &Plan,
        command: String,
        measured: &'a Measured,
        environment: &'a Environment,
    ) -> Result<Self> {
        let outcome = &measured.outcome;
        let configurations = outcome.configs().iter().zip(&measured.configs);
        let configurations = configurations.map(|((name, series), config)| Configuration {
            name: name.clone(),
            config,
            median: series.median(),
            interval: median_interval(series),
            trials: series.values().to_vec(),
        });
        let configurations: Vec<_> = configurations.collect();
        let others = 1..configurations.len();
        Ok(Self {
            bench: plan.subject.bench,
            compare: plan.compare.to_string(),
            command,
            time: Timestamp::now()
                .strftime("%Y-%m-%d %H:%M:%S UTC")
                .to_string(),
            metric: plan.metric.name,
            unit: plan.metric.unit,
            better: plan.metric.better,
            rounds: outcome.series(0).values().len(),
            stopped: outcome.stopped(),
            configurations,
            comparisons: others
                .map(|changed| outcome.compare(0, changed))
                .collect::<Result<_, _>>()?,
            environment,
            surroundings: measured.surroundings,
            outcome,
        })
    }

    /// Appends it to a log for people, in Markdown.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append_markdown(&self, path: &Path) -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let text = self.markdown();
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot append to {}", path.display()))
    }

    /// Appends a line for each trial to a file of comma-separated values, which is given a header if it is new.
    ///
    /// # Errors
    /// The file cannot be written, or has another header.
    pub fn append_trials(&self, path: &Path) -> Result<()> {
        let mut lines = String::new();
        for configuration in &self.configurations {
            for (trial, value) in configuration.trials.iter().enumerate() {
                let cells = [
                    self.time.clone(),
                    quoted(&self.command),
                    self.metric.into(),
                    self.unit.into(),
                    quoted(&configuration.name),
                    (trial + 1).to_string(),
                    value.to_string(),
                ];
                lines += &cells.join(",");
                lines.push('\n');
            }
        }
        Ok(append_under(path, HEADER, &lines)?)
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let mut line = |args: fmt::Arguments<'_>| {
            let _ = text.write_fmt(args);
            text.push('\n');
        };
        line(format_args!("## {}: {}\n", self.time, self.bench));
        line(format_args!("```sh\n{}\n```\n", self.command));
        line(format_args!(
            "| {} ({}) | median | 95 % interval | trials |\n| --- | ---: | ---: | ---: |",
            self.metric, self.unit
        ));
        for it in &self.configurations {
            line(format_args!(
                "| {} | {:.1} | {:.1} to {:.1} | {} |",
                it.name.replace('|', "\\|"),
                it.median,
                it.interval.low,
                it.interval.high,
                it.trials.len()
            ));
        }
        line(format_args!(""));
        for it in &self.comparisons {
            line(format_args!("- {it}"));
        }
        line(format_args!("- {}", self.stopped));
        line(format_args!("- {}\n", self.surroundings));
        for (name, value) in self.environment.lines() {
            line(format_args!("- {name}: {value}"));
        }
        line(format_args!(""));
        text
    }
}

impl fmt::Display for CompareReport<'_> {
    /// The report for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}\n", self.outcome, self.surroundings)?;
        for (name, value) in self.environment.lines() {
            writeln!(f, "{name:<20}{value}")?;
        }
        Ok(())
    }
}

/// A cell that may have commas in it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
