//! Scenarios that some seeds play: plans of chance alone get into some states too seldom.

use std::time::Duration;

use embar_broker::BrokerConfig;
use embar_broker::shard::TICK;
use embar_fabric::Geometry;

use super::{CROWD_SESSIONS, FEW_SESSIONS, Faults, FloodKind, MS, Plan};
use crate::network::NetworkConditions;
use crate::random::Random;

/// One in so many seeds has a theme.
const ONE_IN: u64 = 4;

/// A refused client gets the reason within this, and then its connection is closed.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// What turns and connections take, which are late by chance, in nanoseconds.
const BUSY_NS: u64 = 1000 * MS;

/// Bends a plan towards a theme, now and then.
pub fn apply(plan: Plan, random: &mut Random) -> Plan {
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
            payload_bytes: 5 * (64 << 10),
            ..plan.geometry
        },
        network: NetworkConditions {
            window_bytes: 16 << 10,
            piece_bytes: 16 << 10,
            damage_one_in: 0,
            ..plan.network
        },
        faults: Faults {
            stall: 50,
            ..plan.faults
        },
        ..plan
    }
}

/// Candidates take the sequencer for dead again and again, at the worst moments.
fn takeovers(plan: Plan, random: &mut Random) -> Plan {
    let standbys = random.between(1, 2) as u16;
    Plan {
        geometry: Geometry {
            brokers: 1 + random.between(1, 3) as u16 + standbys + plan.geometry.spares,
            standbys,
            ..plan.geometry
        },
        faults: Faults {
            challenge: 150,
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
            lost_wakeup: 2,
            late_sequencer: *random.pick(&[2, 5]),
            interrupt: 1000,
            ..plan.faults
        },
        ..plan
    }
}

/// Some clients ask for too much: of one thing, or of all.
pub fn floods(mut plan: Plan, random: &mut Random) -> Plan {
    let is_ordered = plan.topics.iter().any(|topic| topic.order > 1);
    plan.floods = match random.below(5) {
        0 => vec![FloodKind::Connections],
        1 => vec![FloodKind::Questions],
        2 => vec![FloodKind::Connections, FloodKind::Questions],
        _ if !is_ordered => vec![FloodKind::Connections],
        3 => vec![FloodKind::Sessions],
        _ => vec![FloodKind::Sessions, FloodKind::Questions],
    };
    if plan.floods.contains(&FloodKind::Connections) {
        plan.config.max_connections = *random.pick(&[32, 64]);
    }
    if plan.floods.contains(&FloodKind::Sessions) {
        plan.config.session_idle = Duration::from_millis(300);
        plan.geometry.sessions = *random.pick(&[FEW_SESSIONS, CROWD_SESSIONS]);
        plan.endurance = 2;
    }
    plan
}

/// Nothing is wrong but that some clients claim room and hardly use it: publishers wait for them, and not for long.
pub fn bounded_wait(mut plan: Plan, random: &mut Random) -> Plan {
    let order = *random.pick(&[0, 1, 2, 5]);
    plan.topics.truncate(1);
    plan.topics[0].order = order;
    plan.config.max_batch_bytes = 100 << 10;
    plan.config.backpressure_timeout = Duration::from_millis(random.between(200, 1000));
    // Two claims leave no room.
    plan.config.high_watermark_percent = 30;
    plan.config.low_watermark_percent = 10;
    // A client that claims room is not given up for this.
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
    let slowloris_clients = 3;
    Plan {
        geometry: Geometry {
            brokers: 1,
            standbys: 0,
            spares: 0,
            index_pages: 64,
            payload_bytes: 5 * (64 << 10),
            ..plan.geometry
        },
        network: NetworkConditions {
            delay_ns: MS / 20,
            piece_bytes: 16 << 10,
            window_bytes: 96 << 10,
            damage_one_in: 0,
        },
        faults: Faults::default(),
        longest_wait_ns: Some(longest_wait_ns(&plan.config, slowloris_clients as u64)),
        slowloris_clients,
        byzantine_clients: 0,
        clocks_drift: false,
        endurance: 5,
        ..plan
    }
}

/// How long it may take until a batch of one publisher that sends one at a time is acknowledged, where nothing is
/// wrong but so many slowloris clients.
///
/// A batch waits while they hold more than the high watermark leaves. A broker gives up a slow batch, while others
/// wait, after half of the time for which those may wait. Its tick finds that, and the room comes back when the
/// slow client got the reason, for which it has a moment. Those that wait are tried in turn, so each slowloris
/// client comes before a batch once at most. A turn may come late here, as all are busy by chance, and a publisher
/// that was refused meanwhile makes another connection.
fn longest_wait_ns(config: &BrokerConfig, slowloris_clients: u64) -> u64 {
    let given_up = config.backpressure_timeout / 2 + 2 * TICK + TOLD_WITHIN;
    (slowloris_clients + 1) * given_up.as_nanos() as u64 + BUSY_NS
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
            payload_bytes: 16 * (64 << 10),
            ..plan.geometry
        },
        network: NetworkConditions {
            delay_ns: MS / 20,
            piece_bytes: 1 << 10,
            damage_one_in: 0,
            ..plan.network
        },
        faults: Faults {
            cut: 400,
            stall: 20,
            ..Faults::default()
        },
        slowloris_clients: *random.pick(&[0, 3]),
        keeps_full: true,
        endurance: 5,
        ..plan
    }
}
