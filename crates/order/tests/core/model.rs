//! A model of the core: the same rules, written without a thought to speed.

use std::collections::{BTreeMap, BTreeSet};

use embar_fabric::{NoticeKind, PbrKind, PbrRecord};
use embar_order::{Limits, Operation, Request, Source};

/// What is to come out. Batches of the same session, epoch and number are alike, so it does not
/// matter which of several is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    Placed(PbrRecord, u64),
    Saved(u32),
    /// With the mark.
    Notified(PbrRecord, NoticeKind, u64),
}

use Expected::{Notified, Placed, Saved};

#[derive(Debug, Clone)]
struct Session {
    producer: u64,
    instance: u64,
    chain: u32,
    order: u8,
    /// The epoch with which it began.
    first: u32,
    began: u64,
    fenced: bool,
    placed: BTreeSet<u64>,
    held: BTreeMap<u64, Vec<(Source, PbrRecord)>>,
    /// When the wait for the missing batch began, and the number of waits before.
    waits: Option<(u64, u64)>,
    active: u64,
}

impl Session {
    /// The lowest number that is not placed.
    fn mark(&self) -> u64 {
        (self.began..).find(|it| !self.placed.contains(it)).unwrap()
    }

    fn holds(&self) -> usize {
        self.held.values().map(Vec::len).sum()
    }

    fn has(&self, number: u64) -> bool {
        number < self.began || self.placed.contains(&number)
    }
}

#[derive(Debug)]
pub struct Model {
    limits: Limits,
    now: u64,
    waits: u64,
    chains: BTreeMap<u32, (u8, u64)>,
    epochs: Vec<u32>,
    sessions: BTreeMap<u32, Session>,
    out: Vec<Expected>,
}

impl Model {
    pub fn new(limits: Limits) -> Self {
        Self {
            now: 0,
            waits: 0,
            chains: BTreeMap::new(),
            epochs: vec![0; limits.sessions as usize],
            sessions: BTreeMap::new(),
            out: Vec::new(),
            limits,
        }
    }

    pub fn answers(&mut self) -> Vec<Expected> {
        std::mem::take(&mut self.out)
    }

    pub fn pass(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        let lease = self.limits.gap_lease_ns;
        loop {
            let waiting = self.sessions.iter();
            let waits = waiting.filter_map(|(place, it)| Some((it.waits?, *place)));
            let Some(((since, _), place)) = waits.min() else {
                return;
            };
            if self.now - since < lease {
                return;
            }
            self.sessions.get_mut(&place).unwrap().fenced = true;
            self.out.push(Saved(place));
            self.release(place);
        }
    }

    pub fn restart(&mut self, row: u16, incarnation: u32) {
        for session in self.sessions.values_mut() {
            let before = session.holds();
            for held in session.held.values_mut() {
                held.retain(|(it, _)| it.row != row || it.incarnation >= incarnation);
            }
            session.held.retain(|_, held| !held.is_empty());
            if before > 0 && session.holds() == 0 {
                session.active = self.now;
                session.waits = None;
            }
        }
    }

    pub fn arrive(&mut self, source: Source, record: PbrRecord) {
        let answer = match PbrKind::from_number(record.kind).unwrap() {
            PbrKind::Open => self
                .open(&record)
                .map(|mark| Some((NoticeKind::Opened, mark))),
            PbrKind::Batch => self.batch(source, record).map(|()| None),
            PbrKind::Close => self.close(&record).map(|()| Some((NoticeKind::Closed, 0))),
        };
        if let Some((kind, mark)) = answer.unwrap_or_else(Some) {
            self.out.push(Notified(record, kind, mark));
        }
    }

    fn open(&mut self, record: &PbrRecord) -> Result<u64, (NoticeKind, u64)> {
        let same = |it: &Session| (it.producer, it.chain) == (record.producer, record.chain);
        let known = self.sessions.iter_mut().find(|(_, it)| same(it));
        let Some((&place, session)) = known else {
            return self.open_first(record);
        };
        let (mark, epoch) = (session.mark(), self.epochs[place as usize]);
        let request = Request::of(record).unwrap();
        let same = session.instance == request.instance;
        let begins = match request.operation {
            Operation::Open { .. } if same => false,
            Operation::Open { takes_over } if takes_over == epoch => true,
            Operation::Open { .. } => return Err((NoticeKind::InUse, 0)),
            _ if !same => return Err((NoticeKind::TakenOver, 0)),
            Operation::Renew {
                session: its,
                gives_up,
            } if its != place || gives_up < session.first => {
                return Err((NoticeKind::GivenUp, 0));
            }
            Operation::Renew { gives_up, .. } => gives_up == epoch,
            Operation::Resume | Operation::Close { .. } => false,
        };
        session.active = self.now;
        let epoch = &mut self.epochs[place as usize];
        if begins {
            *epoch += 1;
            session.instance = request.instance;
            session.fenced = false;
            session.began = mark;
            session.placed.clear();
            self.out.push(Saved(place));
            self.release(place);
        }
        Ok(mark)
    }

