//! Answers the requests of clients: to list, describe, create and delete topics, to begin publishing or subscribing on
//! a connection, and for the broker's status and profile. `members.rs` answers those about brokers.

use embar_memory::{Damage, Memory};
use embar_readings::process::ProcessReading;
use embar_session::SendError;
use embar_wire::acks::{Acks, UnknownAcks};
use embar_wire::control::{
    BrokerStatus, Control, DISK_PROFILE, DeleteTopic, DescribeTopic, ErrorCode, ErrorReply,
    ListTopics, OpenPublisher, Partition, ProfileReply, PublisherOpened, SetMetering, StartAt,
    StatusReply, Subscribe, Subscribed, TopicDescription, Topics,
};
use embar_wire::isolation::Isolation;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MAX_LISTED_TOPICS, MESSAGE_HEADER_BYTES};
use embar_wire::share::Share;

use super::members;
use super::refusals::{
    Reply, already_streaming, disk_unavailable, no_help_from_disks, topic_replaced, unknown_topic,
};
use super::state::ShardState;
use crate::clock::Timestamp;
use crate::connection::{Connection, Cursor, FromDisk, NotSent, Peer};
use crate::node::Node;
use crate::profile::Counter;
use crate::topics::Topic;

impl<M: Memory> ShardState<M> {
    /// Answers a request.
    pub(super) fn handle_request(
        &mut self,
        connection: &mut Connection<M>,
        request: Control,
        at: Timestamp,
    ) {
        let answer = match request {
            Control::OpenPublisher(open) => match self.open_publisher(connection, &open, at) {
                // The sequencer answers.
                Ok(None) => return,
                Ok(Some(answer)) => Ok(answer),
                Err(error) => Err(error),
            },
            Control::OpenSession(open) => match self.renew_session(connection, &open, at) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Control::CloseSession => match self.close_session(connection, at) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Control::CreateTopic(spec) => match self.create_topic(connection, &spec, at) {
                // The disks answer.
                Ok(None) => return,
                Ok(Some(answer)) => Ok(answer),
                Err(error) => Err(error),
            },
            Control::DeleteTopic(DeleteTopic { name }) => {
                match self.delete_topic(connection, &name, at) {
                    // The disks answer.
                    Ok(None) => return,
                    Ok(Some(answer)) => Ok(answer),
                    Err(error) => Err(error),
                }
            }
            Control::Subscribe(subscribe) => self.subscribe(connection, &subscribe),
            other => self.answer_query(other, at),
        };
        match answer {
            Ok(message) => self.reply(connection, &message, at),
            Err(error) if stays_open(error.code) => {
                self.reply(connection, &Control::Error(error), at)
            }
            Err(error) => self.refuse(connection, error, at),
        }
    }

    pub(super) fn reply(
        &mut self,
        connection: &mut Connection<M>,
        message: &Control,
        at: Timestamp,
    ) {
        let error = match connection.reply(message, at.now) {
            Ok(()) => {
                self.ready.push(connection.token);
                return;
            }
            // The session has ended.
            Err(NotSent::Session(SendError::Closed)) => return,
            Err(NotSent::Encode(error)) => ErrorReply::new(ErrorCode::Internal, error.to_string()),
            // The peer does not read. It may come back.
            Err(NotSent::Session(SendError::Full)) => {
                ErrorReply::new(ErrorCode::Backpressure, SendError::Full.to_string())
            }
            Err(NotSent::Session(error)) => ErrorReply::new(ErrorCode::TooLarge, error.to_string()),
        };
        self.refuse(connection, error, at);
    }

