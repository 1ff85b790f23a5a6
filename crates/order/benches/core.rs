//! How many batches a core orders in a second, by how many sessions they come from, in alternating
//! rounds.
//!
//! `cargo bench -p embar-order` prints the medians, and the median of what each kind of round took in
//! relation to the one session of the same round.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::time::Instant;

use embar_fabric::{PbrKind, PbrRecord};
use embar_order::{Action, Arrival, Core, Limits, Source};

/// Records taken together.
const TOGETHER: usize = 1024;
const BATCHES: usize = 1 << 20;
const ROUNDS: usize = 15;
const MANY: u32 = 100_000;

fn main() {
    let kinds = [
        ("order 5, one session", 5, 1, false),
        ("order 5, 100,000 in turn", 5, MANY, false),
        ("order 5, 100,000 at random", 5, MANY, true),
        ("order 2, one session", 2, 1, false),
        ("order 2, 100,000 at random", 2, MANY, true),
    ];
    let mut loads = kinds.map(|(_, order, sessions, random)| Load::new(order, sessions, random));
    let mut rates = vec![Vec::new(); kinds.len()];
    for load in &mut loads {
        load.round();
    }
    for _ in 0..ROUNDS {
        for (load, rates) in loads.iter_mut().zip(&mut rates) {
            rates.push(load.round());
        }
    }
    for ((name, ..), own) in kinds.iter().zip(&rates) {
        let ratios = own.iter().zip(&rates[0]).map(|(own, one)| own / one);
        let ratio = median(ratios.collect());
        let rate = median(own.clone()) / 1e6;
        println!("{name:28} {rate:6.1} million batches/s, ratio {ratio:.3}");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Publishers of one core.
struct Load {
    core: Core,
    order: u8,
    /// Place, epoch and next number of each publisher's session.
    sessions: Vec<(u32, u32, u64)>,
    random: Option<u64>,
    next: usize,
    arrivals: Vec<Arrival>,
    out: Vec<Action>,
}

impl Load {
    fn new(order: u8, sessions: u32, random: bool) -> Self {
        let limits = Limits {
            sessions,
            ..Limits::default()
        };
        let mut load = Self {
            core: Core::new(limits).expect("limits that can be"),
            order,
            sessions: Vec::new(),
            random: random.then_some(1),
            next: 0,
            arrivals: Vec::new(),
            out: Vec::new(),
        };
        for producer in 0..sessions {
            let opening = load.arrival(producer, PbrKind::Open, (0, 0, 0));
            load.core.arrive(&[opening], 0, &mut load.out);
        }
        for action in load.out.drain(..) {
            if let Action::Notify { outcome, .. } = action {
                load.sessions
                    .push((outcome.session, outcome.session_epoch, 0));
            }
        }
        load
    }

    fn arrival(&self, producer: u32, kind: PbrKind, session: (u32, u32, u64)) -> Arrival {
        let (session, session_epoch, sequence) = session;
        Arrival {
            source: Source {
                row: 1,
                lane: 0,
                incarnation: 1,
                number: 0,
            },
            record: PbrRecord {
                producer: producer.into(),
                sequence,
                len: 1 << 16,
                count: 10,
                session_epoch,
                session,
                kind: kind as u8,
                orders: PbrRecord::pack_orders(0, self.order),
                ..Default::default()
            },
        }
    }

    fn publisher(&mut self) -> usize {
        let Some(random) = &mut self.random else {
            self.next = (self.next + 1) % self.sessions.len();
            return self.next;
        };
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random as usize % self.sessions.len()
    }

    /// Batches per second.
    fn round(&mut self) -> f64 {
        let mut took = 0.0;
        for _ in 0..BATCHES / TOGETHER {
            self.arrivals.clear();
            for _ in 0..TOGETHER {
                let publisher = self.publisher();
                let session = self.sessions[publisher];
                self.sessions[publisher].2 += 1;
                let batch = self.arrival(publisher as u32, PbrKind::Batch, session);
                self.arrivals.push(batch);
            }
            self.out.clear();
            let started = Instant::now();
            self.core.arrive(&self.arrivals, 0, &mut self.out);
            self.core.elapse(0, &mut self.out);
            took += started.elapsed().as_secs_f64();
            assert_eq!(self.out.len(), TOGETHER);
            let placed = |it: &Action| matches!(it, Action::Place { .. });
            assert!(self.out.iter().all(placed));
        }
        BATCHES as f64 / took
    }
}