    fn open_first(&mut self, record: &PbrRecord) -> Result<u64, (NoticeKind, u64)> {
        let request = Request::of(record).unwrap();
        if !matches!(request.operation, Operation::Open { .. }) {
            return Err((NoticeKind::GivenUp, 0));
        }
        let mut places = 0..self.limits.sessions;
        let free = places.find(|it| !self.sessions.contains_key(it));
        let place = free.or_else(|| {
            let idle = self.sessions.iter().filter(|(_, it)| it.holds() == 0);
            let (active, place) = idle.map(|(place, it)| (it.active, *place)).min()?;
            (self.now - active >= self.limits.session_idle_ns).then_some(place)
        });
        let place = place.ok_or((NoticeKind::SessionsFull, 0))?;
        let order = record.order_level();
        self.chains.entry(record.chain).or_insert((order, 0));
        self.epochs[place as usize] += 1;
        self.sessions.insert(
            place,
            Session {
                producer: record.producer,
                instance: request.instance,
                chain: record.chain,
                order,
                first: self.epochs[place as usize],
                began: 0,
                fenced: false,
                placed: BTreeSet::new(),
                held: BTreeMap::new(),
                waits: None,
                active: self.now,
            },
        );
        self.out.push(Saved(place));
        Ok(0)
    }

    fn close(&mut self, record: &PbrRecord) -> Result<(), (NoticeKind, u64)> {
        let epoch = self.owner(record)?;
        let session = &self.sessions[&record.session];
        if record.session_epoch < epoch {
            return Err((NoticeKind::Fenced, session.mark()));
        }
        if session.holds() > 0 {
            return Err((NoticeKind::BeyondWindow, 0));
        }
        self.sessions.remove(&record.session);
        self.out.push(Saved(record.session));
        Ok(())
    }

    /// The current epoch of the session that the record belongs to.
    fn owner(&self, record: &PbrRecord) -> Result<u32, (NoticeKind, u64)> {
        let epoch = self.epochs.get(record.session as usize).copied();
        let granted = 1..=epoch.ok_or((NoticeKind::UnknownSession, 0))?;
        if !granted.contains(&record.session_epoch) {
            return Err((NoticeKind::UnknownSession, 0));
        }
        let session = self.sessions.get(&record.session).filter(|it| {
            (it.producer, it.chain) == (record.producer, record.chain)
                && record.session_epoch >= it.first
        });
        session.ok_or((NoticeKind::GivenUp, 0))?;
        Ok(self.epochs[record.session as usize])
    }

    fn batch(&mut self, source: Source, record: PbrRecord) -> Result<(), (NoticeKind, u64)> {
        let epoch = self.owner(&record)?;
        let (place, number) = (record.session, record.sequence);
        let room =
            self.limits.held as usize - self.sessions.values().map(Session::holds).sum::<usize>();
        let session = self.sessions.get_mut(&place).unwrap();
        let (mark, duplicate) = (session.mark(), (NoticeKind::Duplicate, 0));
        if record.session_epoch < epoch {
            // What was placed in the epoch before lies below the number it ended at.
            let before = record.session_epoch + 1 == epoch && session.order == 5;
            let placed = before && number < session.began;
            return Err(if placed {
                duplicate
            } else {
                (NoticeKind::Fenced, mark)
            });
        }
        if session.fenced {
            let placed = session.has(number);
            return Err(if placed {
                duplicate
            } else {
                (NoticeKind::Fenced, mark)
            });
        }
        session.active = self.now;
        if session.has(number) {
            return Err(duplicate);
        }
        if number >= mark + u64::from(self.limits.window) {
            return Err((NoticeKind::BeyondWindow, 0));
        }
        if session.order == 2 {
            self.place(&record);
        } else if number == mark {
            self.place_and_follow(&record);
        } else if session.holds() >= room {
            return Err((NoticeKind::HeldFull, 0));
        } else {
            session
                .held
                .entry(number)
                .or_default()
                .push((source, record));
            if session.waits.is_none() {
                session.waits = Some((self.now, self.waits));
                self.waits += 1;
            }
        }
        Ok(())
    }

    fn place(&mut self, record: &PbrRecord) {
        let (_, next) = self.chains.get_mut(&record.chain).unwrap();
        self.out.push(Placed(*record, *next));
        *next += u64::from(record.count);
        let session = self.sessions.get_mut(&record.session).unwrap();
        session.placed.insert(record.sequence);
    }

    fn place_and_follow(&mut self, record: &PbrRecord) {
        self.place(record);
        while let Some(held) = self.next_held(record.session) {
            self.place(&held[0].1);
            let others = held[1..].iter();
            let outcome = others.map(|(_, it)| Notified(*it, NoticeKind::Duplicate, 0));
            self.out.extend(outcome);
        }
        let session = self.sessions.get_mut(&record.session).unwrap();
        // What is missing now is another batch.
        session.waits = (!session.held.is_empty()).then_some((self.now, self.waits));
        self.waits += 1;
    }

    fn next_held(&mut self, place: u32) -> Option<Vec<(Source, PbrRecord)>> {
        let session = self.sessions.get_mut(&place)?;
        session.held.remove(&session.mark())
    }

    fn release(&mut self, place: u32) {
        let session = self.sessions.get_mut(&place).unwrap();
        let mark = session.mark();
        let held = std::mem::take(&mut session.held);
        if !held.is_empty() {
            session.active = self.now;
        }
        session.waits = None;
        for (_, record) in held.into_values().flatten() {
            self.out.push(Notified(record, NoticeKind::Fenced, mark));
        }
    }
}
