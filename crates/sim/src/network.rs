//! Byte streams between clients and the broker, with seeded delays, pieces, stalls, cuts and damage.
//!
//! It is the reactor of both sides: it takes the buffers that they hand in and completes them, at
//! most one receive or send of a connection at a time. Within a direction bytes keep their order;
//! nothing else keeps any.

mod connection;
mod pipe;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use embar_client::sim_api::Lane;
use embar_fabric::Simulated;
use embar_transport::{RecvBuf, SendBuf, Token};

pub use connection::Outgoing;
use connection::{ClientSend, Connection, FarState, NearState};
use pipe::End;

use crate::random::Random;

/// Names a connection for good.
pub type Id = u32;

/// What the network does to those who use it.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Longest usual delay of a piece, in nanoseconds.
    pub delay_ns: u64,
    /// Pieces have at most this many bytes.
    pub piece_bytes: u64,
    /// One in so many batches is damaged on its way; 0 = none.
    pub damage_one_in: u64,
}

/// What happened to a client's connection.
#[derive(Debug)]
pub enum NearEvent {
    /// It stands.
    Connected,
    /// So many more bytes are in the buffer.
    Received(Vec<u8>, usize),
    /// All of a send was taken.
    Sent,
    /// It is over, and no buffer of it is outstanding.
    Ended(String),
}

/// What happened to the broker's end of a connection.
#[derive(Debug)]
pub enum FarEvent {
    /// A client came.
    Accepted(Token),
    /// A receive is over.
    Received(Token, RecvBuf<Simulated>, io::Result<usize>),
    /// A send is over.
    Sent(Token, SendBuf<Simulated>, io::Result<()>),
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    connections: BTreeMap<Id, Connection>,
    next: Id,
    /// The broker's incarnation while it listens.
    listening: Option<u32>,
    weather: Weather,
    random: Random,
    /// Batches damaged so far.
    pub damaged: u64,
}

impl Network {
    /// Without connections.
    pub fn new(weather: Weather, random: Random) -> Self {
        Self {
            connections: BTreeMap::new(),
            next: 0,
            listening: None,
            weather,
            random,
            damaged: 0,
        }
    }

    fn soon(&mut self, now: u64) -> u64 {
        let long = if self.random.one_in(50) { 20 } else { 1 };
        now + 1_000 + self.random.below(long * self.weather.delay_ns + 1)
    }

    fn piece(&mut self, max: usize) -> usize {
        let most = (max as u64).min(self.weather.piece_bytes).max(1);
        // Whole pieces are common, splinters at any place happen.
        let piece = if self.random.one_in(3) {
            self.random.size(most)
        } else {
            most
        };
        piece as usize
    }

    /// Whether neither side knows of any connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// All connections.
    pub fn ids(&self) -> Vec<Id> {
        self.connections.keys().copied().collect()
    }

    /// Connections of a client that have something for it.
    pub fn near_ready(&self, client: usize, now: u64) -> Vec<Id> {
        let ready = self.connections.iter();
        let ready = ready.filter(|(_, c)| c.client == client && c.near_ready(now));
        ready.map(|(id, _)| *id).collect()
    }

    /// Connections that have something for the broker.
    pub fn far_ready(&self, now: u64) -> Vec<Id> {
        let ready = self.connections.iter().filter(|(_, c)| c.far_ready(now));
        ready.map(|(id, _)| *id).collect()
    }

    /// When something may happen next, after `now`.
    pub fn next_at(&self, now: u64) -> Option<u64> {
        let times = self.connections.values().filter_map(Connection::next_at);
        times.filter(|at| *at > now).min()
    }

    /// Whose connection it is.
    pub fn owner(&self, id: Id) -> Option<(usize, Lane)> {
        self.connections.get(&id).map(|c| (c.client, c.lane))
    }

    fn sweep(&mut self, id: Id) {
        if self.connections.get(&id).is_some_and(Connection::is_over) {
            self.connections.remove(&id);
        }
    }

    // The clients' side.

    /// A client connects.
    pub fn connect(&mut self, client: usize, lane: Lane, now: u64) -> Id {
        let id = self.next;
        self.next += 1;
        let at = self.soon(now);
        self.connections
            .insert(id, Connection::new(client, lane, at));
        id
    }

