//! `embar bench latency`: measures how long messages wait for their acknowledgement.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use embar_bench::e2e::Latency;
use embar_bench::latency::{
    self, Difference, LatencyLine, LatencyPlan, LatencyResult, Load, WritesLine,
};
use embar_bench::plan::{BenchPlan, Metering, TOPIC, parse_order};
use embar_broker::ReceivePath;
use embar_client::{Acks, Transport};
use embar_console::size::{Size, parse_duration};
use embar_meter::table::{Table, grouped};
use serde::Serialize;

use super::data_brokers;
use super::on_disks::OnDisks;
use crate::context::Context;
use crate::exit;

/// How long messages wait for their acknowledgement, by order level and acks, beside a bare round trip and synced writes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench latency                          all order levels, alone and at half the highest rate
  embar bench latency --orders 5 --load 0      one message in flight, nothing else
  embar bench latency --load 0.8 --duration 10s
  embar bench latency --orders 5 --rate 100MiB --batch-size 1MiB   loaded with 100 MiB per second
  embar bench latency --orders 5 --acks 1,2 --replication-factor 2 --data /var/lib/embar
  embar bench latency --transport shm --brokers 2 --spin 1ms --load 0  broker and client spin

Alone: one message in flight, sent at once; from the call that publishes it to the return of the
call that waits for its acknowledgement. Loaded: messages leave when they are due; from when the
first message of a batch was due to the batch's acknowledgement, so that a sender that falls behind
is part of it. The highest rate is that of publishing --size with batches of --batch-size. The bare
round trip is a message and its headers there and 32 bytes back over a socket between two threads.
All are measured by turns on one cluster, and each trial has a new topic.

Where topics are on disks, synced writes stand beside it, each done when all disks have it: of 4 KiB
one after the other, at most 128 MiB a trial, and of --batch-size when a batch of the load would be
due, counted from then, at most 512 MiB a trial. With --acks 1,2 the last table has how much longer
acks 2 take, in writes: of 4 KiB alone, of a batch when loaded.

