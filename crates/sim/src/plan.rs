//! What a run does, drawn from its seed: shapes, loads and the mix of faults.
//!
//! Each seed has a mix of its own (some faults often, some never), because a run in which
//! everything fails all the time never gets into interesting states.

mod scenario;

use std::time::Duration;

use embar_broker::BrokerConfig;
use embar_client::{Acks, OnBrokerLoss, OnEvicted};
use embar_fabric::Geometry;

use crate::network::NetworkConditions;
use crate::random::Random;

/// One topic.
#[derive(Clone, Debug)]
pub struct TopicPlan {
    /// Its name.
    pub name: String,
    /// Its order level.
    pub order: u8,
    /// Bytes kept; 0 = until the log is full.
    pub retention_bytes: u64,
}

/// One publisher.
#[derive(Clone, Debug)]
pub struct PublisherPlan {
    /// Index of its topic.
    pub topic: usize,
    /// Its ack level.
    pub acks: Acks,
    /// What it does with batches in doubt.
    pub on_broker_loss: OnBrokerLoss,
    /// Its connections.
    pub lanes: u32,
    /// Batches that one connection carries.
    pub in_flight: usize,
    /// Batches that it has not had back, at most.
    pub outstanding: u64,
    /// Batches that it publishes in all.
    pub batches: u64,
    /// Longest frame, header included.
    pub batch_bytes: usize,
    /// Longest message.
    pub message_bytes: u64,
    /// Longest pause between two batches, in nanoseconds.
    pub pace_ns: u64,
}

/// One subscriber.
#[derive(Clone, Debug)]
pub struct SubscriberPlan {
    /// Index of its topic.
    pub topic: usize,
    /// What it does when it was overtaken.
    pub on_evicted: OnEvicted,
    /// Longest time for which it keeps a batch, in nanoseconds.
    pub think_ns: u64,
    /// Batches it has in memory.
    pub buffers: usize,
}

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// Sessions are opened, each by a connection of its own.
    Sessions,
    /// Connections are made, and stay.
    Connections,
    /// Small questions are asked, without waiting for answers.
    Questions,
}

/// How often faults happen: one in so many steps; 0 = never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A host dies, or only its process.
    pub crash: u64,
    /// A connection breaks.
    pub cut: u64,
    /// A connection breaks, and one of its ends never learns of it.
    pub half_open: u64,
    /// One direction of a connection stands still.
    pub stall: u64,
    /// A data broker is asked to leave.
    pub leave: u64,
    /// A topic is deleted, and another one comes in its place.
    pub delete: u64,
    /// A host stands still.
    pub pause: u64,
    /// A turn stops before what it decided is carried out: one in so many turns.
    pub pause_midway: u64,
    /// A standby takes over from a sequencer that lives.
    pub challenge: u64,
    /// Accesses to memory between two at which other hosts run in the middle of a turn.
    pub interrupt: u64,
    /// How many of them one counts for that concerns which candidate leads.
    pub watched: u64,
    /// A wake-up is lost: one in so many.
    pub lost_wakeup: u64,
    /// The sequencer is late by up to the lease of a gap: one turn in so many.
    pub late_sequencer: u64,
    /// A subscriber goes away and another takes its place, from anywhere.
    pub resubscribe: u64,
    /// A publisher's process dies, and the next one has its identity.
    pub rebirth: u64,
    /// A client stands still, whatever it was in the middle of.
    pub freeze: u64,
    /// A host's clocks jump.
    pub jump: u64,
    /// A bit of the control file is wrong from now on.
    pub flip: u64,
    /// A line of the control file is lost.
    pub lose: u64,
    /// What was just submitted, or said of a submission, is lost: one in so many times.
    pub lose_unread: u64,
    /// The newest record of the order is lost: one in so many steps that order something.
    pub lose_newest: u64,
    /// A host, or a client, has no descriptor for a while.
    pub shortage: u64,
    /// The start of a broker fails: one in so many starts.
    pub failed_start: u64,
}

/// Everything that a seed decides before its run begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The region.
    pub geometry: Geometry,
    /// All brokers.
    pub config: BrokerConfig,
    /// What there is to publish to.
    pub topics: Vec<TopicPlan>,
    /// The publishers.
    pub publishers: Vec<PublisherPlan>,
    /// The subscribers.
    pub subscribers: Vec<SubscriberPlan>,
    /// Clients that send garbage, and break rules.
    pub byzantine_clients: usize,
    /// Clients that claim room and hardly use it.
    pub slowloris_clients: usize,
    /// Clients that ask for too much of something.
    pub floods: Vec<FloodKind>,
    /// Each client is on a host of its own, and those that take what others need share one; else all are
    /// where the brokers are, but for floods.
    pub apart: bool,
    /// An acknowledgement takes no longer than this, in nanoseconds, although slowloris clients claim room.
    pub longest_wait_ns: Option<u64>,
    /// Each host's clock has a rate of its own.
    pub clocks_drift: bool,
    /// So much comes that the log is full from then on.
    pub keeps_full: bool,
    /// The first number of each lane; its row's versions begin just below their end, too, if this is not 0.
    pub lanes_begin_at: u64,
    /// How many times the usual steps it takes.
    pub endurance: u64,
    /// What the network is like.
    pub network: NetworkConditions,
    /// What goes wrong.
    pub faults: Faults,
}

