//! The clients of a run: the real cores, driven by the simulation.

mod flood;
mod miser;
mod publisher;
mod subscriber;
mod vandal;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use embar_client::sim_api::{Lane, LinkAction};
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::time::Now;

pub use flood::{Flood, Flooder};
pub use miser::Miser;
pub use publisher::PublisherActor;
pub use subscriber::SubscriberActor;
pub use vandal::Vandal;

use crate::books::Books;
use crate::figures::Figures;
use crate::trace::Trace;
use crate::violation::Check;

/// What a core wants of one of its connections.
#[derive(Debug)]
pub enum Wish {
    /// Connect it to this address.
    Connect(SocketAddr),
    /// Send these bytes.
    Send(SendBuf),
    /// Receive.
    Receive(RecvBuf),
    /// Nothing more will be sent.
    ShutdownWrite,
    /// Close it.
    Close,
}

impl From<LinkAction> for Wish {
    fn from(action: LinkAction) -> Self {
        match action {
            LinkAction::Connect(address) => Self::Connect(address),
            LinkAction::Send(buf) => Self::Send(buf),
            LinkAction::Receive(buf) => Self::Receive(buf),
            LinkAction::ShutdownWrite => Self::ShutdownWrite,
            LinkAction::Close => Self::Close,
        }
    }
}

/// What all actors share.
pub struct Scene<'a> {
    /// The time.
    pub now: Now,
    /// What the checkers know.
    pub books: &'a mut Books,
    /// What happened.
    pub trace: &'a mut Trace,
    /// How often.
    pub figures: &'a mut Figures,
    /// The network damages what it carries.
    pub damages: bool,
    /// Rows of the brokers that go on with this client's connections.
    pub served: BTreeSet<u16>,
    /// Sessions may be forgotten while their publishers live.
    pub forgets_sessions: bool,
    /// Acknowledgements come in time, whoever claims room.
    pub is_patient: bool,
}

/// A client.
pub trait Actor {
    /// A connection stands.
    fn connected(&mut self, lane: Lane, now: Now);
    /// A receive is over.
    fn received(&mut self, lane: Lane, buf: RecvBuf, result: &io::Result<usize>, now: Now);
    /// A send is over.
    fn sent(&mut self, lane: Lane, buf: SendBuf, result: &io::Result<()>, now: Now);
    /// A connection is gone, and none of its buffers is outstanding.
    fn disconnected(&mut self, lane: Lane, cause: &str, now: Now);
    /// When it wants to be called at the latest.
    fn next_at(&self) -> Option<Now>;
    /// Time has passed: does its own work, and takes in what its core tells.
    fn work(&mut self, scene: &mut Scene<'_>) -> Check;
    /// What it wants of its connections.
    fn wish(&mut self, now: Now) -> Option<(Lane, Wish)>;
    /// From now on nothing goes wrong, and nothing new is begun.
    fn heal(&mut self, now: Now);
    /// Whether everything it began has ended.
    fn is_done(&self, books: &Books) -> bool;
    /// Whether it has nothing to finish when everything heals.
    fn leaves_when_healed(&self) -> bool {
        false
    }
    /// Whether it takes what others need, and comes from the host from which all such come.
    fn is_greedy(&self) -> bool {
        false
    }
    /// Whether it gave up all of its connections since the last call, and knows nothing of them.
    fn has_moved(&mut self) -> bool {
        false
    }
    /// For whoever looks at a run that does not end.
    fn describe(&self) -> String;
    /// The publisher, if it is one.
    fn as_publisher(&mut self) -> Option<&mut PublisherActor> {
        None
    }
    /// The subscriber, if it is one.
    fn as_subscriber(&mut self) -> Option<&mut SubscriberActor> {
        None
    }
}
