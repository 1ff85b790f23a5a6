//! Notices: what the sequencer tells a lane's writer about records that were not ordered.
//!
//! Every record of a lane is answered at most once, by its GOI record or by a notice. The lane's
//! writer never has more records unanswered than the ring has slots, so the sequencer never
//! overwrites a notice that was not read, and needs not to be told how far it was read.
//!
//! The newest notice may be lost whole, and its place shows nothing then. So each grant of the lane
//! says how many there are: it is stored after them, and kept twice.

use crate::memory::Memory;
use crate::records::{Notice, Record};
use crate::ring::Ring;
use crate::slot::Seen;

/// The sequencer's end.
#[derive(Debug)]
pub struct NoticeWriter<M> {
    ring: Ring<M>,
    next: u64,
}

impl<M: Memory> NoticeWriter<M> {
    /// Goes on above everything that was ever written here.
    pub(crate) fn attach(ring: Ring<M>) -> Self {
        let next = ring.above_all();
        Self { ring, next }
    }

    /// Publishes a notice; on return its reader sees it.
    pub fn publish(&mut self, notice: &Notice) {
        self.ring.publish(self.next, &notice.to_body());
        self.next += 1;
    }

    /// The number of the next notice.
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// The lane writer's end.
#[derive(Debug)]
pub struct NoticeReader<M> {
    ring: Ring<M>,
    next: u64,
}

impl<M: Memory> NoticeReader<M> {
    pub(crate) fn attach(ring: Ring<M>, next: u64) -> Self {
        Self { ring, next }
    }

    /// The next notice, if it is there, without taking it.
    pub fn peek(&self) -> Seen<Notice> {
        let seen = self.ring.observe_closely(self.next);
        seen.map(|body| Notice::from_body(&body))
    }

    /// The number of the next notice.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes the notice that [`NoticeReader::peek`] showed.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Gives back the last `count` notices that were taken: they are shown again.
    pub fn back(&mut self, count: u64) {
        self.next -= count;
    }
}
