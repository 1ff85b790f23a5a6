//! A mutex that costs the one thread that uses it all the time no atomic instruction.
//!
//! Such an instruction waits until all stores before it are visible. A thread that writes small records into memory that
//! another core has just read would wait for each line of each record, where it could wait for many lines at once.
//!
//! The first thread that [locks](BiasedMutex::lock) such a mutex **owns** it from then on: it says by a plain store that it is inside, and
//! looks by a plain load whether somebody else wants to be. Who else wants in says so, and then makes all threads of the
//! process pass a memory barrier (`membarrier(2)`, some microseconds). After that, either the owner has seen the wish,
//! or the other one sees the owner inside, and waits for it. So there are two kinds of others. One that only
//! [visits](BiasedMutex::visit) leaves the mutex to its owner. A second thread that locks it ends its ownership, once and
//! for all: from then on this is the mutex of the standard library.
//!
//! Asymmetric fences of this kind are known from hazard pointers and from biased locks in virtual machines (Dice, Moir,
//! Scherer: "Quickly Reacquirable Locks", 2003).
//!
//! Where the kernel has no such call, or refuses it, nobody owns anything. It is asked when the first thread locks: a process that forbids
//! itself system calls later must leave itself this one.

#[cfg(all(test, loom))]
mod models;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use std::cell::UnsafeCell;
use std::sync::{PoisonError, TryLockError};

use sync::{
    AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, Thread, current, everywhere_fence,
    local_fence, may_fence_everywhere, park,
};

/// Nobody has locked it yet.
const UNCLAIMED: usize = 0;
/// Or-ed to the owner: somebody else is inside, or waits for the owner to leave.
const WANTED: usize = 1;
/// More than one thread has locked it. No thread is named like that, nor by 0 or an odd number.
const SHARED: usize = 2;

thread_local! {
    /// Its address names the thread.
    static NAME: u64 = const { 0 };
}

/// The calling thread's name. It may be that of a thread that has ended, which is not inside any more.
#[inline]
fn name() -> usize {
    NAME.with(|name| std::ptr::from_ref(name).addr())
}

/// See the [module](self). Not reentrant: who locks it twice waits for ever. A panic inside poisons nothing.
pub struct BiasedMutex<T> {
    /// Who owns it, and whether others want it.
    owner: AtomicUsize,
    /// The owner is inside, without having locked `others`. Only the owner writes it.
    inside: AtomicBool,
    /// Locked by whoever else is inside, and by the owner when it found that others wanted it.
    others: Mutex<()>,
    /// Who waits for the owner to leave.
    waiting: Mutex<Option<Thread>>,
    value: UnsafeCell<T>,
}

