//! Sessions with much to do wait for their turn behind those with little.
//!
//! A peer that floods its session has something for the worker all the time. If it had its turn
//! whenever something came of it, an honest peer would wait for a turn of each such peer. So the
//! worker serves who has much to do one after the other, for a slice of time, and then looks at the
//! reactor again: what came meanwhile of a session with little to do has its turn first. With many
//! busy sessions each of them waits longer, and nobody else does. Peers that keep below both limits, of
//! bytes and of a share, are not told from honest ones: all of them have a turn in each round.

use std::collections::VecDeque;
use std::mem;

use embar_frame::{Now, Protocol};
use embar_transport::{Completion, Token};

use super::Worker;
use crate::runtime::clock;
use crate::runtime::driver::SessionDriver;

/// A session of which so many bytes came at once is busy: they take longer than a look at the reactor.
const MUCH_BYTES: usize = 8 << 10;

/// After as much time for busy sessions the others have their turn, nanoseconds.
const SLICE_NS: u64 = 100_000;

/// The busy sessions of a worker, each once; who waits longest is first.
#[derive(Default)]
pub(super) struct Busy {
    waiting: VecDeque<Token>,
    /// How long their turns took since the worker last had the reactor look, nanoseconds.
    since_look: u64,
}

impl Busy {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn make_room(&mut self, most: usize) {
        self.waiting
            .reserve(most.saturating_sub(self.waiting.len()));
    }

    pub(super) fn add(&mut self, token: Token) {
        self.waiting.push_back(token);
    }
}

/// Reports to a session what the reactor is done with.
pub(super) fn report<P: Protocol>(driver: &mut SessionDriver<P>, completion: Completion, now: Now) {
    match completion {
        Completion::Received { buf, result, .. } => driver.received(buf, &result, now),
        Completion::Sent { buf, result, .. } => driver.sent(buf, &result, now),
        _ => unreachable!("of no session"),
    }
}

impl<P: Protocol + Clone> Worker<P> {
    /// Takes what the reactor is done with to its session. One that is busy, or is from now on, hears of it when its turn comes;
    /// all others at once.
    pub(super) fn tell(&mut self, token: Token, completion: Completion, now: Now) {
        let is_much = matches!(
            &completion,
            Completion::Received { result: Ok(count), .. } if *count >= MUCH_BYTES
        );
        let slot = self.slots.get_mut(token.index());
        let slot = slot.and_then(Option::as_mut).filter(|s| s.token == token);
        let Some(slot) = slot.filter(|slot| slot.is_busy || is_much) else {
            return self.with(token, now, |driver, _| report(driver, completion, now));
        };
        if !mem::replace(&mut slot.is_busy, true) {
            self.busy.add(token);
        }
        match slot.deferred.iter_mut().find(|it| it.is_none()) {
            Some(free) => *free = Some(completion),
            None => self.with(token, now, |driver, _| report(driver, completion, now)),
        }
    }

    /// Turns of busy sessions, for a slice of time: for as long as the round took so far, if that was longer, so that they have half
    /// of the worker also beside many that are not busy.
    pub(super) fn serve_busy(&mut self, now: Now) {
        if self.busy.is_empty() {
            return;
        }
        let began = clock::now().0;
        let slice = SLICE_NS.max(began.saturating_sub(now.0));
        let mut took = 0;
        // Who is busy still comes behind the others, and has no second turn in this round.
        for _ in 0..self.busy.waiting.len() {
            let Some(token) = self.busy.waiting.pop_front() else {
                break;
            };
            let slot = self.slots.get_mut(token.index());
            let slot = slot.and_then(Option::as_mut);
            if let Some(slot) = slot.filter(|slot| slot.token == token) {
                slot.is_busy = false;
                self.with(token, now, |driver, _| driver.apply_requests(now));
            }
            took = clock::now().0.saturating_sub(began);
            if took >= slice {
                break;
            }
        }
        self.busy.since_look += took;
        if self.busy.since_look >= SLICE_NS {
            self.busy.since_look = 0;
            self.reactor.look_first();
        }
    }
}
