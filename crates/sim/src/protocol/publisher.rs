//! A publisher of one session: opens it, sends batches by any broker, sends again what is not answered, and gives
//! up its epoch when that is fenced. When it starts anew, it takes the session over from its older instance, and no
//! request of that one may take it back.
//!
//! It is no process and has no memory in the region: the world hands over its requests and their answers.

use std::collections::{BTreeMap, VecDeque};

use embar_fabric::NoticeKind;
use embar_order::{Operation, Outcome};

use super::oracle::{BatchId, OrderOracle};
use crate::random::Random;

/// Turns of an open publisher between two requests in its name by a thief, who does not know its secret.
const FORGED: u64 = 40;

/// What a publisher asks a broker for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBody {
    Open(Operation),
    Batch { number: u64, batch_id: BatchId },
    Close,
}

/// A request, on its way or with a broker.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub publisher: usize,
    pub chain: u32,
    pub level: u8,
    pub producer: u64,
    pub instance: u64,
    pub place: u32,
    pub epoch: u32,
    pub body: RequestBody,
    /// A thief sent it, who does not know the secret.
    pub is_forged: bool,
}

/// What a broker answers.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Placed { base: u64 },
    Outcome(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It opens its session next, or another epoch of it.
    Opening {
        operation: Operation,
        asked: bool,
    },
    Open,
    Closing {
        asked: bool,
    },
    Done,
}

#[derive(Debug)]
pub struct Publisher {
    id: usize,
    pub chain: u32,
    level: u8,
    producer: u64,
    instance: u64,
    place: u32,
    /// With which the session began there; 0 before it is open.
    first_epoch: u32,
    epoch: u32,
    state: State,
    /// The first number of the epoch, and the batch that it and each behind it was given to.
    mark: u64,
    numbered: Vec<u64>,
    /// By batch.
    acknowledged: Vec<bool>,
    ahead: u64,
    /// The brokers (slot, life) that an unanswered request was sent to.
    flights: BTreeMap<u64, Vec<(usize, u64)>>,
    asked_of: Option<(usize, u64)>,
    /// Sessions may be forgotten, and this one with them.
    pub forgettable: bool,
    pub gave_up: bool,
    pub inbox: VecDeque<(Request, Answer)>,
}

impl Publisher {
    pub fn new(id: usize, chain: (u32, u8), batches: u64, ahead: u64, random: &mut Random) -> Self {
        Self {
            id,
            chain: chain.0,
            level: chain.1,
            producer: random.bits(),
            instance: random.bits(),
            place: 0,
            first_epoch: 0,
            epoch: 0,
            state: State::Opening {
                operation: Operation::Open { takes_over: 0 },
                asked: false,
            },
            mark: 0,
            numbered: Vec::new(),
            acknowledged: vec![false; batches as usize],
            ahead,
            flights: BTreeMap::new(),
            asked_of: None,
            forgettable: false,
            gave_up: false,
            inbox: VecDeque::new(),
        }
    }

