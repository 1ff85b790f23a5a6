//! A disk that stands still while its topics' publishers, and those of others, go on.

use std::time::Duration;

use embar_broker::log::Answer;
use embar_broker::topics::Topic;
use embar_disk::Simulated as Disk;
use embar_fabric::Secret;
use embar_frame::Now;
use embar_order::{Operation, Request};
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::CreateTopic;
use embar_wire::time::WallNs;
use fastrand::Rng;

use super::broker::{Asked, Broker};
use super::candidate::Candidate;
use super::memory::{CANDIDATES, DATA_ROWS, DISKS, Files};
use super::world::table;

/// So few that the order of two topics does not fit.
const GOI_PAGES: u32 = 16;

/// A topic's publisher, which sends one batch after the other.
struct Source {
    topic: Topic,
    session: (u32, u32),
    next: u64,
}

struct Standstill {
    candidate: Candidate,
    brokers: Vec<Broker>,
    answers: Vec<Answer>,
    now: Now,
}

impl Standstill {
    fn new(files: &Files) -> Self {
        let mut candidate = Candidate::new(files, CANDIDATES[0]);
        candidate.take_over(Now(0));
        Self {
            candidate,
            brokers: DATA_ROWS.map(|row| Broker::new(files, row)).into(),
            answers: Vec::new(),
            now: Now(0),
        }
    }

    fn turn(&mut self) {
        self.now = self.now.after(Duration::from_millis(10));
        self.candidate.turn(self.now);
        for broker in &mut self.brokers {
            let answers = broker.poll();
            self.answers
                .extend(answers.into_iter().map(|(_, answer)| answer));
        }
    }

    fn source(&mut self, name: &str, disks: u8) -> Source {
        let spec = CreateTopic {
            name: name.into(),
            order: 5,
            retention_bytes: 0,
            retention_ms: 0,
            max_message_bytes: 0,
            replication_factor: 1 + disks,
        };
        let created = table(&self.candidate).create(&spec, 1 << 16, WallNs(1), |_| 0);
        let topic = created.expect("there is room");
        while !self.brokers.iter().all(|broker| broker.is_joined) {
            self.turn();
        }
        self.turn();
        let request = Request {
            producer: 1,
            instance: 1,
            secret: Secret([7; 16]),
            peer: 0,
            operation: Operation::Open { takes_over: 0 },
        };
        assert!(self.brokers[0].ask(NOBODY, topic.id, &request));
        self.turn();
        match self.answers.drain(..).next_back() {
            Some(Answer::Opened { session, epoch, .. }) => Source {
                topic,
                session: (session, epoch),
                next: 0,
            },
            other => panic!("{other:?}"),
        }
    }

    /// False when there is no room for it.
    fn publish(&mut self, source: &mut Source, bytes: usize) -> bool {
        let mut builder = BatchBuilder::new(Vec::new(), bytes.next_multiple_of(64) + 256);
        builder
            .try_push(None, &[], &vec![1; bytes])
            .expect("it fits");
        let frame: Vec<u8> = builder
            .seal(SealFields {
                producer: 1,
                sequence: source.next,
                topic: source.topic.id,
                epoch: source.session.1,
                append_time: WallNs(1),
                flags: BatchFlags::default(),
            })
            .into();
        let came = self.brokers[0].receive(NOBODY, source.session.0, &frame);
        source.next += u64::from(came);
        self.turn();
        came
    }
}

const NOBODY: Asked = Asked {
    publisher: 0,
    connection: 0,
    number: None,
};

/// With batches of so many bytes, of which the other topic publishes so many.
fn stands_still(bytes: usize, others: u64) {
    let files = Files::new(9, GOI_PAGES);
    let mut world = Standstill::new(&files);
    let mut durable = world.source("durable", 1);
    let mut other = world.source("other", 0);
    while world.publish(&mut durable, bytes) {
        assert!(durable.next < 10_000, "it never waits for the disk");
    }
    while other.next < others {
        assert!(world.publish(&mut other, bytes), "it waits for no disk");
        assert!(!world.publish(&mut durable, bytes), "it waits for the disk");
    }
    // The disk goes on, and so does the publisher. Each poll looks whether what the disk has not is still in memory.
    let disks: Vec<Disk> = (0..DISKS).map(|_| Disk::new()).collect();
    let mut random = Rng::with_seed(1);
    let id = durable.topic.id;
    let all_on_disk = |world: &Standstill| {
        let mut frontiers = world.brokers.iter().map(|broker| broker.log.durable(id));
        frontiers.all(|frontier| frontier == durable.next)
    };
    for _ in 0..3_000 {
        if all_on_disk(&world) {
            break;
        }
        for disk in 0..DISKS {
            world.candidate.write(disk, &disks, Vec::new(), &mut random);
        }
        world.turn();
    }
    assert!(
        all_on_disk(&world),
        "what was in memory does not get onto the disk"
    );
    assert!(world.publish(&mut durable, bytes));
}

#[test]
fn the_order_of_what_is_on_no_disk_yet_stays_whatever_others_publish() {
    stands_still(9, 1_500);
}

#[test]
fn the_bytes_of_what_is_on_no_disk_yet_stay_whatever_others_publish() {
    stands_still(20_000, 100);
}
