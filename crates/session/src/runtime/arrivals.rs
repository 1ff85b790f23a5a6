//! The connections of one worker that have not become sessions: found by token, by deadline, and by
//! whom they come from.
//!
//! Invariants
//! - There are at most as many as the worker's share of
//!   [`Admission::max_arrivals`](crate::Admission::max_arrivals).
//! - At most the worker's share of [`Admission::max_handshakes`](crate::Admission::max_handshakes)
//!   of them have TLS state; who waits for a turn has a place in the queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use embar_frame::{Now, Protocol};
use embar_transport::{Peer, Stream, Token};

use super::admission::Admission;
use super::crowd::Crowd;
use super::datagrams::UnclaimedLink;
use super::group::Group;
use super::guest::Guest;
use super::handshakes::Handshakes;

/// A handshake that took this part of the time for a greeting makes room for one that waits; or so long, where that time has no end.
const PATIENCE_PART: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(2500);

/// Counts a connection among the arrivals, from when it was accepted until it is a session or over.
pub(super) struct Counted(Arc<Group>);

impl Counted {
    pub(super) fn new(group: &Arc<Group>) -> Self {
        group.arrivals.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(group))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.arrivals.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that was accepted, on its way to its worker.
pub(super) struct Newcomer {
    pub(super) stream: Stream,
    pub(super) peer: Peer,
    /// Where somebody else carries it.
    pub(super) link: Option<UnclaimedLink>,
    /// Its proxy says first for whom it speaks.
    pub(super) introduction: bool,
    pub(super) counted: Counted,
}

struct Entry<P: Protocol> {
    guest: Guest<P>,
    _counted: Counted,
    crowd: Crowd,
    /// They are numbered as they come.
    number: u64,
    /// Its entry among the deadlines.
    armed: Option<Now>,
    /// Since when its handshake runs.
    shaking: Option<Now>,
}

/// The connections of one worker that have not become sessions.
pub(super) struct Arrivals<P: Protocol> {
    group: Arc<Group>,
    /// Of the worker.
    worker: usize,
    entries: BTreeMap<Token, Entry<P>>,
    crowds: BTreeMap<Crowd, BTreeSet<(u64, Token)>>,
    /// The crowds by their sizes, and by their oldest members: the last one makes room.
    ranks: BTreeSet<(usize, Reverse<u64>, Crowd)>,
    deadlines: BTreeSet<(Now, Token)>,
    next_number: u64,
    most: usize,
    handshakes: Handshakes,
}

impl<P: Protocol> Arrivals<P> {
    pub(super) fn new(group: &Arc<Group>, worker: usize) -> Self {
        let (admission, workers) = (&group.settings.admission, group.settings.workers);
        let patience = match group.settings.session.hello_timeout {
            Duration::ZERO => PATIENCE,
            most => most / PATIENCE_PART,
        };
        let most_handshakes = Admission::share(admission.max_handshakes, workers);
        Self {
            most: Admission::share(admission.max_arrivals, workers),
            group: Arc::clone(group),
            worker,
            entries: BTreeMap::new(),
            crowds: BTreeMap::new(),
            ranks: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            next_number: 0,
            handshakes: Handshakes::new(most_handshakes, patience),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn has(&self, token: Token) -> bool {
        self.entries.contains_key(&token)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Guest<P>> {
        Some(&mut self.entries.get_mut(&token)?.guest)
    }

    pub(super) fn tokens(&self) -> Vec<Token> {
        self.entries.keys().copied().collect()
    }

    /// Whose place the next one takes, if there is none left.
    pub(super) fn in_the_way(&self) -> Option<Token> {
        let is_full = self.entries.len() >= self.most;
        self.first_to_go().filter(|_| is_full)
    }

    /// Who makes room before all others: the oldest of those of whom there are most.
    pub(super) fn first_to_go(&self) -> Option<Token> {
        let (_, _, crowd) = self.ranks.last()?;
        let (_, token) = self.crowds.get(crowd)?.first()?;
        Some(*token)
    }

    /// Changes a crowd, and its rank with it.
    fn change(&mut self, crowd: Crowd, change: impl FnOnce(&mut BTreeSet<(u64, Token)>)) {
        let rank = |members: &BTreeSet<(u64, Token)>| {
            let (oldest, _) = members.first()?;
            Some((members.len(), Reverse(*oldest), crowd))
        };
        let members = self.crowds.entry(crowd).or_default();
        if let Some(before) = rank(members) {
            self.ranks.remove(&before);
        }
        change(members);
        match rank(members) {
            Some(now) => {
                self.ranks.insert(now);
            }
            None => {
                self.crowds.remove(&crowd);
            }
        }
        let most = self.ranks.last().map_or(0, |(most, ..)| *most);
        self.group.crowds[self.worker].store(most, Ordering::Relaxed);
    }

    /// Its proxy said for whom it speaks: from now on it counts as of that address.
    pub(super) fn introduced(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        let number = entry.number;
        let network = self.group.settings.admission.network_of(&entry.guest.peer);
        let crowd = network.map_or(Crowd::Alone(number), Crowd::Of);
        let before = std::mem::replace(&mut entry.crowd, crowd);
        self.change(before, |members| {
            members.remove(&(number, token));
        });
        self.change(crowd, |members| {
            members.insert((number, token));
        });
    }

    pub(super) fn enter(&mut self, token: Token, guest: Guest<P>, counted: Counted) {
        let number = self.next_number;
        self.next_number += 1;
        let network = self.group.settings.admission.network_of(&guest.peer);
        let crowd = network.map_or(Crowd::Alone(number), Crowd::Of);
        self.change(crowd, |members| {
            members.insert((number, token));
        });
        let entry = Entry {
            guest,
            _counted: counted,
            crowd,
            number,
            armed: None,
            shaking: None,
        };
        self.entries.insert(token, entry);
        self.arm(token);
    }

    /// It became a session, or is over.
    pub(super) fn remove(&mut self, token: Token) -> Option<Guest<P>> {
        let entry = self.entries.remove(&token)?;
        self.change(entry.crowd, |members| {
            members.remove(&(entry.number, token));
        });
        if let Some(at) = entry.armed {
            self.deadlines.remove(&(at, token));
        }
        self.handshakes
            .end(entry.crowd, entry.number, token, entry.shaking);
        Some(entry.guest)
    }

    /// Its deadline may be another one.
    pub(super) fn arm(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        let deadline = entry.guest.next_tick();
        if deadline == entry.armed {
            return;
        }
        if let Some(at) = entry.armed {
            self.deadlines.remove(&(at, token));
        }
        entry.armed = deadline;
        self.deadlines.extend(deadline.map(|at| (at, token)));
    }

    /// When [`Arrivals::due`] or [`Arrivals::stuck`] has something.
    pub(super) fn next_deadline(&self) -> Option<Now> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let stuck = self.handshakes.stuck_at();
        [first, stuck].into_iter().flatten().min()
    }

    /// One whose deadline has come.
    pub(super) fn due(&mut self, now: Now) -> Option<Token> {
        self.deadlines.first().filter(|(at, _)| *at <= now)?;
        let (_, token) = self.deadlines.pop_first()?;
        if let Some(entry) = self.entries.get_mut(&token) {
            entry.armed = None;
        }
        Some(token)
    }

    /// A handshake that has had its time, while others wait.
    pub(super) fn stuck(&self, now: Now) -> Option<Token> {
        self.handshakes.stuck(now)
    }

    /// A handshake wants to begin: whether it may now. If not, it has its turn by
    /// [`Arrivals::next_handshake`].
    pub(super) fn may_shake(&mut self, token: Token, now: Now) -> bool {
        let Some(entry) = self.entries.get_mut(&token) else {
            return false;
        };
        let begins = self.handshakes.begin(entry.crowd, entry.number, token, now);
        entry.shaking = begins.then_some(now);
        begins
    }

    /// Whose handshake may begin since another one is over.
    pub(super) fn next_handshake(&mut self) -> Option<Token> {
        self.handshakes.take_next()
    }
}
