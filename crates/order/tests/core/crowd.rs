//! Publishers that do all sorts of things, honest and not.

use std::collections::BTreeMap;

use embar_fabric::{NoticeKind, PbrKind, PbrRecord};
use embar_order::{Action, Arrival, Core, Limits, Operation, Source};
use proptest::prelude::*;

use crate::support::{Session, publisher};

/// Brokers' rows, below which batches come.
pub const ROWS: u16 = 3;
const PUBLISHERS: u64 = 6;

/// Limits that a crowd reaches.
pub fn limits() -> Limits {
    Limits {
        sessions: 4,
        chains: 2,
        held: 6,
        window: 8,
        gap_lease_ns: 1000,
        session_idle_ns: 3000,
    }
}

/// What one publisher sends.
#[derive(Debug, Clone)]
pub enum Sent {
    /// An opening by an instance, which gives up or takes over the current epoch, or one before.
    Open {
        publisher: u64,
        instance: u64,
        gives_up: Option<u32>,
    },
    /// A batch `ahead` of the mark, of the newest epoch or one before.
    Batch {
        publisher: u64,
        ahead: i64,
        back: usize,
    },
    /// The end of the session.
    Close { publisher: u64, back: usize },
    /// A batch of a session that was never opened.
    Forged { place: u32, epoch: u32, number: u64 },
}

/// A step of a crowd.
#[derive(Debug, Clone)]
pub enum Step {
    /// Records arrive together, by a broker.
    Arrive { row: u16, sent: Vec<Sent> },
    /// Nanoseconds pass.
    Pass(u64),
    /// A broker dies and comes back.
    Restart(u16),
    /// A row of the session table is written back.
    Save(u32),
}

fn sent() -> impl Strategy<Value = Sent> {
    let publisher = 0..PUBLISHERS;
    prop_oneof![
        12 => (publisher.clone(), -3..11_i64, prop_oneof![9 => Just(0_usize), 1 => 1..3_usize])
            .prop_map(|(publisher, ahead, back)| Sent::Batch { publisher, ahead, back }),
        12 => publisher.clone()
            .prop_map(|publisher| Sent::Batch { publisher, ahead: 0, back: 0 }),
        3 => (publisher.clone(), prop_oneof![6 => Just(1_u64), 1 => Just(2)], prop::option::of(0..2_u32))
            .prop_map(|(publisher, instance, gives_up)| Sent::Open { publisher, instance, gives_up }),
        1 => (publisher, 0..2_usize)
            .prop_map(|(publisher, back)| Sent::Close { publisher, back }),
        1 => (0..6_u32, 0..4_u32, 0..9_u64)
            .prop_map(|(place, epoch, number)| Sent::Forged { place, epoch, number }),
    ]
}

/// Steps of a crowd.
pub fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => (1..=ROWS, prop::collection::vec(sent(), 1..8))
            .prop_map(|(row, sent)| Step::Arrive { row, sent }),
        4 => (0..1500_u64).prop_map(Step::Pass),
        1 => (1..=ROWS).prop_map(Step::Restart),
        2 => (0..4_u32).prop_map(Step::Save),
    ];
    prop::collection::vec(step, 1..count)
}

/// What the publishers know.
#[derive(Debug)]
pub struct Crowd {
    /// By publisher, all sessions and epochs that it was granted.
    sessions: Vec<Vec<Session>>,
    /// Whose record it was, by number.
    senders: BTreeMap<u64, Session>,
    incarnations: [u32; ROWS as usize + 1],
    next: u64,
}

impl Crowd {
    pub fn new() -> Self {
        Self {
            sessions: vec![Vec::new(); PUBLISHERS as usize],
            senders: BTreeMap::new(),
            incarnations: [1; ROWS as usize + 1],
            next: 0,
        }
    }

    /// A broker's next incarnation.
    pub fn restart(&mut self, row: u16) -> u32 {
        self.incarnations[usize::from(row)] += 1;
        self.incarnations[usize::from(row)]
    }

    /// What is sent together, by a broker, as far as the core is now.
    pub fn arrivals(&mut self, core: &Core, row: u16, sent: &[Sent]) -> Vec<Arrival> {
        sent.iter().map(|it| self.arrival(core, row, it)).collect()
    }

    fn arrival(&mut self, core: &Core, row: u16, sent: &Sent) -> Arrival {
        let source = Source {
            row,
            lane: 0,
            incarnation: self.incarnations[usize::from(row)],
            number: self.next,
        };
        self.next += 1;
        let (session, record) = match *sent {
            Sent::Forged {
                place,
                epoch,
                number,
            } => {
                let session = Session {
                    place,
                    epoch,
                    ..publisher(number % PUBLISHERS, 5)
                };
                (session, batch(&session, number))
            }
            Sent::Open {
                publisher,
                instance,
                gives_up,
            } => {
                let known = self.known(publisher, 0);
                let epoch = gives_up.map(|back| known.epoch.saturating_sub(back));
                let operation = match epoch {
                    Some(gives_up) if instance == known.instance => Operation::Renew {
                        session: known.place,
                        gives_up,
                    },
                    takes_over => Operation::Open {
                        takes_over: takes_over.unwrap_or(0),
                    },
                };
                let session = Session { instance, ..known };
                (session, session.asking(operation))
            }
            Sent::Batch { publisher, .. } | Sent::Close { publisher, .. }
                if self.sessions[publisher as usize].is_empty() =>
            {
                let session = self.known(publisher, 0);
                (session, session.opening())
            }
            Sent::Batch {
                publisher,
                ahead,
                back,
            } => {
                let session = self.known(publisher, back);
                let mark = core.session_row(session.place).expected;
                (session, batch(&session, mark.saturating_add_signed(ahead)))
            }
            Sent::Close { publisher, back } => {
                let session = self.known(publisher, back);
                (session, session.closing())
            }
        };
        self.senders.insert(source.number, session);
        Arrival { source, record }
    }

    /// The publishers hear of it.
    pub fn hear(&mut self, actions: &[Action]) {
        for action in actions {
            let Action::Notify { source, outcome } = action else {
                continue;
            };
            let session = self.senders[&source.number];
            let known = &mut self.sessions[session.producer as usize];
            match outcome.kind {
                NoticeKind::Opened => known.push(Session {
                    place: outcome.session,
                    epoch: outcome.session_epoch,
                    first_epoch: outcome.first_epoch,
                    mark: outcome.mark,
                    ..session
                }),
                NoticeKind::Closed | NoticeKind::UnknownSession | NoticeKind::GivenUp => {
                    known.truncate(known.len().saturating_sub(1));
                }
                _ => {}
            }
        }
    }

    fn known(&self, number: u64, back: usize) -> Session {
        let known = &self.sessions[number as usize];
        let at = known.len().checked_sub(1 + back);
        let order = if number.is_multiple_of(3) { 2 } else { 5 };
        at.map_or(publisher(number, order), |at| known[at])
    }
}

/// All batches of a number are alike.
fn batch(session: &Session, number: u64) -> PbrRecord {
    let batch = session.batch(number);
    debug_assert_eq!(batch.kind, PbrKind::Batch as u8);
    PbrRecord {
        count: (number % 3 + 1) as u32,
        ..batch
    }
}
