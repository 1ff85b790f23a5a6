//! What a diagnosis of Redis looks at: what happened in a span of time, as plain numbers.
//!
//! What a server says of itself (`INFO`, `SLOWLOG`) is the difference of two looks. What could not be read is `None` or
//! empty, and [`Observed::missing`] says why; no rule takes it for zero.

use serde::{Deserialize, Serialize};

use crate::observed::{Machine, Missing, Step, Thread, per};

/// All that was seen in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How long the span was, seconds.
    pub seconds: f64,
    /// Operations of the callers that succeeded; of a cluster that others use, what its servers executed.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The machine on which the callers run.
    pub machine: Machine,
    /// The callers and their client; `None` where only servers were looked at.
    pub client: Option<Client>,
    /// The servers that serve slots, or the one server.
    pub nodes: Vec<Node>,
    /// Replies that the client got, step by step; empty where only servers were looked at.
    #[serde(default)]
    pub over_time: Vec<Step>,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

impl Observed {
    /// Operations a second.
    pub fn operations_per_s(&self) -> f64 {
        per(self.operations as f64, self.seconds)
    }
}

/// Callers, and the client that they share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Callers that have one operation, or one pipeline, in flight each.
    pub callers: u64,
    /// Operations of a pipeline; 1 for none.
    pub pipeline: u64,
    /// Threads on which callers run, and connections, too, unless these have threads of their own.
    pub threads: Vec<Thread>,
    /// Threads that serve connections and nothing else.
    pub connection_threads: Vec<Thread>,
    /// How long a caller waited for an operation or pipeline: the mean, seconds.
    pub latency_s: f64,
    /// Time that all callers together spent between two operations: with work of their own, or with waiting for something
    /// else, seconds.
    pub between_s: f64,
    /// Commands that one connection may have in flight.
    pub in_flight_max: u64,
    /// Connections to each node.
    pub connections_per_node: u64,
    /// Whether connections are encrypted.
    pub by_tls: bool,
    /// Keys that got the most operations, as samples say, the first one first.
    pub keys: Vec<KeyShare>,
}

/// A key that many operations are about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeyShare {
    /// The key.
    pub key: String,
    /// Its slot.
    pub slot: u16,
    /// Its part of all operations, 0 to 1.
    pub share: f64,
}

/// A Redis server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Where it listens.
    pub name: String,
    /// Slots that it serves; `None` for a server that is no cluster.
    pub slots: Option<u64>,
    /// Its threads; none if its process is not on this machine, or another user's.
    pub threads: Vec<Thread>,
    /// What it said of itself.
    pub server: Option<Server>,
    /// What our client counted; `None` where only servers were looked at.
    pub traffic: Option<Traffic>,
    /// How soon it answered PINGs that were sent beside the load.
    pub probe: Option<Probe>,
}

/// What a server counted in the span.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Commands that it executed.
    pub commands: Option<u64>,
    /// Bytes that it sent to clients.
    pub sent_bytes: Option<u64>,
    /// Bytes that it received from them.
    pub received_bytes: Option<u64>,
    /// Processor seconds of the thread that executes commands.
    pub main_thread_s: Option<f64>,
    /// Connections of clients, at the end.
    pub clients: Option<u64>,
    /// What it executed, by command. `None`: it does not say.
    pub by_command: Option<Vec<CommandUse>>,
    /// Commands that took so long that it wrote them down. `None`: it does not say.
    pub slow: Option<Vec<SlowCommand>>,
}

/// Commands of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandUse {
    /// Its name, in small letters.
    pub name: String,
    /// How often it was executed.
    pub calls: u64,
    /// Seconds that this took, by the clock.
    pub seconds: f64,
}

/// Slow commands of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowCommand {
    /// Its name, in small letters.
    pub name: String,
    /// How many there were.
    pub count: u64,
    /// Seconds that they took, together.
    pub seconds: f64,
    /// Seconds of the longest.
    pub longest_s: f64,
}

/// What our client did with a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Replies.
    pub replies: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Calls that sent something.
    pub writes: u64,
    /// Calls that received something.
    pub reads: u64,
    /// From the submission of a command to the reading of its reply: the mean, seconds.
    pub latency_s: f64,
    /// Commands in flight: the mean.
    pub in_flight: f64,
    /// Part of the looks that found all places taken, 0 to 1.
    pub full: f64,
    /// Part of the span in which commands waited and no reply came for longer than it should take, 0 to 1.
    pub silent: f64,
    /// The longest time in which commands waited and no reply came, seconds; as exact as the looks are close.
    pub silent_longest_s: f64,
}

/// Questions that were sent beside the load, now and then, one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// How many were answered.
    pub answered: u64,
    /// How many had no answer in time.
    pub unanswered: u64,
    /// How long an answer took: the mean, seconds.
    pub mean_s: f64,
    /// How long the latest took, seconds.
    pub longest_s: f64,
}

impl Node {
    /// Commands in the span, of all clients if the server says so.
    pub(crate) fn commands(&self) -> Option<f64> {
        let said = self.server.as_ref().and_then(|it| it.commands);
        let counted = self.traffic.as_ref().map(|it| it.replies);
        said.or(counted).map(|it| it as f64)
    }

    /// How soon it answers, seconds: its commands, or else PINGs. `None` if nothing was answered.
    pub(crate) fn latency_s(&self) -> Option<f64> {
        let commands = self.traffic.as_ref().filter(|it| it.replies > 0);
        let commands = commands.map(|it| it.latency_s);
        let probe = self.probe.as_ref().filter(|it| it.answered > 0);
        commands.or(probe.map(|it| it.mean_s))
    }

    /// Bytes of a reply: the mean.
    pub(crate) fn bytes_per_reply(&self) -> Option<f64> {
        let counted = self.traffic.as_ref();
        let counted = counted.map(|it| (it.received_bytes as f64, it.replies as f64));
        let said = self
            .server
            .as_ref()
            .and_then(|it| Some((it.sent_bytes? as f64, it.commands? as f64)));
        let (bytes, replies) = counted.or(said)?;
        (replies > 0.0).then(|| bytes / replies)
    }

    /// Bytes sent to clients in the span.
    pub(crate) fn sent_bytes(&self) -> Option<f64> {
        let counted = self.traffic.as_ref().map(|it| it.received_bytes);
        let said = self.server.as_ref().and_then(|it| it.sent_bytes);
        counted.or(said).map(|it| it as f64)
    }

    /// The thread that executes commands: the busiest.
    pub(crate) fn main_thread(&self) -> Option<&Thread> {
        let threads = self.threads.iter();
        threads.max_by(|a, b| a.on_cpu.total_cmp(&b.on_cpu))
    }

    /// Share of the time in which its thread is on a processor.
    pub(crate) fn on_cpu(&self, seconds: f64) -> Option<f64> {
        let said = self.server.as_ref().and_then(|it| it.main_thread_s);
        let said = said.map(|it| per(it, seconds).min(1.0));
        self.main_thread().map(|it| it.on_cpu).or(said)
    }

    /// Share of the time in which it is ready to run, and has no processor.
    pub(crate) fn waiting(&self) -> f64 {
        self.main_thread().map_or(0.0, |it| it.waiting)
    }
}
