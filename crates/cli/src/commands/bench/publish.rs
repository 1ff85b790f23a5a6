//! `embar bench publish`: measures publishing, also beside bare sockets.

use anyhow::{Result, anyhow};
use clap::Args;
use embar_bench::disk::beside::{DEPTHS, DiskWalls};
use embar_bench::disk_profile::{self, DiskDerived};
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

use super::disk_wall::DiskWallReport;
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
  embar bench publish -o 5 -a 2 --replication-factor 2 --data /var/lib/embar -s 512MiB --wall
  embar bench publish -o 5 --replication-factor 2 --data /var/lib/embar -s 20GiB --stalls
  embar bench publish -o 5 --compare acks=1,2 --replication-factor 2 --data /var/lib/embar -s 1GiB
  embar bench publish -o 5 --compare replication-factor=1,2 --data /var/lib/embar -s 1GiB
  embar bench publish --compare order=0,1,2,5 -s 256MiB --batch-size 16KiB
  embar bench publish --compare receive=direct,staging,blocking,uring -s 2GiB

Each trial starts a cluster of its own on free ports and removes it. Rates are MiB (2^20 bytes)
of message values. Configurations of one run are interleaved, so that a change of the machine
hits all of them alike. `embar bench --help` says what --compare prints.

Where the topic is on disks, --wall also measures these: synced writes of 1 MiB, 1, 2 and 4 at
once, of --size bytes, at most 512 MiB, on all of its disks at the same time. The fastest of the
three is the wall.

--stalls writes 4 KiB to each disk beside the load, every 5 ms. A disk stands still by itself now
and then: what no such write took meanwhile is the log's.

JSON, one object:
  config                what was run, every parameter
  trials[]              mib_per_s, messages_per_s, seconds, metering, tcp_connections,
                        unix_connections and shm_connections (made to brokers), client and brokers
                        with cpu_s_per_gib, system_s_per_gib, cpus, minor_faults_per_gib,
                        peak_rss_bytes; stalls: null or longest_ms (between two
                        acknowledgements; 0 below 10 ms), disk_longest_ms (of the writes beside it),
                        beyond_disk_ms (the longest, without what a write took meanwhile)
  median_mib_per_s, min_mib_per_s, max_mib_per_s, messages_per_s
  costs                 medians of the same costs
  broker_profile        stages[] with name, total_ns, count, avg_ns, share; counters[]; all
                        brokers and trials together
  publisher_profile     likewise
  disk_profile          likewise, of the threads that write disks; null without --data. Then also
                        write_amplification (bytes written for each byte of payload) and
                        bytes_per_commit
  recv_calls_per_batch, bytes_per_recv, recv_eagain, refused_batches
  wall                  with --wall: series[] of each wall, ratio_to_working and ratio_to_bare
                        with intervals; disk null or {io_bytes, depth, bytes, ratio}: the fastest
                        writes, and the ratio to them
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
    /// Of a topic on disks: also write to them beside the load, and print the longest time without an acknowledgement
    #[arg(long)]
    stalls: bool,
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
    disk_profile: Option<embar_meter::Snapshot>,
    #[serde(flatten)]
    derived: Derived,
    #[serde(flatten)]
    on_disks: Option<DiskDerived>,
    wall: Option<WallReport>,
    note: Option<&'static str>,
}

#[derive(Serialize)]
struct WallReport {
    config: WallPlan,
    series: Vec<SeriesReport>,
    ratio_to_working: Comparison,
    ratio_to_bare: Comparison,
    disk: Option<DiskWallReport>,
}

/// One configuration of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    WorkingWall,
    BareWall,
    /// Synced writes, so many at once.
    DiskWall {
        depth: u16,
    },
    Publish {
        metering: bool,
    },
}

impl Config {
    fn name(self) -> String {
        match self {
            Self::WorkingWall => "working wall".into(),
            Self::BareWall => "bare wall".into(),
            Self::DiskWall { depth } => format!("disk wall, {depth} at once"),
            Self::Publish { metering: true } => "publish".into(),
            Self::Publish { metering: false } => "publish, metering off".into(),
        }
    }
}

