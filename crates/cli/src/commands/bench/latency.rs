//! `embar bench latency`: measures how long messages wait for their acknowledgement.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_bench::latency::{self, LatencyLine, LatencyPlan, LatencyResult};
use embar_bench::plan::{BenchPlan, Metering, TOPIC, parse_order};
use embar_broker::ReceivePath;
use embar_client::Transport;
use embar_console::size::{Size, parse_duration};
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::data_brokers;
use crate::context::Context;
use crate::exit;

/// How long messages wait for their acknowledgement, by order level, beside a bare round trip
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench latency                          all order levels, alone and at half the highest rate
  embar bench latency --orders 5 --load 0      one message in flight, nothing else
  embar bench latency --load 0.8 --duration 10s
  embar bench latency --transport shm --brokers 2 --spin 1ms --load 0  broker and client spin

Alone: one message in flight, sent at once; from the call that publishes it to the return of the
call that waits for its acknowledgement. Loaded: messages leave when they are due; from when the
first message of a batch was due to the batch's acknowledgement, so that a sender that falls behind
is part of it. The highest rate is that of publishing --size with batches of --batch-size. The bare
round trip is a message and its headers there and 32 bytes back over a socket between two threads.
All are measured by turns on one cluster, and each trial has a new topic.

JSON, one object: config; alone[] (the bare round trip has order null) and loaded[], each with
order, samples, latency_us with p50, p90, p99, p999, max, and when loaded messages_per_s, which
were due, and reached_per_s, which left")]
pub struct LatencyArgs {
    /// Order levels to measure
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0,1,2,5", value_parser = parse_order)]
    orders: Vec<u32>,
    /// Messages of each trial with one in flight
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    iterations: u64,
    /// Share of the highest rate that loaded trials have; 0 leaves them out
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    load: f64,
    /// Length of each loaded trial
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    duration: Duration,
    /// Bytes of one message
    #[arg(short, long, value_name = "SIZE", default_value = "1024")]
    message_size: Size,
    /// Bytes of a batch, at most
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    batch_size: Size,
    /// Bytes to publish to find the highest rate
    #[arg(short, long, value_name = "SIZE", default_value = "512MiB")]
    size: Size,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 3)]
    trials: usize,
    /// Rounds to run before and throw away: the first is cold
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Brokers, the head included; the head only sequences unless it is alone
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    brokers: u16,
    /// Bytes of shared memory in all
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    region_size: Size,
    /// How clients connect to brokers: tcp, unix, shm (shared memory), or auto (the shortest way)
    #[arg(long, value_name = "HOW", default_value_t = Transport::Tcp)]
    transport: Transport,
    /// How long clients and brokers look for what comes before they sleep, at the price of busy cores; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    spin: Duration,
}

#[derive(Serialize)]
struct Report<'a> {
    bench: &'static str,
    config: &'a LatencyPlan,
    #[serde(flatten)]
    measured: &'a LatencyResult,
}

/// Runs it and prints the report.
pub fn run(args: &LatencyArgs, context: &Context) -> Result<()> {
    let plan = plan(args)?;
    plan.validate()?;
    let output = &context.output;
    output.say(format_args!(
        "latency of messages of {} bytes: {} alone in each trial, then {} of the highest rate for {:?}; batches of {}, {} brokers, {} trials after {} warm-up(s)",
        plan.publish.message_bytes,
        grouped(plan.iterations),
        plan.load,
        plan.duration,
        args.batch_size,
        plan.publish.brokers,
        plan.publish.trials,
        plan.publish.warmup,
    ))?;
    let measured = latency::measure(&plan, &context.work)?;
    output.json(&Report {
        bench: "latency",
        config: &plan,
        measured: &measured,
    })?;
    let bare = measured.alone[0].latency_us.p50;
    output.say(format_args!(
        "\n{}",
        table("alone (us)", &measured.alone, bare)
    ))?;
    if !measured.loaded.is_empty() {
        output.say(format_args!(
            "\n{}",
            table("loaded (us)", &measured.loaded, bare)
        ))?;
    }
    Ok(())
}

fn plan(args: &LatencyArgs) -> Result<LatencyPlan> {
    if (1..args.orders.len()).any(|i| args.orders[..i].contains(&args.orders[i])) {
        return Err(exit::usage("--orders names an order level twice"));
    }
    let message_bytes = exit::to_u32(args.message_size, "--message-size")?;
    let messages = args.size.0 / u64::from(message_bytes.max(1));
    Ok(LatencyPlan {
        publish: BenchPlan {
            topic: TOPIC.to_owned(),
            message_bytes,
            messages,
            total_bytes: messages * u64::from(message_bytes),
            order: args.orders[0],
            acks: 1,
            replication_factor: 1,
            threads_per_broker: 1,
            publishers: 1,
            batch_bytes: exit::to_u32(args.batch_size, "--batch-size")?,
            brokers: args.brokers,
            data_brokers: data_brokers(args.brokers),
            network_threads: 1,
            receive: ReceivePath::default(),
            region_bytes: args.region_size.0,
            trials: args.trials,
            warmup: args.warmup,
            metering: Metering::On,
            transport: args.transport,
            spin: args.spin,
        },
        orders: args.orders.clone(),
        iterations: args.iterations,
        load: args.load,
        duration: args.duration,
    })
}

fn table(title: &str, lines: &[LatencyLine], bare: f64) -> Table {
    let header = [
        title,
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "p50 to bare",
        "samples",
        "messages/s",
    ];
    let mut table = Table::new(header);
    for line in lines {
        let name = line
            .order
            .map_or("bare round trip".into(), |order| format!("order {order}"));
        let it = &line.latency_us;
        let micros = [it.p50, it.p90, it.p99, it.p999, it.max].map(|us| format!("{us:.0}"));
        let rate = line.messages_per_s.map(|rate| grouped(rate as u64));
        let rate = rate.map(|rate| match line.shortfall() {
            Some(share) => format!("{rate}, {:.0} % reached", share * 100.0),
            None => rate,
        });
        let rest = [
            format!("{:.1}", it.p50 / bare),
            grouped(line.samples),
            rate.unwrap_or_default(),
        ];
        table.row(std::iter::once(name).chain(micros).chain(rest));
    }
    table
}
