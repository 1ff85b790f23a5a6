//! What a seed decides before its run begins.

use embar_fabric::Geometry;
use embar_order::Limits;

use crate::random::Random;

/// Nanoseconds of one step, on average.
pub const STEP_NS: u64 = 1_000_000;

/// The shape of a run.
#[derive(Debug)]
pub struct Plan {
    pub geometry: Geometry,
    pub limits: Limits,
    /// A candidate whose beat stands still for so long is taken for dead.
    pub lease_ns: u64,
    /// Chains at the start, and their order levels.
    pub chains: Vec<(u32, u8)>,
    /// Publishers of each chain, and batches of each publisher.
    pub publishers: u64,
    pub batches: u64,
    /// Batches that a publisher has on their way.
    pub ahead: u64,
    pub readers: usize,
    /// Steps with faults.
    pub steps: u64,
    /// One step in so many is preceded by such a fault; 0 = never.
    pub crash: u64,
    pub pause: u64,
    pub challenge: u64,
    pub delete: u64,
    pub restart_client: u64,
    pub retire: u64,
    /// Accesses between interruptions, on average; 0 = none.
    pub interrupt: u64,
    /// How many of them one counts for that concerns which candidate leads.
    pub watched: u64,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(random: &mut Random) -> Self {
        let standbys = random.between(0, 2) as u16;
        let data = random.between(1, 3) as u16;
        let topics = random.between(1, 2) as u16;
        let busy = random.one_in(8);
        let sessions = if random.one_in(4) { 3 } else { 16 };
        let geometry = Geometry {
            disks: 0,
            brokers: 1 + data + standbys,
            topics,
            lanes: random.between(1, 2) as u16,
            lane_slots: *random.pick(&[4, 8, 32]),
            index_pages: 1,
            payload_bytes: 64 << 10 << random.between(2, 4),
            standbys,
            spares: 0,
            goi_pages: u32::from(topics) * *random.pick(&[4, 4, 8]),
            sessions,
        };
        let limits = Limits {
            held: *random.pick(&[2, 8, 64]),
            window: *random.pick(&[4, 16, 128]),
            gap_lease_ns: random.between(20, 300) * STEP_NS,
            session_idle_ns: if sessions == 3 { 50 * STEP_NS } else { 1 << 50 },
            ..Limits::default()
        };
        let rate =
            |random: &mut Random, common: u64| *random.pick(&[0, common, common, common * 4]);
        Self {
            geometry,
            limits,
            lease_ns: random.between(20, 100) * STEP_NS,
            chains: (0..topics)
                .map(|topic_record| (u32::from(topic_record), *random.pick(&[2, 5, 5])))
                .collect(),
            publishers: random.between(1, 3),
            batches: if busy { 80 } else { random.between(5, 25) },
            ahead: random.between(1, 12),
            readers: 1,
            steps: if busy { 2000 } else { random.between(150, 500) },
            crash: rate(random, 25),
            pause: rate(random, 15),
            challenge: rate(random, 30),
            delete: *random.pick(&[0, 0, 100]),
            restart_client: if sessions == 3 {
                0
            } else {
                *random.pick(&[0, 0, 60])
            },
            retire: *random.pick(&[0, 5, 20]),
            interrupt: *random.pick(&[0, 300, 1500, 9000]),
            watched: *random.pick(&[1, 5, 20]),
        }
    }
}
