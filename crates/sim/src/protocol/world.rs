//! The world of one run: its processes, their requests, and what is known of them.
//!
//! There is one for each thread. It is never borrowed while a process touches memory: there, the schedule may let
//! others step while the first one is in the middle of a step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash};

use embar_fabric::Region;
use embar_memory::{Device, Outage, Simulated, interrupt_after};

use super::oracle::{ChainOrder, OrderOracle};
use super::plan::Plan;
use super::process::{Process, ProcessKind, ProcessSlot};
use super::publisher::{Publisher, Request};
use crate::host::control_file;
use crate::random::Random;

/// Times others are let in before a step is over.
const INTERRUPTIONS_MAX: u32 = 12;
/// A takeover comes in one of so many interruptions, where there are any.
const FORCED_TAKEOVER_ONE_IN: u64 = 8;
const NONCE: u32 = 0x51ED_270B;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes this the world of this thread.
pub fn enter(world: World) {
    WORLD.set(Some(world));
}

/// Takes the world of this thread away.
pub fn leave() -> World {
    WORLD.take().expect("a run goes on")
}

/// Everything in a run but the memory of its hosts.
pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub control: Device,
    pub payload_files: Vec<Device>,
    pub slots: Vec<ProcessSlot>,
    /// By row: requests to a broker.
    pub requests: BTreeMap<u16, Vec<Request>>,
    pub publishers: Vec<Publisher>,
    pub oracle: OrderOracle,
    pub now: u64,
    pub step: u64,
    /// Faults may happen.
    pub rough: bool,
    /// The row that takes over.
    pub taking_over: Option<u16>,
    /// Lets others step in the middle of a step.
    interruption: fn(),
    pub nested: usize,
    /// Times others were let in since the last step began.
    pub interruptions: u32,
    pub trace: DefaultHasher,
    pub seen: BTreeMap<&'static str, u64>,
    /// What happened, line by line, if the run keeps it.
    pub story: Option<Vec<String>>,
}

/// The world of this thread.
pub fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a run goes on")))
}

