//! The subscribers of one thread that have everything that there is, by topic.

use std::collections::BTreeMap;

use embar_transport::Token;

/// Empty lists that are kept, at most.
const SPARE_MAX: usize = 64;
/// Longer lists are not kept.
const SPARE_TOKENS_MAX: usize = 1024;

/// Subscribers that wait for more of their topic.
#[derive(Default)]
pub(super) struct WaitingSubscribers {
    topics: BTreeMap<u32, Subscribers>,
    /// How many of the topics are ordered.
    ordered: usize,
    /// Empty lists for topics to come: a topic is removed each time that something comes for its subscribers.
    spare: Vec<Vec<Token>>,
}

struct Subscribers {
    tokens: Vec<Token>,
    is_ordered: bool,
}

impl WaitingSubscribers {
    /// Adds a subscriber.
    pub fn add(&mut self, topic: u32, is_ordered: bool, token: Token) {
        let (ordered, spare) = (&mut self.ordered, &mut self.spare);
        let its = self.topics.entry(topic).or_insert_with(|| {
            *ordered += usize::from(is_ordered);
            Subscribers {
                tokens: spare.pop().unwrap_or_default(),
                is_ordered,
            }
        });
        its.tokens.push(token);
    }

    /// Removes a subscriber whose connection is over.
    pub fn remove(&mut self, topic: u32, token: Token) {
        if let Some(its) = self.topics.get_mut(&topic) {
            its.tokens.retain(|waiting| *waiting != token);
            if its.tokens.is_empty() {
                self.take(topic, |_| ());
            }
        }
    }

    /// Removes all that wait for a topic, and gives each to `take`.
    pub fn take(&mut self, topic: u32, take: impl FnMut(Token)) {
        let Some(mut its) = self.topics.remove(&topic) else {
            return;
        };
        self.ordered -= usize::from(its.is_ordered);
        its.tokens.drain(..).for_each(take);
        if self.spare.len() < SPARE_MAX && its.tokens.capacity() <= SPARE_TOKENS_MAX {
            self.spare.push(its.tokens);
        }
    }

    /// Whether a subscriber waits for an ordered topic.
    pub fn for_order(&self) -> bool {
        self.ordered > 0
    }

    /// The topics that subscribers wait for.
    pub fn topics(&self) -> impl Iterator<Item = u32> {
        self.topics.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_whether_an_ordered_topic_is_waited_for() {
        let token = Token::from_bits;
        let mut waiting = WaitingSubscribers::default();
        waiting.add(1, false, token(1));
        assert!(!waiting.for_order());
        waiting.add(2, true, token(2));
        waiting.add(2, true, token(3));
        waiting.remove(2, token(2));
        assert!(waiting.for_order());
        waiting.remove(2, token(3));
        assert!(!waiting.for_order());
        waiting.add(2, true, token(3));
        let mut taken = Vec::new();
        waiting.take(2, |it| taken.push(it));
        waiting.take(2, |it| panic!("{it:?} was taken"));
        assert!(!waiting.for_order());
        assert_eq!(taken, [token(3)]);
        assert_eq!(waiting.topics().collect::<Vec<_>>(), [1]);
    }
}
