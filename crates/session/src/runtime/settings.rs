//! What a user may set on a server or client.

use std::time::Duration;

use embar_transport::{MemoryBudget, Peer, SocketOptions};

use super::admission::{Admission, is_local};
use super::datagrams::DatagramSettings;
use super::rates::Rates;
use crate::SessionConfig;

/// What can be set on a server or client.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What each session accepts, and how long it waits.
    pub session: SessionConfig,
    /// Size of each session's send ring; a power of two of at least 4096 bytes. Default 256 KiB.
    pub send_ring_bytes: usize,
    /// Size of each session's receive ring; a power of two of at least 4096 bytes. Default
    /// 256 KiB.
    pub recv_ring_bytes: usize,
    /// Most idle rings of each kind that wait for the next session. Default 256.
    pub idle_rings: usize,
    /// Bytes that all sessions may take together: with their rings, also idle ones and those of
    /// which a kept message or a handle still holds a part, and with bodies, from their heads until
    /// the handler has them ([`BodyStore`](crate::BodyStore)). Servers and clients that are given
    /// the same budget share it, and
    /// [`MemoryBudget::try_reserve`](crate::MemoryBudget::try_reserve) counts what a program holds
    /// itself. Without room in it a session is refused
    /// ([`Refusal::OutOfMemory`](crate::Refusal::OutOfMemory)), and a body ends its session
    /// ([`CloseReason::OutOfMemory`](crate::CloseReason::OutOfMemory)) before any of its memory is
    /// taken.
    ///
    /// `None`, the default: enough for the rings of `max_sessions` and `idle_rings`, and for
    /// `body_budget_bytes`.
    pub budget: Option<MemoryBudget>,
    /// Bytes of the budget that bodies may take together that come in, so that what peers announce
    /// leaves the rings theirs. What one address may take of it, [`Admission`] says. `None`, the
    /// default: 256 MiB, or half of a smaller budget.
    pub body_budget_bytes: Option<usize>,
    /// Threads that serve sessions. Default 1.
    pub workers: usize,
    /// Most sessions at a time; the server refuses further peers with
    /// [`CloseReason::TooManySessions`](crate::CloseReason::TooManySessions). Default 8,192.
    /// `usize::MAX` stands for as many as the system carries, at most 258,048.
    ///
    /// The rings of a session take four memory mappings, and Linux gives a process
    /// `vm.max_map_count` of them, by default 65,530: that is room for about 15,600 sessions. The
    /// default takes half of it. Asking for more sessions than the limit has room for is an error
    /// at the start, for each server and client by itself: if several of one process are to be
    /// full at the same time, they share the limit.
    pub max_sessions: usize,
    /// Whom a server lets in, and how far.
    pub admission: Admission,
    /// Which worker serves a connection.
    pub accepting: Accepting,
    /// How fast peers may send. Default: as fast as they like.
    pub rates: Rates,
    /// What a sender does at a full send ring, unless
    /// [`Session::set_on_full`](crate::Session::set_on_full) says otherwise.
    pub on_full: OnFull,
    /// Most bytes of bodies that wait in one session to be sent; one may always wait. Default
    /// 64 MiB.
    pub max_queued_body_bytes: usize,
    /// How datagrams wait, where a session has any.
    pub datagrams: DatagramSettings,
    /// How long a worker polls before it sleeps. Zero, the default: it sleeps at once, and an idle
    /// process costs nothing.
    pub spin: Duration,
    /// Which peers get the figures of this process when they ask. Default: none, and no answer.
    pub status: StatusPolicy,
    /// Options of TCP sockets. With [`body_lanes`](SessionConfig::body_lanes), `unsent_bytes` is two
    /// chunks unless it is set. Of sessions by QUIC only `unacknowledged_timeout` counts.
    pub sockets: SocketOptions,
}

impl Settings {
    /// These settings with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Bytes of bodies in the budget of who asked for none.
const BODY_BYTES: usize = 256 << 20;

impl Settings {
    /// The budget, or that of who asked for none.
    pub(super) fn budget_in_use(&self) -> MemoryBudget {
        self.budget.clone().unwrap_or_else(|| {
            let rings = self.send_ring_bytes.saturating_add(self.recv_ring_bytes);
            let most = self.max_sessions.saturating_add(self.idle_rings);
            let bodies = self.body_budget_bytes.unwrap_or(BODY_BYTES);
            MemoryBudget::new(rings.saturating_mul(most).saturating_add(bodies))
        })
    }
}

impl Settings {
    /// The options of sockets. A message overtakes what lanes hold, and nothing that the kernel has:
    /// with lanes, the kernel has little that is not on its way.
    pub(super) fn sockets_in_use(&self) -> SocketOptions {
        let mut sockets = self.sockets.clone();
        if self.session.body_lanes > 0 {
            let chunks = u32::try_from(self.session.chunk_bytes).unwrap_or(u32::MAX);
            sockets.unsent_bytes.get_or_insert(chunks.saturating_mul(2));
        }
        sockets
    }

