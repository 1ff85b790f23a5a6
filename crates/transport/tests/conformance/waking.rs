use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::{Completion, Reactor};

use crate::Kind;
use crate::driver::{driver, room};

pub fn a_poll_without_events_ends_in_time<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, _peer) = driver.pair();
    driver.reactor.recv(token, room(8));
    driver.nothing_happens();
    let started = Instant::now();
    assert_eq!(driver.poll(Duration::from_millis(20)), 0);
    assert!(started.elapsed() >= Duration::from_millis(20));
    driver.poll(Duration::ZERO);
}

pub fn a_wake_ends_a_wait_without_limit<K: Kind>() {
    let mut reactor = K::make();
    let waker = reactor.waker();
    let (started, may_wake) = mpsc::channel();
    let other = thread::spawn(move || {
        may_wake.recv().unwrap();
        waker.wake();
    });
    let mut out = Vec::new();
    started.send(()).unwrap();
    while out.is_empty() {
        reactor.poll(None, &mut out).unwrap();
    }
    assert!(matches!(out[..], [Completion::Woken]));
    other.join().unwrap();
}

pub fn a_wake_before_the_poll_is_kept_and_told_once<K: Kind>() {
    let mut driver = driver::<K>();
    let waker = driver.reactor.waker();
    for _ in 0..3 {
        waker.wake();
        waker.clone().wake();
        driver.woken();
        driver.nothing_happens();
    }
}

pub fn no_wake_is_lost_between_queue_and_sleep<K: Kind>() {
    const ITEMS: u32 = 5_000;
    let mut driver = driver::<K>();
    let waker = driver.reactor.waker();
    let (queue, items) = mpsc::channel();
    let producer = thread::spawn(move || {
        for item in 0..ITEMS {
            queue.send(item).unwrap();
            waker.wake();
            // Sometimes long enough that the consumer falls asleep, sometimes not.
            for _ in 0..item % 512 {
                std::hint::spin_loop();
            }
        }
    });
    let mut next = 0;
    while next < ITEMS {
        // Fails after its deadline if a wake was lost with items in the queue.
        driver.woken();
        while let Ok(item) = items.try_recv() {
            assert_eq!(item, next);
            next += 1;
        }
    }
    producer.join().unwrap();
}

pub fn a_busy_reactor_still_hears_its_waker<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(&[1; 1000]).unwrap();
    let waker = driver.reactor.waker();
    let mut out = Vec::new();
    let mut woken = 0;
    for round in 0..1000 {
        driver.reactor.recv(token, room(1));
        if round == 500 {
            waker.wake();
        }
        while !out
            .iter()
            .any(|done| matches!(done, Completion::Received { .. }))
        {
            driver.reactor.poll(None, &mut out).unwrap();
        }
        for done in out.drain(..) {
            if matches!(done, Completion::Woken) {
                assert!((500..510).contains(&round), "heard in round {round}");
                woken += 1;
            }
        }
    }
    assert_eq!(woken, 1);
}
