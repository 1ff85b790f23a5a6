//! The connections of one network thread, as a state machine without I/O. Each is a session: its
//! [`SessionCore`](embar_session::SessionCore) does the handshake, frames, heartbeats and the end; the log's own rules are here.
//!
//! Call order: [`Shard::opened`], [`Shard::received`] and [`Shard::sent`] for
//! what a reactor reports, [`Shard::tick`] every [`TICK`],
//! and after each round of these once [`Shard::settle`], which answers, admits
//! batches, and sends acknowledgements and batches. Calls append [`Action`]s
//! that the driver must carry out in order. The shard appends a batch when the reactor reports its last
//! byte. It admits nothing, and so evicts nothing, before [`Shard::settle`].
//!
//! Invariants
//! - At most one receive and one send per connection are outstanding. The shard
//!   removes a connection only when both have come back. The receive is the
//!   core's, or the payload's of a batch.
//! - Exactly one of append, submit and abandon gives back the space in the log that a connection got.
//! - Nothing that a peer sends can stop the thread or touch another connection.

mod arriving;
mod control;
mod creating;
mod disk_piece;
mod disk_reads;
mod ending;
mod exchange;
mod export;
mod ingest;
mod members;
mod order;
mod paused_publishers;
mod refusals;
mod retry;
mod searching_subscribers;
mod staging;
mod staging_memory;
mod state;
mod waiting_subscribers;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES};
use embar_memory::Memory;
use embar_meter::profile::Recorder;
use embar_session::{Arrival, CloseReason, RingPools, SessionConfig};
use embar_transport::{Peer as Origin, RecvBuf, SendBuf, Token};
use embar_wire::control::ErrorCode;
use embar_wire::limits::{BATCH_HEADER_BYTES, Limits, MAX_REQUEST_BYTES};

use crate::clock::Timestamp;
use crate::config::BrokerConfig;
use crate::connection::{Connection, Input, Peer, REPLY_SHARE};
use crate::connections::{Counted, Full};
pub use crate::disk_bytes::DiskBytes;
use crate::node::Node;
use crate::peers::PeerId;
use crate::profile::{Counter, Stage};
use arriving::Arriving;
pub use disk_piece::{DiskPiece, DiskRead};
use refusals::{STOPPING, WRONG_USER};
pub use searching_subscribers::{PASSED_OVER_MAX, TURN};
use state::ShardState;

/// How often the driver calls [`Shard::tick`] while there are connections.
pub const TICK: Duration = Duration::from_millis(100);

/// Size of a connection's send ring, for acknowledgements and answers. Batches go to the socket from the log.
const SEND_RING_BYTES: usize = 64 << 10;
/// Size of a connection's receive ring, for requests, and for small batches, which come many at a time. The payload
/// of others goes straight into the log. Only what came at once takes memory.
const RECV_RING_BYTES: usize = 128 << 10;
/// Rings of each kind that a thread keeps for the next connections.
const IDLE_RINGS: usize = 64;
/// How long a peer may take to read why its session ends.
const LINGER: Duration = Duration::from_secs(1);
/// How many bytes a refused peer may still send meanwhile.
const DISCARD_LIMIT_BYTES: usize = 64 << 20;

const _: () =
    assert!(FRAME_HEADER_BYTES + MAX_REQUEST_BYTES as usize + CHECKSUM_BYTES <= RECV_RING_BYTES);

/// What the driver has to do.
#[derive(Debug)]
pub enum Action<M: Memory> {
    /// Receive into a buffer.
    Recv(Token, RecvBuf<M>),
    /// Send a buffer.
    Send(Token, SendBuf<M>),
    /// Give back the buffer that is being received into. The shard goes on with another one.
    Recall(Token),
    /// Shut down the sending side.
    ShutdownWrite(Token),
    /// Close, and give back outstanding buffers.
    Close(Token),
    /// Wake the other threads: they may have subscribers for what was appended, or answers to pass on.
    WakeOthers,
    /// Wake the sequencer if it sleeps: there is something for it, or for the disks that its process writes.
    Submitted,
    /// Read from a disk, and say what came of it by [`Shard::disk_read`].
    ReadDisk(Token, DiskRead),
}

