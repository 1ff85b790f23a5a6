//! One run: the hosts, their clients, the network between them, and everything that goes wrong.
//!
//! There is one for each thread. It is never borrowed while a host does something: there, other hosts may run while
//! the first one is in the middle of a turn.

mod clients;
mod damage;
mod depart;
mod faults;
mod finish;
mod hosts;
mod looks;
mod shortage;
mod topics;
mod turns;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use embar_broker::clock::Timestamp;
use embar_broker::topics::Topic;
use embar_client::sim_api::ChannelId;
use embar_frame::Now;
use embar_memory::canary::{Canary, inject};
use embar_memory::interrupt_after;

use crate::actor::Actor;
use crate::check::device::Inspector;
use crate::check::order::OrderInspector;
use crate::clock::Clock;
use crate::figures::{Damaged, Figures};
use crate::host::{Devices, Host, Memories};
use crate::network::{Id, Network};
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use crate::violation::{Check, Violation};

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Rows whose processes live, bit by bit: asked for while the world is borrowed, too.
    static ALIVE: Cell<u32> = const { Cell::new(0) };
}

/// Everything in a run.
pub struct World {
    plan: Plan,
    random: Random,
    now: u64,
    trace: Trace,
    devices: Devices,
    /// By row of those that take data.
    inspectors: BTreeMap<u16, Inspector>,
    orders: OrderInspector,
    /// By row: the hosts that live.
    hosts: Vec<Option<Host>>,
    /// By row: what the processes before left in the caches of its two hosts.
    machines: Vec<[Option<Memories>; 2]>,
    /// By row: what its hosts take for the time.
    clocks: Vec<Clock>,
    /// By row: when a host that is dead comes back.
    restart_at: Vec<u64>,
    /// Turns that are in the middle of something.
    nested: u32,
    /// Times others were let in since the last step began.
    interruptions: u32,
    looks: u64,
    /// Those that exist.
    topics: Vec<Topic>,
    /// Publishers that there were.
    producers: u64,
    network: Network,
    actors: Vec<Box<dyn Actor>>,
    connections: BTreeMap<(usize, ChannelId), Id>,
    /// The name of a topic that a head was creating when it died, and the one in whose place it comes.
    last_created: Option<(String, Topic)>,
    /// Clients that stand still, and until when.
    frozen: BTreeMap<usize, u64>,
    /// By row: until when its host has no descriptor.
    short_until: Vec<u64>,
    /// Clients that have none, and until when.
    short_clients: BTreeMap<usize, u64>,
    oracle: Oracle,
    healed: bool,
    /// What of the control file was damaged, by where it begins: nothing is damaged twice.
    spoiled: BTreeSet<u64>,
    /// How often, by kind of record.
    damaged: Damaged,
    figures: Figures,
}

/// What a run left.
pub struct Finished {
    /// What happened.
    pub trace: Trace,
    /// How often.
    pub figures: Figures,
    /// What memory was damaged.
    pub damaged: Damaged,
}

/// Does something with the world. Nothing of a host may be done meanwhile.
fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a run goes on")))
}

/// Begins the run of a seed.
pub fn begin(seed: u64, broken: Option<Canary>, verbose: bool) -> Check {
    inject(None);
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random);
    let mut trace = Trace::new(verbose);
    trace.event(Now(0), format_args!("{plan:?}"));
    let devices = Devices::format(&plan, &mut random);
    let rows = usize::from(plan.geometry.brokers);
    let mut drifts = Random::new(!seed);
    let clock = |_| match plan.clocks_drift {
        true => Clock::drifting(&mut drifts),
        false => Clock::exact(),
    };
    let clocks = (0..rows).map(clock).collect();
    let data = plan.geometry.data_rows();
    let inspectors = data.map(|row| (row, Inspector::new(&devices, row)));
    ALIVE.set(0);
    shortage::begin();
    let world = World {
        inspectors: inspectors.collect(),
        orders: OrderInspector::new(&devices),
        network: Network::new(plan.network, random.fork()),
        plan,
        random,
        now: 0,
        trace,
        devices,
        hosts: (0..rows).map(|_| None).collect(),
        machines: (0..rows).map(|_| [None, None]).collect(),
        clocks,
        restart_at: vec![0; rows],
        nested: 0,
        interruptions: 0,
        looks: 0,
        topics: Vec::new(),
        producers: 0,
        actors: Vec::new(),
        connections: BTreeMap::new(),
        last_created: None,
        frozen: BTreeMap::new(),
        short_until: vec![0; rows],
        short_clients: BTreeMap::new(),
        oracle: Oracle::default(),
        healed: false,
        spoiled: BTreeSet::new(),
        damaged: Damaged::new(),
        figures: Figures::default(),
    };
    WORLD.set(Some(world));
    inject(broken);
    hosts::begin()?;
    with(|world| {
        world.enter_actors();
        world.plan_interruption();
    });
    Ok(())
}

