//! A successor knows what its predecessor knew.

use std::collections::BTreeMap;

use embar_fabric::{GoiRecord, PbrKind, SessionOwner, SessionRow};
use embar_order::{Action, Arrival, Core, Limits, RestoreError};
use proptest::prelude::*;

use crate::crowd::{Crowd, ROWS, Step, limits, steps};
use crate::support::Said::{Fenced, Notified, Placed};
use crate::support::{Scene, Session, ordered, publisher, small};

/// How long a session was idle is not handed on.
fn patient() -> Limits {
    Limits {
        session_idle_ns: u64::MAX,
        ..limits()
    }
}

/// A sequencer, and what it leaves in memory.
struct Sequencer {
    core: Core,
    crowd: Crowd,
    now: u64,
    rows: Vec<SessionRow>,
    owners: Vec<SessionOwner>,
    records: Vec<(u32, GoiRecord)>,
    arrived: Vec<(u64, Vec<Arrival>)>,
}

impl Sequencer {
    fn new() -> Self {
        Self {
            core: Core::new(patient()).unwrap(),
            crowd: Crowd::new(),
            now: 0,
            rows: vec![SessionRow::default(); limits().sessions as usize],
            owners: vec![SessionOwner::default(); limits().sessions as usize],
            records: Vec::new(),
            arrived: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) -> Vec<Action> {
        let mut out = Vec::new();
        match step {
            Step::Arrive { row, sent } => {
                let arrivals = self.crowd.arrivals(&self.core, *row, sent);
                self.core.arrive(&arrivals, self.now, &mut out);
                self.arrived.push((self.now, arrivals));
            }
            Step::Pass(nanoseconds) => {
                self.now += nanoseconds;
                self.core.elapse(self.now, &mut out);
                self.arrived.push((self.now, Vec::new()));
            }
            Step::Restart(_) => {}
            Step::Save(place) => {
                let row = self.core.session_row(*place);
                self.save(*place, &row);
            }
        }
        for action in &out {
            match action {
                Action::Place { arrival, base } => {
                    let chain = arrival.record.chain;
                    self.records.push((chain, ordered(arrival, *base)));
                }
                Action::SaveOwner { session, owner } => self.owners[*session as usize] = *owner,
                Action::SaveSession { session, row } => self.save(*session, row),
                Action::Notify { .. } => {}
            }
        }
        self.crowd.hear(&out);
        out
    }

    fn save(&mut self, place: u32, row: &SessionRow) {
        self.rows[place as usize] = *row;
        self.core.saved(place, row);
    }

    /// One that knows only what is in memory.
    fn successor(&self, records: impl Fn(&GoiRecord) -> bool) -> Core {
        let mut core = Core::new(patient()).unwrap();
        for (place, row) in (0..).zip(&self.rows) {
            let owner = &self.owners[place as usize];
            core.restore_session(place, row, owner).unwrap();
        }
        for (chain, order, next) in self.core.chains() {
            core.restore_chain(chain, order, next).unwrap();
        }
        for (chain, record) in self.records.iter().filter(|(_, it)| records(it)) {
            core.replay(*chain, record);
        }
        core
    }

    /// All brokers submit again, so nothing is held any more.
    fn release(&mut self) {
        (1..=ROWS).for_each(|row| self.core.drop_incarnation(row, u32::MAX));
    }
}

proptest! {
    #[test]
    fn a_successor_answers_as_its_predecessor_would(
        before in steps(60),
        after in steps(40),
        covered_too in any::<bool>(),
    ) {
        let mut first = Sequencer::new();
        for step in &before {
            first.step(step);
        }
        first.release();
        let mut second = first.successor(|it| covered_too || !first.core.is_covered(it));
        for place in 0..limits().sessions {
            prop_assert_eq!(first.core.session_row(place), second.session_row(place));
        }
        for (chain, _, next) in first.core.chains() {
            prop_assert_eq!(second.chain_next(chain), Some(next));
        }
        for step in &after {
            first.arrived.clear();
            let expected = first.step(step);
            let mut came = Vec::new();
            for (now, arrivals) in &first.arrived {
                second.arrive(arrivals, *now, &mut came);
                if matches!(step, Step::Pass(_)) {
                    second.elapse(*now, &mut came);
                }
            }
            prop_assert_eq!(came, expected);
        }
    }

    /// A successor takes all batches of dead brokers' lanes once more, whatever their outcome was: those
    /// that were refused are placed at most once by that, and nowhere out of order.
    #[test]
    fn what_dead_brokers_left_is_placed_once_and_in_order(before in steps(80)) {
        let mut first = Sequencer::new();
        for step in &before {
            first.step(step);
        }
        let mut second = first.successor(|_| true);
        let arrived = first.arrived.iter().flat_map(|(_, arrivals)| arrivals);
        let is_batch = |it: &&Arrival| it.record.kind == PbrKind::Batch as u8;
        let mut left: Vec<Arrival> = arrived.filter(is_batch).copied().collect();
        left.sort_by_key(|it| it.source.row);
        let mut placed: Vec<(u32, GoiRecord)> = first.records.clone();
        // Twice, as another sequencer may come to them, too.
        for _ in 0..2 {
            let mut out = Vec::new();
            second.arrive(&left, first.now, &mut out);
            placed.extend(out.iter().filter_map(|action| match action {
                Action::Place { arrival, base } => {
                    Some((arrival.record.chain, ordered(arrival, *base)))
                }
                _ => None,
            }));
        }
        let mut sessions: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for (chain, record) in &placed {
            let numbers = sessions.entry((record.session, record.session_epoch)).or_default();
            let in_order = numbers.last().is_none_or(|last| last + 1 == record.sequence);
            let strict = second.chains().any(|(id, order, _)| (id, order) == (*chain, 5));
            prop_assert!(in_order || !strict, "{} behind {:?}", record.sequence, numbers);
            prop_assert!(!numbers.contains(&record.sequence), "{:?} is placed twice", record);
            numbers.push(record.sequence);
        }
    }
}

#[test]
fn a_fence_outlives_the_sequencer() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [0, 2]);
    scene.pass(1000);
    let row = scene.core.session_row(0);
    let owner = scene.core.session_owner(0).unwrap();
    let mut scene = Scene::small();
    scene.core.restore_session(0, &row, &owner).unwrap();
    assert_eq!(scene.batches(&session, [1]), [Fenced(0, 1)]);
    let duplicate = embar_fabric::NoticeKind::Duplicate;
    assert_eq!(scene.batches(&session, [0]), [Notified(1, duplicate)]);
}

