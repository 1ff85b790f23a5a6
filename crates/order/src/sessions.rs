//! The core's table of sessions: finds them by place or by the publisher's identity, gives out free places, and knows
//! which sessions no broker holds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use embar_fabric::SessionRow;

use crate::idle::Idle;
use crate::session::{Owner, Session};

/// Places by number; names for those who open a session.
#[derive(Debug)]
pub(crate) struct Sessions {
    places: Vec<Session>,
    owners: Vec<Owner>,
    /// The row of each place as it was last written back.
    saved: Vec<SessionRow>,
    /// By chain and producer, so that a chain's sessions are found without a look at any other.
    names: BTreeMap<(u32, u64), u32>,
    /// All free places, and perhaps some that are not: whoever takes one checks.
    free: BinaryHeap<Reverse<u32>>,
    /// All sessions that no broker was seen to hold.
    idle: Idle,
    /// Places that brokers were seen to hold when they were last looked at.
    attached: Vec<bool>,
    /// When that was.
    looked_at: u64,
    /// No session counts as idle for longer: before that, a broker may have held any without having said so.
    idle_from: u64,
}

/// A table is crowded when no more than one place of so many is free.
const FREE_SHARE: usize = 16;

impl Sessions {
    /// A table with this many places.
    pub fn new(places: u32) -> Self {
        Self {
            places: vec![Session::default(); places as usize],
            owners: vec![Owner::default(); places as usize],
            saved: vec![SessionRow::default(); places as usize],
            names: BTreeMap::new(),
            free: (0..places).map(Reverse).collect(),
            idle: Idle::new(places),
            attached: vec![false; places as usize],
            looked_at: 0,
            idle_from: 0,
        }
    }

    /// Sessions in use.
    pub fn len(&self) -> u32 {
        self.names.len() as u32
    }

    /// Whether hardly any place is free.
    pub fn is_crowded(&self) -> bool {
        self.places.len() - self.names.len() <= self.places.len() / FREE_SHARE
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

    /// The owner of a session that was found before.
    pub fn owner(&self, place: u32) -> &Owner {
        &self.owners[place as usize]
    }

    /// Another instance takes over a session that was found before.
    pub fn hand_over(&mut self, place: u32, instance: u64) {
        self.owners[place as usize].instance = instance;
    }

    /// The place of a publisher's session in a chain.
    pub fn find(&self, chain: u32, producer: u64) -> Option<u32> {
        self.names.get(&(chain, producer)).copied()
    }

    /// The places of a chain's sessions, at most `most`.
    pub fn of_chain(&self, chain: u32, most: usize) -> Vec<u32> {
        let of_chain = self.names.range((chain, 0)..=(chain, u64::MAX));
        of_chain.take(most).map(|(_, place)| *place).collect()
    }

    /// Puts a session at a place, which is free. `chain` is its chain's number.
    pub fn put(&mut self, place: u32, chain: u32, session: Session, owner: Owner) {
        self.names.insert((chain, session.producer), place);
        if !self.attached[place as usize] {
            self.idle.insert(place, owner.peer, session.active);
        }
        self.places[place as usize] = session;
        self.owners[place as usize] = owner;
    }

    /// Frees a place. `chain` is the number of its session's chain.
    pub fn remove(&mut self, place: u32, chain: u32) {
        let session = &mut self.places[place as usize];
        self.names.remove(&(chain, session.producer));
        *session = Session {
            epoch: session.epoch,
            ..Session::default()
        };
        self.owners[place as usize] = Owner::default();
        self.idle.remove(place);
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

    /// Brokers hold the session at a place, or, as was found `now`, hold it no more: then it is idle from now on,
    /// however long it was silent.
    pub fn set_attached(&mut self, place: u32, attached: bool, now: u64) {
        let at = place as usize;
        if std::mem::replace(&mut self.attached[at], attached) == attached {
            return;
        }
        let session = &self.places[at];
        match attached {
            true => self.idle.remove(place),
            false if session.in_use => {
                let since = session.active.max(now);
                self.idle.insert(place, self.owners[at].peer, since);
            }
            false => {}
        }
    }

    /// The sequencer has looked at all brokers.
    pub fn looked(&mut self, now: u64) {
        self.looked_at = now;
    }

    /// A broker cannot say yet what it holds.
    pub fn await_holders(&mut self, now: u64) {
        self.idle_from = now;
    }

    /// The session that gives up its place first, if any may. No broker held it at the last look. It was silent for
    /// `idle_ns` before that look, so a broker that had just learned of it had time to say that it holds it, and it
    /// has been silent since.
    pub fn longest_idle(&mut self, now: u64, idle_ns: u64) -> Option<u32> {
        loop {
            let (place, since) = self.idle.first()?;
            let session = &self.places[place as usize];
            // Sessions that hold something become active when they hold nothing any more.
            let is_bound = session.held > 0 || session.epoch == u32::MAX;
            let active = if is_bound { now } else { session.active };
            // Batches do not update this list: each costs at most one turn of this loop.
            if active > since {
                self.idle.postpone(place, active);
                continue;
            }
            let since = since.max(self.idle_from);
            let is_silent = self.looked_at.checked_sub(since) >= Some(idle_ns);
            return (is_silent && !is_bound).then_some(place);
        }
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
            sessions.put(place, 1, session, Owner::default());
        }
        sessions
    }

    fn longest_idle(sessions: &mut Sessions, now: u64, idle_ns: u64) -> Option<u32> {
        sessions.looked(now);
        sessions.longest_idle(now, idle_ns)
    }

    #[test]
    fn the_longest_idle_session_goes_first() {
        let mut sessions = table(&[30, 10, 20, 95]);
        assert_eq!(sessions.vacant(), None);
        sessions.at(0).held = 1;
        assert_eq!(longest_idle(&mut sessions, 100, 50), Some(1));
        sessions.remove(1, 1);
        sessions.at(2).active = 100;
        assert_eq!(
            longest_idle(&mut sessions, 100, 50),
            None,
            "it spoke meanwhile"
        );
        assert_eq!(sessions.find(1, 1), None);
        assert_eq!(sessions.vacant(), Some(1));
    }

    #[test]
    fn held_sessions_stay_and_none_goes_before_the_brokers_are_read() {
        let mut sessions = table(&[10, 20]);
        assert_eq!(sessions.longest_idle(100, 50), None);
        sessions.set_attached(0, true, 100);
        assert_eq!(longest_idle(&mut sessions, 100, 50), Some(1));
        sessions.set_attached(1, true, 100);
        assert_eq!(longest_idle(&mut sessions, 100, 50), None);
        sessions.set_attached(0, false, 100);
        assert_eq!(longest_idle(&mut sessions, 149, 50), None, "held until now");
        assert_eq!(longest_idle(&mut sessions, 150, 50), Some(0));
        sessions.await_holders(140);
        assert_eq!(longest_idle(&mut sessions, 189, 50), None);
        assert_eq!(longest_idle(&mut sessions, 190, 50), Some(0));
        sessions.at(0).active = 160;
        assert_eq!(
            sessions.longest_idle(300, 50),
            None,
            "active since the look"
        );
    }

    #[test]
    fn all_that_are_idle_go_in_their_order() {
        let active: Vec<u64> = (0..200).map(|i| i * 7 % 200).collect();
        let mut sessions = table(&active);
        for expected in 0..200 {
            let place = longest_idle(&mut sessions, 1000, 50).unwrap();
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
        assert_eq!(longest_idle(&mut sessions, 1000, 1), None);
    }
}
