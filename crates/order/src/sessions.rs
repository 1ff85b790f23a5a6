//! The session table.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use embar_fabric::SessionRow;

use crate::session::Session;

/// Places by number; names for those who open a session.
#[derive(Debug)]
pub(crate) struct Sessions {
    places: Vec<Session>,
    /// The row of each place that was last written back.
    saved: Vec<SessionRow>,
    /// By chain and producer.
    names: HashMap<(u32, u64), u32>,
    /// All free places, and perhaps some that are not: whoever takes one looks.
    free: BinaryHeap<Reverse<u32>>,
    idle: Idle,
}

/// Sessions that were idle for long when the table was last looked through: when each was last active,
/// and its place; the longest idle one is the last. Looking through the table takes long, so it
/// finds several, and is not done again before it can find any.
#[derive(Debug, Default)]
struct Idle {
    found: Vec<(u64, u32)>,
    none_before: u64,
}

/// Sessions that looking through the table finds.
const FOUND_MAX: usize = 64;

impl Sessions {
    /// A table with this many places.
    pub fn new(places: u32) -> Self {
        Self {
            places: vec![Session::default(); places as usize],
            saved: vec![SessionRow::default(); places as usize],
            names: HashMap::with_capacity(places as usize),
            free: (0..places).map(Reverse).collect(),
            idle: Idle::default(),
        }
    }

    /// Sessions in use.
    pub fn len(&self) -> u32 {
        self.names.len() as u32
    }

    /// What is at a place.
    #[inline]
    pub fn get(&self, place: u32) -> Option<&Session> {
        self.places.get(place as usize)
    }

    /// What is at a place, to change it.
    #[inline]
    pub fn get_mut(&mut self, place: u32) -> Option<&mut Session> {
        self.places.get_mut(place as usize)
    }

    /// What is at a place that was found before.
    pub fn at(&mut self, place: u32) -> &mut Session {
        &mut self.places[place as usize]
    }

    /// The place of a publisher's session in a chain.
    pub fn find(&self, chain: u32, producer: u64) -> Option<u32> {
        self.names.get(&(chain, producer)).copied()
    }

    /// The sessions in use whose chain has this place.
    pub fn of_chain(&self, place: u32) -> Vec<u32> {
        let numbered = (0..).zip(&self.places);
        let of_chain = numbered.filter(|(_, it)| it.in_use && it.chain == place);
        of_chain.map(|(place, _)| place).collect()
    }

    /// Puts a session at a place, which is free. `chain` is its chain's number.
    pub fn put(&mut self, place: u32, chain: u32, session: Session) {
        self.names.insert((chain, session.producer), place);
        self.places[place as usize] = session;
    }

    /// Frees a place. `chain` is the number of its session's chain.
    pub fn remove(&mut self, place: u32, chain: u32) {
        let session = &mut self.places[place as usize];
        self.names.remove(&(chain, session.producer));
        *session = Session {
            epoch: session.epoch,
            ..Session::default()
        };
        self.free.push(Reverse(place));
    }

    /// A place that is free and has epochs left.
    pub fn vacant(&mut self) -> Option<u32> {
        while let Some(Reverse(place)) = self.free.pop() {
            let session = &self.places[place as usize];
            if !session.in_use && session.epoch < u32::MAX {
                return Some(place);
            }
        }
        None
    }

    /// The session without held batches that was idle for longest, if that is at least `idle_ns`.
    pub fn longest_idle(&mut self, now: u64, idle_ns: u64) -> Option<u32> {
        if let Some(place) = self.next_found() {
            return Some(place);
        }
        if now < self.idle.none_before {
            return None;
        }
        // Those that hold something become active when they do not any more.
        let mut oldest = now;
        for (place, session) in (0..).zip(&self.places) {
            if !Self::may_go(session) {
                continue;
            }
            oldest = oldest.min(session.active);
            if now - session.active >= idle_ns {
                self.idle.found.push((session.active, place));
            }
        }
        let found = &mut self.idle.found;
        if found.is_empty() {
            self.idle.none_before = oldest.saturating_add(idle_ns);
            return None;
        }
        if found.len() > FOUND_MAX {
            found.select_nth_unstable(FOUND_MAX);
            found.truncate(FOUND_MAX);
        }
        found.sort_unstable_by_key(|it| Reverse(*it));
        self.next_found()
    }

    fn next_found(&mut self) -> Option<u32> {
        while let Some((active, place)) = self.idle.found.pop() {
            let session = &self.places[place as usize];
            if Self::may_go(session) && session.active == active {
                return Some(place);
            }
        }
        None
    }

    fn may_go(session: &Session) -> bool {
        session.in_use && session.held == 0 && session.epoch < u32::MAX
    }

    /// The row of a place that was last written back.
    pub fn saved(&self, place: u32) -> Option<&SessionRow> {
        self.saved.get(place as usize)
    }

    /// The row of a place was written back.
    pub fn set_saved(&mut self, place: u32, row: &SessionRow) {
        if let Some(saved) = self.saved.get_mut(place as usize) {
            *saved = *row;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(active: &[u64]) -> Sessions {
        let mut sessions = Sessions::new(active.len() as u32);
        for (producer, active) in (0..).zip(active) {
            let place = sessions.vacant().unwrap();
            let session = Session {
                producer,
                active: *active,
                in_use: true,
                ..Session::default()
            };
            sessions.put(place, 1, session);
        }
        sessions
    }

    #[test]
    fn the_longest_idle_session_goes_first() {
        let mut sessions = table(&[30, 10, 20, 95]);
        assert_eq!(sessions.vacant(), None);
        sessions.at(0).held = 1;
        assert_eq!(sessions.longest_idle(100, 50), Some(1));
        sessions.remove(1, 1);
        sessions.at(2).active = 100;
        assert_eq!(sessions.longest_idle(100, 50), None, "it spoke meanwhile");
        assert_eq!(sessions.find(1, 1), None);
        assert_eq!(sessions.vacant(), Some(1));
    }

    #[test]
    fn looking_in_vain_is_not_repeated_too_early() {
        let mut sessions = table(&[60, 70]);
        assert_eq!(sessions.longest_idle(100, 50), None);
        assert_eq!(sessions.idle.none_before, 110);
        assert_eq!(sessions.longest_idle(109, 50), None);
        assert_eq!(sessions.longest_idle(110, 50), Some(0));
    }

    #[test]
    fn all_that_are_idle_go_in_their_order() {
        let active: Vec<u64> = (0..200).map(|i| i * 7 % 200).collect();
        let mut sessions = table(&active);
        for expected in 0..200 {
            let place = sessions.longest_idle(1000, 50).unwrap();
            assert_eq!(sessions.at(place).active, expected);
            sessions.remove(place, 1);
        }
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn a_place_without_further_epochs_is_left_alone() {
        let mut sessions = table(&[0, 0]);
        sessions.at(0).epoch = u32::MAX;
        sessions.remove(0, 1);
        assert_eq!(sessions.vacant(), None);
        sessions.at(1).epoch = u32::MAX;
        assert_eq!(sessions.longest_idle(1000, 1), None);
    }
}
