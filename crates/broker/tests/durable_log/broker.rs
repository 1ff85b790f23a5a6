//! A process that takes data.

use std::collections::HashMap;
use std::sync::Arc;

use embar_broker::log::{
    Admitted, Answer, Answered, Log, Read, Rejoin, Sender, Submitter, Wanted, Watermarks,
};
use embar_broker::peers::PeerId;
use embar_broker::topics::{Topic, TopicTable};
use embar_fabric::Claim;
use embar_memory::{Outage, Power, Simulated};
use embar_meter::profile::Recorder;
use embar_order::Request;
use embar_transport::Pieces;
use embar_wire::batch::BatchHeader;
use embar_wire::isolation::Isolation;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

use super::memory::{Files, Mapping};

const MARKS: Watermarks = Watermarks {
    high_bytes: 1 << 19,
    low_bytes: 1 << 18,
};

/// It may claim room for whatever it announces.
const TRUSTED: Sender = Sender {
    lane: 0,
    connection: 0,
    peer: PeerId::Here,
    credit_bytes: u64::MAX,
};

/// Whose submission one is.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Its place among all.
    pub publisher: usize,
    pub connection: u64,
    /// Of a batch.
    pub number: Option<u64>,
}

/// See the module.
pub struct Broker {
    pub row: u16,
    pub log: Log<Simulated>,
    topics: TopicTable<Simulated>,
    mapping: Mapping,
    _claim: Arc<Claim>,
    meter: Recorder,
    now: u64,
    submitted: u64,
    asked: HashMap<u64, Asked>,
    pub is_joined: bool,
    /// By topic, its frontier and its end at the last look.
    shown: HashMap<u32, (u64, u64)>,
}

impl Broker {
    /// The next incarnation of a row's broker, which has to be let in.
    pub fn new(files: &Files, row: u16) -> Self {
        let mapping = files.map(&Power::default());
        let claim = Arc::new(mapping.region.claim_unlocked(row));
        let topics = TopicTable::attach(&mapping.region, None);
        let all: Vec<Topic> = topics.iter().cloned().collect();
        let log = Log::open(&mapping.region, &claim, MARKS, &all);
        Self {
            row,
            log,
            topics,
            mapping,
            _claim: claim,
            meter: embar_meter::Profile::new(&embar_broker::profile::SCHEMA).recorder(),
            now: 1,
            submitted: 0,
            asked: HashMap::new(),
            is_joined: false,
            shown: HashMap::new(),
        }
    }

    pub fn end(&self, outage: Outage) {
        self.mapping.end(outage);
    }

    fn ticket(&mut self, asked: Asked) -> Submitter {
        self.submitted += 1;
        self.asked.insert(self.submitted, asked);
        Submitter {
            lane: 0,
            connection: 1,
            batch: Some(self.submitted),
        }
    }

    /// Takes in all news; what was answered since the last call.
    pub fn poll(&mut self) -> Vec<(Asked, Answer)> {
        self.refresh_topics();
        if !self.is_joined {
            self.is_joined = self.log.rejoin() == Rejoin::Done;
            return Vec::new();
        }
        let mut polls = 0;
        while self.log.poll_order() {
            polls += 1;
            assert!(polls < 1000, "there is always more");
        }
        assert!(!self.log.is_overtaken(), "nothing is damaged");
        self.check_frontiers();
        let answered = std::iter::from_fn(|| self.log.take_answered(0));
        let answered: Vec<Answered> = answered.collect();
        let asked = |it: Answered| {
            let ticket = it.submitter.batch?;
            Some((self.asked.remove(&ticket)?, it.answer))
        };
        answered.into_iter().filter_map(asked).collect()
    }

    fn refresh_topics(&mut self) {
        self.topics.refresh();
        for gone in self.topics.take_gone() {
            self.log.close_topic(gone);
        }
        self.log.refresh_moved();
        for moved in self.topics.take_moved() {
            if let Some(topic) = self.topics.by_id(moved) {
                self.log.move_to_disks(topic);
                // The others have less of it.
                self.shown.remove(&moved);
            }
        }
        for topic in self.topics.iter() {
            self.log.open_topic(topic);
        }
    }

    /// The topics that it knows.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.iter()
    }

    pub fn topic(&self, id: u32) -> Option<&Topic> {
        self.topics.by_id(id)
    }

    /// A frontier never goes back, and from it on everything can be read.
    fn check_frontiers(&mut self) {
        for topic in self.topics.iter() {
            let durable = self.log.durable(topic.id);
            let stats = self.log.topic_stats(topic.id).expect("it is open");
            let now = (durable, stats.next);
            let before = self.shown.insert(topic.id, now).unwrap_or_default();
            assert!(
                durable >= before.0,
                "the frontier of {} went back",
                topic.id
            );
            if now == before {
                continue;
            }
            assert!(
                stats.first <= durable,
                "{} was evicted above its frontier",
                topic.id
            );
            // The frontier of a topic goes back when its disks change, and another broker that did not see that yet evicts what the
            // former ones have.
            if topic.moves > 0 {
                continue;
            }
            for (isolation, end) in [
                (Isolation::Latest, stats.next),
                (Isolation::Durable, durable.min(stats.next)),
            ] {
                let from = durable.min(stats.next);
                let wanted = Wanted {
                    isolation,
                    ..Wanted::latest(topic.id, from)
                };
                let read = self
                    .log
                    .read(&wanted, 1, &mut 0, || Box::new(Pieces::new()));
                let is_there = match read {
                    Read::Pieces { .. } => from < end,
                    Read::End => from >= end,
                    // Another broker, which knew more of the disks, has evicted it.
                    Read::OnDisk { first } => first > from,
                    _ => false,
                };
                assert!(is_there, "topic {} from {from} on", topic.id);
            }
        }
    }

    /// Asks the sequencer in a session's name. False when there is no room.
    pub fn ask(&mut self, asked: Asked, topic: u32, request: &Request) -> bool {
        let ticket = self.ticket(asked);
        let asked = self.log.submit_session(topic, request, ticket);
        asked.is_ok()
    }

    /// Receives a batch. False when it is to be sent another time.
    pub fn receive(&mut self, asked: Asked, session: u32, frame: &[u8]) -> bool {
        let header = BatchHeader::parse(frame, MAX_BATCH_BYTES).expect("just sealed");
        let (topic, len) = (header.topic(), header.frame_len());
        let mut claimed = match self.log.admit(topic, len, len, &TRUSTED) {
            Ok(Admitted::InLog(claimed)) => claimed,
            Ok(Admitted::Staged(_)) => panic!("it is here as a whole"),
            Err(_) => return false,
        };
        claimed
            .reservation
            .write(BATCH_HEADER_BYTES, &frame[BATCH_HEADER_BYTES..]);
        let ticket = self.ticket(asked);
        self.now += 1;
        let now = WallNs(self.now);
        self.log
            .submit(claimed, header, session, ticket, now, &self.meter)
    }
}
