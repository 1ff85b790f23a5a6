//! Connections of a listener that have not become sessions: how many may run, who waits, and who makes room. No I/O, no clock.
//!
//! Invariants
//! - At most `most` run and at most `most_waiting` wait.
//! - A turn is for the address of which the fewest run; at the limit of those that wait, the oldest goes of the address that has the
//!   most. So one address only waits for itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
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

/// Those that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Crowd {
    Of(Network),
    /// One that counts by itself: its number.
    Alone(u64),
}

impl Crowd {
    fn of(network: Option<Network>, number: u64) -> Self {
        network.map_or(Self::Alone(number), Self::Of)
    }
}

/// Those of one crowd, by their numbers.
#[derive(Default)]
struct Members {
    running: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

impl Members {
    /// Whose turn comes before: that of those of whom fewer run, then of who came earlier.
    fn turn(&self) -> Option<(usize, u64)> {
        Some((self.running.len(), *self.waiting.first()?))
    }
}

/// How many a crowd has in one of the queues, and the number of its oldest: the largest makes room, and of equal ones the oldest.
type Size = (usize, Reverse<u64>);

fn size(members: &BTreeSet<u64>) -> Option<Size> {
    Some((members.len(), Reverse(*members.first()?)))
}

/// Crowds in the order of their ranks.
type Ranks<R> = BTreeSet<(R, Crowd)>;

/// The connections that have not become sessions, by the order in which they came. `T` cuts one that runs, `W` is one that waits.
pub(crate) struct Handshakes<T, W> {
    running: BTreeMap<u64, Entry<T>>,
    waiting: BTreeMap<u64, Entry<W>>,
    crowds: BTreeMap<Crowd, Members>,
    /// The first one is next.
    turns: Ranks<(usize, u64)>,
    /// By those that run, and by those that wait; the last one makes room.
    busiest: Ranks<Size>,
    longest: Ranks<Size>,
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
            crowds: BTreeMap::new(),
            turns: BTreeSet::new(),
            busiest: BTreeSet::new(),
            longest: BTreeSet::new(),
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

    /// Changes a crowd, and its ranks with it.
    fn change(&mut self, crowd: Crowd, change: impl FnOnce(&mut Members)) {
        let members = self.crowds.entry(crowd).or_default();
        let ranks = |its: &Members| (its.turn(), size(&its.running), size(&its.waiting));
        let before = ranks(members);
        change(members);
        let now = ranks(members);
        if members.running.is_empty() && members.waiting.is_empty() {
            self.crowds.remove(&crowd);
        }
        move_to(&mut self.turns, crowd, before.0, now.0);
        move_to(&mut self.busiest, crowd, before.1, now.1);
        move_to(&mut self.longest, crowd, before.2, now.2);
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// A newcomer waits for its turn. Who is to be forgotten for it, itself perhaps.
    pub(crate) fn wait(
        &mut self,
        network: Option<Network>,
        now: Instant,
        newcomer: W,
    ) -> Option<W> {
        let number = self.number();
        let entry = Entry {
            network,
            since: now,
            what: newcomer,
        };
        self.waiting.insert(number, entry);
        self.change(Crowd::of(network, number), |its| {
            its.waiting.insert(number);
        });
        if self.waiting.len() <= self.limits.most_waiting {
            return None;
        }
        let &((_, Reverse(oldest)), _) = self.longest.last()?;
        self.leave(oldest)
    }

    /// One waits no more.
    fn leave(&mut self, number: u64) -> Option<W> {
        let entry = self.waiting.remove(&number)?;
        self.change(Crowd::of(entry.network, number), |its| {
            its.waiting.remove(&number);
        });
        Some(entry.what)
    }

    /// All that wait: there will be no turn for them.
    pub(crate) fn take_waiting(&mut self) -> Vec<W> {
        let numbers: Vec<_> = self.waiting.keys().copied().collect();
        let all = numbers.into_iter();
        all.filter_map(|number| self.leave(number)).collect()
    }

    /// What is to be done next, if anything is.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<Turn<T, W>> {
        let longest = self.limits.longest_wait;
        let age = |since| now.saturating_duration_since(since);
        let (&first, entry) = self.waiting.first_key_value()?;
        if !longest.is_zero() && age(entry.since) > longest {
            return self.leave(first).map(Turn::Forget);
        }
        let &((its, next), _) = self.turns.first()?;
        if self.running.len() < self.limits.most.max(1) {
            return self.leave(next).map(Turn::Begin);
        }
        let its = its + 1;
        let &((count, Reverse(oldest)), _) = self.busiest.last()?;
        let is_stuck = age(self.running.get(&oldest)?.since) >= self.limits.patience;
        if count > its || is_stuck && count >= its {
            return self.end(oldest).map(Turn::Cut);
        }
        None
    }

    /// One of `network` begins; `cut` ends it. Its number.
    pub(crate) fn begin(&mut self, network: Option<Network>, now: Instant, cut: T) -> u64 {
        let number = self.number();
        let entry = Entry {
            network,
            since: now,
            what: cut,
        };
        self.running.insert(number, entry);
        self.change(Crowd::of(network, number), |its| {
            its.running.insert(number);
        });
        number
    }

    /// It became a session, or is over. What cuts it, unless it was cut.
    pub(crate) fn end(&mut self, number: u64) -> Option<T> {
        let entry = self.running.remove(&number)?;
        self.change(Crowd::of(entry.network, number), |its| {
            its.running.remove(&number);
        });
        Some(entry.what)
    }
}

fn move_to<R: Ord>(ranks: &mut Ranks<R>, crowd: Crowd, before: Option<R>, now: Option<R>) {
    if let Some(before) = before {
        ranks.remove(&(before, crowd));
    }
    ranks.extend(now.map(|now| (now, crowd)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use embar_session::{Admission, Peer};
    use rustix::time::{ClockId, clock_gettime};

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

    #[test]
    fn who_leaves_is_forgotten() {
        let now = Instant::now();
        let mut handshakes = handshakes(2);
        for who in [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)] {
            come(&mut handshakes, now, who);
        }
        assert_eq!(handshakes.take_waiting(), [(0, 1), (1, 1), (1, 2)]);
        assert!(!handshakes.has_waiting());
        for number in 0..handshakes.next {
            handshakes.end(number);
            handshakes.end(number);
        }
        assert!(handshakes.crowds.is_empty() && handshakes.turns.is_empty());
        assert!(handshakes.busiest.is_empty() && handshakes.longest.is_empty());
    }

    /// What this thread has computed for so far; what others of the machine do meanwhile is not in it.
    fn computed() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// A flood that fills both queues costs each of its packets no walk through them.
    #[test]
    fn a_turn_does_not_take_longer_where_many_wait() {
        let now = Instant::now();
        let time = |crowd: usize| {
            let mut handshakes = Numbers::new(Limits {
                most: crowd,
                most_waiting: crowd,
                patience: PATIENCE,
                longest_wait: LONGEST,
            });
            for nth in 0..2 * crowd {
                handshakes.wait(network(0), now, (0, nth as u32));
                go_on(&mut handshakes, now);
            }
            let before = computed();
            for nth in 0..2000 {
                handshakes.wait(network((nth % 250) as u8), now, (0, nth));
                handshakes.turn(now);
            }
            computed() - before
        };
        let best = |crowd| (0..5).map(|_| time(crowd)).min();
        let (few, many) = (best(10).unwrap(), best(10_000).unwrap());
        assert!(many < few * 50, "{few:?} with 10, {many:?} with 10,000");
    }
}
