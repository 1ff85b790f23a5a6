//! One connection with both of its ends, and the buffers that each end has handed in.

use std::net::SocketAddr;

use embar_client::sim_api::Lane;
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
pub(super) struct Near {
    pub state: NearState,
    pub recv: Option<RecvBuf>,
    pub send: Option<ClientSend>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NearState {
    /// The answer comes at this time.
    Connecting(u64),
    /// It has no descriptor for this one, and is told at this time.
    Hopeless(u64),
    Open,
    /// The client asked for it; it is told at this time.
    Closing(u64),
    Closed,
}

/// Who connects.
#[derive(Clone, Copy, Debug)]
pub struct Whence {
    /// The client.
    pub client: usize,
    /// Its connection.
    pub lane: Lane,
    /// Where it is, unless that is the broker's machine.
    pub address: Option<SocketAddr>,
}

/// The broker's end.
#[derive(Debug)]
pub(super) struct Far {
    pub state: FarState,
    pub recv: Option<RecvBuf<Simulated>>,
    pub send: Option<SendBuf<Simulated>>,
    /// The broker wants the buffer back that it receives into.
    pub recalled: bool,
    /// Batches went by it, and not only control messages.
    pub sent_batches: bool,
}

impl Far {
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
pub(super) enum FarState {
    /// The client has not got through yet.
    Absent,
    /// In the backlog of the listener.
    Knocking,
    Open(Token),
    /// Buffers may be outstanding.
    Closed(Token),
    Gone,
}

/// An end that hears nothing of the other any more, and is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deaf {
    Near,
    Far,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub client: usize,
    pub lane: Lane,
    /// Of the broker that it leads to.
    pub row: u16,
    /// Where the client is, unless that is the broker's machine.
    pub from: Option<SocketAddr>,
    pub deaf: Option<Deaf>,
    pub up: Pipe,
    pub down: Pipe,
    pub near: Near,
    pub far: Far,
}

impl Connection {
    pub fn new(from: Whence, row: u16, answered_at: u64, window: usize) -> Self {
        Self {
            client: from.client,
            lane: from.lane,
            from: from.address,
            row,
            deaf: None,
            up: Pipe::new(window),
            down: Pipe::new(window),
            near: Near {
                state: NearState::Connecting(answered_at),
                recv: None,
                send: None,
            },
            far: Far {
                state: FarState::Absent,
                recv: None,
                send: None,
                recalled: false,
                sent_batches: false,
            },
        }
    }

    /// Whether it waits to be accepted.
    pub fn is_knocking(&self) -> bool {
        self.far.state == FarState::Knocking
    }

    /// Whether the broker has accepted it, and not closed it yet.
    pub fn is_open_far(&self) -> bool {
        matches!(self.far.state, FarState::Open(_))
    }

    /// Whether either end has begun to end it, or it broke.
    pub fn is_ending(&self) -> bool {
        self.up.is_ending() || self.down.is_ending()
    }

    /// Whether the broker, which has sent batches by it, goes on with it.
    pub fn is_served(&self) -> bool {
        let is_open = matches!(self.far.state, FarState::Open(_)) && !self.down.is_ending();
        is_open && self.far.sent_batches
    }

    /// Both ends are done with it.
    pub fn is_over(&self) -> bool {
        let far = match self.far.state {
            FarState::Absent | FarState::Gone => true,
            FarState::Closed(_) => self.far.recv.is_none() && self.far.send.is_none(),
            FarState::Knocking | FarState::Open(_) => false,
        };
        far && self.near.state == NearState::Closed
    }

    /// Whether [`super::Network::near_event`] has something.
    pub fn near_ready(&self, now: u64) -> bool {
        match self.near.state {
            NearState::Connecting(at) | NearState::Hopeless(at) | NearState::Closing(at) => {
                at <= now
            }
            NearState::Closed => false,
            NearState::Open => {
                let incoming = self.down.readable(now) > 0 || self.down.ended(now).is_some();
                let can_send = self.up.room() > 0 || self.is_dead_for_client(now);
                (self.near.recv.is_some() && incoming) || (self.near.send.is_some() && can_send)
            }
        }
    }

    /// Whether a send of the client fails.
    pub fn is_dead_for_client(&self, now: u64) -> bool {
        let gone = matches!(self.far.state, FarState::Closed(_) | FarState::Gone);
        self.deaf != Some(Deaf::Near) && (gone || self.up.is_reset(now) || self.down.is_reset(now))
    }

    /// Whether [`super::Network::far_event`] has something.
    pub fn far_ready(&self, now: u64) -> bool {
        match self.far.state {
            FarState::Absent | FarState::Gone => false,
            FarState::Knocking => true,
            FarState::Closed(_) => self.far.recv.is_some() || self.far.send.is_some(),
            FarState::Open(_) => {
                let incoming = self.up.readable(now) > 0 || self.up.ended(now).is_some();
                let can_receive = self.far.recv.is_some() && (incoming || self.far.recalled);
                can_receive
                    || (self.far.send.is_some() && (self.down.room() > 0 || self.is_dead(now)))
            }
        }
    }

    /// Whether a send of the broker fails.
    pub fn is_dead(&self, now: u64) -> bool {
        let gone = self.near.state == NearState::Closed;
        self.deaf != Some(Deaf::Far) && (gone || self.up.is_reset(now))
    }

    /// When something may happen next.
    pub fn next_at(&self) -> Option<u64> {
        let near = match self.near.state {
            NearState::Connecting(at) | NearState::Hopeless(at) | NearState::Closing(at) => {
                Some(at)
            }
            _ => None,
        };
        [near, self.up.next_at(), self.down.next_at()]
            .into_iter()
            .flatten()
            .min()
    }
}
