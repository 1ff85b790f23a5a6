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
    use std::sync::Arc;

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
}
