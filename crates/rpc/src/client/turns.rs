//! Which slots are free, and who waits for one: first come, first served.

use std::task::Waker;
use std::time::Instant;

use embar_transport::waiters::{AllWakers, Outworn, Place, Waiters, WakeBatch};

/// The free slots of a channel.
#[derive(Default)]
pub(super) struct Turns {
    /// The last one is taken first, so that the same few are used while few are needed.
    free: Vec<u32>,
    waiters: Waiters,
    /// Waiters that were woken, and have not come back: as many free slots are theirs.
    woken: usize,
    max_waiting: usize,
    /// The nearest time at which one that waits gives up.
    pub(super) next_deadline: Option<Instant>,
}

/// What came of asking for a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This one.
    Slot(u32),
    /// None yet.
    Waits,
    /// None, and too many wait.
    Refused,
}

impl Turns {
    pub(super) fn new(max_waiting: usize) -> Self {
        Self {
            max_waiting,
            ..Self::default()
        }
    }

    /// The slots below `count` are free from now on.
    pub(super) fn open(&mut self, count: u32) {
        self.free = (0..count).rev().collect();
    }

    /// A slot for the one at `place`. It has a place, or none, afterwards as it has to wait, or not.
    /// Without a waker it does not wait.
    pub(super) fn take(
        &mut self,
        place: &mut Option<Place>,
        waker: Option<Waker>,
        outworn: &mut Outworn,
    ) -> Turn {
        let was_woken = place.is_some_and(|place| self.waiters.come_back(place));
        if was_woken {
            self.woken -= 1;
        }
        // What is free is first for those who were woken for it.
        let unpromised = self.free.len() > self.woken;
        let may = match *place {
            Some(place) => was_woken || unpromised && self.waiters.is_first(place),
            None => unpromised && self.waiters.is_empty(),
        };
        if may && let Some(slot) = self.free.pop() {
            self.leave(place, outworn);
            return Turn::Slot(slot);
        }
        let Some(waker) = waker else {
            return Turn::Waits;
        };
        if place.is_none() && self.waiting() >= self.max_waiting {
            return Turn::Refused;
        }
        self.waiters.wait(place, 1, waker, outworn);
        Turn::Waits
    }

    /// The one at `place` waits no more.
    pub(super) fn leave(&mut self, place: &mut Option<Place>, outworn: &mut Outworn) {
        if let Some(place) = place.take()
            && self.waiters.leave(place, outworn)
        {
            self.woken -= 1;
        }
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Takes the wakers of those whose turn it is.
    pub(super) fn wake(&mut self, batch: &mut WakeBatch) {
        let (free, woken) = (self.free.len(), &mut self.woken);
        self.waiters.wake(batch, |_, promised| {
            let may = promised.waiters < free;
            *woken += usize::from(may);
            may
        });
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiters.len() + self.woken
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes the wakers of all.
    pub(super) fn wake_all(&mut self) -> AllWakers {
        self.woken += self.waiters.len();
        self.waiters.wake_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(turns: &mut Turns) {
        let mut batch = WakeBatch::default();
        turns.wake(&mut batch);
        batch.wake();
    }

    #[test]
    fn who_waits_for_longer_comes_first() {
        let mut turns = Turns::new(2);
        turns.open(1);
        let waker = || Some(Waker::noop().clone());
        assert_eq!(
            turns.take(&mut None, waker(), &mut Outworn::default()),
            Turn::Slot(0)
        );
        let (mut first, mut second) = (None, None);
        assert_eq!(
            turns.take(&mut first, waker(), &mut Outworn::default()),
            Turn::Waits
        );
        assert_eq!(
            turns.take(&mut second, waker(), &mut Outworn::default()),
            Turn::Waits
        );
        assert_eq!(
            turns.take(&mut None, waker(), &mut Outworn::default()),
            Turn::Refused
        );
        turns.give_back(0);
        wake(&mut turns);
        assert_eq!(
            turns.take(&mut None, None, &mut Outworn::default()),
            Turn::Waits,
            "it is promised"
        );
        assert_eq!(
            turns.take(&mut second, waker(), &mut Outworn::default()),
            Turn::Waits
        );
        assert_eq!(
            turns.take(&mut first, waker(), &mut Outworn::default()),
            Turn::Slot(0)
        );
        assert_eq!(first, None);
        turns.give_back(0);
        wake(&mut turns);
        // It gives up, though it was woken: the slot is anybody's again.
        turns.leave(&mut second, &mut Outworn::default());
        assert_eq!(turns.woken, 0);
        assert_eq!(
            turns.take(&mut None, waker(), &mut Outworn::default()),
            Turn::Slot(0)
        );
    }

    #[test]
    fn all_can_be_woken_in_vain() {
        let mut turns = Turns::new(5);
        turns.open(1);
        let waker = || Some(Waker::noop().clone());
        turns.take(&mut None, waker(), &mut Outworn::default());
        let mut places = [None; 3];
        for place in &mut places {
            turns.take(place, waker(), &mut Outworn::default());
        }
        turns.wake_all().wake();
        for place in places.iter_mut().rev() {
            assert_eq!(
                turns.take(place, waker(), &mut Outworn::default()),
                Turn::Waits
            );
        }
        assert_eq!(turns.woken, 0);
        turns.give_back(0);
        wake(&mut turns);
        assert_eq!(
            turns.take(&mut places[1], waker(), &mut Outworn::default()),
            Turn::Waits
        );
        assert_eq!(
            turns.take(&mut places[0], waker(), &mut Outworn::default()),
            Turn::Slot(0)
        );
        assert_eq!(turns.woken, 0);
    }
}
