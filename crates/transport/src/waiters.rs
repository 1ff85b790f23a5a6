//! Who waits for something that becomes free in parts: first come, first served.
//!
//! A waiter has a place, which it keeps until it leaves: whoever is woken and finds that another was faster waits
//! on at the same place. Joining, leaving and waking cost the logarithm of how many wait. [`Waiters`] takes no lock
//! and runs nobody's code: its owner clones a waker before it takes a lock, fills a [`WakeBatch`] under it, and wakes
//! after that. A waker that is not needed any more ends in [`Outworn`], to be dropped after the lock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// So many are woken for each time that the lock is taken.
const BATCH: usize = 16;

/// A place among the [`Waiters`] that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// As many wait without an allocation: the thread that sends, and the one that answers.
const FEW: usize = 2;

#[derive(Debug)]
struct Waiting {
    need: usize,
    waker: Waker,
}

/// One of the few.
#[derive(Debug)]
enum Few {
    Waiting(Place, Waiting),
    Woken(Place, usize),
}

impl Few {
    fn place(&self) -> Place {
        match self {
            Self::Waiting(place, _) | Self::Woken(place, _) => *place,
        }
    }
}

/// What those who were woken, and are not back yet, are going to take.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Promised {
    /// How many they are.
    pub waiters: usize,
    /// What they need together.
    pub need: usize,
}

/// Those who wait, in the order of their places.
#[derive(Debug, Default)]
pub struct Waiters {
    last: u64,
    /// Some of them, in no order.
    few: [Option<Few>; FEW],
    waiting: BTreeMap<Place, Waiting>,
    /// What each of those needs who were woken and are not back.
    woken: BTreeMap<Place, usize>,
    promised: Promised,
}

impl Waiters {
    /// Has the waiter at `place` wait until it is woken. It gets a place behind all others if it has none.
    pub fn wait(
        &mut self,
        place: &mut Option<Place>,
        need: usize,
        waker: Waker,
        outworn: &mut Outworn,
    ) -> Place {
        let place = *place.get_or_insert_with(|| {
            self.last += 1;
            Place(self.last)
        });
        self.come_back(place);
        if let Some(known) = self.waiting_at(place) {
            known.need = need;
            outworn.put(std::mem::replace(&mut known.waker, waker));
            return place;
        }
        let waiting = Waiting { need, waker };
        match self.few.iter_mut().find(|few| few.is_none()) {
            Some(free) => *free = Some(Few::Waiting(place, waiting)),
            None => drop(self.waiting.insert(place, waiting)),
        }
        place
    }

    fn waiting_at(&mut self, place: Place) -> Option<&mut Waiting> {
        let few = self.few.iter_mut().flatten();
        few.filter_map(|few| match few {
            Few::Waiting(at, waiting) => (*at == place).then_some(waiting),
            Few::Woken(..) => None,
        })
        .next()
        .or_else(|| self.waiting.get_mut(&place))
    }

    /// How many wait, besides those who were woken.
    pub fn len(&self) -> usize {
        self.few_waiting().count() + self.waiting.len()
    }

