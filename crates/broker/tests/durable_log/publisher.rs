//! A publisher that wants acknowledgements at level 2: it sends what was not acknowledged until it is.

use std::collections::BTreeMap;

use embar_broker::log::Answer;
use embar_fabric::Secret;
use embar_order::{Operation, Request};
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::ErrorCode;
use embar_wire::time::WallNs;
use fastrand::Rng;

use super::broker::{Asked, Broker};
use super::oracle::Oracle;

/// Batches that it has under way at most.
const WINDOW: usize = 6;

/// What one batch says.
#[derive(Clone, Debug)]
struct Message {
    /// Unlike any other; they grow.
    id: u64,
    bytes: usize,
    is_under_way: bool,
    /// Its acknowledgement can be sent once the topic is durable up to here.
    durable_at: Option<u64>,
}

/// A session as it was answered.
#[derive(Clone, Copy, Debug)]
struct Session {
    slot: u32,
    epoch: u32,
    /// Which of all sessions.
    name: usize,
}

/// See the module.
pub struct Publisher {
    pub topic: u32,
    pub producer: u64,
    instance: u64,
    pub row: u16,
    /// Unlike all others.
    pub connection: u64,
    session: Option<Session>,
    /// The sequencer answered this instance before.
    was_answered: bool,
    /// What it waits for.
    asked: Option<Operation>,
    /// The session is to be renewed, as this epoch is over.
    is_fenced: bool,
    /// In which epoch another instance has the session.
    takes_over: u32,
    /// By number.
    unacknowledged: BTreeMap<u64, Message>,
    next: u64,
    pub is_closing: bool,
    /// It asked for that, and perhaps it was done.
    has_closed: bool,
    is_over: bool,
}

