//! `embar bench walls`: measures the log beside what the machine allows, over sockets and in shared memory without the log.

use anyhow::Result;
use clap::Args;
use embar_bench::plan::parse_order;
use embar_bench::walls::measure;
use embar_bench::walls::plan::{Path, WallsPlan};
use embar_console::size::Size;

use super::data_brokers;
use crate::context::Context;
use crate::exit;

/// Measure the log beside what the machine allows: sockets and shared memory without the log
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  embar bench walls                                      everything, some minutes
  embar bench walls --quick                              the same with few, short rounds
  embar bench walls --path read_tcp --order 0 --batch-size 2MiB --trials 20
  embar bench walls --walls-only --json                  the machine, without the log
  embar bench walls --path publish_shm,ack_shm           through shared memory

Walls of sockets carry the same bytes over as many sockets, between this process and as many
receiving processes as brokers take data, with the send buffers of the log's. A batch is one write.
  bare                sockets alone, into and out of a warm ring of the region's size
  working             also one copy of each message into its batch by one thread (publishing),
                      and one CRC-32C of each batch on each side; reading has as many receiving
                      threads as a subscriber has
  working, verified   reading: one thread more checks each message, as this bench does with ours
  bare relay          what is received goes out again from where it lies, at the same time
  working relay       also one copy of each message into its batch by one thread, one CRC-32C of
                      each batch on each of the three sides, and one thread that checks each
                      message, as this bench does with ours

Walls of shared memory are threads of this process. One puts messages into batches of 256 KiB and
hands over each by a record of 64 bytes; another one acknowledges by a counter. Both spin. Messages
of 64 bytes are measured, too.
  bare                the second thread copies each batch into a warm ring of the region's size,
                      past the caches, and makes a CRC-32C of what it copies
  bare, streamed      the first thread, too, writes past the caches: faster where the two
                      processors share no cache, which the ping shows
  in place            the first thread puts messages straight into the ring, past the caches, with a
                      CRC-32C; the second one looks at the records only
  bare, followed      as bare; a third thread touches each byte in the ring
  plain pass          one thread touches each byte of the ring
  hand-over           a record there and a counter back, time of the round trip; ours: from
                      publishing a message until its acknowledgement
  ping                a cache line there and back between two processors, time of the round trip;
                      ours: from publishing a message until another thread has it

Through shared memory ours is there twice: on the cluster of all others, and on one broker, which
also sequences, so that it and a client have a core each, of two. A reader `verifies` the number and
the checksum of each message, or it `touches` all words of it, and leaves the checksums of what it
reads in place to the broker.

Rows whose figures are times are there twice, too: with brokers and clients that sleep when they
have nothing to do, on the cluster of all others, and with one broker and clients that spin for a
millisecond before they sleep. Who waits for the result spins, so two threads do: the broker's, and
the one that waits for the acknowledgement, or receives for the subscriber. The aims are of those
that spin.

Three rows are no walls: `order 0` compares another order with it, `ours unverified` says what the
bench's own check of each message costs, and `beside TCP` compares a publisher over TCP beside a
neighbour that publishes through shared memory with the same beside a neighbour over TCP.

Trials alternate within each path and size. GB are 10^9 bytes of message values. Brackets are
95 % intervals of the paired ratios; they need 6 trials.