/// How many times the usual steps the run takes.
pub fn endurance() -> u64 {
    with(|world| world.plan.endurance)
}

/// Ends a run, wherever it is.
pub fn end() -> Option<Finished> {
    interrupt_after(0, 0, || {});
    inject(None);
    // One that panicked in the middle may have left it borrowed, but then it was unwound.
    let world = WORLD.take()?;
    let World {
        trace,
        figures,
        damaged,
        ..
    } = world;
    Some(Finished {
        trace,
        figures,
        damaged,
    })
}

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Runnable {
    Start(u16),
    Broker(u16),
    Candidate(u16),
    Client(usize),
}

/// Lets one of all that can happen happen, or time pass.
pub fn step() -> Check {
    with(|world| {
        world.figures.steps += 1;
        if std::mem::take(&mut world.interruptions) > 0 {
            world.plan_interruption();
        }
        world.end_shortages();
        if world.healed {
            return Ok(());
        }
        world.check_waits()?;
        world.inject()
    })?;
    hosts::reap_hosts()?;
    match with(World::choose) {
        None => Ok(()),
        Some(Runnable::Start(row)) => hosts::start(row),
        Some(Runnable::Broker(row)) => turns::broker(row),
        Some(Runnable::Candidate(row)) => turns::candidate(row),
        Some(Runnable::Client(actor)) => with(|world| world.actor_turn(actor)),
    }
}

pub use finish::finish;

impl World {
    /// What a row's hosts take for the time.
    fn at(&self, row: u16) -> Timestamp {
        self.clocks[usize::from(row)].at(self.now)
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.event(Now(self.now), what);
    }

    fn rows(&self) -> std::ops::Range<u16> {
        0..self.plan.geometry.brokers
    }

    fn host(&self, row: u16) -> Option<&Host> {
        self.hosts[usize::from(row)].as_ref()
    }

    fn host_mut(&mut self, row: u16) -> Option<&mut Host> {
        self.hosts[usize::from(row)].as_mut()
    }

    fn broker_is_able(&self, row: u16) -> bool {
        self.host(row).is_some_and(|host| {
            let here = host.broker.is_some() && host.paused_until <= self.now && host.lives();
            here && (host.broker_at <= self.now
                || !self.network.broker_ready(row, self.now).is_empty())
        })
    }

    fn candidate_is_able(&self, row: u16) -> bool {
        self.host(row).is_some_and(|host| {
            let here = host.candidate.is_some() && host.paused_until <= self.now && host.lives();
            here && host.candidate_at <= self.now
        })
    }

    /// One of all that can happen; else time passes.
    fn choose(&mut self) -> Option<Runnable> {
        let mut able: Vec<Runnable> = Vec::new();
        for row in self.rows() {
            if self.host(row).is_none() && self.restart_at[usize::from(row)] <= self.now {
                able.push(Runnable::Start(row));
            }
            if self.broker_is_able(row) {
                able.push(Runnable::Broker(row));
            }
            if self.candidate_is_able(row) {
                able.push(Runnable::Candidate(row));
            }
        }
        let actors = 0..self.actors.len();
        able.extend(
            actors
                .filter(|i| self.actor_is_able(*i))
                .map(Runnable::Client),
        );
        if able.is_empty() {
            self.pass_time();
            return None;
        }
        self.now += any_moment(&mut self.random);
        Some(*self.random.pick(&able))
    }

    /// Nothing can happen: goes on to the time when something may.
    fn pass_time(&mut self) {
        let mut times: Vec<u64> = self
            .actors
            .iter()
            .filter_map(|a| a.next_at())
            .map(|at| at.0)
            .collect();
        for row in self.rows() {
            match self.host(row) {
                None => times.push(self.restart_at[usize::from(row)]),
                Some(host) => {
                    times.push(host.broker_at.max(host.paused_until));
                    if host.candidate.is_some() {
                        times.push(host.candidate_at.max(host.paused_until));
                    }
                }
            }
        }
        times.extend(self.frozen.values());
        times.extend(self.network.next_at(self.now));
        let next = times.into_iter().filter(|at| *at > self.now).min();
        self.now = next.unwrap_or(self.now) + self.random.between(1_000, 100_000);
    }
}

/// Time between two turns, in nanoseconds: at times all are busy with something else.
fn any_moment(random: &mut Random) -> u64 {
    if random.one_in(10) {
        random.below(20_000_000)
    } else {
        random.between(1_000, 200_000)
    }
}

fn set_alive(row: u16, alive: bool) {
    let bit = 1 << row;
    ALIVE.set(if alive {
        ALIVE.get() | bit
    } else {
        ALIVE.get() & !bit
    });
}

/// What a host said that broke a rule, in the middle of another's turn, ends the run.
fn raise(violation: Violation) {
    std::panic::panic_any(violation);
}
