//! Messages about topics: create, describe, subscribe to.

use buffa::{EnumValue, MessageFieldView};

use super::error::ControlError;
use super::field::{Body, Field, Nested, message, required};
use crate::isolation::Isolation;
use crate::proto::{self, StartKind, SubscribeView, TopicCreatedView, TopicDescriptionView};
use crate::share::{BrokerSet, Share};
use crate::time::WallNs;
use crate::topic::Order;

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// At the first message retained.
    Earliest,
    /// At the next message that arrives.
    Latest,
    /// At this offset.
    Offset(u64),
}

/// Asks for a topic's batches. On a connection that brings batches of it already, and with [`StartAt::Latest`], it asks for
/// another share of them from where that connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Name of the topic.
    pub topic: String,
    /// Where to start.
    pub start: StartAt,
    /// The topic's id, for a client that has learned it; else 0. Then another topic of that name is
    /// [`ErrorCode::TopicReplaced`](super::ErrorCode).
    pub topic_id: u32,
    /// Which of them. Of topics without one order over all brokers it can only be all.
    pub share: Share,
    /// Up to where, of a topic that is on disks. A connection keeps the one with which it began.
    pub isolation: Isolation,
}

impl Body for Subscribe {
    type View<'a> = SubscribeView<'a>;

    fn to_view(&self) -> SubscribeView<'_> {
        let (kind, offset) = match self.start {
            StartAt::Earliest => (StartKind::START_KIND_EARLIEST, 0),
            StartAt::Latest => (StartKind::START_KIND_LATEST, 0),
            StartAt::Offset(offset) => (StartKind::START_KIND_OFFSET, offset),
        };
        let (large_bytes, without) = match self.share {
            Share::All => (0, BrokerSet::default()),
            Share::Own { large_bytes } => (large_bytes, BrokerSet::default()),
            Share::Without {
                brokers,
                large_bytes,
            } => (large_bytes, brokers),
        };
        SubscribeView {
            topic: &self.topic,
            start: EnumValue::from(kind),
            offset,
            topic_id: self.topic_id,
            large_bytes,
            without: without.iter().collect(),
            isolation: EnumValue::from(match self.isolation {
                Isolation::Durable => proto::Isolation::ISOLATION_DURABLE,
                Isolation::Latest => proto::Isolation::ISOLATION_LATEST,
            }),
        }
    }

    fn from_view(view: SubscribeView<'_>) -> Result<Self, ControlError> {
        let start = match view.start.as_known() {
            Some(StartKind::START_KIND_EARLIEST) => StartAt::Earliest,
            Some(StartKind::START_KIND_LATEST) => StartAt::Latest,
            Some(StartKind::START_KIND_OFFSET) => StartAt::Offset(view.offset),
            _ => return Err(ControlError::Field { field: "start" }),
        };
        let isolation = match view.isolation.as_known() {
            Some(proto::Isolation::ISOLATION_DURABLE) => Isolation::Durable,
            Some(proto::Isolation::ISOLATION_LATEST) => Isolation::Latest,
            None => return Err(ControlError::Field { field: "isolation" }),
        };
        let share = share(view.large_bytes, &view.without)?;
        let topic = view.topic.to_owned();
        let topic_id = view.topic_id;
        Ok(Self {
            topic,
            start,
            topic_id,
            share,
            isolation,
        })
    }
}

fn share(large_bytes: u32, without: &[u32]) -> Result<Share, ControlError> {
    let field = "without";
    let mut brokers = BrokerSet::default();
    if !without.iter().all(|broker| brokers.insert(*broker)) {
        return Err(ControlError::Field { field });
    }
    match (large_bytes, brokers.is_empty()) {
        (0, true) => Ok(Share::All),
        (0, false) => Err(ControlError::Field { field }),
        (large_bytes, true) => Ok(Share::Own { large_bytes }),
        (large_bytes, false) => Ok(Share::Without {
            brokers,
            large_bytes,
        }),
    }
}

