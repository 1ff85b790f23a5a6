//! What is held for readers that nobody hears of any more, and how it is found out that they are gone.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::unit::UNIT_BYTES;
use super::{Store, units_of};
use crate::lent::Found;
use crate::memory::Memory;

/// How much is asked of the kernel by one call: each question is a pass over all locks on the file.
const QUESTIONS: usize = 32;

/// What readers of owners before have of a payload file, and those that this owner [left alone](super::Loan::abandon). Nothing new is put there.
///
/// Nobody hears of these readers, so somebody has to ask, every so often.
pub struct Held<M: Memory> {
    store: Arc<Store<M>>,
}

impl<M: Memory> Held<M> {
    pub(super) fn of(store: &Arc<Store<M>>) -> Self {
        Self {
            store: Arc::clone(store),
        }
    }

    /// Finds out of some of what is held whether it is still read, and frees what is not; returns how many bytes that is. Calls that
    /// follow each other come to all of it in turn. No allocation waits meanwhile.
    pub fn release(&self) -> u64 {
        let Some(lends) = self.store.lends.get() else {
            return 0;
        };
        lends.forget_gone(QUESTIONS);
        if self.store.held.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let unasked = self.store.unasked.lock();
        let mut unasked = unasked.unwrap_or_else(PoisonError::into_inner);
        if unasked.is_empty() {
            *unasked = self.store.buddy().kept.held_ranges();
        }
        let mut released = 0;
        for _ in 0..QUESTIONS {
            let Some(bytes) = unasked.pop() else {
                break;
            };
            let holds = self.store.buddy().holds();
            let found = lends.look(&bytes, UNIT_BYTES);
            if let Found::Readers(locked) | Found::Others(locked) = &found {
                let around = [locked.end..bytes.end, bytes.start..locked.start];
                unasked.extend(around.into_iter().filter(|it| !it.is_empty()));
            }
            released += match found {
                Found::Readers(_) => 0,
                Found::Others(free) => self.release_unless_held_since(&free, holds),
                Found::Nothing => self.release_unless_held_since(&bytes, holds),
            };
        }
        released
    }

    /// Frees these bytes, of which nothing was locked when so many blocks had been held. If there were more since, they may be among
    /// them: then the next pass tells.
    fn release_unless_held_since(&self, bytes: &Range<u64>, holds: u64) -> u64 {
        let store = &self.store;
        let mut buddy = store.buddy();
        if buddy.holds() != holds {
            return 0;
        }
        let before = buddy.kept.held_bytes();
        buddy.release(units_of(bytes));
        let held = buddy.kept.held_bytes();
        if held < before {
            store.held.store(held, Ordering::Relaxed);
            store.returned.fetch_add(1, Ordering::Relaxed);
        }
        before - held
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> u64 {
        self.store.held.load(Ordering::Relaxed)
    }
}

impl<M: Memory> fmt::Debug for Held<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("bytes", &self.bytes())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::lent::LentView;
    use crate::mapped::Coherence;
    use crate::payload::PayloadFile;

    #[test]
    fn what_readers_left_in_many_places_is_freed_by_and_by() {
        let made = PayloadFile::anonymous_lent(1024 * UNIT_BYTES, Coherence::Coherent);
        let (payload, lent) = made.expect("memory");
        let readers = [(); 2].map(|()| Arc::new(lent.open().expect("a descriptor")));
        let views = readers.each_ref().map(|reader| {
            let fd = reader.as_fd().try_clone_to_owned().expect("a descriptor");
            LentView::map(fd, lent.len()).expect("mapped")
        });
        let extents: Vec<_> = (0..128)
            .map(|_| {
                let mut extent = payload.allocate(1).expect("there is room");
                (extent.reserve(64).expect("fresh").commit(), extent)
            })
            .collect();
        // Each second block is lent, so no two of them are neighbours; the first one to both.
        for (span, _) in extents.iter().step_by(2) {
            span.lend(&readers[0]).expect("a sixteenth").abandon();
        }
        let first = extents[0].0.lend(&readers[1]);
        first.expect("nothing more").abandon();
        drop((extents, readers));
        let (held, free) = (payload.held(), payload.free_bytes());
        assert_eq!(held.bytes(), 64 * UNIT_BYTES);
        for _ in 0..10 {
            assert_eq!(held.release(), 0, "all is mapped");
        }
        let [one, other] = views;
        drop(one);
        let most = QUESTIONS as u64 * UNIT_BYTES;
        assert!((1..=most).contains(&held.release()), "some of it");
        while held.bytes() > UNIT_BYTES {
            assert!(held.release() <= most);
        }
        for _ in 0..10 {
            assert_eq!(held.release(), 0, "the other one lives");
        }
        drop(other);
        while held.bytes() > 0 {
            held.release();
        }
        assert_eq!(payload.free_bytes(), free + 64 * UNIT_BYTES);
    }
}