JSON, one object: config; rows[] with path, order, batch_bytes, message_bytes, brokers (of ours),
reader (verifies, touches or counts), wall, wall_gb_per_s, ours_gb_per_s, ratio, interval {point,
low, high, level}, rounds, target (the least ratio that we aim at, or null), target_gb_per_s (the
least rate of ours, or null), reached; times[] with path, order, spins, message_bytes, wall,
wall_p50_ns, wall_p99_ns, ours_p50_ns, ours_p99_ns, ratio and interval of p50, rounds, target (the
greatest ratio, or null), target_ns (the longest p50 of ours, or null), reached; where only the
wall was measured, the others are null")]
pub struct WallsArgs {
    /// Only these paths
    #[arg(long, value_name = "PATH", value_enum, value_delimiter = ',')]
    path: Vec<Path>,
    /// Order levels of topics: 0, 1, 2 or 5
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_values_t = [0, 5], value_parser = parse_order)]
    order: Vec<u32>,
    /// Bytes of a batch over sockets
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values = ["2MiB", "16KiB"])]
    batch_size: Vec<Size>,
    /// Few, short rounds: 256 MiB each, 3 trials
    #[arg(long, conflicts_with_all = ["size", "trials"])]
    quick: bool,
    /// Measure the machine only, without the log
    #[arg(long)]
    walls_only: bool,
    /// Bytes of each trial
    #[arg(short, long, value_name = "SIZE", default_value = "1GiB")]
    size: Size,
    /// Bytes of one message
    #[arg(short, long, value_name = "SIZE", default_value = "1024")]
    message_size: Size,
    /// Rounds to measure
    #[arg(long, value_name = "N", default_value_t = 8)]
    trials: usize,
    /// Rounds to run before and throw away
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Client threads, each with a connection, for each data broker; senders of the walls likewise
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads_per_broker: u32,
    /// Connections from each receiving process to readers of the walls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    read_connections: u16,
    /// Threads that read in the working walls; without it, as many as a subscriber has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    read_threads: Option<u16>,
    /// Brokers, the head included; the head takes no data unless it is alone
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32))]
    brokers: u16,
    /// Threads of each broker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    network_threads: u16,
    /// Bytes of shared memory in all; the rings of the walls have as many again
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    region_size: Size,
}

impl WallsArgs {
    fn plan(&self) -> Result<WallsPlan> {
        let paths = if self.path.is_empty() {
            Path::ALL.to_vec()
        } else {
            self.path.clone()
        };
        let sizes = self.batch_size.iter();
        let (total_bytes, trials) = if self.quick {
            (256 << 20, 3)
        } else {
            (self.size.0, self.trials)
        };
        Ok(WallsPlan {
            paths,
            orders: self.order.clone(),
            batch_bytes: sizes
                .map(|size| exit::to_u32(*size, "--batch-size"))
                .collect::<Result<_>>()?,
            message_bytes: exit::to_u32(self.message_size, "--message-size")?,
            total_bytes,
            threads_per_broker: self.threads_per_broker,
            read_connections: self.read_connections,
            read_threads: self.read_threads,
            brokers: self.brokers,
            data_brokers: data_brokers(self.brokers),
            network_threads: self.network_threads,
            region_bytes: self.region_size.0,
            trials,
            warmup: self.warmup,
            walls_only: self.walls_only,
        })
    }
}

/// Runs it and prints the report.
pub fn run(args: &WallsArgs, context: &Context) -> Result<()> {
    let plan = args.plan()?;
    plan.validate()?;
    let what = format!("walls: {}", plan.describe());
    super::measure(context, what, |work| measure::run(&plan, work))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        walls: WallsArgs,
    }

    fn plan(line: &str) -> WallsPlan {
        let line = Line::try_parse_from(line.split_whitespace()).expect("options");
        line.walls.plan().expect("a plan")
    }

    #[test]
    fn one_row_can_be_asked_for() {
        let plan = plan("x --path read_tcp --order 5 --batch-size 16KiB --trials 20 -s 64MiB");
        assert_eq!(plan.paths, [Path::ReadTcp]);
        assert_eq!((plan.orders, plan.batch_bytes), (vec![5], vec![16 << 10]));
        assert_eq!((plan.trials, plan.total_bytes), (20, 64 << 20));
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let plan = plan("x");
        assert_eq!(plan.paths, Path::ALL);
        assert_eq!((&plan.orders[..], plan.batch_bytes.len()), (&[0, 5][..], 2));
        assert!(plan.validate().is_ok() && plan.trials >= 6);
    }

    #[test]
    fn the_quick_setting_is_one_for_all_rounds() {
        let quick = plan("x --quick");
        assert!(quick.total_bytes < plan("x").total_bytes && quick.trials < plan("x").trials);
        assert!(Line::try_parse_from("x --quick --trials 9".split_whitespace()).is_err());
    }
}
