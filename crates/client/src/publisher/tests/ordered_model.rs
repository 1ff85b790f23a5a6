//! A sequencer of a few lines, connections that break at any moment, and the core: whatever happens, every batch is stored
//! once, in the order in which it was published.

use std::collections::{HashMap, VecDeque};

use embar_wire::control::{PublisherOpened, SessionOpened};
use embar_wire::topic::Order;

use super::script::opened;
use super::*;

const BATCHES: u64 = 60;
const CHANNELS: [ChannelId; 2] = [A, B];

/// What a broker has got and not answered.
#[derive(Clone, Copy)]
struct Arrived {
    batch: u64,
    epoch: u32,
    number: u64,
}

#[derive(Default)]
struct Broker {
    arrived: VecDeque<Arrived>,
    answered: u64,
}

struct Model {
    script: Script,
    random: SplitMix64,
    brokers: HashMap<ChannelId, Broker>,
    epoch: u32,
    is_fenced: bool,
    /// Batches by number, and so by position.
    stored: Vec<u64>,
    submitted: u64,
    outcomes: Vec<(u64, Outcome)>,
    fences: u32,
}

impl Model {
    fn new(seed: u64) -> Self {
        let config = PublisherConfig {
            seed,
            batches_in_flight: 5,
            ..config()
        };
        let mut model = Self {
            script: Script::new(config),
            random: SplitMix64::new(seed),
            brokers: CHANNELS.map(|channel| (channel, Broker::default())).into(),
            epoch: 1,
            is_fenced: false,
            stored: Vec::new(),
            submitted: 0,
            outcomes: Vec::new(),
            fences: 0,
        };
        model.script.tell_cluster(2);
        model
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random.next_u64().is_multiple_of(count)
    }

    fn announcement(&self) -> Control {
        let Control::PublisherOpened(opened) = opened() else {
            panic!("another answer");
        };
        Control::PublisherOpened(PublisherOpened {
            order: Order::TotalPerPublisher,
            session: 2,
            session_epoch: self.epoch,
            mark: self.stored.len() as u64,
            window: 8,
            ..opened
        })
    }

    /// Decides about a batch as a sequencer does that does not hold any.
    fn decide(&mut self, arrived: Arrived) -> Result<u64, ErrorCode> {
        let expected = self.stored.len() as u64;
        if arrived.number < expected {
            let here = self.stored[arrived.number as usize];
            assert_eq!(here, arrived.batch, "one number for two batches");
            return Ok(arrived.number);
        }
        if arrived.epoch < self.epoch || self.is_fenced {
            return Err(ErrorCode::Fenced);
        }
        if arrived.number == expected {
            self.stored.push(arrived.batch);
            return Ok(expected);
        }
        assert!(arrived.number < expected + 8, "beyond the window");
        if self.one_in(3) {
            self.is_fenced = true;
            self.fences += 1;
            return Err(ErrorCode::Fenced);
        }
        Err(ErrorCode::HeldFull)
    }

    /// The first batch that a broker has not answered is decided about.
    fn answer(&mut self, channel: ChannelId) {
        let Some(arrived) = self.broker(channel).arrived.pop_front() else {
            return;
        };
        let decided = self.decide(arrived);
        let mark = self.stored.len() as u64;
        let broker = self.broker(channel);
        let first = broker.answered;
        broker.answered += 1;
        match decided {
            Ok(offset) => self.script.ack(channel, first, &[offset]),
            Err(code) => self.script.refuse(channel, first, code, &[mark]),
        }
    }

    fn broker(&mut self, channel: ChannelId) -> &mut Broker {
        self.brokers.get_mut(&channel).expect("one of two")
    }

    /// What is with the reactor arrives.
    fn arrive(&mut self, channel: ChannelId) {
        let headers = self.script.headers(channel);
        if headers.is_empty() {
            return;
        }
        self.script.sent(channel);
        let arrived = headers.into_iter().map(|header| Arrived {
            batch: header.append_time().0,
            epoch: header.epoch(),
            number: header.sequence(),
        });
        self.broker(channel).arrived.extend(arrived);
    }

    /// The connection breaks; what had arrived may still be decided about, and nobody is told.
    fn lose(&mut self, channel: ChannelId) {
        if self.one_in(2) {
            self.arrive(channel);
        }
        for arrived in std::mem::take(self.broker(channel)).arrived {
            if self.one_in(2) {
                let _ = self.decide(arrived);
            }
        }
        self.script.lose(channel);
    }

    fn requests(&mut self, channel: ChannelId) {
        for request in std::mem::take(&mut self.script.sockets.channel(channel).sent) {
            let Control::OpenSession(open) = request else {
                continue;
            };
            if open.gives_up == self.epoch {
                self.epoch += 1;
                self.is_fenced = false;
            }
            let granted = SessionOpened {
                session: 2,
                session_epoch: self.epoch,
                mark: self.stored.len() as u64,
                first_epoch: 0,
            };
            if self.one_in(4) {
                self.lose(channel);
                return;
            }
            self.script.tell(channel, &Control::SessionOpened(granted));
        }
    }

    fn step(&mut self, breaks: bool) {
        if self.submitted < BATCHES && self.one_in(2) {
            self.script.submit(self.submitted);
            self.submitted += 1;
        }
        let now = self.script.now.0 + self.random.next_u64() % (SECOND / 50);
        self.script.tick_at(now);
        if self
            .script
            .sockets
            .channel(ChannelId::CONTROL)
            .connecting
            .is_some()
        {
            self.script.tell_cluster(2);
        }
        for channel in CHANNELS {
            if self.script.sockets.channel(channel).connecting.is_some() {
                let announcement = self.announcement();
                self.script.announce(channel, &announcement);
            }
            if self.script.sockets.channel(channel).closing || (breaks && self.one_in(40)) {
                self.lose(channel);
            }
            if self.one_in(2) {
                self.arrive(channel);
            }
            self.requests(channel);
            if self.one_in(2) {
                self.answer(channel);
            }
        }
        self.outcomes.extend(self.script.outcomes());
    }
}

#[test]
fn every_batch_is_stored_once_and_in_order_whatever_breaks() {
    let mut fences = 0;
    for seed in 0..150 {
        let mut model = Model::new(seed);
        for round in 0..20_000 {
            model.step(round < 2_000);
            if model.outcomes.len() as u64 == BATCHES {
                break;
            }
        }
        let all: Vec<u64> = (0..BATCHES).collect();
        assert_eq!(model.stored, all, "seed {seed}");
        let mut outcomes = std::mem::take(&mut model.outcomes);
        outcomes.sort_by_key(|(batch, _)| *batch);
        for (batch, outcome) in &outcomes {
            let broker = None;
            let here = super::super::receipt::Position {
                broker,
                offset: *batch,
            };
            assert_eq!(*outcome, Outcome::Stored(here), "seed {seed}");
        }
        assert_eq!(outcomes.len() as u64, BATCHES, "seed {seed}");
        fences += model.fences;
    }
    assert!(fences > 100, "{fences} epochs ended");
}