    pub fn state(&self) -> String {
        let open: Vec<u64> = self.unacknowledged().collect();
        let Self {
            id,
            chain,
            place,
            epoch,
            state,
            mark,
            numbered,
            flights,
            ..
        } = self;
        format!(
            "publisher {id} of {chain}: {state:?}, place {place}, epoch {epoch}, mark {mark}, {} numbered, not acknowledged {open:?}, sent {flights:?}",
            numbered.len()
        )
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Its chain is gone, or its session.
    pub fn stop(&mut self) {
        self.state = State::Done;
    }

    /// The process ends and another takes over its identity, which knows its batches, and not their outcomes. Order
    /// 2 gives outcomes to no successor, so there it never happens.
    pub fn restart(&mut self, random: &mut Random) -> bool {
        if self.level != 5 || matches!(self.state, State::Done | State::Closing { .. }) {
            return false;
        }
        self.instance = random.bits();
        self.open(Operation::Open { takes_over: 0 });
        true
    }

    fn open(&mut self, operation: Operation) {
        self.state = State::Opening {
            operation,
            asked: false,
        };
        self.flights.clear();
        self.asked_of = None;
    }

    /// Takes one answer, and sends what is to be sent to any of `brokers`.
    pub fn step(
        &mut self,
        brokers: &[(usize, u64)],
        oracle: &mut OrderOracle,
        random: &mut Random,
        sends: &mut Vec<(usize, Request)>,
    ) {
        if let Some((request, answer)) = self.inbox.pop_front() {
            self.answered(&request, &answer, oracle);
        }
        self.look_after(brokers, random);
        if brokers.is_empty() {
            return;
        }
        let to = *random.pick(brokers);
        let body = match self.state {
            State::Opening {
                operation,
                asked: false,
            } => {
                self.state = State::Opening {
                    operation,
                    asked: true,
                };
                self.asked_of = Some(to);
                Some(RequestBody::Open(operation))
            }
            State::Open => self.next_batch(to, oracle, random),
            State::Closing { asked: false } => {
                self.state = State::Closing { asked: true };
                self.asked_of = Some(to);
                Some(RequestBody::Close)
            }
            _ => None,
        };
        if let Some(body) = body {
            sends.push((to.0, self.request(body)));
        }
        if self.state == State::Open && random.one_in(FORGED) {
            let forged = self.request(RequestBody::Open(self.renewal()));
            sends.push((
                to.0,
                Request {
                    is_forged: true,
                    ..forged
                },
            ));
        }
    }

    fn renewal(&self) -> Operation {
        Operation::Renew {
            session: self.place,
            gives_up: self.epoch,
        }
    }

    fn request(&self, body: RequestBody) -> Request {
        Request {
            publisher: self.id,
            chain: self.chain,
            level: self.level,
            producer: self.producer,
            instance: self.instance,
            place: self.place,
            epoch: self.epoch,
            body,
            is_forged: false,
        }
    }

    /// Forgets flights to brokers that died, and now and then one that may only be slow.
    fn look_after(&mut self, brokers: &[(usize, u64)], random: &mut Random) {
        for sent_to in self.flights.values_mut() {
            sent_to.retain(|to| brokers.contains(to));
        }
        let lost = self.asked_of.is_some_and(|to| !brokers.contains(&to));
        if lost || random.one_in(100) {
            self.state = match self.state {
                State::Opening { operation, .. } => State::Opening {
                    operation,
                    asked: false,
                },
                State::Closing { .. } => State::Closing { asked: false },
                other => other,
            };
        }
    }

    fn next_batch(
        &mut self,
        to: (usize, u64),
        oracle: &mut OrderOracle,
        random: &mut Random,
    ) -> Option<RequestBody> {
        let open: Vec<u64> = self.unacknowledged().collect();
        if open.is_empty() && self.numbered.len() as u64 + self.first_logical() == self.batches() {
            self.state = State::Closing { asked: false };
            return None;
        }
        let lost = |number: &u64| self.flights.get(number).is_none_or(Vec::is_empty);
        let again = open.iter().copied().find(lost);
        let again = match again {
            None if random.one_in(40) && !open.is_empty() => Some(*random.pick(&open)),
            other => other,
        };
        let number = match again {
            Some(number) => number,
            None if (open.len() as u64) < self.ahead => {
                let batch_id = self.first_logical() + self.numbered.len() as u64;
                if batch_id == self.batches() {
                    return None;
                }
                self.give_number(batch_id, oracle)
            }
            None => return None,
        };
        self.flights.entry(number).or_default().push(to);
        let index = self.batch_id(number)?;
        let batch_id = BatchId {
            publisher: self.id,
            index,
        };
        Some(RequestBody::Batch { number, batch_id })
    }

    fn batches(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// The first batch that has no number of this epoch because it was placed in an older one.
    fn first_logical(&self) -> u64 {
        // Order 5 places a prefix; order 2 has one epoch.
        match self.numbered.first() {
            Some(first) => *first,
            None => self.acknowledged.iter().take_while(|it| **it).count() as u64,
        }
    }

    fn give_number(&mut self, batch_id: u64, oracle: &mut OrderOracle) -> u64 {
        let number = self.mark + self.numbered.len() as u64;
        self.numbered.push(batch_id);
        let key = (self.chain, self.place, self.epoch, number);
        oracle.number(
            key,
            BatchId {
                publisher: self.id,
                index: batch_id,
            },
        );
        number
    }

    fn batch_id(&self, number: u64) -> Option<u64> {
        let index = number.checked_sub(self.mark)?;
        self.numbered.get(usize::try_from(index).ok()?).copied()
    }

    fn unacknowledged(&self) -> impl Iterator<Item = u64> + '_ {
        let numbers = (self.mark..).zip(&self.numbered);
        numbers
            .filter(|(_, batch_id)| !self.acknowledged[**batch_id as usize])
            .map(|(number, _)| number)
    }

    fn answered(&mut self, request: &Request, answer: &Answer, oracle: &mut OrderOracle) {
        if self.is_done() {
            return;
        }
        if request.is_forged {
            let opened =
                matches!(answer, Answer::Outcome(outcome) if outcome.kind == NoticeKind::Opened);
            assert!(!opened, "a thief has the session of {self:?}");
            return;
        }
        let current = request.instance == self.instance;
        match (request.body, *answer) {
            (RequestBody::Batch { batch_id, .. }, Answer::Placed { base }) => {
                oracle.acknowledge(self.chain, batch_id, Some(base));
                self.acknowledged[batch_id.index as usize] = true;
            }
            (
                RequestBody::Batch { batch_id, .. },
                Answer::Outcome(Outcome {
                    kind: NoticeKind::Duplicate,
                    ..
                }),
            ) => {
                assert!(
                    oracle.may_be_placed(self.chain, batch_id),
                    "{batch_id:?} is told to be placed already and nobody saw it: {request:?}"
                );
                oracle.acknowledge(self.chain, batch_id, None);
                self.acknowledged[batch_id.index as usize] = true;
            }
            (RequestBody::Batch { number, .. }, Answer::Outcome(Outcome { kind, .. })) => {
                let same = current && request.epoch == self.epoch && request.place == self.place;
                if same && self.state == State::Open {
                    self.refused(number, kind);
                }
            }
            (RequestBody::Open(operation), Answer::Outcome(outcome)) if current => {
                if matches!(self.state, State::Opening { operation: now, .. } if now == operation) {
                    self.opened(operation, &outcome, oracle);
                }
            }
            (RequestBody::Close, Answer::Outcome(Outcome { kind, .. })) if current => match kind {
                NoticeKind::BeyondWindow => self.state = State::Closing { asked: false },
                _ => self.stop(),
            },
            _ => {}
        }
    }

    fn refused(&mut self, number: u64, kind: NoticeKind) {
        match kind {
            NoticeKind::HeldFull | NoticeKind::BeyondWindow => {
                self.flights.remove(&number);
            }
            NoticeKind::Fenced if self.level == 5 => self.open(self.renewal()),
            NoticeKind::GivenUp => self.forgotten(),
            other => panic!("batch {number} of {self:?} was told {other:?}"),
        }
    }

    fn forgotten(&mut self) {
        assert!(self.forgettable, "an open session was forgotten: {self:?}");
        self.gave_up = true;
        self.stop();
    }

    fn opened(&mut self, operation: Operation, outcome: &Outcome, oracle: &mut OrderOracle) {
        let (place, epoch, mark) = (outcome.session, outcome.session_epoch, outcome.mark);
        match outcome.kind {
            NoticeKind::Opened => {}
            NoticeKind::SessionsFull => return self.open(operation),
            // Another instance of it has the session, which is no more.
            NoticeKind::InUse => return self.open(Operation::Open { takes_over: epoch }),
            NoticeKind::GivenUp => return self.forgotten(),
            other => panic!("opening {self:?} was told {other:?}"),
        }
        let is_another = (place, outcome.first_epoch) != (self.place, self.first_epoch);
        if self.first_epoch > 0 && is_another {
            // Forgotten, and opened again by an old request of its own.
            return self.forgotten();
        }
        self.first_epoch = outcome.first_epoch;
        oracle.begins((self.chain, place, self.producer), epoch, mark);
        if self.level == 5 {
            for (number, batch_id) in (self.mark..).zip(&self.numbered) {
                let placed = number < mark;
                let known = &mut self.acknowledged[*batch_id as usize];
                assert!(
                    placed || !*known,
                    "number {number} was acknowledged, and the next epoch begins at {mark}"
                );
                if placed && !*known {
                    *known = true;
                    let batch_id = BatchId {
                        publisher: self.id,
                        index: *batch_id,
                    };
                    oracle.acknowledge(self.chain, batch_id, None);
                }
            }
        } else {
            assert!(self.numbered.is_empty(), "an open session was opened");
        }
        (self.place, self.epoch, self.mark) = (place, epoch, mark);
        self.numbered.clear();
        self.flights.clear();
        self.asked_of = None;
        self.state = State::Open;
    }
}
