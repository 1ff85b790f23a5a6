//! The world of one run: its processes, and what is known of them.
//!
//! There is one for each thread. It is never borrowed while a process touches memory: there, the schedule may let others
//! step while the first one is in the middle of a step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash};
use std::sync::Arc;

use embar_memory::{Outage, Power, Simulated, interrupt_after};

use super::plan::Plan;
use crate::random::Random;

/// Times others are let in before a step is over.
const INTERRUPTIONS_MAX: u32 = 12;
/// One in so many looks of a sleeper ends its sleep without a reason, while faults happen.
const IDLE_WAKE_ONE_IN: u64 = 40;

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

/// The world of this thread.
pub fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a run goes on")))
}

/// What runs in a process: one side of a connection.
pub trait Process {
    /// Does a little of its work. Others may step in the middle of it. True: it is through with the connection.
    fn step(&mut self) -> bool;

    /// How far it is, to explain a run that does not end.
    fn state(&self) -> String;
}

/// A process, and what others know of it.
pub struct Slot {
    /// Not here while it takes a step, and when it is over.
    pub process: Option<Box<dyn Process>>,
    lies: bool,
    power: Power,
    memories: Vec<Arc<Simulated>>,
    /// It takes no step before this one.
    paused_until: u64,
    /// Its peer rang.
    rung: bool,
    /// Bytes that its process knows to be published.
    published: u64,
    /// It began to give its connection up.
    leaves: bool,
    /// It is through with its connection, gave it up, or died.
    gone: bool,
}

impl Slot {
    pub fn new(
        process: Box<dyn Process>,
        lies: bool,
        power: Power,
        memories: Vec<Arc<Simulated>>,
    ) -> Self {
        Self {
            process: Some(process),
            lies,
            power,
            memories,
            paused_until: 0,
            rung: false,
            published: 0,
            leaves: false,
            gone: false,
        }
    }
}

/// Everything in a run but memory.
pub struct World {
    pub plan: Plan,
    pub random: Random,
    /// The two sides of a link lie beside each other.
    pub slots: Vec<Slot>,
    pub step: u64,
    /// Faults may happen.
    pub rough: bool,
    interruption: fn(),
    pub nested: usize,
    /// Times others were let in since the last step began.
    pub interruptions: u32,
    pub trace: DefaultHasher,
    pub seen: BTreeMap<&'static str, u64>,
    /// What happened, line by line, if the run keeps it.
    pub story: Option<Vec<String>>,
}