/// The connections of one network thread, and what they share.
pub struct Shard<M: Memory> {
    session_config: SessionConfig,
    rings: RingPools,
    connections: BTreeMap<Token, Connection<M>>,
    /// Those that have not greeted yet.
    arriving: BTreeMap<Token, Arriving>,
    /// Apart from the connections, so that its methods can take one of them.
    state: ShardState<M>,
    seen_evictions: u64,
    seen_recalls: u64,
    /// Empty between two rounds; kept for its memory.
    in_turn: Vec<Token>,
    /// [`Shard::tick`] was called, and [`Shard::settle`] has not looked at the time since.
    ticked: bool,
}

impl<M: Memory> Shard<M> {
    /// A shard without connections. `lane` is its number among the threads of its broker.
    ///
    /// # Errors
    /// This machine gives no memory for rings.
    pub fn new(node: Arc<Node<M>>, lane: u16) -> io::Result<Self> {
        let limits = Limits::new(MAX_REQUEST_BYTES, node.config.max_batch_bytes);
        Ok(Self {
            session_config: session_config(&node.config, limits),
            rings: RingPools::new(SEND_RING_BYTES, RECV_RING_BYTES, IDLE_RINGS)?,
            connections: BTreeMap::new(),
            arriving: BTreeMap::new(),
            state: ShardState::new(node, lane, limits),
            seen_evictions: 0,
            seen_recalls: 0,
            in_turn: Vec::new(),
            ticked: false,
        })
    }

