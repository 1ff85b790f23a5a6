//! The connections of one network thread, as a state machine without I/O.
//!
//! Call order: [`Shard::opened`], [`Shard::received`] and [`Shard::sent`] for
//! what a reactor reports, [`Shard::tick`] every [`TICK`],
//! and after each round of these once [`Shard::settle`], which sends
//! acknowledgements and feeds subscribers. Each call appends [`Action`]s that
//! the driver must carry out in order.
//!
//! Invariants
//! - At most one receive and one send per connection are outstanding; a
//!   connection is forgotten only when both have come back.
//! - Room in the log that was admitted for a connection is given back by
//!   exactly one of append and abandon.
//! - Nothing a peer sends can stop the thread or touch another connection.

mod control;
mod export;
mod ingest;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embar_fabric::memory::Memory;
use embar_meter::profile::Recorder;
use embar_transport::{RecvBuf, SendBuf, Store, Token};
use embar_wire::control::{Control, ErrorCode, ErrorReply, Goodbye};
use embar_wire::error::DecodeError;
use embar_wire::frame::{FrameHeader, FrameId};
use embar_wire::limits::{BATCH_HEADER_BYTES, FRAME_HEADER_BYTES, Limits, MAX_CONTROL_BYTES};
use embar_wire::time::{Now, WallNs};

use crate::connection::{Connection, Ending, Input, Peer};
use crate::log::Lane;
use crate::node::Node;
use crate::profile::Counter;

/// How often [`Shard::tick`] wants to be called while there are connections.
pub const TICK: Duration = Duration::from_millis(100);
/// How long a refused peer may take to read why, before it is cut.
const LINGER: Duration = Duration::from_secs(1);
/// What a refused peer may still send meanwhile, in bytes.
const DISCARD_LIMIT_BYTES: usize = 64 << 20;
/// Size of the buffer into which it is discarded.
const DISCARD_BUFFER_BYTES: usize = 64 << 10;
/// Unsent replies after which nothing more is received from a connection.
const OUT_LIMIT_BYTES: usize = 1 << 20;

/// The time of an event, given by the driver.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Monotonic.
    pub now: Now,
    /// Wall clock.
    pub wall: WallNs,
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Action<M: Memory> {
    /// Receive into a buffer.
    Recv(Token, RecvBuf<M>),
    /// Send a buffer.
    Send(Token, SendBuf<M>),
    /// Nothing more will be sent.
    ShutdownWrite(Token),
    /// Close; outstanding buffers come back.
    Close(Token),
    /// Other threads of this broker may have subscribers for what was appended.
    WakeOthers,
}

/// See the module.
pub struct Shard<M: Memory> {
    node: Arc<Node<M>>,
    /// `None` at the head, which takes no data.
    lane: Option<Lane<M>>,
    meter: Recorder,
    limits: Limits,
    connections: HashMap<Token, Connection>,
    /// Appended batches whose lane slot has not counted as completed yet.
    unacknowledged: VecDeque<(u64, Token, u64)>,
    /// Connections with acks to send.
    to_flush: Vec<Token>,
    /// Publishers that wait for room.
    paused: Vec<Token>,
    /// Subscribers that have everything, by topic.
    waiting: HashMap<u32, Vec<Token>>,
    /// Topics appended to in this round.
    touched: Vec<u32>,
    /// Subscribers to look at in this round.
    ready: Vec<Token>,
    seen_evictions: u64,
    seen_appends: u64,
    draining: bool,
}

impl<M: Memory> Shard<M> {
    /// A shard without connections. `lane` is its own lane of the region.
    pub fn new(node: Arc<Node<M>>, lane: Option<Lane<M>>) -> Self {
        let limits = Limits::new(MAX_CONTROL_BYTES, node.config.max_batch_bytes);
        Self {
            meter: node.profile.recorder(),
            limits,
            node,
            lane,
            connections: HashMap::new(),
            unacknowledged: VecDeque::new(),
            to_flush: Vec::new(),
            paused: Vec::new(),
            waiting: HashMap::new(),
            touched: Vec::new(),
            ready: Vec::new(),
            seen_evictions: 0,
            seen_appends: 0,
            draining: false,
        }
    }

    /// Connections, those that are ending included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The counters of this thread.
    pub fn meter(&self) -> &Recorder {
        &self.meter
    }

