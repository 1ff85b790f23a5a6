//! `embar bench scale`: measures what publishing costs as one thing grows.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_bench::plan::parse_order;
use embar_bench::scale::measure;
use embar_bench::scale::plan::{Curve, ScalePlan};
use embar_console::size::{Size, parse_duration};

use crate::context::Context;

/// Measure what publishing costs as brokers, connections, topics, messages or batches grow
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench scale                                    all curves, a few minutes
  embar bench scale --curve topics,connections
  embar bench scale --curve connections --max 1000 --trials 6 --json

Each point has a cluster of its own; three brokers take 1 KiB messages in batches of 2 MiB,
unless the curve says otherwise:
  brokers      1 to 16 that take data
  connections  1 to 4,000, four to a publisher, with a thread and two buffers each; publishers
               get messages by turns; one broker, batches of 16 KiB
  topics       1 to 10,000 exist; 16 publishers, a connection each, write to up to 16 of them;
               otherwise as above
  messages     16 B to 1 MiB
  batches      1 KiB to 8 MiB, of messages of 256 B
  publishers   1 to 64 threads that share a publisher
A trial publishes for --duration, or longer until each publisher had 8 turns, and waits for the
last acknowledgement. CPU time is that of publishers and brokers together, of client and brokers
apart in the table.

A cliff is where the median cost of a GiB, in CPU time or in time, grows by more than --cliff
from a point to the next, and no trial of the one reaches those of the other. What the machine
cannot run (open files, memory) is reported, and the next point follows.

JSON, one object: config; curves[] with curve, points[] (value, mb_per_s, messages_per_s,
cpu_s_per_gib, cpu_us_per_message, costs {client, brokers}, failed), cpu_cliffs[] and
time_cliffs[] (from, to, factor). MB are 10^6 bytes of message values")]
pub struct ScaleArgs {
    /// Only these curves
    #[arg(long, value_name = "CURVE", value_enum, value_delimiter = ',')]
    curve: Vec<Curve>,
    /// Leave out points above this number
    #[arg(long, value_name = "N")]
    max: Option<Size>,
    /// Order level of all topics: 0, 1, 2 or 5
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = parse_order)]
    order: u32,
    /// How long each trial publishes
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    duration: Duration,
    /// Trials of each point
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: usize,
    /// Trials before, thrown away
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    region_size: Size,
    /// Factor between neighbouring points that is a cliff
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5)]
    cliff: f64,
}

impl ScaleArgs {
    fn plan(&self) -> Result<ScalePlan> {
        let max = self.max.map(|max| crate::exit::to_u32(max, "--max"));
        Ok(ScalePlan {
            curves: if self.curve.is_empty() {
                Curve::ALL.to_vec()
            } else {
                self.curve.clone()
            },
            max: max.transpose()?,
            order: self.order,
            duration: self.duration,
            trials: self.trials,
            warmup: self.warmup,
            region_bytes: self.region_size.0,
            cliff: self.cliff,
        })
    }
}

/// Runs it and prints the report.
pub fn run(args: &ScaleArgs, context: &Context) -> Result<()> {
    let plan = args.plan()?;
    plan.validate()?;
    let what = format!("scale: {}", plan.describe());
    super::measure(context, what, |work| measure::run(&plan, work))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        scale: ScaleArgs,
    }

    #[test]
    fn curves_and_their_points_can_be_chosen() {
        let line = "x --curve topics,connections --max 1000 --trials 6 --duration 100ms";
        let line = Line::try_parse_from(line.split_whitespace()).expect("options");
        let plan = line.scale.plan().expect("a plan");
        assert_eq!(plan.curves, [Curve::Topics, Curve::Connections]);
        let points: Vec<u32> = plan.points(Curve::Topics).collect();
        assert_eq!(points, [1, 10, 100, 1000]);
        assert_eq!(
            (plan.trials, plan.duration),
            (6, Duration::from_millis(100))
        );
    }

    #[test]
    fn all_curves_are_measured_unless_told_otherwise() {
        let line = Line::try_parse_from(["x"]).expect("options");
        assert_eq!(line.scale.plan().expect("a plan").curves, Curve::ALL);
    }
}