    /// Whether nobody waits but those who were woken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn few_waiting(&self) -> impl Iterator<Item = Place> + '_ {
        let few = self.few.iter().flatten();
        few.filter(|few| matches!(few, Few::Waiting(..)))
            .map(Few::place)
    }

    fn first(&self) -> Option<Place> {
        let more = self.waiting.first_key_value().map(|(place, _)| *place);
        self.few_waiting().chain(more).min()
    }

    /// Whether nobody waits before `place`.
    pub fn is_first(&self, place: Place) -> bool {
        self.first().is_none_or(|first| first >= place)
    }

    /// The waiter at `place` is back: whether it was woken.
    pub fn come_back(&mut self, place: Place) -> bool {
        let of_few = self.few.iter_mut().find_map(|few| match few {
            Some(Few::Woken(at, need)) if *at == place => {
                let need = *need;
                *few = None;
                Some(need)
            }
            _ => None,
        });
        let Some(need) = of_few.or_else(|| self.woken.remove(&place)) else {
            return false;
        };
        self.promised.waiters -= 1;
        self.promised.need -= need;
        true
    }

    /// The waiter at `place` waits no more: whether it was woken, and had not come back since.
    pub fn leave(&mut self, place: Place, outworn: &mut Outworn) -> bool {
        if self.come_back(place) {
            return true;
        }
        let at_place =
            |few: &&mut Option<Few>| few.as_ref().is_some_and(|few| few.place() == place);
        let left = match self.few.iter_mut().find(at_place) {
            Some(few) => match few.take() {
                Some(Few::Waiting(_, waiting)) => Some(waiting),
                Some(Few::Woken(..)) | None => None,
            },
            None => self.waiting.remove(&place),
        };
        if let Some(Waiting { waker, .. }) = left {
            outworn.put(waker);
        }
        false
    }

    /// Moves the wakers of the first waiters to `batch`, as long as it has room and `may` allows them. `may` gets
    /// what the waiter needs, and what is promised to others.
    pub fn wake(&mut self, batch: &mut WakeBatch, mut may: impl FnMut(usize, Promised) -> bool) {
        while !batch.is_full()
            && let Some(first) = self.first()
        {
            let promised = self.promised;
            let need = self.waiting_at(first).map_or(0, |waiting| waiting.need);
            if !may(need, promised) {
                return;
            }
            batch.push(self.promise(first));
            self.promised.waiters += 1;
            self.promised.need += need;
        }
    }

    /// Takes the wakers of all who wait now. Who waits again is not among them.
    pub fn wake_all(&mut self) -> AllWakers {
        let mut all = Vec::with_capacity(self.len());
        while let Some(first) = self.first() {
            self.promised.waiters += 1;
            self.promised.need += self.waiting_at(first).map_or(0, |waiting| waiting.need);
            all.extend(self.promise(first));
        }
        AllWakers(all)
    }

    /// Turns the one that waits at `place` into one that is woken.
    fn promise(&mut self, place: Place) -> Option<Waker> {
        for few in &mut self.few {
            if let Some(Few::Waiting(at, waiting)) = few
                && *at == place
            {
                let woken = Few::Woken(place, waiting.need);
                let Some(Few::Waiting(_, waiting)) = few.replace(woken) else {
                    return None;
                };
                return Some(waiting.waker);
            }
        }
        let Waiting { need, waker } = self.waiting.remove(&place)?;
        self.woken.insert(place, need);
        Some(waker)
    }
}

/// Wakers that nobody needs any more, on their way out of a lock. To drop one runs anybody's code, too. Declare it
/// before the guard of the lock: then it is dropped after that.
#[derive(Debug, Default)]
pub struct Outworn([Option<Waker>; 2]);

impl Outworn {
    /// A call of each method of [`Waiters`] leaves one at most, and nobody calls more than two under one lock.
    fn put(&mut self, waker: Waker) {
        let free = self.0.iter_mut().find(|place| place.is_none());
        *free.expect("one for each call") = Some(waker);
    }
}

/// Wakers on their way out of a lock. A waker is anybody's code, so nothing wakes it under a lock.
#[derive(Debug, Default)]
pub struct WakeBatch {
    wakers: [Option<Waker>; BATCH],
    len: usize,
}

impl WakeBatch {
    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    fn push(&mut self, waker: Option<Waker>) {
        self.wakers[self.len] = waker;
        self.len += 1;
    }

    /// Wakes all of them. True if it was full: there may be more to wake.
    pub fn wake(&mut self) -> bool {
        let woken = std::mem::take(&mut self.len);
        for waker in &mut self.wakers[..woken] {
            if let Some(waker) = waker.take() {
                wake(waker);
            }
        }
        woken == BATCH
    }
}

/// The wakers of all who waited at a time, on their way out of a lock.
#[derive(Debug)]
#[must_use = "they wait to be woken"]
pub struct AllWakers(Vec<Waker>);

impl AllWakers {
    /// Wakes all of them.
    pub fn wake(self) {
        self.0.into_iter().for_each(wake);
    }
}

