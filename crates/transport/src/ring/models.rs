//! All interleavings of the hand-over from producers to the sender, and back to producers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll, Wake};

use loom::sync::Notify;

use super::super::raw::tracked::Tracked;
use super::*;

/// A queue, its memory, and what was sent. The latter is not part of the model: only the
/// thread with the right to send touches it.
struct Ring {
    queue: Queue,
    memory: Tracked,
    sent: std::sync::Mutex<Vec<u8>>,
}

impl Ring {
    fn new(capacity: u32, slots: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::new(capacity, slots),
            memory: Tracked::new(capacity as usize),
            sent: std::sync::Mutex::default(),
        })
    }

    fn write(&self, ticket: Ticket, byte: u8) {
        let mut at = ticket.start;
        while at != ticket.end {
            self.memory.write(at, byte);
            at = at.wrapping_add(1);
        }
    }

    fn send(&self, len: usize, byte: u8) -> bool {
        let ticket = self.queue.reserve(len).unwrap();
        self.write(ticket, byte);
        self.queue.commit(ticket)
    }

    fn send_run(&self, run: Run) -> bool {
        let mut at = run.start;
        while at != run.end {
            self.sent.lock().unwrap().push(self.memory.read(at));
            at = at.wrapping_add(1);
        }
        self.queue.finish(run.end)
    }

    /// What a producer does whose commit found the right to send free.
    fn drain(&self) {
        while let Some(run) = self.queue.take() {
            if !self.send_run(run) {
                return;
            }
        }
    }

    fn sent(&self) -> Vec<u8> {
        self.sent.lock().unwrap().clone()
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

/// A waker on which a model waits.
struct NotifyWaker(Notify);

impl NotifyWaker {
    fn new() -> Arc<Self> {
        Arc::new(Self(Notify::new()))
    }
}

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Two producers; the one whose commit says so sends: nothing is lost or sent twice, and the order
/// is that of the tickets.
#[test]
fn what_is_committed_is_sent_once_and_in_order() {
    model(|| {
        let ring = Ring::new(8, 4);
        let other = ring.clone();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let other_order = order.clone();
        let send = |ring: &Ring, order: &std::sync::Mutex<Vec<(u32, u8)>>, byte: u8| {
            let ticket = ring.queue.reserve(1).unwrap();
            order.lock().unwrap().push((ticket.number, byte));
            ring.write(ticket, byte);
            if ring.queue.commit(ticket) {
                ring.drain();
            }
        };
        let producer = loom::thread::spawn(move || {
            send(&other, &other_order, 1);
            send(&other, &other_order, 2);
        });
        send(&ring, &order, 11);
        producer.join().unwrap();
        let mut order = order.lock().unwrap().clone();
        order.sort_unstable();
        let expected: Vec<u8> = order.into_iter().map(|(_, byte)| byte).collect();
        assert_eq!(ring.sent(), expected);
        assert!(ring.queue.is_empty() && ring.queue.queued() == 0);
    });
}

/// Producers only append and ring; a third thread sends. A commit that neither rang nor was seen
/// would leave it waiting, which loom reports as a deadlock.
#[test]
fn no_commit_is_missed_by_a_sender_that_sleeps() {
    model(|| {
        let ring = Ring::new(8, 4);
        let waker = NotifyWaker::new();
        let producers: Vec<_> = [1, 2]
            .into_iter()
            .map(|byte| {
                let (ring, waker) = (ring.clone(), waker.clone());
                loom::thread::spawn(move || {
                    if ring.send(2, byte) {
                        waker.0.notify();
                    }
                })
            })
            .collect();
        while ring.sent().len() < 4 {
            match ring.queue.take() {
                Some(run) => {
                    ring.send_run(run);
                }
                None => waker.0.wait(),
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        let sent = ring.sent();
        assert!(sent == [1, 1, 2, 2] || sent == [2, 2, 1, 1], "{sent:?}");
    });
}

/// A producer that found the ring full waits for the sender; each byte and each slot is used
/// several times.
#[test]
fn who_waits_for_room_is_woken() {
    model(|| {
        let ring = Ring::new(2, 2);
        let (room, news) = (NotifyWaker::new(), NotifyWaker::new());
        let producer = {
            let (ring, room, news) = (ring.clone(), room.clone(), news.clone());
            loom::thread::spawn(move || {
                let waker = Waker::from(room.clone());
                let mut context = Context::from_waker(&waker);
                for byte in 1..=2 {
                    let mut place = None;
                    let ticket = loop {
                        match ring.queue.reserve(2) {
                            Ok(ticket) => break ticket,
                            Err(refused) => assert_eq!(refused, Refused::Full),
                        }
                        let polled = ring.queue.poll_room(2, &mut place, &mut context);
                        if polled.is_pending() {
                            room.0.wait();
                        }
                    };
                    if let Some(place) = place {
                        ring.queue.leave(place);
                    }
                    ring.write(ticket, byte);
                    if ring.queue.commit(ticket) {
                        news.0.notify();
                    }
                }
            })
        };
        while ring.sent().len() < 4 {
            match ring.queue.take() {
                Some(run) => {
                    ring.send_run(run);
                }
                None => news.0.wait(),
            }
        }
        producer.join().unwrap();
        assert_eq!(ring.sent(), [1, 1, 2, 2]);
    });
}

/// A reservation that is dropped while later ones are committed: the later ones are sent, by the
/// thread whose commit said so or because the owner was woken, and nothing of the dropped one is.
#[test]
fn a_dropped_reservation_holds_nothing_up() {
    struct Due(AtomicUsize);
    impl Wake for Due {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
    model(|| {
        let ring = Ring::new(4, 4);
        let due = Arc::new(Due(AtomicUsize::new(0)));
        ring.queue.on_due(due.clone().into());
        let dropped = ring.queue.reserve(1).unwrap();
        let other = ring.clone();
        let producer = loom::thread::spawn(move || {
            if other.send(2, 7) {
                other.drain();
            }
        });
        ring.write(dropped, 99);
        if ring.queue.abandon(dropped) {
            ring.queue.wake_due();
        }
        producer.join().unwrap();
        if due.0.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            ring.drain();
        }
        assert_eq!(ring.sent(), [7, 7]);
        assert!(ring.queue.is_empty() && ring.queue.queued() == 0);
    });
}

/// Room that comes back because a reservation is undone wakes, too, and its bytes are free.
#[test]
fn an_undone_reservation_wakes_who_waits() {
    model(|| {
        let ring = Ring::new(2, 2);
        let ticket = ring.queue.reserve(2).unwrap();
        let other = ring.clone();
        let waiter = loom::thread::spawn(move || {
            let room = NotifyWaker::new();
            let waker = Waker::from(room.clone());
            let mut context = Context::from_waker(&waker);
            let place = &mut None;
            while other.queue.poll_room(2, place, &mut context).is_pending() {
                room.0.wait();
            }
            let ticket = other.queue.reserve(2).unwrap();
            other.write(ticket, 1);
        });
        ring.write(ticket, 2);
        assert!(!ring.queue.abandon(ticket));
        waiter.join().unwrap();
    });
}

/// One of two that wait is woken and gives up, in whatever moment: the other one gets the room.
#[test]
fn who_gives_up_passes_the_room_on() {
    model(|| {
        let ring = Ring::new(2, 2);
        let held = ring.queue.reserve(2).unwrap();
        let mut first = None;
        let mut noop = Context::from_waker(Waker::noop());
        assert!(ring.queue.poll_room(2, &mut first, &mut noop).is_pending());
        let other = ring.clone();
        let waiter = loom::thread::spawn(move || {
            let room = NotifyWaker::new();
            let waker = Waker::from(room.clone());
            let mut context = Context::from_waker(&waker);
            let place = &mut None;
            while other.queue.poll_room(2, place, &mut context).is_pending() {
                room.0.wait();
            }
        });
        let other = ring.clone();
        let quitter = loom::thread::spawn(move || other.queue.leave(first.unwrap()));
        assert!(!ring.queue.abandon(held));
        quitter.join().unwrap();
        waiter.join().unwrap();
    });
}

/// A queue that is to be sealed, and how often that came to pass.
#[derive(Clone)]
struct Sealing {
    ring: Arc<Ring>,
    sealed: Arc<AtomicUsize>,
}

impl Sealing {
    fn new(ring: Arc<Ring>) -> Self {
        let sealed = Arc::default();
        Self { ring, sealed }
    }

    /// Whoever sealed the queue has its bytes to itself.
    fn note(&self, is_sealed: bool) {
        if is_sealed {
            self.ring.memory.write(0, 9);
            self.ring.memory.write(1, 9);
            self.sealed
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn seal(&self) {
        self.note(self.ring.queue.seal());
    }

    fn gave_up(&self) {
        self.note(self.ring.queue.gave_up());
    }

    /// What a producer does whose commit found the right to send free.
    fn send(&self) {
        if !self.ring.queue.is_seal_wanted()
            && let Some(run) = self.ring.queue.take()
        {
            self.ring.send_run(run);
        }
        self.gave_up();
    }

    fn assert_sealed_once(&self) {
        let sealed = self.sealed.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sealed, 1);
        let queue = &self.ring.queue;
        assert!(queue.reserve(0).is_err() && queue.take().is_none());
    }
}

/// Whoever seals the queue has its bytes to itself, and whoever commits last does so if the other one could not.
#[test]
fn a_sealed_queue_is_nobodys() {
    model(|| {
        let sealing = Sealing::new(Ring::new(2, 2));
        let by_other = sealing.clone();
        let user = loom::thread::spawn(move || {
            let ring = &by_other.ring;
            if let Ok(ticket) = ring.queue.reserve(1) {
                ring.write(ticket, 1);
                if ring.queue.commit(ticket) {
                    by_other.send();
                }
            }
        });
        sealing.seal();
        user.join().unwrap();
        sealing.assert_sealed_once();
    });
}

/// So does whoever drops the last range, also where a third one had the right to send at that moment.
#[test]
fn a_queue_is_sealed_by_the_last_who_gives_something_up() {
    model(|| {
        let sealing = Sealing::new(Ring::new(2, 2));
        let ticket = sealing.ring.queue.reserve(1).unwrap();
        let [by_owner, by_sender] = [sealing.clone(), sealing.clone()];
        let owner = loom::thread::spawn(move || {
            by_owner.ring.queue.abandon(ticket);
            by_owner.gave_up();
        });
        let sender = loom::thread::spawn(move || {
            assert!(
                by_sender.ring.queue.take().is_none(),
                "nothing is committed"
            );
            by_sender.gave_up();
        });
        sealing.seal();
        owner.join().unwrap();
        sender.join().unwrap();
        sealing.assert_sealed_once();
    });
}

/// While a thread holds a cork, others leave their commits to it, and it sees them when it uncorks.
#[test]
fn a_cork_gathers_and_loses_nothing() {
    model(|| {
        let ring = Ring::new(8, 4);
        let other = ring.clone();
        let producer = loom::thread::spawn(move || {
            for byte in [1, 2] {
                if other.send(1, byte) {
                    other.drain();
                }
            }
        });
        if ring.queue.cork() {
            assert!(!ring.send(1, 11), "the right is held");
            if let Some(run) = ring.queue.uncork()
                && ring.send_run(run)
            {
                ring.drain();
            }
        } else if ring.send(1, 11) {
            ring.drain();
        }
        producer.join().unwrap();
        let mut sent = ring.sent();
        sent.sort_unstable();
        assert_eq!(sent, [1, 2, 11]);
    });
}

/// Who corked may send in between and has the right without a gap.
#[test]
fn sending_out_of_a_cork_keeps_the_right() {
    model(|| {
        let ring = Ring::new(8, 4);
        let other = ring.clone();
        let producer = loom::thread::spawn(move || {
            for byte in [1, 2] {
                if other.send(1, byte) {
                    other.drain();
                }
            }
        });
        if ring.queue.cork() {
            for byte in [11, 12] {
                assert!(!ring.send(1, byte), "the right is held");
                if let Some(run) = ring.queue.run_from_cork() {
                    assert!(ring.queue.uncork().is_none(), "the run is out");
                    let mut at = run.start;
                    while at != run.end {
                        ring.sent.lock().unwrap().push(ring.memory.read(at));
                        at = at.wrapping_add(1);
                    }
                    ring.queue.back_to_cork(run.end);
                }
                assert!(ring.queue.take().is_none(), "the right is held");
            }
            if let Some(run) = ring.queue.uncork()
                && ring.send_run(run)
            {
                ring.drain();
            }
        } else {
            for byte in [11, 12] {
                if ring.send(1, byte) {
                    ring.drain();
                }
            }
        }
        producer.join().unwrap();
        let sent = ring.sent();
        let from = |bytes: [u8; 2]| sent.iter().copied().filter(move |b| bytes.contains(b));
        assert!(from([1, 2]).eq([1, 2]) && from([11, 12]).eq([11, 12]));
        assert_eq!(sent.len(), 4);
    });
}

/// Who counts while others write and send misses nothing that was counted before, and sees all in the end.
#[test]
fn the_count_of_what_is_committed_only_grows() {
    model(|| {
        let ring = Ring::new(4, 4);
        let other = ring.clone();
        let producer = loom::thread::spawn(move || {
            for byte in [1, 2] {
                if other.send(1, byte) {
                    other.drain();
                }
            }
        });
        let first = ring.queue.committed();
        let second = ring.queue.committed();
        assert!(first <= second && second <= 2, "{first} and {second}");
        producer.join().unwrap();
        assert_eq!(ring.queue.committed(), 2);
    });
}

/// Closing ends the wait of a producer.
#[test]
fn closing_wakes_who_waits_for_room() {
    model(|| {
        let ring = Ring::new(2, 2);
        let _held = ring.queue.reserve(2).unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        let (other, told) = (ring.clone(), closed.clone());
        let waiter = loom::thread::spawn(move || {
            let room = NotifyWaker::new();
            let waker = Waker::from(room.clone());
            let mut context = Context::from_waker(&waker);
            let place = &mut None;
            loop {
                match other.queue.poll_room(1, place, &mut context) {
                    Poll::Pending => room.0.wait(),
                    Poll::Ready(ready) => {
                        assert!(ready.is_err());
                        assert!(told.load(std::sync::atomic::Ordering::Relaxed));
                        return;
                    }
                }
            }
        });
        closed.store(true, std::sync::atomic::Ordering::Relaxed);
        ring.queue.close();
        assert_eq!(ring.queue.reserve(0), Err(Refused::Closed));
        waiter.join().unwrap();
    });
}
