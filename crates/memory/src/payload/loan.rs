//! Committed bytes that another process may read where they are.

use std::fmt;
use std::sync::Arc;

use super::span::Span;
use crate::lent::LentOpening;
use crate::memory::Memory;

/// A span that another process may read until the loan ends: then these bytes may change. To drop it ends it.
pub struct Loan<M: Memory> {
    span: Span<M>,
    /// None once the reader is left alone with it.
    reader: Option<Arc<LentOpening>>,
}

impl<M: Memory> Span<M> {
    /// Lends these bytes to a reader of the same file. `None` if an [eighth](super::LENT_PART) of the payload file, or in an eighth of its aligned 16 MiB
    /// something is lent already, or the kernel has no more locks; another loan on the same block takes nothing more.
    pub fn lend(&self, reader: &Arc<LentOpening>) -> Option<Loan<M>> {
        let span = self.clone();
        if !span.block().lend() {
            return None;
        }
        // Only what was counted may be dropped as a loan.
        let mut loan = Loan { span, reader: None };
        if reader.lock(loan.span.block().bytes()) {
            loan.reader = Some(Arc::clone(reader));
            return Some(loan);
        }
        None
    }
}

impl<M: Memory> Loan<M> {
    /// What is lent.
    pub fn span(&self) -> &Span<M> {
        &self.span
    }

    /// The reader does not say any more when it is through. So the lock stays, and while the reader's mapping keeps that the block is held:
    /// see [`Held`](super::Held).
    pub fn abandon(mut self) {
        self.span.block().hold();
        self.reader = None;
    }
}

impl<M: Memory> Drop for Loan<M> {
    fn drop(&mut self) {
        let block = self.span.block();
        if let Some(reader) = &self.reader {
            reader.unlock(block.bytes());
        }
        block.end_loan();
    }
}

