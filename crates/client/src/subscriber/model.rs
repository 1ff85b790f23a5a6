//! The types that go into the subscriber's core (its settings, such as where to start) and that come out of it
//! (delivered batches, and other events).

use std::time::Duration;

use embar_transport::Address;
use embar_wire::batch::BatchHeader;
use embar_wire::control::StartAt;
use embar_wire::isolation::Isolation;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::payload::Payload;
use super::position::Positions;
use crate::connection::ChannelId;
use crate::error::ReadError;
use crate::transport::Ways;

/// Where to start reading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first message each broker retains, or that is retained in the one order of all.
    Earliest,
    /// At the next message that arrives. On a broker that was gone when the subscription began, or did not answer: at the
    /// next one after it does.
    Latest,
    /// Where another subscriber stood; brokers it says nothing of are read from their first message. With one order over
    /// all brokers it is one number: [`Positions::at`].
    Positions(Positions),
}

/// What to do when the next messages were evicted before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnEvicted {
    /// End with [`ReadError::Evicted`].
    Fail,
    /// Go on at the first message available, and count what was skipped.
    SkipToFirst,
}

/// Which batches a subscriber compares with their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Checksums {
    /// All of them.
    #[default]
    All,
    /// Those that were copied on their way: by a socket, or through a ring. Of what it reads where it lies in a broker's memory
    /// on this machine it believes the check that the broker made while it stored it. A subscriber that reads each byte once reads it
    /// from memory once then, instead of twice; what the memory changed since goes unnoticed.
    Copied,
}

/// Settings of a core.
#[derive(Debug, Clone)]
pub struct SubscriberConfig {
    /// Goes into the brokers' logs.
    pub name: String,
    /// Where to ask for the cluster first; at least one.
    pub bootstrap: Vec<Address>,
    /// By which ways it may connect to brokers.
    pub ways: Ways,
    /// The topic's name.
    pub topic: String,
    /// Where to start.
    pub start: Start,
    /// End when everything is delivered that was there at the start.
    pub until_end: bool,
    /// What to do after an eviction.
    pub on_evicted: OnEvicted,
    /// A broker that is away for longer ends the subscription; so does one that did not answer from the start, and one that
    /// was gone then, if `until_end` is set or `start` names it. On topics of order 2 and 5 only the absence of all of them does.
    pub loss_timeout: Duration,
    /// A connection on which nothing is heard for this long while the subscriber reads, not even the answer to a
    /// heartbeat, counts as dead. Zero: there is no limit, and there are no heartbeats.
    pub idle_timeout: Duration,
    /// Opening fails after this time, unless a broker serves by then: the others may join later.
    pub open_timeout: Duration,
    /// Orders 2 and 5: when batches have at least so many bytes, several brokers send them, each what it stores. `None`: one
    /// broker sends all.
    pub shared_batch_bytes: Option<u32>,
    /// Up to where it reads a topic that is on disks.
    pub isolation: Isolation,
    /// Which batches it compares with their checksums.
    pub checksums: Checksums,
    /// Buffers of one broker, at least 2: each has a batch, or several small ones.
    pub buffers_per_broker: usize,
    /// Seed of the backoff jitter, and of the choice of a broker where one serves all messages.
    pub seed: u64,
}

impl SubscriberConfig {
    /// Whether the subscription is incomplete without a broker that was there before it.
    pub(super) fn needs(&self, broker: u32) -> bool {
        let named = match &self.start {
            Start::Positions(positions) => positions.next(broker).is_some(),
            Start::Earliest | Start::Latest => false,
        };
        self.until_end || named
    }

    /// Where to start on whichever broker, in the one order of all of them.
    pub(super) fn start_in_order(&self) -> StartAt {
        match &self.start {
            Start::Earliest => StartAt::Earliest,
            Start::Latest => StartAt::Latest,
            Start::Positions(positions) => positions
                .position()
                .map_or(StartAt::Earliest, StartAt::Offset),
        }
    }

    /// Where to start on a broker; `was_there` when the subscription began.
    pub(super) fn start_of(&self, broker: u32, was_there: bool) -> StartAt {
        match &self.start {
            Start::Latest if was_there => StartAt::Latest,
            Start::Positions(positions) => positions
                .next(broker)
                .map_or(StartAt::Earliest, StartAt::Offset),
            // All of what a broker has that joined later came after the subscription.
            Start::Earliest | Start::Latest => StartAt::Earliest,
        }
    }
}

