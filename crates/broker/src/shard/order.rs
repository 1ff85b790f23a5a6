//! Passes requests of publishers to the sequencer: to open, renew or close a publisher session. Passes the sequencer's
//! answers, also those to batches, back to the connections that wait for them.

use std::time::Duration;

use embar_memory::Memory;
use embar_order::{Operation, Request};
use embar_transport::Token;
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::acks::Acks;
use embar_wire::control::{
    Control, ErrorCode, ErrorReply, OpenPublisher, OpenSession, PublisherOpened, Secret,
    SessionHeld, SessionOpened,
};

use super::refusals::topic_replaced;
use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Peer, PendingRequest, Session};
use crate::log::{AdmitError, Answer, Answered, Submitter};
use crate::topics::Topic;

/// How long a publisher waits for the sequencer to open its session or begin the next epoch. Clients wait longer
/// for an answer, so they get the reason.
pub(super) const SEQUENCER_PATIENCE: Duration = Duration::from_secs(2);
/// The reason.
const NO_ANSWER: &str = "no sequencer has answered: start the head again, or a standby, if `embar status` shows that nobody sequences";

impl<M: Memory> Shard<M> {
    /// Takes in what was ordered, and passes the sequencer's answers to their connections. True when there was
    /// something, or may be more.
    pub(super) fn poll_order(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) -> bool {
        let state = &mut self.state;
        if !state.node.takes_data() {
            return false;
        }
        let mut log = state.node.log();
        let mut news = false;
        if log.follows_sequencer() {
            let before = log.term();
            news = log.poll_order();
            if log.term() != before {
                // The participant has submitted again what its predecessor had not answered.
                out.push(Action::Submitted);
            }
            log.take_grown(&mut state.touched);
        }
        drop(log);
        loop {
            let mut log = state.node.log();
            let Some(answered) = log.take_answered(state.lane) else {
                // When a topic is deleted, its submissions get their answer. This thread may have found that
                // out for the others.
                if log.has_answered_besides(state.lane) {
                    out.push(Action::WakeOthers);
                }
                break;
            };
            drop(log);
            let token = Token::from_bits(answered.submitter.connection);
            // The connection may be gone.
            if let Some(connection) = self.connections.get_mut(&token) {
                state.deliver_answer(connection, &answered, at);
            }
        }
        news
    }

    /// Whether this thread waits for something that the sequencer stores, or looks through the order, or another thread has taken
    /// in an answer for it.
    pub fn waits_for_order(&self) -> bool {
        let state = &self.state;
        state.node.takes_data()
            && (state.waiting.for_sequencer()
                || !state.awaiting_disks.is_empty()
                || state.paused.len() > 0 && state.node.region.geometry().disks > 0
                || !state.searching.is_empty()
                || {
                    let log = state.node.log();
                    log.waits_for_order(state.lane) || log.has_answered(state.lane)
                })
    }
}

impl<M: Memory> ShardState<M> {
    fn deliver_answer(
        &mut self,
        connection: &mut Connection<M>,
        answered: &Answered,
        at: Timestamp,
    ) {
        let status = match answered.answer {
            Answer::Refused(code, _) => Some(self.code_for_peer(connection, code)),
            _ => None,
        };
        let offset = match answered.answer {
            Answer::Stored(base) => base,
            Answer::Refused(_, mark) => mark,
            Answer::Opened {
                session,
                epoch,
                first_epoch,
                mark,
            } => {
                let opened = SessionOpened {
                    session,
                    session_epoch: epoch,
                    mark,
                    first_epoch,
                };
                return self.session_opened(connection, &opened, at);
            }
            Answer::InUse(session_epoch) => {
                if let Some(PendingRequest::Open { topic, .. }) = connection.pending.take() {
                    connection.in_use_in = Some(topic);
                }
                let held = Control::SessionHeld(SessionHeld { session_epoch });
                self.reply(connection, &held, at);
                return connection.finish_if_done(at.now);
            }
            Answer::Closed => {
                connection.pending = None;
                self.reply(connection, &Control::Done, at);
                return connection.finish_if_done(at.now);
            }
        };
        let Some(number) = answered.submitter.batch else {
            let code = status.unwrap_or(ErrorCode::Internal);
            return self.session_refused(connection, code, at);
        };
        let durable_at = match answered.answer {
            Answer::Stored(base) => self.durable_at(connection, base),
            _ => 0,
        };
        self.owe_acks(connection);
        connection.acks.answer(number, status, offset, durable_at);
        self.await_disks(connection);
        self.ready.push(connection.token);
    }