impl Publisher {
    pub fn new(topic: u32, producer: u64, instance: u64, row: u16) -> Self {
        Self {
            topic,
            producer,
            instance,
            row,
            connection: instance,
            session: None,
            was_answered: false,
            asked: None,
            is_fenced: false,
            takes_over: 0,
            unacknowledged: BTreeMap::new(),
            next: 0,
            is_closing: false,
            has_closed: false,
            is_over: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    pub fn is_idle(&self) -> bool {
        self.is_over || self.unacknowledged.is_empty() && self.asked.is_none()
    }

    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// Its connection is gone, with all that was under way on it.
    pub fn disconnect(&mut self, row: u16, oracle: &mut Oracle) {
        self.row = row;
        self.connection = oracle.next_id();
        self.asked = None;
        self.session = None;
        self.is_fenced = false;
        for message in self.unacknowledged.values_mut() {
            message.is_under_way = false;
            message.durable_at = None;
        }
    }

    /// Another instance begins, which knows nothing of this one.
    pub fn restart(&mut self, instance: u64) {
        *self = Self::new(self.topic, self.producer, instance, self.row);
    }

    fn request(&self) -> Operation {
        match self.session {
            Some(session) if self.is_closing => Operation::Close {
                session: session.slot,
                epoch: session.epoch,
            },
            Some(session) => Operation::Renew {
                session: session.slot,
                gives_up: session.epoch,
            },
            None if self.was_answered => Operation::Resume,
            None => Operation::Open {
                takes_over: self.takes_over,
            },
        }
    }

    /// Wants the next epoch, as a client does after a gap.
    pub fn renew(&mut self) {
        self.is_fenced |= self.session.is_some();
    }

    /// Does what is next. `me` is its place among the publishers.
    pub fn step(&mut self, me: usize, broker: &mut Broker, oracle: &mut Oracle, random: &mut Rng) {
        let knows = broker.is_joined && broker.topic(self.topic).is_some();
        if self.is_over || self.asked.is_some() || !knows {
            return;
        }
        let is_quiet = !self.unacknowledged.values().any(|it| it.is_under_way);
        let closes = self.is_closing && self.unacknowledged.is_empty();
        if self.session.is_none() || (self.is_fenced || closes) && is_quiet {
            return self.ask(me, broker, oracle);
        }
        if !self.is_fenced {
            self.send(me, broker, oracle, random);
        }
    }

    fn ask(&mut self, me: usize, broker: &mut Broker, oracle: &mut Oracle) {
        let operation = self.request();
        let request = Request {
            producer: self.producer,
            instance: self.instance,
            secret: Secret([7; 16]),
            peer: 0,
            operation,
        };
        let asked = Asked {
            publisher: me,
            connection: self.connection,
            number: None,
        };
        if broker.ask(asked, self.topic, &request) {
            if let Operation::Close { .. } = operation
                && let Some(session) = self.session
            {
                oracle.closed(session.name);
                self.has_closed = true;
            }
            self.asked = Some(operation);
        }
    }

    /// Something new for later.
    pub fn publish(&mut self, oracle: &mut Oracle, random: &mut Rng) {
        let may = self.session.is_some() && !self.is_fenced && !self.is_closing;
        if !may || self.is_over || self.unacknowledged.len() >= WINDOW {
            return;
        }
        let bytes = match random.u8(..10) {
            0 => random.usize(20_000..60_000),
            1..4 => random.usize(2_000..9_000),
            _ => random.usize(8..1_000),
        };
        let message = Message {
            id: oracle.next_id(),
            bytes,
            is_under_way: false,
            durable_at: None,
        };
        self.unacknowledged.insert(self.next, message);
        self.next += 1;
    }

    fn send(&mut self, me: usize, broker: &mut Broker, oracle: &mut Oracle, random: &mut Rng) {
        let session = self.session.expect("it is open");
        let mut due: Vec<u64> = self
            .unacknowledged
            .iter()
            .filter(|(_, it)| !it.is_under_way && it.durable_at.is_none())
            .map(|(number, _)| *number)
            .collect();
        // Now and then one overtakes another on its way.
        if random.u8(..8) == 0 {
            due.reverse();
        }
        let Some(number) = due.first().copied() else {
            return;
        };
        let message = self.unacknowledged.get_mut(&number).expect("it is due");
        let frame = seal(self.topic, self.producer, session.epoch, number, message);
        oracle.sent(session.name, message.id, &frame);
        let asked = Asked {
            publisher: me,
            connection: self.connection,
            number: Some(number),
        };
        message.is_under_way = broker.receive(asked, session.slot, &frame);
    }

    /// Takes what the sequencer said of a batch.
    pub fn batch_answered(
        &mut self,
        number: u64,
        answer: Answer,
        broker: &Broker,
        oracle: &mut Oracle,
    ) {
        let Some(message) = self.unacknowledged.get_mut(&number) else {
            return;
        };
        message.is_under_way = false;
        match answer {
            Answer::Stored(POSITION_UNKNOWN) => {
                let stats = broker.log.topic_stats(self.topic);
                message.durable_at = Some(stats.map_or(0, |stats| stats.next));
            }
            Answer::Stored(base) => message.durable_at = Some(base + 1),
            Answer::Refused(ErrorCode::Fenced, _) => self.is_fenced = true,
            Answer::Refused(ErrorCode::HeldFull | ErrorCode::BeyondWindow, _) => {}
            Answer::Refused(ErrorCode::UnknownTopic, _) => self.is_over = true,
            Answer::Refused(ErrorCode::UnknownSession | ErrorCode::SessionGivenUp, _) => {
                let row = self.row;
                self.disconnect(row, oracle);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Takes what the sequencer said of the session.
    pub fn session_answered(&mut self, answer: Answer, oracle: &mut Oracle) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        match answer {
            Answer::Opened {
                session,
                epoch,
                first_epoch,
                mark,
            } => {
                let is_new = matches!(asked, Operation::Open { .. }) && mark == 0;
                let is_new = is_new && epoch == first_epoch;
                let whose = (self.topic, self.producer, first_epoch);
                self.opened(
                    Session {
                        slot: session,
                        epoch,
                        name: oracle.session(whose, is_new),
                    },
                    mark,
                    asked,
                );
            }
            Answer::InUse(epoch) => self.takes_over = epoch,
            Answer::Closed => self.is_over = true,
            Answer::Refused(ErrorCode::UnknownTopic, _) => self.is_over = true,
            Answer::Refused(ErrorCode::SessionGivenUp | ErrorCode::SessionTaken, _)
                if self.has_closed =>
            {
                self.is_over = true;
            }
            // No batch of it is known any more, or another one's session is there again.
            Answer::Refused(
                ErrorCode::SessionGivenUp | ErrorCode::SessionTaken | ErrorCode::UnknownSession,
                _,
            ) => self.begin_again(oracle),
            Answer::Refused(ErrorCode::Fenced | ErrorCode::BeyondWindow, _) => {
                self.session = None;
            }
            Answer::Refused(ErrorCode::ClusterFull, _) => {}
            other => panic!("{other:?}"),
        }
    }

    /// The session is gone, or another instance has it: then no batch of this one may be there.
    fn begin_again(&mut self, oracle: &mut Oracle) {
        oracle.given_up(self.topic, self.producer, self.instance);
        self.session = None;
        self.was_answered = false;
        self.is_fenced = false;
        self.takes_over = 0;
        self.instance = oracle.next_id();
    }

    fn opened(&mut self, session: Session, mark: u64, asked: Operation) {
        self.was_answered = true;
        self.session = Some(session);
        self.takes_over = 0;
        self.is_fenced = false;
        // A session that it opens first has no batch of it, whatever the mark counts.
        let from = match asked {
            Operation::Open { .. } => 0,
            _ => mark,
        };
        let mut left = self.unacknowledged.range(from..).map(|(number, _)| *number);
        let is_in_turn = match left.next() {
            Some(first) => first == mark && left.zip(mark + 1..).all(|(its, due)| its == due),
            None => self.next == mark,
        };
        if is_in_turn {
            return;
        }
        if let Operation::Resume = asked {
            // Another numbering needs another epoch.
            self.is_fenced = true;
            return;
        }
        let left = self.unacknowledged.split_off(&from);
        self.next = mark;
        for message in left.into_values() {
            self.unacknowledged.insert(self.next, message);
            self.next += 1;
        }
    }

    /// What of it is acknowledged by a broker's frontier.
    pub fn acknowledge(&mut self, broker: &Broker, oracle: &mut Oracle) {
        let durable = broker.log.durable(self.topic);
        let topic = self.topic;
        self.unacknowledged.retain(|_, message| {
            let is_acknowledged = message.durable_at.is_some_and(|at| at <= durable);
            if is_acknowledged {
                oracle.acknowledged(topic, message.id);
            }
            !is_acknowledged
        });
    }
}

/// The batch of a message, in so many messages of the log as its id says.
fn seal(topic: u32, producer: u64, epoch: u32, sequence: u64, message: &Message) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), (message.bytes + 1024).next_multiple_of(64));
    let mut value = vec![message.id as u8; message.bytes];
    value[..8].copy_from_slice(&message.id.to_le_bytes());
    builder.try_push(None, &[], &value).expect("it fits");
    for _ in 0..message.id % 3 {
        builder.try_push(None, &[], &[]).expect("it fits");
    }
    builder
        .seal(SealFields {
            producer,
            sequence,
            topic,
            epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        })
        .into()
}
