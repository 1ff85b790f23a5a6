//! Byte streams between clients and brokers, with seeded delays, pieces, stalls, cuts and damage.
//!
//! It is the reactor of both sides: it takes the buffers that they hand in and completes them, at
//! most one receive or send of a connection at a time. Within a direction bytes keep their order;
//! nothing else keeps any.

mod broker_end;
mod client_end;
mod connection;
mod pipe;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use embar_client::sim_api::ChannelId;
use embar_memory::Simulated;
use embar_transport::{RecvBuf, SendBuf, Token};

pub use connection::Origin;
use connection::{Connection, Deaf};

use crate::random::Random;

/// Names a connection for good.
pub type Id = u32;

/// What the network does to its users.
#[derive(Clone, Copy, Debug)]
pub struct NetworkConditions {
    /// Longest usual delay of a piece, in nanoseconds.
    pub delay_ns: u64,
    /// Pieces have at most this many bytes.
    pub piece_bytes: u64,
    /// Bytes that one direction of a connection holds at most.
    pub window_bytes: usize,
    /// One in so many sends is damaged on its way; 0 = none.
    pub damage_one_in: u64,
}

/// What happened to a client's connection.
#[derive(Debug)]
pub enum ClientEvent {
    /// It stands.
    Connected,
    /// A receive is over.
    Received(RecvBuf, io::Result<usize>),
    /// A send is over.
    Sent(SendBuf, io::Result<()>),
    /// It is over, and no buffer of it is outstanding.
    Ended(String),
}

/// What happened to the broker's end of a connection.
#[derive(Debug)]
pub enum BrokerEvent {
    /// A client came, from this address unless it is on the broker's machine.
    Accepted(Token, Option<SocketAddr>),
    /// A receive is over.
    Received(Token, RecvBuf<Simulated>, io::Result<usize>),
    /// A send is over.
    Sent(Token, SendBuf<Simulated>, io::Result<()>),
}

/// All connections, and what is on its way in them.
#[derive(Debug)]
pub struct Network {
    connections: BTreeMap<Id, Connection>,
    next: Id,
    /// By row: the broker's incarnation while it listens.
    listening: BTreeMap<u16, u32>,
    /// Rows of brokers that have no descriptor for one more connection.
    short: BTreeSet<u16>,
    conditions: NetworkConditions,
    random: Random,
    /// What was damaged so far.
    pub damaged: Damaged,
    /// Clients that a broker did not accept for a while, or let go at once, for want of a descriptor.
    pub unaccepted: u64,
}

/// Sends that were damaged, each in one bit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damaged {
    /// In a batch.
    pub batches: u64,
    /// In an acknowledgement, a request, an answer, or a frame of the session's own.
    pub frames: u64,
}

impl Damaged {
    fn count(&mut self, is_batch: bool) {
        self.batches += u64::from(is_batch);
        self.frames += u64::from(!is_batch);
    }
}

impl Network {
    /// Without connections.
    pub fn new(conditions: NetworkConditions, random: Random) -> Self {
        Self {
            connections: BTreeMap::new(),
            next: 0,
            listening: BTreeMap::new(),
            short: BTreeSet::new(),
            conditions,
            random,
            damaged: Damaged::default(),
            unaccepted: 0,
        }
    }

    fn soon(&mut self, now: u64) -> u64 {
        let long = if self.random.one_in(50) { 20 } else { 1 };
        now + 1_000 + self.random.below(long * self.conditions.delay_ns + 1)
    }

    fn piece(&mut self, max: usize) -> usize {
        let most = (max as u64).min(self.conditions.piece_bytes).max(1);
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
    pub fn client_ready(&self, client: usize, now: u64) -> Vec<Id> {
        let ready = self.connections.iter();
        let ready = ready.filter(|(_, c)| c.owner == client && c.client_ready(now));
        ready.map(|(id, _)| *id).collect()
    }

    /// Connections that have something for the broker of a row.
    pub fn broker_ready(&self, row: u16, now: u64) -> Vec<Id> {
        let ready = self.connections.iter();
        let waits = |c: &Connection| c.is_queued() && self.short.contains(&row);
        let ready = ready.filter(|(_, c)| c.row == row && c.broker_ready(now) && !waits(c));
        ready.map(|(id, _)| *id).collect()
    }

    /// When something may happen next, after `now`.
    pub fn next_at(&self, now: u64) -> Option<u64> {
        let times = self.connections.values().filter_map(Connection::next_at);
        times.filter(|at| *at > now).min()
    }

    /// The client whose connection it is, and its channel.
    pub fn owner(&self, id: Id) -> Option<(usize, ChannelId)> {
        self.connections.get(&id).map(|c| (c.owner, c.channel))
    }

    fn sweep(&mut self, id: Id) {
        if self.connections.get(&id).is_some_and(Connection::is_over) {
            self.connections.remove(&id);
        }
    }

    /// Breaks a connection, most likely in the middle of a frame.
    pub fn cut(&mut self, id: Id, now: u64) {
        let (up_at, down_at) = (self.soon(now), self.soon(now));
        if let Some(c) = self.connections.get_mut(&id) {
            c.up.sever(up_at, &mut self.random);
            c.down.sever(down_at, &mut self.random);
        }
    }

    /// Breaks a connection, and one of its ends never learns of it.
    pub fn half_open(&mut self, id: Id, now: u64) {
        let at = self.soon(now);
        let near = self.random.one_in(2);
        // Of an end that it has seen already an end cannot be kept from hearing.
        let stands = |c: &&mut Connection| c.deaf.is_none() && !c.is_ending();
        if let Some(c) = self.connections.get_mut(&id).filter(stands) {
            let (heard, unheard) = if near {
                c.deaf = Some(Deaf::Client);
                (&mut c.up, &mut c.down)
            } else {
                c.deaf = Some(Deaf::Broker);
                (&mut c.down, &mut c.up)
            };
            heard.sever(at, &mut self.random);
            unheard.stall(u64::MAX);
        }
    }

    /// Clients' connections by which brokers have sent batches, and which they serve as if nothing had
    /// happened.
    pub fn served(&self, client: usize) -> impl Iterator<Item = u16> {
        let all = self.connections.values();
        let served = all.filter(move |c| c.owner == client && c.is_served());
        served.map(|c| c.row)
    }

    /// The broker of a row has no descriptor for one more connection, or has some again.
    pub fn set_short(&mut self, row: u16, is_short: bool) {
        if is_short {
            self.short.insert(row);
        } else {
            self.short.remove(&row);
        }
    }

    /// Connections of a broker that come from an address, as far as both ends know.
    pub fn open_from(&self, row: u16, from: Option<SocketAddr>) -> usize {
        let all = self.connections.values();
        all.filter(|c| c.row == row && c.from == from && c.is_open_at_broker())
            .count()
    }

    /// Nothing arrives on one direction of a connection for a while.
    pub fn stall(&mut self, id: Id, until: u64) {
        let up = self.random.one_in(2);
        if let Some(c) = self.connections.get_mut(&id) {
            if up { &mut c.up } else { &mut c.down }.stall(until);
        }
    }

    /// No stalls, no damage, and no splinters from now on.
    pub fn calm(&mut self) {
        self.conditions = NetworkConditions {
            damage_one_in: 0,
            piece_bytes: 64 << 10,
            window_bytes: 96 << 10,
            ..self.conditions
        };
        for c in self.connections.values_mut() {
            c.up.stall(0);
            c.down.stall(0);
        }
    }
}
