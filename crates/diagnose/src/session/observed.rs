//! What a diagnosis of sessions looks at: what happened in a span of time, as plain numbers.
//!
//! What could not be read is `None` or empty, and [`Observed::missing`] says why; no rule takes it for zero.

use serde::{Deserialize, Serialize};

use crate::observed::{Connection, Machine, Missing, Step, Thread, per};

/// All that was seen in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How long the span was, seconds.
    pub seconds: f64,
    /// Which way messages went.
    pub way: Way,
    /// Messages that arrived: at the server's handlers one way, back at the client's if they are answered. 0 if nobody could be asked.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Those of them that are large; `None` where nobody counted.
    pub large: Option<Large>,
    /// The machine.
    pub machine: Machine,
    /// What sends; `None` where nobody could be asked, or where each message is sent by a handler of the client.
    pub application: Option<Application>,
    /// The end that opened the sessions; of sessions that others use, the end that sends more.
    pub client: Option<End>,
    /// The other end.
    pub server: Option<End>,
    /// Messages that may be on their way there and back on all sessions together; `None` one way.
    pub in_flight: Option<u64>,
    /// Their TCP connections, as the client sends and the server receives; none for other ways.
    pub connections: Vec<Connection>,
    /// Bytes that arrived by them, both ways, step by step.
    #[serde(default)]
    pub over_time: Vec<Step>,
    /// Whether they are encrypted.
    pub by_tls: bool,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From the client to the server.
    #[default]
    OneWay,
    /// There and back: each is answered, and another one leaves when an answer comes.
    Echo,
}

/// Large messages among others: of more than 16 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Large {
    /// How many.
    pub messages: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// Threads that send, other than those that serve sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// These threads.
    pub threads: Vec<Thread>,
    /// Part of their time in which they waited for room in a send ring, 0 to 1.
    pub waited_for_room: f64,
    /// Part of their time in which they waited until what they had sent left, 0 to 1.
    #[serde(default)]
    pub waited_to_leave: f64,
    /// Messages after which they do; `None` if they never do, or nobody knows.
    pub waits_after: Option<u64>,
    /// Part of their time in calls that send, those waits included, 0 to 1; `None` where nobody timed them.
    pub in_sends: Option<f64>,
    /// Whether the application is a benchmark of ours.
    pub is_bench: bool,
}

/// One end of the sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The threads that serve its sessions.
    pub workers: Vec<Thread>,
    /// How many sessions there are; `None` of a process that could not be asked, as for all that follows.
    pub sessions: Option<u64>,
    /// Messages that it received.
    pub messages_received: Option<u64>,
    /// Bytes that it received.
    pub bytes_received: Option<u64>,
    /// Bytes that it sent.
    pub bytes_sent: Option<u64>,
    /// How often it received bytes.
    pub reads: Option<u64>,
    /// How often it sent bytes.
    pub writes: Option<u64>,
    /// Bytes of the send ring of a session.
    pub send_ring_bytes: Option<u64>,
    /// Part of the time of its workers that its handlers take, whether they compute or wait, 0 to 1.
    pub in_handlers: Option<f64>,
    /// Part of the time of its workers in which handlers decode messages, 0 to 1.
    pub in_decoding: Option<f64>,
    /// What `SO_RCVBUF` it asks for, bytes; `None` where the kernel tunes.
    pub recv_buffer: Option<u64>,
    /// What `SO_SNDBUF` it asks for, bytes; `None` where the kernel tunes.
    pub send_buffer: Option<u64>,
}

impl Observed {
    /// Messages a second.
    pub fn messages_per_s(&self) -> f64 {
        per(self.messages as f64, self.seconds)
    }

    /// How long a message is on its way there and back, seconds: by Little's law, from how many are and how many come. `None` one way.
    pub fn latency_s(&self) -> Option<f64> {
        let in_flight = self.in_flight? as f64;
        (self.messages > 0).then(|| in_flight * self.seconds / self.messages as f64)
    }

    /// Both ends.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &End> {
        self.client.iter().chain(&self.server)
    }

    /// All threads of the pipeline.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &Thread> {
        let application = self.application.iter().flat_map(|it| &it.threads);
        application.chain(self.ends().flat_map(|it| &it.workers))
    }
}

impl End {
    /// Processors that its workers used.
    pub(crate) fn on_cpu(&self) -> f64 {
        self.workers.iter().map(|it| it.on_cpu).sum()
    }
}
