//! `embar bench publish`: measures publishing, also beside bare sockets.

use anyhow::{Result, anyhow};
use clap::Args;
use embar_bench::experiment::trial_failed;
use embar_bench::plan::{BenchPlan, Metering};
use embar_bench::publish::{PublishTrial, trial};
use embar_bench::report::{
    ACK_0_NOTE, Derived, SeriesReport, Summary, costs_table, merged, profile_text, record, series,
    summary_line, trials_table,
};
use embar_bench::usage::{Costs, median};
use embar_bench::wall::drive::{Receivers, Wall, WallPlan};
use embar_client::Acks;
use embar_console::size::Size;
use embar_meter::experiment::{Comparison, Experiment, Outcome, Sample, Trial};
use serde::Serialize;

use super::{CommonArgs, RecordArgs, wall_of};
use crate::context::Context;

/// Publish, from the first publish to the last acknowledgement
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench publish                                     1 KiB messages, 10 GiB a trial
  embar bench publish -m 64 -s 1GiB --trials 5
  embar bench publish --wall --trials 8                   against what the machine allows
  embar bench publish --trials 3 --record --json
  embar bench publish --transport unix                    by Unix sockets instead of TCP
  embar bench publish --transport shm                     through shared memory
  embar bench publish --compare order=0,1,2,5 -s 256MiB --batch-size 16KiB
  embar bench publish --compare receive=direct,staging,blocking,uring -s 2GiB

Each trial starts a cluster of its own on free ports and removes it. Rates are MiB (2^20 bytes)
of message values. Configurations of one run are interleaved, so that a change of the machine
hits all of them alike. `embar bench --help` says what --compare prints.

JSON, one object:
  config                what was run, every parameter
  trials[]              mib_per_s, messages_per_s, seconds, metering, tcp_connections,
                        unix_connections and shm_connections (made to brokers), client and brokers
                        with cpu_s_per_gib, system_s_per_gib, cpus, minor_faults_per_gib,
                        peak_rss_bytes
  median_mib_per_s, min_mib_per_s, max_mib_per_s, messages_per_s
  costs                 medians of the same costs
  broker_profile        stages[] with name, total_ns, count, avg_ns, share; counters[]; all
                        brokers and trials together
  publisher_profile     likewise
  recv_calls_per_batch, bytes_per_recv, recv_eagain, refused_batches
  wall                  with --wall: series[] of each wall, ratio_to_working and ratio_to_bare
                        with intervals
  note                  null, or what the number does not measure")]
pub struct PublishArgs {
    /// Bytes of each trial
    #[arg(short, long, value_name = "SIZE", default_value = "10GiB")]
    size: Size,
    /// 0: done when the kernel has the bytes; 1: done when they are readable; 2 or all: when all disks of the topic have them, too
    #[arg(short, long, value_name = "N", default_value_t = Acks::Readable)]
    acks: Acks,
    /// Time the stages, in client and brokers
    #[arg(long, value_name = "WHEN", default_value = "on", value_enum)]
    metering: Metering,
    /// Also measure the machine, in the same run, and print the ratio
    #[arg(long)]
    wall: bool,
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a BenchPlan,
    trials: Vec<&'a PublishTrial>,
    #[serde(flatten)]
    summary: Summary,
    costs: Costs,
    broker_profile: Option<embar_meter::Snapshot>,
    publisher_profile: Option<embar_meter::Snapshot>,
    #[serde(flatten)]
    derived: Derived,
    wall: Option<WallReport>,
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct WallReport {
    config: WallPlan,
    series: Vec<SeriesReport>,
    ratio_to_working: Comparison,
    ratio_to_bare: Comparison,
}

/// One configuration of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    WorkingWall,
    BareWall,
    Publish { metering: bool },
}

impl Config {
    fn name(self) -> &'static str {
        match self {
            Self::WorkingWall => "working wall",
            Self::BareWall => "bare wall",
            Self::Publish { metering: true } => "publish",
            Self::Publish { metering: false } => "publish, metering off",
        }
    }
}

/// The first is the baseline of what the experiment prints.
fn configs(metering: Metering, wall: bool) -> Vec<Config> {
    let walls: &[Config] = if wall {
        &[Config::WorkingWall, Config::BareWall]
    } else {
        &[]
    };
    let publish: &[Config] = match metering {
        Metering::On => &[Config::Publish { metering: true }],
        Metering::Off => &[Config::Publish { metering: false }],
    };
    [walls, publish].concat()
}

