//! Notices: the sequencer's answers to a lane's writer about records that it did not order.
//!
//! Every record of a lane is answered at most once, by its GOI record or by a notice. The lane's
//! writer never has more records unanswered than the ring has slots, so the sequencer never
//! overwrites a notice that was not read, although it does not know how far the writer has read.
//!
//! A notice is stored twice, because nothing else in memory says the same. The newest one may be lost whole,
//! and its place shows nothing then. So each grant of the lane says how many notices there are, and is stored
//! after them.

use embar_memory::Memory;

use crate::records::{Notice, Record};
use crate::ring::Ring;
use crate::slot::Seen;

/// The sequencer's end.
#[derive(Debug)]
pub struct NoticeWriter<M> {
    copies: [Ring<M>; 2],
    next: u64,
}

impl<M: Memory> NoticeWriter<M> {
    /// Goes on above everything that was ever written here.
    pub(crate) fn attach(copies: [Ring<M>; 2]) -> Self {
        let next = copies[0].above_all().max(copies[1].above_all());
        Self { copies, next }
    }

    /// Publishes a notice; on return its reader sees it.
    pub fn publish(&mut self, notice: &Notice) {
        let body = notice.to_body();
        for copy in &self.copies {
            copy.publish(self.next, &body);
        }
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
    copies: [Ring<M>; 2],
    next: u64,
}

impl<M: Memory> NoticeReader<M> {
    pub(crate) fn attach(copies: [Ring<M>; 2], next: u64) -> Self {
        Self { copies, next }
    }

    /// The next notice, if it is there, without taking it. `granted` is how many there are at least, as the
    /// lane's grant says: one of those that cannot be read in either place is damaged.
    pub fn peek(&self, granted: u64) -> Seen<Notice> {
        let is_there = self.next < granted;
        let [first, second] = &self.copies;
        let seen = match first.observe_closely(self.next) {
            // The second copy is never there before the first one.
            Seen::Nothing if !is_there => Seen::Nothing,
            Seen::Found(body) => Seen::Found(body),
            Seen::Nothing | Seen::Damaged => match second.observe_closely(self.next) {
                Seen::Found(body) => Seen::Found(body),
                Seen::Nothing | Seen::Damaged if is_there => Seen::Damaged,
                // It may still be on its way.
                Seen::Nothing | Seen::Damaged => Seen::Nothing,
            },
        };
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