/// A batch for the consumer, or several that came together. The buffer goes back by
/// [`SubscriberCore::returned`](super::core::SubscriberCore::returned).
#[derive(Debug)]
pub struct Delivered {
    /// The channel it came on.
    pub channel: ChannelId,
    /// The broker it came from.
    pub broker: u32,
    /// Its offsets are places in the one order of all brokers.
    pub ordered: bool,
    /// Of the first batch. Checked.
    pub header: BatchHeader,
    /// The payload of the first batch, and then each of the others with its header in front; all checked.
    pub payload: Payload,
    /// Bytes of `payload` that belong to batches.
    pub len: usize,
    /// Messages at the front of the first batch that were not asked for.
    pub skip: u32,
    /// Offset after the last message.
    pub next: u64,
}

impl Delivered {
    /// The broker that counts its offsets; `None` where there is one order over all of them.
    pub fn owner(&self) -> Option<u32> {
        (!self.ordered).then_some(self.broker)
    }

    /// The batches, each with its payload.
    pub fn batches(&self) -> impl Iterator<Item = (BatchHeader, &[u8])> {
        let mut header = Some(self.header);
        let mut rest = &self.payload[..self.len];
        std::iter::from_fn(move || {
            let this = header.take()?;
            let (payload, behind) = rest.split_at(this.payload_len() as usize);
            if !behind.is_empty() {
                header = Some(header_at(behind));
                rest = &behind[BATCH_HEADER_BYTES..];
            }
            Some((this, payload))
        })
    }

    /// Whether another batch with a payload of this length has room behind those that are there.
    pub(super) fn has_room(&self, payload_len: usize) -> bool {
        !self.payload.is_lent() && self.payload.len() - self.len >= BATCH_HEADER_BYTES + payload_len
    }

    /// Copies another batch behind those that are there, to which it belongs once it is [pushed](Self::push). Returns its
    /// payload.
    ///
    /// # Panics
    /// Unless it [has room](Self::has_room).
    pub(super) fn stage(&mut self, header: &BatchHeader, payload: &[u8]) -> &[u8] {
        let own = self
            .payload
            .own()
            .expect("nothing is put behind what is lent");
        let behind = &mut own[self.len..];
        let (head, behind) = behind.split_at_mut(BATCH_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        let place = &mut behind[..payload.len()];
        place.copy_from_slice(payload);
        place
    }

    /// The batch that was staged is good.
    pub(super) fn push(&mut self, header: &BatchHeader) {
        self.len += BATCH_HEADER_BYTES + header.payload_len() as usize;
        self.next = header.base_offset() + u64::from(header.message_count());
    }
}

/// The header of a batch that was checked, in front of its payload.
pub(super) fn header_at(bytes: &[u8]) -> BatchHeader {
    let header = &bytes[..BATCH_HEADER_BYTES];
    BatchHeader::parse(header, MAX_BATCH_BYTES).expect("it was parsed when it came")
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// At least one broker serves this subscriber, and every one that is ready was tried or had its time; where one serves
    /// all messages, it does. Comes once.
    Opened,
    /// A broker's messages will be delivered from this offset on.
    Started {
        /// The broker; `None` where there is one order over all of them.
        broker: Option<u32>,
        /// The first offset.
        start: u64,
    },
    /// A batch came.
    Deliver(Delivered),
    /// Messages were evicted before they were read.
    Skipped {
        /// The broker; `None` where there is one order over all of them.
        broker: Option<u32>,
        /// The next offset.
        to: u64,
        /// Offsets skipped.
        messages: u64,
    },
    /// A broker is away, or was so when the subscription began and its messages are missing.
    ChannelLost {
        /// The broker.
        broker: u32,
        /// Why.
        cause: String,
    },
    /// A broker was removed from the cluster. What it has and was not read is missing, unless one comes in its place.
    BrokerLeft {
        /// The broker.
        broker: u32,
    },
    /// Everything that was there at the start is delivered. Comes once, and nothing after it.
    End,
    /// Nothing will be delivered any more. Comes once, and nothing after it.
    Failed(ReadError),
}
