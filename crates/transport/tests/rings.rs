//! What users of rings rely on, with real memory and real threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use embar_transport::ring::{
    Commit, Kept, RecvRing, Reservation, ReserveError, RingPool, SendRing, SendSpan, WaitError,
};
use proptest::prelude::*;

/// A capacity small enough for wraps to be many: the page size, the smallest there is.
fn pool() -> RingPool {
    RingPool::new(page(), 4).unwrap()
}

fn page() -> usize {
    rustix::param::page_size()
}

fn commit(ring: &SendRing, bytes: &[u8]) -> Commit {
    let mut reservation = ring.reserve(bytes.len()).unwrap();
    reservation.copy_from_slice(bytes);
    reservation.commit()
}

/// Sends all that is committed.
fn drain(ring: &SendRing, sent: &mut Vec<u8>) {
    while let Some(mut span) = ring.span() {
        sent.extend_from_slice(span.bytes());
        let count = span.bytes().len();
        span.advance(count);
        if !span.finish() {
            return;
        }
    }
}

struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counter() -> (Arc<Counter>, Waker) {
    let counter = Arc::new(Counter(AtomicUsize::new(0)));
    (counter.clone(), counter.into())
}

#[test]
fn capacities_that_cannot_be_are_refused() {
    for capacity in [0, 1, page() / 2, page() + 1, 3 * page(), 1 << 31] {
        let error = RingPool::new(capacity, 0).unwrap_err();
        assert!(error.to_string().contains(&capacity.to_string()));
    }
}

#[test]
fn a_range_that_wraps_is_contiguous_at_every_offset() {
    let ring = SendRing::new(&pool()).unwrap();
    let mut sent = Vec::new();
    let message: Vec<u8> = (0..=250).collect();
    // 251 is odd, so the end of the memory is met at all its offsets.
    for round in 0..2 * page() {
        assert_eq!(commit(&ring, &message), Commit::First);
        sent.clear();
        drain(&ring, &mut sent);
        assert_eq!(sent, message, "round {round}");
    }
}

#[test]
fn a_whole_ring_goes_out_as_one_span() {
    let ring = SendRing::new(&pool()).unwrap();
    let mut sent = Vec::new();
    let _ = commit(&ring, &[0; 100]);
    drain(&ring, &mut sent);
    let half = vec![1; page() / 2];
    assert_eq!(commit(&ring, &half), Commit::First);
    assert_eq!(commit(&ring, &half), Commit::First, "nobody sends yet");
    assert_eq!(ring.reserve(1).unwrap_err(), ReserveError::Full);
    let mut span = ring.span().unwrap();
    assert_eq!(span.bytes(), vec![1; page()]);
    assert!(ring.span().is_none() && !ring.cork());
    span.advance(10);
    assert_eq!(ring.queued(), page() - 10, "sent room is free at once");
    assert_eq!(commit(&ring, &[2; 10]), Commit::Left);
    span.advance(page() - 10);
    assert!(span.finish(), "ten more came");
    sent.clear();
    drain(&ring, &mut sent);
    assert_eq!(sent, [2; 10]);
    assert!(ring.is_empty() && ring.queued() == 0);
}

#[test]
fn refusals_say_why() {
    let ring = SendRing::new(&pool()).unwrap();
    let max = page();
    let long = ring.reserve(max + 1).unwrap_err();
    assert_eq!(long, ReserveError::TooLong { max });
    let held = ring.reserve(max).unwrap();
    assert_eq!(ring.reserve(1).unwrap_err(), ReserveError::Full);
    let waited = ring.wait_room(1, Duration::from_millis(1));
    assert_eq!(waited, Err(WaitError::TimedOut));
    ring.close();
    assert_eq!(ring.reserve(1).unwrap_err(), ReserveError::Closed);
    let waited = ring.wait_room(1, Duration::from_secs(60));
    assert_eq!(waited, Err(WaitError::Closed));
    // What was reserved before is still sent.
    assert_eq!(held.commit(), Commit::First);
    let mut sent = Vec::new();
    drain(&ring, &mut sent);
    assert_eq!(sent.len(), max);
}

