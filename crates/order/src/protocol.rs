//! How the batches of a chain come to their places.
//!
//! A protocol decides on one batch of one session's current epoch at a time, from the batch's number and the
//! session's [`Progress`]. It never sees other sessions: what one publisher does cannot change the outcome of
//! another's batches. The chain gives positions densely, in the order in which batches are placed.
//!
//! Here are [`Arrive`] (order 2: as they arrive) and [`Follow`] (order 5: each behind its
//! predecessor). Others would fit as follows.
//!
//! - *Corfu* gives out positions before anything is written. The arrival is the request for a token: placed
//!   at once, as by [`Arrive`], with a record that points to where the bytes will be. New is that a
//!   position may stay empty: the core would remember tokens in place of held batches, and end a
//!   lease by placing junk where it now fences.
//! - *Scalog* cuts the lanes from time to time, and the cut places all that is below it, lane by
//!   lane. Its decision on an arrival is to hold it, and [`Core::elapse`](crate::Core::elapse)
//!   places what is held, sorted by source. Batches of a session must come by one lane.
//! - *LazyLog* acknowledges what is durable and binds positions when a subscriber reads. It holds as
//!   Scalog does, and the cut is made by a reader's question. What is held is acknowledged then, so
//!   a successor has to find it: the lanes' records stay until they are placed.

mod arrive;
mod follow;

use std::collections::BTreeSet;

pub use arrive::Arrive;
pub use follow::Follow;

/// How far a session is: what its protocol has to know to decide on the next batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The lowest number that is not placed.
    pub mark: u64,
    /// What else the protocol knows.
    pub detail: [u64; 2],
}

/// What to do with a batch of the current epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Give it the next position.
    Place,
    /// Hold it until a predecessor has its position.
    Hold,
    /// It has a position already.
    Duplicate,
    /// It is too far ahead.
    BeyondWindow,
}

/// How the batches of a chain come to their places.
pub trait Protocol: std::fmt::Debug + Sync {
    /// The order level that chains with this protocol have.
    fn order(&self) -> u8;

    /// How many numbers from the mark on it can take, where `most` are allowed.
    fn window(&self, most: u32) -> u32 {
        most
    }

    /// What becomes of the batch of this number; `window` numbers from the mark on are taken.
    fn admit(&self, progress: &Progress, number: u64, window: u32) -> Admission;

    /// The batch of this number, which has no place yet, gets one.
    fn place(&self, progress: &mut Progress, number: u64);

    /// As it was before the batches of these numbers, and no others since, got their places.
    fn unplace(&self, progress: &mut Progress, numbers: &BTreeSet<u64>);

    /// Whether the batch of this number is placed.
    fn is_placed(&self, progress: &Progress, number: u64) -> bool;

    /// The next epoch begins, at the mark.
    fn begin_epoch(&self, progress: &mut Progress);

    /// Whether the batch of this number is certainly placed in the epoch before the current one.
    fn was_placed(&self, progress: &Progress, number: u64) -> bool;
}

/// The protocol of an order level, if there is one.
pub fn of_order(order: u8) -> Option<&'static dyn Protocol> {
    const ALL: [&dyn Protocol; 2] = [&Arrive, &Follow];
    ALL.into_iter().find(|protocol| protocol.order() == order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_2_and_5_have_a_protocol() {
        let with = (0..=u8::MAX).filter(|order| of_order(*order).is_some());
        assert_eq!(with.collect::<Vec<_>>(), [2, 5]);
        assert_eq!(of_order(5).map(Protocol::order), Some(5));
    }
}
