//! A core, and records for it.

use embar_fabric::{GoiRecord, NoticeKind, PbrKind, PbrRecord, Secret};
use embar_order::{Action, Arrival, Core, Limits, Operation, Outcome, Request, Source};

/// What came out, in short. Records are named by the number in their lane, which is the number of
/// records before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// A record's position.
    Placed(u64, u64),
    /// What became of a record.
    Notified(u64, NoticeKind),
    /// The epoch is over, and what is expected of the next.
    Fenced(u64, u64),
    /// The row of a place was to be saved.
    Saved(u32),
}

/// Limits that are soon reached.
pub fn small() -> Limits {
    Limits {
        sessions: 4,
        chains: 2,
        held: 8,
        window: 16,
        gap_lease_ns: 1000,
        session_idle_ns: 10_000,
    }
}

/// A session, as its publisher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub producer: u64,
    pub instance: u64,
    pub secret: u8,
    pub peer: u32,
    pub chain: u32,
    pub order: u8,
    pub place: u32,
    pub epoch: u32,
    pub first_epoch: u32,
    pub mark: u64,
}

impl Session {
    /// A batch of one message.
    pub fn batch(&self, sequence: u64) -> PbrRecord {
        PbrRecord {
            sequence,
            payload_at: sequence * 64,
            producer: self.producer,
            chain: self.chain,
            count: 1,
            session_epoch: self.epoch,
            session: self.place,
            kind: PbrKind::Batch as u8,
            orders: PbrRecord::pack_orders(3, self.order),
            ..Default::default()
        }
    }

    pub fn asking(&self, operation: Operation) -> PbrRecord {
        let request = Request {
            producer: self.producer,
            instance: self.instance,
            secret: Secret([self.secret; 16]),
            peer: self.peer,
            operation,
        };
        PbrRecord {
            chain: self.chain,
            orders: PbrRecord::pack_orders(0, self.order),
            ..request.record()
        }
    }

    /// The first opening, or another one of the same instance.
    pub fn opening(&self) -> PbrRecord {
        self.asking(Operation::Open { takes_over: 0 })
    }

    pub fn renewing(&self) -> PbrRecord {
        let (session, gives_up) = (self.place, self.epoch);
        self.asking(Operation::Renew { session, gives_up })
    }

    pub fn closing(&self) -> PbrRecord {
        let (session, epoch) = (self.place, self.epoch);
        self.asking(Operation::Close { session, epoch })
    }
}

/// A publisher that has no session yet.
pub fn publisher(producer: u64, order: u8) -> Session {
    Session {
        producer,
        instance: 1,
        secret: 7,
        peer: 0,
        chain: order.into(),
        order,
        place: 0,
        epoch: 0,
        first_epoch: 0,
        mark: 0,
    }
}

pub struct Scene {
    pub core: Core,
    pub now: u64,
    /// Number of the next record.
    pub next: u64,
    /// Row and incarnation of the broker that sends.
    pub broker: (u16, u32),
    /// Everything that came out.
    pub actions: Vec<Action>,
}

impl Scene {
    pub fn new(limits: Limits) -> Self {
        Self {
            core: Core::new(limits).unwrap(),
            now: 0,
            next: 0,
            broker: (1, 1),
            actions: Vec::new(),
        }
    }

    pub fn small() -> Self {
        Self::new(small())
    }

    fn since(&self, from: usize) -> Vec<Said> {
        self.actions[from..].iter().filter_map(said).collect()
    }

    /// Records arrive, all at once.
    pub fn send(&mut self, records: impl IntoIterator<Item = PbrRecord>) -> Vec<Said> {
        let numbered = (self.next..).zip(records);
        let arrivals: Vec<_> = numbered
            .map(|(number, record)| Arrival {
                source: Source {
                    row: self.broker.0,
                    lane: 0,
                    incarnation: self.broker.1,
                    number,
                },
                record,
            })
            .collect();
        self.next += arrivals.len() as u64;
        let from = self.actions.len();
        self.core.looked(self.now);
        self.core.arrive(&arrivals, self.now, &mut self.actions);
        self.since(from)
    }

    /// Batches of one message arrive.
    pub fn batches(
        &mut self,
        session: &Session,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Vec<Said> {
        let records: Vec<_> = numbers.into_iter().map(|it| session.batch(it)).collect();
        self.send(records)
    }

    /// Time passes, in steps that all count.
    pub fn pass(&mut self, nanoseconds: u64) -> Vec<Said> {
        let from = self.actions.len();
        let end = self.now + nanoseconds;
        while self.now < end {
            self.now = (self.now + 100).min(end);
            self.core.elapse(self.now, &mut self.actions);
        }
        self.since(from)
    }

    /// The outcome of a request for a session.
    pub fn ask(&mut self, record: PbrRecord) -> Outcome {
        self.send([record]);
        let Some(Action::Notify { outcome, .. }) = self.actions.last() else {
            panic!("a request is answered at once");
        };
        *outcome
    }

    /// A publisher asks for its session; gives the reason of a refusal.
    pub fn try_ask(
        &mut self,
        session: Session,
        operation: Operation,
    ) -> Result<Session, NoticeKind> {
        let outcome = self.ask(session.asking(operation));
        match outcome.kind {
            NoticeKind::Opened => Ok(Session {
                place: outcome.session,
                epoch: outcome.session_epoch,
                first_epoch: outcome.first_epoch,
                mark: outcome.mark,
                ..session
            }),
            kind => Err(kind),
        }
    }

    /// Opens a session; gives the reason of a refusal.
    pub fn try_open(&mut self, session: Session) -> Result<Session, NoticeKind> {
        self.try_ask(session, Operation::Open { takes_over: 0 })
    }

    /// Opens the first session of a publisher, or another of the same instance.
    pub fn open(&mut self, session: Session) -> Session {
        self.try_open(session).unwrap()
    }

    /// Opens the next epoch of a session.
    pub fn try_renew(&mut self, session: Session) -> Result<Session, NoticeKind> {
        let (place, gives_up) = (session.place, session.epoch);
        let renew = Operation::Renew {
            session: place,
            gives_up,
        };
        self.try_ask(session, renew)
    }

    /// Another instance of a session's client takes it over.
    pub fn take_over(&mut self, session: Session, instance: u64) -> Session {
        let takes_over = session.epoch;
        let newer = Session {
            instance,
            ..session
        };
        self.try_ask(newer, Operation::Open { takes_over }).unwrap()
    }
}

fn said(action: &Action) -> Option<Said> {
    Some(match action {
        Action::SaveOwner { .. } => return None,
        Action::Place { arrival, base } => Said::Placed(arrival.source.number, *base),
        Action::SaveSession { session, .. } => Said::Saved(*session),
        Action::Notify { source, outcome } if outcome.kind == NoticeKind::Fenced => {
            Said::Fenced(source.number, outcome.mark)
        }
        Action::Notify { source, outcome } => Said::Notified(source.number, outcome.kind),
    })
}

/// The record that a sequencer publishes for a placed batch.
pub fn ordered(arrival: &Arrival, base: u64) -> GoiRecord {
    let record = &arrival.record;
    GoiRecord {
        base,
        producer: record.producer,
        sequence: record.sequence,
        count: record.count,
        session_epoch: record.session_epoch,
        session: record.session,
        ..Default::default()
    }
}
