//! Rules broken on purpose. Only built for the simulator, which must notice each of them.

use embar_fabric::blog::{Reservation, Span};
use embar_fabric::memory::Memory;

use super::Log;
use super::chain::Chain;

/// Which rule a log breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Canary {
    /// None.
    #[default]
    Silent,
    /// Records are published although their payload was not written back (I2).
    PayloadNotWrittenBack,
    /// Memory is used again although the window still tells readers that it holds their batches (I7).
    WindowNotRaised,
}

impl<M: Memory> Log<M> {
    /// Breaks a rule from now on, for the topics that are open.
    pub fn sing(&mut self, canary: Canary) {
        self.canary = canary;
        self.chains.values_mut().for_each(|c| c.canary = canary);
    }

    pub(super) fn commit(&self, reservation: Reservation<M>) -> Span<M> {
        if self.canary == Canary::PayloadNotWrittenBack {
            reservation.commit_unflushed()
        } else {
            reservation.commit()
        }
    }
}

impl<M: Memory> Chain<M> {
    pub(super) fn tell_first(&mut self) {
        if self.canary != Canary::WindowNotRaised {
            self.window.raise_first(self.first);
        }
    }
}