    /// Up to where its topic has to be durable for a batch at this position to be so. A frontier lies between two batches.
    pub(super) fn durable_at(&self, connection: &Connection<M>, base: u64) -> u64 {
        match connection.peer {
            Peer::Publisher {
                topic,
                acks: Acks::Durable,
                ..
            } if base == POSITION_UNKNOWN => {
                // This broker has read at least as much of the order as the sequencer had placed when it answered.
                let stats = self.node.log().topic_stats(topic);
                stats.map_or(0, |stats| stats.next)
            }
            _ => base.saturating_add(1),
        }
    }

    /// The code for the peer: `UnknownTopic` if the sequencer has lost a session because its topic was deleted. The
    /// sequencer finds that out before this broker does.
    fn code_for_peer(&self, connection: &Connection<M>, code: ErrorCode) -> ErrorCode {
        let topic = match (&connection.pending, &connection.peer) {
            (Some(PendingRequest::Open { topic, .. }), _) | (_, Peer::Publisher { topic, .. }) => {
                Some(*topic)
            }
            _ => None,
        };
        let no_session = matches!(code, ErrorCode::UnknownSession | ErrorCode::SessionGivenUp);
        let Some(topic) = topic.filter(|_| no_session) else {
            return code;
        };
        self.node.refresh_topics();
        match self.node.topics().by_id(topic) {
            Some(_) => code,
            None => ErrorCode::UnknownTopic,
        }
    }

    fn session_opened(
        &mut self,
        connection: &mut Connection<M>,
        opened: &SessionOpened,
        at: Timestamp,
    ) {
        let max_batch_bytes = self.limits.max_batch_bytes;
        let reply = match connection.pending.take() {
            Some(PendingRequest::Open {
                topic,
                acks,
                max_message_bytes,
                producer,
                instance,
                secret,
            }) => {
                let Some(topic) = self.node.topics().by_id(topic).cloned() else {
                    return self.session_refused(connection, ErrorCode::UnknownTopic, at);
                };
                // From now on the sequencer keeps the session while this connection lives.
                self.node.log().hold_session(opened.session);
                if acks == Acks::Durable {
                    connection.acks.await_disks();
                    connection.acks.durable(self.node.log().durable(topic.id));
                }
                connection.peer = Peer::Publisher {
                    topic: topic.id,
                    acks,
                    max_message_bytes,
                    session: Some(Session {
                        producer,
                        instance,
                        secret,
                        slot: opened.session,
                        epoch: opened.session_epoch,
                    }),
                };
                let protocol = embar_order::protocol::of_order(topic.order.level());
                let window = self.node.config.session_window;
                Control::PublisherOpened(PublisherOpened {
                    topic_id: topic.id,
                    max_batch_bytes,
                    max_message_bytes,
                    order: topic.order,
                    session: opened.session,
                    session_epoch: opened.session_epoch,
                    mark: opened.mark,
                    // The sequencer refuses batches beyond it.
                    window: protocol.map_or(window, |it| it.window(window)),
                    first_epoch: opened.first_epoch,
                })
            }
            Some(PendingRequest::Renew | PendingRequest::Close) => {
                if let Peer::Publisher {
                    session: Some(session),
                    ..
                } = &mut connection.peer
                {
                    // The session stays in its slot.
                    session.epoch = opened.session_epoch;
                }
                Control::SessionOpened(opened.clone())
            }
            Some(PendingRequest::Create { .. } | PendingRequest::Delete { .. }) | None => return,
        };
        self.reply(connection, &reply, at);
        connection.finish_if_done(at.now);
    }

    pub(super) fn session_refused(
        &mut self,
        connection: &mut Connection<M>,
        code: ErrorCode,
        at: Timestamp,
    ) {
        connection.pending = None;
        let what = match code {
            ErrorCode::SessionTaken => {
                "another client has opened this producer since: give each client a producer of its own"
            }
            ErrorCode::WrongSecret => {
                "this producer has a session that was opened with another secret: use the secret that it was opened with, or a producer of your own"
            }
            ErrorCode::SessionGivenUp => {
                "the session had no connection and gave up its place to another: which of its batches are stored is not known any more; open a new publisher"
            }
            ErrorCode::ClusterFull => {
                "the sequencer knows as many sessions as it has room for, and all of them are in use: close some publishers, or try again later"
            }
            ErrorCode::UnknownTopic => "the topic was deleted",
            ErrorCode::NoSequencer => NO_ANSWER,
            _ => "the sequencer does not know this session",
        };
        self.refuse(connection, ErrorReply::new(code, what.into()), at);
    }

