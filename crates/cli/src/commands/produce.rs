//! `embar produce`: publishes each line of its input as a message.

mod lines;
mod tally;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use embar_bench::usage::Connections;
use embar_client::{Acks, NewMessage, OnBrokerLoss, PublishError, Publisher, WaitProbe};
use embar_console::size::{Size, mib_per_s, parse_duration, per_s};
use memchr::memmem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use self::lines::{Lines, Next};
use self::tally::{Outcome, Tally};
use crate::connect::{ConnectArgs, tell_profiles};
use crate::context::Context;
use crate::exit;

/// How soon a signal is noticed, and that nothing was acknowledged for too long.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Publish each line of the input as a message
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  seq 1 1000000 | embar produce numbers
  embar produce access /var/log/nginx/access.log
  embar produce users --key-separator : users.txt     'anna:17' is key anna, value 17
  tail -f app.log | embar produce app --linger 100ms
  embar produce orders --acks all orders.txt      acknowledged when it is on all disks of the topic

A topic that does not exist is created, with --acks 2 on one disk. Lines are published without
their line feed; a line without the key separator has no key. A line that is too long ends the
command with an error that names it, after everything before it was acknowledged. Ctrl-C sends what
was read, waits for its acknowledgement and ends; Ctrl-C again ends at once.

After a second without progress standard error says whom it waits for. When nothing was
acknowledged for --timeout it ends, also while its input is still open, and says how many lines
were read, how many are acknowledged, how many are in doubt (sent, and stored or not: exit code 4),
and how many are not stored.

JSON, one object at the end: topic, messages, bytes (keys and values), seconds, messages_per_s,
mib_per_s, acks, tcp_connections, unix_connections and shm_connections (made to brokers), lines
(read), acknowledged (with acks 0: handed to the kernel), in_doubt, not_stored")]
pub struct ProduceArgs {
    /// Topic to publish to
    topic: String,
    /// Files to read; standard input if there are none, or for -
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Text between key and value of a line
    #[arg(long, value_name = "TEXT")]
    key_separator: Option<String>,
    /// 0: done when the kernel has the bytes; 1: done when they are readable; 2 or all: when all disks of the topic have them,
    /// too
    #[arg(short, long, value_name = "N", default_value_t = Acks::Readable)]
    acks: Acks,
    /// Bytes of a batch, and so of the longest line
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    batch_size: Size,
    /// How long a batch may wait for more lines
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    linger: Duration,
    /// What to do with batches that may or may not have arrived when a broker died
    #[arg(long, value_name = "WHAT", default_value = "resend", value_enum)]
    on_broker_loss: Loss,
    /// How long lines may wait for an acknowledgement while none comes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// How long finding the cluster and the topic may take
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    open_timeout: Duration,
    /// How long a thread looks for what comes before it sleeps, at the price of a busy core; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    spin: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Loss {
    /// Send them again: nothing is lost, some lines may appear twice.
    Resend,
    /// Fail with exit code 4: nothing appears twice, some lines may be missing.
    InDoubt,
}

#[derive(Serialize)]
struct Summary<'a> {
    topic: &'a str,
    messages: u64,
    bytes: u64,
    seconds: f64,
    messages_per_s: f64,
    mib_per_s: f64,
    acks: u32,
    #[serde(flatten)]
    connections: Connections,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Publishes until the input ends.