#[test]
fn records_of_earlier_sessions_at_a_place_are_left_alone() {
    let mut scene = Scene::small();
    let old = scene.open(publisher(1, 5));
    scene.batches(&old, 0..5);
    scene.send([old.closing()]);
    let new = scene.open(publisher(1, 5));
    scene.batches(&new, 0..2);
    let placed: Vec<GoiRecord> = scene
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Place { arrival, base } => Some(ordered(arrival, *base)),
            _ => None,
        })
        .collect();
    let saved = scene.actions.iter().rev().find_map(|action| match action {
        Action::SaveSession { row, .. } => Some(*row),
        _ => None,
    });
    let owner = scene.core.session_owner(0).unwrap();
    let mut scene = Scene::small();
    scene
        .core
        .restore_session(0, &saved.unwrap(), &owner)
        .unwrap();
    placed.iter().for_each(|it| scene.core.replay(5, it));
    assert_eq!(scene.core.session_row(0).expected, 2);
    assert_eq!(scene.core.chain_next(5), Some(7));
    assert_eq!(scene.batches(&new, [2]), [Placed(0, 7)]);
}

#[test]
fn rows_say_what_they_cover() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, 0..2);
    let record = |sequence, epoch| GoiRecord {
        session: session.place,
        session_epoch: epoch,
        sequence,
        ..Default::default()
    };
    assert!(!scene.core.is_covered(&record(0, 1)), "never saved");
    let row = scene.core.session_row(0);
    scene.core.saved(0, &row);
    scene.batches(&session, [2]);
    assert!(scene.core.is_covered(&record(1, 1)));
    assert!(!scene.core.is_covered(&record(2, 1)));
    let next = scene.try_renew(session).unwrap();
    scene.batches(&next, [3]);
    let row = scene.core.session_row(0);
    scene.core.saved(0, &row);
    assert!(scene.core.is_covered(&record(2, 1)));
    assert!(scene.core.is_covered(&record(3, 2)));
    scene.send([next.closing()]);
    let row = scene.core.session_row(0);
    scene.core.saved(0, &row);
    assert!(scene.core.is_covered(&record(9, 2)), "nobody asks any more");
}