    /// Answers a request that does not change its connection.
    fn answer_query(&self, message: Control, at: Timestamp) -> Reply {
        let node = &*self.node;
        match message {
            Control::Metadata(asked) => Ok(members::metadata(node, asked.topic.as_deref())),
            Control::Status => Ok(self.status(at)),
            Control::Profile => profile(node),
            Control::SetMetering(SetMetering { on }) => {
                node.set_metering(on);
                Ok(Control::Done)
            }
            Control::ListTopics(asked) => Ok(list(node, &asked)),
            Control::DescribeTopic(DescribeTopic { name }) => describe(node, &name),
            Control::Join(asked) => members::join(node, asked.takes_data),
            Control::RemoveBroker(asked) => members::remove(node, &asked),
            other => {
                let what = format!("{:?} is not a request that a broker answers", other.id());
                Err(ErrorReply::new(ErrorCode::BadFrame, what))
            }
        }
    }

    /// The answer, or `None` if the sequencer has to answer first.
    fn open_publisher(
        &mut self,
        connection: &mut Connection<M>,
        open: &OpenPublisher,
        at: Timestamp,
    ) -> Result<Option<Control>, ErrorReply> {
        if self.draining {
            return Err(ErrorReply::new(
                ErrorCode::Draining,
                "this broker is stopping: publish to another".into(),
            ));
        }
        let acks = Acks::try_from(open.acks).map_err(|why: UnknownAcks| {
            let what = format!("acks {} are not served: {why}", open.acks);
            ErrorReply::new(ErrorCode::InvalidArgument, what)
        })?;
        let topic = open_topic(&self.node, &open.topic, open.topic_id)?;
        if acks == Acks::Durable && !topic.is_durable() {
            let what = format!(
                "acks 2 needs a topic on a disk, and topic {} has replication factor 1: create one with --replication-factor 2, or choose acks 1",
                topic.name
            );
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what));
        }
        if !matches!(connection.peer, Peer::Client) {
            return Err(already_streaming());
        }
        if acks == Acks::Durable
            && let Some(trouble) = self.node.log().disk_trouble(topic.id)
        {
            return Err(disk_unavailable(trouble));
        }
        let max_batch_bytes = self.limits.max_batch_bytes;
        let max_message_bytes = topic
            .max_message_bytes
            .min(largest_message(max_batch_bytes));
        if topic.is_ordered() {
            self.open_session(connection, open, &topic, (acks, max_message_bytes), at)?;
            return Ok(None);
        }
        if acks == Acks::Durable {
            connection.acks.await_disks();
            connection.acks.durable(self.node.log().durable(topic.id));
        }
        connection.peer = Peer::Publisher {
            topic: topic.id,
            acks,
            max_message_bytes,
            session: None,
        };
        Ok(Some(Control::PublisherOpened(PublisherOpened {
            topic_id: topic.id,
            max_batch_bytes,
            max_message_bytes,
            order: topic.order,
            ..PublisherOpened::default()
        })))
    }

    fn subscribe(&self, connection: &mut Connection<M>, subscribe: &Subscribe) -> Reply {
        let topic = open_topic(&self.node, &subscribe.topic, subscribe.topic_id)?;
        if subscribe.share != Share::All && !topic.is_ordered() {
            let what = format!(
                "topic {} has no order of which a share could be asked for",
                topic.name
            );
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what));
        }
        if topic.is_ordered() {
            // The latest position is that of what is ordered by now.
            self.node.log().poll_order();
        }
        let extents = self.node.log().topic_stats(topic.id);
        let mut extents =
            extents.ok_or_else(|| unknown_topic(&self.node.topics(), &subscribe.topic))?;
        let in_memory = extents.first;
        extents.first = extents.first.min(extents.first_on_disks);
        // Offsets behind damage had batches before. Nothing tells them from offsets of batches still to come.
        let misses_some = match subscribe.start {
            StartAt::Earliest => true,
            StartAt::Latest => false,
            StartAt::Offset(offset) => offset > extents.next,
        };
        if misses_some && let Some(why) = self.node.log().why_incomplete(topic.id) {
            return Err(ErrorReply::new(ErrorCode::Damaged, why));
        }
        let start = match subscribe.start {
            StartAt::Earliest => extents.first,
            StartAt::Latest if subscribe.isolation == Isolation::Durable => {
                extents.next.min(extents.durable)
            }
            StartAt::Latest => extents.next,
            StartAt::Offset(offset) if (extents.first..=extents.next).contains(&offset) => offset,
            StartAt::Offset(offset) => {
                let what = format!(
                    "offset {offset} is not among {}..={} of topic {} on broker {}",
                    extents.first, extents.next, topic.name, self.node.id
                );
                let mut error = ErrorReply::new(ErrorCode::OffsetOutOfRange, what);
                error.first_available = Some(extents.first);
                return Err(error);
            }
        };
        if subscribe.share.is_help() && start < in_memory {
            return Err(no_help_from_disks());
        }
        let start = match &mut connection.peer {
            Peer::Client => start,
            // It goes on where it stands: what is being sent belongs to the old share.
            Peer::Subscriber(cursor)
                if cursor.topic == topic.id
                    && cursor.is_ordered
                    && cursor.isolation == subscribe.isolation
                    && subscribe.start == StartAt::Latest =>
            {
                cursor.share = subscribe.share;
                return Ok(Control::Subscribed(Subscribed {
                    topic_id: topic.id,
                    start: cursor.next,
                    first: extents.first,
                    next: extents.next,
                    order: topic.order,
                }));
            }
            _ => return Err(already_streaming()),
        };
        let cursor = Cursor {
            topic: topic.id,
            next: start,
            sending: None,
            foreign: Vec::new(),
            is_ordered: topic.is_ordered(),
            is_durable: topic.is_durable(),
            waiting: false,
            is_searching: false,
            share: subscribe.share,
            isolation: subscribe.isolation,
            disk: FromDisk::new(subscribe.start == StartAt::Earliest),
        };
        connection.peer = Peer::Subscriber(cursor);
        Ok(Control::Subscribed(Subscribed {
            topic_id: topic.id,
            start,
            first: extents.first,
            next: extents.next,
            order: topic.order,
        }))
    }

    fn status(&self, at: Timestamp) -> Control {
        let node = &*self.node;
        let profile = node.profile.snapshot();
        let counter = |c: Counter| profile.counters[c as usize].1;
        let (space, lanes) = if node.takes_data() {
            let log = node.log();
            (log.space(), log.lanes())
        } else {
            Default::default()
        };
        let process = ProcessReading::of_self().ok();
        let process = process.as_ref();
        let heartbeat = node
            .region
            .control_row(node.id)
            .found()
            .map_or(0, |row| row.heartbeat);
        let found = node.region.damage();
        let of = |kind| found.iter().filter(|(.., damage)| *damage == kind).count() as u64;
        Control::StatusReply(StatusReply {
            brokers: vec![BrokerStatus {
                broker: node.id.into(),
                uptime_ns: at.wall.0.saturating_sub(node.started.0),
                connections: node.connections() as u64,
                payload_total_bytes: space.total_bytes,
                payload_free_bytes: space.free_bytes,
                batches: counter(Counter::Batches),
                messages: counter(Counter::Messages),
                bytes_in: counter(Counter::RecvBytes),
                bytes_out: counter(Counter::SendBytes),
                refused_batches: counter(Counter::RefusedBatches),
                backpressured_connections: node.paused() as u64,
                cpu_ns: process.map_or(0, |p| ((p.user_s + p.system_s) * 1e9) as u64),
                minor_faults: process.map_or(0, |p| p.minor_faults),
                peak_memory_bytes: process.and_then(|p| p.peak_rss_bytes).unwrap_or(0),
                heartbeat_age_ns: at.wall.0.saturating_sub(heartbeat),
                repaired_records: of(Damage::Repaired),
                damaged_records: of(Damage::Lost),
                unix_connections: node.unix_connections() as u64,
                shm_connections: node.shm_connections() as u64,
                refused_users: counter(Counter::RefusedUsers),
                lent_bytes: space.lent_bytes,
                held_bytes: space.held_bytes,
                lane_batches: lanes.used,
                held_batches: lanes.held,
                lane_capacity: lanes.capacity,
                disks: node.disk_statuses(),
            }],
        })
    }
}