impl World {
    /// The world of a seed. `interruption` lets others step in the middle of a step.
    pub fn new(seed: u64, verbose: bool, interruption: fn()) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let geometry = &plan.geometry;
        let control = control_file(geometry);
        let payload_files = geometry
            .data_rows()
            .map(|_| Device::new(geometry.payload_bytes, random.bits()));
        let payload_files: Vec<Device> = payload_files.collect();
        let file = |device: &Device| std::sync::Arc::new(device.host(seed));
        Region::format(
            file(&control),
            payload_files.iter().map(file).collect(),
            geometry,
            NONCE,
            1,
        )
        .expect("plans are valid");
        let mut kinds: Vec<ProcessKind> = geometry.data_rows().map(ProcessKind::Broker).collect();
        kinds.extend(geometry.candidates().map(ProcessKind::Candidate));
        kinds.extend((0..plan.readers).map(|_| ProcessKind::Reader));
        let mut world = Self {
            random,
            control,
            payload_files,
            slots: kinds.into_iter().map(ProcessSlot::new).collect(),
            requests: BTreeMap::new(),
            publishers: Vec::new(),
            oracle: OrderOracle::default(),
            now: 0,
            step: 0,
            rough: true,
            taking_over: None,
            interruption,
            nested: 0,
            interruptions: 0,
            trace: DefaultHasher::new(),
            seen: BTreeMap::new(),
            story: verbose.then(Vec::new),
            plan,
        };
        for chain in world.plan.chains.clone() {
            world.make_chain(chain);
        }
        world.plan_interruption();
        world
    }

    pub fn raw(&self) -> Region<Simulated> {
        let file = |device: &Device| std::sync::Arc::new(device.view());
        Region::from_parts(
            file(&self.control),
            self.payload_files.iter().map(file).collect(),
        )
        .expect("the region was formatted")
    }

    pub fn make_chain(&mut self, chain: (u32, u8)) {
        let order = ChainOrder::new(chain.1);
        self.oracle.chains.insert(chain.0, order);
        for _ in 0..self.plan.publishers {
            let (id, plan) = (self.publishers.len(), &self.plan);
            let mut publisher =
                Publisher::new(id, chain, plan.batches, plan.ahead, &mut self.random);
            publisher.forgettable = plan.limits.session_idle_ns < 1 << 40;
            self.publishers.push(publisher);
        }
    }

    pub fn plan_interruption(&mut self) {
        // Takeovers are interrupted more often: what happens meanwhile matters most.
        let every = match (self.plan.interrupt, self.taking_over) {
            (0, _) => 0,
            (every, None) => every,
            (every, Some(_)) => every.min(200),
        };
        let enough = self.interruptions >= INTERRUPTIONS_MAX;
        let after = if every == 0 || !self.rough || enough {
            0
        } else {
            self.random.between(1, 2 * every)
        };
        interrupt_after(after, self.plan.watched, self.interruption);
    }

    /// At times a candidate takes over in the middle of another's step, and the one that sequenced goes
    /// on as if it had not: those whose turn it is then.
    pub fn forced_takeover(&mut self) -> Vec<usize> {
        if !self.rough
            || !self
                .random
                .one_in(self.plan.challenge.min(FORCED_TAKEOVER_ONE_IN))
        {
            return Vec::new();
        }
        let watches = |slot: &ProcessSlot| slot.process.as_ref().is_some_and(|it| it.watches());
        let Some(challenger) = self.slots.iter().position(watches) else {
            return Vec::new();
        };
        if let Some(process) = &mut self.slots[challenger].process {
            process.challenge();
        }
        let others = (0..self.slots.len()).filter(|place| *place != challenger);
        let candidates =
            others.filter(|place| matches!(self.slots[*place].kind, ProcessKind::Candidate(_)));
        std::iter::once(challenger).chain(candidates).collect()
    }

    pub fn choose(&mut self) -> usize {
        self.random.below(self.slots.len() as u64) as usize
    }

    /// The process, or that one is to be started.
    pub fn take_process(&mut self, chosen: usize) -> Option<(u64, Option<Box<dyn Process>>)> {
        let slot = &mut self.slots[chosen];
        if slot.busy || slot.paused_until > self.step {
            return None;
        }
        if let Some(host) = &slot.host
            && host.power.failed().is_some()
        {
            self.reap(chosen);
            return None;
        }
        if slot.process.is_none() {
            if self.rough && !self.random.one_in(4) {
                return None;
            }
            slot.begin(&self.control, &self.payload_files, &mut self.random);
        }
        let (kind, life, starts) = (slot.kind, slot.life, slot.process.is_none());
        if starts {
            self.note(|| format!("{kind:?} starts, life {life}"));
        }
        let slot = &mut self.slots[chosen];
        slot.busy = true;
        self.nested += 1;
        (self.step, chosen, slot.life).hash(&mut self.trace);
        Some((slot.life, slot.process.take()))
    }

    pub fn put_back(&mut self, chosen: usize, life: u64, process: Box<dyn Process>) {
        self.nested -= 1;
        let slot = &mut self.slots[chosen];
        assert_eq!(slot.life, life, "harness: it was started twice");
        (slot.busy, slot.process) = (false, Some(process));
        if !slot.lives() {
            self.reap(chosen);
        }
    }

    fn reap(&mut self, chosen: usize) {
        let slot = &mut self.slots[chosen];
        let host = slot.host.take().expect("whoever lived had a host");
        let outage = host.power.failed().expect("its power failed");
        // What it still had in its caches settles before anything of it is gone.
        host.end(outage);
        slot.left = Some(host);
        slot.process = None;
        let row = slot.row();
        let kind = slot.kind;
        if self.taking_over == row && row.is_some() {
            self.taking_over = None;
        }
        self.note(|| format!("{kind:?} is gone: {outage:?}"));
        if let ProcessKind::Broker(row) = kind {
            self.requests.remove(&row);
        }
        self.count(
            match (kind, outage) {
                (ProcessKind::Broker(_), Outage::Host) => "brokers' hosts failed",
                (ProcessKind::Broker(_), Outage::Process) => "brokers' processes ended",
                (ProcessKind::Candidate(_), Outage::Host) => "candidates' hosts failed",
                (ProcessKind::Candidate(_), Outage::Process) => "candidates' processes ended",
                (ProcessKind::Reader, _) => "readers ended",
            },
            1,
        );
    }

    pub fn count(&mut self, what: &'static str, count: u64) {
        *self.seen.entry(what).or_default() += count;
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            let (step, nested) = (self.step, self.nested);
            story.push(format!(
                "{step:5} {:>1$}{line}",
                "",
                2 * nested,
                line = line()
            ));
        }
    }

    /// Whether everybody has what he wanted, and everybody has seen all of it.
    pub fn is_finished(&self) -> bool {
        let is_finished = |slot: &ProcessSlot| {
            let process = slot.process.as_ref();
            process.is_some_and(|it| it.is_finished(&self.oracle))
        };
        self.publishers.iter().all(Publisher::is_done) && self.slots.iter().all(is_finished)
    }

    /// The processes that are not finished.
    pub fn state(&self) -> String {
        let publishers = self.publishers.iter().filter(|it| !it.is_done());
        let mut lines: Vec<String> = publishers.map(|it| it.state()).collect();
        for slot in &self.slots {
            lines.push(match slot.process.as_ref() {
                Some(process) => format!("{:?}: {}", slot.kind, process.state(&self.oracle)),
                None => format!("{:?} is gone", slot.kind),
            });
        }
        let chains = self.oracle.chains.iter();
        let ends: Vec<_> = chains.map(|(chain, it)| (*chain, it.end)).collect();
        lines.push(format!("{ends:?}\n{:?}", self.plan));
        lines.join("\n")
    }
}