#[test]
fn a_dropped_span_leaves_its_bytes_queued() {
    let ring = SendRing::new(&pool()).unwrap();
    let _ = commit(&ring, b"abcdef");
    let mut span = ring.span().unwrap();
    span.advance(2);
    drop(span);
    let mut sent = Vec::new();
    drain(&ring, &mut sent);
    assert_eq!(sent, b"cdef");
}

#[test]
fn a_kept_reservation_outlives_every_handle() {
    let ring = SendRing::new(&pool()).unwrap();
    let mut held = ring.reserve(4).unwrap().into_owned();
    assert_eq!(ring.oldest_reservation(), Some(held.ticket()));
    drop(ring);
    let held = thread::spawn(move || {
        held.copy_from_slice(b"late");
        held
    });
    assert_eq!(&*held.join().unwrap(), b"late");
}

#[test]
fn who_drops_what_held_others_up_wakes_the_owner() {
    let ring = SendRing::new(&pool()).unwrap();
    let (due, waker) = counter();
    ring.on_due(waker);
    let held = ring.reserve(10).unwrap();
    let _ = commit(&ring, b"behind");
    assert!(ring.span().is_none(), "the first is open");
    assert_eq!(due.0.load(Ordering::Relaxed), 0);
    drop(held);
    assert_eq!(due.0.load(Ordering::Relaxed), 1);
    let mut sent = Vec::new();
    drain(&ring, &mut sent);
    assert_eq!(sent, b"behind");
}

/// Sends in place of the thread whose commit would have said so.
struct Drain(SendRing, Arc<Mutex<Vec<u8>>>);

impl Wake for Drain {
    fn wake(self: Arc<Self>) {
        drain(&self.0, &mut self.1.lock().unwrap());
    }
}

