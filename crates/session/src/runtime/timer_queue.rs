//! The queue of a worker that says which session's deadline comes next.
//!
//! A session has at most one deadline that counts, and it moves with almost every round. So its entry
//! changes only when the deadline comes *nearer* than the entry there is; one that moved away is found
//! out when the entry is due, and made again. A busy session costs one comparison per round. Its entry
//! is one at any time: a deadline that comes nearer again and again would otherwise leave one behind
//! each time, and each of those would cost the worker a look later.

use std::collections::BTreeSet;

use embar_frame::Now;
use embar_transport::Token;

/// The entry of a session in [`TimerQueue`], kept by the session.
#[derive(Default)]
pub(super) struct TimerEntry(Option<Now>);

/// The deadlines of one worker's sessions, the nearest first.
#[derive(Default)]
pub(super) struct TimerQueue(BTreeSet<(Now, u64)>);

impl TimerEntry {
    /// It came out of the queue.
    pub(super) fn fired(&mut self) {
        self.0 = None;
    }
}

impl TimerQueue {
    /// Sees to it that `token` is due at `deadline` or before.
    pub(super) fn arm(&mut self, token: Token, timer: &mut TimerEntry, deadline: Option<Now>) {
        let Some(deadline) = deadline else { return };
        if timer.0.is_none_or(|at| deadline < at) {
            if let Some(farther) = timer.0.replace(deadline) {
                self.0.remove(&(farther, token.bits()));
            }
            self.0.insert((deadline, token.bits()));
        }
    }

    /// Takes out the next entry that is due: its session is to call [`TimerEntry::fired`].
    pub(super) fn due(&mut self, now: Now) -> Option<Token> {
        self.next().filter(|at| *at <= now)?;
        let (_, bits) = self.0.pop_first()?;
        Some(Token::from_bits(bits))
    }

    /// When the next entry is due.
    pub(super) fn next(&self) -> Option<Now> {
        self.0.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_away_costs_nothing_until_it_is_due() {
        let (mut timers, mut timer) = (TimerQueue::default(), TimerEntry::default());
        let token = Token::new(1, 0);
        for later in 0..1000 {
            timers.arm(token, &mut timer, Some(Now(10 + later)));
        }
        assert_eq!(timers.0.len(), 1);
        assert_eq!(timers.due(Now(9)), None);
        assert_eq!(timers.due(Now(10)), Some(token));
        timer.fired();
        timers.arm(token, &mut timer, Some(Now(1010)));
        assert_eq!(timers.next(), Some(Now(1010)));
    }

    #[test]
    fn a_nearer_deadline_replaces_the_one_there_is() {
        let (mut timers, mut timer) = (TimerQueue::default(), TimerEntry::default());
        let token = Token::new(1, 0);
        timers.arm(token, &mut timer, Some(Now(50)));
        timers.arm(token, &mut timer, Some(Now(20)));
        assert_eq!(timers.due(Now(100)), Some(token));
        assert_eq!(timers.due(Now(100)), None, "the other is gone");
        timer.fired();
        timers.arm(token, &mut timer, Some(Now(70)));
        assert_eq!(timers.due(Now(100)), Some(token));
    }

    #[test]
    fn a_session_whose_deadline_comes_nearer_again_and_again_has_one_entry() {
        let (mut timers, mut timer) = (TimerQueue::default(), TimerEntry::default());
        let token = Token::new(1, 0);
        for round in 0..1000 {
            timers.arm(token, &mut timer, Some(Now(5000 + round)));
            timers.arm(token, &mut timer, Some(Now(100 + round)));
            timers.arm(token, &mut timer, Some(Now(3 + round)));
            assert_eq!(timers.0.len(), 1);
            assert_eq!(timers.due(Now(3 + round)), Some(token));
            timer.fired();
        }
    }
}
