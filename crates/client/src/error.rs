//! What can go wrong, and what to do about it.

use std::any::Any;
use std::time::Duration;

use embar_wire::control::ErrorCode;
use embar_wire::message::PushError;

/// Every error of this crate. Cheap to clone, so that all who wait for the same thing can be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No broker answered at any known address.
    #[error(
        "no broker answers at {addresses} ({cause}): start one with `embar up`, or pass --bootstrap"
    )]
    Unreachable {
        /// The addresses that were tried.
        addresses: String,
        /// What the last attempt said.
        cause: String,
    },
    /// A bootstrap address is not one.
    #[error("{address:?} is not an address ({cause}): give HOST:PORT, for instance 127.0.0.1:9400")]
    BadAddress {
        /// As given.
        address: String,
        /// What the resolver said.
        cause: String,
    },
    /// The cluster answers, but no broker in it takes data.
    #[error(
        "no broker of the cluster takes data yet: start data brokers, or wait until they are ready"
    )]
    NoDataBrokers,
    /// The topic does not exist, or was deleted.
    #[error(
        "topic {topic:?} does not exist: create it with `embar topic create {topic}`, or publish to it first"
    )]
    UnknownTopic {
        /// Its name.
        topic: String,
    },
    /// The topic was deleted and made again while this client was using it.
    #[error("topic {topic:?} was deleted and created again: open it anew to use the new one")]
    TopicReplaced {
        /// Its name.
        topic: String,
    },
    /// A broker refused a request.
    #[error("refused ({code:?}): {message}")]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, and what to do, in the broker's words.
        message: String,
    },
    /// A peer sent what the protocol does not allow, so its connection was given up.
    #[error("{peer} broke the protocol: {what}; check that both sides run the same version")]
    Protocol {
        /// The peer.
        peer: String,
        /// What it did.
        what: String,
    },
    /// A setting cannot be used.
    #[error("{setting} = {value}: {rule}")]
    BadSetting {
        /// The builder's method.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        rule: String,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {limit:?}{hint}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The limit that passed.
        limit: Duration,
        /// Why it may have taken so long; starts with punctuation, may be empty.
        hint: String,
    },
    /// The connection broke after these messages may have been stored, and the publisher was told not to resend.
    #[error(
        "the connection broke before the acknowledgement came: the messages may be stored or not; read the topic to find out"
    )]
    InDoubt,
    /// On a topic of order 2 or 5: the broker that took the message was lost, and when it was sent again it was known
    /// already, but not where.
    #[error(
        "the message is stored exactly once, but its position is not known any more: read the topic to find it"
    )]
    PositionUnknown,
    /// Another publisher, which knows the secret, has this one's identity.
    #[error(
        "another publisher opened topic {topic:?} as producer {producer}: what was not acknowledged may be stored or not; give each publisher a producer_id of its own"
    )]
    SessionTaken {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// This publisher had no connection for a while, and the cluster gave its place to another: nobody knows any more
    /// how far it was, so nothing that is not acknowledged can be sent again without being stored twice.
    #[error(
        "producer {producer} of topic {topic:?} had no connection, and gave up its place to another: how far it was is not known any more, and what was not acknowledged may be stored or not; read the topic to find out, and open a new publisher"
    )]
    SessionGivenUp {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// The identity is in use, and was opened with another secret.
    #[error(
        "producer {producer} of topic {topic:?} was opened with another secret: pass the producer_secret of the publisher before this one, or another producer_id"
    )]
    WrongSecret {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// The cluster knows nothing of this publisher: it is not the one that it was, or is damaged.
    #[error(
        "the cluster does not know producer {producer} of topic {topic:?}: what was not acknowledged may be stored or not; open a new publisher"
    )]
    SessionLost {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// No buffer is free and the call may not wait.
    #[error("all batch buffers are in use: wait, or publish with a call that waits")]
    Full,
    /// The message does not fit into a batch of this size, or a part of it is longer than the format allows.
    #[error(transparent)]
    BadMessage(#[from] PushError),
    /// The topic takes no message of that size.
    #[error(
        "a message of {bytes} bytes exceeds the topic's limit of {limit}: create the topic with a larger one (`embar topic create --max-message-size`), or split the message"
    )]
    MessageTooLarge {
        /// Bytes of headers, key and value.
        bytes: usize,
        /// The topic's limit.
        limit: usize,
    },
    /// The publisher or subscriber is closed.
    #[error("closed: open a new one")]
    Closed,
    /// Acknowledgements were asked for, but none were ordered.
    #[error(
        "opened with Acks::None, so nothing is acknowledged: open with Acks::Readable to wait for acknowledgements"
    )]
    NotAcknowledged,
    /// The ticket belongs to a batch that is forgotten by now, or to another publisher.
    #[error(
        "the outcome of this ticket is not kept any longer (the last {kept} batches are): ask sooner, or use on_ack"
    )]
    ForgottenTicket {
        /// Outcomes kept.
        kept: usize,
    },
    /// Since the last flush, messages were published that were not, or may not have been, stored.
    #[error("{messages} messages were not delivered for certain; the first: {first}")]
    Lost {
        /// How many.
        messages: u64,
        /// What happened to the first of them.
        first: Box<Error>,
    },
    /// A broker sent other offsets than the ones that come next.
    #[error(
        "broker {broker} sent offset {found} where {expected} comes next: messages are missing or repeated; report this"
    )]
    BrokenOrder {
        /// The broker.
        broker: u32,
        /// The offset that comes next.
        expected: u64,
        /// The offset that came.
        found: u64,
    },
    /// A batch is damaged, and stays damaged when it is asked for again.
    #[error(
        "broker {broker}: the batch with offset {offset} is damaged ({cause}): skip it by starting behind it, and check the broker's memory"
    )]
    Corrupt {
        /// The broker.
        broker: u32,
        /// The first offset that cannot be read.
        offset: u64,
        /// What is wrong.
        cause: String,
    },
    /// No broker served a topic of order 2 or 5 for longer than the subscriber may wait.
    #[error(
        "no data broker has served the topic for {limit:?} ({cause}): start data brokers, or raise loss_timeout"
    )]
    AllBrokersLost {
        /// The limit that passed.
        limit: Duration,
        /// What the last attempt said.
        cause: String,
    },
    /// The next messages were evicted before they were read.
    #[error(
        "broker {broker}: offset {position} was evicted, {first_available} is the first available: start there, or open with on_evicted(SkipToFirst)"
    )]
    Evicted {
        /// The broker.
        broker: u32,
        /// The next offset to be read.
        position: u64,
        /// Where reading can go on.
        first_available: u64,
    },
    /// A broker stayed away for longer than the subscriber may wait.
    #[error(
        "broker {broker} has not answered for {limit:?} ({cause}): restart it, or raise loss_timeout"
    )]
    BrokerLost {
        /// The broker.
        broker: u32,
        /// The limit that passed.
        limit: Duration,
        /// What the last attempt said.
        cause: String,
    },
    /// A thread of this client panicked, which is a bug; what was not acknowledged by then may be stored or not.
    #[error("a thread of the {what} panicked ({cause}): open a new {what}, and report this")]
    Panicked {
        /// Whose thread.
        what: &'static str,
        /// What it said.
        cause: String,
    },
    /// This process could not get what it needs from the system.
    #[error("{what}: {cause}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system said.
        cause: String,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str, cause: &std::io::Error) -> Self {
        Self::System {
            what,
            cause: cause.to_string(),
        }
    }

    /// From what [`catch_unwind`](std::panic::catch_unwind) caught.
    pub(crate) fn panicked(what: &'static str, payload: &(dyn Any + Send)) -> Self {
        Self::Panicked {
            what,
            cause: panic_text(payload).to_string(),
        }
    }

    pub(crate) fn setting(
        setting: &'static str,
        value: impl ToString,
        rule: impl Into<String>,
    ) -> Self {
        Self::BadSetting {
            setting,
            value: value.to_string(),
            rule: rule.into(),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    match (
        payload.downcast_ref::<&'static str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "it did not say why",
    }
}
