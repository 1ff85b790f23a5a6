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
    /// How many of the topics follow the sequencing process.
    following: usize,
    /// Empty lists for topics to come: a topic is removed each time that something comes for its subscribers.
    spare: Vec<Vec<Token>>,
}

struct Subscribers {
    tokens: Vec<Token>,
    follows: bool,
}

impl WaitingSubscribers {
    /// Adds a subscriber. `follows` says that it is the sequencing process that has news of the topic: it is ordered, or on disks.
    pub fn add(&mut self, topic: u32, follows: bool, token: Token) {
        let (following, spare) = (&mut self.following, &mut self.spare);
        let its = self.topics.entry(topic).or_insert_with(|| {
            *following += usize::from(follows);
            Subscribers {
                tokens: spare.pop().unwrap_or_default(),
                follows,
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
        self.following -= usize::from(its.follows);
        its.tokens.drain(..).for_each(take);
        if self.spare.len() < SPARE_MAX && its.tokens.capacity() <= SPARE_TOKENS_MAX {
            self.spare.push(its.tokens);
        }
    }

    /// Whether a subscriber waits for a topic of which the sequencing process has news.
    pub fn for_sequencer(&self) -> bool {
        self.following > 0
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
    fn it_knows_whether_the_sequencing_process_is_waited_for() {
        let token = Token::from_bits;
        let mut waiting = WaitingSubscribers::default();
        waiting.add(1, false, token(1));
        assert!(!waiting.for_sequencer());
        waiting.add(2, true, token(2));
        waiting.add(2, true, token(3));
        waiting.remove(2, token(2));
        assert!(waiting.for_sequencer());
        waiting.remove(2, token(3));
        assert!(!waiting.for_sequencer());
        waiting.add(2, true, token(3));
        let mut taken = Vec::new();
        waiting.take(2, |it| taken.push(it));
        waiting.take(2, |it| panic!("{it:?} was taken"));
        assert!(!waiting.for_sequencer());
        assert_eq!(taken, [token(3)]);
        assert_eq!(waiting.topics().collect::<Vec<_>>(), [1]);
    }
}
