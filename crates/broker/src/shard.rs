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
mod ending;
mod export;
mod frames;
mod ingest;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embar_fabric::memory::Memory;
use embar_meter::profile::Recorder;
use embar_transport::{RecvBuf, SendBuf, Store, Token};
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::limits::{BATCH_HEADER_BYTES, Limits, MAX_CONTROL_BYTES};
use embar_wire::time::{Now, WallNs};

use crate::connection::{Connection, Input, Peer};
use crate::log::Lane;
use crate::node::Node;

/// How often [`Shard::tick`] wants to be called while there are connections.
pub const TICK: Duration = Duration::from_millis(100);

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
    connections: BTreeMap<Token, Connection>,
    /// Appended batches whose lane slot has not counted as completed yet.
    unacknowledged: VecDeque<(u64, Token, u64)>,
    /// Connections with acks to send.
    to_flush: Vec<Token>,
    /// Publishers that wait for room.
    paused: Vec<Token>,
    /// How many of these the other threads know of.
    told_paused: usize,
    /// Subscribers that have everything, by topic.
    waiting: BTreeMap<u32, Vec<Token>>,
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
            connections: BTreeMap::new(),
            unacknowledged: VecDeque::new(),
            to_flush: Vec::new(),
            paused: Vec::new(),
            told_paused: 0,
            waiting: BTreeMap::new(),
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

fn connection_is_closed(connections: &BTreeMap<Token, Connection>, token: Token) -> bool {
    connections.get(&token).is_none_or(|c| c.closed)
}
