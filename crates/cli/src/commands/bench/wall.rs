//! `embar bench wall`: measures what the machine allows, over sockets without the log.

use anyhow::Result;
use clap::Args;
use embar_bench::report::{SeriesReport, series};
use embar_bench::wall::drive::{Receivers, WallPlan};
use embar_bench::wall::wire::BATCH_HEAD_BYTES;
use embar_console::size::Size;
use embar_meter::experiment::{Experiment, Sample};
use serde::Serialize;

use super::publish::{show_progress, trial_failed};
use crate::context::Context;
use crate::exit;

/// Measure what the machine allows: sockets without the log
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench wall
  embar bench wall --connections 3 --trials 8 --json

Three configurations, interleaved:
  bare     senders write buffers of --batch-size, receiving processes read them into a warm ring
  working  also one copy of each message into the batch by one thread, and one CRC-32C on each
           side
  read     the receiving processes send from their ring, this process reads
Compare with the log in the same run by `embar bench publish --wall` and `embar bench read
--wall`.

JSON, one object: config, series[] with name, median_mib_per_s, interval, trials_mib_per_s[]")]
pub struct WallArgs {
    /// Bytes of each trial
    #[arg(short, long, value_name = "SIZE", default_value = "10GiB")]
    size: Size,
    /// Bytes of one message, for the working wall
    #[arg(short, long, value_name = "SIZE", default_value = "1024")]
    message_size: Size,
    /// Connections, and sending threads, to each receiver
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Connections from each receiver when reading
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    read_connections: u16,
    /// Receiving processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=31))]
    receivers: u16,
    /// Bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    batch_size: Size,
    /// Bytes of all rings together
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    region_size: Size,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: usize,
    /// Rounds to run before and throw away
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    config: WallPlan,
    series: Vec<SeriesReport>,
}

/// Runs it and prints the report.
pub fn run(args: &WallArgs, context: &Context) -> Result<()> {
    let plan = WallPlan {
        receivers: args.receivers,
        connections_per_receiver: args.connections,
        read_connections_per_receiver: args.read_connections,
        batch_bytes: exit::to_u32(args.batch_size, "--batch-size")?,
        message_bytes: exit::to_u32(args.message_size, "--message-size")?,
        total_bytes: args.size.0,
        ring_bytes: args.region_size.0,
    };
    validate(&plan, args.trials)?;
    context.output.say(format_args!(
        "wall: {} per trial to {} receivers over {} connections each (read: {}), batches of {}, messages of {} bytes, rings of {} in all, {} trials after {} warm-up(s)",
        args.size, plan.receivers, plan.connections_per_receiver, plan.read_connections_per_receiver, args.batch_size,
        plan.message_bytes, args.region_size, args.trials, args.warmup
    ))?;
    let names = ["bare wall", "working wall", "read wall"];
    let receivers = Receivers::start(plan.clone(), &context.work)?;
    let outcome = Experiment::new(names)
        .unit("MiB/s")
        .warmup(args.warmup)
        .trials(args.trials)
        .run(|index, round| {
            let rate = match index {
                0 => receivers.bare()?,
                1 => receivers.working()?,
                _ => receivers.read()?,
            };
            show_progress(context, names[index], round, rate);
            Ok(Sample::from(rate))
        })
        .map_err(trial_failed)?;
    context.output.json(&Report {
        bench: "wall",
        config: plan,
        series: series(&outcome),
    })?;
    context.output.say(format_args!("\n{outcome}"))
}

fn validate(plan: &WallPlan, trials: usize) -> Result<()> {
    let fits = plan.batch_bytes as usize >= BATCH_HEAD_BYTES + plan.message_bytes as usize;
    if plan.message_bytes == 0 || !fits || plan.batch_bytes > 16 << 20 {
        return Err(exit::usage(
            "a batch of at most 16 MiB must hold at least one message: change --batch-size or --message-size",
        ));
    }
    if trials == 0 || plan.total_bytes == 0 {
        return Err(exit::usage("--trials and --size must not be 0"));
    }
    Ok(())
}