/// The first is the baseline of what the experiment prints.
fn configs(plan: &BenchPlan, wall: bool) -> Vec<Config> {
    let mut configs = Vec::new();
    if wall {
        configs.extend([Config::WorkingWall, Config::BareWall]);
        if plan.replication_factor > 1 {
            configs.extend(DEPTHS.map(|depth| Config::DiskWall { depth }));
        }
    }
    let metering = plan.metering == Metering::On;
    configs.push(Config::Publish { metering });
    configs
}

/// Runs it and prints the report.
pub fn run(args: &PublishArgs, context: &Context) -> Result<()> {
    let plan = args.common.plan(args.size.0, args.acks, args.metering)?;
    plan.validate(false)?;
    if args.stalls && (plan.disks().is_empty() || plan.acks == 0) {
        return Err(crate::exit::usage(
            "--stalls is for topics on disks, and acks 1 or 2: add --replication-factor 2 --data DIR",
        ));
    }
    let output = &context.output;
    output.say(format_args!("publish: {}", plan.describe()))?;
    let configs = configs(&plan, args.wall);
    let wall = wall_of(&plan);
    let receivers = args
        .wall
        .then(|| Receivers::start(&wall, &context.work))
        .transpose()?;
    let walls_of = match args.wall {
        true => plan.disks(),
        false => &[],
    };
    let disks = DiskWalls::new(walls_of, plan.total_bytes, &context.work)?;
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
                (Config::DiskWall { depth }, _) => disks.write(depth)?,
                (Config::Publish { metering }, _) => {
                    let trial = trial(&plan, metering, args.stalls, &context.work)?;
                    let rate = trial.rate.mib_per_s;
                    if !round.warmup {
                        trials.push(trial);
                    }
                    rate
                }
                (wall, None) => return Err(anyhow!("{wall:?} has no receivers")),
            };
            show_progress(context, &configs[index].name(), round, rate);
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    drop(receivers);
    let wall_bytes = disks.bytes();
    drop(disks);
    if let Some(path) = args.record.path() {
        record(&path, &plan, &trials.iter().collect::<Vec<_>>())?;
        context.note(format_args!("recorded in {}", path.display()));
    }
    let measured = Measured {
        configs,
        trials,
        outcome,
        wall_bytes,
    };
    report(&plan, &measured, context)
}

/// What was measured.
struct Measured {
    configs: Vec<Config>,
    trials: Vec<PublishTrial>,
    outcome: Outcome,
    /// Of each trial of a disk's wall.
    wall_bytes: u64,
}

impl Measured {
    fn place(&self, config: Config) -> Option<usize> {
        self.configs.iter().position(|other| *other == config)
    }

    /// What publishing is of a wall, if that was measured.
    fn ratio_to(&self, wall: Config, published: Config) -> Result<Option<Comparison>> {
        let both = self.place(wall).zip(self.place(published));
        let compared = both.map(|(wall, published)| self.outcome.compare(wall, published));
        Ok(compared.transpose()?)
    }

    /// The fastest of the disk's walls.
    fn disk(&self, published: Config) -> Result<Option<DiskWallReport>> {
        let Some(published) = self.place(published) else {
            return Ok(None);
        };
        let walls = DEPTHS.into_iter();
        let walls =
            walls.filter_map(|depth| Some((depth, self.place(Config::DiskWall { depth })?)));
        DiskWallReport::of(&self.outcome, walls, published, self.wall_bytes)
    }
}

/// Progress for those who wait: trials take seconds.
pub fn show_progress(context: &Context, name: &str, round: Trial, rate: f64) {
    context.note(format_args!("{name}, {round}: {rate:.1} MiB/s"));
}