impl World {
    /// The world of a seed, in which nobody is yet. `interruption` lets others step in the middle of a step.
    pub fn new(seed: u64, verbose: bool, interruption: fn()) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let mut world = Self {
            plan,
            random,
            slots: Vec::new(),
            step: 0,
            rough: true,
            interruption,
            nested: 0,
            interruptions: 0,
            trace: DefaultHasher::new(),
            seen: BTreeMap::new(),
            story: verbose.then(Vec::new),
        };
        world.plan_interruption();
        world
    }

    pub fn plan_interruption(&mut self) {
        let every = self.plan.interrupt;
        let enough = self.interruptions >= INTERRUPTIONS_MAX;
        let after = if every == 0 || !self.rough || enough {
            0
        } else {
            self.random.between(1, 2 * every)
        };
        interrupt_after(after, 1, self.interruption);
    }

    /// Chance strikes.
    pub fn strike(&mut self) {
        let count = self.slots.len() as u64;
        if self.random.one_in(self.plan.crash) {
            let place = self.random.below(count) as usize;
            let accesses = self.random.below(400);
            let slot = &self.slots[place];
            if !slot.gone && slot.power.failed().is_none() {
                slot.power.fail_after(accesses, Outage::Process);
            }
        }
        if self.random.one_in(self.plan.pause) {
            let place = self.random.below(count) as usize;
            self.slots[place].paused_until = self.step + self.random.between(5, 100);
            self.count("pauses", 1);
        }
    }

    /// From here on nothing fails.
    pub fn calm_down(&mut self) {
        self.rough = false;
        self.plan_interruption();
        for slot in &mut self.slots {
            slot.paused_until = 0;
            if slot.power.failed().is_none() {
                slot.power.fail_after(u64::MAX, Outage::Process);
            }
        }
    }

    pub fn choose(&mut self) -> usize {
        self.random.below(self.slots.len() as u64) as usize
    }

    pub fn take_process(&mut self, chosen: usize) -> Option<Box<dyn Process>> {
        let slot = &mut self.slots[chosen];
        if slot.paused_until > self.step {
            return None;
        }
        let process = slot.process.take()?;
        self.nested += 1;
        (self.step, chosen).hash(&mut self.trace);
        Some(process)
    }

    /// A step is over; the process, unless it is through with its connection.
    pub fn put_back(&mut self, chosen: usize, process: Option<Box<dyn Process>>) {
        self.nested -= 1;
        let slot = &mut self.slots[chosen];
        if slot.power.failed().is_some() {
            // What it still had in its caches settles before anybody learns that it is gone.
            slot.memories.iter().for_each(|it| it.settle_outage());
            slot.gone = true;
            self.count("processes ended", 1);
            self.note(|| format!("{chosen} died"));
        } else if process.is_none() {
            slot.gone = true;
            self.note(|| format!("{chosen} is through"));
        } else {
            slot.process = process;
        }
    }

    /// Whether a side is through with its connection, gave it up, or died.
    pub fn is_gone(&self, place: usize) -> bool {
        self.slots[place].gone
    }

    pub fn lies(&self, place: usize) -> bool {
        self.slots[place].lies
    }

    /// Whether a side lives, and its peer means what it publishes: then what it receives must be right.
    pub fn must_be_right(&self, place: usize) -> bool {
        self.slots[place].power.failed().is_none() && !self.lies(place ^ 1)
    }

    /// Whether it began to give its connection up.
    pub fn leaves(&self, place: usize) -> bool {
        self.slots[place].leaves
    }

    pub fn begins_to_leave(&mut self, place: usize) {
        self.slots[place].leaves = true;
    }

    /// Bytes that a side knows to be published.
    pub fn published(&self, place: usize) -> u64 {
        self.slots[place].published
    }

    pub fn has_published(&mut self, place: usize, bytes: u64) {
        let slot = &mut self.slots[place];
        if slot.power.failed().is_none() {
            slot.published = bytes;
        }
        bytes.hash(&mut self.trace);
    }

    /// The side at `place` wakes its peer.
    pub fn ring(&mut self, place: usize) {
        if self.slots[place].power.failed().is_none() {
            self.slots[place ^ 1].rung = true;
            self.count("rings", 1);
            self.note(|| format!("{place} rings"));
        }
    }

    /// Whether a sleeper is woken: by its peer, because that is gone, or, while faults happen, without a reason.
    pub fn is_woken(&mut self, place: usize) -> bool {
        let gone = self.slots[place ^ 1].gone;
        let rung = std::mem::take(&mut self.slots[place].rung);
        rung || gone || (self.rough && self.random.one_in(IDLE_WAKE_ONE_IN))
    }

    /// Whether a side gives its connection up now.
    pub fn gives_up(&mut self, place: usize) -> bool {
        // Who has a liar for a peer needs no patience in the end.
        let liar = self.slots[place ^ 1].lies;
        match self.rough {
            true => self.random.one_in(self.plan.give_up),
            false => liar && self.random.one_in(40),
        }
    }

    /// Whether nobody has anything left to do. Liars never have.
    pub fn is_finished(&self) -> bool {
        self.slots.iter().all(|it| it.lies || it.gone)
    }

    pub fn count(&mut self, what: &'static str, count: u64) {
        if count > 0 {
            *self.seen.entry(what).or_default() += count;
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            let indent = 2 * self.nested;
            story.push(format!("{:5} {:>indent$}{}", self.step, "", line()));
        }
    }

    /// Who is not finished.
    pub fn state(&self) -> String {
        let processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        let lines = processes.map(|process| process.state());
        let lines: Vec<String> = lines.collect();
        format!("{}\n{:?}", lines.join("\n"), self.plan)
    }
}
