//! The queue of a worker that says which session's deadline comes next.
//!
//! A session has at most one deadline that counts, and it moves with almost every round. So a heap
//! entry is made only when the deadline comes *nearer* than the entry there is; one that moved
//! away is found out when the entry is due, and pushed again. A busy session costs one comparison
//! per round, and one heap operation per deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use embar_frame::Now;
use embar_transport::Token;

/// The entry of a session in [`TimerQueue`], kept by the session.
#[derive(Default)]
pub(super) struct TimerEntry(Option<Now>);

/// The deadlines of one worker's sessions, the nearest first.
#[derive(Default)]
pub(super) struct TimerQueue {
    heap: BinaryHeap<Reverse<(Now, u64)>>,
}

impl TimerQueue {
    /// Sees to it that `token` is due at `deadline` or before.
    pub(super) fn arm(&mut self, token: Token, timer: &mut TimerEntry, deadline: Option<Now>) {
        let Some(deadline) = deadline else { return };
        if timer.0.is_none_or(|at| deadline < at) {
            timer.0 = Some(deadline);
            self.heap.push(Reverse((deadline, token.bits())));
        }
    }

    /// The next entry that is due, with the time it was made for: pass that to
    /// [`TimerQueue::fired`], which says whether it is the one that counts.
    pub(super) fn due(&mut self, now: Now) -> Option<(Token, Now)> {
        let &Reverse((at, bits)) = self.heap.peek()?;
        if at > now {
            return None;
        }
        self.heap.pop();
        Some((Token::from_bits(bits), at))
    }

    /// False for an entry that a nearer one replaced.
    pub(super) fn fired(timer: &mut TimerEntry, at: Now) -> bool {
        let counts = timer.0 == Some(at);
        if counts {
            timer.0 = None;
        }
        counts
    }

    /// When the next entry is due.
    pub(super) fn next(&self) -> Option<Now> {
        self.heap.peek().map(|Reverse((at, _))| *at)
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
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(timers.due(Now(9)), None);
        assert_eq!(timers.due(Now(10)), Some((token, Now(10))));
        assert!(TimerQueue::fired(&mut timer, Now(10)));
        timers.arm(token, &mut timer, Some(Now(1010)));
        assert_eq!(timers.next(), Some(Now(1010)));
    }

    #[test]
    fn a_nearer_deadline_replaces_the_one_there_is() {
        let (mut timers, mut timer) = (TimerQueue::default(), TimerEntry::default());
        let token = Token::new(1, 0);
        timers.arm(token, &mut timer, Some(Now(50)));
        timers.arm(token, &mut timer, Some(Now(20)));
        assert_eq!(timers.due(Now(100)), Some((token, Now(20))));
        assert!(TimerQueue::fired(&mut timer, Now(20)));
        timers.arm(token, &mut timer, Some(Now(70)));
        assert_eq!(timers.due(Now(100)), Some((token, Now(50))));
        assert!(!TimerQueue::fired(&mut timer, Now(50)), "it was replaced");
        assert_eq!(timers.due(Now(100)), Some((token, Now(70))));
        assert!(TimerQueue::fired(&mut timer, Now(70)));
        assert_eq!(timers.due(Now(100)), None);
    }
}
