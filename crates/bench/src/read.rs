//! One trial of reading: a subscriber reads the topic from its first message to its end, and a verifier checks that
//! each message comes once and unchanged.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use embar_client::{Message, Start, Subscriber, WaitProbe};
use embar_console::connect::Connector;
use embar_console::progress::Bar;
use embar_meter::Snapshot;
use embar_supervise::work::Abort;
use serde::Serialize;

use super::reader::Reader;
use super::stamp::Verifier;
use super::usage::{Connections, Costs, Meters, Rate};

/// How long nothing may arrive before a reader gives up.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Messages between two looks at whether to stop.
const LOOK_EVERY: u64 = 8192;

/// What reading everything once gave.
#[derive(Clone, Debug, Serialize)]
pub struct ReadTrial {
    /// From opening the subscriber to the last message.
    #[serde(flatten)]
    pub rate: Rate,
    /// What it cost.
    #[serde(flatten)]
    pub costs: Costs,
    /// How many connections it had, and by which transport.
    #[serde(flatten)]
    pub connections: Connections,
    /// Stage times of the subscriber.
    #[serde(skip)]
    pub subscriber_profile: Option<Snapshot>,
}

/// Reading stamped messages from a cluster that runs already.
pub struct ReadJob {
    /// The topic.
    pub topic: String,
    /// How many messages there are.
    pub messages: u64,
    /// Bytes of each message.
    pub message_bytes: u32,
    /// What becomes of each message.
    pub reader: Reader,
    /// Whether stages are timed.
    pub metering: bool,
    /// How long the subscriber looks before it sleeps.
    pub spin: Duration,
    /// How clients reach the cluster.
    pub connector: Connector,
    /// Processes of the brokers.
    pub pids: Vec<u32>,
    /// Shows how many bytes were read.
    pub bar: Box<dyn Bar>,
}

impl ReadJob {
    /// A subscriber from the first message to the last.
    pub(super) fn open(&self, probe: &WaitProbe) -> Result<Subscriber> {
        let subscriber = Subscriber::builder(self.connector.bootstrap())
            .transport(self.connector.transport())
            .topic(&self.topic)
            .from(Start::Earliest)
            .until_end(true)
            .spin(self.spin)
            .checksums(self.reader.checksums())
            .metering(self.metering)
            .wait_probe(probe)
            .open()?;
        Ok(subscriber)
    }

    /// The next message, `None` at the end; silence for too long is an error.
    pub(super) fn next<'a>(&self, subscriber: &'a mut Subscriber) -> Result<Option<Message<'a>>> {
        Ok(subscriber.next_timeout(SILENCE_MAX)?)
    }

    /// Reads from the start until everything is there; an error if anything is not as it was published.
    pub fn run(&self, abort: &Abort) -> Result<ReadTrial> {
        let meters = Meters::start(&self.pids)?;
        let started = Instant::now();
        let probe = WaitProbe::new();
        let _reporter = self.connector.report_waits(&probe, Some(SILENCE_MAX));
        let mut subscriber = self.open(&probe)?;
        let mut verifier = Verifier::new(self.message_bytes as usize, self.messages);
        let mut arrived = 0u64;
        while let Some(message) = self.next(&mut subscriber)? {
            match self.reader {
                Reader::Verifies => drop(verifier.check(message.value)),
                other => other.touch(message.value),
            }
            arrived += 1;
            if arrived.is_multiple_of(LOOK_EVERY) {
                abort.check()?;
                self.bar.set(arrived * u64::from(self.message_bytes));
            }
        }
        let elapsed = started.elapsed();
        if self.reader == Reader::Verifies {
            verifier.verdict()?;
        } else {
            let published = self.messages;
            ensure!(
                arrived == published,
                "{arrived} messages arrived of {published}"
            );
        }
        let bytes = self.messages * u64::from(self.message_bytes);
        let costs = meters.stop(bytes)?;
        let profile = subscriber.profile();
        Ok(ReadTrial {
            rate: Rate::new(bytes, self.messages, elapsed),
            costs,
            connections: Connections::of(&profile),
            subscriber_profile: self.metering.then_some(profile),
        })
    }
}
