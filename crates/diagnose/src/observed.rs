//! What a diagnosis looks at: what happened in a span of time, as plain numbers.
//!
//! Whoever measures fills this in. All of it can be written down and read again, so a diagnosis can be repeated on another
//! machine, and each rule can be tested without one. A number that could not be read is `None` or absent, and
//! [`Observed::missing`] says why; no rule takes it for zero.

use embar_meter::Snapshot;
use serde::{Deserialize, Serialize};

/// Which way the bytes went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flow {
    /// From publishers to brokers.
    #[default]
    Publish,
    /// From brokers to subscribers.
    Read,
    /// Both at once.
    Both,
}

impl Flow {
    /// Whether anybody publishes.
    pub fn publishes(self) -> bool {
        self != Self::Read
    }

    /// Whether anybody reads.
    pub fn reads(self) -> bool {
        self != Self::Publish
    }
}

/// All that was measured in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How long the span was, seconds.
    pub seconds: f64,
    /// Which way the bytes went.
    pub flow: Flow,
    /// Bytes of message values that moved.
    pub bytes: u64,
    /// Messages that moved.
    pub messages: u64,
    /// The machine.
    pub machine: Machine,
    /// What published; `None` where nobody did, or nobody could be asked.
    pub publisher: Option<Publisher>,
    /// The brokers that take data, and the one that sequences.
    pub brokers: Vec<Broker>,
    /// What read; `None` where nobody did, or nobody could be asked.
    pub subscriber: Option<Subscriber>,
    /// Connections that carried batches.
    pub connections: Vec<Connection>,
    /// Bytes that went this way, step by step: of message values of a load of our own, else of batches, as brokers count them.
    #[serde(default)]
    pub over_time: Vec<Step>,
    /// What could not be read.
    pub missing: Vec<Missing>,
}

impl Observed {
    /// Connections with subscribers, or those with publishers.
    pub(crate) fn connections_with(
        &self,
        subscribers: bool,
    ) -> impl Iterator<Item = &Connection> + Clone {
        let all = self.connections.iter();
        all.filter(move |it| it.to_subscriber == subscribers)
    }

    /// Bytes of message values a second.
    pub fn bytes_per_s(&self) -> f64 {
        per(self.bytes as f64, self.seconds)
    }
}

/// `part / whole`, and 0 of nothing.
pub(crate) fn per(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A part of a span: how long it was, and how much was carried in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// How long it was, seconds. It begins where the one before it ends.
    pub seconds: f64,
    /// Bytes or operations a second.
    pub per_s: f64,
}

/// What a reading that is missing would have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The reading.
    pub what: String,
    /// Why it could not be had.
    pub why: String,
}

/// The machine. Shares are of all its processors, 0 to 1, unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that may be used.
    pub cores: u32,
    /// Busy, with anything.
    pub busy: f64,
    /// Busy with the processes of this pipeline.
    pub ours: f64,
    /// Busy with other processes, of those that can be seen.
    pub others: f64,
    /// Busy with what no process explains that can be seen: a container, or `/proc` with `hidepid`, hides those of others. 0 where little
    /// is left, because interrupts and processes that ended explain some on any machine.
    #[serde(default)]
    pub unseen: f64,
    /// Taken by the host of a virtual machine.
    pub steal: f64,
    /// In the kernel's softirqs: receiving from the network, mostly.
    pub softirq: f64,
    /// Idle, while a disk was waited for.
    pub iowait: f64,
    /// Part of the span in which some thread of the machine stood still for want of a processor, 0 to 1.
    #[serde(default)]
    pub cpu_pressure: Option<f64>,
    /// The same for want of memory.
    #[serde(default)]
    pub memory_pressure: Option<f64>,
    /// The same for want of a disk.
    #[serde(default)]
    pub io_pressure: Option<f64>,
    /// Its disks, if any did something.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Part of all processors' time in which a quota of a control group kept our threads from running, 0 to 1.
    pub throttled: Option<f64>,
    /// What a page fault of first touch costs here, seconds; `None` where there were few, too.
    pub fault_s: Option<f64>,
    /// What a small system call costs here, seconds.
    pub syscall_s: Option<f64>,
    /// What a byte costs that a socket receives into memory which was used before, seconds; `None` where few pages were touched for the
    /// first time, too.
    #[serde(default)]
    pub receive_byte_s: Option<f64>,
    /// The most that `SO_RCVBUF` may ask for (`net.core.rmem_max`), bytes.
    pub rmem_max: Option<u64>,
    /// The most that `SO_SNDBUF` may ask for (`net.core.wmem_max`), bytes.
    pub wmem_max: Option<u64>,
    /// The most that the kernel tunes a receive buffer to (the last of `net.ipv4.tcp_rmem`), bytes.
    pub tcp_rmem_max: Option<u64>,
    /// The same of send buffers.
    pub tcp_wmem_max: Option<u64>,
}

/// A disk. Means are 0 where there was nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Part of the span in which it had something to do, 0 to 1.
    pub busy: f64,
    /// Reads.
    pub reads: u64,
    /// How long one took: the mean, seconds.
    pub read_s: f64,
    /// Writes.
    pub writes: u64,
    /// How long one took: the mean, seconds.
    pub write_s: f64,
    /// Flushes of its cache.
    pub flushes: u64,
    /// How long one took: the mean, seconds.
    pub flush_s: f64,
}

