//! Whatever a crowd does, the core does what the model does, and what it promises.

use std::collections::{BTreeMap, BTreeSet};

use embar_fabric::{NoticeKind, PbrKind, PbrRecord};
use embar_order::{Action, Arrival, Core};
use proptest::prelude::*;

use crate::crowd::{Crowd, Step, limits, steps};
use crate::model::{Expected, Model};

/// The promises, seen from outside.
#[derive(Debug, Default)]
struct Ledger {
    records: BTreeMap<u64, PbrRecord>,
    answered: BTreeSet<u64>,
    /// By chain.
    next: BTreeMap<u32, u64>,
    /// Numbers placed, by place and epoch, in their order.
    placed: BTreeMap<(u32, u32), Vec<u64>>,
    /// Marks at which epochs were opened.
    opened: BTreeMap<(u32, u32), u64>,
    /// Epoch and mark of each place's last saved row.
    saved: BTreeMap<u32, (u32, u64)>,
}

impl Ledger {
    fn check(&mut self, action: &Action) {
        match action {
            Action::Place { arrival, base } => {
                let record = arrival.record;
                assert_eq!(self.answer(arrival.source.number), record);
                let next = self.next.entry(record.chain).or_default();
                assert_eq!(*base, *next, "positions are dense");
                *next += u64::from(record.count);
                let epoch = (record.session, record.session_epoch);
                let mark = *self.opened.get(&epoch).expect("told before it is used");
                let placed = self.placed.entry(epoch).or_default();
                match record.order_level() {
                    5 => assert_eq!(record.sequence, mark + placed.len() as u64, "in order"),
                    _ => assert!(record.sequence >= mark && !placed.contains(&record.sequence)),
                }
                placed.push(record.sequence);
            }
            Action::SaveOwner { .. } => {}
            Action::SaveSession { session, row } => {
                let before = self.saved.insert(*session, (row.epoch, row.expected));
                assert!(before.is_none_or(|(epoch, _)| epoch <= row.epoch));
            }
            Action::Notify { source, outcome } => {
                let record = self.answer(source.number);
                let epoch = (record.session, record.session_epoch);
                match outcome.kind {
                    NoticeKind::Opened => {
                        let saved = self.saved[&outcome.session];
                        assert!(saved.0 == outcome.session_epoch && saved.1 <= outcome.mark);
                        let epoch = (outcome.session, outcome.session_epoch);
                        let mark = *self.opened.entry(epoch).or_insert(outcome.mark);
                        let placed = self.placed.get(&epoch).map_or(0, Vec::len) as u64;
                        assert!((mark..=mark + placed).contains(&outcome.mark));
                    }
                    NoticeKind::Duplicate => {
                        let before = self.opened[&epoch];
                        let placed = self.placed.get(&epoch);
                        let placed = placed.is_some_and(|it| it.contains(&record.sequence));
                        assert!(placed || record.sequence < before, "it is stored");
                    }
                    _ => {}
                }
            }
        }
    }

    fn answer(&mut self, number: u64) -> PbrRecord {
        assert!(self.answered.insert(number), "{number} is answered once");
        self.records[&number]
    }
}

struct Run {
    core: Core,
    model: Model,
    ledger: Ledger,
    crowd: Crowd,
    now: u64,
}

impl Run {
    fn new() -> Self {
        Self {
            core: Core::new(limits()).unwrap(),
            model: Model::new(limits()),
            ledger: Ledger::default(),
            crowd: Crowd::new(),
            now: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        let mut out = Vec::new();
        match step {
            Step::Arrive { row, sent } => {
                let arrivals = self.crowd.arrivals(&self.core, *row, sent);
                for Arrival { source, record } in &arrivals {
                    self.ledger.records.insert(source.number, *record);
                    self.model.arrive(*source, *record);
                }
                self.core.looked(self.now);
                self.core.arrive(&arrivals, self.now, &mut out);
            }
            Step::Pass(nanoseconds) => {
                let end = self.now + nanoseconds;
                while self.now < end {
                    let step = (end - self.now).min(100);
                    self.now += step;
                    self.model.pass(step);
                    self.core.elapse(self.now, &mut out);
                }
            }
            Step::Restart(row) => {
                let incarnation = self.crowd.restart(*row);
                self.model.restart(*row, incarnation);
                self.core.drop_incarnation(*row, incarnation);
            }
            Step::Save(_) => {}
        }
        out.iter().for_each(|action| self.ledger.check(action));
        let came = out.iter().filter_map(|it| self.came(it)).collect();
        assert_eq!(in_order(came), in_order(self.model.answers()));
        self.crowd.hear(&out);
    }

    fn came(&self, action: &Action) -> Option<Expected> {
        Some(match action {
            Action::SaveOwner { .. } => return None,
            Action::Place { arrival, base } => Expected::Placed(arrival.record, *base),
            Action::SaveSession { session, .. } => Expected::Saved(*session),
            Action::Notify { source, outcome } => Expected::Notified(
                self.ledger.records[&source.number],
                outcome.kind,
                outcome.mark,
            ),
        })
    }
}

/// The same, with notices of one fence, which have no order, in the order of numbers.
fn in_order(mut expected: Vec<Expected>) -> Vec<Expected> {
    let fenced = |it: &Expected| matches!(it, Expected::Notified(_, NoticeKind::Fenced, _));
    let runs = expected.chunk_by_mut(|a, b| fenced(a) && fenced(b));
    for run in runs {
        run.sort_by_key(|it| match it {
            Expected::Notified(record, ..) => (record.session, record.sequence),
            _ => (0, 0),
        });
    }
    expected
}

proptest! {
    #[test]
    fn the_core_does_what_the_rules_say(steps in steps(120)) {
        let mut run = Run::new();
        let restarts = steps.iter().any(|it| matches!(it, Step::Restart(_)));
        steps.iter().for_each(|step| run.step(step));
        run.step(&Step::Pass(1000));
        assert_eq!(run.core.figures().held, 0);
        if !restarts {
            assert_eq!(run.ledger.answered.len(), run.ledger.records.len(), "all are answered");
        }
        let batches = run.ledger.records.values().filter(|it| it.kind == PbrKind::Batch as u8);
        let placed: usize = run.ledger.placed.values().map(Vec::len).sum();
        assert!(placed <= batches.count());
        assert_eq!(placed as u64, run.core.figures().placed);
    }
}