#[test]
fn a_session_that_is_found_twice_is_the_one_found_first() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, 0..3);
    let row = scene.core.session_row(0);
    let moved = SessionRow {
        epoch: 9,
        expected: 0,
        ..row
    };
    let owner = scene.core.session_owner(0).unwrap();
    let mut scene = Scene::small();
    scene.core.restore_session(0, &row, &owner).unwrap();
    scene.core.restore_session(2, &moved, &owner).unwrap();
    let again = scene.open(publisher(1, 5));
    assert_eq!(again, Session { mark: 3, ..session });
    let free = scene.core.session_row(2);
    assert_eq!((free.in_use, free.epoch), (0, 9));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    let row = scene.core.session_row(session.place);
    let owner = scene.core.session_owner(session.place).unwrap();
    let refused = |place, row| {
        let mut core = Core::new(small()).unwrap();
        core.restore_chain(7, 2, 0).unwrap();
        let error = core.restore_session(place, &row, &owner).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    assert_eq!(refused(4, row), RestoreError::NoPlace { session: 4 });
    let error = refused(0, SessionRow { epoch: 0, ..row });
    assert_eq!(error, RestoreError::NoEpoch { session: 0 });
    for order in [0, 4, 258] {
        let error = refused(0, SessionRow { order, ..row });
        assert_eq!(error, RestoreError::Order { chain: 5, order });
    }
    let error = refused(0, SessionRow { chain: 7, ..row });
    assert_eq!(error, RestoreError::Order { chain: 7, order: 5 });
    let mut core = Core::new(small()).unwrap();
    core.restore_chain(1, 2, 0).unwrap();
    core.restore_chain(2, 5, 0).unwrap();
    let error = core.restore_chain(3, 5, 0).unwrap_err();
    assert_eq!(error, RestoreError::Chains { chain: 3 });
}

#[test]
fn a_row_beside_the_owner_of_another_session_is_nobodys() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, 0..3);
    let row = scene.core.session_row(0);
    let owner = scene.core.session_owner(0).unwrap();
    // The sequencer died between the owner of the next session at this place and its row.
    let next = SessionOwner {
        first_epoch: 2,
        ..owner
    };
    let mut scene = Scene::small();
    scene.core.restore_session(0, &row, &next).unwrap();
    let given_up = embar_fabric::NoticeKind::GivenUp;
    assert_eq!(scene.batches(&session, [3]), [Notified(0, given_up)]);
    let again = scene.open(publisher(1, 5));
    assert!(again.place != 0 || again.epoch > session.epoch);
}

#[test]
fn a_successor_knows_the_secret_and_the_peer() {
    let mut scene = Scene::small();
    let session = scene.open(Session {
        peer: 5,
        ..publisher(1, 5)
    });
    let row = scene.core.session_row(0);
    let owner = scene.core.session_owner(0).unwrap();
    assert_eq!((owner.peer, owner.first_epoch), (5, session.first_epoch));
    let mut scene = Scene::small();
    scene.core.restore_session(0, &row, &owner).unwrap();
    assert_eq!(scene.core.session_owner(0), Some(owner));
    let thief = Session {
        secret: 1,
        ..session
    };
    let wrong = embar_fabric::NoticeKind::WrongSecret;
    assert_eq!(scene.try_renew(thief), Err(wrong));
    assert_eq!(scene.try_renew(session).map(|it| it.epoch), Ok(2));
}
