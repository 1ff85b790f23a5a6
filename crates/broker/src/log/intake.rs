//! What batches on their way may hold before they are readable: room in the log, and memory beside it.
//!
//! Room in the log costs what was acknowledged before: something is evicted for it. So it is claimed
//! for a batch that is still to come only by a connection that has delivered as many bytes in time
//! before, its *credit*, and all such claims together hold a small share. Every other batch is received
//! aside, into memory that grows with the bytes that arrive, and gets its room in the log when it is
//! whole. Announcing bytes costs nobody anything, and not sending them gains nothing.
//!
//! Invariants
//! - All that is held exceeds the high watermark by at most two batches (I9): the one that was admitted
//!   last, and the one that goes on beyond it.
//! - One batch at least always goes on, so that what was received aside comes to an end.

use super::{NoRoom, Watermarks};
use crate::peers::{PeerId, Shares};

/// Claims of batches that are being received hold at most this part of the log, and of the places that
/// batches need besides their bytes.
const CLAIMS_PART: u64 = 8;
/// The first bytes that a batch gets aside; it gets twice as many whenever they are full.
pub(crate) const ASIDE_BYTES_MIN: u32 = 64 << 10;

/// Who sends a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The lane, and so the thread, it comes by.
    pub lane: u16,
    /// The connection, as its reactor names it.
    pub connection: u64,
    /// Who sends it.
    pub peer: PeerId,
    /// Bytes that it may claim room in the log for.
    pub credit_bytes: u64,
}

impl Sender {
    fn name(&self) -> (u16, u64) {
        (self.lane, self.connection)
    }
}

/// See the module.
pub(super) struct Intake {
    marks: Watermarks,
    total_bytes: u64,
    /// Batches that may have their room before they are there.
    claims_max: u32,
    claims: u32,
    /// Room in the log without a readable batch in it yet...
    reserved_bytes: u64,
    /// ...and that part of it whose batches are being received.
    claimed_bytes: u64,
    aside_bytes: u64,
    aside_of: Shares,
    congested: bool,
    /// How many times something was given back.
    given_back: u64,
    /// The one that goes on whatever is held.
    favoured: Option<(u16, u64)>,
}

impl Intake {
    /// Of a log of so many bytes, in which so many batches find a place besides: a page of the index, or a
    /// slot of a lane.
    pub fn new(marks: Watermarks, total_bytes: u64, places: u32) -> Self {
        Self {
            marks,
            total_bytes,
            claims_max: places / CLAIMS_PART as u32,
            claims: 0,
            reserved_bytes: 0,
            claimed_bytes: 0,
            aside_bytes: 0,
            aside_of: Shares::default(),
            congested: false,
            given_back: 0,
            favoured: None,
        }
    }

    /// Room in the log that holds nothing readable yet.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Memory beside the log.
    pub fn aside_bytes(&self) -> u64 {
        self.aside_bytes
    }

    /// Room in the log whose batches are being received.
    pub fn claimed_bytes(&self) -> u64 {
        self.claimed_bytes
    }

    /// What claims may hold together.
    pub fn claims_bytes_max(&self) -> u64 {
        self.total_bytes / CLAIMS_PART
    }

    fn held_bytes(&self) -> u64 {
        self.reserved_bytes + self.aside_bytes
    }

    /// Another number when something was given back.
    pub fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Below the low watermark: what is held of one session may leave that much to the others.
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

    /// Whether a batch may have its room in the log before it is there.
    pub fn may_claim(&self, bytes: u32, by: &Sender) -> bool {
        let bytes = u64::from(bytes);
        bytes <= by.credit_bytes
            && self.claims < self.claims_max
            && self.claimed_bytes + bytes <= self.claims_bytes_max()
    }

    /// A batch that is received has its room.
    pub fn claim(&mut self, bytes: u32) {
        self.reserved_bytes += u64::from(bytes);
        self.claimed_bytes += u64::from(bytes);
        self.claims += 1;
    }

    /// A batch was received: its room is reserved until [`Intake::settle`].
    pub fn receive(&mut self, bytes: u32) {
        self.claimed_bytes -= u64::from(bytes);
        self.claims -= 1;
        self.given_back += 1;
    }

