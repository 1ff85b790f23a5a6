//! What can be set on a server.

use crate::limits::MAX_IN_FLIGHT;

/// What can be set on a server, for each of its sessions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RouterSettings {
    /// Most calls that one session may have in flight, at least 1. Clients learn it, and have more wait;
    /// a call beyond it fails with [`ResourceExhausted`](crate::Code::ResourceExhausted). Default
    /// 256.
    pub max_in_flight: u32,
    /// Most bytes of replies that wait because the send ring is full; beyond it the session ends.
    /// Default 1 MiB.
    pub max_queued_bytes: usize,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_queued_bytes: 1 << 20,
        }
    }
}

impl RouterSettings {
    /// The limit that applies.
    pub(super) fn in_flight(&self) -> u32 {
        self.max_in_flight.clamp(1, MAX_IN_FLIGHT)
    }
}
