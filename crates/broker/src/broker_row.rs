//! The row in which a broker says to all others where it listens and in which state it is.

use embar_fabric::owner::Claim;
use embar_fabric::records::{BrokerRow, BrokerState};
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;
use embar_memory::Memory;
use embar_wire::time::WallNs;

/// Publishes a broker's own row of the region. A broker has one, so that the row has one writer.
pub struct BrokerRowPublisher<M> {
    writer: RowWriter<M, BrokerRow>,
    /// As it was last published.
    row: BrokerRow,
}

impl<M: Memory> BrokerRowPublisher<M> {
    /// Publishes that the owner of this claim starts. `row` has its address, lanes, process and time of start.
    /// Call this before the slow parts of a start: until then the row describes the owner before.
    pub fn start(region: &Region<M>, claim: &Claim, row: BrokerRow) -> Self {
        let incarnation = claim.incarnation();
        let mut publisher = Self {
            writer: region.broker_row_writer(claim),
            row: BrokerRow { incarnation, ..row },
        };
        publisher.set_state(BrokerState::Starting);
        publisher
    }

    /// Publishes a state. [`BrokerState::Left`] is final: whatever follows it is ignored.
    pub fn set_state(&mut self, state: BrokerState) {
        if self.row.broker_state() != Some(BrokerState::Left) {
            self.row.set_broker_state(state);
            self.writer.store(&self.row);
        }
    }

    /// Publishes the row again where memory has lost it: without it, no client would look for this broker.
    pub fn restore(&mut self) {
        if self.writer.restore(&self.row) {
            tracing::warn!("memory had lost this broker's row: it is stored again");
        }
    }

    /// As [`BrokerRowPublisher::set_state`], for a caller that looks at other rows afterwards: of two brokers
    /// that publish and then look at each other's rows, at least one sees what the other published.
    pub fn set_state_before_look(&mut self, state: BrokerState) {
        self.set_state(state);
        self.writer.settle();
    }

    /// The state that was published last.
    pub fn state(&self) -> BrokerState {
        let state = self.row.broker_state();
        state.expect("`set_state` stored one")
    }

    /// When the broker was started.
    pub fn started(&self) -> WallNs {
        WallNs(self.row.started)
    }
}