/// A thread. Shares are of the span, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Its name.
    pub name: String,
    /// On a processor.
    pub on_cpu: f64,
    /// Of that, in the kernel.
    pub system: f64,
    /// Ready to run, but without a processor.
    pub waiting: f64,
    /// Times a second that it went to sleep.
    pub sleeps_per_s: f64,
    /// Times a second that the kernel put another thread in its place.
    pub preempted_per_s: f64,
    /// Pages touched for the first time.
    pub faults: u64,
}

impl Thread {
    /// Part of the span in which it had something to do.
    pub fn occupied(&self) -> f64 {
        (self.on_cpu + self.waiting).min(1.0)
    }
}

/// A publishing process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Publisher {
    /// Threads that publish.
    pub application: Vec<Thread>,
    /// Threads that serve its connections.
    pub senders: Vec<Thread>,
    /// Its stages and counters in the span; `None` for a process that could not be asked.
    pub profile: Option<Snapshot>,
    /// Bytes of a full batch.
    pub batch_bytes: Option<u64>,
    /// How long a batch may wait to fill, seconds.
    pub linger_s: Option<f64>,
    /// Connections for each broker.
    pub threads_per_broker: Option<u32>,
    /// Batches that all its connections together may have in flight.
    pub in_flight_max: Option<u64>,
    /// Whether the application waits for each message's acknowledgement before it publishes the next.
    pub waits_for_each: bool,
    /// Whether the application is a benchmark of ours.
    pub is_bench: bool,
}

/// A broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Broker {
    /// Its row.
    pub id: u32,
    /// Threads that receive and send.
    pub network: Vec<Thread>,
    /// The thread that orders, if it has one.
    pub sequencer: Option<Thread>,
    /// Its stages and counters in the span.
    pub profile: Option<Snapshot>,
    /// Bytes of its log.
    pub log_bytes: Option<u64>,
    /// Bytes of them that hold nothing.
    pub log_free_bytes: Option<u64>,
    /// Connections that it does not read from for want of room.
    pub paused_connections: Option<u64>,
    /// Batches of its lanes that waited for their place in an order, at the end of the span.
    #[serde(default)]
    pub lane_batches: Option<u64>,
    /// Of these, batches that waited for an earlier one of their publisher.
    #[serde(default)]
    pub held_batches: Option<u64>,
    /// Batches that all its lanes hold at most.
    #[serde(default)]
    pub lane_capacity: Option<u64>,
    /// What `--recv-buffer` asks for, bytes; `None` where the kernel tunes.
    pub recv_buffer: Option<u64>,
    /// What `--send-buffer` asks for, bytes; `None` where the kernel tunes.
    pub send_buffer: Option<u64>,
    /// Whether it takes data.
    pub takes_data: bool,
}

impl Broker {
    /// The counter of its profile. Sums are of floating point: whatever a file says, they do not overflow.
    pub(crate) fn counter(&self, name: &str) -> f64 {
        let profile = self.profile.as_ref();
        let counted = profile.and_then(|profile| profile.counter(name));
        counted.unwrap_or(0) as f64
    }

    /// The most occupied of its threads that receive and send.
    pub(crate) fn occupied(&self) -> f64 {
        self.network
            .iter()
            .map(Thread::occupied)
            .fold(0.0, f64::max)
    }
}

/// A reading process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subscriber {
    /// Threads that read messages.
    pub application: Vec<Thread>,
    /// Threads that receive.
    pub receivers: Vec<Thread>,
    /// Its stages and counters in the span; `None` for a process that could not be asked.
    pub profile: Option<Snapshot>,
    /// Whether the application is a benchmark of ours.
    pub is_bench: bool,
}

/// A TCP connection that carried batches. Either end may be on another machine, or of another user, and is `None` then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The broker's row.
    pub broker: u32,
    /// Whether it is a subscriber's; else a publisher's.
    pub to_subscriber: bool,
    /// The end that sends batches.
    pub sender: Option<SendingEnd>,
    /// The end that receives them.
    pub receiver: Option<ReceivingEnd>,
}

/// The kernel's word on the end that sends. Shares are of the span, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendingEnd {
    /// Something was to be sent (`tcpi_busy_time`).
    pub busy: f64,
    /// Of the span, the peer's window was full (`tcpi_rwnd_limited`).
    pub window_full: f64,
    /// Of the span, the send buffer was too small to fill the window (`tcpi_sndbuf_limited`).
    pub send_buffer_full: f64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes that were sent again.
    pub resent_bytes: u64,
    /// Round trip, seconds, as the kernel smooths it: the mean over the span.
    pub round_trip_s: f64,
    /// The shortest round trip, seconds.
    pub round_trip_min_s: f64,
    /// The peer's window at its largest, bytes.
    pub window_bytes: u64,
    /// The congestion window: the mean, bytes.
    pub congestion_window_bytes: u64,
    /// The send buffer as granted, bytes.
    pub buffer_bytes: u64,
    /// Bytes in the socket that were not sent yet: the mean.
    pub unsent_bytes: u64,
}

/// The kernel's word on the end that receives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceivingEnd {
    /// The receive buffer as granted, bytes.
    pub buffer_bytes: u64,
    /// Bytes that waited in the socket to be received: the mean.
    pub queued_bytes: u64,
}