    /// Asks the sequencer to open the session of a publisher.
    pub(super) fn open_session(
        &mut self,
        connection: &mut Connection<M>,
        open: &OpenPublisher,
        topic: &Topic,
        (acks, max_message_bytes): (Acks, u32),
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        if acks == Acks::None {
            let what = "order 2 and 5 need acks 1 or 2: what got lost without anybody knowing would stop all that follows";
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what.into()));
        }
        if open.secret == Secret::default() {
            let what = "order 2 and 5 need a secret, 16 bytes that nobody guesses: without it anybody could end this publisher";
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what.into()));
        }
        // Epochs of another topic of that name are not those of this one.
        if open.takes_over != 0
            && connection
                .in_use_in
                .is_some_and(|in_use_in| in_use_in != topic.id)
        {
            return Err(topic_replaced(&open.topic));
        }
        let operation = match open.resumes {
            true => Operation::Resume,
            false => Operation::Open {
                takes_over: open.takes_over,
            },
        };
        let request = request(
            connection,
            (open.producer, open.instance),
            open.secret,
            operation,
        );
        let pending = PendingRequest::Open {
            topic: topic.id,
            acks,
            max_message_bytes,
            producer: open.producer,
            instance: open.instance,
            secret: open.secret,
        };
        self.submit_request(connection, topic.id, &request, pending, at)
    }

    /// Asks the sequencer to begin the next epoch of a publisher's session.
    pub(super) fn renew_session(
        &mut self,
        connection: &mut Connection<M>,
        open: &OpenSession,
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        let (topic, session) = session_of(&connection.peer)?;
        let operation = Operation::Renew {
            session: session.slot,
            gives_up: open.gives_up,
        };
        let named = (session.producer, session.instance);
        let request = request(connection, named, session.secret, operation);
        self.submit_request(connection, topic, &request, PendingRequest::Renew, at)
    }

    /// Asks the sequencer to forget a publisher's session.
    pub(super) fn close_session(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        let (topic, session) = session_of(&connection.peer)?;
        let operation = Operation::Close {
            session: session.slot,
            epoch: session.epoch,
        };
        let named = (session.producer, session.instance);
        let request = request(connection, named, session.secret, operation);
        self.submit_request(connection, topic, &request, PendingRequest::Close, at)
    }

    fn submit_request(
        &mut self,
        connection: &mut Connection<M>,
        topic: u32,
        request: &Request,
        pending: PendingRequest,
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        let submitter = Submitter {
            lane: self.lane,
            connection: connection.token.bits(),
            batch: None,
        };
        let submitted = self.node.log().submit_session(topic, request, submitter);
        submitted.map_err(|why| match why {
            AdmitError::UnknownTopic => {
                ErrorReply::new(ErrorCode::UnknownTopic, "the topic was deleted".into())
            }
            // Requests of others have all slots of the lane.
            AdmitError::Congested if self.node.sequencer().is_none() => {
                ErrorReply::new(ErrorCode::NoSequencer, NO_ANSWER.into())
            }
            AdmitError::Congested | AdmitError::Full | AdmitError::Damaged => ErrorReply::new(
                ErrorCode::Backpressure,
                "too much waits for the sequencer: try again later".into(),
            ),
        })?;
        connection.pending = Some(pending);
        connection.pending_since = at.now;
        self.submitted = true;
        Ok(())
    }
}

fn request<M: Memory>(
    connection: &Connection<M>,
    (producer, instance): (u64, u64),
    secret: Secret,
    operation: Operation,
) -> Request {
    Request {
        producer,
        instance,
        secret: embar_fabric::Secret(secret.0),
        peer: connection.peer_id.number(),
        operation,
    }
}

/// The topic and the session of a publisher.
fn session_of(peer: &Peer) -> Result<(u32, Session), ErrorReply> {
    match peer {
        Peer::Publisher {
            topic,
            session: Some(session),
            ..
        } => Ok((*topic, *session)),
        _ => Err(ErrorReply::new(
            ErrorCode::BadFrame,
            "there is no session on this connection: open a publisher of an ordered topic first"
                .into(),
        )),
    }
}
