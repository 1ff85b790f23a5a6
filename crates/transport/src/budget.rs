//! A limit of bytes that many share: rings, bodies on their way, and whatever else their owner
//! counts.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What keeps memory that counts, for the time when it is of use again.
pub(crate) trait Idle: Send + Sync {
    /// Bytes that it could give back.
    fn idle_bytes(&self) -> usize;
    /// Gives so many of them back, or a little more; all, where it has not as many.
    fn forget_idle(&self, bytes: usize);
}

#[derive(Default)]
struct Counts {
    limit: usize,
    used: AtomicUsize,
    refused: AtomicU64,
    /// Those that may have something to give back.
    idle: Mutex<Vec<Weak<dyn Idle>>>,
    /// Held while idle memory is given back: who comes meanwhile would find less of it idle than there is, and more in use.
    making_room: Mutex<()>,
}

impl Counts {
    /// Relaxed: the count protects nothing but itself.
    fn add(&self, bytes: usize) -> Result<(), usize> {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let order = Ordering::Relaxed;
        self.used.fetch_update(order, order, more).map(drop)
    }

    /// As [`Counts::add`], after idle memory was given back, as much as that needs. Where all of it is too little, none is.
    #[cold]
    fn make_room(&self, bytes: usize) -> Result<(), usize> {
        let idle: Vec<_> = self.idle().iter().filter_map(Weak::upgrade).collect();
        let _alone = self
            .making_room
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let missing = |used: usize| used.saturating_add(bytes).saturating_sub(self.limit);
        // Again, where others took what was made free.
        while let Err(used) = self.add(bytes) {
            if idle.iter().map(|idle| idle.idle_bytes()).sum::<usize>() < missing(used) {
                return Err(used);
            }
            for idle in &idle {
                match missing(self.used.load(Ordering::Relaxed)) {
                    0 => break,
                    missing => idle.forget_idle(missing),
                }
            }
        }
        Ok(())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Weak<dyn Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A limit of bytes that many share. Cheap to clone; clones are the same budget.
#[derive(Clone)]
pub struct MemoryBudget(Arc<Counts>);

impl MemoryBudget {
    /// A budget of `limit` bytes, of which none is used.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Counts {
            limit,
            ..Counts::default()
        }))
    }

    /// Counts `bytes` as used until the share is dropped. It does not allocate the bytes, nor wait until
    /// others drop theirs. Where idle rings stand in the way, whosever they are, as much of their memory as that takes is
    /// given back first.
    ///
    /// # Errors
    /// [`BudgetExceeded`] if the budget has not so many left; nothing is counted then.
    pub fn try_reserve(&self, bytes: usize) -> Result<BudgetShare, BudgetExceeded> {
        let counts = &self.0;
        match counts.add(bytes).or_else(|_| counts.make_room(bytes)) {
            Ok(()) => Ok(BudgetShare {
                budget: self.clone(),
                bytes,
            }),
            Err(used) => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                Err(BudgetExceeded {
                    bytes,
                    left: counts.limit - used,
                    limit: counts.limit,
                })
            }
        }
    }

    /// Has `idle` give memory back when that is needed, for as long as it lives.
    pub(crate) fn may_reclaim(&self, idle: Weak<dyn Idle>) {
        let mut all = self.0.idle();
        all.retain(|idle| idle.strong_count() > 0);
        all.push(idle);
    }

    /// The most bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes in use of which nothing is needed now: idle rings, which give them back where others want them.
    #[must_use]
    pub fn idle(&self) -> usize {
        let all = self.0.idle();
        let idle = all.iter().filter_map(Weak::upgrade);
        idle.map(|idle| idle.idle_bytes()).sum()
    }

    /// How often there was not enough left.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBudget({} of {} bytes)", self.used(), self.limit())
    }
}

/// Bytes of a [`MemoryBudget`] that are in use; dropped, others may have them.
pub struct BudgetShare {
    budget: MemoryBudget,
    bytes: usize,
}

impl BudgetShare {
    /// How many.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for BudgetShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BudgetShare({} bytes)", self.bytes)
    }
}

/// A budget has not enough left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes exceed what is left of the memory budget, {left} of {limit}: use less at a time, or enlarge it"
)]
#[non_exhaustive]
pub struct BudgetExceeded {
    /// Asked for.
    pub bytes: usize,
    /// What was left.
    pub left: usize,
    /// The whole budget.
    pub limit: usize,
}

impl From<BudgetExceeded> for io::Error {
    fn from(error: BudgetExceeded) -> Self {
        Self::new(io::ErrorKind::OutOfMemory, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_given_out_and_what_is_dropped_comes_back() {
        let budget = MemoryBudget::new(100);
        let first = budget.try_reserve(60).unwrap();
        let error = budget.clone().try_reserve(41).unwrap_err();
        assert_eq!((error.bytes, error.left, error.limit), (41, 40, 100));
        assert!(budget.try_reserve(usize::MAX).is_err());
        let second = budget.try_reserve(40).unwrap();
        assert_eq!((budget.used(), budget.refused()), (100, 2));
        drop(first);
        assert_eq!((budget.used(), second.bytes()), (40, 40));
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    /// Memory of `piece` bytes each that waits for its next use; it takes its time to be given back.
    struct Drawer {
        piece: usize,
        idle: Mutex<Vec<BudgetShare>>,
    }

    impl Drawer {
        fn of(budget: &MemoryBudget, piece: usize, count: usize) -> Arc<Self> {
            let shares = (0..count).map(|_| budget.try_reserve(piece).unwrap());
            let drawer = Arc::new(Self {
                piece,
                idle: Mutex::new(shares.collect()),
            });
            let idle: Weak<Self> = Arc::downgrade(&drawer);
            budget.may_reclaim(idle);
            drawer
        }
    }

    impl Idle for Drawer {
        fn idle_bytes(&self) -> usize {
            self.idle.lock().unwrap().len() * self.piece
        }

        fn forget_idle(&self, bytes: usize) {
            for _ in 0..bytes.div_ceil(self.piece) {
                let piece = self.idle.lock().unwrap().pop();
                std::thread::yield_now();
                drop(piece);
            }
        }
    }

    #[test]
    fn idle_memory_is_given_back_as_far_as_it_is_needed() {
        let budget = MemoryBudget::new(1000);
        let drawers = [1, 2].map(|_| Drawer::of(&budget, 100, 5));
        let left = |drawer: &Arc<Drawer>| drawer.idle_bytes();
        let _first = budget.try_reserve(150).unwrap();
        assert_eq!(drawers.each_ref().map(left), [300, 500]);
        assert!(budget.try_reserve(900).is_err(), "all would not be enough");
        assert_eq!(drawers.each_ref().map(left), [300, 500]);
        let _second = budget.try_reserve(450).unwrap();
        assert_eq!(drawers.each_ref().map(left), [0, 400]);
        assert_eq!(budget.used(), 1000);
    }

    #[test]
    fn threads_that_make_room_together_all_get_it() {
        const THREADS: usize = 4;
        for _ in 0..100 {
            let budget = MemoryBudget::new(THREADS * 100);
            let _drawer = Drawer::of(&budget, 100, THREADS);
            let ready = std::sync::Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        ready.wait();
                        std::mem::forget(budget.try_reserve(100).unwrap());
                    });
                }
            });
        }
    }

    #[test]
    fn threads_together_do_not_exceed_it() {
        let budget = MemoryBudget::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let share = budget.try_reserve(300);
                        assert!(budget.used() <= 1000);
                        drop(share);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
