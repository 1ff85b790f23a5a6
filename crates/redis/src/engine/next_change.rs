//! Tasks that wait for the next change of something, each of which is then woken once.

use std::sync::MutexGuard;
use std::task::Waker;

use embar_mux::waiters::{Outworn, Place, Waiters, WakeBatch};

/// Those who wait for the next change.
#[derive(Default)]
pub(super) struct NextChange(Waiters);

impl NextChange {
    /// Has a task wait, until it is woken once. What it waited with before may be left in `outworn`.
    pub fn wait(&mut self, place: &mut Option<Place>, waker: Waker, outworn: &mut Outworn) {
        if place.is_some_and(|place| self.0.come_back(place)) {
            // Behind all others: those of the change that it was woken for may not have been woken yet.
            *place = None;
        }
        self.0.wait(place, 1, waker, outworn);
    }

    /// The task that had this place waits no more.
    pub fn leave(&mut self, place: Place, outworn: &mut Outworn) {
        self.0.leave(place, outworn);
    }

    /// Wakes all that wait now, without the lock. Those who wait again meanwhile wait for the next change. `of` finds
    /// them in what `lock` guards.
    pub fn wake<'a, T>(
        mut guard: MutexGuard<'a, T>,
        lock: impl Fn() -> MutexGuard<'a, T>,
        of: impl Fn(&mut T) -> &mut Self,
    ) {
        let mut left = of(&mut guard).0.len();
        let mut batch = WakeBatch::default();
        loop {
            of(&mut guard).0.wake(&mut batch, |_, _| {
                let more = left > 0;
                left = left.saturating_sub(1);
                more
            });
            drop(guard);
            if !batch.wake() {
                return;
            }
            guard = lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    /// Waits again as soon as it is woken.
    struct Returns {
        change: Arc<Mutex<NextChange>>,
        place: Mutex<Option<Place>>,
        woken: AtomicUsize,
    }

    impl Returns {
        fn wait(self: Arc<Self>) {
            let mut outworn = Outworn::default();
            let waker = Arc::clone(&self).into();
            let mut place = self.place.lock().unwrap();
            let mut change = self.change.lock().unwrap();
            change.wait(&mut place, waker, &mut outworn);
        }
    }

    impl Wake for Returns {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            self.wait();
        }
    }

    #[test]
    fn each_is_woken_once_for_a_change_although_it_waits_again_at_once() {
        let change = Arc::new(Mutex::new(NextChange::default()));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let task = Arc::new(Returns {
                    change: Arc::clone(&change),
                    place: Mutex::default(),
                    woken: AtomicUsize::new(0),
                });
                Arc::clone(&task).wait();
                task
            })
            .collect();
        for times in 1..=3 {
            NextChange::wake(
                change.lock().unwrap(),
                || change.lock().unwrap(),
                |change| change,
            );
            for task in &tasks {
                assert_eq!(task.woken.load(Ordering::Relaxed), times);
            }
        }
        for task in &tasks {
            let place = task.place.lock().unwrap().take().expect("it waits");
            let mut outworn = Outworn::default();
            change.lock().unwrap().leave(place, &mut outworn);
        }
        for task in &tasks {
            assert_eq!(Arc::strong_count(task), 1, "it is kept nowhere");
        }
    }
}
