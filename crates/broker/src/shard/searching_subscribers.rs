//! The subscribers of one thread that look for batches of their share, and have not come to one or to the end.
//!
//! Whoever asks for a share that hardly any batch is in has a broker look through the whole order, for one small
//! request. So all such subscribers of a thread have one allowance for each round, and take turns.
//!
//! Invariants
//! - In a round the log passes over at most [`PASSED_OVER_MAX`] batches for all subscribers together.
//! - A subscriber has one place in the queue, and passes over at most [`TURN`] batches before it is the last one again.

use std::collections::VecDeque;

use embar_transport::Token;

/// Batches that one thread passes over in one round, at most: others want the thread and the log, too.
pub const PASSED_OVER_MAX: usize = 512;
/// Of these, how many a subscriber passes over before the next one has its turn. One that gets every third batch finds
/// as many as it can be sent at once while they are large.
pub const TURN: usize = 64;

/// Subscribers that look for batches of their share.
#[derive(Default)]
pub(super) struct SearchingSubscribers {
    queue: VecDeque<Token>,
    /// What is left of the allowance of this round.
    left: usize,
}

impl SearchingSubscribers {
    /// A new round begins.
    pub fn begin_round(&mut self) {
        self.left = PASSED_OVER_MAX;
    }

    /// How many batches a subscriber may pass over now.
    pub fn allowance(&self) -> usize {
        self.left.min(TURN)
    }

    /// So many of them were passed over.
    pub fn passed_over(&mut self, batches: usize) {
        self.left -= batches;
    }

    /// Adds a subscriber, which is not in the queue. This takes one from the allowance, so that every round ends.
    pub fn add(&mut self, token: Token) {
        self.left = self.left.saturating_sub(1);
        self.queue.push_back(token);
    }

    /// Removes a subscriber whose connection is over.
    pub fn remove(&mut self, token: Token) {
        self.queue.retain(|searching| *searching != token);
    }

    /// Removes the one whose turn it is, if this round has anything left for it.
    pub fn next(&mut self) -> Option<Token> {
        if self.left == 0 {
            return None;
        }
        self.queue.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_take_turns_until_the_allowance_of_a_round_is_spent() {
        let token = Token::from_bits;
        let mut searching = SearchingSubscribers::default();
        (0..3).for_each(|number| searching.add(token(number)));
        assert_eq!(searching.next(), None, "no round has begun");
        let (mut turns, mut passed_over) = (Vec::new(), 0);
        for _ in 0..2 {
            searching.begin_round();
            while let Some(it) = searching.next() {
                let batches = searching.allowance();
                assert!(batches <= TURN);
                searching.passed_over(batches);
                passed_over += batches;
                turns.push(it);
                searching.add(it);
            }
            assert_eq!(searching.allowance(), 0);
        }
        assert!(passed_over <= 2 * PASSED_OVER_MAX, "{passed_over}");
        let expected = (0..3).cycle().map(token).take(turns.len());
        assert_eq!(turns, expected.collect::<Vec<_>>());
        assert!(turns.len() > 8, "{turns:?}");

        let gone = turns[turns.len() - 1];
        searching.remove(gone);
        searching.begin_round();
        assert_ne!(searching.next(), Some(gone));
        assert_ne!(searching.next(), Some(gone));
        assert!(searching.is_empty());
    }

    #[test]
    fn a_round_ends_though_nothing_is_passed_over() {
        let mut searching = SearchingSubscribers::default();
        searching.add(Token::from_bits(1));
        searching.begin_round();
        let mut turns = 0;
        while let Some(it) = searching.next() {
            searching.add(it);
            turns += 1;
        }
        assert_eq!(turns, PASSED_OVER_MAX);
    }
}