impl<M: Memory> fmt::Debug for Loan<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.span).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, memfd_create};

    use crate::lent::{LentFile, LentOpening, LentView};
    use crate::payload::{PayloadFile, Span, UNIT_BYTES};
    use crate::simulated::{Device, Simulated};

    fn committed(payload: &PayloadFile<Simulated>) -> Span<Simulated> {
        let mut extent = payload.allocate(1).expect("some is free");
        extent.reserve(64).expect("fresh").commit()
    }

    const UNITS: u64 = 16;

    /// A file that owners have one after the other.
    struct Shared(File);

    impl Shared {
        fn new() -> Self {
            let file = memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file");
            let file = File::from(file);
            file.set_len(UNITS * UNIT_BYTES).expect("room");
            Self(file)
        }

        fn lent(&self) -> LentFile {
            let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
            LentFile::new(File::open(path).expect("it is open")).expect("metadata")
        }

        fn payload(&self) -> PayloadFile<Simulated> {
            let device = Device::new(UNITS * UNIT_BYTES, 1);
            PayloadFile::over_copies(&Arc::new(device.host(1))).lending(self.lent())
        }

        fn reader(&self) -> Arc<LentOpening> {
            Arc::new(self.lent().open().expect("a descriptor"))
        }
    }

    /// The reader's side.
    fn mapped(reader: &LentOpening) -> Arc<LentView> {
        let fd = reader.as_fd().try_clone_to_owned().expect("a descriptor");
        LentView::map(fd, reader.file().len()).expect("mapped")
    }

    /// Frees what no reader keeps.
    fn release(payload: &PayloadFile<Simulated>) {
        payload.held().release();
    }

    /// The units that openings keep locked.
    fn locked(shared: &Shared) -> Vec<u64> {
        let locked = shared.lent().find_locked(UNIT_BYTES);
        let units = |it: std::ops::Range<u64>| it.start / UNIT_BYTES..it.end / UNIT_BYTES;
        let mut units: Vec<u64> = locked.into_iter().flat_map(units).collect();
        units.sort_unstable();
        units
    }

    #[test]
    fn an_eighth_is_lent_and_each_block_is_counted_once() {
        let shared = Shared::new();
        let (payload, reader) = (shared.payload(), shared.reader());
        let spans = [(); 3].map(|()| committed(&payload));
        let first = spans[0].lend(&reader).expect("nothing is lent");
        let part = spans[0].slice(8..16);
        let again = part.lend(&shared.reader()).expect("of the same block");
        assert_eq!(payload.lent_bytes(), UNIT_BYTES);
        let second = spans[1].lend(&reader).expect("an eighth");
        assert!(spans[2].lend(&reader).is_none(), "more than an eighth");
        assert_eq!(payload.lent_bytes(), 2 * UNIT_BYTES);
        drop(first);
        let more = spans[2].lend(&reader);
        assert!(more.is_none(), "another loan on that block");
        drop((again, part));
        let third = spans[2].lend(&reader).expect("there is room");
        // A loan keeps what it lends.
        drop(spans);
        assert_eq!(payload.free_bytes(), 14 * UNIT_BYTES);
        drop((second, third));
        assert_eq!(
            (payload.lent_bytes(), payload.free_bytes()),
            (0, 16 * UNIT_BYTES)
        );
    }

    #[test]
    fn a_block_is_locked_from_the_first_loan_to_the_last() {
        let shared = Shared::new();
        let (payload, readers) = (shared.payload(), [shared.reader(), shared.reader()]);
        let spans = [(); 2].map(|()| committed(&payload));
        let lent =
            |span: usize, reader: usize| spans[span].lend(&readers[reader]).expect("an eighth");
        let (first, second, third) = (lent(0, 0), lent(1, 0), lent(1, 1));
        assert_eq!(locked(&shared), [0, 1]);
        drop((first, second));
        assert_eq!(locked(&shared), [1]);
        drop(third);
        assert!(locked(&shared).is_empty());
    }

    #[test]
    fn what_a_reader_has_that_is_not_heard_any_more_goes_to_no_new_block() {
        let shared = Shared::new();
        let (payload, reader, other) = (shared.payload(), shared.reader(), shared.reader());
        let view = mapped(&reader);
        let spans = [(); 2].map(|()| committed(&payload));
        let loans = [&spans[0], &spans[1]].map(|it| it.lend(&reader).expect("an eighth"));
        let [first, second] = loans;
        drop(first);
        second.abandon();
        drop((spans, reader));
        assert_eq!(locked(&shared), [1]);
        assert_eq!(
            (payload.lent_bytes(), payload.held_bytes()),
            (UNIT_BYTES, UNIT_BYTES)
        );
        assert_eq!(payload.free_bytes(), 15 * UNIT_BYTES);
        release(&payload);
        assert_eq!(payload.free_bytes(), 15 * UNIT_BYTES, "it is mapped");
        let more = [(); 3].map(|()| committed(&payload));
        let lent = more[0].lend(&other);
        assert!(
            lent.is_some() && more[1].lend(&other).is_none(),
            "an eighth in all"
        );
        drop(view);
        release(&payload);
        assert_eq!(
            (payload.held_bytes(), payload.lent_bytes()),
            (0, UNIT_BYTES)
        );
        drop((lent, more));
        assert_eq!(payload.free_bytes(), 16 * UNIT_BYTES);
    }

    #[test]
    fn what_is_held_and_lent_again_counts_once() {
        let shared = Shared::new();
        let (payload, gone, reader) = (shared.payload(), shared.reader(), shared.reader());
        let _view = mapped(&gone);
        let span = committed(&payload);
        span.lend(&gone).expect("an eighth").abandon();
        let loan = span.lend(&reader).expect("nothing more than before");
        assert_eq!(payload.lent_bytes(), UNIT_BYTES);
        let other = committed(&payload);
        assert!(other.lend(&reader).is_some(), "an eighth in all");
        drop(loan);
        assert_eq!(payload.lent_bytes(), UNIT_BYTES);
    }

    #[test]
    fn a_block_that_is_used_goes_on_although_a_reader_was_left_alone_with_it() {
        let shared = Shared::new();
        let (payload, reader) = (shared.payload(), shared.reader());
        let view = mapped(&reader);
        let mut extent = payload.allocate(1).expect("free");
        let span = extent.reserve(64).expect("fresh").commit();
        span.lend(&reader).expect("an eighth").abandon();
        drop((reader, span));
        assert!(extent.reserve(64).is_some() && extent.is_lent());
        drop(view);
        release(&payload);
        assert!(!extent.is_lent());
        drop(extent);
        assert_eq!(payload.free_bytes(), 16 * UNIT_BYTES);
    }

    #[test]
    fn what_readers_of_dead_owners_have_goes_to_no_new_block() {
        let shared = Shared::new();
        let dead = [shared.reader(), shared.reader()];
        for (dead, units) in dead.iter().zip([6..7, 3..4]) {
            let bytes = units.start * UNIT_BYTES..units.end * UNIT_BYTES;
            assert!(dead.lock(bytes));
        }
        let (payload, reader) = (shared.payload(), shared.reader());
        assert_eq!(locked(&shared), [3, 6]);
        assert_eq!(payload.held_bytes(), 2 * UNIT_BYTES);
        assert_eq!(payload.lent_bytes(), 2 * UNIT_BYTES);
        let all: Vec<_> = std::iter::from_fn(|| payload.allocate(1)).collect();
        let mut places: Vec<u64> = all.iter().map(|it| it.at() / UNIT_BYTES).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(all.iter().all(|it| !it.is_lent()));
        drop(all);
        // What the dead owner had committed there can be read, and nothing comes behind it.
        let mut found = payload.allocate_at(0, 2).expect("nobody has it");
        found.set_cursor(64);
        assert!(found.span(0, 64).is_some() && found.is_lent());
        assert_eq!((found.remaining(), found.reserve(64).is_none()), (0, true));
        assert!(payload.allocate_at(0, 1).is_none(), "it is taken");
        assert!(
            payload.allocate_at(3 * UNIT_BYTES, 0).is_none(),
            "with all of it"
        );
        let mut other = payload.allocate(4 * UNIT_BYTES as u32).expect("free");
        let span = other.reserve(64).expect("fresh").commit();
        assert!(span.lend(&reader).is_none(), "an eighth is held");
        drop(found);
        assert_eq!(payload.free_bytes(), 10 * UNIT_BYTES);
        release(&payload);
        assert_eq!(payload.held_bytes(), 2 * UNIT_BYTES, "they live");
        let [first, second] = dead;
        drop(second);
        release(&payload);
        assert_eq!(payload.held_bytes(), UNIT_BYTES);
        assert_eq!(payload.free_bytes(), 11 * UNIT_BYTES);
        let found = payload
            .allocate_at(4 * UNIT_BYTES, 2)
            .expect("nobody has it");
        drop(first);
        release(&payload);
        assert_eq!((payload.held_bytes(), payload.returned_blocks()), (0, 2));
        assert_eq!(payload.free_bytes(), 8 * UNIT_BYTES, "a block has it");
        drop(found);
        assert_eq!(payload.free_bytes(), 12 * UNIT_BYTES);
        drop((span, other));
        assert!(
            payload.allocate(16 * UNIT_BYTES as u32).is_some(),
            "one again"
        );
    }
}