/// Whether a connection can go on after this error.
fn stays_open(code: ErrorCode) -> bool {
    use ErrorCode::{
        ClusterFull, InvalidArgument, InvalidName, NotData, NotHead, OffsetOutOfRange, RetainsData,
        TopicExists, TopicReplaced, UnknownTopic,
    };
    matches!(
        code,
        ClusterFull
            | InvalidArgument
            | InvalidName
            | NotData
            | NotHead
            | OffsetOutOfRange
            | RetainsData
            | TopicExists
            | TopicReplaced
            | UnknownTopic
    )
}

/// The largest message whose batch is not above `max_batch_bytes`.
pub(super) fn largest_message(max_batch_bytes: u32) -> u32 {
    let lines = max_batch_bytes / LINE_BYTES as u32 * LINE_BYTES as u32;
    lines - BATCH_HEADER_BYTES as u32 - MESSAGE_HEADER_BYTES as u32
}

/// Finds a topic in the table as it is now, and opens it in the log. If `id` is not 0, the topic must have it: a
/// topic that was deleted and created again has another one.
fn open_topic<M: Memory>(node: &Node<M>, name: &str, id: u32) -> Result<Topic, ErrorReply> {
    if !node.takes_data() {
        let what = "the head takes no data: publish to and read from the other brokers";
        return Err(ErrorReply::new(ErrorCode::NotData, what.into()));
    }
    node.refresh_topics();
    // Under one guard: the log must not open a topic that was deleted meanwhile.
    let topics = node.topics();
    let topic = topics.by_name(name);
    let topic = topic.ok_or_else(|| unknown_topic(&topics, name))?;
    if id != 0 && topic.id != id {
        return Err(topic_replaced(name));
    }
    node.log().open_topic(topic);
    Ok(topic.clone())
}

