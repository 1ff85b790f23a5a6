//! What the sequencer is asked on behalf of connections, and what it answers.

use std::time::Duration;

use embar_memory::Memory;
use embar_order::{Operation, Request};
use embar_transport::Token;
use embar_wire::control::{
    Control, ErrorCode, ErrorReply, OpenPublisher, OpenSession, PublisherOpened, Secret,
    SessionHeld, SessionOpened,
};

use super::refusals::topic_replaced;
use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Asked, Connection, Peer, Session};
use crate::log::{AdmitError, Answer, Answered, Submitter};
use crate::topics::Topic;

/// How long a publisher that is opened, or needs the next epoch, waits for the sequencer. Less than what
/// clients wait for an answer, so that they hear why there is none.
pub(super) const SEQUENCER_PATIENCE: Duration = Duration::from_secs(2);
/// What it is told then.
const NO_ANSWER: &str = "no sequencer has answered: start the head again, or a standby, if `embar status` shows that nobody sequences";

impl<M: Memory> Shard<M> {
    /// Takes in what was ordered, and answers whoever is to be told. True when there was something, or
    /// may be more.
    pub(super) fn poll_order(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) -> bool {
        let state = &mut self.state;
        if !state.node.takes_data() {
            return false;
        }
        let mut log = state.node.log();
        let mut news = false;
        if log.has_ordered() {
            let before = log.term();
            news = log.poll_order();
            if log.term() != before {
                // What was unsettled was submitted again.
                out.push(Action::Submitted);
            }
            log.take_grown(&mut state.touched);
        }
        drop(log);
        loop {
            let mut log = state.node.log();
            let Some(settled) = log.take_answered(state.lane) else {
                // What was submitted to a topic is answered when it is deleted, be it the last one;
                // that may have been found only now.
                if log.has_answered_besides(state.lane) {
                    out.push(Action::WakeOthers);
                }
                break;
            };
            drop(log);
            let token = Token::from_bits(settled.submitter.connection);
            // Whoever asked may be gone.
            if let Some(connection) = self.connections.get_mut(&token) {
                state.settled(connection, &settled, at);
            }
        }
        news
    }

    /// Whether the sequencer may have something to tell this thread.
    pub fn waits_for_order(&self) -> bool {
        let state = &self.state;
        state.node.takes_data()
            && (state.waiting.for_order() || state.node.log().waits_for_order(state.lane))
    }
}

impl<M: Memory> ShardState<M> {
    fn settled(&mut self, connection: &mut Connection<M>, settled: &Answered, at: Timestamp) {
        let status = match settled.answer {
            Answer::Refused(code, _) => Some(self.reason(connection, code)),
            _ => None,
        };
        let offset = match settled.answer {
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
                if let Some(Asked::Open { topic, .. }) = connection.asked.take() {
                    connection.held_in = Some(topic);
                }
                let held = Control::SessionHeld(SessionHeld { session_epoch });
                self.reply(connection, &held, at);
                return connection.finish_if_done(at.now);
            }
            Answer::Closed => {
                connection.asked = None;
                self.reply(connection, &Control::Done, at);
                return connection.finish_if_done(at.now);
            }
        };
        let Some(number) = settled.submitter.batch else {
            let code = status.unwrap_or(ErrorCode::Internal);
            return self.session_refused(connection, code, at);
        };
        if !std::mem::replace(&mut connection.is_due, true) {
            self.to_flush.push(connection.token);
        }
        connection.answers.settle(number, status, offset);
        self.ready.push(connection.token);
    }

    /// The sequencer knows no session of a topic that was deleted, and hears of that before others.
    fn reason(&self, connection: &Connection<M>, code: ErrorCode) -> ErrorCode {
        let topic = match (&connection.asked, &connection.peer) {
            (Some(Asked::Open { topic, .. }), _) | (_, Peer::Publisher { topic, .. }) => {
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
        let reply = match connection.asked.take() {
            Some(Asked::Open {
                topic,
                max_message_bytes,
                producer,
                instance,
                secret,
            }) => {
                let Some(topic) = self.node.topics().by_id(topic).cloned() else {
                    return self.session_refused(connection, ErrorCode::UnknownTopic, at);
                };
                // From here on the sequencer keeps it for this connection.
                self.node.log().hold_session(opened.session);
                connection.peer = Peer::Publisher {
                    topic: topic.id,
                    acks: true,
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
                    // A client that went further would be refused.
                    window: protocol.map_or(window, |it| it.window(window)),
                    first_epoch: opened.first_epoch,
                })
            }
            Some(Asked::Renew | Asked::Close) => {
                if let Peer::Publisher {
                    session: Some(session),
                    ..
                } = &mut connection.peer
                {
                    // The sequencer renews a session at its place.
                    session.epoch = opened.session_epoch;
                }
                Control::SessionOpened(opened.clone())
            }
            None => return,
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
        connection.asked = None;
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

    /// Asks the sequencer for the session of a publisher.
    pub(super) fn open_session(
        &mut self,
        connection: &mut Connection<M>,
        open: &OpenPublisher,
        topic: &Topic,
        max_message_bytes: u32,
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        if open.acks != 1 {
            let what = "order 2 and 5 need acks 1: what got lost without anybody knowing would stop all that follows";
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what.into()));
        }
        if open.secret == Secret::default() {
            let what = "order 2 and 5 need a secret, 16 bytes that nobody guesses: without it anybody could end this publisher";
            return Err(ErrorReply::new(ErrorCode::InvalidArgument, what.into()));
        }
        // Epochs of another topic of that name are not those of this one.
        if open.takes_over != 0
            && connection
                .held_in
                .is_some_and(|held_in| held_in != topic.id)
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
        let asked = Asked::Open {
            topic: topic.id,
            max_message_bytes,
            producer: open.producer,
            instance: open.instance,
            secret: open.secret,
        };
        self.ask_sequencer(connection, topic.id, &request, asked, at)
    }

    /// Asks the sequencer for the next epoch of a publisher's session.
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
        self.ask_sequencer(connection, topic, &request, Asked::Renew, at)
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
        self.ask_sequencer(connection, topic, &request, Asked::Close, at)
    }

    fn ask_sequencer(
        &mut self,
        connection: &mut Connection<M>,
        topic: u32,
        request: &Request,
        asked: Asked,
        at: Timestamp,
    ) -> Result<(), ErrorReply> {
        let ticket = Submitter {
            lane: self.lane,
            connection: connection.token.bits(),
            batch: None,
        };
        let submitted = self.node.log().submit_session(topic, request, ticket);
        submitted.map_err(|why| match why {
            AdmitError::UnknownTopic => {
                ErrorReply::new(ErrorCode::UnknownTopic, "the topic was deleted".into())
            }
            // What others asked for takes all slots of the lane.
            AdmitError::Congested if self.node.sequencer().is_none() => {
                ErrorReply::new(ErrorCode::NoSequencer, NO_ANSWER.into())
            }
            AdmitError::Congested | AdmitError::Full | AdmitError::Damaged => ErrorReply::new(
                ErrorCode::Backpressure,
                "too much waits for the sequencer: try again later".into(),
            ),
        })?;
        connection.asked = Some(asked);
        connection.asked_at = at.now;
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