pub fn run(args: &ProduceArgs, context: &Context) -> Result<()> {
    tell_profiles(context);
    if args.key_separator.as_ref().is_some_and(String::is_empty) {
        return Err(exit::usage("--key-separator must not be empty"));
    }
    let (probe, tally) = (WaitProbe::new(), Arc::new(Tally::default()));
    // Another limit ends that, and the client knows it.
    let connector = args.connect.connector(context);
    let opening = connector.report_waits(&probe, None);
    let publisher = open(args, &probe, &tally)?;
    drop(opening);
    let _reporter = connector.report_waits(&probe, Some(args.timeout));
    let started = Instant::now();
    let mut job = Job {
        publisher: &publisher,
        separator: args.key_separator.as_deref().map(memmem::Finder::new),
        timeout: args.timeout,
        tally: &tally,
        context,
        looked_at: started,
        lines: 0,
        messages: 0,
        bytes: 0,
    };
    let produced = job.all(&args.files);
    let (lines, messages, bytes) = (job.lines, job.messages, job.bytes);
    // Also after an error: everything before it is to be acknowledged.
    let connections = Connections::of(&publisher.profile());
    let settled = settle(publisher, args.timeout);
    let elapsed = started.elapsed();
    let outcome = tally.of(lines);
    let sent = (messages, bytes, connections);
    let reported = report(args, sent, outcome, elapsed, context);
    match (produced, settled) {
        // What became of the lines counts for more than whether somebody reads it.
        (Ok(()), Ok(())) => reported,
        (Err(error), _) | (Ok(()), Err(error)) => Err(in_doubt(error, &outcome)),
    }
}

