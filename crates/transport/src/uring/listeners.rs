//! When the reactor accepts from its listeners, and when they rest.

use embar_memory::Mapped;

use super::{Entry, Uring};
use crate::{Completion, Token};

impl Uring {
    /// Has a listener accepted from, if that may get anywhere.
    pub(super) fn queue(&mut self, token: Token) {
        if let Some(Entry::Listener { driver, .. }) = self.entries.get_mut(token)
            && driver.is_ready()
            && !std::mem::replace(&mut driver.queued, true)
        {
            self.ready.push(token);
        }
    }

    pub(super) fn run_listeners(&mut self, out: &mut Vec<Completion<Mapped>>) {
        for _ in 0..self.ready.len() {
            let token = self.ready.remove(0);
            let Some(Entry::Listener { driver, .. }) = self.entries.get_mut(token) else {
                continue;
            };
            driver.queued = false;
            if driver.is_ready() {
                driver.accept_some(token, &mut self.counters, &mut self.rests, out);
            }
            self.queue(token);
        }
    }

    /// Lets listeners try again whose rest is over, or all of them.
    pub(super) fn end_rests(&mut self, all: bool) {
        while let Some(token) = self.rests.next_over(all) {
            if let Some(Entry::Listener { driver, .. }) = self.entries.get_mut(token) {
                driver.end_rest();
            }
            self.queue(token);
        }
    }
}