/// Runs it and prints the report.
pub fn run(args: &PublishArgs, context: &Context) -> Result<()> {
    let plan = args.common.plan(args.size.0, args.acks, args.metering)?;
    plan.validate(false)?;
    let output = &context.output;
    output.say(format_args!("publish: {}", plan.describe()))?;
    let configs = configs(args.metering, args.wall);
    let wall = wall_of(&plan);
    let receivers = args
        .wall
        .then(|| Receivers::start(&wall, &context.work))
        .transpose()?;
    let mut trials = Vec::new();
    let outcome = Experiment::new(configs.iter().map(|config| config.name()))
        .unit("MiB/s")
        .warmup(plan.warmup)
        .trials(plan.trials)
        .run(|index, round| {
            let rate = match (configs[index], &receivers) {
                (Config::WorkingWall, Some(receivers)) => {
                    receivers.run(Wall::PublishWorking, &wall)?
                }
                (Config::BareWall, Some(receivers)) => receivers.run(Wall::PublishBare, &wall)?,
                (Config::Publish { metering }, _) => {
                    let trial = trial(&plan, metering, &context.work)?;
                    let rate = trial.rate.mib_per_s;
                    if !round.warmup {
                        trials.push(trial);
                    }
                    rate
                }
                (wall, None) => return Err(anyhow!("{wall:?} has no receivers")),
            };
            show_progress(context, configs[index].name(), round, rate);
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    drop(receivers);
    if let Some(path) = args.record.path() {
        record(&path, &plan, &trials.iter().collect::<Vec<_>>())?;
        context.note(format_args!("recorded in {}", path.display()));
    }
    report(&plan, &configs, &trials, &outcome, context)
}

/// Progress for those who wait: trials take seconds.
pub fn show_progress(context: &Context, name: &str, round: Trial, rate: f64) {
    context.note(format_args!("{name}, {round}: {rate:.1} MiB/s"));
}

fn report(
    plan: &BenchPlan,
    configs: &[Config],
    trials: &[PublishTrial],
    outcome: &Outcome,
    context: &Context,
) -> Result<()> {
    let metering = plan.metering == Metering::On;
    let counted: Vec<&PublishTrial> = trials.iter().collect();
    let rates: Vec<_> = counted.iter().map(|trial| trial.rate).collect();
    let broker_profile = merged(trials.iter().map(|trial| trial.broker_profile.as_ref()));
    let place = |config: Config| configs.iter().position(|other| *other == config);
    let compare = |baseline: Option<usize>, changed: Option<usize>| {
        baseline
            .zip(changed)
            .map(|(baseline, changed)| outcome.compare(baseline, changed))
            .transpose()
    };
    let published = place(Config::Publish { metering });
    let to_working = compare(place(Config::WorkingWall), published)?;
    let to_bare = compare(place(Config::BareWall), published)?;
    let report = Report {
        bench: "publish",
        config: plan,
        summary: Summary::of(&rates)?,
        costs: median(&counted.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        derived: broker_profile.as_ref().map(Derived::of).unwrap_or_default(),
        broker_profile,
        publisher_profile: merged(trials.iter().map(|trial| trial.publisher_profile.as_ref())),
        wall: to_working
            .zip(to_bare)
            .map(|(ratio_to_working, ratio_to_bare)| WallReport {
                config: wall_of(plan),
                series: series(outcome),
                ratio_to_working,
                ratio_to_bare,
            }),
        note: (plan.acks == 0).then_some(ACK_0_NOTE),
        trials: counted,
    };
    context.output.json(&report)?;
    print(&report, outcome, context)
}

fn print(report: &Report<'_>, outcome: &Outcome, context: &Context) -> Result<()> {
    let output = &context.output;
    let numbered = report
        .trials
        .iter()
        .enumerate()
        .map(|(index, trial)| ((index + 1).to_string(), trial.rate));
    output.say(format_args!("\n{}", trials_table(numbered)))?;
    output.say(summary_line(output.paint(), &report.summary))?;
    if let Some(note) = report.note {
        output.say(format_args!("{}: {note}", output.paint().bad("note")))?;
    }
    output.say(format_args!("\n{}", costs_table(&report.costs)))?;
    for profile in [&report.broker_profile, &report.publisher_profile]
        .into_iter()
        .flatten()
    {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    if outcome.configs().len() > 1 {
        output.say(format_args!("\n{outcome}"))?;
    }
    if let Some(wall) = &report.wall {
        output.say(format_args!(
            "publish is {:.3} of the working wall and {:.3} of the bare wall",
            wall.ratio_to_working.ratio, wall.ratio_to_bare.ratio
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use embar_meter::experiment::ExperimentError;

    use super::*;

    #[test]
    fn configurations_follow_the_options() {
        let (on, off) = (
            Config::Publish { metering: true },
            Config::Publish { metering: false },
        );
        assert_eq!(configs(Metering::On, false), [on]);
        assert_eq!(configs(Metering::Off, false), [off]);
        assert_eq!(
            configs(Metering::On, true),
            [Config::WorkingWall, Config::BareWall, on]
        );
    }

    #[test]
    fn a_failed_trial_keeps_its_exit_code() {
        let error = ExperimentError::Trial {
            name: "publish".into(),
            trial: Trial {
                index: 0,
                warmup: false,
            },
            cause: crate::exit::data("lost"),
        };
        let error = trial_failed(error);
        assert_eq!(crate::exit::code(&error), crate::exit::DATA);
        assert!(format!("{error:#}").contains("publish, trial 1: lost"));
    }
}