    /// Connections, those that arrive or are ending included.
    pub fn len(&self) -> usize {
        self.connections.len() + self.arriving.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters of this thread.
    pub fn meter(&self) -> &Recorder {
        &self.state.meter
    }

    /// A peer connected; one without an address by the Unix socket.
    pub fn opened(
        &mut self,
        token: Token,
        origin: Origin,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let refused = self.serve(PeerId::of(origin.tcp()));
        self.open(token, origin, refused, at, out);
    }

    /// Whether this broker may have one more connection by shared memory.
    pub fn may_share_memory(&self) -> bool {
        self.state.node.may_share_memory()
    }

    /// A process of another user, not root's either, connected by a socket file: it is refused, and counted.
    pub fn opened_by_stranger(
        &mut self,
        token: Token,
        origin: Origin,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        self.meter().count(Counter::RefusedUsers as usize, 1);
        let refused = (ErrorCode::WrongUser, WRONG_USER.into());
        self.open(token, origin, Some(refused), at, out);
    }

    fn open(
        &mut self,
        token: Token,
        origin: Origin,
        refused: Option<(ErrorCode, String)>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let node = &self.state.node;
        let counted = match refused {
            None => Counted::Served,
            Some(_) if node.refuse(PeerId::of(origin.tcp())) => Counted::Refused,
            Some(_) => return out.push(Action::Close(token)),
        };
        node.connection_opened(origin);
        let mut arrival = Arrival::new(&self.session_config, at.now);
        if let Some((code, text)) = refused {
            arrival.refuse(CloseReason::Refused, code.number(), &text, at.now);
        }
        let arriving = Arriving {
            arrival,
            origin,
            counted,
        };
        self.arriving.insert(token, arriving);
        self.state.ready.push(token);
    }

    /// Counts a peer that this broker serves, or says why it does not.
    fn serve(&self, peer: PeerId) -> Option<(ErrorCode, String)> {
        if self.state.draining {
            return Some((ErrorCode::Draining, STOPPING.into()));
        }
        let node = &self.state.node;
        let full = node.serve(peer).err()?;
        let limit = node.config.max_connections;
        let text = match full {
            Full::Peer(its) => format!(
                "your host has its share of this broker's limit of {limit} connections, {its} of them: close some, or raise --max-connections"
            ),
            Full::All => format!(
                "this broker holds its limit of {limit} connections, of which the last few are for its cluster's machines: close some, or try again later"
            ),
        };
        Some((ErrorCode::ClusterFull, text))
    }

    /// A receive is over.
    pub fn received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        result: &io::Result<usize>,
        ticks: u64,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            if let Some(arriving) = self.arriving.get_mut(&token) {
                arriving.arrival.received(buf, result, at.now);
                self.state.ready.push(token);
            }
            return;
        };
        if matches!(connection.input, Input::Payload(_)) {
            self.state
                .payload_received(connection, buf, result, ticks, at, out);
        } else {
            let came = buf.filled().len();
            if matches!(connection.peer, Peer::Publisher { .. }) && came > 0 {
                let stage = match came > BATCH_HEADER_BYTES {
                    true => Stage::DrainPayloadToBuffer,
                    false => Stage::DrainHeader,
                };
                self.state.meter.add_ticks(stage as usize, ticks, 1);
            }
            connection.core.received(buf, result, at.now);
        }
        self.state.ready.push(token);
    }

    /// A send is over.
    pub fn sent(&mut self, token: Token, buf: SendBuf<M>, result: &io::Result<()>, at: Timestamp) {
        let Some(connection) = self.connections.get_mut(&token) else {
            if let Some(arriving) = self.arriving.get_mut(&token) {
                arriving.arrival.sent(buf, result);
                self.state.ready.push(token);
            }
            return;
        };
        connection.core.sent(buf, result, at.now);
        self.state.check_still_retained(connection);
        if result.is_err() {
            // The peer reads it no more. The shard still handles what the peer sent last.
            connection.long_reply = None;
        }
        self.state.ready.push(token);
    }

    /// After each round of events: handles what came, acknowledges, resumes publishers, sends to
    /// subscribers. True when the sequencer had stored something, or there may be more to do.
    pub fn settle(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) -> bool {
        let news = self.poll_order(at, out);
        let mut ready = std::mem::take(&mut self.in_turn);
        std::mem::swap(&mut ready, &mut self.state.ready);
        for token in &ready {
            self.exchange(*token, at, out);
        }
        let ticked = std::mem::take(&mut self.ticked);
        if ticked {
            self.retry_disk_reads(at.now);
            self.refuse_in_disk_trouble(at);
        }
        self.retry_paused(ticked, at, out);
        self.recall(ticked, at, out);
        self.answer_creations(at);
        self.wake_waiting(out);
        self.flush_acks(at, out);
        self.close_overtaken(at, out);
        self.state.searching.begin_round();
        loop {
            // First those that search: they have waited since an earlier round.
            while let Some(token) = self.state.searching.next() {
                self.search(token, at, out);
            }
            // Connections that become ready meanwhile have their turn, too: their bytes are here already.
            ready.append(&mut self.state.ready);
            if ready.is_empty() {
                break;
            }
            for token in ready.drain(..) {
                self.send_next(token, at, out);
            }
        }
        self.in_turn = ready;
        let reads = self.state.disk_reads.drain(..);
        out.extend(reads.map(|(token, read)| Action::ReadDisk(token, read)));
        if std::mem::take(&mut self.state.has_grown_for_disks) {
            self.state.node.log().announce_grown();
            self.state.submitted = true;
        }
        if std::mem::take(&mut self.state.submitted) {
            out.push(Action::Submitted);
        }
        news || !self.state.searching.is_empty()
    }

    /// Has a subscriber go on looking for batches of its share, as [`Self::send_next`].
    fn search(&mut self, token: Token, at: Timestamp, out: &mut Vec<Action<M>>) {
        if let Some(connection) = self.connections.get_mut(&token)
            && let Peer::Subscriber(cursor) = &mut connection.peer
        {
            cursor.is_searching = false;
            self.send_next(token, at, out);
        }
    }

    /// Handles the events of a connection's core, and passes its steps to the driver.
    fn exchange(&mut self, token: Token, at: Timestamp, out: &mut Vec<Action<M>>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            self.state.exchange(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
            }
        } else {
            self.arrive(token, at, out);
        }
    }

    /// Sends a subscriber what comes next, then as [`Self::exchange`].
    fn send_next(&mut self, token: Token, at: Timestamp, out: &mut Vec<Action<M>>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            self.state.send_next(connection, at);
            self.state.exchange(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
            }
        } else {
            self.arrive(token, at, out);
        }
    }
}

/// How this broker configures its sessions.
fn session_config(config: &BrokerConfig, limits: Limits) -> SessionConfig {
    SessionConfig::default().with(|session| {
        session.max_frame_bytes = limits.max_control_bytes;
        session.max_body_bytes = limits.max_batch_bytes - FRAME_HEADER_BYTES as u32;
        session.keep_alive = config.keep_alive;
        session.idle_timeout = config.idle_timeout;
        session.hello_timeout = config.hello_timeout;
        session.frame_timeout = config.frame_timeout;
        // A batch that comes holds room in the log, which others wait for.
        session.min_body_rate = 0;
        // Every frame is written in one call.
        session.reservation_timeout = Duration::ZERO;
        session.linger = LINGER;
        session.discard_limit_bytes = DISCARD_LIMIT_BYTES;
        session.max_kept_bytes = 0;
        session.reply_room = SEND_RING_BYTES / REPLY_SHARE;
        // No byte of a payload before a batch shows how large those of its publisher are.
        session.read_ahead = BATCH_HEADER_BYTES;
    })
}
