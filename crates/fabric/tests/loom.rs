//! Every interleaving, and every reordering that the memory model allows, of the slot protocol.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p embar-fabric --test loom --release`.
#![cfg(loom)]

use embar_fabric::Memory;
use embar_fabric::slot::{commit_word, observe, peek, publish, read_row, rewrite};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

const NONCE: u32 = 0x5EED_0001;
const SLOT_WORDS: usize = 8;

/// Coherent memory as the model checker sees it. Of a body only the first and the last word are
/// modelled: a torn body shows in them, and the model stays small enough to be explored.
struct Modelled {
    words: Vec<AtomicU64>,
}

impl Modelled {
    fn new(slots: usize) -> Arc<Self> {
        let words = (0..slots * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { words })
    }

    fn modelled(at: u64, len: usize) -> [usize; 2] {
        let first = at as usize / 8;
        [first, first + len / 8 - 1]
    }
}

impl Memory for Modelled {
    fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn load(&self, at: u64) -> u64 {
        self.words[at as usize / 8].load(Ordering::Acquire)
    }

    fn store(&self, at: u64, value: u64) {
        self.words[at as usize / 8].store(value, Ordering::Release);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        for word in Self::modelled(at, into.len()) {
            let value = self.words[word].load(Ordering::Relaxed);
            let offset = word * 8 - at as usize;
            into[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
    }

    fn write(&self, at: u64, from: &[u8]) {
        for word in Self::modelled(at, from.len()) {
            let offset = word * 8 - at as usize;
            let value = u64::from_le_bytes(from[offset..offset + 8].try_into().unwrap());
            self.words[word].store(value, Ordering::Relaxed);
        }
    }

    fn write_back(&self, _at: u64, _len: u64) {}

    fn fence(&self) {
        fence(Ordering::Release);
    }

    fn invalidate(&self, _at: u64, _len: u64) {}

    unsafe fn with_bytes<R>(&self, _at: u64, _len: usize, _f: impl FnOnce(&[u8]) -> R) -> R {
        unreachable!("slots are never read as plain bytes")
    }

    unsafe fn with_bytes_mut<R>(
        &self,
        _at: u64,
        _len: usize,
        _f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        unreachable!("slots are never written as plain bytes")
    }
}

/// First and last byte of a body, both of the same version or it is torn.
fn whole(body: [u8; 56]) -> u8 {
    assert_eq!(body[0], body[55], "torn");
    body[0]
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn an_observed_record_is_whole() {
    explore(|| {
        let memory = Modelled::new(1);
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            publish(&*writer, 0, &[1; 56], commit_word(NONCE, 1));
            publish(&*writer, 0, &[2; 56], commit_word(NONCE, 2));
        });
        for lap in [1, 2] {
            if let Some(body) = observe(&*memory, 0, commit_word(NONCE, lap)) {
                assert_eq!(u32::from(whole(body)), lap);
            }
        }
        thread.join().unwrap();
        assert!(observe(&*memory, 0, commit_word(NONCE, 2)).is_some());
    });
}

#[test]
fn a_peeked_record_is_of_the_lap_it_names() {
    explore(|| {
        let memory = Modelled::new(1);
        let writer = Arc::clone(&memory);
        publish(&*memory, 0, &[1; 56], commit_word(NONCE, 1));
        let thread = loom::thread::spawn(move || {
            publish(&*writer, 0, &[2; 56], commit_word(NONCE, 2));
        });
        if let Some((lap, body)) = peek(&*memory, 0, NONCE) {
            assert_eq!(u32::from(whole(body)), lap);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_row_is_whole_and_never_goes_back() {
    explore(|| {
        let memory = Modelled::new(2);
        rewrite(&*memory, 0, NONCE, 1, &[1; 56]);
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            rewrite(&*writer, 0, NONCE, 2, &[2; 56]);
            rewrite(&*writer, 0, NONCE, 3, &[3; 56]);
        });
        let mut last = 1;
        for _ in 0..2 {
            if let Some((version, body)) = read_row(&*memory, 0, NONCE) {
                assert_eq!(u32::from(whole(body)), version);
                assert!(version >= last, "went back from {last} to {version}");
                last = version;
            }
        }
        thread.join().unwrap();
        assert_eq!(
            read_row(&*memory, 0, NONCE).map(|(version, _)| version),
            Some(3)
        );
    });
}

/// The writer fills both slots between a reader's two looks.
#[test]
fn an_overtaken_reader_does_not_go_back() {
    explore(|| {
        let memory = Modelled::new(2);
        rewrite(&*memory, 0, NONCE, 2, &[2; 56]);
        rewrite(&*memory, 0, NONCE, 3, &[3; 56]);
        let writer = Arc::clone(&memory);
        let thread = loom::thread::spawn(move || {
            rewrite(&*writer, 0, NONCE, 4, &[4; 56]);
            rewrite(&*writer, 0, NONCE, 5, &[5; 56]);
        });
        if let Some((version, body)) = read_row(&*memory, 0, NONCE) {
            assert_eq!(u32::from(whole(body)), version);
            assert!(version >= 3, "version 3 was there before the thread began");
        }
        thread.join().unwrap();
    });
}