const MS: u64 = 1_000_000;
/// One in so many seeds checks how long publishers wait.
const BOUNDED_WAIT_ONE_IN: u64 = 24;
/// One in so many others has floods.
const FLOODS_ONE_IN: u64 = 8;
/// So few sessions have room where they are forgotten...
const FEW_SESSIONS: u32 = 2;
/// ...and so many where a flood opens more than that, and keeps no more than a few.
const CROWD_SESSIONS: u32 = 64;
/// One in so many seeds keeps the log full, which takes as long as many others.
const FULL_ONE_IN: u64 = 48;

impl Plan {
    /// The plan of a seed's generator.
    pub fn new(random: &mut Random) -> Self {
        let max_batch_bytes = *random.pick(&[2 << 10, 8 << 10, 32 << 10, 100 << 10]);
        let topics = topics(random);
        let publishers = (0..random.between(1, 4))
            .map(|_| publisher(random, &topics, max_batch_bytes))
            .collect();
        let subscribers = (0..random.between(1, 4))
            .map(|_| subscriber(random, topics.len()))
            .collect();
        let config = config(random, max_batch_bytes);
        // Where no session is given up there is room for all.
        let sessions = match is_forgetful(&config) {
            true => FEW_SESSIONS,
            false => 32,
        };
        let plan = Self {
            geometry: Geometry {
                sessions,
                ..geometry(random, topics.len() as u16)
            },
            config,
            topics,
            publishers,
            subscribers,
            byzantine_clients: random.below(3) as usize,
            slowloris_clients: 0,
            floods: Vec::new(),
            apart: false,
            longest_wait_ns: None,
            clocks_drift: false,
            keeps_full: false,
            lanes_begin_at: 0,
            endurance: 1,
            network: network(random),
            faults: faults(random),
        };
        let plan = scenario::apply(plan, random);
        // Drawn aside, so that the rest of a run is what it is without.
        let mut crowds = Random::new(!random.clone().bits());
        let plan = plan.with_more(&mut random.clone().fork());
        plan.with_crowds(&mut crowds)
    }

    fn with_crowds(mut self, random: &mut Random) -> Self {
        if self.keeps_full {
            return self;
        }
        self.apart = random.one_in(2);
        self.faults.shortage = *random.pick(&[0, 0, 100, 400]);
        self.faults.failed_start = *random.pick(&[0, 0, 2, 6]);
        if random.one_in(BOUNDED_WAIT_ONE_IN) {
            return scenario::bounded_wait(self, random);
        }
        if random.one_in(FLOODS_ONE_IN) {
            return scenario::floods(self, random);
        }
        self
    }

    fn with_more(mut self, random: &mut Random) -> Self {
        self.slowloris_clients = *random.pick(&[0, 0, 1, 3]);
        self.clocks_drift = random.one_in(2);
        self.faults.rebirth = *random.pick(&[0, 0, 200, 800]);
        self.faults.freeze = *random.pick(&[0, 150, 600]);
        self.faults.jump = *random.pick(&[0, 0, 300]);
        self.faults.flip = *random.pick(&[0, 0, 20, 200]);
        self.faults.lose = *random.pick(&[0, 0, 0, 300]);
        self.lanes_begin_at = *random.pick(&[0, 0, 0, (1 << 32) - 20]);
        if random.one_in(FULL_ONE_IN) {
            return scenario::full_log(self, random);
        }
        if random.one_in(12) {
            // What the dead have asked for arrives when others live in their name.
            (self.faults.rebirth, self.faults.stall) = (15, 30);
        }
        self.faults.lose_unread = *random.pick(&[0, 0, 0, 30]);
        self.faults.lose_newest = *random.pick(&[0, 0, 0, 0, 0, 50]);
        self
    }

    /// A publisher and a subscriber of one more topic, which has that place in the plan.
    pub fn clients_of(&self, topic: usize, random: &mut Random) -> (PublisherPlan, SubscriberPlan) {
        let mut publisher = publisher(
            random,
            &self.topics[topic..=topic],
            self.config.max_batch_bytes,
        );
        let mut subscriber = subscriber(random, 1);
        (publisher.topic, subscriber.topic) = (topic, topic);
        (publisher, subscriber)
    }

    /// Whether a session may be forgotten while its publisher lives.
    pub fn forgets_sessions(&self) -> bool {
        is_forgetful(&self.config) && self.geometry.sessions == FEW_SESSIONS
    }
}

fn is_forgetful(config: &BrokerConfig) -> bool {
    config.session_idle < Duration::from_secs(3600)
}

