//! How far each publisher's session is in the journal. The sequencer's rows are ahead of that: they count what is ordered,
//! and a batch that is not in the journal yet has to be taken again if the power goes now.

use std::collections::{BTreeMap, HashMap};

use embar_fabric::{GoiRecord, SessionOwner, SessionRow};
use embar_memory::canary::{Canary, injected};
use embar_order::row_progress;

/// A session as the journal knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSession {
    /// What it is, and how far.
    pub row: SessionRow,
    /// Whose it is.
    pub owner: SessionOwner,
}

/// The sessions of which the journal has batches, by their places.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    by_place: BTreeMap<u32, KnownSession>,
    by_name: HashMap<(u32, u64), u32>,
}

impl KnownSession {
    fn name(&self) -> (u32, u64) {
        (self.row.chain, self.row.producer)
    }

    /// Whether its place has it, and says the same of whose it is.
    pub fn is_held(&self) -> bool {
        self.row.in_use == 1 && self.row.first_epoch == self.owner.first_epoch
    }

    /// Whether a session that is there now is this one, perhaps in a later epoch.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.name(), self.row.first_epoch) == (other.name(), other.row.first_epoch)
    }
}

impl Sessions {
    /// All places that have a session.
    pub fn places(&self) -> impl Iterator<Item = u32> {
        self.by_place.keys().copied()
    }

    /// All of them, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &KnownSession)> {
        self.by_place.iter().map(|(place, known)| (*place, known))
    }

    /// The session at a place.
    #[must_use]
    pub fn get(&self, place: u32) -> Option<&KnownSession> {
        self.by_place.get(&place)
    }

    /// The session of a publisher in a chain, and its place.
    #[must_use]
    pub fn of(&self, chain: u32, producer: u64) -> Option<(u32, &KnownSession)> {
        let place = self.by_name.get(&(chain, producer))?;
        Some((*place, self.by_place.get(place)?))
    }

    /// Whether the session of a record is known in the record's epoch.
    #[must_use]
    pub fn knows(&self, record: &GoiRecord, chain: u32) -> bool {
        self.get(record.session).is_some_and(|known| {
            let row = &known.row;
            (row.chain, row.producer, row.epoch) == (chain, record.producer, record.session_epoch)
        })
    }

    /// The session of a record as it was before its batch, where only an older epoch of it is known, or nothing. `now` is
    /// what the sequencer says of the place.
    #[must_use]
    pub fn before(
        &self,
        record: &GoiRecord,
        chain: u32,
        now: Option<KnownSession>,
    ) -> Option<KnownSession> {
        let now = now.filter(|now| {
            now.is_held()
                && now.name() == (chain, record.producer)
                && (now.row.first_epoch..=now.row.epoch).contains(&record.session_epoch)
        })?;
        if injected(Canary::SessionFacts) {
            return Some(now);
        }
        let known = self.of(chain, record.producer).map(|(_, known)| known);
        let known = known.filter(|known| known.is_same(&now));
        let mut row = match known {
            Some(known) => known.row,
            // Nothing of it was placed before the first batch.
            None => SessionRow {
                expected: 0,
                ordered: [0; 16],
                epoch: now.row.first_epoch,
                ..now.row
            },
        };
        row.instance = now.row.instance;
        row.fenced = 0;
        if row.epoch < record.session_epoch {
            row_progress::begin_epoch(&mut row, record.session_epoch);
        }
        Some(KnownSession {
            row,
            owner: now.owner,
        })
    }

    /// Where a session is to be that had this place on another disk: there, or, if another session has it here, at the first that is
    /// free.
    #[must_use]
    pub fn place_for(&self, wanted: u32, session: &KnownSession) -> u32 {
        let is_free = |place: &u32| {
            { self.by_place.get(place) }.is_none_or(|known| known.name() == session.name())
        };
        let places = std::iter::once(wanted).chain(0..);
        places.into_iter().find(is_free).unwrap_or(wanted)
    }

    /// The journal says this of a session from now on. Returns the place at which the session was before, if it was at another.
    pub fn put(&mut self, place: u32, session: KnownSession) -> Option<u32> {
        self.remove(place);
        let other = self.by_name.insert(session.name(), place);
        self.by_place.insert(place, session);
        if let Some(other) = other {
            self.by_place.remove(&other);
        }
        other
    }

    /// No session is at the place any more.
    pub fn remove(&mut self, place: u32) -> bool {
        let Some(known) = self.by_place.remove(&place) else {
            return false;
        };
        self.by_name.remove(&known.name());
        true
    }

    /// The journal has one more batch of a chain.
    pub fn place(&mut self, chain: u32, producer: u64, epoch: u32, number: u64) {
        let place = self.by_name.get(&(chain, producer));
        let known = place.and_then(|place| self.by_place.get_mut(place));
        // One of another epoch is older, and what is known counts it.
        if let Some(known) = known.filter(|known| known.row.epoch == epoch) {
            row_progress::place(&mut known.row, number);
        }
    }

    /// Removes the sessions for which this is false; returns their places.
    pub fn retain(&mut self, mut stays: impl FnMut(u32, &KnownSession) -> bool) -> Vec<u32> {
        let going = self.by_place.iter();
        let going = going.filter(|(place, known)| !stays(**place, known));
        let going: Vec<u32> = going.map(|(place, _)| *place).collect();
        for place in &going {
            self.remove(*place);
        }
        going
    }
}