fn report(plan: &BenchPlan, measured: &Measured, context: &Context) -> Result<()> {
    let (trials, outcome) = (&measured.trials, &measured.outcome);
    let published = Config::Publish {
        metering: plan.metering == Metering::On,
    };
    let counted: Vec<&PublishTrial> = trials.iter().collect();
    let rates: Vec<_> = counted.iter().map(|trial| trial.rate).collect();
    let broker_profile = merged(trials.iter().map(|trial| trial.broker_profile.as_ref()));
    let disk_profile = merged(trials.iter().map(|trial| trial.disk_profile.as_ref()));
    let to_working = measured.ratio_to(Config::WorkingWall, published)?;
    let to_bare = measured.ratio_to(Config::BareWall, published)?;
    let disk = measured.disk(published)?;
    let report = Report {
        bench: "publish",
        config: plan,
        summary: Summary::of(&rates)?,
        costs: median(&counted.iter().map(|trial| trial.costs).collect::<Vec<_>>()),
        derived: broker_profile.as_ref().map(Derived::of).unwrap_or_default(),
        broker_profile,
        publisher_profile: merged(trials.iter().map(|trial| trial.publisher_profile.as_ref())),
        on_disks: disk_profile.as_ref().map(DiskDerived::of),
        disk_profile,
        wall: to_working
            .zip(to_bare)
            .map(|(ratio_to_working, ratio_to_bare)| WallReport {
                config: wall_of(plan),
                series: series(outcome),
                ratio_to_working,
                ratio_to_bare,
                disk,
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
    let stalls = report.trials.iter().filter_map(|trial| trial.stalls);
    if let Some(worst) =
        stalls.max_by(|one, other| one.beyond_disk_ms.total_cmp(&other.beyond_disk_ms))
    {
        if worst.longest_ms == 0.0 {
            output.say("acknowledgements came all the time, less than 10 ms after each other")?;
        } else {
            output.say(format_args!(
            "longest time without an acknowledgement that was not the disk's: {:.0} ms; in the same trial with the disk's {:.0} ms, and the longest write of 4 KiB beside it {:.0} ms",
            worst.beyond_disk_ms, worst.longest_ms, worst.disk_longest_ms
        ))?;
        }
    }
    output.say(format_args!("\n{}", costs_table(&report.costs)))?;
    for profile in [&report.broker_profile, &report.publisher_profile]
        .into_iter()
        .flatten()
    {
        output.say(format_args!("\n{}", profile_text(profile)))?;
    }
    if let Some(profile) = &report.disk_profile {
        output.say(format_args!("\n{}", disk_profile::text(profile)))?;
    }
    if outcome.configs().len() > 1 {
        output.say(format_args!("\n{outcome}"))?;
    }
    if let Some(wall) = &report.wall {
        output.say(format_args!(
            "publish is {:.3} of the working wall and {:.3} of the bare wall",
            wall.ratio_to_working.ratio, wall.ratio_to_bare.ratio
        ))?;
        if let Some(disk) = &wall.disk {
            let of_writes = disk.describe("synced writes");
            output.say(format_args!("publish is {of_writes}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use embar_meter::experiment::ExperimentError;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PublishArgs,
    }

    #[test]
    fn configurations_follow_the_options() {
        let configs = |line: &str, wall| {
            let line = Line::try_parse_from(line.split_whitespace()).expect("options");
            let args = line.args;
            let plan = args.common.plan(args.size.0, args.acks, args.metering);
            configs(&plan.expect("a plan"), wall)
        };
        let (on, off) = (
            Config::Publish { metering: true },
            Config::Publish { metering: false },
        );
        assert_eq!(configs("x", false), [on]);
        assert_eq!(configs("x --metering off", false), [off]);
        let walls = [Config::WorkingWall, Config::BareWall];
        assert_eq!(configs("x", true), [&walls[..], &[on]].concat());
        let disks = DEPTHS.map(|depth| Config::DiskWall { depth });
        let all = [&walls[..], &disks, &[on]].concat();
        let durable = "x -a 2 --replication-factor 2 --data /a";
        assert_eq!(configs(durable, true), all);
        assert_eq!(configs(durable, false), [on]);
        let in_memory = configs("x --replication-factor 1 --data /a", true);
        assert_eq!(in_memory, [&walls[..], &[on]].concat());
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
