//! What batches in flight may hold before they are readable: space in the log, and staging memory beside it.
//!
//! Space in the log costs what was acknowledged before: something is evicted for it. So only a connection that
//! has delivered as many bytes in time before, its *credit*, may reserve it for a batch that is still to come,
//! and all such reservations together hold a small part of the log. Every other batch is received into staging
//! memory, which grows with the bytes that arrive, and gets its space in the log when it is whole. So a peer
//! that announces bytes costs others nothing, and one that does not send them gains nothing.
//!
//! Invariants
//! - All that is held exceeds the high watermark by at most two batches (I9): the one that was admitted
//!   last, and the one that goes on beyond it.
//! - One batch at least always goes on, so that what was staged comes to an end.

use super::{AdmitError, Watermarks};
use crate::peers::{PeerId, Shares};

/// Batches that are being received reserve at most this part of the log, and of what batches need besides
/// their bytes.
const RESERVED_PART: u64 = 8;
/// The first bytes that a batch gets in staging memory; it gets twice as many whenever they are full.
pub(crate) const STAGING_BYTES_MIN: u32 = 64 << 10;
/// What a connection gets there before the bytes come, at most, if all batches are staged: as much as it has delivered
/// in time, up to this.
pub(crate) const STAGING_CREDIT_BYTES: u32 = 2 << 20;

/// The connection that sends a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The lane, and so the thread, it comes by.
    pub lane: u16,
    /// The connection, as its reactor names it.
    pub connection: u64,
    /// The peer at its other end.
    pub peer: PeerId,
    /// For so many bytes it may reserve space in the log.
    pub credit_bytes: u64,
}

impl Sender {
    fn id(&self) -> (u16, u64) {
        (self.lane, self.connection)
    }
}

/// Counts what batches in flight hold, and decides who may hold more.
pub(super) struct Admission {
    marks: Watermarks,
    total_bytes: u64,
    /// Batches that may have their space before they are there.
    receiving_max: u32,
    /// Those that have.
    receiving: u32,
    /// Space in the log without a readable batch in it yet...
    reserved_bytes: u64,
    /// ...and that part of it whose batches are being received.
    receiving_bytes: u64,
    staged_bytes: u64,
    staged_by: Shares,
    congested: bool,
    /// How many times something was given back.
    given_back: u64,
    /// The connection whose batch goes on whatever is held.
    exempt: Option<(u16, u64)>,
}

impl Admission {
    /// Of a log of so many bytes. `places` is how many batches find what they need besides: a page of the
    /// index, or a slot of a lane.
    pub fn new(marks: Watermarks, total_bytes: u64, places: u32) -> Self {
        Self {
            marks,
            total_bytes,
            receiving_max: places / RESERVED_PART as u32,
            receiving: 0,
            reserved_bytes: 0,
            receiving_bytes: 0,
            staged_bytes: 0,
            staged_by: Shares::default(),
            congested: false,
            given_back: 0,
            exempt: None,
        }
    }

    /// Space in the log that holds nothing readable yet.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Staging memory.
    pub fn staged_bytes(&self) -> u64 {
        self.staged_bytes
    }

    /// Space in the log whose batches are being received.
    pub fn receiving_bytes(&self) -> u64 {
        self.receiving_bytes
    }

    /// What that may be at most.
    fn receiving_bytes_max(&self) -> u64 {
        self.total_bytes / RESERVED_PART
    }

    fn held_bytes(&self) -> u64 {
        self.reserved_bytes + self.staged_bytes
    }

    /// How many times something was given back.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Bytes left below the low watermark. What is held of one session may leave as much to the others.
    pub fn left_bytes(&self) -> u64 {
        self.marks.low_bytes.saturating_sub(self.held_bytes())
    }

    pub fn is_above_low(&self) -> bool {
        self.held_bytes() > self.marks.low_bytes
    }

    /// Whether no batch may begin.
    pub fn is_congested(&mut self) -> bool {
        let limit = if self.congested {
            self.marks.low_bytes
        } else {
            self.marks.high_bytes
        };
        self.congested = self.held_bytes() > limit;
        self.congested
    }

    /// Whether a batch may have its space in the log before it is there.
    pub fn may_reserve(&self, bytes: u32, by: &Sender) -> bool {
        let bytes = u64::from(bytes);
        bytes <= by.credit_bytes
            && self.receiving < self.receiving_max
            && self.receiving_bytes + bytes <= self.receiving_bytes_max()
    }

    /// A batch that is being received has its space.
    pub fn reserve(&mut self, bytes: u32) {
        self.reserved_bytes += u64::from(bytes);
        self.receiving_bytes += u64::from(bytes);
        self.receiving += 1;
    }

    /// A batch was received: its space is reserved until [`Admission::settle`].
    pub fn receive(&mut self, bytes: u32) {
        self.receiving_bytes -= u64::from(bytes);
        self.receiving -= 1;
        self.given_back += 1;
    }

