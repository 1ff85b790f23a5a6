//! What goes into the subscriber's core and what comes out of it.

use std::net::SocketAddr;
use std::time::Duration;

use embar_wire::batch::BatchHeader;

use super::super::position::Positions;
use crate::connection::Lane;
use crate::error::Error;

/// Where to start reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At the first message each broker retains.
    Earliest,
    /// At the next message that arrives.
    Latest,
    /// Where another subscriber stood; brokers it says nothing of are read from their first message.
    Positions(Positions),
}

/// What to do when the next messages were evicted before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEvicted {
    /// End with [`Error::Evicted`].
    Fail,
    /// Go on at the first message available, and count what was skipped.
    SkipToFirst,
}

/// Settings of a core.
#[derive(Debug, Clone)]
pub struct SubscriberConfig {
    /// Goes into the brokers' logs.
    pub name: String,
    /// Where to ask for the cluster first; at least one.
    pub bootstrap: Vec<SocketAddr>,
    /// The topic's name.
    pub topic: String,
    /// Where to start.
    pub start: Start,
    /// End when everything is delivered that was there at the start.
    pub until_end: bool,
    /// What to do after an eviction.
    pub on_evicted: OnEvicted,
    /// A broker that is away for longer ends the subscription.
    pub loss_timeout: Duration,
    /// Opening fails after this time.
    pub open_timeout: Duration,
    /// Batches of one broker in memory, at least 2.
    pub buffers_per_broker: usize,
    /// Seed of the backoff jitter.
    pub seed: u64,
}

/// A batch for the consumer. Its buffer goes back by [`SubscriberCore::returned`](super::SubscriberCore::returned).
#[derive(Debug)]
pub struct Delivered {
    /// The lane it came on.
    pub lane: Lane,
    /// The broker.
    pub broker: u32,
    /// Checked.
    pub header: BatchHeader,
    /// Checked too; only the first [`BatchHeader::payload_len`] bytes belong to the batch.
    pub payload: Vec<u8>,
    /// Messages at the front that were not asked for.
    pub skip: u32,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Every broker that is ready was tried and at least one serves this subscriber. Comes once.
    Opened,
    /// A broker's messages will be delivered from this offset on.
    Started {
        /// The broker.
        broker: u32,
        /// The first offset.
        start: u64,
    },
    /// A batch came.
    Deliver(Delivered),
    /// Messages were evicted before they were read.
    Skipped {
        /// The broker.
        broker: u32,
        /// The next offset.
        to: u64,
        /// Offsets skipped.
        messages: u64,
    },
    /// A broker is away.
    LaneLost {
        /// The broker.
        broker: u32,
        /// Why.
        cause: String,
    },
    /// Everything that was there at the start is delivered. Comes once, and nothing after it.
    End,
    /// Nothing will be delivered any more. Comes once, and nothing after it.
    Failed(Error),
}
