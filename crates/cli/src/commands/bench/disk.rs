//! `embar bench disk`: measures what a disk does with synced writes, and what the log's commits make of it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use embar_bench::disk::measure;
use embar_bench::disk::plan::DiskPlan;
use embar_console::size::Size;

use crate::context::Context;
use crate::exit;

/// Measure what a disk does with synced writes and with reads, and with the log's commits
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench disk --data /var/lib/embar
  embar bench disk --data /var/lib/embar --io-size 4KiB --depth 1       how long a sync takes
  embar bench disk --data /mnt/a --io-size 1MiB --depth 1,2,4,8 --batch-size 2MiB --json

It makes a directory below --data and removes it at the end. Files are reserved before they are
written, as the log's are, and written and read past the page cache where the file system can.
  write     one after the other by --depth threads, each write synced before the next of its thread
  read      likewise, of a file that was written before the measurement began
  journal   batches gathered into commits of up to 4 MiB, with checksums, by three threads that
            take turns
  recover   finding out what such a journal has, as after a power cut

Trials alternate. Each has --size bytes, but no more than 256 writes for each thread. The wall of a
journal are writes of 1 MiB at the best depth, or the fastest if those were not measured; that of a
recovery the fastest reads. Brackets are 95 % intervals of the paired ratios; they need 6 trials.

JSON, one object: data, direct (past the page cache), total_bytes, trials, rows[] with work, bytes,
depth, mib_per_s, mib_per_s_min, mib_per_s_max, p50_us, p99_us (of one write or read; null where
there is none), ratio {point, low, high, level}, wall; surroundings {others, others_most, steal,
steal_most}")]
pub struct DiskArgs {
    /// Directory on the disk; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Bytes of a write or read
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values = ["4KiB", "64KiB", "1MiB", "4MiB"])]
    io_size: Vec<Size>,
    /// Threads, each of which has one write or read on its way
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: Vec<u16>,
    /// Bytes of a batch of the journal
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values = ["2MiB", "16KiB"])]
    batch_size: Vec<Size>,
    /// Bytes of each trial
    #[arg(short, long, value_name = "SIZE", default_value = "256MiB")]
    size: Size,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 6)]
    trials: usize,
    /// Rounds to run before and throw away
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
}

/// Runs it and prints the report.
pub fn run(args: &DiskArgs, context: &Context) -> Result<()> {
    let sizes = |sizes: &[Size], option| {
        let sizes = sizes.iter().map(|size| exit::to_u32(*size, option));
        sizes.collect::<Result<Vec<u32>>>()
    };
    let plan = DiskPlan {
        data: args.data.clone(),
        io_bytes: sizes(&args.io_size, "--io-size")?,
        depths: args.depth.clone(),
        batch_bytes: sizes(&args.batch_size, "--batch-size")?,
        total_bytes: args.size.0,
        trials: args.trials,
        warmup: args.warmup,
    };
    plan.validate()?;
    let what = format!(
        "disk: {} with {} a trial, {} trials",
        args.data.display(),
        args.size,
        args.trials
    );
    super::measure(context, what, |work| measure::run(&plan, work))
}
