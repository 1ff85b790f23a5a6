//! Who gets in: how many connections may arrive at a time, and how many sessions each address may
//! have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_transport::Peer;

use super::priority::{Priority, Reserve};

/// Whom a server lets in, and how far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Most connections at a time that have not greeted yet, apart from the sessions; the workers
    /// have equal shares of it, each at least 1. Default 8,192, as many as sessions: all may come
    /// back at once.
    ///
    /// At the limit a newer connection takes the place of an older one: of the address that has the
    /// most of them, the oldest goes, without a word. So one address can keep out no other,
    /// however fast it connects. The same makes room when the process has no descriptor left.
    pub max_arrivals: usize,
    /// Most TLS handshakes at a time, likewise shared out among the workers. A connection has its
    /// TLS state, some 50 KiB, from its first byte until it has greeted. Default 128.
    ///
    /// At the limit the next ones wait, and have their turns by addresses: next is one of the address
    /// of which the fewest handshakes run. While some wait, a handshake that took a quarter of
    /// [`hello_timeout`](crate::SessionConfig::hello_timeout) is cut, of the address of which the most
    /// run.
    pub max_handshakes: usize,
    /// Most sessions at a time that one address may have. An address of version 6 stands for its
    /// network of 64 bits. Further ones are refused with
    /// [`CloseReason::TooManySessions`](crate::CloseReason::TooManySessions). Default 1,024.
    pub max_sessions_per_address: usize,
    /// Bytes of bodies that may come in at a time from one address, of
    /// [`Settings::body_budget_bytes`](crate::Settings::body_budget_bytes). One body may always come,
    /// whatever its size; others are refused as without memory. Default 64 MiB.
    pub max_body_bytes_per_address: usize,
    /// Whether peers on this machine, by Unix sockets, shared memory or loopback addresses, count
    /// as addresses of their own each, so that no limit for an address concerns them. If not, they
    /// have the addresses that they come from, and all that have none have one together. Default:
    /// they do.
    pub local_is_exempt: bool,
}

impl Admission {
    /// This admission with what `change` does to it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// As whom `peer` counts; `None`: as one of its own.
    #[must_use]
    pub fn network_of(&self, peer: &Peer) -> Option<Network> {
        if self.local_is_exempt && is_local(peer) {
            return None;
        }
        Some(Network::of(peer))
    }

    /// A worker's share of a limit.
    pub(super) fn share(limit: usize, workers: usize) -> usize {
        (limit / workers.max(1)).max(1)
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            max_arrivals: 8192,
            max_handshakes: 128,
            max_sessions_per_address: 1024,
            max_body_bytes_per_address: 64 << 20,
            local_is_exempt: true,
        }
    }
}

/// Whose connections are counted together: see [`Admission::network_of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(NetworkKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum NetworkKind {
    /// All peers without an address.
    Unnamed,
    V4(u32),
    /// The upper half of an address: who has one address of such a network has as many as it likes.
    V6(u64),
}

impl Network {
    pub(super) fn of(peer: &Peer) -> Self {
        // A socket for both versions tells addresses of version 4 in those of version 6.
        Self(
            match peer.tcp().map(|address| address.ip().to_canonical()) {
                None => NetworkKind::Unnamed,
                Some(IpAddr::V4(ip)) => NetworkKind::V4(ip.to_bits()),
                Some(IpAddr::V6(ip)) => NetworkKind::V6((ip.to_bits() >> 64) as u64),
            },
        )
    }
}

/// The places of sessions that a server or client has, in all and for each address.
pub(super) struct Places {
    most: usize,
    reserve: Reserve,
    admission: Admission,
    taken: AtomicUsize,
    by_network: Mutex<HashMap<Network, usize>>,
}

impl Places {
    pub(super) fn new(most: usize, reserve: Reserve, admission: Admission) -> Arc<Self> {
        Arc::new(Self {
            most,
            reserve,
            admission,
            taken: AtomicUsize::new(0),
            by_network: Mutex::default(),
        })
    }

