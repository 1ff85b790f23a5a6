//! Which batch each session of publishers is expected to send next, as far as this broker knows.

use std::cmp::Ordering;

use embar_wire::batch::BatchHeader;

/// Which number each session expects next, by its place in the sequencer's table.
pub(super) struct Expected {
    sessions: Vec<Session>,
}

#[derive(Clone, Copy, Default)]
struct Session {
    /// The epochs of a place only grow, whosever they are.
    epoch: u32,
    expects: u64,
}

impl Expected {
    pub fn new(sessions: u32) -> Self {
        Self {
            sessions: vec![Session::default(); sessions as usize],
        }
    }

    /// An epoch of the session in a place expects this number, or a later one.
    pub fn learn(&mut self, place: u32, epoch: u32, expects: u64) {
        let Some(known) = self.sessions.get_mut(place as usize) else {
            return;
        };
        if epoch > known.epoch {
            *known = Session { epoch, expects };
        } else if epoch == known.epoch {
            known.expects = known.expects.max(expects);
        }
    }

    /// The number that an epoch of the session in a place expects, as far as it is known here.
    pub fn expects(&self, place: u32, epoch: u32) -> Option<u64> {
        let known = self.sessions.get(place as usize);
        known
            .filter(|known| known.epoch == epoch)
            .map(|known| known.expects)
    }

    /// Whether the sequencer may hold the batch of a session: those of older epochs it answers at once.
    /// `None` of an epoch that is new here, as another broker was asked for it.
    pub fn is_ahead(&self, place: u32, header: &BatchHeader) -> Option<bool> {
        let known = self.sessions.get(place as usize)?;
        match header.epoch().cmp(&known.epoch) {
            Ordering::Less => Some(false),
            Ordering::Equal => Some(known.expects < header.sequence()),
            Ordering::Greater => None,
        }
    }
}
