//! What a session does when it is time: what its core has due, and what its handler asked for.

use std::mem;

use embar_frame::{Now, Protocol};

use super::SessionDriver;

/// What a handler may have to get beside messages, as bits.
pub(super) mod due {
    /// The time that it asked for is there.
    pub(in super::super) const WAKE: u8 = 1;
    /// Datagrams came.
    pub(in super::super) const DATAGRAMS: u8 = 2;
}

impl<P: Protocol> SessionDriver<P> {
    pub(in crate::runtime) fn next_tick(&self) -> Option<Now> {
        let wake = self.session.0.wake.get().filter(|_| self.core.is_open());
        let all = [self.core.next_tick(), wake, self.paced_until()];
        all.into_iter().flatten().min()
    }

    pub(in crate::runtime) fn tick(&mut self, now: Now) {
        self.core.tick(now);
        if self.core.is_open() && self.session.0.wake.take(now) {
            self.due |= due::WAKE;
        }
    }

    /// Gives the handler what it has to get beside messages.
    pub(super) fn tell_due(&mut self, now: Now) {
        let due = mem::take(&mut self.due);
        if due != 0 {
            self.tell(due, now);
        }
    }

    #[cold]
    fn tell(&mut self, due: u8, now: Now) {
        if due & due::WAKE != 0 {
            self.call_handler(now, |handler, session| handler.woken(session));
        }
        if due & due::DATAGRAMS != 0 {
            self.deliver_datagrams(now);
        }
    }
}
