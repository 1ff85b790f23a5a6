//! Many wait for room in one ring: who is woken, how often, and what is left of those who give up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use embar_transport::ring::{RingPool, RoomWait, SendRing};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Waiter {
    woken: Arc<Woken>,
    wait: RoomWait,
    /// Wakes that it has followed.
    seen: usize,
}

impl Waiter {
    fn new(ring: &SendRing) -> Self {
        Self {
            woken: Arc::default(),
            wait: ring.room_wait(),
            seen: 0,
        }
    }

    fn poll(&mut self, len: usize) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = self.wait.poll(len, &mut Context::from_waker(&waker));
        polled.is_ready()
    }

    /// Whether it was woken since it was asked the last time.
    fn was_woken(&mut self) -> bool {
        let woken = self.woken.0.load(Ordering::Relaxed);
        std::mem::replace(&mut self.seen, woken) != woken
    }
}

const LEN: usize = 1024;

/// A ring of the smallest size, and so many messages of `LEN` bytes in it that there is room for no more.
fn full() -> (SendRing, usize) {
    let pool = RingPool::new(rustix::param::page_size(), 1).unwrap();
    let ring = SendRing::new(&pool).unwrap();
    let mut sent = 0;
    while write(&ring) {
        sent += 1;
    }
    (ring, sent)
}

fn write(ring: &SendRing) -> bool {
    let fill = |_: &mut [u8]| Ok(());
    ring.write(LEN, drop, fill).is_ok()
}

/// Sends the first `count` messages.
fn send(ring: &SendRing, count: usize) {
    let mut span = ring.span().expect("something is committed");
    span.advance(count * LEN);
}

#[test]
fn waits_that_are_given_up_leave_nothing() {
    const WAITS: usize = 11_000;
    let (ring, _) = full();
    let waiters: Vec<Waiter> = (0..WAITS)
        .map(|_| {
            let mut waiter = Waiter::new(&ring);
            assert!(!waiter.poll(LEN));
            waiter
        })
        .collect();
    let wakers: Vec<_> = waiters.iter().map(|one| Arc::clone(&one.woken)).collect();
    drop(waiters);
    assert!(wakers.iter().all(|waker| Arc::strong_count(waker) == 1));
    send(&ring, 1);
    assert!(
        wakers
            .iter()
            .all(|waker| waker.0.load(Ordering::Relaxed) == 0)
    );
}

#[test]
fn the_first_come_first_and_as_many_are_woken_as_there_is_room_for() {
    // No wake may be followed by a search: each message costs about one wake, however many wait.
    const WAITERS: usize = 50_000;
    let (ring, places) = full();
    let mut waiters: VecDeque<Waiter> = (0..WAITERS).map(|_| Waiter::new(&ring)).collect();
    for waiter in &mut waiters {
        assert!(!waiter.poll(LEN));
    }
    let (mut polls, mut rounds) = (0, 0);
    while !waiters.is_empty() {
        send(&ring, places);
        rounds += 1;
        // Those who are woken are the first in the queue.
        let mut served = 0;
        while waiters.front_mut().is_some_and(Waiter::was_woken) {
            polls += 1;
            let mut first = waiters.pop_front().expect("looked at above");
            assert!(first.poll(LEN) && write(&ring), "woken in vain");
            served += 1;
        }
        assert_eq!(served, places.min(served + waiters.len()));
        let next = waiters.iter_mut().take(2 * places);
        assert_eq!(next.filter(|next| next.seen > 0).count(), 0);
    }
    assert_eq!(polls, WAITERS);
    assert_eq!(rounds, WAITERS.div_ceil(places));
}

#[test]
fn room_that_a_woken_task_does_not_take_goes_to_the_next() {
    let (ring, places) = full();
    let mut waiters: Vec<Waiter> = (0..=places).map(|_| Waiter::new(&ring)).collect();
    for waiter in &mut waiters {
        assert!(!waiter.poll(LEN));
    }
    send(&ring, places);
    let mut last = waiters.pop().expect("one more than there is room for");
    assert!(waiters.iter_mut().all(Waiter::was_woken) && !last.was_woken());
    // One of those gives up.
    drop(waiters.pop());
    assert!(last.was_woken() && last.poll(LEN));
}

#[test]
fn a_large_one_is_not_overtaken_by_small_ones_that_wait() {
    let (ring, _) = full();
    let (mut large, mut small) = (Waiter::new(&ring), Waiter::new(&ring));
    assert!(!large.poll(2 * LEN) && !small.poll(LEN));
    send(&ring, 1);
    assert!(!large.was_woken() && !small.was_woken());
    assert!(!small.poll(LEN), "it comes after the large one");
    // The large one gives up: now there is room for the first.
    drop(large);
    assert!(small.was_woken() && small.poll(LEN));
}
