//! One connection with both of its ends, and the buffers that each end has handed in.

use std::net::SocketAddr;

use embar_client::sim_api::ChannelId;
use embar_memory::Simulated;
use embar_transport::{RecvBuf, SendBuf, Token};

use super::pipe::Pipe;

/// A send of the client, and the bit to be flipped on the way, if any, counted from its start.
#[derive(Debug)]
pub(super) struct ClientSend {
    pub buf: SendBuf,
    pub damage: Option<usize>,
}

/// The client's end.
#[derive(Debug)]
pub(super) struct ClientEnd {
    pub state: ClientEndState,
    pub recv: Option<RecvBuf>,
    pub send: Option<ClientSend>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientEndState {
    /// The answer comes at this time.
    Connecting(u64),
    /// The client has no descriptor for it, and learns that at this time.
    Hopeless(u64),
    Open,
    /// The client asked for it; it learns at this time that it is over.
    Closing(u64),
    Closed,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The client.
    pub client: usize,
    /// Its connection.
    pub channel: ChannelId,
    /// Where it is, unless that is the broker's machine.
    pub address: Option<SocketAddr>,
}

/// The broker's end.
#[derive(Debug)]
pub(super) struct BrokerEnd {
    pub state: BrokerEndState,
    pub recv: Option<RecvBuf<Simulated>>,
    pub send: Option<SendBuf<Simulated>>,
    /// The broker wants the buffer back that it receives into.
    pub recalled: bool,
    /// Batches went by it, and not only control messages.
    pub sent_batches: bool,
}

impl BrokerEnd {
    /// The buffer that the broker wants back.
    pub fn take_recalled(&mut self) -> Option<RecvBuf<Simulated>> {
        if std::mem::take(&mut self.recalled) {
            self.recv.take()
        } else {
            None
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BrokerEndState {
    /// The client has not got through yet.
    Absent,
    /// In the backlog of the listener.
    Queued,
    Open(Token),
    /// Buffers may be outstanding.
    Closed(Token),
    Gone,
}

/// An end that receives nothing from the other any more, and does not learn that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deaf {
    Client,
    Broker,
}

#[derive(Debug)]
pub(super) struct Connection {
    /// The client whose connection it is.
    pub owner: usize,
    pub channel: ChannelId,
    /// Of the broker that it leads to.
    pub row: u16,
    /// Where the client is, unless that is the broker's machine.
    pub from: Option<SocketAddr>,
    pub deaf: Option<Deaf>,
    pub up: Pipe,
    pub down: Pipe,
    pub client: ClientEnd,
    pub broker: BrokerEnd,
}

impl Connection {
    pub fn new(from: Origin, row: u16, answered_at: u64, window: usize) -> Self {
        Self {
            owner: from.client,
            channel: from.channel,
            from: from.address,
            row,
            deaf: None,
            up: Pipe::new(window),
            down: Pipe::new(window),
            client: ClientEnd {
                state: ClientEndState::Connecting(answered_at),
                recv: None,
                send: None,
            },
            broker: BrokerEnd {
                state: BrokerEndState::Absent,
                recv: None,
                send: None,
                recalled: false,
                sent_batches: false,
            },
        }
    }

    /// Whether it waits to be accepted.
    pub fn is_queued(&self) -> bool {
        self.broker.state == BrokerEndState::Queued
    }

    /// Whether the broker has accepted it, and not closed it yet.
    pub fn is_open_at_broker(&self) -> bool {
        matches!(self.broker.state, BrokerEndState::Open(_))
    }

    /// Whether either end has begun to end it, or it broke.
    pub fn is_ending(&self) -> bool {
        self.up.is_ending() || self.down.is_ending()
    }

    /// Whether the broker, which has sent batches by it, goes on with it.
    pub fn is_served(&self) -> bool {
        let is_open =
            matches!(self.broker.state, BrokerEndState::Open(_)) && !self.down.is_ending();
        is_open && self.broker.sent_batches
    }

    /// Both ends are done with it.
    pub fn is_over(&self) -> bool {
        let far = match self.broker.state {
            BrokerEndState::Absent | BrokerEndState::Gone => true,
            BrokerEndState::Closed(_) => self.broker.recv.is_none() && self.broker.send.is_none(),
            BrokerEndState::Queued | BrokerEndState::Open(_) => false,
        };
        far && self.client.state == ClientEndState::Closed
    }

    /// Whether [`super::Network::client_event`] has something.
    pub fn client_ready(&self, now: u64) -> bool {
        match self.client.state {
            ClientEndState::Connecting(at)
            | ClientEndState::Hopeless(at)
            | ClientEndState::Closing(at) => at <= now,
            ClientEndState::Closed => false,
            ClientEndState::Open => {
                let incoming = self.down.readable(now) > 0 || self.down.ended(now).is_some();
                let can_send = self.up.room() > 0 || self.is_dead_for_client(now);
                (self.client.recv.is_some() && incoming) || (self.client.send.is_some() && can_send)
            }
        }
    }

    /// Whether a send of the client fails.
    pub fn is_dead_for_client(&self, now: u64) -> bool {
        let gone = matches!(
            self.broker.state,
            BrokerEndState::Closed(_) | BrokerEndState::Gone
        );
        self.deaf != Some(Deaf::Client)
            && (gone || self.up.is_reset(now) || self.down.is_reset(now))
    }

    /// Whether [`super::Network::broker_event`] has something.
    pub fn broker_ready(&self, now: u64) -> bool {
        match self.broker.state {
            BrokerEndState::Absent | BrokerEndState::Gone => false,
            BrokerEndState::Queued => true,
            BrokerEndState::Closed(_) => self.broker.recv.is_some() || self.broker.send.is_some(),
            BrokerEndState::Open(_) => {
                let incoming = self.up.readable(now) > 0 || self.up.ended(now).is_some();
                let can_receive = self.broker.recv.is_some() && (incoming || self.broker.recalled);
                can_receive
                    || (self.broker.send.is_some() && (self.down.room() > 0 || self.is_dead(now)))
            }
        }
    }

    /// Whether a send of the broker fails.
    pub fn is_dead(&self, now: u64) -> bool {
        let gone = self.client.state == ClientEndState::Closed;
        self.deaf != Some(Deaf::Broker) && (gone || self.up.is_reset(now))
    }

    /// When something may happen next.
    pub fn next_at(&self) -> Option<u64> {
        let near = match self.client.state {
            ClientEndState::Connecting(at)
            | ClientEndState::Hopeless(at)
            | ClientEndState::Closing(at) => Some(at),
            _ => None,
        };
        [near, self.up.next_at(), self.down.next_at()]
            .into_iter()
            .flatten()
            .min()
    }
}