/// Waits until all that was published is acknowledged, or nothing was for so long. Nothing is on its way then.
fn settle(publisher: Publisher, limit: Duration) -> Result<()> {
    let mut is_last_try = false;
    loop {
        let waited = publisher
            .waiting_for()
            .map_or(Duration::ZERO, |it| it.elapsed);
        match publisher.flush_timeout(limit.saturating_sub(waited)) {
            Ok(()) => return Ok(publisher.close()?),
            Err(error @ PublishError::Pending { .. }) if !is_last_try => {
                match publisher.waiting_for() {
                    Some(waits) if waits.elapsed >= limit => return Err(error.into()),
                    Some(_) => {}
                    // The last answer came while the time ran out, or the publisher ended and says why.
                    None => is_last_try = true,
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lines in doubt are an outcome of their own, whatever it comes from.
fn in_doubt(error: anyhow::Error, outcome: &Outcome) -> anyhow::Error {
    if outcome.in_doubt == 0 {
        return error;
    }
    let why = exit::explain(&error);
    exit::data(format!(
        "{why}; lines in doubt may be stored or not: read the topic to find out"
    ))
}

fn open(args: &ProduceArgs, probe: &WaitProbe, tally: &Arc<Tally>) -> Result<Publisher> {
    let tally = tally.clone();
    let publisher = Publisher::builder(&args.connect.bootstrap)
        .transport(args.connect.transport)
        .spin(args.spin)
        .acks(args.acks)
        .topic(&args.topic)
        .batch_bytes(exit::to_u32(args.batch_size, "--batch-size")? as usize)
        .linger(args.linger)
        .on_broker_loss(match args.on_broker_loss {
            Loss::Resend => OnBrokerLoss::Resend,
            Loss::InDoubt => OnBrokerLoss::InDoubt,
        })
        .delivery_timeout(args.timeout)
        .open_timeout(args.open_timeout)
        .on_ack(move |delivery| tally.count(delivery))
        .wait_probe(probe)
        .open()?;
    Ok(publisher)
}

fn report(
    args: &ProduceArgs,
    (messages, bytes, connections): (u64, u64, Connections),
    outcome: Outcome,
    elapsed: Duration,
    context: &Context,
) -> Result<()> {
    let summary = Summary {
        topic: &args.topic,
        messages,
        bytes,
        seconds: elapsed.as_secs_f64(),
        messages_per_s: per_s(messages as f64, elapsed),
        mib_per_s: mib_per_s(bytes, elapsed),
        acks: args.acks.level(),
        connections,
        outcome,
    };
    if !outcome.is_whole() {
        context.note(outcome);
        return context.output.json(&summary);
    }
    context.note(format_args!(
        "{} messages, {:.1} MiB in {:.2} s: {} messages/s, {:.1} MiB/s{}, {connections}",
        embar_meter::table::grouped(messages),
        bytes as f64 / (1 << 20) as f64,
        summary.seconds,
        embar_meter::table::grouped(summary.messages_per_s as u64),
        summary.mib_per_s,
        match args.acks {
            Acks::None => ", handed to the kernel",
            _ => ", acknowledged",
        }
    ));
    context.output.json(&summary)
}

struct Job<'a> {
    publisher: &'a Publisher,
    separator: Option<memmem::Finder<'a>>,
    timeout: Duration,
    tally: &'a Tally,
    context: &'a Context,
    /// When it was last asked whether to go on.
    looked_at: Instant,
    lines: u64,
    messages: u64,
    bytes: u64,
}

/// An input that can be waited for.
struct Input<R> {
    reader: R,
    name: String,
}

impl Job<'_> {
    fn all(&mut self, files: &[PathBuf]) -> Result<()> {
        if files.is_empty() {
            return self.standard_input();
        }
        for path in files {
            if path == Path::new("-") {
                self.standard_input()?;
                continue;
            }
            let reader =
                File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            self.lines(Input {
                reader,
                name: path.display().to_string(),
            })?;
        }
        Ok(())
    }

    fn standard_input(&mut self) -> Result<()> {
        // Straight from the descriptor: the standard library's reader would copy everything once more.
        let reader = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        self.lines(Input {
            reader,
            name: "standard input".into(),
        })
    }

    fn lines<R: Read + AsFd>(&mut self, input: Input<R>) -> Result<()> {
        let mut lines = Lines::new(input.reader, self.publisher.batch_bytes());
        let mut number = 0u64;
        loop {
            match lines.next() {
                Next::Line(line) => {
                    number += 1;
                    self.lines += 1;
                    self.publish(line)
                        .map_err(|error| named(error, &input.name, number))?;
                }
                Next::Fill => {
                    self.wait_for_input(lines.reader().as_fd())?;
                    lines
                        .fill()
                        .with_context(|| format!("cannot read {}", input.name))?;
                }
                Next::TooLong => {
                    return Err(too_long(
                        &input.name,
                        number + 1,
                        self.publisher.batch_bytes(),
                    ));
                }
                Next::End => return Ok(()),
            }
        }
    }

    /// Returns when there is something to read; an error when the command is to end first.
    fn wait_for_input(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK_EVERY.as_nanos() as i64,
        };
        loop {
            self.look()?;
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // Also at the end of a pipe, and for files, which are always ready.
                Ok(_) => return Ok(()),
                Err(error) => return Err(error).context("cannot wait for input"),
            }
        }
    }

    /// An error when a signal came, or nothing was acknowledged for too long: input that is idle, or comes slowly, is no
    /// reason to wait longer.
    fn look(&mut self) -> Result<()> {
        self.context.work.interrupt.check()?;
        if self.looked_at.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked_at = Instant::now();
        let waits = self.publisher.waiting_for();
        match waits.filter(|it| it.elapsed >= self.timeout) {
            Some(waits) => Err(anyhow!(
                "nothing was acknowledged for {:?}: waiting for {waits}",
                self.timeout
            )),
            None if self.tally.has_expired() => Err(anyhow!(
                "no broker took what was read within {:?}: check `embar status`",
                self.timeout
            )),
            None => Ok(()),
        }
    }

    #[inline]
    fn publish(&mut self, line: &[u8]) -> Result<(), PublishError> {
        let at = self
            .separator
            .as_ref()
            .and_then(|separator| Some((separator.find(line)?, separator.needle().len())));
        let message = match at {
            Some((at, len)) => NewMessage {
                key: Some(&line[..at]),
                value: &line[at + len..],
                headers: &[],
            },
            None => NewMessage {
                key: None,
                value: line,
                headers: &[],
            },
        };
        self.publisher.publish_message(&message)?;
        self.messages += 1;
        self.bytes += (message.value.len() + message.key.map_or(0, <[u8]>::len)) as u64;
        Ok(())
    }
}

fn named(error: PublishError, name: &str, number: u64) -> anyhow::Error {
    anyhow::Error::from(error).context(format!("{name}, line {number}"))
}

fn too_long(name: &str, number: u64, limit: usize) -> anyhow::Error {
    anyhow!(
        "{name}, line {number} is longer than a batch of {}: raise --batch-size; everything before it was published",
        Size(limit as u64)
    )
}
