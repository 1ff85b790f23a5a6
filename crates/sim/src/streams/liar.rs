//! A side that keeps to no rule: it writes whatever it can where its peer reads.

use std::sync::Arc;

use embar_memory::{Memory, Simulated};
use embar_transport::shm::cores::Sizes;

use super::pool::POOL_BYTES;
use super::side::Views;
use super::world::{Process, with};
use crate::random::Random;

/// Bytes before the records: counters and words for sleepers.
const WORDS_BYTES: u64 = 256;
const RECORD_BYTES: u64 = 64;
/// Where a record says what it is, and where its commit word is.
const KIND_AT: usize = 48;
const COMMIT_AT: u64 = 56;

/// The owner of an outbox and of a pool.
pub struct Liar {
    place: usize,
    outbox: Arc<Simulated>,
    pool: Arc<Simulated>,
    sizes: Sizes,
    /// Records that look as if they were published in their order.
    published: u64,
    random: Random,
}

impl Liar {
    pub fn new(place: usize, views: &Views, sizes: Sizes, random: Random) -> Self {
        Self {
            place,
            outbox: Arc::clone(&views.own),
            pool: Arc::clone(&views.own_pool),
            sizes,
            published: 0,
            random,
        }
    }

    /// A record that is likely to be taken for one.
    fn publish(&mut self) {
        let number = self.published;
        let at = WORDS_BYTES + number % u64::from(self.sizes.records) * RECORD_BYTES;
        let mut body = [0; COMMIT_AT as usize];
        let limit = *self.random.pick(&[64, 4096, 2 * POOL_BYTES]);
        let place = self.random.below(limit) & !*self.random.pick(&[0_u64, 63]);
        body[..8].copy_from_slice(&place.to_le_bytes());
        body[KIND_AT] = *self.random.pick(&[1, 1, 2, 2, 3, 3, 3, 4, 5]);
        body[KIND_AT + 1] = u8::from(self.random.one_in(10));
        let len = self.random.size(8192) as u32;
        let len = if body[KIND_AT] == 1 { len % 64 } else { len };
        body[KIND_AT + 4..].copy_from_slice(&len.to_le_bytes());
        self.outbox.write(at, &body);
        self.store(at + COMMIT_AT, number + 1);
        self.published += 1;
    }

    /// A word that only grows, or says why somebody sleeps: whatever it may be.
    fn store_word(&mut self) {
        let at = self.random.below(WORDS_BYTES / 8) * 8;
        let near = self.random.below(self.published + 4);
        let bits = self.random.bits();
        let value = *self.random.pick(&[0, 1, near, near, u64::MAX, bits]);
        self.store(at, value);
    }

    /// Any word of the outbox.
    fn damage(&mut self) {
        let at = self.random.below(self.outbox.len() / 8) * 8;
        let bits = self.random.bits();
        self.store(at, bits);
    }

    /// Bytes that it named, or did not.
    fn scribble(&mut self) {
        let at = self.random.below(POOL_BYTES / 8) * 8;
        let bits = self.random.bits();
        self.pool.store(at, bits);
        self.pool.write_back(at, 8);
        self.pool.fence();
    }

    fn store(&self, at: u64, value: u64) {
        self.outbox.store(at, value);
        self.outbox.write_back(at & !63, 64);
        self.outbox.fence();
    }
}

impl Process for Liar {
    fn step(&mut self) -> bool {
        match self.random.below(8) {
            0 => self.store_word(),
            1 => self.damage(),
            2 => self.scribble(),
            _ => self.publish(),
        }
        with(|world| {
            world.count("lies told", 1);
            world.ring(self.place);
        });
        false
    }

    fn state(&self) -> String {
        format!("{}: lies", self.place)
    }
}