fn geometry(random: &mut Random, topics: u16) -> Geometry {
    let standbys = if random.one_in(3) {
        0
    } else {
        random.between(1, 2) as u16
    };
    let topics = random.between(topics.into(), 4) as u16;
    let spares = u16::from(random.one_in(4));
    let geometry = Geometry {
        disks: 0,
        brokers: 1 + random.between(1, 3) as u16 + standbys + spares,
        topics,
        lanes: random.between(1, 2) as u16,
        lane_slots: *random.pick(&[2, 4, 16]),
        index_pages: random.between(8, 24) as u32,
        payload_bytes: random.between(5, 12) * (64 << 10),
        standbys,
        spares,
        goi_pages: 4 * u32::from(topics) + random.below(8) as u32,
        sessions: 0,
    };
    if random.one_in(5) {
        // A broker that is its own head.
        return Geometry {
            brokers: 1,
            standbys: 0,
            spares: 0,
            ..geometry
        };
    }
    geometry
}

fn config(random: &mut Random, max_batch_bytes: u32) -> BrokerConfig {
    let (high_watermark_percent, low_watermark_percent) = *random.pick(&[(75, 50), (30, 10)]);
    BrokerConfig {
        max_batch_bytes,
        high_watermark_percent,
        low_watermark_percent,
        backpressure_timeout: Duration::from_millis(random.between(100, 2000)),
        frame_timeout: Duration::from_millis(random.between(500, 10_000)),
        hello_timeout: Duration::from_millis(random.between(500, 5_000)),
        idle_timeout: Duration::from_millis(random.between(2_000, 30_000)),
        keep_alive: Duration::from_millis(random.between(100, 5_000)),
        metering: false,
        sequencer_lease: Duration::from_millis(*random.pick(&[100, 500, 1000])),
        gap_lease: Duration::from_millis(random.between(300, 3000)),
        session_window: *random.pick(&[4, 16, 128]),
        held_batches: *random.pick(&[2, 8, 64]),
        session_idle: Duration::from_millis(*random.pick(&[300, 3_600_000, 3_600_000])),
        ..BrokerConfig::default()
    }
}

fn topics(random: &mut Random) -> Vec<TopicPlan> {
    let topic = |i, random: &mut Random| TopicPlan {
        name: format!("topic-{i}"),
        order: *random.pick(&[0, 1, 2, 2, 5, 5, 5]),
        retention_bytes: *random.pick(&[0, 64 << 10, 160 << 10]),
    };
    (0..random.between(1, 3))
        .map(|i| topic(i, random))
        .collect()
}

fn publisher(random: &mut Random, topics: &[TopicPlan], max_batch_bytes: u32) -> PublisherPlan {
    let topic = random.below(topics.len() as u64) as usize;
    let batch_bytes = random.between(128, u64::from(max_batch_bytes));
    PublisherPlan {
        topic,
        acks: if topics[topic].order > 1 {
            Acks::Readable
        } else {
            *random.pick(&[Acks::Readable, Acks::Readable, Acks::None])
        },
        on_broker_loss: *random.pick(&[OnBrokerLoss::Resend, OnBrokerLoss::InDoubt]),
        lanes: random.between(1, 3) as u32,
        in_flight: random.between(1, 6) as usize,
        outstanding: random.between(1, 12),
        batches: random.between(20, 160),
        batch_bytes: batch_bytes as usize,
        // From one byte to more than a batch can hold.
        message_bytes: if random.one_in(2) {
            batch_bytes
        } else {
            random.size(2 * batch_bytes)
        },
        pace_ns: *random.pick(&[MS / 10, 2 * MS, 20 * MS]),
    }
}

fn subscriber(random: &mut Random, topics: usize) -> SubscriberPlan {
    SubscriberPlan {
        topic: random.below(topics as u64) as usize,
        on_evicted: *random.pick(&[OnEvicted::Fail, OnEvicted::SkipToFirst]),
        think_ns: *random.pick(&[MS / 10, 5 * MS, 60 * MS]),
        buffers: random.between(2, 4) as usize,
    }
}

fn network(random: &mut Random) -> NetworkConditions {
    NetworkConditions {
        delay_ns: *random.pick(&[MS / 20, MS / 2, 5 * MS]),
        piece_bytes: *random.pick(&[1 << 10, 16 << 10, 616 << 10]),
        window_bytes: *random.pick(&[96 << 10, 96 << 10, 16 << 10]),
        damage_one_in: *random.pick(&[0, 0, 40, 120]),
    }
}

fn faults(random: &mut Random) -> Faults {
    Faults {
        crash: *random.pick(&[0, 300, 1000]),
        cut: *random.pick(&[0, 100, 400]),
        half_open: *random.pick(&[0, 0, 500]),
        stall: *random.pick(&[0, 150, 600]),
        leave: *random.pick(&[0, 0, 300, 1000]),
        delete: *random.pick(&[0, 0, 0, 700]),
        pause: *random.pick(&[0, 400, 1500]),
        pause_midway: *random.pick(&[0, 100, 500]),
        challenge: *random.pick(&[0, 0, 300, 1000]),
        interrupt: *random.pick(&[0, 20_000, 3000, 500]),
        watched: *random.pick(&[1, 5, 20]),
        lost_wakeup: *random.pick(&[0, 0, 5, 50]),
        late_sequencer: *random.pick(&[0, 0, 100]),
        resubscribe: *random.pick(&[0, 200, 800]),
        ..Faults::default()
    }
}
