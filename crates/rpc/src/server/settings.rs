//! What can be set on a server.

use crate::limits::MAX_IN_FLIGHT;

/// What can be set on a server, for each of its sessions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RouterSettings {
    /// Most calls that one session may have in flight, at least 1. Clients learn it, and have more wait;
    /// a call beyond it fails with [`ResourceExhausted`](crate::Code::ResourceExhausted). Default
    /// 256.
    ///
    /// Their replies wait in memory where the send ring is full, at most one for each of them. No further requests are taken meanwhile.
    pub max_in_flight: u32,
    /// Most bytes of one session's replies that wait for room in its send ring. They count in the [budget](embar_session::Settings::budget) of the
    /// sessions, too: so a peer that reads slowly leaves memory to the others. A call whose reply finds no place fails with
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted). Default 4 MiB.
    pub max_waiting_bytes: usize,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_waiting_bytes: 4 << 20,
        }
    }
}

impl RouterSettings {
    /// The limit that applies.
    pub(super) fn in_flight(&self) -> u32 {
        self.max_in_flight.clamp(1, MAX_IN_FLIGHT)
    }
}
