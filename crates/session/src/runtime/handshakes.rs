//! Whose TLS handshakes run in one worker, and whose wait for a turn.
//!
//! A crowd, which is mostly an address, has turns beside the others, however many of it come: the next turn is for the crowd of which the
//! fewest handshakes run, and the one that makes room is of the crowd of which the most do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use embar_frame::Now;
use embar_transport::Token;

use super::crowd::Crowd;

/// Those of one crowd.
#[derive(Debug, Default)]
struct Members {
    /// By their numbers, which are lower for those that came earlier.
    waiting: BTreeSet<(u64, Token)>,
    /// By when they began.
    running: BTreeSet<(Now, Token)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Handshakes {
    most: usize,
    patience: Duration,
    crowds: BTreeMap<Crowd, Members>,
    /// Crowds that wait, by how many of them run, and by who came first: the first one is next.
    next: BTreeSet<(usize, u64, Crowd)>,
    /// Crowds of which some run, by how many, and by who began first: the last one makes room.
    busiest: BTreeSet<(usize, Reverse<Now>, Crowd)>,
    running: usize,
}

impl Handshakes {
    /// At most so many run. While others wait, one that took longer than `patience` makes room.
    pub fn new(most: usize, patience: Duration) -> Self {
        Self {
            most,
            patience,
            crowds: BTreeMap::new(),
            next: BTreeSet::new(),
            busiest: BTreeSet::new(),
            running: 0,
        }
    }

    /// Changes a crowd, and its ranks with it.
    fn change(&mut self, crowd: Crowd, change: impl FnOnce(&mut Members)) {
        let next = |its: &Members| {
            let (number, _) = its.waiting.first()?;
            Some((its.running.len(), *number, crowd))
        };
        let busy = |its: &Members| {
            let (since, _) = its.running.first()?;
            Some((its.running.len(), Reverse(*since), crowd))
        };
        let members = self.crowds.entry(crowd).or_default();
        if let Some(before) = next(members) {
            self.next.remove(&before);
        }
        if let Some(before) = busy(members) {
            self.busiest.remove(&before);
        }
        change(members);
        self.next.extend(next(members));
        self.busiest.extend(busy(members));
        if members.waiting.is_empty() && members.running.is_empty() {
            self.crowds.remove(&crowd);
        }
    }

    /// Begins one. False: it waits until [`Handshakes::take_next`] says that it is its turn.
    pub fn begin(&mut self, crowd: Crowd, number: u64, token: Token, now: Now) -> bool {
        let may = self.running < self.most;
        self.change(crowd, |its| {
            if may {
                its.running.insert((now, token));
            } else {
                its.waiting.insert((number, token));
            }
        });
        self.running += usize::from(may);
        may
    }

    /// One whose turn it is; it is to [begin](Handshakes::begin).
    pub fn take_next(&mut self) -> Option<Token> {
        let (_, number, crowd) = *self.next.first().filter(|_| self.running < self.most)?;
        let members = self.crowds.get(&crowd)?;
        let (_, token) = *members.waiting.first()?;
        self.end(crowd, number, token, None);
        Some(token)
    }

    /// One does not wait any more, or runs no more, which began at `since`.
    pub fn end(&mut self, crowd: Crowd, number: u64, token: Token, since: Option<Now>) {
        let mut ended = false;
        self.change(crowd, |its| {
            its.waiting.remove(&(number, token));
            ended = since.is_some_and(|since| its.running.remove(&(since, token)));
        });
        self.running -= usize::from(ended);
    }

    /// When one has had its time, while others wait.
    pub fn stuck_at(&self) -> Option<Now> {
        self.next.first()?;
        let (_, Reverse(since), _) = self.busiest.last()?;
        Some(since.after(self.patience))
    }

    /// One that has had its time, while others wait.
    pub fn stuck(&self, now: Now) -> Option<Token> {
        self.stuck_at().filter(|at| *at <= now)?;
        let (_, _, crowd) = self.busiest.last()?;
        let (_, token) = self.crowds.get(crowd)?.running.first()?;
        Some(*token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);
    const CROWD: Crowd = Crowd::Alone(0);

    fn token(number: u64) -> Token {
        Token::new(number as u32, 0)
    }

    #[test]
    fn a_crowd_does_not_keep_out_who_comes_alone() {
        let mut all = Handshakes::new(4, PATIENCE);
        for number in 0..100 {
            let begins = all.begin(CROWD, number, token(number), Now(number));
            assert_eq!(begins, number < 4);
        }
        let alone = Crowd::Alone(1);
        assert!(!all.begin(alone, 100, token(100), Now(100)));
        assert_eq!(all.take_next(), None, "none is over");
        assert_eq!(all.stuck(Now(0)), None);
        let late = Now(0).after(PATIENCE);
        assert_eq!(all.stuck(late), Some(token(0)), "the oldest of the crowd");
        all.end(CROWD, 0, token(0), Some(Now(0)));
        assert_eq!(
            all.take_next(),
            Some(token(100)),
            "before 96 that came first"
        );
        assert!(all.begin(alone, 100, token(100), late));
        // Of the crowd again, although the other one is as late.
        let later = late.after(PATIENCE);
        assert_eq!(all.stuck(later), Some(token(1)));
        all.end(CROWD, 1, token(1), Some(Now(1)));
        assert_eq!(all.take_next(), Some(token(4)));
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let mut all = Handshakes::new(1, PATIENCE);
        assert!(all.begin(CROWD, 0, token(0), Now(0)));
        assert!(!all.begin(CROWD, 1, token(1), Now(0)));
        all.end(CROWD, 1, token(1), None);
        assert_eq!((all.stuck_at(), all.take_next()), (None, None));
        all.end(CROWD, 0, token(0), Some(Now(0)));
        all.end(CROWD, 0, token(0), None);
        assert!(all.crowds.is_empty() && all.running == 0);
        assert!(all.next.is_empty() && all.busiest.is_empty());
    }
}
