//! How a broker leaves its cluster for good. It asks its peers to go to other brokers, gives them a few seconds and the
//! sequencer time to answer what this broker submitted, and then cuts its connections. Each heartbeat asks for the next
//! step, and the broker goes on serving in between.

use std::time::Duration;

use embar_fabric::records::BrokerState;
use embar_frame::Now;
use embar_memory::Memory;

use crate::node::Node;

/// How long the peers of a broker that leaves have to go to other brokers.
const GRACE: Duration = Duration::from_secs(5);

/// How far a broker has come with leaving its cluster.
#[derive(Debug, Default)]
pub struct Drain {
    /// When the broker cuts its peers; none before the drain begins.
    cut_at: Option<Now>,
}

/// What the driver of a broker does next for its drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Nothing: the broker stays, or has left.
    None,
    /// Ask the peers to go to other brokers.
    Begin,
    /// Nothing yet: call again soon.
    Wait,
    /// Cut the peers, then call [`Node::set_left`].
    Finish,
}

impl Drain {
    /// What is due. `is_alone` says whether all peers went.
    pub fn step<M: Memory>(&mut self, node: &Node<M>, now: Now, is_alone: bool) -> DrainStep {
        if !node.is_leaving() || node.has_left() {
            return DrainStep::None;
        }
        let Some(cut_at) = self.cut_at else {
            self.cut_at = Some(now.after(GRACE));
            // The broker may have been asked to leave while it was about to publish that it is ready.
            node.set_state(BrokerState::Draining);
            return DrainStep::Begin;
        };
        let is_done = is_alone && node.is_settled();
        if is_done || now >= cut_at {
            DrainStep::Finish
        } else {
            DrainStep::Wait
        }
    }
}
