//! What a session does when it is time: what its core has due, and what its handler asked for.

use std::mem;

use embar_frame::{Now, Protocol};

use super::SessionDriver;

impl<P: Protocol> SessionDriver<P> {
    pub(in crate::runtime) fn next_tick(&self) -> Option<Now> {
        let wake = self.session.0.wake.get().filter(|_| self.core.is_open());
        let both = [self.core.next_tick(), wake];
        both.into_iter().flatten().min()
    }

    pub(in crate::runtime) fn tick(&mut self, now: Now) {
        self.core.tick(now);
        self.wake_due |= self.core.is_open() && self.session.0.wake.take(now);
    }

    /// Wakes the handler, if it is time.
    pub(super) fn wake(&mut self, now: Now) {
        if mem::take(&mut self.wake_due) {
            self.call_handler(now, |handler, session| handler.woken(session));
        }
    }
}
