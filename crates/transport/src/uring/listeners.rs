//! When the reactor accepts from its listeners, and when they rest.

use std::time::{Duration, Instant};

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
                driver.accept_some(token, &mut self.counters, out);
            }
            if driver.resting_until().is_some() {
                self.resting.push(token);
            }
            self.queue(token);
        }
    }

    /// Lets listeners try again whose rest is over, or all of them.
    pub(super) fn end_rests(&mut self, all: bool) {
        if self.resting.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut index = 0;
        while let Some(&token) = self.resting.get(index) {
            if let Some(Entry::Listener { driver, .. }) = self.entries.get_mut(token) {
                if !all && driver.resting_until().is_some_and(|until| until > now) {
                    index += 1;
                    continue;
                }
                driver.end_rest();
            }
            self.resting.swap_remove(index);
            self.queue(token);
        }
    }

    /// How long a wait may last without oversleeping a listener's rest.
    pub(super) fn until_rest_ends(&self) -> Option<Duration> {
        let ends = self.resting.iter().filter_map(|&token| {
            let Entry::Listener { driver, .. } = self.entries.get(token)? else {
                return None;
            };
            driver.resting_until()
        });
        Some(ends.min()?.saturating_duration_since(Instant::now()))
    }
}
