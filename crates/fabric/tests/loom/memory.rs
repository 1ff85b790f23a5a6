//! Memory as the model checker sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use embar_fabric::layout::TableId;
use embar_fabric::{Geometry, Layout, Region};
use embar_memory::{Memory, ShowsCopies};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread::JoinHandle;

/// Stack of [`spawn_roomy`], in words.
const ROOMY_WORDS: usize = 32 << 10;

/// Preemptions that are tried: more find nothing more, and take hours.
const PREEMPTIONS: usize = 3;

pub const NONCE: u32 = 0x5EED_0001;

/// Coherent memory, of which only the words that a model is about are modelled, so that it stays
/// small enough to be explored. All others are as they are in memory that orders everything.
#[derive(Debug)]
pub struct Modelled {
    plain: Mutex<Vec<u64>>,
    modelled: Mutex<BTreeMap<usize, Arc<AtomicU64>>>,
}

impl Modelled {
    /// Bytes of zeros, none of them modelled.
    fn plain(len: u64) -> Self {
        Self {
            plain: Mutex::new(vec![0; len as usize / 8]),
            modelled: Mutex::default(),
        }
    }

    /// So many slots. Of a body the first and the last word are modelled: a torn one shows in them.
    pub fn slots(slots: u64) -> Arc<Self> {
        let memory = Self::plain(slots * 64);
        let modelled: Vec<u64> = (0..slots).flat_map(|slot| record(slot * 64)).collect();
        memory.model(&modelled);
        Arc::new(memory)
    }

    /// From now on these words are modelled, and no others.
    fn model(&self, offsets: &[u64]) {
        let words = offsets.iter().map(|at| *at as usize / 8);
        let modelled = words
            .map(|word| (word, Arc::new(AtomicU64::new(lock(&self.plain)[word]))))
            .collect();
        *lock(&self.modelled) = modelled;
    }

    /// The modelled word; not borrowed, as the model checker runs another thread at each access.
    fn modelled(&self, word: usize) -> Option<Arc<AtomicU64>> {
        lock(&self.modelled).get(&word).cloned()
    }

    fn load_as(&self, word: usize, ordering: Ordering) -> u64 {
        match self.modelled(word) {
            Some(modelled) => modelled.load(ordering),
            None => lock(&self.plain)[word],
        }
    }

    fn store_as(&self, word: usize, value: u64, ordering: Ordering) {
        match self.modelled(word) {
            Some(modelled) => modelled.store(value, ordering),
            None => lock(&self.plain)[word] = value,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no access panics")
}

// SAFETY: it shows nothing.
unsafe impl ShowsCopies for Modelled {}

impl Memory for Modelled {
    fn len(&self) -> u64 {
        lock(&self.plain).len() as u64 * 8
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, at: u64) -> u64 {
        self.load_as(at as usize / 8, Ordering::Acquire)
    }

    fn store(&self, at: u64, value: u64) {
        self.store_as(at as usize / 8, value, Ordering::Release);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_mut(8).enumerate() {
            let value = self.load_as(at as usize / 8 + i, Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
        }
    }

    fn write(&self, at: u64, from: &[u8]) {
        let (whole, rest) = from.as_chunks::<8>();
        assert_eq!(rest, [], "models write whole words");
        for (i, bytes) in whole.iter().enumerate() {
            let value = u64::from_le_bytes(*bytes);
            self.store_as(at as usize / 8 + i, value, Ordering::Relaxed);
        }
    }

    fn write_back(&self, _at: u64, _len: u64) {}

    fn fence(&self) {
        // Without modelled words the memory orders everything, and may be outside of a model.
        let modelled = !lock(&self.modelled).is_empty();
        if modelled {
            fence(Ordering::Release);
        }
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

/// Words of the line, or lines, at `at`: 7 is the commit word of a slot.
pub fn words(at: u64, words: &[u64]) -> impl Iterator<Item = u64> {
    words.iter().map(move |word| at + word * 8)
}

/// What shows whether the record of a slot is torn: the ends of its body, and the commit word.
pub fn record(at: u64) -> impl Iterator<Item = u64> {
    words(at, &[0, 6, 7])
}

/// Words of both slots of a row; the commit words are among them.
pub fn row(at: u64, fields: &[u64]) -> impl Iterator<Item = u64> {
    let fields = fields.iter().copied().chain([7]);
    fields.flat_map(move |word| [at + word * 8, at + 64 + word * 8])
}

/// Where entry `i` of a table lies.
pub fn entry(layout: &Layout, table: TableId, i: u64) -> u64 {
    let table = layout.tables()[table as usize];
    assert!(i < table.entries);
    table.offset + i * table.entry_bytes
}

/// A head, one data broker and a standby; as little of everything as there can be.
fn tiny() -> Geometry {
    Geometry {
        brokers: 3,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 2,
        payload_bytes: 64 << 10,
        standbys: 1,
        spares: 0,
        goi_pages: 4,
        sessions: 1,
        disks: 0,
    }
}

/// Runs a part of a model that needs more stack than the model checker gives.
pub fn spawn_roomy<T: Send + 'static>(part: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(ROOMY_WORDS);
    builder.spawn(part).expect("a thread of the model")
}

/// Explores a model that runs in a fresh region, in whose control file these words are modelled.
pub fn explore_region<I: Iterator<Item = u64>>(
    modelled: impl FnOnce(&Layout) -> I,
    model: impl Fn(Region<Modelled>) + Sync + Send + 'static,
) {
    explore_region_within(PREEMPTIONS, modelled, model);
}

/// As [`explore_region`], of a model so large that it takes fewer preemptions to end in time.
pub fn explore_region_within<I: Iterator<Item = u64>>(
    preemptions: usize,
    modelled: impl FnOnce(&Layout) -> I,
    model: impl Fn(Region<Modelled>) + Sync + Send + 'static,
) {
    let layout = Layout::new(&tiny());
    let modelled: Vec<u64> = modelled(&layout).collect();
    // Made once: the threads of the model checker have small stacks.
    let control = Arc::new(Modelled::plain(layout.control_bytes()));
    let payload_files = vec![Arc::new(Modelled::plain(tiny().payload_bytes))];
    let region = Region::format(Arc::clone(&control), payload_files, &tiny(), NONCE, 1)
        .expect("a valid geometry");
    let fresh = lock(&control.plain).clone();
    let model = Arc::new(model);
    explore_within(preemptions, move || {
        lock(&control.plain).clone_from(&fresh);
        control.model(&modelled);
        let (model, region) = (Arc::clone(&model), region.clone());
        spawn_roomy(move || model(region)).join().unwrap();
        lock(&control.modelled).clear();
    });
}

/// Explores every interleaving with a few preemptions.
pub fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_within(PREEMPTIONS, model);
}

fn explore_within(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
