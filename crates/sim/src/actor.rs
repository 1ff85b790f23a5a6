//! The clients of a run: the real cores, driven by the simulation.

mod publisher;
mod subscriber;
mod vandal;

use std::ops::Range;

use embar_client::sim_api::{Lane, LinkAction, PublisherAction};
use embar_wire::time::Now;

pub use publisher::PublisherActor;
pub use subscriber::SubscriberActor;
pub use vandal::Vandal;

use crate::books::Books;
use crate::figures::Figures;
use crate::network::Outgoing;
use crate::trace::Trace;
use crate::violation::Check;

/// What a core wants of one of its connections.
#[derive(Debug)]
pub enum Wish {
    /// Connect it.
    Connect,
    /// Send these bytes.
    Send(Outgoing),
    /// Receive.
    Receive(Vec<u8>, Range<usize>),
    /// Close it.
    Close,
}

impl From<LinkAction> for Wish {
    fn from(action: LinkAction) -> Self {
        match action {
            LinkAction::Connect(_) => Self::Connect,
            LinkAction::Send(bytes) => Self::Send(Outgoing::Own(bytes)),
            LinkAction::Receive(buffer, space) => Self::Receive(buffer, space),
            LinkAction::Close => Self::Close,
        }
    }
}

impl From<PublisherAction> for Wish {
    fn from(action: PublisherAction) -> Self {
        match action {
            PublisherAction::Connect(_) => Self::Connect,
            PublisherAction::Send(bytes) => Self::Send(Outgoing::Own(bytes)),
            PublisherAction::SendBatch(bytes) => Self::Send(Outgoing::Batch(bytes)),
            PublisherAction::Receive(buffer, space) => Self::Receive(buffer, space),
            PublisherAction::Close => Self::Close,
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
}

/// A client.
pub trait Actor {
    /// A connection stands.
    fn connected(&mut self, lane: Lane, now: Now);
    /// Bytes came.
    fn received(&mut self, lane: Lane, buffer: Vec<u8>, bytes: usize, now: Now);
    /// A send is over.
    fn sent(&mut self, lane: Lane, now: Now);
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
    /// Whether it gave up all of its connections since the last call, and knows nothing of them.
    fn has_moved(&mut self) -> bool {
        false
    }
    /// For whoever looks at a run that does not end.
    fn describe(&self) -> String;
    /// The subscriber, if it is one.
    fn as_subscriber(&mut self) -> Option<&mut SubscriberActor> {
        None
    }
}
