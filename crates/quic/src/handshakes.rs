//! Connections of a listener that have not become sessions: how many may run, who waits, and who makes room. No I/O, no clock.
//!
//! Invariants
//! - At most `most` run and at most `most_waiting` wait.
//! - A turn is for the address of which the fewest run; at the limit of those that wait, the oldest goes of the address that has the
//!   most. So one address only waits for itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use embar_session::Network;

/// The limits of [`Handshakes`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) most: usize,
    pub(crate) most_waiting: usize,
    /// One that took so long makes room for one that waits.
    pub(crate) patience: Duration,
    /// After so long nobody waits any more for the one that waits; zero: for ever.
    pub(crate) longest_wait: Duration,
}

/// The connections that have not become sessions, by the order in which they came. `T` cuts one that runs, `W` is one that waits.
pub(crate) struct Handshakes<T, W> {
    running: BTreeMap<u64, Entry<T>>,
    waiting: BTreeMap<u64, Entry<W>>,
    next: u64,
    limits: Limits,
}

struct Entry<T> {
    /// `None`: it counts as an address of its own.
    network: Option<Network>,
    since: Instant,
    what: T,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn<T, W> {
    /// This one begins: [`Handshakes::begin`].
    Begin(W),
    /// This one, which ran, is to be cut.
    Cut(T),
    /// This one, which waited, is to be forgotten.
    Forget(W),
}

impl<T, W> Handshakes<T, W> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            limits,
        }
    }

    /// Whether so many run that newcomers must show that they receive at the address they send from.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.len() >= self.limits.most / 4
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn enter<E>(
        entries: &mut BTreeMap<u64, Entry<E>>,
        next: &mut u64,
        network: Option<Network>,
        since: Instant,
        what: E,
    ) -> u64 {
        let number = *next;
        *next += 1;
        entries.insert(
            number,
            Entry {
                network,
                since,
                what,
            },
        );
        number
    }

    /// A newcomer waits for its turn. Who is to be forgotten for it, itself perhaps.
    pub(crate) fn wait(
        &mut self,
        network: Option<Network>,
        now: Instant,
        newcomer: W,
    ) -> Option<W> {
        Self::enter(&mut self.waiting, &mut self.next, network, now, newcomer);
        if self.waiting.len() <= self.limits.most_waiting {
            return None;
        }
        let (_, oldest) = largest(&self.waiting)?;
        self.waiting.remove(&oldest).map(|entry| entry.what)
    }

    /// What is to be done next, if anything is.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<Turn<T, W>> {
        let longest = self.limits.longest_wait;
        if let Some(first) = self.waiting.first_entry()
            && !longest.is_zero()
            && now.saturating_duration_since(first.get().since) > longest
        {
            return Some(Turn::Forget(first.remove().what));
        }
        let running = counts(&self.running);
        let its = |network: &Option<Network>| {
            let running = network.as_ref().and_then(|network| running.get(network));
            running.map_or(0, |(count, _)| *count)
        };
        let (&number, next) = self
            .waiting
            .iter()
            .min_by_key(|(number, entry)| (its(&entry.network), **number))?;
        if self.running.len() < self.limits.most.max(1) {
            return Some(Turn::Begin(self.waiting.remove(&number)?.what));
        }
        let its = its(&next.network) + 1;
        let (count, oldest) = largest(&self.running)?;
        let since = self.running.get(&oldest)?.since;
        let is_stuck = now.saturating_duration_since(since) >= self.limits.patience;
        if count > its || is_stuck && count >= its {
            return Some(Turn::Cut(self.running.remove(&oldest)?.what));
        }
        None
    }

    /// One of `network` begins; `cut` ends it. Its number.
    pub(crate) fn begin(&mut self, network: Option<Network>, now: Instant, cut: T) -> u64 {
        Self::enter(&mut self.running, &mut self.next, network, now, cut)
    }

    /// It became a session, or is over.
    pub(crate) fn end(&mut self, number: u64) {
        self.running.remove(&number);
    }
}

/// How many each address has, and its oldest one.
fn counts<E>(entries: &BTreeMap<u64, Entry<E>>) -> BTreeMap<Network, (usize, u64)> {
    let mut counts = BTreeMap::new();
    for (&number, entry) in entries {
        if let Some(network) = entry.network {
            counts.entry(network).or_insert((0, number)).0 += 1;
        }
    }
    counts
}

