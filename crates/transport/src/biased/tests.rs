use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{BiasedMutex, SHARED, UNCLAIMED, name};

/// Not atomic: who is inside beside another loses some of both.
fn add_one(number: &mut u64) {
    *number = std::hint::black_box(*number) + 1;
}

fn owner<T>(mutex: &BiasedMutex<T>) -> usize {
    mutex.owner.load(Ordering::Relaxed)
}

#[test]
fn the_first_that_locks_owns_it_and_visitors_leave_it_alone() {
    let mutex = BiasedMutex::new(0);
    drop(mutex.visit());
    assert_eq!(owner(&mutex), UNCLAIMED);
    drop(mutex.lock());
    assert_eq!(owner(&mutex), name());
    let guard = mutex.lock();
    assert!(guard.others.is_none(), "an owner locks nothing");
    thread::scope(|scope| {
        scope
            .spawn(|| assert!(mutex.try_visit().is_none(), "the owner is inside"))
            .join()
            .expect("no panic");
        drop(guard);
        scope.spawn(|| {
            *mutex.visit() = 1;
            *mutex.try_visit().expect("nobody is inside") += 1;
        });
    });
    assert_eq!(*mutex.lock(), 2);
    assert_eq!(owner(&mutex), name());
}

#[test]
fn a_second_thread_that_locks_ends_that() {
    let mutex = BiasedMutex::new(0);
    *mutex.lock() = 1;
    thread::scope(|scope| {
        scope.spawn(|| *mutex.lock() += 1);
    });
    assert_eq!(owner(&mutex), SHARED);
    let guard = mutex.lock();
    assert_eq!(*guard, 2);
    assert!(guard.others.is_some());
    assert!(mutex.try_visit().is_none());
}

#[test]
fn who_waits_for_an_owner_is_woken_and_keeps_its_other_wakes() {
    let mutex = BiasedMutex::new(false);
    drop(mutex.lock());
    let guard = mutex.lock();
    let waiter = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // As a waker would that has nothing to do with the mutex.
            thread::current().unpark();
            *mutex.visit() = true;
            thread::park();
        });
        while mutex.waiting().is_none() {
            thread::yield_now();
        }
        drop(guard);
        waiter.join()
    });
    waiter.expect("no panic");
    assert!(*mutex.lock());
}

#[test]
fn no_addition_is_lost_between_an_owner_visitors_and_a_second_user() {
    const OWNED: u64 = 100_000;
    const VISITS: u64 = 200;
    let (mutex, over) = (BiasedMutex::new(0), AtomicBool::new(false));
    let tried: u64 = thread::scope(|scope| {
        drop(mutex.lock());
        let visitor = scope.spawn(|| (0..VISITS).for_each(|_| add_one(&mut mutex.visit())));
        let tries = scope.spawn(|| {
            let mut added = 0;
            while !over.load(Ordering::Relaxed) {
                if let Some(mut number) = mutex.try_visit() {
                    add_one(&mut number);
                    added += 1;
                }
                thread::sleep(Duration::from_micros(100));
            }
            added
        });
        (0..OWNED).for_each(|_| add_one(&mut mutex.lock()));
        visitor.join().expect("no panic");
        let second = scope.spawn(|| (0..VISITS).for_each(|_| add_one(&mut mutex.lock())));
        (0..OWNED).for_each(|_| add_one(&mut mutex.lock()));
        second.join().expect("no panic");
        over.store(true, Ordering::Relaxed);
        tries.join().expect("no panic")
    });
    assert_eq!(*mutex.visit(), 2 * OWNED + 2 * VISITS + tried);
}