    /// A client wants bytes.
    pub fn client_recv(&mut self, id: Id, buffer: Vec<u8>, space: Range<usize>) {
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.near.recv.is_none(), "one receive at a time");
            c.near.recv = Some((buffer, space));
        }
    }

    /// A client sends bytes.
    pub fn client_send(&mut self, id: Id, bytes: Outgoing) {
        let damage =
            matches!(bytes, Outgoing::Batch(_)) && self.random.one_in(self.weather.damage_one_in);
        let damage = damage.then(|| self.random.below(8 * bytes.bytes().len() as u64) as usize);
        if let Some(c) = self.connections.get_mut(&id) {
            assert!(c.near.send.is_none(), "one send at a time");
            self.damaged += u64::from(damage.is_some());
            c.near.send = Some(ClientSend {
                bytes,
                sent: 0,
                damage,
            });
        }
    }

    /// A client closes.
    pub fn client_close(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id)
            && c.near.state != NearState::Closed
        {
            c.near.state = NearState::Closing(at);
        }
    }

    /// A client is no more.
    pub fn client_died(&mut self, client: usize, now: u64) {
        for id in self.ids() {
            if self.owner(id).is_some_and(|(owner, _)| owner == client) {
                self.end_near(id, now);
            }
        }
    }

    /// The next event of a client's connection.
    pub fn near_event(&mut self, id: Id, now: u64) -> Option<NearEvent> {
        let c = self
            .connections
            .get_mut(&id)
            .filter(|c| c.near_ready(now))?;
        match c.near.state {
            NearState::Connecting(_) if self.listening.is_some() => {
                c.near.state = NearState::Open;
                c.far.state = FarState::Knocking;
                Some(NearEvent::Connected)
            }
            NearState::Connecting(_) => Some(self.ended(id, "refused", now)),
            NearState::Closing(_) => Some(self.ended(id, "closed", now)),
            NearState::Closed => None,
            NearState::Open => self.near_transfer(id, now),
        }
    }

    fn ended(&mut self, id: Id, cause: &str, now: u64) -> NearEvent {
        self.end_near(id, now);
        NearEvent::Ended(cause.into())
    }

    fn end_near(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.connections.get_mut(&id) {
            c.near.state = NearState::Closed;
            (c.near.recv, c.near.send) = (None, None);
            if self.random.one_in(4) {
                c.up.sever(at, &mut self.random);
            } else {
                c.up.finish(at);
            }
        }
        self.sweep(id);
    }

    fn near_transfer(&mut self, id: Id, now: u64) -> Option<NearEvent> {
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let c = self.connections.get_mut(&id)?;
        let readable = c.down.readable(now);
        if readable == 0 && c.down.is_reset(now) {
            return Some(self.ended(id, "reset", now));
        }
        let can_receive = c.near.recv.is_some() && readable > 0;
        let room = c.up.room();
        if room > 0
            && (send_first || !can_receive)
            && let Some(send) = &mut c.near.send
        {
            let all = send.bytes.bytes();
            let count = most.min(room).min(all.len() - send.sent);
            let mut piece = all[send.sent..send.sent + count].to_vec();
            if let Some(bit) = send.damage
                && let Some(at) = (bit / 8).checked_sub(send.sent).filter(|at| *at < count)
            {
                piece[at] ^= 1 << (bit % 8);
            }
            send.sent += count;
            let done = send.sent == all.len();
            c.up.write(piece, at);
            if done {
                c.near.send = None;
                return Some(NearEvent::Sent);
            }
            return None;
        }
        if can_receive {
            let (mut buffer, space) = c.near.recv.take()?;
            let bytes = c.down.read(most.min(space.len()), now);
            buffer[space.start..space.start + bytes.len()].copy_from_slice(&bytes);
            return Some(NearEvent::Received(buffer, bytes.len()));
        }
        let ended = c.near.recv.is_some() && c.down.ended(now).is_some();
        ended.then(|| self.ended(id, "the broker closed the connection", now))
    }

    // The broker's side.

    /// The broker listens from now on.
    pub fn broker_up(&mut self, incarnation: u32) {
        self.listening = Some(incarnation);
    }

    /// The broker is dead; all of its buffers are dropped here.
    pub fn broker_died(&mut self, now: u64) {
        self.listening = None;
        for id in self.ids() {
            // A peer may hear of it at once, or when the host is back.
            let at = self.soon(now) + self.random.below(300_000_000);
            let Some(c) = self.connections.get_mut(&id) else {
                continue;
            };
            (c.far.recv, c.far.send) = (None, None);
            if c.far.state != FarState::Absent {
                c.far.state = FarState::Gone;
                c.down.sever(at, &mut self.random);
            }
            self.sweep(id);
        }
    }

    fn of(&mut self, token: Token) -> Option<&mut Connection> {
        let c = self.connections.get_mut(&(token.index() as Id))?;
        (c.far.state == FarState::Open(token)).then_some(c)
    }

    /// The broker wants bytes.
    pub fn broker_recv(&mut self, token: Token, buf: RecvBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.far.recv.is_none(), "one receive at a time");
            c.far.recv = Some(buf);
        }
    }

    /// The broker sends bytes.
    pub fn broker_send(&mut self, token: Token, buf: SendBuf<Simulated>) {
        let c = self.connections.get_mut(&(token.index() as Id));
        if let Some(c) = c {
            assert!(c.far.send.is_none(), "one send at a time");
            c.far.send = Some(buf);
        }
    }

    /// The broker sends nothing more.
    pub fn broker_shutdown(&mut self, token: Token, now: u64) {
        let at = self.soon(now);
        if let Some(c) = self.of(token) {
            c.down.finish(at);
        }
    }

    /// The broker closes.
    pub fn broker_close(&mut self, token: Token, now: u64) {
        let at = self.soon(now);
        let mut random = self.random.fork();
        if let Some(c) = self.of(token) {
            c.far.state = FarState::Closed(token);
            // Unread bytes make a kernel reset the connection.
            if c.up.next_at().is_some() && random.one_in(2) {
                c.down.sever(at, &mut random);
            } else {
                c.down.finish(at);
            }
        }
        self.sweep(token.index() as Id);
    }

    /// The next event of the broker's end of a connection.
    pub fn far_event(&mut self, id: Id, now: u64) -> Option<FarEvent> {
        let incarnation = self.listening?;
        let c = self.connections.get_mut(&id).filter(|c| c.far_ready(now))?;
        let event = match c.far.state {
            FarState::Absent | FarState::Gone => None,
            FarState::Knocking => {
                let token = Token::new(id, incarnation);
                c.far.state = FarState::Open(token);
                Some(FarEvent::Accepted(token))
            }
            FarState::Closed(token) => match (c.far.recv.take(), c.far.send.take()) {
                (Some(buf), send) => {
                    c.far.send = send;
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(FarEvent::Received(token, buf, Err(error)))
                }
                (None, Some(buf)) => {
                    let error = io::ErrorKind::ConnectionAborted.into();
                    Some(FarEvent::Sent(token, buf, Err(error)))
                }
                (None, None) => None,
            },
            FarState::Open(token) => self.far_transfer(id, token, now),
        };
        self.sweep(id);
        event
    }

    fn far_transfer(&mut self, id: Id, token: Token, now: u64) -> Option<FarEvent> {
        let send_first = self.random.one_in(2);
        let at = self.soon(now);
        let most = self.piece(usize::MAX);
        let damage = self.random.one_in(self.weather.damage_one_in);
        let c = self.connections.get_mut(&id)?;
        let readable = c.up.readable(now);
        let can_receive = c.far.recv.is_some() && (readable > 0 || c.up.ended(now).is_some());
        let dead = c.is_dead(now);
        let can_send = c.far.send.is_some() && (dead || c.down.room() > 0);
        if can_receive && !(can_send && send_first) {
            let mut buf = c.far.recv.take()?;
            if readable == 0 {
                let result = match c.up.ended(now) {
                    Some(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
                    _ => Ok(0),
                };
                return Some(FarEvent::Received(token, buf, result));
            }
            let bytes = c.up.read(most.min(buf.remaining()), now);
            buf.fill(&bytes);
            return Some(FarEvent::Received(token, buf, Ok(bytes.len())));
        }
        if !can_send {
            return None;
        }
        let mut buf = c.far.send.take()?;
        if dead {
            let error = io::ErrorKind::BrokenPipe.into();
            return Some(FarEvent::Sent(token, buf, Err(error)));
        }
        let count = most.min(c.down.room()).min(buf.remaining());
        let (mut piece, batches) = buf.with_unsent(|head, body| {
            let from_head = count.min(head.len());
            let mut piece = head[..from_head].to_vec();
            piece.extend_from_slice(&body[..count - from_head]);
            (piece, from_head..count)
        });
        // Control frames carry no checksum, so only batches are damaged.
        if damage && !batches.is_empty() {
            let hit = batches.start + self.random.below(batches.len() as u64) as usize;
            piece[hit] ^= 1 << self.random.below(8);
            self.damaged += 1;
        }
        buf.advance(count);
        c.down.write(piece, at);
        if buf.remaining() > 0 {
            c.far.send = Some(buf);
            return None;
        }
        Some(FarEvent::Sent(token, buf, Ok(())))
    }

    // Faults.

    /// Breaks a connection, most likely in the middle of a frame.
    pub fn cut(&mut self, id: Id, now: u64) {
        let (up_at, down_at) = (self.soon(now), self.soon(now));
        if let Some(c) = self.connections.get_mut(&id) {
            c.up.sever(up_at, &mut self.random);
            c.down.sever(down_at, &mut self.random);
        }
    }

    /// Nothing arrives on one direction of a connection for a while.
    pub fn stall(&mut self, id: Id, until: u64) {
        let up = self.random.one_in(2);
        if let Some(c) = self.connections.get_mut(&id) {
            if up { &mut c.up } else { &mut c.down }.stall(until);
        }
    }

    /// No stalls, no damage from now on.
    pub fn calm(&mut self) {
        self.weather.damage_one_in = 0;
        for c in self.connections.values_mut() {
            c.up.stall(0);
            c.down.stall(0);
        }
    }
}