    fn by_network(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.by_network
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a session that this side connects.
    pub(super) fn take(self: &Arc<Self>) -> Result<Place, NoPlace> {
        self.take_below(self.most)
    }

    fn take_below(self: &Arc<Self>, most: usize) -> Result<Place, NoPlace> {
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        let order = Ordering::Relaxed;
        let taken = self.taken.fetch_update(order, order, more);
        taken.map_err(|taken| match taken < self.most {
            true => NoPlace::Kept,
            false => NoPlace::Full,
        })?;
        Ok(Place {
            places: Arc::clone(self),
            network: None,
        })
    }

    /// One for a session with a peer that connected.
    pub(super) fn take_for(
        self: &Arc<Self>,
        peer: &Peer,
        priority: Priority,
    ) -> Result<Place, NoPlace> {
        let mut place = self.take_below(self.reserve.open_to(priority, self.most))?;
        if let Some(network) = self.admission.network_of(peer) {
            let mut by_network = self.by_network();
            let its = by_network.get(&network).copied().unwrap_or(0);
            if its >= self.admission.max_sessions_per_address {
                drop(by_network);
                return Err(NoPlace::OfAddress(its));
            }
            by_network.insert(network, its + 1);
            place.network = Some(network);
        }
        Ok(place)
    }
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All are taken.
    Full,
    /// Those that are left are for higher priorities.
    Kept,
    /// The address has as many as it may, which are so many.
    OfAddress(usize),
}

/// The place of one session; dropped, another one may have it.
pub(super) struct Place {
    places: Arc<Places>,
    network: Option<Network>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(network) = self.network {
            let mut by_network = self.places.by_network();
            if let Some(its) = by_network.get_mut(&network) {
                *its -= 1;
                if *its == 0 {
                    by_network.remove(&network);
                }
            }
        }
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a peer is on this machine.
pub(super) fn is_local(peer: &Peer) -> bool {
    match peer {
        Peer::Unix | Peer::Shm => true,
        Peer::Tcp(address) | Peer::Quic(address) => address.ip().to_canonical().is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::of(&Peer::Tcp(text.parse().unwrap()))
    }

    #[test]
    fn an_address_is_one_whatever_its_port_and_a_network_of_version_6_is_one_address() {
        assert_eq!(network("192.0.2.1:9"), network("192.0.2.1:10"));
        assert_eq!(network("192.0.2.1:9"), network("[::ffff:192.0.2.1]:9"));
        assert_ne!(network("192.0.2.1:9"), network("192.0.2.2:9"));
        assert_eq!(network("[2001:db8::1]:9"), network("[2001:db8::2:3]:9"));
        assert_ne!(network("[2001:db8::1]:9"), network("[2001:db8:0:1::1]:9"));
        assert_eq!(Network::of(&Peer::Unix), Network::of(&Peer::Shm));
    }

    #[test]
    fn peers_of_this_machine_are_exempt_unless_told_otherwise() {
        let exempt = Admission::default();
        let counted = Admission::default().with(|admission| admission.local_is_exempt = false);
        for local in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            let peer = Peer::Tcp(local.parse().unwrap());
            assert_eq!(exempt.network_of(&peer), None, "{local}");
            assert!(counted.network_of(&peer).is_some(), "{local}");
        }
        assert_eq!(exempt.network_of(&Peer::Unix), None);
        assert_eq!(
            counted.network_of(&Peer::Unix),
            Some(Network(NetworkKind::Unnamed))
        );
        let far = Peer::Tcp("192.0.2.1:1".parse().unwrap());
        assert!(exempt.network_of(&far).is_some());
    }

    #[test]
    fn the_last_places_are_for_higher_priorities() {
        let reserve = Reserve::default().with(|reserve| {
            (reserve.from_low, reserve.from_normal) = (50, 25);
        });
        let places = Places::new(4, reserve, Admission::default());
        let take = |priority| places.take_for(&Peer::Unix, priority);
        let _two = [Priority::Low, Priority::High].map(|it| take(it).ok().unwrap());
        assert_eq!(take(Priority::Low).err(), Some(NoPlace::Kept));
        let _third = take(Priority::Normal).ok().unwrap();
        assert_eq!(take(Priority::Normal).err(), Some(NoPlace::Kept));
        let last = take(Priority::High).ok().unwrap();
        let all = [Priority::Low, Priority::Normal, Priority::High];
        assert!(all.iter().all(|it| take(*it).err() == Some(NoPlace::Full)));
        drop(last);
        assert_eq!(take(Priority::Low).err(), Some(NoPlace::Kept));
        assert!(take(Priority::High).is_ok());
    }

    #[test]
    fn a_place_is_free_again_when_it_is_dropped() {
        let admission = Admission::default().with(|admission| {
            admission.max_sessions_per_address = 2;
        });
        let places = Places::new(3, Reserve::NONE, admission);
        let take = |peer: &Peer| places.take_for(peer, Priority::Normal);
        let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
        let [a, other] = ["192.0.2.1:1", "192.0.2.2:1"].map(peer);
        let first = take(&a).ok().unwrap();
        let second = take(&a).ok().unwrap();
        assert_eq!(take(&a).err(), Some(NoPlace::OfAddress(2)));
        let third = take(&other).ok().unwrap();
        assert_eq!(take(&Peer::Unix).err(), Some(NoPlace::Full));
        drop(first);
        let again = take(&a).ok().unwrap();
        drop((second, third, again));
        assert!(places.by_network().is_empty());
        assert_eq!(places.taken.load(Ordering::Relaxed), 0);
    }
}
