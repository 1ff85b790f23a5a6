//! The end of a broker that leaves its cluster for good, step by step between whatever else is done.

use std::time::Duration;

use embar_fabric::memory::Memory;
use embar_fabric::records::BrokerState;
use embar_wire::time::Now;

use crate::node::Node;

/// How long the peers of a broker that leaves have to go elsewhere.
const GRACE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub struct Departure {
    /// Once it has begun: when its peers are cut.
    cut_at: Option<Now>,
}

/// What whoever drives the broker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing: it stays, or has left.
    No,
    /// Peers are to be told to go elsewhere, from now on.
    Begins,
    /// To look again soon.
    GoesOn,
    /// Peers are to be cut; then [`Node::set_left`].
    Ends,
}

impl Departure {
    /// What is due. `is_alone` says whether all peers went.
    pub fn step<M: Memory>(&mut self, node: &Node<M>, now: Now, is_alone: bool) -> Leaving {
        if !node.is_leaving() || node.has_left() {
            return Leaving::No;
        }
        let Some(cut_at) = self.cut_at else {
            self.cut_at = Some(now.after(GRACE));
            // It may have been asked while it was about to say that it is ready.
            node.say(BrokerState::Draining);
            return Leaving::Begins;
        };
        let is_over = is_alone && node.is_settled();
        if is_over || now >= cut_at {
            Leaving::Ends
        } else {
            Leaving::GoesOn
        }
    }
}
