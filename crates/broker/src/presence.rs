//! What a broker says of itself in the region.

use embar_fabric::memory::Memory;
use embar_fabric::owner::Claim;
use embar_fabric::records::{BrokerRow, BrokerState};
use embar_fabric::region::Region;
use embar_fabric::rows::RowWriter;
use embar_wire::time::WallNs;

/// A broker's row, and the one who writes it.
pub struct Presence<M> {
    writer: RowWriter<M, BrokerRow>,
    said: BrokerRow,
}

impl<M: Memory> Presence<M> {
    /// Says that the owner of this claim starts: where it listens, its lanes, process and time are in
    /// `said`. To come before the slow parts of a start: until then the row speaks of its owner before.
    pub fn begin(region: &Region<M>, claim: &Claim, said: BrokerRow) -> Self {
        let incarnation = claim.incarnation();
        let mut presence = Self {
            writer: region.broker_row_writer(claim),
            said: BrokerRow {
                incarnation,
                ..said
            },
        };
        presence.say(BrokerState::Starting);
        presence
    }

    /// Says how it is now. One that has left has said its last.
    pub fn say(&mut self, state: BrokerState) {
        if self.said.broker_state() != Some(BrokerState::Left) {
            self.said.set_broker_state(state);
            self.writer.store(&self.said);
        }
    }

    /// As [`Presence::say`], before the caller looks at other rows: of two that say something and then
    /// look at each other's, at least one sees what the other said.
    pub fn say_and_look(&mut self, state: BrokerState) {
        self.say(state);
        self.writer.settle();
    }

    /// What it said last.
    pub fn state(&self) -> BrokerState {
        self.said.broker_state().expect("said by `say`")
    }

    /// When the broker was started.
    pub fn started(&self) -> WallNs {
        WallNs(self.said.started)
    }
}
