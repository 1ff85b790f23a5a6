//! What some seeds are about: plans of chance alone get into some states too seldom.

use std::time::Duration;

use embar_broker::BrokerConfig;
use embar_broker::shard::TICK;
use embar_fabric::Geometry;

use super::{CROWD_SESSIONS, FEW_SESSIONS, Faults, MS, Plan};
use crate::actor::Flood;
use crate::network::Weather;
use crate::random::Random;

/// One in so many seeds has a theme.
const ONE_IN: u64 = 4;

/// Whoever is refused is told why within this, and then its connection is closed.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// What turns and connections take, which are late by chance, in nanoseconds.
const BUSY_NS: u64 = 1000 * MS;

/// Bends a plan towards a theme, now and then.
pub fn bend(plan: Plan, random: &mut Random) -> Plan {
    if !random.one_in(ONE_IN) {
        return plan;
    }
    match random.below(3) {
        0 => slow_readers(plan, random),
        1 => takeovers(plan, random),
        _ => slow_sequencer(plan, random),
    }
}

/// Memory is short, and readers take long: much is used again while it is being sent, also by brokers
/// whose memory it is not.
fn slow_readers(mut plan: Plan, random: &mut Random) -> Plan {
    plan.topics.truncate(1);
    for topic in &mut plan.topics {
        topic.order = *random.pick(&[2, 5]);
        topic.retention_bytes = 64 << 10;
    }
    plan.config.max_batch_bytes = 32 << 10;
    for publisher in &mut plan.publishers {
        publisher.topic = 0;
        publisher.acks = embar_client::Acks::Readable;
        publisher.batches = 200;
        publisher.batch_bytes = 32 << 10;
        publisher.message_bytes = 16 << 10;
        publisher.pace_ns = MS / 10;
        (publisher.in_flight, publisher.outstanding) = (6, 12);
    }
    for subscriber in &mut plan.subscribers {
        subscriber.topic = 0;
        subscriber.think_ns = 300 * MS;
        subscriber.buffers = 2;
    }
    Plan {
        geometry: Geometry {
            brokers: 4 + plan.geometry.standbys + plan.geometry.spares,
            blog_bytes: 5 * (64 << 10),
            ..plan.geometry
        },
        weather: Weather {
            window_bytes: 16 << 10,
            piece_bytes: 16 << 10,
            damage_one_in: 0,
            ..plan.weather
        },
        faults: Faults {
            stall: 50,
            ..plan.faults
        },
        ..plan
    }
}

/// Whoever sequences is taken for dead again and again, at the worst moments.
fn takeovers(plan: Plan, random: &mut Random) -> Plan {
    let standbys = random.between(1, 2) as u16;
    Plan {
        geometry: Geometry {
            brokers: 1 + random.between(1, 3) as u16 + standbys + plan.geometry.spares,
            standbys,
            ..plan.geometry
        },
        faults: Faults {
            usurp: 150,
            interrupt: 1000,
            watched: 20,
            ..plan.faults
        },
        ..plan
    }
}

/// The sequencer is late at all times: much waits for it, and it takes all of it at once.
fn slow_sequencer(plan: Plan, random: &mut Random) -> Plan {
    Plan {
        faults: Faults {
            lost_bell: 2,
            late_sequencer: *random.pick(&[2, 5]),
            interrupt: 1000,
            ..plan.faults
        },
        ..plan
    }
}

/// Somebody asks for too much: of one thing, or of all.
pub fn floods(mut plan: Plan, random: &mut Random) -> Plan {
    let is_ordered = plan.topics.iter().any(|topic| topic.order > 1);
    plan.floods = match random.below(5) {
        0 => vec![Flood::Connections],
        1 => vec![Flood::Questions],
        2 => vec![Flood::Connections, Flood::Questions],
        _ if !is_ordered => vec![Flood::Connections],
        3 => vec![Flood::Sessions],
        _ => vec![Flood::Sessions, Flood::Questions],
    };
    if plan.floods.contains(&Flood::Connections) {
        plan.config.max_connections = *random.pick(&[32, 64]);
    }
    if plan.floods.contains(&Flood::Sessions) {
        plan.config.session_idle = Duration::from_millis(300);
        plan.geometry.sessions = *random.pick(&[FEW_SESSIONS, CROWD_SESSIONS]);
        plan.endurance = 2;
    }
    plan
}