/// How many the address has that has the most, and its oldest one.
fn largest<E>(entries: &BTreeMap<u64, Entry<E>>) -> Option<(usize, u64)> {
    let alone = entries.iter().find(|(_, entry)| entry.network.is_none());
    let alone = alone.map(|(&number, _)| (1, number));
    let crowds = counts(entries).into_values().chain(alone);
    crowds.max_by_key(|(count, oldest)| (*count, u64::MAX - oldest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use embar_session::{Admission, Peer};

    const PATIENCE: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(10);

    type Numbers = Handshakes<u64, (u8, u32)>;

    fn network(last: u8) -> Option<Network> {
        let address = std::net::SocketAddr::from(([192, 0, 2, last], 9));
        let exempt = last == 0;
        let network = Admission::default().network_of(&Peer::Quic(address));
        network.filter(|_| !exempt)
    }

    fn handshakes(most: usize) -> Numbers {
        Handshakes::new(Limits {
            most,
            most_waiting: 4,
            patience: PATIENCE,
            longest_wait: LONGEST,
        })
    }

    /// Does what there is to do; who began and who was cut.
    fn go_on(handshakes: &mut Numbers, now: Instant) -> (Vec<(u8, u32)>, usize) {
        let (mut began, mut cut) = (Vec::new(), 0);
        while let Some(turn) = handshakes.turn(now) {
            match turn {
                Turn::Begin(who) => {
                    handshakes.begin(network(who.0), now, 0);
                    began.push(who);
                }
                Turn::Cut(_) => cut += 1,
                Turn::Forget(_) => {}
            }
        }
        (began, cut)
    }

    fn come(handshakes: &mut Numbers, now: Instant, who: (u8, u32)) -> (Vec<(u8, u32)>, usize) {
        handshakes.wait(network(who.0), now, who);
        go_on(handshakes, now)
    }

    #[test]
    fn one_address_keeps_out_no_other() {
        let now = Instant::now();
        let mut handshakes = handshakes(3);
        for nth in 0..5 {
            let began = if nth < 3 { vec![(1, nth)] } else { vec![] };
            assert_eq!(come(&mut handshakes, now, (1, nth)), (began, 0));
        }
        // Another one has room made for it, and its turn before those that wait.
        assert_eq!(come(&mut handshakes, now, (2, 0)), (vec![(2, 0)], 1));
        assert_eq!(come(&mut handshakes, now, (2, 1)), (vec![], 0));
    }

    #[test]
    fn many_that_come_at_once_do_not_cut_each_other() {
        let now = Instant::now();
        let mut handshakes = handshakes(2);
        for last in 1..=6 {
            let began = if last < 3 { vec![(last, 0)] } else { vec![] };
            assert_eq!(come(&mut handshakes, now, (last, 0)), (began, 0));
        }
        handshakes.end(1);
        assert_eq!(go_on(&mut handshakes, now), (vec![(3, 0)], 0));
        // But none may stay for long.
        let (began, cut) = go_on(&mut handshakes, now + PATIENCE);
        assert_eq!((began, cut), (vec![(4, 0), (5, 0)], 2));
    }

    #[test]
    fn those_of_this_machine_are_an_address_each() {
        let now = Instant::now();
        let mut handshakes = handshakes(2);
        for nth in 0..4 {
            let began = if nth < 2 { vec![(0, nth)] } else { vec![] };
            assert_eq!(come(&mut handshakes, now, (0, nth)), (began, 0));
        }
        let late = now + PATIENCE;
        assert_eq!(go_on(&mut handshakes, late), (vec![(0, 2), (0, 3)], 2));
    }

    #[test]
    fn the_oldest_of_the_largest_crowd_waits_no_more_at_the_limit() {
        let now = Instant::now();
        let mut handshakes = handshakes(1);
        come(&mut handshakes, now, (9, 0));
        for who in [(1, 0), (2, 0), (2, 1), (3, 0)] {
            assert_eq!(handshakes.wait(network(who.0), now, who), None);
        }
        assert_eq!(handshakes.wait(network(4), now, (4, 0)), Some((2, 0)));
        assert!(handshakes.has_waiting());
        // After a while nobody is there any more.
        let late = now + LONGEST + PATIENCE;
        let forgotten = std::iter::from_fn(|| match handshakes.turn(late) {
            Some(Turn::Forget(who)) => Some(who),
            _ => None,
        });
        assert_eq!(forgotten.count(), 4);
    }

    #[test]
    fn it_is_busy_from_a_quarter_on() {
        let now = Instant::now();
        let mut handshakes = handshakes(8);
        let first = handshakes.begin(network(1), now, 0);
        assert!(!handshakes.is_busy());
        handshakes.begin(network(2), now, 1);
        assert!(handshakes.is_busy());
        handshakes.end(first);
        assert!(!handshakes.is_busy());
    }
}
