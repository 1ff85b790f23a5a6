//! All interleavings of both sides of an outbox: nothing is torn, no wake-up is lost, and what was withdrawn is not taken.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use embar_memory::Memory;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use super::layout::{ASLEEP_AT, CONSUMED_AT, Sizes, WANTED_AT, WITHDRAWN_AT};
use super::nap::{Nap, settle};
use super::receiver::{Receiver, Taken};
use super::sender::Sender;

const SIZES: Sizes = Sizes {
    records: 4,
    bytes: 4096,
};

/// Coherent memory, of which only the words that a model is about are modelled.
struct Modelled {
    plain: Mutex<Vec<u64>>,
    modelled: BTreeMap<u64, Arc<AtomicU64>>,
}

impl Modelled {
    fn new(words: impl IntoIterator<Item = u64>) -> Arc<Self> {
        Arc::new(Self {
            plain: Mutex::new(vec![0; SIZES.outbox_bytes() as usize / 8]),
            modelled: words
                .into_iter()
                .map(|at| (at, Arc::new(AtomicU64::new(0))))
                .collect(),
        })
    }

    fn load_as(&self, at: u64, ordering: Ordering) -> u64 {
        match self.modelled.get(&at) {
            Some(word) => word.load(ordering),
            None => self.plain.lock().unwrap()[at as usize / 8],
        }
    }

    fn store_as(&self, at: u64, value: u64, ordering: Ordering) {
        match self.modelled.get(&at) {
            Some(word) => word.store(value, ordering),
            None => self.plain.lock().unwrap()[at as usize / 8] = value,
        }
    }
}

impl Memory for Modelled {
    fn len(&self) -> u64 {
        SIZES.outbox_bytes()
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, at: u64) -> u64 {
        self.load_as(at, Ordering::Acquire)
    }

