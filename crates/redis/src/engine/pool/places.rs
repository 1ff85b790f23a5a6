//! Who has a connection of a node's pool, who waits for one, and which are idle: without I/O.
//!
//! A caller that comes when all places are taken waits. Whoever gives a place back hands it to the one that has waited
//! longest, with its connection: so a newcomer overtakes nobody, and a caller that gives up passes its turn on.

use std::collections::{BTreeMap, HashMap};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The places of one node's pool. A place is a connection, or the right to open one.
#[derive(Debug)]
pub(super) struct Places<C> {
    /// How many there are. Idle connections count, too.
    most: usize,
    /// How many callers have, or were handed.
    taken: usize,
    /// Connections that nobody has, and since when; the last one longest in use.
    idle: Vec<(Instant, C)>,
    /// Those who wait, by their numbers: the smallest has waited longest.
    waiting: BTreeMap<u64, Waker>,
    /// What was handed to those who were woken.
    turns: HashMap<u64, Option<C>>,
    next_number: u64,
}

impl<C> Places<C> {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            taken: 0,
            idle: Vec::new(),
            waiting: BTreeMap::new(),
            turns: HashMap::new(),
            next_number: 0,
        }
    }

    /// Takes a place: with an idle connection, or without any. If there is none, the caller waits, and keeps its
    /// number from one poll to the next.
    pub fn poll_take(&mut self, number: &mut Option<u64>, waker: &Waker) -> Poll<Option<C>> {
        if let Some(waiting) = *number {
            if let Some(conn) = self.turns.remove(&waiting) {
                *number = None;
                return Poll::Ready(conn);
            }
            self.waiting.insert(waiting, waker.clone());
            return Poll::Pending;
        }
        // Nobody waits while there is a place.
        if let Some((_, conn)) = self.idle.pop() {
            self.taken += 1;
            return Poll::Ready(Some(conn));
        }
        if self.taken < self.most {
            self.taken += 1;
            return Poll::Ready(None);
        }
        self.waiting.insert(self.next_number, waker.clone());
        *number = Some(self.next_number);
        self.next_number += 1;
        Poll::Pending
    }

    /// A caller gives its place back, with a connection that others may use, or without. Whom to wake.
    pub fn give_back(&mut self, conn: Option<C>, now: Instant) -> Option<Waker> {
        if let Some((number, waker)) = self.waiting.pop_first() {
            self.turns.insert(number, conn);
            return Some(waker);
        }
        self.taken -= 1;
        self.idle.extend(conn.map(|conn| (now, conn)));
        None
    }

    /// The caller with this number waits no more. Whom to wake.
    pub fn stop_waiting(&mut self, number: u64, now: Instant) -> Option<Waker> {
        match self.turns.remove(&number) {
            Some(conn) => self.give_back(conn, now),
            None => {
                self.waiting.remove(&number);
                None
            }
        }
    }

    /// Takes out the connections that are idle for so long.
    pub fn expire(&mut self, now: Instant, idle_for: Duration) -> Vec<C> {
        let old = |(since, _): &(Instant, C)| now.saturating_duration_since(*since) >= idle_for;
        let count = self.idle.iter().take_while(|it| old(it)).count();
        self.idle.drain(..count).map(|(_, conn)| conn).collect()
    }

    /// Since when the connection is idle that is so longest.
    pub fn idle_since(&self) -> Option<Instant> {
        self.idle.first().map(|(since, _)| *since)
    }

    /// Whether it has nothing and nobody.
    pub fn is_empty(&self) -> bool {
        self.taken == 0 && self.idle.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &mut Places<u8>, number: &mut Option<u64>) -> Poll<Option<u8>> {
        places.poll_take(number, Waker::noop())
    }

    #[test]
    fn a_place_goes_to_whoever_has_waited_longest_and_a_newcomer_overtakes_nobody() {
        let now = Instant::now();
        let mut places = Places::new(1);
        assert_eq!(take(&mut places, &mut None), Poll::Ready(None));
        let mut numbers = [None; 3];
        for number in &mut numbers {
            assert_eq!(take(&mut places, number), Poll::Pending);
        }
        assert!(places.give_back(Some(7), now).is_some());
        assert_eq!(take(&mut places, &mut None), Poll::Pending);
        assert_eq!(take(&mut places, &mut numbers[2]), Poll::Pending);
        assert_eq!(take(&mut places, &mut numbers[1]), Poll::Pending);
        assert_eq!(take(&mut places, &mut numbers[0]), Poll::Ready(Some(7)));
        // A broken connection leaves the right to open one.
        assert!(places.give_back(None, now).is_some());
        assert_eq!(take(&mut places, &mut numbers[1]), Poll::Ready(None));
    }

    #[test]
    fn who_gives_up_passes_its_turn_on() {
        let now = Instant::now();
        let mut places = Places::new(1);
        assert_eq!(take(&mut places, &mut None), Poll::Ready(None));
        let mut numbers = [None; 3];
        for number in &mut numbers {
            assert_eq!(take(&mut places, number), Poll::Pending);
        }
        // One that was not woken yet, and one that was.
        let [first, second, mut third] = numbers;
        assert!(
            places
                .stop_waiting(second.expect("it waits"), now)
                .is_none()
        );
        assert!(places.give_back(Some(7), now).is_some());
        assert!(places.stop_waiting(first.expect("it waits"), now).is_some());
        assert_eq!(take(&mut places, &mut third), Poll::Ready(Some(7)));
        assert!(places.give_back(None, now).is_none());
        assert!(places.is_empty());
    }

    #[test]
    fn connections_are_used_again_and_end_when_they_are_idle_for_long() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut places = Places::new(2);
        for _ in 0..2 {
            assert_eq!(take(&mut places, &mut None), Poll::Ready(None));
        }
        assert!(places.give_back(Some(1), start).is_none());
        assert!(places.give_back(Some(2), start + second).is_none());
        assert_eq!(take(&mut places, &mut None), Poll::Ready(Some(2)));
        assert!(places.give_back(Some(2), start + second).is_none());
        assert_eq!(places.idle_since(), Some(start));
        assert_eq!(places.expire(start + second, second), [1]);
        assert_eq!(places.idle_since(), Some(start + second));
        assert!(!places.is_empty());
        assert_eq!(places.expire(start + 2 * second, second), [2]);
        assert!(places.is_empty());
    }
}
