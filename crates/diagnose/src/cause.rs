//! The causes that a diagnosis knows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a pipeline is no faster than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The application publishes less than it could: it sleeps, computes, or waits for something of its own.
    ApplicationTooSlow,
    /// The benchmark itself, not what it measures, takes the time.
    BenchmarkItself,
    /// The threads that publish spend their time copying messages into batches.
    CopyBoundSender,
    /// The client's threads are busy all the time, while processors are idle.
    TooFewClientThreads,
    /// A broker's network threads are busy all the time, while processors are idle.
    ReceiverCpuBound,
    /// More threads want to run than there are processors.
    MoreThreadsThanCores,
    /// Sender and receiver wait for each other, because too little fits between them.
    ReceiveWindowTooSmall,
    /// The send buffer holds too little to fill the receiver's window.
    SendBufferTooSmall,
    /// The kernel's maxima keep buffers small.
    KernelBufferMaxima,
    /// System calls that receive little take the time.
    SmallReads,
    /// System calls that send little take the time.
    SmallWrites,
    /// What each batch costs, however large, takes the time.
    BatchesTooSmall,
    /// Batches wait to be filled, and the application waits for them.
    LingerTooLong,
    /// Subscribers take less than brokers could send.
    SlowSubscriber,
    /// The thread that orders is busy all the time.
    SequencerBound,
    /// One broker has more to do than the others, or does less.
    HotBroker,
    /// One of a broker's network threads limits the others: connections are not spread evenly.
    HotLane,
    /// Memory is touched for the first time.
    ColdMemory,
    /// Other processes, or the host, take the processors.
    ProcessorsTakenByOthers,
    /// A cgroup's quota stops the threads.
    ProcessorQuota,
    /// The way between the machines is long.
    NetworkDelay,
    /// The network loses packets.
    NetworkLoss,
    /// The network carries no more.
    NetworkRateLimit,
    /// The publisher may not have enough on its way.
    TooFewInFlight,
    /// A disk is waited for.
    DiskBound,
    /// The log has no room, so publishers are held back.
    LogFull,
    /// One Redis node answers later than the others, for a reason that is not in its commands.
    SlowNode,
    /// One key takes most commands of a Redis node.
    HotKey,
    /// One Redis node gets more commands than its slots' part.
    HotSlot,
    /// A few large messages, or replies of Redis, hold up the others of their connection.
    BigValue,
    /// Commands that take long block a Redis server's event loop.
    BlockedServer,
    /// The Redis client may not have enough commands in flight.
    FullPipe,
    /// Encryption of Redis connections takes the time.
    TlsCost,
    /// The threads that take Redis replies are busy with the application's own work.
    CallerRuntimeBusy,
    /// A Redis server's thread is busy all the time.
    ServerCpuBound,
    /// There are too few Redis commands on their way for the time that each takes.
    TooFewCallers,
    /// The application's code that takes messages of sessions keeps the threads that serve them.
    SlowHandler,
    /// The ring in which a session's messages wait to be sent holds too few.
    SendRingTooSmall,
    /// Encoding messages takes the time of the threads that send them.
    EncodingBound,
    /// Decoding messages takes the time of the threads that serve sessions.
    DecodingBound,
    /// All processors work for the pipeline: this is what the machine allows.
    MachineWall,
    /// Nothing was found that limits.
    NothingFound,
}