    /// A batch that was received is readable, or will never be.
    pub fn settle(&mut self, bytes: u32) {
        self.reserved_bytes -= u64::from(bytes);
        self.given_back += 1;
    }

    /// More staging memory for one batch.
    pub fn stage(&mut self, bytes: u32, by: &Sender) -> Result<(), AdmitError> {
        let (more, held) = (u64::from(bytes), self.held_bytes());
        let high = self.marks.high_bytes;
        let beyond = held + more > high;
        if (beyond || self.staged_by.exceeds(by.peer, more, held, high))
            && *self.exempt.get_or_insert(by.id()) != by.id()
        {
            return Err(AdmitError::Congested);
        }
        self.move_to_staging(bytes, by);
        Ok(())
    }

    /// As [`Admission::stage`], for bytes that the batch had in the log before.
    pub fn move_to_staging(&mut self, bytes: u32, by: &Sender) {
        self.staged_bytes += u64::from(bytes);
        self.staged_by.add(by.peer, u64::from(bytes));
    }

    /// Gives back all staging memory of one batch.
    pub fn unstage(&mut self, bytes: u32, by: &Sender) {
        let bytes = u64::from(bytes);
        self.staged_bytes -= bytes;
        self.staged_by.give_back(by.peer, bytes);
        self.given_back += 1;
        if self.exempt == Some(by.id()) {
            self.exempt = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn admission() -> Admission {
        let marks = Watermarks {
            high_bytes: 1000,
            low_bytes: 500,
        };
        Admission::new(marks, 1600, 16)
    }

    fn sender(connection: u64, peer: PeerId) -> Sender {
        Sender {
            lane: 0,
            connection,
            peer,
            credit_bytes: 150,
        }
    }

    #[test]
    fn reservations_need_credit_and_hold_a_small_part() {
        let mut admission = admission();
        let by = sender(1, PeerId::Here);
        assert!(admission.may_reserve(150, &by) && !admission.may_reserve(151, &by));
        admission.reserve(150);
        assert!(admission.may_reserve(50, &by) && !admission.may_reserve(51, &by));
        admission.reserve(1);
        assert!(!admission.may_reserve(1, &by), "two are all");
        admission.receive(1);
        admission.settle(1);
        admission.receive(150);
        assert!(admission.may_reserve(150, &by), "it is there now");
        assert_eq!(admission.reserved_bytes(), 150);
        admission.settle(150);
        assert_eq!(admission.reserved_bytes(), 0);
    }

    #[test]
    fn one_batch_goes_on_whatever_is_held() {
        let mut admission = admission();
        let [a, b, c] = [1, 2, 3].map(|n| sender(n, PeerId::Here));
        admission.stage(600, &a).expect("there is room");
        admission.stage(400, &b).expect("just so");
        assert_eq!(admission.stage(600, &a), Ok(()), "the first one beyond");
        assert_eq!(admission.stage(400, &b), Err(AdmitError::Congested));
        admission.unstage(1200, &a);
        assert_eq!(admission.stage(400, &b), Ok(()));
        assert_eq!(admission.stage(400, &c), Ok(()), "the next one beyond");
        assert_eq!(admission.stage(400, &b), Err(AdmitError::Congested));
        admission.unstage(800, &b);
        admission.unstage(400, &c);
        assert_eq!(admission.staged_bytes(), 0);
        assert_eq!(admission.exempt, None);
    }

    #[test]
    fn a_host_leaves_half_to_others_whichever_address_it_uses() {
        let mut admission = admission();
        let [a, b, c] = [
            (1, "2001:db8::1"),
            (2, "2001:db8::2"),
            (3, "2001:db8:0:1::1"),
        ]
        .map(|(n, ip)| {
            sender(
                n,
                PeerId::of(Some(SocketAddr::new(ip.parse().expect("an address"), 9))),
            )
        });
        admission.stage(300, &a).expect("below a half");
        admission.stage(200, &b).expect("a half");
        assert_eq!(admission.stage(300, &a), Ok(()), "one goes on");
        assert_eq!(admission.stage(1, &b), Err(AdmitError::Congested));
        admission.stage(100, &c).expect("another network");
        admission.unstage(600, &a);
        admission.unstage(200, &b);
        admission.unstage(100, &c);
        assert_eq!([a, b, c].map(|it| admission.staged_by.of(it.peer)), [0; 3]);
    }

    #[test]
    fn between_the_marks_nothing_changes() {
        let mut admission = admission();
        admission.reserve(900);
        assert!(!admission.is_congested());
        admission.reserve(200);
        assert!(admission.is_congested());
        admission.receive(200);
        admission.settle(200);
        assert!(admission.is_congested(), "above the low mark");
        admission.receive(900);
        admission.settle(400);
        assert!(!admission.is_congested());
    }
}
