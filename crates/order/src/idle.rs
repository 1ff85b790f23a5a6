//! The sessions that no broker holds, by the peer that opened them.
//!
//! When the sequencer needs room, the peer with most of these sessions pays: its session that was silent for
//! longest goes. So a peer that opens sessions without end takes its own places, and never those of a peer with
//! fewer.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use embar_memory::canary::{Canary, injected};

/// The idle sessions. Nothing here looks at more than one session.
#[derive(Debug)]
pub(crate) struct Idle {
    /// The idle session at each place.
    entries: Vec<Option<Entry>>,
    /// Each peer's sessions, by when they were last active.
    peers: HashMap<u32, BTreeSet<(u64, u32)>>,
    /// For each peer: how many sessions it has, since when the longest idle one is idle, and the peer.
    ranks: BTreeSet<(usize, Reverse<u64>, u32)>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    peer: u32,
    since: u64,
}

impl Idle {
    pub fn new(places: u32) -> Self {
        Self {
            entries: vec![None; places as usize],
            peers: HashMap::new(),
            ranks: BTreeSet::new(),
        }
    }

    /// No broker holds the session; it was last active at `since`, as far as is known.
    pub fn insert(&mut self, place: u32, peer: u32, since: u64) {
        self.remove(place);
        self.entries[place as usize] = Some(Entry { peer, since });
        self.change(peer, |sessions| sessions.insert((since, place)));
    }

    /// A broker holds the session, or there is no session.
    pub fn remove(&mut self, place: u32) {
        if let Some(Entry { peer, since }) = self.entries[place as usize].take() {
            self.change(peer, |sessions| sessions.remove(&(since, place)));
        }
    }

    /// The session was active until `since`, later than was known.
    pub fn postpone(&mut self, place: u32, since: u64) {
        if let Some(entry) = self.entries[place as usize] {
            self.insert(place, entry.peer, since);
        }
    }

    /// The session that goes first, and since when it is idle.
    pub fn first(&self) -> Option<(u32, u64)> {
        let (_, Reverse(since), peer) = self.ranks.last()?;
        let (_, place) = self.peers.get(peer)?.first()?;
        Some((*place, *since))
    }

    fn change(&mut self, peer: u32, change: impl FnOnce(&mut BTreeSet<(u64, u32)>) -> bool) {
        let sessions = self.peers.entry(peer).or_default();
        let rank = |sessions: &BTreeSet<(u64, u32)>| {
            let (since, _) = sessions.first()?;
            // Without the count the peer that is idle for longest pays.
            let count = match injected(Canary::IdlePeer) {
                true => 0,
                false => sessions.len(),
            };
            Some((count, Reverse(*since), peer))
        };
        let before = rank(sessions);
        change(sessions);
        let after = rank(sessions);
        if after.is_none() {
            self.peers.remove(&peer);
        }
        if before != after {
            before.map(|before| self.ranks.remove(&before));
            self.ranks.extend(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(idle: &mut Idle) -> Vec<u32> {
        let next = || {
            let (place, _) = idle.first()?;
            idle.remove(place);
            Some(place)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn of_one_peer_the_longest_idle_one_goes_first() {
        let mut idle = Idle::new(4);
        for (place, since) in [(0, 30), (1, 10), (2, 20), (3, 5)] {
            idle.insert(place, 7, since);
        }
        assert_eq!(idle.first(), Some((3, 5)));
        idle.postpone(3, 25);
        assert_eq!(drain(&mut idle), [1, 2, 3, 0]);
        assert!(idle.peers.is_empty() && idle.ranks.is_empty());
    }

    #[test]
    fn the_peer_with_most_pays_and_among_equals_the_longest_idle() {
        let mut idle = Idle::new(6);
        for (place, peer, since) in [(0, 1, 1), (1, 1, 2), (2, 2, 50), (3, 2, 60), (4, 2, 70)] {
            idle.insert(place, peer, since);
        }
        idle.insert(5, 3, 0);
        assert_eq!(drain(&mut idle), [2, 0, 3, 5, 1, 4]);
    }

    #[test]
    fn what_is_held_is_not_found_and_what_is_not_there_may_be_removed() {
        let mut idle = Idle::new(2);
        idle.insert(0, 1, 1);
        idle.insert(0, 1, 2);
        idle.remove(0);
        idle.remove(0);
        idle.postpone(1, 7);
        assert_eq!(idle.first(), None);
    }
}
