//! What a seed decides before its run begins.

use embar_transport::shm::cores::Sizes;

use crate::random::Random;

/// The shape of a run.
#[derive(Debug)]
pub struct Plan {
    /// Connections, of two sides each.
    pub links: Vec<Link>,
    /// Steps with faults.
    pub steps: u64,
    /// One step in so many is preceded by such a fault; 0 = never.
    pub crash: u64,
    pub pause: u64,
    /// A side gives its connection up in one of so many of its steps; 0 = never.
    pub give_up: u64,
    /// Accesses between interruptions, on average; 0 = none.
    pub interrupt: u64,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    /// Of both outboxes.
    pub sizes: [Sizes; 2],
    /// Bytes that each side sends.
    pub bytes: [u64; 2],
    /// The second side keeps to no rule.
    pub lies: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(random: &mut Random) -> Self {
        let rate = |random: &mut Random, often: u64| *random.pick(&[0, often, often * 4]);
        Self {
            links: (0..random.between(1, 3))
                .map(|_| Link::of(random))
                .collect(),
            steps: random.between(100, 600),
            crash: rate(random, 60),
            pause: rate(random, 15),
            give_up: rate(random, 40),
            interrupt: *random.pick(&[0, 20, 100, 700]),
        }
    }
}

impl Link {
    fn of(random: &mut Random) -> Self {
        let sizes = |random: &mut Random| Sizes::at_least(*random.pick(&[4, 8, 32]), 4096);
        Self {
            sizes: [sizes(random), sizes(random)],
            bytes: [random.size(60_000), random.size(60_000)],
            lies: random.one_in(4),
        }
    }
}
