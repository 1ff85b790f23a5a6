//! What can be set, with every limit and its unit.

use std::time::Duration;

use embar_session::{MemoryBudget, OnFull};

use crate::wire::Keeps;

/// How an end keeps what it sent until that is acknowledged.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replay {
    /// Most messages of one session that wait to be acknowledged. Default 4,096.
    pub max_messages: u32,
    /// Most bytes of them, with [`MESSAGE_HEADER_BYTES`](crate::core::MESSAGE_HEADER_BYTES) for each. Default 256 KiB. A
    /// session's buffer takes memory as it is needed, up to twice this and 16 KiB.
    pub max_bytes: usize,
    /// What a sender does when the buffer is full. [`OnFull::Close`] ends the session, also one without a connection.
    /// Handlers never wait. Default [`OnFull::Fail`].
    pub on_full: OnFull,
    /// The buffers count in this budget; one with nothing left is as a full buffer. `None`, the default: in none.
    pub budget: Option<MemoryBudget>,
    /// How long a message that was handled may wait until its acknowledgement falls due, at most. Default 20 ms. Sooner, at
    /// the latest after 64 messages, 16 KiB, or a quarter of what the peer keeps. What was sent before goes before it.
    pub ack_delay: Duration,
    /// How long a polite end may wait until all is acknowledged, over as many connections as it takes. Default 10 s.
    pub close_within: Duration,
}

impl Replay {
    /// These settings with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn keeps(&self) -> Keeps {
        Keeps {
            messages: self.max_messages,
            bytes: u32::try_from(self.max_bytes).unwrap_or(u32::MAX),
        }
    }
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            max_messages: 4096,
            max_bytes: 256 << 10,
            on_full: OnFull::Fail,
            budget: None,
            ack_delay: Duration::from_millis(20),
            close_within: Duration::from_secs(10),
        }
    }
}

/// How a server keeps sessions that lost their connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeeperSettings {
    /// For what each session sends.
    pub replay: Replay,
    /// How long a session is kept without a connection. Default 60 s.
    pub resume_window: Duration,
    /// Most sessions without a connection at a time. Beyond it, of the address that has the most of them, the one goes
    /// with [`End::Evicted`](crate::End::Evicted) that has been so for the longest time: an address that opens many
    /// sessions and leaves them displaces its own. A network of 64 bits is one address of version 6; each peer on this
    /// machine is one. Default 8,192.
    pub max_suspended: usize,
    /// Most bytes of messages, with their headers, that they keep together. What is sent to a session without a connection
    /// beyond this is refused as at a full buffer. When one loses its connection with more than there is room for, of the
    /// address whose sessions keep the most bytes, the oldest goes that keeps some. Default 256 MiB.
    pub max_suspended_bytes: usize,
}

impl KeeperSettings {
    /// These settings with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            replay: Replay::default(),
            resume_window: Duration::from_secs(60),
            max_suspended: 8192,
            max_suspended_bytes: 256 << 20,
        }
    }
}

/// What a client does with messages that were sent and not acknowledged when the server knows nothing of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// They are dropped: each is handled at most once. The default.
    #[default]
    Drop,
    /// They are sent again: each is handled at least once, unless the session ends.
    SendAgain,
}

/// How a client connects again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectorSettings {
    /// For what each session sends.
    pub replay: Replay,
    /// What becomes of messages in doubt at a restart.
    pub in_doubt: InDoubt,
    /// Longest pause before the first attempt; it is random. Each further one is twice as long, and random between half of
    /// that and all of it. Default 50 ms.
    pub first_pause: Duration,
    /// Longest pause. A connection that lasted for less counts as an attempt: pauses grow on after it. Default 5 s.
    pub max_pause: Duration,
    /// How long only the server that has the session's state is tried before others are. Default 5 s.
    pub stay: Duration,
    /// How long a session may be without a connection until it ends with [`End::GaveUp`](crate::End::GaveUp). It counts from the
    /// end of the wait that a server asks for with its goodbye; no wait is longer than this. Default 5 minutes.
    pub give_up_after: Duration,
}

impl ConnectorSettings {
    /// These settings with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for ConnectorSettings {
    fn default() -> Self {
        Self {
            replay: Replay::default(),
            in_doubt: InDoubt::default(),
            first_pause: Duration::from_millis(50),
            max_pause: Duration::from_secs(5),
            stay: Duration::from_secs(5),
            give_up_after: Duration::from_secs(300),
        }
    }
}
