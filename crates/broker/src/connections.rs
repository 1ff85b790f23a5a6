//! How many connections each peer may have.
//!
//! Invariants
//! - No peer but this machine has more than half of what the others leave of the limit. The last few places are
//!   for the machines of the cluster. So whatever one host does, other hosts and administrators get in.
//! - While the broker sends a refused connection the reason, that connection counts against a limit of its own, for
//!   refused ones. When this limit is reached, the broker closes the next one without a reason.

use embar_memory::canary::{Canary, injected};

use crate::peers::{PeerId, Shares};

/// This part of the limit is for the cluster's own machines...
const KEPT_PART: u64 = 8;
/// ...but no more connections than this: to join, or to ask for the status, takes a moment.
const KEPT_MAX: u64 = 16;
/// Refused connections that get their reason at the same time, at most.
const REFUSED_MAX: u64 = 64;

/// As what a connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It is served.
    Served,
    /// It gets the reason why it is not served.
    Refused,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Its peer has as many as it may, which are so many.
    Peer(u64),
    /// All peers together have.
    All,
}

/// The connections of one broker, by kind and by peer.
pub(crate) struct Connections {
    served: Held,
    refused: Held,
}

/// Connections of one kind.
struct Held {
    limit: u64,
    count: u64,
    of: Shares,
}

impl Connections {
    pub fn new(limit: usize) -> Self {
        Self {
            served: Held::new(limit as u64),
            refused: Held::new(REFUSED_MAX),
        }
    }

    /// How many there are, of both kinds.
    pub fn count(&self) -> usize {
        (self.served.count + self.refused.count) as usize
    }

    /// Counts a connection to serve. `is_ours` says whether its peer is a machine of the cluster.
    pub fn serve(&mut self, peer: PeerId, is_ours: impl FnOnce() -> bool) -> Result<(), Full> {
        let held = &self.served;
        if let Some(full) = held.full_for(peer) {
            return Err(full);
        }
        let kept = (held.limit / KEPT_PART).min(KEPT_MAX);
        if held.count >= held.limit - kept && peer != PeerId::Here && !is_ours() {
            return Err(Full::All);
        }
        self.served.take(peer);
        Ok(())
    }

    /// Counts a connection that gets the reason why it is refused. False if there are too many of these.
    pub fn refuse(&mut self, peer: PeerId) -> bool {
        let has_room = self.refused.full_for(peer).is_none();
        if has_room {
            self.refused.take(peer);
        }
        has_room
    }

    /// Counts out a connection that is over.
    pub fn leave(&mut self, peer: PeerId, counted: Counted) {
        match counted {
            Counted::Served => self.served.give_back(peer),
            Counted::Refused => self.refused.give_back(peer),
        }
    }
}

impl Held {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            count: 0,
            of: Shares::default(),
        }
    }

    fn full_for(&self, peer: PeerId) -> Option<Full> {
        if self.count >= self.limit {
            return Some(Full::All);
        }
        let exceeds = self.of.exceeds(peer, 1, self.count, self.limit);
        let exceeds = exceeds && !injected(Canary::ConnectionShare);
        exceeds.then(|| Full::Peer(self.of.of(peer)))
    }

    fn take(&mut self, peer: PeerId) {
        self.count += 1;
        self.of.add(peer, 1);
    }

    fn give_back(&mut self, peer: PeerId) {
        self.count -= 1;
        self.of.give_back(peer, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes_all(connections: &mut Connections, peer: PeerId) -> (u64, Full) {
        let mut count = 0;
        loop {
            match connections.serve(peer, || false) {
                Ok(()) => count += 1,
                Err(full) => return (count, full),
            }
        }
    }

    #[test]
    fn one_host_gets_half_and_all_leave_places_for_the_cluster() {
        let mut connections = Connections::new(4096);
        let (count, full) = takes_all(&mut connections, PeerId::V4(1));
        assert_eq!((count, full), (2048, Full::Peer(2048)));
        let (count, _) = takes_all(&mut connections, PeerId::V6(1));
        assert_eq!(count, 1024);
        for network in 2..100 {
            takes_all(&mut connections, PeerId::V6(network));
        }
        let kept = 4096 - connections.served.count;
        assert_eq!(kept, KEPT_MAX);
        let (stranger, member) = (PeerId::V4(2), PeerId::V4(3));
        assert_eq!(connections.serve(stranger, || false), Err(Full::All));
        assert_eq!(connections.serve(member, || true), Ok(()));
        assert_eq!(takes_all(&mut connections, PeerId::Here).0, kept - 1);
        assert_eq!(connections.serve(member, || true), Err(Full::All));
        connections.leave(PeerId::V4(1), Counted::Served);
        assert_eq!(connections.serve(PeerId::Here, || false), Ok(()));
    }

    #[test]
    fn one_place_is_anybodys() {
        let mut connections = Connections::new(1);
        assert_eq!(takes_all(&mut connections, PeerId::V4(1)), (1, Full::All));
    }

    #[test]
    fn refused_connections_take_no_places_and_most_get_a_reason() {
        let mut connections = Connections::new(8);
        let [a, b] = [1, 2].map(PeerId::V4);
        takes_all(&mut connections, a);
        let served = connections.served.count;
        let told = (0..1000).filter(|_| connections.refuse(a)).count() as u64;
        assert_eq!(told, REFUSED_MAX / 2);
        assert!(connections.refuse(b));
        assert_eq!(connections.served.count, served);
        connections.leave(a, Counted::Refused);
        assert!(connections.refuse(a) && connections.serve(b, || false).is_ok());
    }
}
