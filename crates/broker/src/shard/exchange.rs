//! Connects a connection's session core, which knows only frames, with the rules of the log. Handles the core's events,
//! such as a request or the header of a batch, and turns the core's steps into actions for the driver.

use embar_frame::FRAME_HEADER_BYTES;
use embar_memory::Memory;
use embar_session::{CloseReason, Closed, Head, Incoming, Message, Side, Step};
use embar_wire::batch::BatchHeader;
use embar_wire::control::{Control, ErrorReply, Hello, Welcome, decode};
use embar_wire::error::DecodeError;
use embar_wire::frame::FrameId;
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::Action;
use super::state::ShardState;
use crate::clock::Timestamp;
use crate::connection::{Connection, Input, Peer};
use crate::profile::Counter;

/// An event of a session's core, which borrows nothing from it.
enum LinkEvent {
    Hello(Result<Hello, DecodeError>),
    Request(Result<Control, DecodeError>),
    Batch(Result<BatchHeader, DecodeError>),
    /// The peer leaves in good order.
    Goodbye,
    Closed(Closed),
    Nothing,
}

impl LinkEvent {
    fn of(incoming: Incoming<'_>, max_batch_bytes: u32) -> Self {
        match incoming {
            Incoming::Opened { greeting } => {
                Self::Hello(Hello::from_greeting(greeting).map_err(DecodeError::from))
            }
            Incoming::Message(message) => Self::Request(request(&message)),
            Incoming::Head(head) => Self::Batch(batch(&head, max_batch_bytes)),
            Incoming::Goodbye { .. } => Self::Goodbye,
            Incoming::Closed(closed) => Self::Closed(closed),
            Incoming::Status | Incoming::StatusReply { .. } | Incoming::Lane(_) => Self::Nothing,
        }
    }
}

fn request(message: &Message<'_>) -> Result<Control, DecodeError> {
    let id = FrameId::try_from(message.id())?;
    Ok(decode(id, message.payload())?)
}

/// A batch's header: the frame's header, and the head that the core read behind it.
fn batch(head: &Head<'_>, max_batch_bytes: u32) -> Result<BatchHeader, DecodeError> {
    let mut bytes = [0; BATCH_HEADER_BYTES];
    let (frame, rest) = bytes.split_at_mut(FRAME_HEADER_BYTES);
    frame.copy_from_slice(&head.header().to_bytes());
    rest.copy_from_slice(head.head());
    Ok(BatchHeader::parse(&bytes, max_batch_bytes)?)
}

impl<M: Memory> ShardState<M> {
    /// Handles the events of a connection's core, and passes its steps to the driver.
    pub(super) fn exchange(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        self.handle_incoming(connection, at, out);
        self.run_steps(connection, at, out);
    }

    fn handle_incoming(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        while self.handle_next(connection, at, out) {}
    }

    /// Handles the next event of a connection's core. False if there is none that can be handled now.
    pub(super) fn handle_next(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) -> bool {
        connection.push_long_reply();
        if !connection.core.has_head() {
            // The event may end the session: the acknowledgements of what is stored go before that. Those of a run of
            // batches go together.
            connection.send_acks(at.now);
        }
        let Some(incoming) = connection.core.next(at.now) else {
            return false;
        };
        let is_frame = matches!(incoming, Incoming::Message(_) | Incoming::Head(_));
        let answering = connection.long_reply.is_some() || connection.pending.is_some();
        if is_frame && answering {
            // Answers go in the order of their requests.
            connection.core.put_back();
            return false;
        }
        match LinkEvent::of(incoming, self.limits.max_batch_bytes) {
            LinkEvent::Hello(hello) => self.welcome(connection, hello, at),
            LinkEvent::Request(Ok(request)) => self.handle_request(connection, request, at),
            LinkEvent::Request(Err(error)) => {
                let error = ErrorReply::new(error.code(), error.to_string());
                self.refuse(connection, error, at);
            }
            LinkEvent::Batch(header) => self.begin_batch(connection, header, at, out),
            LinkEvent::Goodbye => {
                connection.said_goodbye = true;
                connection.finish_if_done(at.now);
            }
            LinkEvent::Closed(closed) => self.log_end(connection, &closed),
            LinkEvent::Nothing => {}
        }
        true
    }

    fn welcome(
        &mut self,
        connection: &mut Connection<M>,
        hello: Result<Hello, DecodeError>,
        at: Timestamp,
    ) {
        let welcome = Welcome {
            broker_id: self.node.id.into(),
            incarnation: self.node.incarnation,
            max_control_bytes: self.limits.max_control_bytes,
            max_batch_bytes: self.limits.max_batch_bytes,
            server: concat!("embar ", env!("CARGO_PKG_VERSION")).into(),
            region: self.node.region.nonce().into(),
        };
        match hello {
            Ok(_) => {
                // A peer asks for the list of brokers before it connects.
                connection.known_membership = self.node.membership();
                if let Err(error) = connection.core.welcome(&welcome.to_greeting(), at.now) {
                    let text = error.to_string();
                    connection.core.fail(CloseReason::BadMessage, &text, at.now);
                }
            }
            Err(error) => self.refuse(
                connection,
                ErrorReply::new(error.code(), error.to_string()),
                at,
            ),
        }
    }

    fn log_end(&self, connection: &Connection<M>, closed: &Closed) {
        if closed.by != Side::Local {
            tracing::debug!(peer = connection.name(), "{closed}");
            return;
        }
        let refused = matches!(
            closed.reason,
            CloseReason::TooLarge | CloseReason::BadFrame | CloseReason::Damaged
        );
        if refused && matches!(connection.peer, Peer::Publisher { .. }) {
            // A publisher sends nothing but batches.
            self.meter.count(Counter::RefusedBatches as usize, 1);
        }
        if !matches!(closed.reason, CloseReason::Finished | CloseReason::Shutdown) {
            tracing::info!(peer = connection.name(), "{closed}");
        }
    }

    /// Passes the steps of a connection's core to the driver.
    pub(super) fn run_steps(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let ending = connection.core.is_ending();
        if ending && let Input::Payload(batch) = &mut connection.input {
            // The session ends: the memory that the batch holds comes back at once.
            if !std::mem::replace(&mut batch.recalled, true) {
                out.push(Action::Recall(connection.token));
            }
        } else if ending {
            self.discard_held(connection);
            connection.input = Input::Frames;
            if connection.core.body_due() > 0 {
                connection.core.discard_body(at.now);
            }
        }
        connection.push_long_reply();
        if let Peer::Subscriber(cursor) = &mut connection.peer
            && connection.core.may_send_body()
        {
            cursor.sending = None;
        }
        let token = connection.token;
        while let Some(step) = connection.core.poll() {
            out.push(match step {
                Step::Recv(buf) => Action::Recv(token, buf),
                Step::Send(buf) => Action::Send(token, buf),
                Step::ShutdownWrite => Action::ShutdownWrite(token),
                Step::Close => Action::Close(token),
            });
        }
    }
}
