//! Lets a broker begin to leave its cluster, or refuses: because it has messages of orders 0 and 1, which no other
//! broker has, or because no other broker would take data. Also says how far a broker that leaves has come.

use std::sync::atomic::Ordering;

use embar_fabric::records::BrokerState;
use embar_memory::Memory;
use embar_wire::topic::Order;

use super::Node;

/// Values of [`Node`]'s `leave_state`, in the order in which they follow each other.
pub(super) mod leave_state {
    pub const STAYS: u8 = 0;
    /// The broker leaves with nothing of orders 0 and 1, and so takes no more of them.
    pub const LEAVES_EMPTY: u8 = 1;
    /// The broker was forced to leave with what it has.
    pub const LEAVES: u8 = 2;
    pub const LEFT: u8 = 3;
}

/// Messages of a topic that no other broker can send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The topic.
    pub topic: String,
    /// Its order.
    pub order: Order,
    /// How many messages.
    pub messages: u64,
}

/// Why a broker does not leave its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaveRefused {
    /// It has messages of orders 0 and 1, which no other broker has.
    Retains(Vec<Retained>),
    /// No other broker would take data.
    Last,
}

impl<M: Memory> Node<M> {
    /// Begins to leave the cluster for good. The driver of this node sees it by [`Node::is_leaving`] and asks
    /// its peers to go to other brokers.
    ///
    /// # Errors
    /// [`LeaveRefused`] says what would be missing, and the broker stays. `force` makes it leave all the same.
    pub fn leave(&self, force: bool) -> Result<(), LeaveRefused> {
        let topics = self.topics();
        // Held until the end: no batch of orders 0 and 1 is appended after the look at what is retained.
        let log = self.log();
        if self.is_leaving() {
            return Ok(());
        }
        let retained: Vec<Retained> = topics
            .iter()
            .filter(|topic| !topic.is_ordered())
            .filter_map(|topic| {
                let kept = log.topic_stats(topic.id)?;
                // What disks have of this broker no other one sends, either.
                let first = kept.first.min(kept.first_on_disks);
                (first < kept.next).then(|| Retained {
                    topic: topic.name.clone(),
                    order: topic.order,
                    messages: kept.next - first,
                })
            })
            .collect();
        let leaves = match (retained.is_empty(), force) {
            (_, true) => leave_state::LEAVES,
            (true, false) => leave_state::LEAVES_EMPTY,
            (false, false) => return Err(LeaveRefused::Retains(retained)),
        };
        if !force && !self.others_take_data() {
            return Err(LeaveRefused::Last);
        }
        let mut row = self.row();
        let before = row.state();
        row.set_state_before_look(BrokerState::Draining);
        // Two brokers may want to leave at once. Then both see that here, or one does.
        if !force && !self.others_take_data() {
            row.set_state(before);
            return Err(LeaveRefused::Last);
        }
        // Relaxed: the log's lock orders it for threads that append, and for those that ask for it.
        self.leave_state.store(leaves, Ordering::Relaxed);
        Ok(())
    }

    fn others_take_data(&self) -> bool {
        let state = |row| self.region.broker_row(row).found()?.broker_state();
        let takes = |row| state(row) == Some(BrokerState::Ready) && self.alive(row);
        let mut rows = self.region.geometry().data_rows();
        rows.any(|row| row != self.id && takes(row))
    }

    /// Whether this broker leaves the cluster, or has left it.
    pub fn is_leaving(&self) -> bool {
        self.leave_state.load(Ordering::Relaxed) != leave_state::STAYS
    }

    /// Whether this broker has left the cluster for good.
    pub fn has_left(&self) -> bool {
        // Partner: the store in `set_left`.
        self.leave_state.load(Ordering::Acquire) == leave_state::LEFT
    }

    /// Publishes that this broker has left.
    pub fn set_left(&self) {
        self.set_state(BrokerState::Left);
        // Partner: the load in `has_left`, whose caller may drop the broker and read its row.
        self.leave_state.store(leave_state::LEFT, Ordering::Release);
    }

    /// Whether batches of orders 0 and 1 are refused. The caller holds the log's lock.
    pub fn leaves_empty(&self) -> bool {
        self.leave_state.load(Ordering::Relaxed) == leave_state::LEAVES_EMPTY
    }

    /// Whether the sequencer has answered all that this broker submitted.
    pub fn is_settled(&self) -> bool {
        let lanes = 0..self.region.geometry().lanes;
        !self.takes_data() || {
            let mut log = self.log();
            log.poll_order();
            !lanes.into_iter().any(|lane| log.waits_for_order(lane))
        }
    }
}
