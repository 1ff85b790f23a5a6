//! Sessions with much to do wait for their turn behind those with little.
//!
//! A peer that floods its session has something for the worker all the time. If it had its turn
//! whenever something came of it, an honest peer would wait for a turn of each such peer. So the
//! worker serves who has much to do one after the other, for a slice of time, and then looks at the
//! reactor again: what came meanwhile of a session with little to do has its turn first. With many
//! busy sessions each of them waits longer, and nobody else does.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_frame::{Now, Protocol};
use embar_transport::Token;

use super::Worker;
use crate::runtime::clock;
use crate::runtime::driver::SessionDriver;

/// A session of which so many bytes came at once is busy: they take longer than a look at the reactor.
pub(super) const MUCH_BYTES: usize = 8 << 10;

/// After as much time for busy sessions the others have their turn, nanoseconds.
const SLICE_NS: u64 = 100_000;

/// The busy sessions of a worker, each once; who waits longest is first.
#[derive(Default)]
pub(super) struct Busy(VecDeque<Token>);

impl Busy {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn make_room(&mut self, most: usize) {
        self.0.reserve(most.saturating_sub(self.0.len()));
    }

    pub(super) fn add(&mut self, token: Token) {
        self.0.push_back(token);
    }
}

impl<P: Protocol + Clone> Worker<P> {
    /// Lets `f` report something to a session. One that is busy, or is from now on, does what
    /// follows when its turn comes; all others do it at once.
    pub(super) fn tell(
        &mut self,
        token: Token,
        now: Now,
        is_much: bool,
        f: impl FnOnce(&mut SessionDriver<P>),
    ) {
        let slot = self.slots.get_mut(token.index());
        let slot = slot.and_then(Option::as_mut).filter(|s| s.token == token);
        let Some(slot) = slot.filter(|slot| slot.is_busy || is_much) else {
            return self.with(token, now, |driver, _| f(driver));
        };
        if !slot.is_busy {
            slot.is_busy = true;
            self.busy.add(token);
        }
        let driver = &mut slot.driver;
        if catch_unwind(AssertUnwindSafe(|| f(driver))).is_err()
            && let Some(slot) = self.slots[token.index()].take()
        {
            self.lose(slot);
        }
    }

    /// Turns of busy sessions, for a slice of time.
    pub(super) fn serve_busy(&mut self, now: Now) {
        if self.busy.is_empty() {
            return;
        }
        let until = clock::now().0 + SLICE_NS;
        // Who is busy still comes behind the others, and has no second turn in this round.
        for _ in 0..self.busy.0.len() {
            let Some(token) = self.busy.0.pop_front() else {
                break;
            };
            let slot = self.slots.get_mut(token.index());
            let slot = slot.and_then(Option::as_mut);
            if let Some(slot) = slot.filter(|slot| slot.token == token) {
                slot.is_busy = false;
                self.with(token, now, |driver, _| driver.apply_requests(now));
            }
            if clock::now().0 >= until {
                self.reactor.look_first();
                break;
            }
        }
    }
}