/// Nothing is wrong but that some claim room and hardly use it: whoever publishes waits for them, and not
/// for long.
pub fn patience(mut plan: Plan, random: &mut Random) -> Plan {
    let order = *random.pick(&[0, 1, 2, 5]);
    plan.topics.truncate(1);
    plan.topics[0].order = order;
    plan.config.max_batch_bytes = 100 << 10;
    plan.config.backpressure_timeout = Duration::from_millis(random.between(200, 1000));
    // Two claims leave no room.
    plan.config.high_watermark_percent = 30;
    plan.config.low_watermark_percent = 10;
    // Whoever claims room is not given up for this.
    plan.config.frame_timeout = Duration::from_secs(60);
    for publisher in &mut plan.publishers {
        publisher.topic = 0;
        publisher.acks = embar_client::Acks::Readable;
        publisher.batches = 100_000;
        (publisher.batch_bytes, publisher.message_bytes) = (8 << 10, 8 << 10);
        publisher.pace_ns = 2 * MS;
        (publisher.lanes, publisher.in_flight, publisher.outstanding) = (1, 1, 1);
    }
    plan.subscribers.truncate(1);
    (plan.subscribers[0].topic, plan.subscribers[0].think_ns) = (0, MS / 10);
    let misers = 3;
    Plan {
        geometry: Geometry {
            brokers: 1,
            standbys: 0,
            spares: 0,
            index_pages: 64,
            blog_bytes: 5 * (64 << 10),
            ..plan.geometry
        },
        weather: Weather {
            delay_ns: MS / 20,
            piece_bytes: 16 << 10,
            window_bytes: 96 << 10,
            damage_one_in: 0,
        },
        faults: Faults::default(),
        patience_ns: Some(longest_wait_ns(&plan.config, misers as u64)),
        misers,
        vandals: 0,
        clocks_drift: false,
        endurance: 5,
        ..plan
    }
}

/// Until a batch of one publisher that sends one at a time is acknowledged, where nothing is wrong but so
/// many misers.
///
/// A batch waits while they hold more than the high watermark leaves. Of whom a batch hardly comes while
/// others wait is given up after half of the time for which those may wait; the tick finds that, and its
/// room comes back when it was told why, for which it has a moment. Whoever waited is tried in turn, so
/// each miser comes before a batch once at most. A turn may come late here, as all are busy by chance, and
/// a publisher that was refused meanwhile makes another connection.
fn longest_wait_ns(config: &BrokerConfig, misers: u64) -> u64 {
    let given_up = config.backpressure_timeout / 2 + 2 * TICK + TOLD_WITHIN;
    (misers + 1) * given_up.as_nanos() as u64 + BUSY_NS
}

/// Much comes, in small batches and out of turn, and everything is kept for as long as there is room.
pub fn full_log(mut plan: Plan, random: &mut Random) -> Plan {
    let order = *random.pick(&[0, 1]);
    for topic in &mut plan.topics {
        (topic.order, topic.retention_bytes) = (order, 0);
    }
    plan.topics.truncate(2);
    plan.config.max_batch_bytes = 8 << 10;
    let first = plan.publishers[0].clone();
    plan.publishers.resize(4, first);
    for (i, publisher) in plan.publishers.iter_mut().enumerate() {
        publisher.topic = i % plan.topics.len();
        publisher.batches = 100_000;
        (publisher.batch_bytes, publisher.message_bytes) = (8 << 10, 8 << 10);
        publisher.pace_ns = MS / 10;
        (publisher.lanes, publisher.in_flight, publisher.outstanding) = (2, 8, 40);
    }
    plan.subscribers.truncate(1);
    plan.subscribers[0].topic = 0;
    Plan {
        geometry: Geometry {
            brokers: 1,
            standbys: 0,
            spares: 0,
            index_pages: 64,
            blog_bytes: 16 * (64 << 10),
            ..plan.geometry
        },
        weather: Weather {
            delay_ns: MS / 20,
            piece_bytes: 1 << 10,
            damage_one_in: 0,
            ..plan.weather
        },
        faults: Faults {
            cut: 400,
            stall: 20,
            ..Faults::default()
        },
        misers: *random.pick(&[0, 3]),
        keeps_full: true,
        endurance: 5,
        ..plan
    }
}
