//! What a consumer does next: without I/O.
//!
//! It takes its own pending entries first: an earlier process of this name was given them, or an answer was lost. Then it
//! reads new ones, and now and then claims those of consumers that died.

use std::time::{Duration, Instant};

use super::entry_id::EntryId;

/// What a consumer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Takes pending entries behind this one.
    Sweep(Whose, Option<EntryId>),
    /// Reads new entries, and waits so long for them.
    Read(Duration),
}

/// Whose pending entries it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Its own.
    Own,
    /// Those of any consumer that have been idle for so long.
    Idle(Duration),
}

/// A walk over pending entries.
#[derive(Debug, Clone, Copy)]
enum Walk {
    /// It goes on behind this entry; `None`: it begins.
    Behind(Option<EntryId>),
    /// It is over.
    Over,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Plan {
    block: Duration,
    claim_idle: Option<Duration>,
    own: Walk,
    claims: Walk,
    /// When the next walk over what is idle begins; `None`: at no time.
    next_claims: Option<Instant>,
}

impl Plan {
    pub fn new(block: Duration, claim_idle: Option<Duration>, now: Instant) -> Self {
        Self {
            block,
            claim_idle,
            own: Walk::Behind(None),
            claims: Walk::Over,
            next_claims: claim_idle.map(|_| now),
        }
    }

    /// What to do now.
    pub fn next(&mut self, now: Instant) -> Step {
        if let Walk::Behind(last) = self.own {
            return Step::Sweep(Whose::Own, last);
        }
        if self.next_claims.is_some_and(|at| at <= now) {
            self.next_claims = None;
            self.claims = Walk::Behind(None);
        }
        if let (Walk::Behind(last), Some(idle)) = (self.claims, self.claim_idle) {
            return Step::Sweep(Whose::Idle(idle), last);
        }
        let left = self.next_claims.map(|at| at.saturating_duration_since(now));
        Step::Read(left.map_or(self.block, |left| left.min(self.block)))
    }

    /// A sweep came to this entry; `None`: there were no more. `spread` is a random number from 0 to 1: consumers that
    /// begin together do not look together.
    pub fn swept(&mut self, whose: Whose, last: Option<EntryId>, now: Instant, spread: f64) {
        let walk = last.map_or(Walk::Over, |last| Walk::Behind(Some(last)));
        match whose {
            Whose::Own => self.own = walk,
            Whose::Idle(idle) => {
                self.claims = walk;
                if last.is_none() {
                    let pause = (idle / 2).saturating_add((idle / 4).mul_f64(spread));
                    self.next_claims = now.checked_add(pause);
                }
            }
        }
    }

    /// The server may have given entries in an answer that was lost: they are among its own.
    pub fn look_again(&mut self) {
        self.own = Walk::Behind(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Duration = Duration::from_secs(5);
    const IDLE: Duration = Duration::from_secs(8);

    fn id(millis: u64) -> Option<EntryId> {
        Some(EntryId {
            millis,
            sequence: 0,
        })
    }

    #[test]
    fn its_own_come_first_then_those_of_others_and_then_new_ones() {
        let now = Instant::now();
        let mut plan = Plan::new(BLOCK, Some(IDLE), now);
        assert_eq!(plan.next(now), Step::Sweep(Whose::Own, None));
        plan.swept(Whose::Own, id(3), now, 0.0);
        assert_eq!(plan.next(now), Step::Sweep(Whose::Own, id(3)));
        plan.swept(Whose::Own, None, now, 0.0);
        let idle = Whose::Idle(IDLE);
        assert_eq!(plan.next(now), Step::Sweep(idle, None));
        plan.swept(idle, id(7), now, 0.0);
        assert_eq!(plan.next(now), Step::Sweep(idle, id(7)));
        plan.swept(idle, None, now, 0.0);
        // It reads no longer than until it claims again.
        assert_eq!(plan.next(now), Step::Read(IDLE / 2));
        let later = now + IDLE / 2;
        assert_eq!(plan.next(later), Step::Sweep(idle, None));
        plan.swept(idle, None, later, 1.0);
        assert_eq!(plan.next(later), Step::Read(BLOCK));
        assert_eq!(plan.next(later + IDLE * 3 / 4), Step::Sweep(idle, None));
    }

    #[test]
    fn without_claims_it_only_reads_until_an_answer_is_lost() {
        let now = Instant::now();
        let mut plan = Plan::new(BLOCK, None, now);
        plan.swept(Whose::Own, None, now, 0.0);
        assert_eq!(plan.next(now + BLOCK * 100), Step::Read(BLOCK));
        plan.look_again();
        assert_eq!(plan.next(now), Step::Sweep(Whose::Own, None));
    }
}