// SAFETY: as for the mutex of the standard library: one thread at a time reaches the value, so it need only be able to move
// between threads.
#[expect(unsafe_code)]
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// A mutex that nobody owns yet.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(UNCLAIMED),
            inside: AtomicBool::new(false),
            others: Mutex::new(()),
            waiting: Mutex::new(None),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else is inside. The first thread that calls this owns the mutex until another one calls it.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        self.lock_as(name())
    }

    /// As [`BiasedMutex::lock`], but its owner keeps it.
    pub fn visit(&self) -> BiasedGuard<'_, T> {
        self.visit_as(name())
    }

    /// As [`BiasedMutex::visit`], if nobody is inside.
    pub fn try_visit(&self) -> Option<BiasedGuard<'_, T>> {
        self.try_visit_as(name())
    }

    fn visit_as(&self, me: usize) -> BiasedGuard<'_, T> {
        self.enter(me, |owner| owner)
    }

    fn try_visit_as(&self, me: usize) -> Option<BiasedGuard<'_, T>> {
        let others = match self.others.try_lock() {
            Ok(others) => others,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let owner = self.owner.load(Ordering::Relaxed);
        if owner > SHARED {
            self.owner.store(owner | WANTED, Ordering::Relaxed);
            if self.is_inside(owner, me) {
                self.owner.store(owner, Ordering::Relaxed);
                return None;
            }
        }
        Some(BiasedGuard::new(self, Some(others)))
    }

    #[inline]
    fn lock_as(&self, me: usize) -> BiasedGuard<'_, T> {
        // This order: `inside` is written by the owner alone. Acquire: a thread of the same name that has ended may have
        // been inside before.
        if self.owner.load(Ordering::Relaxed) == me && !self.inside.load(Ordering::Acquire) {
            self.inside.store(true, Ordering::Relaxed);
            // Partner: the fence in `is_inside`. Either who wants in sees that this thread is inside, or this thread
            // sees below that it is wanted, or owns nothing any more.
            local_fence();
            // Acquire: the end of another's visit, see the guard.
            if self.owner.load(Ordering::Acquire) == me {
                return BiasedGuard::new(self, None);
            }
            self.leave();
        }
        self.lock_slowly(me)
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, me: usize) -> BiasedGuard<'_, T> {
        self.enter(me, |owner| match owner {
            UNCLAIMED if may_fence_everywhere() => me,
            owner if owner == me => me,
            _ => SHARED,
        })
    }

    /// Waits for others, and for the owner; `becomes` says who owns it afterwards.
    fn enter(&self, me: usize, becomes: impl FnOnce(usize) -> usize) -> BiasedGuard<'_, T> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = self.owner.load(Ordering::Relaxed);
        let next = becomes(owner);
        let wanted = if next > SHARED { WANTED } else { 0 };
        if owner <= SHARED {
            self.owner.store(next | wanted, Ordering::Relaxed);
            return BiasedGuard::new(self, Some(others));
        }
        self.owner.store(owner | WANTED, Ordering::Relaxed);
        if self.is_inside(owner, me) {
            self.wait_for_owner(owner, me);
        }
        self.owner.store(next | wanted, Ordering::Relaxed);
        BiasedGuard::new(self, Some(others))
    }

    #[cold]
    fn wait_for_owner(&self, owner: usize, me: usize) {
        *self.waiting() = Some(current());
        while self.is_inside(owner, me) {
            park();
        }
        *self.waiting() = None;
        // Some of the wakes may have been meant for what this thread waits for otherwise.
        current().unpark();
    }

    /// Whether the owner is inside, to be asked after it was told that it is wanted.
    fn is_inside(&self, owner: usize, me: usize) -> bool {
        // Its own stores the owner sees without a fence.
        if owner != me {
            everywhere_fence();
        }
        // Acquire: what the owner did inside. Partner: `leave`.
        self.inside.load(Ordering::Acquire)
    }

    /// The owner is inside no more.
    #[inline]
    fn leave(&self) {
        self.inside.store(false, Ordering::Release);
        // Partner: the fence in `is_inside`. Either who waits sees that nobody is inside, or is seen here, and woken.
        local_fence();
        if self.owner.load(Ordering::Relaxed) & WANTED != 0 {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        if let Some(thread) = &*self.waiting() {
            thread.unpark();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Thread>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedMutex").finish_non_exhaustive()
    }
}

/// The right to the value of a [`BiasedMutex`]. It stays on its thread.
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// `None` for the owner, when nobody wanted in.
    others: Option<MutexGuard<'a, ()>>,
    on_its_thread: PhantomData<*const ()>,
}

impl<'a, T> BiasedGuard<'a, T> {
    #[inline]
    fn new(mutex: &'a BiasedMutex<T>, others: Option<MutexGuard<'a, ()>>) -> Self {
        Self {
            mutex,
            others,
            on_its_thread: PhantomData,
        }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    #[expect(unsafe_code)]
    fn deref(&self) -> &T {
        // SAFETY: one guard exists at a time. One with `others` locked has seen, behind a fence of all threads and after
        // it said that it wants in, that the owner is not inside, and the owner comes in only while nobody says so. The
        // owner's own second guard is kept out by `inside`, or by what it said itself.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    #[expect(unsafe_code)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and this guard is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.others.is_none() {
            self.mutex.leave();
            return;
        }
        let owner = self.mutex.owner.load(Ordering::Relaxed);
        // Release: what was done inside. Partner: the owner's second look in `lock_as`.
        self.mutex.owner.store(owner & !WANTED, Ordering::Release);
    }
}
