//! How a consumer of a group reads.

use std::time::Duration;

/// How a [`Consumer`](super::Consumer) reads, claims, and gives up.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    pub(super) create_from: Option<String>,
    pub(super) count: usize,
    pub(super) block: Duration,
    pub(super) claim_idle: Option<Duration>,
    pub(super) max_held: usize,
    pub(super) dead: Option<(u64, DeadLetters)>,
}

/// What becomes of an entry that was delivered too often.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetters {
    /// The consumer logs and acknowledges it. It stays in the stream.
    Acknowledge,
    /// The consumer adds it to the stream of this key, and then acknowledges it. Before its own fields there it has
    /// `dead.stream`, `dead.group`, `dead.id` and `dead.deliveries`. It may be there twice, if an answer of a server was
    /// lost.
    MoveTo(Vec<u8>),
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            create_from: None,
            count: 64,
            block: Duration::from_secs(5),
            claim_idle: None,
            max_held: 1024,
            dead: None,
        }
    }
}

impl ConsumerOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the group, and the stream, if they are missing: the group begins after the entry with this id, `0` for all
    /// there are, `$` for those to come. By default a missing group is an error.
    #[must_use]
    pub fn create_from(mut self, id: impl Into<String>) -> Self {
        self.create_from = Some(id.into());
        self
    }

    /// Most entries of one reading, at least 1. By default 64.
    #[must_use]
    pub fn count(mut self, entries: usize) -> Self {
        self.count = entries.max(1);
        self
    }

    /// How long the server waits for an entry, each time. By default 5 s.
    #[must_use]
    pub fn block(mut self, wait: Duration) -> Self {
        self.block = wait;
        self
    }

    /// Claims what any consumer of the group was given so long ago and has not acknowledged: it has died, or lost it. Longer
    /// than a consumer takes for an entry, or others get what it works on. The consumer looks after half of this time, or a
    /// little later. By default never.
    #[must_use]
    pub fn claim_idle(mut self, idle: Duration) -> Self {
        self.claim_idle = Some(idle);
        self
    }

    /// How many deliveries there may be that the program has neither acknowledged nor dropped, at least 1: the consumer
    /// reads no more until there are fewer. Those read ahead count, and acknowledgements that are not out. By default 1024.
    #[must_use]
    pub fn max_held(mut self, deliveries: usize) -> Self {
        self.max_held = deliveries.max(1);
        self
    }

    /// An entry that was delivered so often, to any consumer, and is not acknowledged, is not delivered again, but as
    /// [`DeadLetters`] says. By default there is no limit.
    #[must_use]
    pub fn max_deliveries(mut self, deliveries: u64, then: DeadLetters) -> Self {
        self.dead = Some((deliveries.max(1), then));
        self
    }
}
