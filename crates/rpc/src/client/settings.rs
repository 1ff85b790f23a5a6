//! What can be set on a channel, and what it tells of itself.

use std::time::Duration;

use crate::limits::MAX_IN_FLIGHT;
use crate::protocol::Credit;

/// What can be set on a channel.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChannelSettings {
    /// Most calls in flight, at least 1; the server may allow fewer. Their slots are made with the
    /// channel. Default 256.
    pub max_in_flight: u32,
    /// Most calls that wait, in their order, until one of those in flight has ended; one more fails
    /// with [`ResourceExhausted`](crate::Code::ResourceExhausted). 0: none waits. Default 4096.
    pub max_waiting: usize,
    /// How long each call may take that does not say otherwise. Default: no limit.
    pub timeout: Option<Duration>,
    /// Items of one stream that may be under way, or wait to be taken; at least 1. Default 64.
    pub stream_items: u32,
    /// Bytes of them, before the last. Default 32 KiB.
    pub stream_bytes: u32,
}

impl Default for ChannelSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_waiting: 4096,
            timeout: None,
            stream_items: 64,
            stream_bytes: 32 << 10,
        }
    }
}

impl ChannelSettings {
    /// These settings with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.max_in_flight.clamp(1, MAX_IN_FLIGHT)
    }

    pub(super) fn window(&self) -> Credit {
        Credit {
            items: self.stream_items.max(1),
            bytes: self.stream_bytes.max(1),
        }
    }
}

/// What a channel did so far, and how it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Requests that were sent.
    pub calls: u64,
    /// Calls that the server has not ended, or whose end was not taken.
    pub in_flight: u64,
    /// Most calls in flight, of what this end and the server allow.
    pub max_in_flight: u64,
    /// Calls that wait for one in flight to end.
    pub waiting: u64,
    /// Frames for calls that there are not. A server that sends them has a bug.
    pub strays: u64,
}
