//! How a side that sleeps is woken, and who does not sleep is left alone.
//!
//! Who wants to sleep says so in its outbox, and looks once more. Who publishes, or consumes, looks there afterwards.
//! Between saying and looking each has a full fence, so that one of the two sees the other: either the sleeper finds what
//! came, or it is woken. (Dekker's protocol; the models explore it.)

use std::sync::Arc;

use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::layout::{ASLEEP_AT, LINE_BYTES, WANTED_AT};
use super::sync::{Ordering, fence};

/// The sleeper waits for a record.
pub(crate) const NEWS: u64 = 1;
/// The sleeper waits until so much is consumed as it says beside.
pub(crate) const ROOM: u64 = 2;
/// Above the reasons: the number of the nap.
const NAP_SHIFT: u32 = 2;

/// This side's right to say that it sleeps.
pub struct Nap<O: Memory> {
    own: Arc<O>,
    naps: u64,
    asleep: bool,
}

impl<O: Memory> Nap<O> {
    /// Of an outbox whose side is awake.
    pub fn new(own: Arc<O>) -> Self {
        Self {
            own,
            naps: 0,
            asleep: false,
        }
    }

    /// Says why this side is to be woken: for news, or when so many records are consumed. Before it sleeps it calls
    /// [`settle`], and looks whether that came meanwhile.
    pub fn begin(&mut self, news: bool, wanted: Option<u64>) {
        self.naps += 1;
        let mut word = self.naps << NAP_SHIFT;
        if news {
            word |= NEWS;
        }
        if let Some(wanted) = wanted {
            self.own.store(WANTED_AT, wanted);
            word |= ROOM;
        }
        self.own.store(ASLEEP_AT, word);
        self.own.write_back(ASLEEP_AT, LINE_BYTES);
        self.own.fence();
        self.asleep = true;
    }

    /// From now on this side looks by itself.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.own.store(ASLEEP_AT, 0);
            self.own.write_back(ASLEEP_AT, LINE_BYTES);
            self.own.fence();
        }
    }
}

/// Between saying that one sleeps, in however many outboxes, and looking once more. Partner: the fence in
/// `Bell::must_ring`.
pub fn settle() {
    fence(Ordering::SeqCst);
}

/// What is known of the other side's sleep.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// The nap that it was woken from.
    rung: u64,
}

impl Bell {
    /// Whether `peer` sleeps for this reason, and was not woken from this nap yet. What it waits for was stored before;
    /// `number` is how much that is.
    #[inline]
    pub fn must_ring(&mut self, peer: &impl Memory, reason: u64, number: u64) -> bool {
        // Partner: `settle`.
        fence(Ordering::SeqCst);
        if !injected(Canary::StreamSleepInvalidate) {
            peer.invalidate(ASLEEP_AT, LINE_BYTES);
        }
        let word = peer.load(ASLEEP_AT);
        if word & reason == 0 || word >> NAP_SHIFT == self.rung {
            return false;
        }
        if reason == ROOM && number < peer.load(WANTED_AT) {
            return false;
        }
        self.rung = word >> NAP_SHIFT;
        !injected(Canary::StreamRing)
    }
}