    /// What bodies that come in may take of the budget.
    pub(super) fn body_limit(&self) -> usize {
        let half = self.budget.as_ref().map(|budget| budget.limit() / 2);
        let usual = half.map_or(BODY_BYTES, |half| half.min(BODY_BYTES));
        self.body_budget_bytes.unwrap_or(usual)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session: SessionConfig::default(),
            send_ring_bytes: 256 << 10,
            recv_ring_bytes: 256 << 10,
            idle_rings: 256,
            budget: None,
            body_budget_bytes: None,
            workers: 1,
            max_sessions: 8192,
            admission: Admission::default(),
            accepting: Accepting::default(),
            rates: Rates::default(),
            on_full: OnFull::default(),
            max_queued_body_bytes: 64 << 20,
            datagrams: DatagramSettings::default(),
            spin: Duration::ZERO,
            status: StatusPolicy::default(),
            sockets: SocketOptions::default(),
        }
    }
}

/// Which worker serves a connection that a server accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accepting {
    /// One worker accepts and deals them out in turn, so all have as many. The default.
    #[default]
    Dealt,
    /// Each worker has a listener of its own for each TCP address (`SO_REUSEPORT`) and serves what comes by it. The kernel deals out by a
    /// hash of the addresses and ports. For servers that more connections come to than one thread accepts; where few come, some workers may
    /// have none and others many.
    ///
    /// Other programs of this user can listen on the address, too, if they ask for that. Who waits in the backlog of a worker that is
    /// stuck waits there, though others have time.
    ///
    /// Unix sockets have one listener, and what comes by that is dealt out. The same holds for an address with fewer listeners that were
    /// handed in than there are workers.
    EachWorker,
}

/// What a sender does when its message finds no room in the session's send ring. Handlers and async
/// code, which must not wait, get [`SendError::Full`](crate::SendError::Full) where the policy says
/// `Wait`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// The caller waits for room; when `timeout` is over it gets
    /// [`SendError::Full`](crate::SendError::Full). The time counts for all senders together, from
    /// when the first of them found no room until the peer has taken half of what waited then. So a
    /// peer that does not read costs it once; after that senders get `Full` at once.
    ///
    /// For threads that do nothing but feed one session. Who sends to several takes one of the
    /// others.
    Wait {
        /// The longest wait for one stall of the peer.
        timeout: Duration,
    },
    /// The caller gets [`SendError::Full`](crate::SendError::Full) at once. The default.
    #[default]
    Fail,
    /// The session closes at once with [`CloseReason::Full`](crate::CloseReason::Full), and the
    /// caller gets [`SendError::Full`](crate::SendError::Full): for peers that must keep up.
    Close,
}

/// Which peers get the figures of this process when they ask for them. The others get
/// [`StatusAnswer::Refused`](super::StatusAnswer::Refused), unless it is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusPolicy {
    /// None, and nobody gets an answer: what is off costs nothing, and says nothing.
    #[default]
    Off,
    /// Those on this machine: by Unix sockets, or from a loopback address.
    Local,
    /// All. The figures show how many sessions there are and how busy they are.
    Everyone,
}

impl StatusPolicy {
    pub(super) fn allows(self, peer: &Peer) -> bool {
        match self {
            Self::Off => false,
            Self::Local => is_local(peer),
            Self::Everyone => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_lanes_the_kernel_takes_two_chunks_unless_told_otherwise() {
        let settings = |lanes: u8, unsent: Option<u32>| {
            Settings::default().with(|settings| {
                settings.session.body_lanes = lanes;
                settings.sockets.unsent_bytes = unsent;
            })
        };
        let unsent = |settings: Settings| settings.sockets_in_use().unsent_bytes;
        assert_eq!(unsent(settings(0, None)), None);
        assert_eq!(unsent(settings(1, None)), Some(128 << 10));
        assert_eq!(unsent(settings(1, Some(9))), Some(9));
    }

    #[test]
    fn bodies_have_half_of_a_small_budget_unless_told_otherwise() {
        let limit = |budget: Option<usize>, bodies: Option<usize>| {
            let settings = Settings::default().with(|settings| {
                settings.budget = budget.map(MemoryBudget::new);
                settings.body_budget_bytes = bodies;
            });
            settings.body_limit()
        };
        assert_eq!(limit(None, None), BODY_BYTES);
        assert_eq!(limit(Some(1 << 20), None), 1 << 19);
        assert_eq!(limit(Some(1 << 30), None), BODY_BYTES);
        assert_eq!(limit(Some(1 << 20), Some(9)), 9);
    }

    #[test]
    fn local_is_this_machine() {
        let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
        for local in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(StatusPolicy::Local.allows(&peer(local)), "{local}");
        }
        assert!(StatusPolicy::Local.allows(&Peer::Unix));
        for far in ["10.0.0.1:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(!StatusPolicy::Local.allows(&peer(far)), "{far}");
        }
        assert!(!StatusPolicy::default().allows(&Peer::Unix));
    }
}
