//! Two processes that talk through topics of the log, and how long that takes: an example of `embar-client`.
//!
//! With a cluster (`embar up`), in one terminal each:
//!
//! ```sh
//! cargo run --release -p ping -- answer
//! cargo run --release -p ping -- ask
//! ```
//!
//! `ask` publishes numbers to the topic `pings`, one after the other; `answer` reads them there and publishes them to `pongs`,
//! where `ask` reads them. So a round trip is two messages through the log, each of which any other process may read as well.
//!
//! # What it shows
//! - A message that is to leave at once: no linger.
//! - A subscription that begins with what comes from now on ([`Start::Latest`]).
//! - Which transport clients choose by themselves: their profile counts connections by it.
//! - What spinning brings where there is a core for each thread that spins: `--spin-us`, also `embar up --spin 50us`.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Args, Parser};
use embar_client::{Admin, Publisher, Start, Subscriber, TopicSpec, Transport};

const PINGS: &str = "pings";
const PONGS: &str = "pongs";

/// Who asks gives up when nothing came back for so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Round trips that do not count: connections and caches are cold.
const COLD: usize = 100;

/// Two processes that talk through a topic
#[derive(Parser)]
#[command(name = "ping", version)]
enum Command {
    /// Send back what comes, until Ctrl-C
    Answer(Options),
    /// Ask, one question after the other, and print how long the answers took
    Ask {
        /// Round trips
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Args)]
struct Options {
    /// Any broker of the cluster
    #[arg(long, env = "EMBAR_BOOTSTRAP", default_value = "127.0.0.1:9400")]
    bootstrap: String,
    /// auto, tcp, unix or shm
    #[arg(long, default_value_t = Transport::Auto)]
    transport: Transport,
    /// Microseconds for which each thread looks for what comes before it sleeps
    #[arg(long, default_value_t = 0)]
    spin_us: u64,
}

impl Options {
    /// A way in and a way out: publishes to one topic, and reads what comes to another one from now on.
    fn open(&self, to: &str, from: &str) -> Result<(Publisher, Subscriber)> {
        let spin = Duration::from_micros(self.spin_us);
        let admin = Admin::connect(&self.bootstrap)?;
        for topic in [to, from] {
            // If it is there already, all is well.
            let _ = admin.create_topic(TopicSpec::new(topic)).wait();
        }
        let publisher = Publisher::builder(&self.bootstrap)
            .topic(to)
            .transport(self.transport)
            .linger(Duration::ZERO)
            .spin(spin)
            .open()?;
        let subscriber = Subscriber::builder(&self.bootstrap)
            .topic(from)
            .transport(self.transport)
            .from(Start::Latest)
            .spin(spin)
            .open()?;
        Ok((publisher, subscriber))
    }
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Answer(options) => answer(&options),
        Command::Ask { count, options } => ask(count, &options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if that fails.
            let _ = writeln!(io::stderr(), "ping: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answer(options: &Options) -> Result<()> {
    let (publisher, mut subscriber) = options.open(PONGS, PINGS)?;
    say(&format!("answering by {}", transport(&publisher)))?;
    while let Some(question) = subscriber.next()? {
        publisher.publish(question.value)?;
    }
    Ok(())
}

fn ask(count: u32, options: &Options) -> Result<()> {
    let (publisher, mut subscriber) = options.open(PINGS, PONGS)?;
    // Others may ask at the same time, and everybody hears all answers.
    let me =
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() ^ u128::from(std::process::id());
    let mut times = Vec::new();
    for number in 0..COLD + count as usize {
        let question = [me, number as u128].map(u128::to_le_bytes).concat();
        let began = Instant::now();
        publisher.publish(&question)?;
        loop {
            let answer = subscriber.next_timeout(PATIENCE);
            let answer = answer.context("no answer: is `ping answer` running?")?;
            if answer.context("the subscription ended")?.value == question {
                break;
            }
        }
        if number >= COLD {
            times.push(began.elapsed());
        }
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_nanos() as f64 / 1e3;
    say(&format!(
        "{count} round trips by {}: P50 {:.1} us, P99 {:.1} us",
        transport(&publisher),
        at(50),
        at(99)
    ))?;
    publisher.close()?;
    Ok(())
}

/// By what its batches go.
fn transport(publisher: &Publisher) -> &'static str {
    let ways = [
        ("shm_connections", "shared memory"),
        ("unix_connections", "Unix sockets"),
        ("tcp_connections", "TCP"),
    ];
    let counters = publisher.profile().counters;
    let made = |counter| counters.iter().find(|(name, _)| *name == counter);
    let way = ways
        .into_iter()
        .find(|(counter, _)| made(*counter).is_some_and(|(_, count)| *count > 0));
    way.map_or("nothing", |(_, name)| name)
}

/// Prints a line at once, also into a pipe.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