    fn store(&self, at: u64, value: u64) {
        self.store_as(at, value, Ordering::Release);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_mut(8).enumerate() {
            let value = self.load_as(at + i as u64 * 8, Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
        }
    }

    fn write(&self, at: u64, from: &[u8]) {
        let (whole, rest) = from.as_chunks::<8>();
        assert!(rest.is_empty(), "models write whole words");
        for (i, bytes) in whole.iter().enumerate() {
            let value = u64::from_le_bytes(*bytes);
            self.store_as(at + i as u64 * 8, value, Ordering::Relaxed);
        }
    }

    fn write_back(&self, _at: u64, _len: u64) {}

    fn fence(&self) {
        fence(Ordering::Release);
    }

    fn invalidate(&self, _at: u64, _len: u64) {}

    unsafe fn with_bytes<R>(&self, _at: u64, _len: usize, _f: impl FnOnce(&[u8]) -> R) -> R {
        unreachable!("models read words")
    }

    unsafe fn with_bytes_mut<R>(
        &self,
        _at: u64,
        _len: usize,
        _f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        unreachable!("models write words")
    }
}

/// What shows whether record `number` is torn: the ends of its body, and the last word.
fn record(number: u64) -> [u64; 3] {
    let at = SIZES.record_at(number);
    [at, at + 48, at + 56]
}

type Halves = (Sender<Modelled, Modelled, ()>, Receiver<Modelled, Modelled>);

fn halves(sending: &Arc<Modelled>, receiving: &Arc<Modelled>, handed: &Arc<Modelled>) -> Halves {
    (
        Sender::new(Arc::clone(sending), Arc::clone(receiving), SIZES),
        Receiver::new(
            Arc::clone(receiving),
            Arc::clone(sending),
            SIZES,
            [Arc::clone(handed)].into(),
            None,
        ),
    )
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A place is used again once it was consumed, and not while it is read.
#[test]
fn records_come_whole_and_in_their_order_through_places_that_are_used_again() {
    explore(|| {
        let sending = Modelled::new(record(0).into_iter().chain(record(3)));
        let receiving = Modelled::new([CONSUMED_AT]);
        let (mut sender, mut receiver) = halves(&sending, &receiving, &Modelled::new([]));
        for number in 0..3_u8 {
            assert_eq!(sender.copy(&[number; 8]), 8);
        }
        let thread = loom::thread::spawn(move || {
            let mut next = 3_u8;
            for _ in 0..2 {
                sender.refresh().expect("an honest receiver");
                while next < 5 && sender.copy(&[next; 8]) > 0 {
                    next += 1;
                }
            }
        });
        let mut expected = 0;
        for _ in 0..5 {
            let mut bytes = [0; 8];
            if receiver.take(&mut bytes).expect("an honest sender") == Taken::Bytes(8) {
                assert_eq!(bytes, [expected; 8]);
                expected += 1;
            }
            receiver.tell();
        }
        assert!(expected >= 3, "those that were there are taken");
        thread.join().unwrap();
    });
}

/// A wake-up that got lost would leave the receiver waiting, which the model reports as a deadlock.
#[test]
fn who_sleeps_for_news_is_woken() {
    explore(|| {
        let sending = Modelled::new(record(0));
        let receiving = Modelled::new([ASLEEP_AT]);
        let (mut sender, mut receiver) = halves(&sending, &receiving, &Modelled::new([]));
        let bell = Arc::new(Notify::new());
        let rung = Arc::clone(&bell);
        let thread = loom::thread::spawn(move || {
            sender.copy(&[1; 8]);
            if sender.must_ring() {
                rung.notify();
            }
        });
        let mut nap = Nap::new(Arc::clone(&receiving));
        nap.begin(true, None);
        settle();
        while !receiver.has_news() {
            bell.wait();
        }
        nap.end();
        let mut bytes = [0; 8];
        assert_eq!(receiver.take(&mut bytes).unwrap(), Taken::Bytes(8));
        thread.join().unwrap();
    });
}

/// The same of a sender that waits for room.
#[test]
fn who_sleeps_for_room_is_woken() {
    explore(|| {
        let sending = Modelled::new([ASLEEP_AT, WANTED_AT]);
        let receiving = Modelled::new([CONSUMED_AT]);
        let (mut sender, mut receiver) = halves(&sending, &receiving, &Modelled::new([]));
        for _ in 0..3 {
            sender.copy(&[1; 8]);
        }
        let bell = Arc::new(Notify::new());
        let rung = Arc::clone(&bell);
        let thread = loom::thread::spawn(move || {
            for _ in 0..3 {
                assert_eq!(receiver.take(&mut [0; 8]).unwrap(), Taken::Bytes(8));
                if receiver.tell() {
                    rung.notify();
                }
            }
        });
        let mut nap = Nap::new(Arc::clone(&sending));
        let wanted = sender.wanted().unwrap();
        nap.begin(false, Some(wanted));
        settle();
        while !sender.has_consumed(wanted) {
            bell.wait();
        }
        nap.end();
        sender.refresh().unwrap();
        assert_eq!(sender.copy(&[1; 8]), 8);
        thread.join().unwrap();
    });
}

/// The owner stores into what it named as soon as it has withdrawn it.
#[test]
fn what_is_used_again_is_not_taken() {
    explore(|| {
        let sending = Modelled::new([WITHDRAWN_AT]);
        let receiving = Modelled::new([CONSUMED_AT]);
        let handed = Modelled::new([0]);
        let (mut sender, mut receiver) = halves(&sending, &receiving, &handed);
        handed.write(0, &[1; 8]);
        sender.name(0, 0, 8, ());
        let owner = Arc::clone(&handed);
        let thread = loom::thread::spawn(move || {
            sender.withdraw();
            owner.write(0, &[2; 8]);
        });
        let mut bytes = [0; 8];
        match receiver.take(&mut bytes) {
            Ok(taken) => assert_eq!((taken, bytes), (Taken::Bytes(8), [1; 8])),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionAborted),
        }
        receiver.tell();
        thread.join().unwrap();
    });
}
