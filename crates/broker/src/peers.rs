//! Who counts as one peer, and what part it may have of what peers share: memory for batches,
//! connections, the places of sessions.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// One peer, whatever its ports and however many connections it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerId {
    /// This machine: all that comes over loopback, or by a Unix socket.
    Here,
    /// An address of version 4.
    V4(u32),
    /// The network of an address of version 6, its upper 64 bits, as a host has as many addresses there
    /// as it likes.
    V6(u64),
}

impl PeerId {
    /// Who is at the other end of a connection, which has no address if it is a Unix socket's.
    pub fn of(address: Option<SocketAddr>) -> Self {
        // A socket for both versions tells addresses of version 4 in those of version 6.
        match address.map(|it| it.ip().to_canonical()) {
            None => Self::Here,
            Some(ip) if ip.is_loopback() => Self::Here,
            Some(IpAddr::V4(ip)) => Self::V4(ip.to_bits()),
            Some(IpAddr::V6(ip)) => Self::V6((ip.to_bits() >> 64) as u64),
        }
    }

    /// Its number for the sequencer; 0 for this machine. Two networks may have the same one: then they
    /// share what one has.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Here => 0,
            Self::V4(ip) => ip,
            Self::V6(network) => {
                let mixed = (network.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
                mixed.max(1)
            }
        }
    }
}

/// What each peer has of something that all of them share.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Of those that have any. This machine has no share.
    of: BTreeMap<PeerId, u64>,
}

impl Shares {
    pub fn add(&mut self, peer: PeerId, more: u64) {
        if peer != PeerId::Here {
            *self.of.entry(peer).or_default() += more;
        }
    }

    pub fn give_back(&mut self, peer: PeerId, less: u64) {
        if let Some(its) = self.of.get_mut(&peer) {
            *its -= less;
            if *its == 0 {
                self.of.remove(&peer);
            }
        }
    }

    /// What a peer has.
    pub fn of(&self, peer: PeerId) -> u64 {
        self.of.get(&peer).copied().unwrap_or(0)
    }

    /// Whether a peer would have more than half of what the others leave of a limit. All together hold
    /// `held`. This machine may have all.
    pub fn exceeds(&self, peer: PeerId, more: u64, held: u64, limit: u64) -> bool {
        let its = self.of(peer);
        let left = limit.saturating_sub(held - its);
        peer != PeerId::Here && its + more > left.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_peer_whatever_its_port_and_so_is_this_machine() {
        let peer = |text: &str| PeerId::of(Some(text.parse().expect("an address")));
        for here in [
            "127.0.0.1:9",
            "127.9.9.9:9",
            "[::1]:9",
            "[::ffff:127.0.0.1]:9",
        ] {
            assert_eq!(peer(here), PeerId::Here, "{here}");
        }
        assert_eq!(PeerId::of(None), PeerId::Here);
        assert_eq!(peer("192.0.2.1:9"), peer("192.0.2.1:10"));
        assert_eq!(peer("192.0.2.1:9"), peer("[::ffff:192.0.2.1]:9"));
        assert_ne!(peer("192.0.2.1:9"), peer("192.0.2.2:9"));
        assert_eq!(peer("[2001:db8::1]:9"), peer("[2001:db8::2]:9"));
        assert_ne!(peer("[2001:db8::1]:9"), peer("[2001:db8:0:1::1]:9"));
    }

    #[test]
    fn no_other_machine_has_the_number_of_this_one() {
        assert_eq!(PeerId::Here.number(), 0);
        assert_ne!(PeerId::V6(0).number(), 0);
        assert_ne!(PeerId::V6(1).number(), PeerId::V6(2).number());
    }

    #[test]
    fn each_peer_takes_half_of_what_the_others_leave() {
        let mut shares = Shares::default();
        let [a, b] = [1, 2].map(PeerId::V4);
        let mut held = 0;
        for (peer, most) in [(a, 4), (b, 2)] {
            while !shares.exceeds(peer, 1, held, 8) {
                shares.add(peer, 1);
                held += 1;
            }
            assert_eq!(shares.of(peer), most);
        }
        assert!(!shares.exceeds(PeerId::Here, 8, held, 8));
        shares.give_back(a, 4);
        assert!(!shares.exceeds(b, 2, held - 4, 8), "there is more for it");
        shares.give_back(b, 2);
        assert!(shares.of.is_empty());
    }
}
