//! Sessions without a connection, in the order in which they are to go when there are too many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::net::IpAddr;

use embar_session::Peer;

/// Whose session it is, as far as the number of them goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// That of a peer on this machine, which is one of its own: this session's.
    Own(u64),
    V4(u32),
    /// The upper half of an address: who has one address of such a network has as many as it likes.
    V6(u64),
}

impl Whose {
    pub(crate) fn of(peer: &Peer, id: u64) -> Self {
        // A socket for both versions tells addresses of version 4 in those of version 6.
        match peer.tcp().map(|address| address.ip().to_canonical()) {
            Some(ip) if ip.is_loopback() => Self::Own(id),
            Some(IpAddr::V4(ip)) => Self::V4(ip.to_bits()),
            Some(IpAddr::V6(ip)) => Self::V6((ip.to_bits() >> 64) as u64),
            None => Self::Own(id),
        }
    }
}

/// How many an address has, and the place of its oldest; the last in this order gives one up.
type Standing = (usize, Reverse<u64>, Whose);

/// The place, the id and the bytes of a session that holds some.
type Held = (u64, u64, usize);

/// The bytes that an address holds, the place of the oldest that holds some, and all that do, the oldest last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Holder(usize, Reverse<u64>, Vec<Held>);

impl Holder {
    /// None: it holds nothing.
    fn of(sum: usize, its: Vec<Held>) -> Option<Self> {
        let (oldest, _, _) = its.last()?;
        Some(Self(sum, Reverse(*oldest), its))
    }
}

#[derive(Default)]
pub(crate) struct Waiting {
    next_place: u64,
    len: usize,
    /// Ids by their places, which rise with time.
    of: HashMap<Whose, BTreeMap<u64, u64>>,
    standings: BTreeSet<Standing>,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn standing(&self, whose: Whose) -> Option<Standing> {
        let its = self.of.get(&whose)?;
        let (oldest, _) = its.first_key_value()?;
        Some((its.len(), Reverse(*oldest), whose))
    }

    /// Changes what an address has.
    fn change(&mut self, whose: Whose, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        if let Some(before) = self.standing(whose) {
            self.standings.remove(&before);
        }
        let its = self.of.entry(whose).or_default();
        let before = its.len();
        change(its);
        self.len = self.len - before + its.len();
        match self.standing(whose) {
            Some(after) => {
                self.standings.insert(after);
            }
            None => {
                self.of.remove(&whose);
            }
        }
    }

    /// Returns its place.
    pub(crate) fn enter(&mut self, id: u64, whose: Whose) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.change(whose, |its| {
            its.insert(place, id);
        });
        place
    }

    pub(crate) fn leave(&mut self, place: u64, whose: Whose) {
        self.change(whose, |its| {
            its.remove(&place);
        });
    }

    /// As [`Waiting::first_to_go`], where bytes are too many: of the address whose sessions hold the most, the oldest that
    /// holds some, again and again until `excess` bytes are gone. In the order in which they go.
    pub(crate) fn first_with(
        &self,
        bytes: impl Fn(u64) -> usize,
        mut excess: usize,
    ) -> Vec<(u64, u64)> {
        let held = |(place, id): (&u64, &u64)| (*place, *id, bytes(*id));
        let of_address = |its: &BTreeMap<u64, u64>| {
            let its = its.iter().rev().map(held);
            let its: Vec<Held> = its.filter(|(_, _, bytes)| *bytes > 0).collect();
            Holder::of(its.iter().map(|(_, _, bytes)| bytes).sum(), its)
        };
        let mut holders: BinaryHeap<Holder> = self.of.values().filter_map(of_address).collect();
        let mut first = Vec::new();
        while excess > 0
            && let Some(Holder(sum, _, mut its)) = holders.pop()
            && let Some((place, id, bytes)) = its.pop()
        {
            first.push((place, id));
            excess = excess.saturating_sub(bytes);
            holders.extend(Holder::of(sum - bytes, its));
        }
        first
    }

    /// The place and the id of the one that goes first: of the address with the most, the oldest.
    pub(crate) fn first_to_go(&self) -> Option<(u64, u64)> {
        let (_, _, whose) = self.standings.last()?;
        let (place, id) = self.of.get(whose)?.first_key_value()?;
        Some((*place, *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whose(address: &str, id: u64) -> Whose {
        Whose::of(&Peer::Tcp(address.parse().unwrap()), id)
    }

    #[test]
    fn the_oldest_goes_of_the_address_with_the_most() {
        let mut waiting = Waiting::default();
        let (one, many) = (whose("192.0.2.1:1", 0), whose("192.0.2.2:1", 0));
        let first = waiting.enter(10, one);
        let second = waiting.enter(20, many);
        assert_eq!(
            waiting.first_to_go(),
            Some((first, 10)),
            "the oldest of all"
        );
        let third = waiting.enter(21, many);
        let fourth = waiting.enter(22, many);
        assert_eq!(waiting.first_to_go(), Some((second, 20)));
        waiting.leave(second, many);
        assert_eq!(waiting.first_to_go(), Some((third, 21)));
        waiting.leave(fourth, many);
        assert_eq!(waiting.first_to_go(), Some((first, 10)));
        waiting.leave(first, one);
        waiting.leave(third, many);
        waiting.leave(third, many);
        assert_eq!((waiting.len(), waiting.first_to_go()), (0, None));
        assert!(waiting.of.is_empty() && waiting.standings.is_empty());
    }

    #[test]
    fn for_bytes_nobody_goes_who_has_none() {
        let mut waiting = Waiting::default();
        let (one, many) = (whose("192.0.2.1:1", 0), whose("192.0.2.2:1", 0));
        for id in [20, 21, 22, 23] {
            waiting.enter(id, many);
        }
        let first = waiting.enter(10, one);
        let second = waiting.enter(11, one);
        let ten = |id| if id >= 20 { 0 } else { 10 };
        assert_eq!(waiting.first_with(ten, 10), [(first, 10)]);
        assert_eq!(waiting.first_with(ten, 11), [(first, 10), (second, 11)]);
        waiting.leave(first, one);
        assert_eq!(waiting.first_with(ten, 11), [(second, 11)]);
        let more = |id| if id == 22 { 11 } else { ten(id) };
        assert_eq!(waiting.first_with(more, 1), [(2, 22)], "the most bytes");
        assert_eq!(waiting.first_with(|_| 0, 1), []);
    }

    #[test]
    fn peers_of_this_machine_are_one_each() {
        assert!(whose("127.0.0.1:1", 1) != whose("127.0.0.1:1", 2));
        assert!(whose("192.0.2.1:1", 1) == whose("[::ffff:192.0.2.1]:9", 2));
        assert!(whose("[2001:db8::1]:1", 1) == whose("[2001:db8::2]:1", 2));
        assert!(Whose::of(&Peer::Unix, 1) != Whose::of(&Peer::Unix, 2));
    }
}
