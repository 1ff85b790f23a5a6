//! What some seeds are about: plans of chance alone get into some states too seldom.

use embar_fabric::Geometry;

use super::{Faults, MS, Plan};
use crate::network::Weather;
use crate::random::Random;

/// One in so many seeds has a theme.
const ONE_IN: u64 = 4;

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