#[test]
fn many_threads_send_each_its_own_messages_in_its_own_order() {
    const THREADS: u8 = 4;
    const EACH: u32 = 5_000;
    let ring = SendRing::new(&pool()).unwrap();
    // The thread whose commit says `First` sends.
    let sent = Arc::new(Mutex::new(Vec::new()));
    ring.on_due(Arc::new(Drain(ring.clone(), Arc::clone(&sent))).into());
    let threads: Vec<_> = (0..THREADS)
        .map(|id| {
            let (ring, sent) = (ring.clone(), Arc::clone(&sent));
            thread::spawn(move || {
                for number in 0..EACH {
                    let len = 8 + (number as usize * 7 + id as usize) % 200;
                    let mut message = loop {
                        match ring.reserve(len) {
                            Ok(message) => break message,
                            Err(ReserveError::Full) => {
                                ring.wait_room(len, Duration::from_secs(60)).unwrap();
                            }
                            Err(other) => panic!("{other}"),
                        }
                    };
                    message[..2].copy_from_slice(&(len as u16).to_le_bytes());
                    message[2] = id;
                    message[3] = 0;
                    message[4..8].copy_from_slice(&number.to_le_bytes());
                    message[8..].fill(id ^ number as u8);
                    if number % 13 == 5 {
                        // Given up after it was written; its number never arrives.
                        drop(message);
                        continue;
                    }
                    if message.commit() == Commit::First {
                        drain(&ring, &mut sent.lock().unwrap());
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut sent = sent.lock().unwrap();
    drain(&ring, &mut sent);
    assert!(ring.is_empty());

    let mut next = [0u32; THREADS as usize];
    let mut rest = &sent[..];
    while !rest.is_empty() {
        let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        let (message, after) = rest.split_at(len);
        let number = u32::from_le_bytes(message[4..8].try_into().unwrap());
        let expected = &mut next[usize::from(message[2])];
        if *expected % 13 == 5 {
            *expected += 1;
        }
        assert_eq!(number, *expected);
        *expected += 1;
        let fill = message[2] ^ number as u8;
        assert!(message[8..].iter().all(|&byte| byte == fill));
        rest = after;
    }
    let all = if (EACH - 1) % 13 == 5 { EACH - 1 } else { EACH };
    assert_eq!(next, [all; THREADS as usize]);
}

#[test]
fn nothing_of_a_session_is_left_for_the_next() {
    let pool = pool();
    let ring = SendRing::new(&pool).unwrap();
    // The last of these is undone, but was written.
    let _ = commit(&ring, &[0xAA; 1000]);
    ring.reserve(2000).unwrap().fill(0xAA);
    drop(ring);
    let mut received = RecvRing::new(&pool).unwrap();
    let mut space = received.lend(usize::MAX).unwrap();
    assert!(space.as_mut_slice().iter().all(|&byte| byte == 0));
    space.as_mut_slice().fill(0xBB);
    received.give_back(space, 3000);
    let kept = received.keep(10..20);
    drop(received);
    assert_eq!(pool.idle(), 0, "somebody keeps a part of it");
    drop(kept);
    assert_eq!(pool.idle(), 1);
    let ring = SendRing::new(&pool).unwrap();
    assert!(ring.reserve(page()).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn wrapped_rings_leave_nothing_either() {
    let pool = pool();
    let ring = SendRing::new(&pool).unwrap();
    let mut sent = Vec::new();
    for _ in 0..10 {
        let _ = commit(&ring, &vec![0xAA; page() - 100]);
        drain(&ring, &mut sent);
    }
    drop(ring);
    let ring = SendRing::new(&pool).unwrap();
    assert!(ring.reserve(page()).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn a_pool_keeps_as_many_as_it_was_told() {
    let pool = RingPool::new(page(), 2).unwrap();
    let rings: Vec<_> = (0..5).map(|_| SendRing::new(&pool).unwrap()).collect();
    assert_eq!(pool.idle(), 0);
    drop(rings);
    assert_eq!(pool.idle(), 2);
}

#[test]
fn a_space_is_lent_once_and_dropping_it_gives_nothing() {
    let mut ring = RecvRing::new(&pool()).unwrap();
    let space = ring.lend(100).unwrap();
    assert_eq!(space.len(), 100);
    assert!(ring.lend(100).is_none(), "one is out");
    drop(space);
    assert!(ring.readable().is_empty());
    assert!(ring.lend(100).is_some());
}

#[test]
#[should_panic(expected = "only 0 bytes were filled")]
fn bytes_that_nobody_wrote_are_not_shown() {
    let mut ring = RecvRing::new(&pool()).unwrap();
    let space = ring.lend(100).unwrap();
    ring.give_back(space, 1);
}

#[test]
#[should_panic(expected = "another ring")]
fn a_space_of_another_ring_is_a_bug() {
    let pool = pool();
    let mut ring = RecvRing::new(&pool).unwrap();
    let space = RecvRing::new(&pool).unwrap().lend(100).unwrap();
    ring.give_back(space, 0);
}

fn receive(ring: &mut RecvRing, bytes: &[u8]) -> usize {
    let Some(mut space) = ring.lend(bytes.len()) else {
        return 0;
    };
    let count = space.len();
    space.as_mut_slice().copy_from_slice(&bytes[..count]);
    ring.give_back(space, count);
    count
}

#[test]
fn a_release_wakes_who_has_no_room_left() {
    let mut ring = RecvRing::new(&pool()).unwrap();
    assert_eq!(receive(&mut ring, &vec![7; page()]), page());
    let kept = ring.keep(0..1);
    let other = kept.clone();
    ring.consume(page());
    assert_eq!((ring.pinned(), ring.free()), (page(), 0));
    assert!(ring.lend(1).is_none());
    let (woken, waker) = counter();
    ring.on_release(waker);
    drop(kept);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0, "a clone is left");
    thread::spawn(move || drop(other)).join().unwrap();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!((ring.pinned(), ring.free()), (0, page()));
}

#[derive(Debug, Clone)]
enum Step {
    Receive(usize),
    Consume(usize),
    Keep(usize, usize),
    Clone(usize),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..3000usize).prop_map(Step::Receive),
        3 => (0..3000usize).prop_map(Step::Consume),
        2 => (any::<usize>(), 0..500usize).prop_map(|(at, len)| Step::Keep(at, len)),
        1 => any::<usize>().prop_map(Step::Clone),
        2 => any::<usize>().prop_map(Step::Release),
    ]
}

#[derive(Debug, Clone)]
enum Act {
    Reserve(usize),
    Commit(usize),
    Drop(usize),
    Span,
    Advance(usize),
    Finish,
    Cork,
    /// Sends so many bytes without giving the right up.
    InCork(usize),
    Uncork,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..1500usize).prop_map(Act::Reserve),
        4 => any::<usize>().prop_map(Act::Commit),
        1 => any::<usize>().prop_map(Act::Drop),
        2 => Just(Act::Span),
        2 => (0..3000usize).prop_map(Act::Advance),
        2 => Just(Act::Finish),
        1 => Just(Act::Cork),
        2 => (0..3000usize).prop_map(Act::InCork),
        1 => Just(Act::Uncork),
    ]
}

/// A reservation as the model knows it.
struct Entry {
    bytes: Vec<u8>,
    state: State,
}

#[derive(PartialEq, Clone, Copy)]
enum State {
    Open,
    Committed,
    Dropped,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_receive_ring_shows_what_came_and_keeps_what_is_kept(
        steps in proptest::collection::vec(step(), 1..150)
    ) {
        let mut ring = RecvRing::new(&pool()).unwrap();
        let mut model = VecDeque::new();
        let mut kept: Vec<(Kept, Vec<u8>)> = Vec::new();
        let mut fresh = (0u32..).map(|n| (n.wrapping_mul(0x9E37_79B1) >> 24) as u8);
        for step in steps {
            match step {
                Step::Receive(len) => {
                    let bytes: Vec<u8> = fresh.by_ref().take(len).collect();
                    let free = ring.free();
                    let count = receive(&mut ring, &bytes);
                    prop_assert_eq!(count, len.min(free));
                    model.extend(&bytes[..count]);
                }
                Step::Consume(count) => {
                    let count = count.min(model.len());
                    ring.consume(count);
                    model.drain(..count);
                }
                Step::Keep(at, len) => {
                    let at = at % (model.len() + 1);
                    let len = len.min(model.len() - at);
                    let copy = model.iter().skip(at).take(len).copied().collect();
                    kept.push((ring.keep(at..at + len), copy));
                }
                Step::Clone(at) if !kept.is_empty() => {
                    let entry = kept[at % kept.len()].clone();
                    kept.push(entry);
                }
                Step::Release(at) if !kept.is_empty() => {
                    kept.swap_remove(at % kept.len());
                }
                Step::Clone(_) | Step::Release(_) => {}
            }
            let (front, back) = model.as_slices();
            prop_assert_eq!(ring.readable(), [front, back].concat());
            for (kept, copy) in &kept {
                prop_assert_eq!(&kept[..], &copy[..]);
            }
            if kept.is_empty() {
                prop_assert_eq!((ring.pinned(), ring.free()), (0, page() - model.len()));
            } else {
                prop_assert!(ring.free() + ring.pinned().max(model.len()) == page());
            }
        }
    }

    #[test]
    fn a_send_ring_sends_what_is_committed_in_order(
        acts in proptest::collection::vec(act(), 1..200)
    ) {
        let ring = SendRing::new(&pool()).unwrap();
        let mut entries: Vec<Entry> = Vec::new();
        let mut open: Vec<(usize, Reservation<'_>)> = Vec::new();
        let mut span: Option<SendSpan> = None;
        let mut corked = false;
        let mut sent = Vec::new();
        for act in acts {
            match act {
                Act::Reserve(len) => match ring.reserve(len) {
                    Ok(mut reservation) => {
                        let fill = entries.len() as u8;
                        reservation.fill(fill);
                        open.push((entries.len(), reservation));
                        let (bytes, state) = (vec![fill; len], State::Open);
                        entries.push(Entry { bytes, state });
                    }
                    Err(error) => {
                        prop_assert_eq!(error, ReserveError::Full);
                        prop_assert!(ring.queued() + len > page() || entries.len() >= page() / 32);
                    }
                },
                Act::Commit(which) if !open.is_empty() => {
                    let (entry, reservation) = open.remove(which % open.len());
                    let told = reservation.commit();
                    let held = span.is_some() || corked;
                    prop_assert_eq!(told == Commit::Left, held);
                    entries[entry].state = State::Committed;
                }
                Act::Drop(which) if !open.is_empty() => {
                    let (entry, reservation) = open.remove(which % open.len());
                    drop(reservation);
                    entries[entry].state = State::Dropped;
                }
                Act::Span if !corked && span.is_none() => span = ring.span(),
                Act::Advance(count) => {
                    if let Some(span) = &mut span {
                        let count = count.min(span.bytes().len());
                        sent.extend_from_slice(&span.bytes()[..count]);
                        span.advance(count);
                    }
                }
                Act::Finish => {
                    if let Some(span) = span.take() {
                        let more = span.finish();
                        prop_assert_eq!(more, ring.has_committed());
                    }
                }
                Act::Cork => {
                    let free = !corked && span.is_none();
                    prop_assert_eq!(ring.cork(), free);
                    corked |= free;
                }
                Act::InCork(count) => {
                    let inside = ring.span_in_cork();
                    prop_assert!(corked || inside.is_none());
                    if let Some(mut inside) = inside {
                        prop_assert!(!ring.cork() && ring.uncork().is_none());
                        let count = count.min(inside.bytes().len());
                        sent.extend_from_slice(&inside.bytes()[..count]);
                        inside.advance(count);
                    }
                }
                Act::Uncork => {
                    let uncorked = ring.uncork();
                    prop_assert!(corked || uncorked.is_none());
                    if corked {
                        (span, corked) = (uncorked, false);
                    }
                }
                _ => {}
            }
            // Nothing but the committed bytes, in order, and none behind an open reservation.
            let before_open = entries.iter().take_while(|entry| entry.state != State::Open);
            let committed = before_open.filter(|entry| entry.state == State::Committed);
            let may_be_sent: Vec<u8> = committed.flat_map(|entry| entry.bytes.clone()).collect();
            prop_assert!(may_be_sent.starts_with(&sent));
            if span.is_none() && !corked {
                prop_assert_eq!(ring.has_committed(), may_be_sent.len() > sent.len());
            }
        }
        for (entry, reservation) in open {
            let _ = reservation.commit();
            entries[entry].state = State::Committed;
        }
        drop(span);
        if corked {
            drop(ring.uncork());
        }
        drain(&ring, &mut sent);
        let committed = entries.iter().filter(|entry| entry.state == State::Committed);
        let expected: Vec<u8> = committed.flat_map(|entry| entry.bytes.clone()).collect();
        prop_assert_eq!(&sent, &expected);
        prop_assert!(ring.is_empty());
        drop(ring.span());
        prop_assert_eq!(ring.queued(), 0);
        prop_assert!(ring.reserve(page()).is_ok());
    }
}

#[test]
fn a_task_that_waits_for_room_is_woken_when_there_is_some() {
    let ring = SendRing::new(&pool()).unwrap();
    let _ = commit(&ring, &vec![1; page()]);
    let (woken, waker) = counter();
    let mut context = Context::from_waker(&waker);
    let mut wait = ring.room_wait();
    assert!(wait.poll(page(), &mut context).is_pending());
    assert!(wait.poll(page(), &mut context).is_pending());
    let mut sent = Vec::new();
    drain(&ring, &mut sent);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(wait.poll(page(), &mut context).is_ready());
}