/// A waker that panics takes nothing from those behind it, nor from the caller: what it was to wake is its own
/// concern, and the panic was told by the hook.
pub fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
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

    impl Woken {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// Three that wait for one each.
    fn three(waiters: &mut Waiters) -> [(Arc<Woken>, Place); 3] {
        [(); 3].map(|()| {
            let woken = Arc::new(Woken::default());
            let waker = Arc::clone(&woken).into();
            let place = waiters.wait(&mut None, 1, waker, &mut Outworn::default());
            (woken, place)
        })
    }

    /// Wakes as many as `free` has room for.
    fn wake(waiters: &mut Waiters, free: usize) {
        let mut batch = WakeBatch::default();
        loop {
            waiters.wake(&mut batch, |need, promised| promised.need + need <= free);
            if !batch.wake() {
                return;
            }
        }
    }

    #[test]
    fn the_first_are_woken_and_no_more_than_there_is_for_them() {
        let mut waiters = Waiters::default();
        let all = three(&mut waiters);
        wake(&mut waiters, 2);
        // What is promised is not promised twice.
        wake(&mut waiters, 2);
        assert_eq!(all.each_ref().map(|(woken, _)| woken.count()), [1, 1, 0]);
        assert!(waiters.come_back(all[0].1));
        wake(&mut waiters, 2);
        assert_eq!(all.each_ref().map(|(woken, _)| woken.count()), [1, 1, 1]);
    }

    #[test]
    fn who_comes_back_in_vain_keeps_its_place() {
        let mut waiters = Waiters::default();
        let all = three(&mut waiters);
        wake(&mut waiters, 1);
        let first = Arc::clone(&all[0].0).into();
        waiters.wait(&mut Some(all[0].1), 1, first, &mut Outworn::default());
        assert!(waiters.is_first(all[0].1) && !waiters.is_first(all[1].1));
        wake(&mut waiters, 1);
        assert_eq!(all.each_ref().map(|(woken, _)| woken.count()), [2, 0, 0]);
    }

    #[test]
    fn who_leaves_is_kept_nowhere() {
        let mut waiters = Waiters::default();
        let all = three(&mut waiters);
        wake(&mut waiters, 1);
        assert!(
            waiters.leave(all[0].1, &mut Outworn::default()),
            "it was woken"
        );
        for (_, place) in &all {
            assert!(!waiters.leave(*place, &mut Outworn::default()));
        }
        assert!(waiters.is_empty());
        assert_eq!(waiters.promised, Promised::default());
        for (woken, _) in all {
            assert_eq!(Arc::strong_count(&woken), 1);
        }
    }

    #[test]
    fn more_than_a_batch_are_woken_in_order() {
        let mut waiters = Waiters::default();
        let all: Vec<_> = (0..3 * BATCH).flat_map(|_| three(&mut waiters)).collect();
        wake(&mut waiters, 2 * BATCH + 1);
        let woken = all
            .iter()
            .map(|(woken, _)| woken.count())
            .collect::<Vec<_>>();
        assert_eq!(woken.iter().sum::<usize>(), 2 * BATCH + 1);
        assert!(woken.is_sorted_by(|one, other| one >= other));
    }

    #[test]
    fn all_are_woken_once_although_they_wait_again() {
        let mut waiters = Waiters::default();
        let all: Vec<_> = (0..3 * BATCH).flat_map(|_| three(&mut waiters)).collect();
        for times in 1..=2 {
            waiters.wake_all().wake();
            assert!(waiters.is_empty());
            for (woken, place) in &all {
                assert_eq!(woken.count(), times);
                let waker = Arc::clone(woken).into();
                waiters.wait(&mut Some(*place), 1, waker, &mut Outworn::default());
            }
        }
        assert_eq!(waiters.promised, Promised::default());
    }

    /// Panics when it is woken.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as the test wants it");
        }
    }

    #[test]
    fn a_waker_that_panics_takes_nothing_from_those_behind_it() {
        let mut waiters = Waiters::default();
        let panics = Arc::new(Panics).into();
        waiters.wait(&mut None, 1, panics, &mut Outworn::default());
        let all = three(&mut waiters);
        wake(&mut waiters, 4);
        assert_eq!(all.each_ref().map(|(woken, _)| woken.count()), [1, 1, 1]);
    }

    #[test]
    fn wakers_that_are_not_needed_any_more_are_the_callers_to_drop() {
        let mut waiters = Waiters::default();
        let [first, second] = [(); 2].map(|()| Arc::new(Woken::default()));
        let mut place = None;
        let mut outworn = Outworn::default();
        waiters.wait(&mut place, 1, Arc::clone(&first).into(), &mut outworn);
        waiters.wait(&mut place, 1, Arc::clone(&second).into(), &mut outworn);
        waiters.leave(place.expect("it waits"), &mut outworn);
        let counts = || [&first, &second].map(Arc::strong_count);
        assert_eq!(counts(), [2, 2]);
        drop(outworn);
        assert_eq!(counts(), [1, 1]);
    }
}