    /// A peer connected.
    pub fn opened(
        &mut self,
        token: Token,
        peer: Option<SocketAddr>,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let mut connection = Connection::new(peer, at.now);
        let open = self.node.connection_opened();
        let too_many = open > self.node.config.max_connections;
        connection.receiving = true;
        let head = std::mem::take(&mut connection.head);
        out.push(Action::Recv(
            token,
            RecvBuf::heap(head, 0..BATCH_HEADER_BYTES),
        ));
        self.connections.insert(token, connection);
        if too_many {
            let limit = self.node.config.max_connections;
            self.refuse(
                token,
                refusal(
                    ErrorCode::ClusterFull,
                    format!("this broker holds its limit of {limit} connections: close some, or try again later"),
                ),
                at,
            );
        } else if self.draining {
            self.say_goodbye(token, at);
        }
    }

    /// A receive is over.
    pub fn received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        result: &io::Result<usize>,
        ticks: u64,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.receiving = false;
        let alive = matches!(result, Ok(n) if *n > 0) && !connection.closed;
        if !alive {
            self.receive_ended(token, buf, out);
            return;
        }
        match connection.input {
            Input::Head => self.head_received(token, buf, ticks, at, out),
            Input::Control => self.control_received(token, buf, at, out),
            Input::Payload(_) => self.payload_received(token, buf, ticks, at, out),
            Input::Discard => self.discarded(token, buf, out),
            Input::Paused { .. } => unreachable!("nothing is received while paused"),
        }
        self.flush_if_idle(token, out);
    }

    fn receive_ended(&mut self, token: Token, buf: RecvBuf<M>, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let input = std::mem::replace(&mut connection.input, Input::Discard);
        if let (Input::Payload(payload), Store::Log(reservation)) = (input, buf.into_store()) {
            self.abandon(reservation, payload.place);
        }
        self.close(token, out);
        self.forget_if_over(token);
    }

    /// Bytes of frames that start, small control frames whole.
    fn head_received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        ticks: u64,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.head_filled = buf.filled().end;
        if let Store::Heap(head) = buf.into_store() {
            connection.head = head;
        }
        if connection.frame_began.is_none() {
            connection.frame_began = Some(at.now);
        }
        if matches!(connection.peer, Peer::Publisher { .. }) {
            self.meter
                .add_ticks(crate::profile::Stage::DrainHeader as usize, ticks, 1);
        }
        self.parse_head(token, at, out);
    }

    /// Parses as many frames as the head holds, then asks for what is missing.
    fn parse_head(&mut self, token: Token, at: At, out: &mut Vec<Action<M>>) {
        loop {
            let Some(connection) = self.connections.get_mut(&token) else {
                return;
            };
            if connection.ending.is_some() || connection.closed {
                self.receive_more(token, out);
                return;
            }
            let filled = connection.head_filled;
            let Some(header) = connection.head[..filled].first_chunk::<FRAME_HEADER_BYTES>() else {
                break;
            };
            let header = FrameHeader::parse(header);
            let id = match header.check(&self.limits) {
                Ok(id) => id,
                Err(error) => {
                    let is_batch = header.id == FrameId::Batch as u16;
                    self.meter
                        .count(Counter::RefusedBatches as usize, u64::from(is_batch));
                    let error = DecodeError::from(error);
                    self.refuse(token, refusal(error.code(), error.to_string()), at);
                    continue;
                }
            };
            let total = header.frame_bytes();
            if id == FrameId::Batch {
                if filled < BATCH_HEADER_BYTES {
                    break;
                }
                self.begin_batch(token, at, out);
                return;
            }
            if filled < total {
                if total > BATCH_HEADER_BYTES {
                    self.begin_long_control(token, total, out);
                    return;
                }
                break;
            }
            let body: Vec<u8> = connection.head[FRAME_HEADER_BYTES..total].to_vec();
            connection.head.copy_within(total..filled, 0);
            connection.head_filled = filled - total;
            connection.frame_began = (filled > total).then_some(at.now);
            self.handle_control(token, id, &body, at);
        }
        self.receive_more(token, out);
    }

    fn begin_long_control(&mut self, token: Token, total: usize, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let filled = std::mem::take(&mut connection.head_filled);
        let mut frame = vec![0; total];
        frame[..filled].copy_from_slice(&connection.head[..filled]);
        connection.input = Input::Control;
        connection.receiving = true;
        out.push(Action::Recv(token, RecvBuf::heap(frame, filled..total)));
    }

    fn control_received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if buf.remaining() > 0 {
            connection.receiving = true;
            out.push(Action::Recv(token, buf));
            return;
        }
        connection.input = Input::Head;
        connection.frame_began = None;
        if let Store::Heap(frame) = buf.into_store()
            && let Some((head, body)) = frame.split_first_chunk::<FRAME_HEADER_BYTES>()
            && let Ok(id) = FrameHeader::parse(head).check(&self.limits)
        {
            self.handle_control(token, id, body, at);
        }
        self.receive_more(token, out);
    }

    /// Asks for the next bytes of a connection that has no receive outstanding.
    fn receive_more(&mut self, token: Token, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.receiving || connection.closed || connection.out.len() > OUT_LIMIT_BYTES {
            return;
        }
        if connection.ending.is_some() {
            connection.input = Input::Discard;
            connection.receiving = true;
            let buf = RecvBuf::heap(vec![0; DISCARD_BUFFER_BYTES], 0..DISCARD_BUFFER_BYTES);
            out.push(Action::Recv(token, buf));
        } else if matches!(connection.input, Input::Head) {
            connection.receiving = true;
            let head = std::mem::take(&mut connection.head);
            out.push(Action::Recv(
                token,
                RecvBuf::heap(head, connection.head_filled..BATCH_HEADER_BYTES),
            ));
        }
    }

    fn discarded(&mut self, token: Token, buf: RecvBuf<M>, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let got = buf.filled().len();
        let Some(ending) = &mut connection.ending else {
            return;
        };
        ending.discard_left = ending.discard_left.saturating_sub(got);
        if ending.discard_left == 0 {
            self.close(token, out);
        } else {
            self.receive_more(token, out);
        }
    }

    /// A send is over.
    pub fn sent(
        &mut self,
        token: Token,
        buf: SendBuf<M>,
        result: &io::Result<()>,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.sending = false;
        connection.recycle(buf.into_parts().0);
        if let Peer::Subscriber(cursor) = &mut connection.peer {
            cursor.sending = None;
        }
        if result.is_err() {
            self.close(token, out);
        }
        if connection_is_closed(&self.connections, token) {
            self.forget_if_over(token);
            return;
        }
        self.ready.push(token);
        self.flush_if_idle(token, out);
        // A connection that was not read for its unsent replies is read again.
        self.resume_input(token, at, out);
    }

    fn resume_input(&mut self, token: Token, at: At, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        if !connection.receiving && matches!(connection.input, Input::Head) && !connection.closed {
            self.parse_head(token, at, out);
        }
    }

    /// Sends what has gathered, or ends the connection if that was all.
    fn flush_if_idle(&mut self, token: Token, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.sending || connection.closed {
            return;
        }
        if !connection.out.is_empty() {
            connection.sending = true;
            out.push(Action::Send(token, connection.take_out()));
        } else if let Some(ending) = &mut connection.ending
            && !ending.write_closed
        {
            ending.write_closed = true;
            out.push(Action::ShutdownWrite(token));
            self.receive_more(token, out);
        }
    }

    /// Tells a peer why, and closes once it had time to read that.
    fn refuse(&mut self, token: Token, error: ErrorReply, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.ending.is_some() {
            return;
        }
        tracing::info!(peer = connection.name(), code = ?error.code, "refused: {}", error.message);
        // The longest reason fits a control frame; if not, the peer only sees the end.
        let _ = connection.push(&Control::Error(error));
        self.end(token, at);
    }

    /// Ends a connection politely: what is queued is sent, the rest discarded.
    fn end(&mut self, token: Token, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.ending.get_or_insert(Ending {
            deadline: at.now.after(LINGER),
            discard_left: DISCARD_LIMIT_BYTES,
            write_closed: false,
        });
        connection.frame_began = None;
        connection.head_filled = 0;
        if matches!(connection.input, Input::Paused { .. }) {
            connection.input = Input::Discard;
        }
        self.ready.push(token);
    }

    fn close(&mut self, token: Token, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if !connection.closed {
            connection.closed = true;
            out.push(Action::Close(token));
        }
        self.forget_if_over(token);
    }

    fn forget_if_over(&mut self, token: Token) {
        let over = |c: &Connection| c.closed && !c.receiving && !c.sending;
        if self.connections.get(&token).is_some_and(over) {
            self.connections.remove(&token);
            self.node.connection_closed();
        }
    }

    /// After each round of events: acknowledges, resumes publishers, feeds subscribers.
    pub fn settle(&mut self, at: At, out: &mut Vec<Action<M>>) {
        self.acknowledge();
        self.retry_paused(at, out);
        self.flush_acks(out);
        self.close_overtaken(out);
        self.wake_subscribers(out);
        let mut ready = std::mem::take(&mut self.ready);
        for token in ready.drain(..) {
            self.feed(token, at, out);
            self.flush_if_idle(token, out);
        }
        // `feed` may list a connection again only by refusing it.
        ready.append(&mut self.ready);
        for token in ready.drain(..) {
            self.flush_if_idle(token, out);
        }
        self.ready = ready;
    }

    fn deadline_of(&self, connection: &Connection) -> Option<Now> {
        let config = &self.node.config;
        if connection.closed {
            return None;
        }
        if let Some(ending) = &connection.ending {
            return Some(ending.deadline);
        }
        if let Input::Paused { since, .. } = connection.input {
            return Some(since.after(config.backpressure_timeout));
        }
        let began = connection.frame_began?;
        let stranger = matches!(connection.peer, Peer::Stranger);
        Some(began.after(if stranger {
            config.hello_timeout
        } else {
            config.frame_timeout
        }))
    }

    /// Ends what has taken too long.
    pub fn tick(&mut self, at: At, out: &mut Vec<Action<M>>) {
        let late = |c: &Connection| self.deadline_of(c).is_some_and(|d| d <= at.now);
        let late: Vec<Token> = self
            .connections
            .iter()
            .filter(|(_, c)| late(c))
            .map(|(t, _)| *t)
            .collect();
        for token in late {
            self.too_late(token, at, out);
        }
    }

    fn too_late(&mut self, token: Token, at: At, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        if connection.ending.is_some() {
            self.close(token, out);
            return;
        }
        let error = if matches!(connection.input, Input::Paused { .. }) {
            self.meter.count(Counter::RefusedBatches as usize, 1);
            refusal(
                ErrorCode::Backpressure,
                "the log had no room for this batch in time: publish more slowly, or give the cluster a larger region".into(),
            )
        } else if matches!(connection.peer, Peer::Stranger) {
            refusal(ErrorCode::Timeout, "no Hello came in time".into())
        } else {
            refusal(
                ErrorCode::Timeout,
                "a frame was begun and not completed in time".into(),
            )
        };
        self.refuse(token, error, at);
        self.flush_if_idle(token, out);
        let mid_payload = self.connections.get(&token);
        if mid_payload.is_some_and(|c| matches!(c.input, Input::Payload(_))) {
            // Its room in the log comes back with the buffer.
            self.close(token, out);
        }
    }

    /// From now on peers are told to go elsewhere; ends when they did.
    pub fn drain(&mut self, at: At, out: &mut Vec<Action<M>>) {
        self.draining = true;
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        for token in tokens {
            self.say_goodbye(token, at);
            self.flush_if_idle(token, out);
        }
    }

    /// Closes whatever is left.
    pub fn cut(&mut self, out: &mut Vec<Action<M>>) {
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        for token in tokens {
            self.close(token, out);
        }
    }

    fn say_goodbye(&mut self, token: Token, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.said_goodbye || connection.ending.is_some() {
            return;
        }
        connection.said_goodbye = true;
        let goodbye = Goodbye {
            reason: "this broker is stopping".into(),
        };
        let _ = connection.push(&Control::Goodbye(goodbye));
        // A publisher closes by itself when its batches are acknowledged.
        if !matches!(connection.peer, Peer::Publisher { .. }) {
            self.end(token, at);
        }
    }
}

/// Why a request or a batch is refused.
fn refusal(code: ErrorCode, message: String) -> ErrorReply {
    use ErrorCode::{Backpressure, ChecksumMismatch, ClusterFull, Draining, Timeout};
    let retryable = matches!(
        code,
        Backpressure | ChecksumMismatch | ClusterFull | Draining | Timeout
    );
    ErrorReply {
        code,
        message,
        retryable,
        topic: None,
        first_available: None,
    }
}

fn connection_is_closed(connections: &HashMap<Token, Connection>, token: Token) -> bool {
    connections.get(&token).is_none_or(|c| c.closed)
}
