//! The subscribers of one thread that have everything that there is, by topic.

use std::collections::BTreeMap;

use embar_transport::Token;

/// Subscribers that wait for more of their topic.
#[derive(Default)]
pub(super) struct WaitingSubscribers {
    topics: BTreeMap<u32, Subscribers>,
    /// How many of the topics are ordered.
    ordered: usize,
}

struct Subscribers {
    tokens: Vec<Token>,
    is_ordered: bool,
}

impl WaitingSubscribers {
    /// Adds a subscriber.
    pub fn add(&mut self, topic: u32, is_ordered: bool, token: Token) {
        let ordered = &mut self.ordered;
        let its = self.topics.entry(topic).or_insert_with(|| {
            *ordered += usize::from(is_ordered);
            Subscribers {
                tokens: Vec::new(),
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
                self.take(topic);
            }
        }
    }

    /// Removes and returns all that wait for a topic.
    pub fn take(&mut self, topic: u32) -> Vec<Token> {
        let Some(its) = self.topics.remove(&topic) else {
            return Vec::new();
        };
        self.ordered -= usize::from(its.is_ordered);
        its.tokens
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
        assert_eq!(waiting.take(2), [token(3)]);
        assert!(!waiting.for_order() && waiting.take(2).is_empty());
        assert_eq!(waiting.topics().collect::<Vec<_>>(), [1]);
    }
}
