//! The types that go into the publisher's core (its settings, and sealed batches) and that come out of it (events, such
//! as what became of a batch).

use std::sync::Arc;
use std::time::Duration;

use embar_frame::Now;
use embar_memory::Buffer;
use embar_transport::Address;
use embar_wire::acks::Acks;
use embar_wire::control::Secret;

use super::receipt::Outcome;
use crate::connection::ChannelId;
use crate::error::ClientError;
use crate::transport::Ways;

/// What to do with batches that a lost connection may have delivered. It is asked on topics of order 0 and 1 only: with
/// one order over all brokers such batches are sent again, and stored once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnBrokerLoss {
    /// Send them to another broker, flagged as possible duplicates: at least once.
    Resend,
    /// Report them as in doubt: the caller decides.
    InDoubt,
}

/// Settings of a core.
#[derive(Debug, Clone)]
pub struct PublisherConfig {
    /// Goes into the brokers' logs.
    pub name: String,
    /// Where to ask for the cluster first; at least one.
    pub bootstrap: Vec<Address>,
    /// By which ways it may connect to brokers.
    pub ways: Ways,
    /// The topic's name.
    pub topic: String,
    /// Identity of this publishing session.
    pub producer: u64,
    /// What proves that the identity is this publisher's, on topics of order 2 and 5.
    pub secret: Secret,
    /// When a batch counts as published.
    pub acks: Acks,
    /// Size of the largest batch there will be, if all brokers take that when the publisher opens.
    pub batch_bytes: u32,
    /// Connections for each data broker.
    pub channels_per_broker: u32,
    /// Batches that one connection carries unacknowledged, at most.
    pub batches_in_flight: usize,
    /// What to do with batches that may have been delivered, on topics of order 0 and 1.
    pub on_broker_loss: OnBrokerLoss,
    /// Create the topic if it does not exist when the publisher opens.
    pub auto_create: bool,
    /// A batch that no broker took within this time fails. On topics of order 2 and 5 only while no connection had it:
    /// its number would be missing, and hold up all behind it.
    pub delivery_timeout: Duration,
    /// A connection with batches in flight that makes no progress for this long counts as dead.
    pub ack_timeout: Duration,
    /// A connection on which nothing is heard for this long, not even the answer to a heartbeat, counts as dead. Zero:
    /// there is no limit, and there are no heartbeats.
    pub idle_timeout: Duration,
    /// Opening fails after this time, unless a broker took the publisher: the others may join later.
    pub open_timeout: Duration,
    /// Seed of the backoff jitter, and of what tells this publisher from others with the same producer.
    pub seed: u64,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// At least one broker took the publisher, and every one that is ready was tried or had its time. Comes once.
    Opened {
        /// For batch headers.
        topic_id: u32,
        /// Largest batch frame that all brokers take.
        max_batch_bytes: u32,
        /// Largest message (headers, key and value) that the topic takes.
        max_message_bytes: u32,
    },
    /// The outcome of a batch.
    Resolved {
        /// Its number.
        batch: u64,
        /// Its messages.
        messages: u32,
        /// What became of it.
        outcome: Outcome,
        /// Time from hand-over to acknowledgement, if it was acknowledged.
        waited_ns: Option<u64>,
    },
    /// A batch's buffer is free.
    Released {
        /// The only reference to it.
        buffer: Arc<Buffer>,
    },
    /// A batch will be sent again.
    Resent,
    /// A channel is open again after a loss.
    Reconnected(ChannelId),
    /// A channel was lost.
    ChannelLost {
        /// Which.
        channel: ChannelId,
        /// Its broker.
        broker: u32,
        /// Why.
        cause: String,
    },
    /// Nothing can be published any more. Comes once.
    Failed(ClientError),
}

/// A batch to publish. Its bytes are a whole batch frame, and nobody else refers to them.
#[derive(Debug)]
pub struct SealedBatch {
    /// Number within the publisher.
    pub number: u64,
    /// Messages in it.
    pub messages: u32,
    /// The frame.
    pub bytes: Arc<Buffer>,
}

impl PublisherConfig {
    /// What a topic must have at least for the acknowledgements that are asked for.
    pub(super) fn least_replication_factor(&self) -> u8 {
        match self.acks {
            Acks::Durable => 2,
            _ => 1,
        }
    }

    /// When a batch that was sealed then is given up, unless a broker took it.
    pub(super) fn expires(&self, sealed_at: Now) -> Now {
        sealed_at.after(self.delivery_timeout)
    }
}
