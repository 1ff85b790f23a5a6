//! What `embar bench read` prints.

use anyhow::Result;
use embar_bench::beside_reader::BesideReaderTrial;
use embar_bench::disk_profile;
use embar_bench::plan::BenchPlan;
use embar_bench::read::ReadTrial;
use embar_bench::reader::Reader;
use embar_bench::report::{
    Derived, SeriesReport, Summary, costs_table, merged, profile_text, series, summary_line,
    trials_table,
};
use embar_bench::usage::{Costs, median};
use embar_bench::wall::drive::WallPlan;
use embar_meter::Snapshot;
use embar_meter::experiment::Comparison;
use serde::Serialize;

use super::{Config, DEPTHS, Measured};
use crate::commands::bench::disk_wall::DiskWallReport;
use crate::commands::bench::wall_of;
use crate::context::Context;

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a BenchPlan,
    reader: Reader,
    cold: bool,
    trials: &'a [ReadTrial],
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    subscriber_profile: Option<Snapshot>,
    disk_profile: &'a Option<Snapshot>,
    #[serde(flatten)]
    derived: Derived,
    wall: Option<WallReport>,
    publisher: Option<PublisherReport<'a>>,
}

#[derive(Serialize)]
struct WallReport {
    config: WallPlan,
    series: Vec<SeriesReport>,
    ratio_to_bare: Comparison,
    disk: Option<DiskWallReport>,
}

/// What a cold reader costs a publisher.
#[derive(Serialize)]
struct PublisherReport<'a> {
    bytes: u64,
    acks: u32,
    trials: &'a [BesideReaderTrial],
    ratio: Comparison,
}

impl Measured {
    fn place(&self, config: Config) -> Option<usize> {
        self.configs.iter().position(|other| *other == config)
    }

    /// Of two that were both measured, the second beside the first.
    fn compare(&self, baseline: Config, changed: Config) -> Result<Option<Comparison>> {
        let both = self.place(baseline).zip(self.place(changed));
        let compared = both.map(|(one, other)| self.outcome.compare(one, other));
        Ok(compared.transpose()?)
    }

    fn wall(&self, plan: &BenchPlan) -> Result<Option<WallReport>> {
        let Some(ratio_to_bare) = self.compare(Config::BareWall, Config::Read)? else {
            return Ok(None);
        };
        Ok(Some(WallReport {
            config: wall_of(plan),
            series: series(&self.outcome),
            ratio_to_bare,
            disk: self.disk()?,
        }))
    }

    /// The fastest of the disk's walls.
    fn disk(&self) -> Result<Option<DiskWallReport>> {
        let Some(read) = self.place(Config::Read) else {
            return Ok(None);
        };
        let walls = DEPTHS.into_iter();
        let walls =
            walls.filter_map(|depth| Some((depth, self.place(Config::DiskWall { depth })?)));
        DiskWallReport::of(&self.outcome, walls, read, self.wall_bytes)
    }

    fn publisher(&self) -> Result<Option<PublisherReport<'_>>> {
        let [alone, beside] = [false, true].map(|beside_reader| Config::Publish { beside_reader });
        let both = self.beside.as_ref().zip(self.compare(alone, beside)?);
        Ok(both.map(|(plan, ratio)| PublisherReport {
            bytes: plan.total_bytes,
            acks: plan.acks,
            trials: &self.published,
            ratio,
        }))
    }
}

pub(super) fn report(plan: &BenchPlan, measured: &Measured, context: &Context) -> Result<()> {
    let trials = &measured.trials[..];
    let subscriber_profile = merged(trials.iter().map(|trial| trial.subscriber_profile.as_ref()));
    let report = Report {
        bench: "read",
        config: plan,
        reader: measured.reader,
        cold: measured.cold,
        trials,
        summary: Summary::of(&trials.iter().map(|trial| trial.rate).collect::<Vec<_>>())?,
        costs: median(&trials.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        derived: subscriber_profile
            .as_ref()
            .map(Derived::of)
            .unwrap_or_default(),
        subscriber_profile,
        disk_profile: &measured.disk_profile,
        wall: measured.wall(plan)?,
        publisher: measured.publisher()?,
    };
    context.output.json(&report)?;
    print(&report, measured, context)
}

fn print(report: &Report<'_>, measured: &Measured, context: &Context) -> Result<()> {
    let output = &context.output;
    let numbered = report.trials.iter().enumerate();
    let numbered = numbered.map(|(index, trial)| ((index + 1).to_string(), trial.rate));
    output.say(format_args!("\n{}", trials_table(numbered)))?;
    output.say(summary_line(output.paint(), &report.summary))?;
    output.say("every message arrived once and unchanged, in every trial")?;
    output.say(format_args!("\n{}", costs_table(&report.costs)))?;
    if let Some(profile) = &report.subscriber_profile {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    if let Some(profile) = report.disk_profile {
        output.say(format_args!("\n{}", disk_profile::text(profile)))?;
    }
    if measured.configs.len() > 1 {
        output.say(format_args!("\n{}", measured.outcome))?;
    }
    if let Some(wall) = &report.wall {
        let ratio = wall.ratio_to_bare.ratio;
        output.say(format_args!("read is {ratio:.3} of the bare wall"))?;
        if let Some(disk) = &wall.disk {
            output.say(format_args!("read is {}", disk.describe("reads")))?;
        }
    }
    if let Some(publisher) = &report.publisher {
        output.say(format_args!(
            "a publisher beside a cold reader has {:.3} of its rate, at acks {}",
            publisher.ratio.ratio, publisher.acks
        ))?;
    }
    Ok(())
}