message! {
    /// Answer to [`Subscribe`]: offsets `first..next` are retained, `start` is where batches begin.
    Subscribed as SubscribedView {
        /// Number found in batch headers.
        topic_id: u32,
        /// First offset that will be delivered.
        start: u64,
        /// First offset retained.
        first: u64,
        /// Offset that the next message will get.
        next: u64,
        /// The topic's order; if it is total, offsets are positions in it.
        order: Order,
    }
}

message! {
    /// Creates a topic.
    CreateTopic as CreateTopicView {
        /// Its name: see [`crate::topic::check_topic_name`].
        name: String,
        /// Level of its [`Order`]. The head says which there are.
        order: u32,
        /// Bytes to retain per broker; 0 = no limit of its own.
        retention_bytes: u64,
        /// Milliseconds for which disks keep a batch, at least; 0 = no limit of its own. Only for topics on disks.
        retention_ms: u64,
        /// Largest message; 0 = the cluster's default.
        max_message_bytes: u32,
        /// 1 = in memory alone, as is 0; each disk beside the memory counts one more. The head says how many there are.
        replication_factor: u8,
    }
}

message! {
    /// A topic.
    Topic as TopicView {
        /// Its number in batch headers.
        id: u32,
        /// Its name.
        name: String,
        /// Its order.
        order: Order,
        /// Bytes retained per broker; 0 = no limit of its own.
        retention_bytes: u64,
        /// Milliseconds for which disks keep a batch, at least; 0 = no limit of its own.
        retention_ms: u64,
        /// Largest message in bytes.
        max_message_bytes: u32,
        /// When it was created.
        created: WallNs,
        /// 1 = in memory alone; each disk beside the memory counts one more.
        replication_factor: u8,
    }
}

impl Nested for Topic {}

/// Answer to [`CreateTopic`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCreated {
    /// The topic as created.
    pub topic: Topic,
}

impl Body for TopicCreated {
    type View<'a> = TopicCreatedView<'a>;

    fn to_view(&self) -> TopicCreatedView<'_> {
        TopicCreatedView {
            topic: MessageFieldView::some(self.topic.to_view()),
        }
    }

    fn from_view(view: TopicCreatedView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            topic: Topic::from_view(required(&view.topic, "topic")?)?,
        })
    }
}

message! {
    /// Deletes a topic and what it retains.
    DeleteTopic as DeleteTopicView {
        /// Its name.
        name: String,
    }
}

message! {
    /// Asks for topics, so many at a time.
    ListTopics as ListTopicsView {
        /// 0, or [`Topics::next`] of the answer before.
        from: u32,
    }
}

message! {
    /// Answer to [`ListTopics`].
    Topics as TopicsView {
        /// At most [`MAX_LISTED_TOPICS`](crate::limits::MAX_LISTED_TOPICS).
        topics: Vec<Topic>,
        /// What to ask from for more; 0 when that was all.
        next: u32,
    }
}

message! {
    /// Asks for one topic with its partitions.
    DescribeTopic as DescribeTopicView {
        /// Its name.
        name: String,
    }
}

message! {
    /// What one broker retains of a topic: offsets `first..next` in memory.
    Partition as PartitionView {
        /// Row of the broker.
        broker: u32,
        /// First offset retained.
        first: u64,
        /// Offset that the next message will get.
        next: u64,
        /// Bytes retained, batch headers included.
        payload_bytes: u64,
        /// Batches retained.
        batches: u64,
        /// First offset that its disks have, if it is on any.
        disk_first: Option<u64>,
        /// Offset up to which all of its disks have it, if it is on any.
        durable: Option<u64>,
    }
}

impl Nested for Partition {}

/// Answer to [`DescribeTopic`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicDescription {
    /// The topic.
    pub topic: Topic,
    /// What each broker retains of it.
    pub partitions: Vec<Partition>,
}

impl Body for TopicDescription {
    type View<'a> = TopicDescriptionView<'a>;

    fn to_view(&self) -> TopicDescriptionView<'_> {
        TopicDescriptionView {
            topic: MessageFieldView::some(self.topic.to_view()),
            partitions: self.partitions.to_wire(),
        }
    }

    fn from_view(view: TopicDescriptionView<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            topic: Topic::from_view(required(&view.topic, "topic")?)?,
            partitions: Vec::from_wire(view.partitions, "partitions")?,
        })
    }
}
