//! The logs, and how each is started and measured.

mod aeron;
mod embar;
mod jet_stream;
mod kafka;
mod redis_streams;

use crate::arguments::Arguments;
use crate::install::Installed;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// A log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// Ours.
    Embar,
    /// Apache Kafka, one broker.
    Kafka,
    /// NATS JetStream, one server.
    JetStream,
    /// Redis Streams, one server.
    RedisStreams,
    /// Aeron between two threads, without a network.
    AeronIpc,
}

impl Log {
    /// In the order of the table.
    pub const ALL: [Self; 5] = [
        Self::Embar,
        Self::Kafka,
        Self::JetStream,
        Self::RedisStreams,
        Self::AeronIpc,
    ];

    /// Whether it serves the same purpose as ours: it keeps messages for readers that come by TCP.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Kafka | Self::JetStream | Self::RedisStreams)
    }

    /// What this log promises for messages as they were measured here, and what else it can.
    pub fn promises(self) -> &'static str {
        match self {
            Self::Embar => {
                "one order per broker (order 0) or over all brokers (5), acknowledged when readable; in memory that outlives \
                 processes, gone with the machine"
            }
            Self::Kafka => {
                "one order per partition, acknowledged by the leader before its file is synced; on disks and replicated \
                 elsewhere, not here"
            }
            Self::JetStream => {
                "one order, acknowledged when stored, before the file is synced; on disks and replicated elsewhere, not here"
            }
            Self::RedisStreams => {
                "one order, acknowledged when in the memory of the server, gone with it; written to disks and replicated \
                 elsewhere, not here"
            }
            Self::AeronIpc => {
                "one order from one publisher, no acknowledgement, kept by nobody; archived to disks elsewhere, not here"
            }
        }
    }
}

/// As it is written on the command line.
impl Display for Log {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("none is hidden");
        f.write_str(value.get_name())
    }
}

/// What each log does in a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// How many messages are published, and then read.
    pub messages: u64,
    /// Bytes of each.
    pub message_size: u64,
}

impl Workload {
    /// Messages that go first and do not count.
    pub fn warm_up(&self) -> u64 {
        self.messages / 4
    }

    /// MiB that so many messages are.
    pub fn mib(&self, messages: f64) -> f64 {
        messages * self.message_size as f64 / 1024.0 / 1024.0
    }
}

/// What a log did in a round, in messages per second; what it cannot do, or what its programs do not measure, is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Until the last acknowledgement.
    pub publish: Option<f64>,
    /// All of it again, from the first message.
    pub read: Option<f64>,
    /// Published and read at the same time.
    pub at_once: Option<f64>,
}

/// By what a log and its clients are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The loopback interface.
    Tcp,
    /// Sockets of the machine.
    Unix,
    /// Memory that the processes share.
    Shm,
}

impl Way {
    /// By which of the ways ours is to be connected to be compared with this one.
    pub fn like(self) -> Self {
        match self {
            Self::Shm => Self::Shm,
            Self::Tcp | Self::Unix => Self::Tcp,
        }
    }
}

/// One way of using a log: several batch sizes of one log are several of these, and the best counts.
pub struct Setup {
    /// Whose.
    pub log: Log,
    /// How it is reached.
    pub way: Way,
    /// What is set, for people. No other setup of this log has the same.
    pub settings: &'static str,
    measure: Measure,
}

type Measure = Box<dyn Fn(&Workload) -> anyhow::Result<Sample>>;

impl Setup {
    /// Reached by TCP, and measured by a function that starts it, and ends it.
    pub fn new(
        log: Log,
        settings: &'static str,
        measure: impl Fn(&Workload) -> anyhow::Result<Sample> + 'static,
    ) -> Self {
        Self {
            log,
            way: Way::Tcp,
            settings,
            measure: Box::new(measure),
        }
    }

    /// The same, reached in another way.
    pub fn by(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// Starts it with nothing in it, publishes, reads back, and ends it.
    pub fn measure(&self, workload: &Workload) -> anyhow::Result<Sample> {
        (self.measure)(workload)
    }
}

/// All ways of using the logs that are asked for.
pub fn setups(arguments: &Arguments, installed: &Installed) -> Vec<Setup> {
    let of = |log: &Log| match log {
        Log::Embar => embar::setups(installed.embar()),
        Log::Kafka => kafka::setups(installed),
        Log::JetStream => jet_stream::setups(installed),
        Log::RedisStreams => redis_streams::setups(),
        Log::AeronIpc => aeron::setups(installed),
    };
    arguments.logs.iter().flat_map(of).collect()
}
