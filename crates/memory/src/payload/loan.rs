//! Committed bytes that another process may read where they are.

use std::fmt;

use super::span::Span;
use crate::memory::Memory;

/// Blocks of which something is lent are at most this part of a payload file: what a reader that stands still keeps from
/// being used again.
pub const LENT_PART: u64 = 8;

/// A span that another process may read until the loan ends: then these bytes may change.
pub struct Loan<M: Memory> {
    span: Span<M>,
}

impl<M: Memory> Span<M> {
    /// Lends these bytes. `None` if an [eighth](LENT_PART) of the payload file is lent already; another loan on the same
    /// block takes nothing more.
    pub fn lend(&self) -> Option<Loan<M>> {
        let span = self.clone();
        // Only what was counted may be dropped as a loan.
        span.block().lend().then(|| Loan { span })
    }
}

impl<M: Memory> Loan<M> {
    /// What is lent.
    pub fn span(&self) -> &Span<M> {
        &self.span
    }
}

impl<M: Memory> Drop for Loan<M> {
    fn drop(&mut self) {
        self.span.block().end_loan();
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
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, memfd_create};

    use crate::lent::LentFile;
    use crate::payload::{PayloadFile, Span, UNIT_BYTES};
    use crate::simulated::{Device, Simulated};

    fn committed(payload: &PayloadFile<Simulated>) -> Span<Simulated> {
        let mut extent = payload.allocate(1).expect("some is free");
        extent.reserve(64).expect("fresh").commit()
    }

    #[test]
    fn an_eighth_is_lent_and_each_block_is_counted_once() {
        let device = Device::new(16 * UNIT_BYTES, 1);
        let payload = PayloadFile::over_copies(&Arc::new(device.host(1)));
        let spans = [(); 3].map(|()| committed(&payload));
        let first = spans[0].lend().expect("nothing is lent");
        let again = spans[0].slice(8..16).lend().expect("of the same block");
        assert_eq!(payload.lent_bytes(), UNIT_BYTES);
        let second = spans[1].lend().expect("an eighth");
        assert!(spans[2].lend().is_none(), "more than an eighth");
        assert_eq!(payload.lent_bytes(), 2 * UNIT_BYTES);
        drop(first);
        assert!(spans[2].lend().is_none(), "another loan on that block");
        drop(again);
        let third = spans[2].lend().expect("there is room");
        // A loan keeps what it lends.
        drop(spans);
        assert_eq!(payload.free_bytes(), 14 * UNIT_BYTES);
        drop((second, third));
        assert_eq!(
            (payload.lent_bytes(), payload.free_bytes()),
            (0, 16 * UNIT_BYTES)
        );
    }

    const UNITS: u64 = 16;

    /// Openings of one file, as owners of it have them one after the other.
    struct Openings(File);

    impl Openings {
        fn new() -> Self {
            let file = memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file");
            let file = File::from(file);
            file.set_len(UNITS * UNIT_BYTES).expect("room");
            Self(file)
        }

        fn open(&self, opening: u32) -> LentFile {
            let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
            LentFile::new(File::open(path).expect("it is open"), opening).expect("metadata")
        }

        fn payload(&self, opening: u32) -> PayloadFile<Simulated> {
            let device = Device::new(UNITS * UNIT_BYTES, 1);
            PayloadFile::over_copies(&Arc::new(device.host(1))).lending(self.open(opening))
        }
    }

    /// The units that openings keep locked.
    fn locked(openings: &Openings) -> Vec<u64> {
        let locked = openings.open(99).locked_by_others(UNIT_BYTES);
        let units = |it: std::ops::Range<u64>| it.start / UNIT_BYTES..it.end / UNIT_BYTES;
        let mut units: Vec<u64> = locked.into_iter().flat_map(units).collect();
        units.sort_unstable();
        units
    }

    #[test]
    fn a_block_is_locked_from_the_first_loan_to_the_last() {
        let openings = Openings::new();
        let payload = openings.payload(1);
        let spans = [(); 2].map(|()| committed(&payload));
        let loans = [&spans[0], &spans[1], &spans[1]].map(|it| it.lend().expect("an eighth"));
        assert_eq!(locked(&openings), [0, 1]);
        let [first, second, third] = loans;
        drop((first, second));
        assert_eq!(locked(&openings), [1]);
        drop(third);
        assert!(locked(&openings).is_empty());
    }

    #[test]
    fn what_readers_of_dead_owners_have_goes_to_no_new_block() {
        let openings = Openings::new();
        let dead = [openings.open(1), openings.open(2)];
        for (dead, units) in dead.iter().zip([6..7, 3..4]) {
            let bytes = units.start * UNIT_BYTES..units.end * UNIT_BYTES;
            assert!(dead.lock(bytes));
        }
        let payload = openings.payload(3);
        assert_eq!(locked(&openings), [3, 6]);
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
        assert!(span.lend().is_none(), "an eighth is held");
        drop(found);
        assert_eq!(payload.free_bytes(), 10 * UNIT_BYTES);
        payload.release_held();
        assert_eq!(payload.held_bytes(), 2 * UNIT_BYTES, "they live");
        let [first, second] = dead;
        drop(second);
        payload.release_held();
        assert_eq!(payload.held_bytes(), UNIT_BYTES);
        assert_eq!(payload.free_bytes(), 11 * UNIT_BYTES);
        let found = payload
            .allocate_at(4 * UNIT_BYTES, 2)
            .expect("nobody has it");
        drop(first);
        payload.release_held();
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
