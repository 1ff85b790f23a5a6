//! The tasks and threads that wait for room in a ring.

use std::task::Waker;

/// As many wait without an allocation: the thread that sends, and the one that answers.
const FEW: usize = 2;

/// The wakers of those who wait for room, each once.
#[derive(Default)]
pub(super) struct RoomWakers {
    few: [Option<Waker>; FEW],
    more: Vec<Waker>,
}

impl RoomWakers {
    pub(super) fn add(&mut self, waker: &Waker) {
        let mut known = self.few.iter().flatten().chain(&self.more);
        if known.any(|known| known.will_wake(waker)) {
            return;
        }
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(waker.clone()),
            None => self.more.push(waker.clone()),
        }
    }

    /// Not to be called under a lock: a waker may do anything.
    pub(super) fn wake(self) {
        let few = self.few.into_iter().flatten();
        few.chain(self.more).for_each(Waker::wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn everyone_is_woken_once_however_many_there_are() {
        let woken: Vec<Arc<Woken>> = (0..5).map(|_| Arc::default()).collect();
        let mut waiting = RoomWakers::default();
        for _ in 0..2 {
            for one in &woken {
                waiting.add(&Arc::clone(one).into());
            }
        }
        waiting.wake();
        let counts = woken.iter().map(|one| one.0.load(Ordering::Relaxed));
        assert_eq!(counts.collect::<Vec<_>>(), [1; 5]);
    }
}
