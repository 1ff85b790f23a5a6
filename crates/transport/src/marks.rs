//! A set of marks: any thread marks a connection, and the worker, the thread that runs the reactor,
//! then looks at the connections that are marked.
//!
//! A tree of bits, three levels of 64: a mark sets the connection's bit, and goes up one level only
//! where it found a word empty. So marks of one connection count once, no thread waits for a lock,
//! and the one that finds the root empty has to wake the worker. The memory for a chunk of slots is
//! made by [`Marks::make_room`], or else by the first mark of the chunk.
//!
//! No mark is lost: the worker empties a word only after it emptied the word above, so a mark that
//! found its word in use is either still to be swapped out, or its predecessor is on the way up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const FANOUT: usize = 64;

/// How many slots can be marked.
pub const SLOTS: usize = FANOUT * FANOUT * FANOUT;

struct Chunk {
    summary: AtomicU64,
    words: [AtomicU64; FANOUT],
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self {
            summary: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }
}

/// A set of slots below [`SLOTS`], which any thread marks and one thread takes.
pub struct Marks {
    root: AtomicU64,
    chunks: [OnceLock<Box<Chunk>>; FANOUT],
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// With nothing marked.
    #[must_use]
    pub fn new() -> Self {
        Self {
            root: AtomicU64::new(0),
            chunks: [const { OnceLock::new() }; FANOUT],
        }
    }

    /// Makes the memory that a mark of `slot` needs, so that no thread allocates when it marks it.
    ///
    /// # Panics
    /// If `slot` is not below [`SLOTS`].
    pub fn make_room(&self, slot: usize) {
        let (chunk_index, ..) = split(slot);
        self.chunks[chunk_index].get_or_init(Chunk::new);
    }

    /// Marks `slot`; true if the set was empty, so that the caller must wake the worker.
    ///
    /// What the caller wrote before is visible to the worker that takes the mark.
    ///
    /// # Panics
    /// If `slot` is not below [`SLOTS`].
    #[must_use = "the worker sleeps unless it is woken"]
    pub fn mark(&self, slot: usize) -> bool {
        let (chunk_index, word_index, bit) = split(slot);
        let chunk = self.chunks[chunk_index].get_or_init(Chunk::new);
        set(&chunk.words[word_index], bit)
            && set(&chunk.summary, word_index)
            && set(&self.root, chunk_index)
    }

    /// Whether `slot` is marked; a mark that is just being made or taken may be missed.
    pub fn is_marked(&self, slot: usize) -> bool {
        let (chunk_index, word_index, bit) = split(slot);
        let chunk = self.chunks[chunk_index].get();
        chunk.is_some_and(|chunk| chunk.words[word_index].load(Ordering::Relaxed) >> bit & 1 == 1)
    }

    /// Whether nothing is marked; a mark that is just being made may be missed.
    pub fn is_empty(&self) -> bool {
        self.root.load(Ordering::Relaxed) == 0
    }

    /// Takes every mark and appends its slot to `out`.
    pub fn take(&self, out: &mut Vec<usize>) {
        if self.is_empty() {
            return;
        }
        for chunk_index in bits(self.root.swap(0, Ordering::AcqRel)) {
            let Some(chunk) = self.chunks[chunk_index].get() else {
                continue;
            };
            for word_index in bits(chunk.summary.swap(0, Ordering::AcqRel)) {
                let word = chunk.words[word_index].swap(0, Ordering::AcqRel);
                let base = (chunk_index * FANOUT + word_index) * FANOUT;
                out.extend(bits(word).map(|bit| base + bit));
            }
        }
    }
}

fn split(slot: usize) -> (usize, usize, usize) {
    assert!(slot < SLOTS, "more connections than can be marked");
    (
        slot / (FANOUT * FANOUT),
        slot / FANOUT % FANOUT,
        slot % FANOUT,
    )
}

/// Sets a bit; true if the word was empty.
fn set(word: &AtomicU64, bit: usize) -> bool {
    word.fetch_or(1 << bit, Ordering::AcqRel) == 0
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < FANOUT).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn marks_come_back_once_and_in_order() {
        let set = Marks::new();
        let slots = [0, 1, 63, 64, 4095, 4096, 70_000, SLOTS - 1];
        assert!(set.mark(slots[7]), "the first mark tells the worker");
        for slot in slots {
            assert!(!set.mark(slot));
        }
        let mut taken = Vec::new();
        set.take(&mut taken);
        assert_eq!(taken, slots);
        assert!(set.is_empty());
        assert!(set.mark(64), "empty again");
    }

    #[test]
    fn no_mark_of_several_threads_is_lost() {
        const ROUNDS: usize = 20_000;
        let set = Arc::new(Marks::new());
        // Three slots of one word, one of the next word, one of another chunk.
        let slots = [3usize, 4, 5, 70, 5000];
        let asked: Arc<[AtomicUsize; 5]> = Arc::default();
        let markers: Vec<_> = slots
            .iter()
            .enumerate()
            .map(|(index, &slot)| {
                let (set, asked) = (Arc::clone(&set), Arc::clone(&asked));
                thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        asked[index].fetch_add(1, Ordering::Relaxed);
                        let _ = set.mark(slot);
                    }
                })
            })
            .collect();
        // What each mark announced, as seen when its mark was taken last.
        let mut seen = [0; 5];
        let mut taken = Vec::new();
        let mut look = |set: &Marks| {
            taken.clear();
            set.take(&mut taken);
            for slot in &taken {
                let index = slots.iter().position(|s| s == slot).unwrap();
                seen[index] = asked[index].load(Ordering::Relaxed);
            }
            seen
        };
        while markers.iter().any(|marker| !marker.is_finished()) {
            look(&set);
        }
        assert_eq!(look(&set), [ROUNDS; 5]);
    }
}