impl Cause {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 42] = [
        Self::ApplicationTooSlow,
        Self::BenchmarkItself,
        Self::CopyBoundSender,
        Self::TooFewClientThreads,
        Self::ReceiverCpuBound,
        Self::MoreThreadsThanCores,
        Self::ReceiveWindowTooSmall,
        Self::SendBufferTooSmall,
        Self::KernelBufferMaxima,
        Self::SmallReads,
        Self::SmallWrites,
        Self::BatchesTooSmall,
        Self::LingerTooLong,
        Self::SlowSubscriber,
        Self::SequencerBound,
        Self::HotBroker,
        Self::HotLane,
        Self::ColdMemory,
        Self::ProcessorsTakenByOthers,
        Self::ProcessorQuota,
        Self::NetworkDelay,
        Self::NetworkLoss,
        Self::NetworkRateLimit,
        Self::TooFewInFlight,
        Self::DiskBound,
        Self::LogFull,
        Self::SlowNode,
        Self::HotKey,
        Self::HotSlot,
        Self::BigValue,
        Self::BlockedServer,
        Self::FullPipe,
        Self::TlsCost,
        Self::CallerRuntimeBusy,
        Self::ServerCpuBound,
        Self::TooFewCallers,
        Self::SlowHandler,
        Self::SendRingTooSmall,
        Self::EncodingBound,
        Self::DecodingBound,
        Self::MachineWall,
        Self::NothingFound,
    ];

    /// Its name in JSON and on the command line: `receive-window-too-small`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApplicationTooSlow => "application-too-slow",
            Self::BenchmarkItself => "benchmark-itself",
            Self::CopyBoundSender => "copy-bound-sender",
            Self::TooFewClientThreads => "too-few-client-threads",
            Self::ReceiverCpuBound => "receiver-cpu-bound",
            Self::MoreThreadsThanCores => "more-threads-than-cores",
            Self::ReceiveWindowTooSmall => "receive-window-too-small",
            Self::SendBufferTooSmall => "send-buffer-too-small",
            Self::KernelBufferMaxima => "kernel-buffer-maxima",
            Self::SmallReads => "small-reads",
            Self::SmallWrites => "small-writes",
            Self::BatchesTooSmall => "batches-too-small",
            Self::LingerTooLong => "linger-too-long",
            Self::SlowSubscriber => "slow-subscriber",
            Self::SequencerBound => "sequencer-bound",
            Self::HotBroker => "hot-broker",
            Self::HotLane => "hot-lane",
            Self::ColdMemory => "cold-memory",
            Self::ProcessorsTakenByOthers => "processors-taken-by-others",
            Self::ProcessorQuota => "processor-quota",
            Self::NetworkDelay => "network-delay",
            Self::NetworkLoss => "network-loss",
            Self::NetworkRateLimit => "network-rate-limit",
            Self::TooFewInFlight => "too-few-in-flight",
            Self::DiskBound => "disk-bound",
            Self::LogFull => "log-full",
            Self::SlowNode => "slow-node",
            Self::HotKey => "hot-key",
            Self::HotSlot => "hot-slot",
            Self::BigValue => "big-value",
            Self::BlockedServer => "blocked-server",
            Self::FullPipe => "full-pipe",
            Self::TlsCost => "tls-cost",
            Self::CallerRuntimeBusy => "caller-runtime-busy",
            Self::ServerCpuBound => "server-cpu-bound",
            Self::TooFewCallers => "too-few-callers",
            Self::SlowHandler => "slow-handler",
            Self::SendRingTooSmall => "send-ring-too-small",
            Self::EncodingBound => "encoding-bound",
            Self::DecodingBound => "decoding-bound",
            Self::MachineWall => "machine-wall",
            Self::NothingFound => "nothing-found",
        }
    }

    /// Whether something is wrong; the machine's wall, and nothing at all, are findings too.
    pub fn is_fault(self) -> bool {
        !matches!(self, Self::MachineWall | Self::NothingFound)
    }

    /// Whether it holds up what some of the batches carry, so that it is worth a word even where the rate would gain nothing.
    pub fn delays(self) -> bool {
        matches!(self, Self::HotBroker)
    }

    /// What it says, in a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::ApplicationTooSlow => "The application hands over less than the log would take.",
            Self::BenchmarkItself => "The benchmark's own work limits what it measures.",
            Self::CopyBoundSender => "Copying messages out of the application limits.",
            Self::TooFewClientThreads => {
                "The client's threads are busy all the time, and processors are idle."
            }
            Self::ReceiverCpuBound => {
                "The threads that receive are busy all the time, and processors are idle."
            }
            Self::MoreThreadsThanCores => {
                "More threads want to run than there are processors, and they take turns."
            }
            Self::ReceiveWindowTooSmall => {
                "Too little fits into the receive buffers: sender and receiver wait for each other."
            }
            Self::SendBufferTooSmall => {
                "Too little fits into the send buffers: the connections run dry."
            }
            Self::KernelBufferMaxima => "The kernel's maxima keep the buffers small.",
            Self::SmallReads => "System calls that receive little take the time.",
            Self::SmallWrites => "System calls that send little take the time.",
            Self::BatchesTooSmall => "What a batch costs, however large it is, takes the time.",
            Self::LingerTooLong => "Batches wait to be filled, and the application waits for them.",
            Self::SlowSubscriber => "Subscribers take less than the brokers could send.",
            Self::SequencerBound => "The thread that orders is busy all the time.",
            Self::HotBroker => "One broker is behind the others.",
            Self::HotLane => "One of a broker's threads limits, while its others wait.",
            Self::ColdMemory => "Memory is touched for the first time, page by page.",
            Self::ProcessorsTakenByOthers => "Others take the processors.",
            Self::ProcessorQuota => "A processor quota stops the threads.",
            Self::NetworkDelay => "The way is long for what may be on it at a time.",
            Self::NetworkLoss => "The network loses packets, which are sent again.",
            Self::NetworkRateLimit => "The network carries no more.",
            Self::TooFewInFlight => "The publisher may not have enough batches on their way.",
            Self::DiskBound => "A disk is waited for.",
            Self::LogFull => "The log has no room, so brokers hold publishers back.",
            Self::SlowNode => "One node answers later than the others.",
            Self::HotKey => "One key takes most of the commands, and with it one node.",
            Self::HotSlot => "One node gets more than its part of the commands.",
            Self::BigValue => "A few that are large hold up all others of their connection.",
            Self::BlockedServer => "Commands that take long keep a server from answering others.",
            Self::FullPipe => "Callers wait for a place among the commands that may be in flight.",
            Self::TlsCost => "Encryption takes the time of what works all the time.",
            Self::CallerRuntimeBusy => {
                "The application's own work keeps its threads from taking replies."
            }
            Self::ServerCpuBound => "A server's thread works all the time.",
            Self::TooFewCallers => {
                "Nobody works all the time: callers wait for the way there and back."
            }
            Self::SlowHandler => "Handlers take the time of the threads that serve sessions.",
            Self::SendRingTooSmall => {
                "Too few messages fit into the ring from which they are sent."
            }
            Self::EncodingBound => "Encoding takes the time of the threads that send.",
            Self::DecodingBound => "Decoding takes the time of the threads that serve sessions.",
            Self::MachineWall => {
                "All processors work for this pipeline: this is what the machine allows."
            }
            Self::NothingFound => "Nothing was found that limits.",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json_and_all_are_listed_once() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            let json = serde_json::to_string(&cause).expect("a name");
            assert_eq!(json, format!("\"{cause}\""));
            assert_eq!(cause as usize, index, "{cause}");
            assert!(cause.sentence().ends_with('.'), "{cause}");
        }
    }
}