    /// A batch that was received is readable, or will never be.
    pub fn settle(&mut self, bytes: u32) {
        self.reserved_bytes -= u64::from(bytes);
        self.given_back += 1;
    }

    /// Memory for so many bytes more of one batch.
    pub fn lay_aside(&mut self, bytes: u32, by: &Sender) -> Result<(), NoRoom> {
        let (more, held) = (u64::from(bytes), self.held_bytes());
        let high = self.marks.high_bytes;
        let beyond = held + more > high;
        if (beyond || self.aside_of.exceeds(by.peer, more, held, high))
            && *self.favoured.get_or_insert(by.name()) != by.name()
        {
            return Err(NoRoom::Congested);
        }
        self.move_aside(bytes, by);
        Ok(())
    }

    /// As [`Intake::lay_aside`], for bytes that the batch had already in another way.
    pub fn move_aside(&mut self, bytes: u32, by: &Sender) {
        self.aside_bytes += u64::from(bytes);
        self.aside_of.add(by.peer, u64::from(bytes));
    }

    /// Gives back all memory of one batch.
    pub fn put_back(&mut self, bytes: u32, by: &Sender) {
        let bytes = u64::from(bytes);
        self.aside_bytes -= bytes;
        self.aside_of.give_back(by.peer, bytes);
        self.given_back += 1;
        if self.favoured == Some(by.name()) {
            self.favoured = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn intake() -> Intake {
        let marks = Watermarks {
            high_bytes: 1000,
            low_bytes: 500,
        };
        Intake::new(marks, 1600, 16)
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
    fn claims_cost_credit_and_hold_a_small_share() {
        let mut intake = intake();
        let by = sender(1, PeerId::Here);
        assert!(intake.may_claim(150, &by) && !intake.may_claim(151, &by));
        intake.claim(150);
        assert!(intake.may_claim(50, &by) && !intake.may_claim(51, &by));
        intake.claim(1);
        assert!(!intake.may_claim(1, &by), "two are all");
        intake.receive(1);
        intake.settle(1);
        intake.receive(150);
        assert!(intake.may_claim(150, &by), "it is there now");
        assert_eq!(intake.reserved_bytes(), 150);
        intake.settle(150);
        assert_eq!(intake.reserved_bytes(), 0);
    }

    #[test]
    fn one_batch_goes_on_whatever_is_held() {
        let mut intake = intake();
        let [a, b, c] = [1, 2, 3].map(|n| sender(n, PeerId::Here));
        intake.lay_aside(600, &a).expect("there is room");
        intake.lay_aside(400, &b).expect("just so");
        assert_eq!(intake.lay_aside(600, &a), Ok(()), "the first one beyond");
        assert_eq!(intake.lay_aside(400, &b), Err(NoRoom::Congested));
        intake.put_back(1200, &a);
        assert_eq!(intake.lay_aside(400, &b), Ok(()));
        assert_eq!(intake.lay_aside(400, &c), Ok(()), "the next one beyond");
        assert_eq!(intake.lay_aside(400, &b), Err(NoRoom::Congested));
        intake.put_back(800, &b);
        intake.put_back(400, &c);
        assert_eq!(intake.aside_bytes(), 0);
        assert_eq!(intake.favoured, None);
    }

    #[test]
    fn a_host_leaves_half_to_the_others_whichever_of_its_addresses_it_uses() {
        let mut intake = intake();
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
        intake.lay_aside(300, &a).expect("below a half");
        intake.lay_aside(200, &b).expect("a half");
        assert_eq!(intake.lay_aside(300, &a), Ok(()), "one goes on");
        assert_eq!(intake.lay_aside(1, &b), Err(NoRoom::Congested));
        intake.lay_aside(100, &c).expect("another network");
        intake.put_back(600, &a);
        intake.put_back(200, &b);
        intake.put_back(100, &c);
        assert_eq!([a, b, c].map(|it| intake.aside_of.of(it.peer)), [0; 3]);
    }

    #[test]
    fn between_the_marks_nothing_changes() {
        let mut intake = intake();
        intake.claim(900);
        assert!(!intake.is_congested());
        intake.claim(200);
        assert!(intake.is_congested());
        intake.receive(200);
        intake.settle(200);
        assert!(intake.is_congested(), "above the low mark");
        intake.receive(900);
        intake.settle(400);
        assert!(!intake.is_congested());
    }
}