/// The topics from a topic record on, in the order of their topic records, as many as one answer lists.
fn list<M: Memory>(node: &Node<M>, asked: &ListTopics) -> Control {
    node.refresh_topics();
    let topics = node.topics();
    let mut rest = topics.from_record(asked.from);
    let listed = rest.by_ref().take(MAX_LISTED_TOPICS);
    Control::Topics(Topics {
        topics: listed.map(Topic::to_wire).collect(),
        next: rest.next().map_or(0, |topic| topic.record().into()),
    })
}

fn describe<M: Memory>(node: &Node<M>, name: &str) -> Reply {
    node.refresh_topics();
    let topics = node.topics();
    let topic = topics.by_name(name).cloned();
    let topic = topic.ok_or_else(|| unknown_topic(&topics, name))?;
    drop(topics);
    let mut partitions = Vec::new();
    if node.takes_data() {
        let extents = node.log().topic_stats(topic.id).unwrap_or_default();
        partitions.push(Partition {
            broker: node.id.into(),
            first: extents.first,
            next: extents.next,
            payload_bytes: extents.bytes,
            batches: extents.batches,
            disk_first: topic.is_durable().then_some(extents.first_on_disks),
            durable: topic.is_durable().then_some(extents.durable),
        });
    }
    Ok(Control::TopicDescription(TopicDescription {
        topic: topic.to_wire(),
        partitions,
    }))
}

/// The profile, and under `disks` that of the disks, at a process that has any.
fn profile<M: Memory>(node: &Node<M>) -> Reply {
    let encode = || {
        let mut json = serde_json::to_value(node.profile.snapshot())?;
        if let Some(disks) = node.disk_profile() {
            json[DISK_PROFILE] = serde_json::to_value(disks.snapshot())?;
        }
        serde_json::to_vec(&json)
    };
    let json = encode().map_err(|e| ErrorReply::new(ErrorCode::Internal, e.to_string()))?;
    Ok(Control::ProfileReply(ProfileReply { json }))
}
