//! The clients of a run: the real client cores, driven by the simulation.

mod byzantine;
mod flooding;
mod publisher;
mod slowloris;
mod subscriber;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use embar_client::sim_api::{ChannelId, ConnectionAction};
use embar_frame::Now;
use embar_transport::{Address, RecvBuf, SendBuf};

pub use byzantine::ByzantineClient;
pub use flooding::FloodingClient;
pub use publisher::PublisherActor;
pub use slowloris::SlowlorisClient;
pub use subscriber::SubscriberActor;

use crate::figures::Figures;
use crate::oracle::Oracle;
use crate::trace::Trace;
use crate::violation::Check;

/// What a core wants of one of its connections.
#[derive(Debug)]
pub enum SocketOp {
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

impl From<ConnectionAction> for SocketOp {
    fn from(action: ConnectionAction) -> Self {
        match action {
            ConnectionAction::Connect(Address::Tcp(address)) => Self::Connect(address),
            ConnectionAction::Connect(Address::Unix(path) | Address::Shm(path)) => {
                unreachable!("clients here know TCP only, and not {}", path.display())
            }
            ConnectionAction::Send(buf) => Self::Send(buf),
            ConnectionAction::Receive(buf) => Self::Receive(buf),
            ConnectionAction::ShutdownWrite => Self::ShutdownWrite,
            ConnectionAction::Close => Self::Close,
        }
    }
}

/// What all actors share.
pub struct ActorContext<'a> {
    /// The time.
    pub now: Now,
    /// What the checkers know.
    pub oracle: &'a mut Oracle,
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
    /// Acknowledgements come in time, although some clients claim room.
    pub acks_in_time: bool,
}

/// A client.
pub trait Actor {
    /// A connection stands.
    fn connected(&mut self, channel: ChannelId, now: Now);
    /// A receive is over.
    fn received(&mut self, channel: ChannelId, buf: RecvBuf, result: &io::Result<usize>, now: Now);
    /// A send is over.
    fn sent(&mut self, channel: ChannelId, buf: SendBuf, result: &io::Result<()>, now: Now);
    /// A connection is over, and the network holds none of its buffers.
    fn disconnected(&mut self, channel: ChannelId, cause: &str, now: Now);
    /// When it wants to be called at the latest.
    fn next_at(&self) -> Option<Now>;
    /// Does what is due by now, and takes the events of its core.
    fn work(&mut self, context: &mut ActorContext<'_>) -> Check;
    /// What it wants of its connections.
    fn next_op(&mut self, now: Now) -> Option<(ChannelId, SocketOp)>;
    /// From now on nothing goes wrong, and nothing new is begun.
    fn heal(&mut self, now: Now);
    /// Whether everything it began has ended.
    fn is_done(&self, oracle: &Oracle) -> bool;
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
    /// What it waits for, to explain a run that does not end.
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
