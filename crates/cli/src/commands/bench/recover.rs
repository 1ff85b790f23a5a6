//! `embar bench recover`: measures how long it takes to find out what a disk has.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use embar_bench::disk::recover::{self, RecoverPlan};
use embar_console::size::Size;

use crate::context::Context;
use crate::exit;

/// Measure how long it takes to find out what a disk has, as after a power cut
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench recover --data /var/lib/embar
  embar bench recover --data /var/lib/embar -s 1GiB --batch-size 16KiB --trials 8
  embar bench recover --data /var/lib/embar --segments 400    a log of 100 GiB
  embar bench recover --data /var/lib/embar --segments 4000 --json

It makes directories below --data, writes journals there, and removes them at the end. A broker
that starts, or that takes over, reads what was written since all facts were said, which it writes
at the beginning of each segment of 256 MiB; of segments before that it reads the header and the
index. Both are measured as brokers do it:
  what must be read   a journal of --size bytes of batches that says its facts nowhere. All bytes of
                      its last segment are checked, and what is unused of it is looked through; of
                      segments before it the headers are, so --size 240MiB is what costs most
  segments            with --segments, so many that are over, with one behind them; they are small,
                      and their indexes are those of full ones

Beside them a file of --size bytes is read, at most 512 MiB, in reads of 1 MiB, 1, 2 and 4 at once.
Trials alternate. The brackets are the 95 % interval of the ratios to the fastest of these reads; it
needs 6 trials.

JSON, one object: bench; data; direct (past the page cache); batch_bytes; trials; reads[] with
depth, mib_per_s; journal {bytes, seconds, mib_per_s, mib_per_s_min, mib_per_s_max, cpu_s_per_gib,
wall_depth, ratio {point, low, high, level}}; sealed, null without --segments, or {segments,
simulated_bytes, seconds, us_per_segment}; surroundings {others, others_most, steal, steal_most}")]
pub struct RecoverArgs {
    /// Directory on the disk; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Bytes of batches that must be read
    #[arg(short, long, value_name = "SIZE", default_value = "240MiB")]
    size: Size,
    /// Bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    batch_size: Size,
    /// Segments that are over and have indexes
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    segments: u64,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 6)]
    trials: usize,
    /// Rounds to run before and throw away
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
}

/// Runs it and prints the report.
pub fn run(args: &RecoverArgs, context: &Context) -> Result<()> {
    let plan = RecoverPlan {
        data: args.data.clone(),
        total_bytes: args.size.0,
        batch_bytes: exit::to_u32(args.batch_size, "--batch-size")?,
        segments: args.segments,
        trials: args.trials,
        warmup: args.warmup,
    };
    plan.validate()?;
    let what = format!(
        "recover: {} with {} in batches of {}, and {} segments that are over, {} trials",
        args.data.display(),
        args.size,
        args.batch_size,
        args.segments,
        args.trials
    );
    super::measure(context, what, |work| recover::run(&plan, work))
}
