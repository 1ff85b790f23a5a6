//! How one thread hands another one something, without the kernel: a ring of records of 64 bytes, and counters that say
//! how far the others are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;
use embar_console::interrupt::{Interrupt, Interrupted};
use embar_memory::{Coherence, LINE_BYTES, Mapped, Memory};

/// Records in the ring: more than are ever on their way.
const RECORDS: u64 = 64;
/// Bytes of the memory: the counters, each on a line of its own and two lines apart, then the ring.
const MEMORY_BYTES: u64 = 8192;
const RING_AT: u64 = 4096;
/// Where the commit word of a record is: it is stored last.
const COMMIT_AT: u64 = 56;
/// Looks in vain between two looks at whether the others are still there.
const LOOK_EVERY: u32 = 1 << 12;

const _: () = assert!(RING_AT + RECORDS * LINE_BYTES <= MEMORY_BYTES);

/// Who says by a counter how many batches it is through with.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// The side that takes.
    Taken,
    /// The side that takes, to a subscriber.
    Readable,
    /// A subscriber.
    Followed,
}

/// What a record says of a batch.
pub type Record = [u64; 7];

/// The memory that two sides share.
pub struct HandOver {
    memory: Mapped,
    here: AtomicUsize,
    given_up: AtomicBool,
    interrupt: Interrupt,
}

impl HandOver {
    /// Nothing was handed over yet.
    pub fn new(interrupt: &Interrupt) -> Result<Self> {
        let memory = Mapped::anonymous(MEMORY_BYTES, Coherence::Coherent)?;
        memory.populate(0, MEMORY_BYTES)?;
        Ok(Self {
            memory,
            here: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            interrupt: interrupt.clone(),
        })
    }

    /// Publishes the record of this number; numbers count from 0.
    #[inline]
    pub fn put(&self, number: u64, record: &Record) {
        let at = place(number);
        let mut bytes = [0; COMMIT_AT as usize];
        let (words, _none) = bytes.as_chunks_mut::<8>();
        for (bytes, word) in words.iter_mut().zip(record) {
            *bytes = word.to_le_bytes();
        }
        self.memory.write(at, &bytes);
        // Partner: the load in `get`.
        self.memory.store(at + COMMIT_AT, number + 1);
    }

    /// The record of this number, once it is there.
    #[inline]
    pub fn get(&self, number: u64) -> Option<Record> {
        let at = place(number);
        if self.memory.load(at + COMMIT_AT) != number + 1 {
            return None;
        }
        let mut bytes = [0; COMMIT_AT as usize];
        self.memory.read(at, &mut bytes);
        let (words, _none) = bytes.as_chunks::<8>();
        let mut record = [0; 7];
        for (word, bytes) in record.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(record)
    }

    /// Says that so many batches are done with.
    #[inline]
    pub fn count(&self, counter: Counter, batches: u64) {
        // Partner: the load in `counted`.
        self.memory.store(counter.at(), batches);
    }

    /// How many batches are done with.
    #[inline]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.memory.load(counter.at())
    }

    /// Waits until so many sides are here, this one among them.
    pub fn meet(&self, sides: usize) -> Result<()> {
        self.here.fetch_add(1, Ordering::Relaxed);
        self.spin(|| (self.here.load(Ordering::Relaxed) >= sides).then_some(()))
    }

    /// Spins until `look` finds something; an error if another side gave up, or a signal came.
    #[inline]
    pub fn spin<T>(&self, look: impl Fn() -> Option<T>) -> Result<T> {
        let mut looks = 0u32;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            looks += 1;
            if looks.is_multiple_of(LOOK_EVERY) {
                self.check()?;
                // There may be fewer processors than threads that spin.
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// [`Interrupted`] if another side gave up, or a signal came.
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()?;
        let gave_up = self.given_up.load(Ordering::Relaxed);
        if gave_up {
            Err(Interrupted.into())
        } else {
            Ok(())
        }
    }

    /// Does the work of one side. If it fails, the others stop waiting for it.
    pub fn side<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut leaving = Leaving {
            of: self,
            well: false,
        };
        let result = work();
        leaving.well = result.is_ok();
        result
    }
}

/// Tells the others, also of a panic.
struct Leaving<'a> {
    of: &'a HandOver,
    well: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.well {
            self.of.given_up.store(true, Ordering::Relaxed);
        }
    }
}

impl Counter {
    fn at(self) -> u64 {
        // Processors fetch lines in pairs.
        2 * LINE_BYTES * self as u64
    }
}

fn place(number: u64) -> u64 {
    RING_AT + number % RECORDS * LINE_BYTES
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn records_come_in_their_turn_and_old_ones_are_not_taken_for_new() {
        let hand_over = HandOver::new(&Interrupt::default()).expect("memory");
        assert_eq!(hand_over.get(0), None);
        for number in 0..3 * RECORDS {
            assert_eq!(
                hand_over.get(number),
                None,
                "the record of the round before"
            );
            let record = [number, 1, 2, 3, 4, 5, u64::MAX];
            hand_over.put(number, &record);
            assert_eq!(hand_over.get(number), Some(record));
        }
    }

    #[test]
    fn who_waits_learns_that_the_other_side_failed() {
        let hand_over = HandOver::new(&Interrupt::default()).expect("memory");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| hand_over.spin(|| hand_over.get(0)));
            let failed: Result<()> = hand_over.side(|| Err(anyhow!("no more")));
            assert!(failed.is_err());
            let error = waiting.join().expect("no panic").expect_err("nothing came");
            assert!(error.is::<Interrupted>(), "{error}");
        });
    }

    #[test]
    fn counters_do_not_touch_each_other() {
        let hand_over = HandOver::new(&Interrupt::default()).expect("memory");
        let all = [Counter::Taken, Counter::Readable, Counter::Followed];
        for (number, counter) in (1..).zip(all) {
            hand_over.count(counter, number);
        }
        for (number, counter) in (1..).zip(all) {
            assert_eq!(hand_over.counted(counter), number);
        }
        assert!(hand_over.get(0).is_none());
    }
}
