//! Which batch each session of publishers sends next, as far as this broker knows.

use std::cmp::Ordering;

use embar_wire::batch::BatchHeader;

/// By a session's slot in the sequencer's table: the number that the sequencer expects next.
pub(super) struct ExpectedBatches {
    slots: Vec<Expected>,
}

#[derive(Clone, Copy, Default)]
struct Expected {
    /// The epochs of a slot only grow, whichever sessions it has.
    epoch: u32,
    number: u64,
}

impl ExpectedBatches {
    pub fn new(slots: u32) -> Self {
        Self {
            slots: vec![Expected::default(); slots as usize],
        }
    }

    /// The sequencer expects this number, or a later one, in an epoch of the session in a slot.
    pub fn learn(&mut self, slot: u32, epoch: u32, number: u64) {
        let Some(known) = self.slots.get_mut(slot as usize) else {
            return;
        };
        if epoch > known.epoch {
            *known = Expected { epoch, number };
        } else if epoch == known.epoch {
            known.number = known.number.max(number);
        }
    }

    /// The number that is expected in an epoch of the session in a slot, as far as it is known here.
    pub fn number(&self, slot: u32, epoch: u32) -> Option<u64> {
        let known = self.slots.get(slot as usize)?;
        (known.epoch == epoch).then_some(known.number)
    }

    /// Whether the sequencer may hold a batch of the session in a slot back until others have come. It answers
    /// those of older epochs at once. `None` for an epoch that is new here, because the session was renewed at
    /// another broker.
    pub fn is_ahead(&self, slot: u32, header: &BatchHeader) -> Option<bool> {
        let known = self.slots.get(slot as usize)?;
        match header.epoch().cmp(&known.epoch) {
            Ordering::Less => Some(false),
            Ordering::Equal => Some(known.number < header.sequence()),
            Ordering::Greater => None,
        }
    }
}
