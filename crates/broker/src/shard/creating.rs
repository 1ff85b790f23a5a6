//! Creates and deletes topics. One that is on disks exists for its creator once all of them have it, and is gone once none has it
//! any more: before that, a power cut could undo it.

use std::time::Duration;

use embar_fabric::region::Region;
use embar_memory::Memory;
use embar_order::Leadership;
use embar_wire::control::{Control, CreateTopic, ErrorCode, ErrorReply, TopicCreated};

use super::Shard;
use super::control::largest_message;
use super::members;
use super::state::ShardState;
use crate::clock::Timestamp;
use crate::connection::{Connection, PendingRequest};
use crate::log::{frontier, is_gone};
use crate::topics::Topic;

/// How long a topic waits for its disks.
pub(super) const DISK_PATIENCE: Duration = Duration::from_secs(5);

impl<M: Memory> ShardState<M> {
    /// The answer, or `None` if disks have to answer first.
    pub(super) fn create_topic(
        &mut self,
        connection: &mut Connection<M>,
        spec: &CreateTopic,
        at: Timestamp,
    ) -> Result<Option<Control>, ErrorReply> {
        let node = &*self.node;
        members::must_be_head(node)?;
        let ranks = node.ranks_of_disks();
        let rank = |disk: u16| ranks.get(usize::from(disk)).copied().unwrap_or(0);
        let largest = largest_message(node.config.max_batch_bytes);
        let created = node.topics().create(spec, largest, at.wall, rank);
        let topic = created.map_err(|e| ErrorReply::new(e.code(), e.to_string()))?;
        tracing::info!(
            topic = topic.name,
            id = topic.id,
            order = topic.order.level(),
            replication_factor = topic.replication_factor(),
            "topic created"
        );
        if !topic.is_durable() {
            return Ok(Some(Control::TopicCreated(TopicCreated {
                topic: topic.to_wire(),
            })));
        }
        self.await_answer(connection, PendingRequest::Create { topic: topic.id }, at);
        Ok(None)
    }

    /// As [`ShardState::create_topic`].
    pub(super) fn delete_topic(
        &mut self,
        connection: &mut Connection<M>,
        name: &str,
        at: Timestamp,
    ) -> Result<Option<Control>, ErrorReply> {
        let node = &*self.node;
        members::must_be_head(node)?;
        let deleted = node.topics().delete(name);
        let topic = deleted.map_err(|e| ErrorReply::new(e.code(), e.to_string()))?;
        tracing::info!(topic = topic.name, id = topic.id, "topic deleted");
        if !topic.is_durable() {
            return Ok(Some(Control::TopicDeleted));
        }
        let (topic, disks) = (topic.id, topic.all_disks());
        self.await_answer(connection, PendingRequest::Delete { topic, disks }, at);
        Ok(None)
    }

    fn await_answer(
        &mut self,
        connection: &mut Connection<M>,
        pending: PendingRequest,
        at: Timestamp,
    ) {
        connection.pending = Some(pending);
        connection.pending_since = at.now;
        self.creating.push(connection.token);
    }

    /// The disks have not said in time that a topic is gone.
    pub(super) fn deletion_failed(&mut self, connection: &mut Connection<M>, at: Timestamp) {
        connection.pending = None;
        let what = "the topic was deleted, and a disk does not say so: it may be there again after the memory is lost; see the log of the head";
        let error = Control::Error(ErrorReply::new(ErrorCode::Timeout, what.into()));
        self.reply(connection, &error, at);
    }

    /// The disks have not said in time that they have a topic: nobody gets it.
    pub(super) fn creation_failed(
        &mut self,
        connection: &mut Connection<M>,
        topic: u32,
        at: Timestamp,
    ) {
        connection.pending = None;
        let mut topics = self.node.topics();
        let name = topics.by_id(topic).map(|topic| topic.name.clone());
        // Someone else may have deleted it meanwhile.
        let deleted = name.map(|name| topics.delete(&name));
        drop(topics);
        if let Some(Err(error)) = deleted {
            tracing::warn!(topic, "cannot take back a topic that no disk has: {error}");
        }
        let what = "the topic's disks do not answer, so it was not created: see the log of the head, or create it with --replication-factor 1";
        let error = Control::Error(ErrorReply::new(ErrorCode::Timeout, what.into()));
        self.reply(connection, &error, at);
    }
}

impl<M: Memory> Shard<M> {
    /// Answers those who wait for topics that all their disks have by now.
    pub(super) fn answer_creations(&mut self, at: Timestamp) {
        let mut creating = std::mem::take(&mut self.state.creating);
        creating.retain(|token| {
            let Some(connection) = self.connections.get_mut(token) else {
                return false;
            };
            let topic = match connection.pending {
                Some(PendingRequest::Create { topic }) => topic,
                Some(PendingRequest::Delete { topic, disks }) => {
                    let is_gone = is_off_disks(&self.state.node.region, topic, disks);
                    if is_gone {
                        connection.pending = None;
                        self.state.reply(connection, &Control::TopicDeleted, at);
                        connection.finish_if_done(at.now);
                    }
                    return !is_gone;
                }
                _ => return false,
            };
            let known = self.state.node.topics().by_id(topic).cloned();
            let Some(topic) = known else {
                connection.pending = None;
                let gone = ErrorReply::new(ErrorCode::UnknownTopic, "the topic was deleted".into());
                self.state.reply(connection, &Control::Error(gone), at);
                return false;
            };
            if !is_on_disks(&self.state.node.region, &topic) {
                return true;
            }
            connection.pending = None;
            let created = Control::TopicCreated(TopicCreated {
                topic: topic.to_wire(),
            });
            self.state.reply(connection, &created, at);
            connection.finish_if_done(at.now);
            false
        });
        self.state.creating = creating;
    }
}

/// Whether all disks of a topic have it, as the present term's writer says.
fn is_on_disks<M: Memory>(region: &Region<M>, topic: &Topic) -> bool {
    let Some(term) = Leadership::observe(region).term else {
        return false;
    };
    // Of a topic that is not ordered, the frontier of any broker says so.
    frontier(region, term, (topic.id, 0), topic.disks).is_some() && term.lasts(region)
}

/// Whether a topic that was deleted is on none of its disks any more.
fn is_off_disks<M: Memory>(region: &Region<M>, topic: u32, disks: u8) -> bool {
    let Some(term) = Leadership::observe(region).term else {
        return false;
    };
    is_gone(region, term, topic, disks) && term.lasts(region)
}
