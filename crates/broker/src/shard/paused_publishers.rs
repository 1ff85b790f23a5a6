//! The publishers of one thread that wait for memory.

use std::collections::VecDeque;

use embar_transport::Token;

use crate::log::Freed;

/// The queues of publishers that wait.
#[derive(Default)]
pub(super) struct PausedPublishers {
    /// Publishers whose batches have begun, and need more staging memory or space in the log. They come first,
    /// because they hold memory.
    pub held: VecDeque<Token>,
    /// Publishers whose batches may not begin.
    pub waiting: VecDeque<Token>,
    /// How many of these [`Node::paused`](crate::node::Node::paused) counts.
    pub reported: usize,
    /// [`Freed`] when the last round tried all of them. `None` if it did not try all.
    pub seen: Option<Freed>,
}

impl PausedPublishers {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.held.len() + self.waiting.len()
    }
}