JSON, one object: config; alone[] (the bare round trip has order and acks null) and loaded[], each
with order, acks, samples, latency_us with p50, p90, p99, p999, max, and when loaded messages_per_s,
which were due, and reached_per_s, which left; writes[] with bytes, samples, latency_us;
differences[] with load (alone, loaded), order, quantile (p50, p99), acks_1_us, acks_2_us, write_us,
in_writes")]
pub struct LatencyArgs {
    /// Order levels to measure
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0,1,2,5", value_parser = parse_order)]
    orders: Vec<u32>,
    /// 1: acknowledged when it is readable; 2 or all: when all disks of the topic have it, too
    #[arg(short, long, value_name = "N,N", value_delimiter = ',', default_values_t = [Acks::Readable])]
    acks: Vec<Acks>,
    /// Messages of each trial with one in flight
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    iterations: u64,
    /// Share of the highest rate that loaded trials have; 0 leaves them out
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    load: f64,
    /// Bytes of messages per second that loaded trials have, instead of a share
    #[arg(long, value_name = "SIZE", conflicts_with = "load")]
    rate: Option<Size>,
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
    #[command(flatten)]
    on_disks: OnDisks,
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
    let load = match plan.load {
        None => String::new(),
        Some(Load::Share(share)) => {
            format!(", then {share} of the highest rate for {:?}", plan.duration)
        }
        Some(Load::BytesPerS(rate)) => {
            format!(", then {} per second for {:?}", Size(rate), plan.duration)
        }
    };
    output.say(format_args!(
        "latency of messages of {} bytes: {} alone in each trial{load}; batches of {}, {} brokers, {} trials after {} warm-up(s)",
        plan.publish.message_bytes,
        grouped(plan.iterations),
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
    let tables = [
        ("alone (us)", &measured.alone, measured.writes.first()),
        ("loaded (us)", &measured.loaded, measured.writes.get(1)),
    ];
    for (title, lines, write) in tables.iter().filter(|(_, lines, _)| !lines.is_empty()) {
        output.say(format_args!("\n{}", table(title, lines, *write, bare)))?;
    }
    if !measured.differences.is_empty() {
        output.say(format_args!("\n{}", differences(&measured.differences)))?;
    }
    Ok(())
}

fn plan(args: &LatencyArgs) -> Result<LatencyPlan> {
    let has_twice = |list: &[u32]| (1..list.len()).any(|i| list[..i].contains(&list[i]));
    if has_twice(&args.orders) {
        return Err(exit::usage("--orders names an order level twice"));
    }
    let acks: Vec<u32> = args.acks.iter().map(|acks| acks.level()).collect();
    if has_twice(&acks) {
        return Err(exit::usage("--acks names a level twice"));
    }
    let message_bytes = exit::to_u32(args.message_size, "--message-size")?;
    let messages = args.size.0 / u64::from(message_bytes.max(1));
    Ok(LatencyPlan {
        publish: args.on_disks.of(BenchPlan {
            topic: TOPIC.to_owned(),
            message_bytes,
            messages,
            total_bytes: messages * u64::from(message_bytes),
            order: args.orders[0],
            acks: acks[0],
            replication_factor: 1,
            data: Vec::new(),
            same_device_is_fine: false,
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
        }),
        orders: args.orders.clone(),
        acks,
        iterations: args.iterations,
        load: match (args.rate, args.load) {
            (Some(rate), _) => Some(Load::BytesPerS(rate.0)),
            (None, 0.0) => None,
            (None, share) => Some(Load::Share(share)),
        },
        duration: args.duration,
    })
}

fn table(title: &str, lines: &[LatencyLine], write: Option<&WritesLine>, bare: f64) -> Table {
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
    let mut row = |name: String, it: &Latency, samples: u64, rate: String| {
        let micros = [it.p50, it.p90, it.p99, it.p999, it.max].map(|us| format!("{us:.0}"));
        let rest = [format!("{:.1}", it.p50 / bare), grouped(samples), rate];
        table.row(std::iter::once(name).chain(micros).chain(rest));
    };
    for line in lines {
        let rate = line.messages_per_s.map(|rate| grouped(rate as u64));
        let rate = rate.map(|rate| match line.shortfall() {
            Some(share) => format!("{rate}, {:.0} % reached", share * 100.0),
            None => rate,
        });
        let rate = rate.unwrap_or_default();
        row(name(line), &line.latency_us, line.samples, rate);
    }
    if let Some(write) = write {
        let name = format!("synced write of {}", Size(write.bytes.into()));
        row(name, &write.latency_us, write.samples, String::new());
    }
    table
}

fn name(line: &LatencyLine) -> String {
    match (line.order, line.acks) {
        (Some(order), Some(acks)) => format!("order {order}, acks {acks}"),
        _ => "bare round trip".into(),
    }
}

/// What acks 2 cost beside acks 1.
fn differences(differences: &[Difference]) -> Table {
    let header = [
        "acks 2 beside acks 1 (us)",
        "acks 1",
        "acks 2",
        "a write",
        "longer, in writes",
    ];
    let mut table = Table::new(header);
    for it in differences {
        let micros = [it.acks_1_us, it.acks_2_us, it.write_us].map(|us| format!("{us:.0}"));
        let name = format!("{}, order {}, {}", it.load, it.order, it.quantile);
        let in_writes = format!("{:.2}", it.in_writes);
        table.row([name].into_iter().chain(micros).chain([in_writes]));
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LatencyArgs,
    }

    fn planned(line: &str) -> Result<LatencyPlan> {
        plan(&Line::try_parse_from(line.split_whitespace())?.args)
    }

    #[test]
    fn loads_are_shares_or_rates_and_not_both() {
        let load = |line: &str| planned(line).expect("a plan").load;
        assert_eq!(load("x"), Some(Load::Share(0.5)));
        assert_eq!(load("x --load 0"), None);
        assert_eq!(load("x --rate 1MiB"), Some(Load::BytesPerS(1 << 20)));
        assert!(planned("x --rate 1MiB --load 0.2").is_err());
    }

    #[test]
    fn topics_on_disks_have_acks_2_beside_acks_1() {
        let durable =
            planned("x --orders 5 --acks 1,2 --replication-factor 2 --data /a").expect("a plan");
        assert_eq!(
            (&durable.orders[..], &durable.acks[..]),
            (&[5][..], &[1, 2][..])
        );
        assert!(durable.validate().is_ok());
        let in_memory = planned("x").expect("a plan");
        assert_eq!(in_memory.orders, [0, 1, 2, 5]);
        assert!(planned("x --acks 1,1").is_err() && planned("x --orders 5,5").is_err());
    }
}
