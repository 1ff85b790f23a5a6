//! All interleavings of an owner with others: one thread is inside at a time, and nobody who waits is forgotten.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::BiasedMutex;

/// Names of threads: the first to lock owns the mutex.
const FIRST: usize = 8;
const SECOND: usize = 16;

type Counter = BiasedMutex<UnsafeCell<u32>>;

/// Loom reports whoever gets here beside another, and whoever does not see what the last one wrote.
fn add_one(counter: &UnsafeCell<u32>) {
    // SAFETY: see the mutex.
    #[expect(unsafe_code)]
    counter.with_mut(|number| unsafe { *number += 1 });
}

fn check(other: fn(&Counter) -> u32) {
    loom::model(move || {
        let counter = Arc::new(Counter::new(UnsafeCell::new(0)));
        add_one(&counter.lock_as(FIRST));
        let with_owner = counter.clone();
        let owner = thread::spawn(move || {
            for _ in 0..2 {
                add_one(&with_owner.lock_as(FIRST));
            }
        });
        let added = other(&counter);
        owner.join().expect("the owner ends");
        let number = counter.visit_as(SECOND);
        // SAFETY: see the mutex.
        #[expect(unsafe_code)]
        number.with(|number| assert_eq!(unsafe { *number }, 3 + added));
    });
}

#[test]
fn an_owner_and_who_visits() {
    check(|counter| {
        add_one(&counter.visit_as(SECOND));
        1
    });
}

#[test]
fn an_owner_and_who_tries_to() {
    check(|counter| {
        let inside = counter.try_visit_as(SECOND);
        inside.as_deref().map(add_one).map_or(0, |()| 1)
    });
}

#[test]
fn an_owner_and_who_ends_its_ownership() {
    check(|counter| {
        add_one(&counter.lock_as(SECOND));
        add_one(&counter.lock_as(SECOND));
        2
    });
}
