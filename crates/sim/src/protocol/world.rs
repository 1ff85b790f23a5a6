//! The world of one run: who is there, what chance does to them, and who steps next.
//!
//! There is one for each thread. It is never borrowed while an actor touches memory: there, others may
//! be let in (see [`interruption`]), which step while the first one is in the middle of a step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_fabric::Region;
use embar_memory::canary::{inject, without_canary};
use embar_memory::{Device, Outage, Simulated, interrupt_after};

use super::books::{Books, Order};
use super::broker::Broker;
use super::candidate::Seat;
use super::check::Checker;
use super::plan::Plan;
use super::publisher::{Publisher, Request};
use super::reader::Reader;
use super::slot::{Actor, Kind, Slot};
use crate::figures::{Damaged, Figures};
use crate::host::control_file;
use crate::random::Random;
use crate::run::{Options, Report};
use crate::violation::Violation;

/// Steps in which everybody must finish once nothing fails any more.
const STEPS_TO_FINISH: u64 = 40_000;
/// Times others are let in before a step is over.
const INTERRUPTIONS_MAX: u32 = 12;
/// Actors in the middle of a step at once.
const NESTED_MAX: usize = 3;
/// A takeover comes in one of so many interruptions, where there are any.
const COUP_ONE_IN: u64 = 8;
const NONCE: u32 = 0x51ED_270B;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// See the module.
pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub control: Device,
    pub blogs: Vec<Device>,
    pub slots: Vec<Slot>,
    /// By row: requests to a broker.
    pub requests: BTreeMap<u16, Vec<Request>>,
    pub publishers: Vec<Publisher>,
    pub books: Books,
    pub now: u64,
    pub step: u64,
    /// Faults may happen.
    pub rough: bool,
    /// The row that takes over.
    pub taking_over: Option<u16>,
    pub nested: usize,
    /// Times others were let in since the last step began.
    pub interruptions: u32,
    pub trace: DefaultHasher,
    pub seen: BTreeMap<&'static str, u64>,
    /// What happened, line by line, if somebody wants to know.
    pub story: Option<Vec<String>>,
}

/// The world of this thread.
pub fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a run goes on")))
}

/// Runs a seed to its end.
pub fn run(options: Options) -> Report {
    inject(None);
    let world = World::new(options.seed, options.verbose);
    let mut checker = Checker::new(world.raw());
    WORLD.set(Some(world));
    inject(options.canary);
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut checker)));
    interrupt_after(0, 0, || {});
    inject(None);
    let world = WORLD.take().expect("nobody else takes it");
    Report {
        hash: world.trace.finish(),
        figures: Figures::default(),
        damaged: Damaged::new(),
        seen: world.seen,
        result: played.map_err(Violation::of_panic),
        lines: world.story.unwrap_or_default(),
    }
}

fn play(checker: &mut Checker) {
    let steps = with(|world| world.plan.steps);
    for _ in 0..steps {
        turn(checker);
    }
    with(World::calm_down);
    for _ in 0..STEPS_TO_FINISH {
        turn(checker);
        if with(|world| world.step.is_multiple_of(16)) && is_finished() {
            without_canary(|| checker.all());
            return;
        }
    }
    panic!("not finished: {}", with(|world| world.state()));
}

fn turn(checker: &mut Checker) {
    with(|world| {
        if std::mem::take(&mut world.interruptions) > 0 {
            world.plan_interruption();
        }
        world.tick();
    });
    let chosen = with(World::choose);
    step(chosen);
    without_canary(|| checker.step());
}

/// Lets others take steps in the middle of one.
fn interruption() {
    let others = with(|world| {
        world.plan_interruption();
        if world.nested >= NESTED_MAX {
            return Vec::new();
        }
        world.saw("interruptions", 1);
        world.interruptions += 1;
        let mut others = world.coup();
        let more = world.random.between(1, 6);
        others.extend((0..more).map(|_| world.choose()));
        others
    });
    others.into_iter().for_each(step);
}

fn step(chosen: usize) {
    let taken = with(|world| world.take_actor(chosen));
    let Some((life, actor)) = taken else {
        return;
    };
    let mut actor = match actor {
        Some(actor) => actor,
        None => start(chosen),
    };
    actor.step();
    with(|world| world.put_back(chosen, life, actor));
}

fn start(chosen: usize) -> Actor {
    let (kind, host) = with(|world| {
        let slot = &world.slots[chosen];
        (
            slot.kind,
            slot.host.clone().expect("whoever starts has a host"),
        )
    });
    match kind {
        Kind::Broker(row) => Actor::Broker(Box::new(Broker::start(host.region(), row, host.power))),
        Kind::Seat(row) => Actor::Seat(Box::new(Seat::start(host.region(), row))),
        Kind::Reader => Actor::Reader(Reader::new(host.region(), host.power)),
    }
}

impl World {
    fn new(seed: u64, tell: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::of(&mut random);
        let geometry = &plan.geometry;
        let control = control_file(geometry);
        let blogs = geometry
            .data_rows()
            .map(|_| Device::new(geometry.blog_bytes, random.bits()));
        let blogs: Vec<Device> = blogs.collect();
        let file = |device: &Device| std::sync::Arc::new(device.host(seed));
        Region::format(
            file(&control),
            blogs.iter().map(file).collect(),
            geometry,
            NONCE,
            1,
        )
        .expect("plans are valid");
        let mut kinds: Vec<Kind> = geometry.data_rows().map(Kind::Broker).collect();
        kinds.extend(geometry.candidates().map(Kind::Seat));
        kinds.extend((0..plan.readers).map(|_| Kind::Reader));
        let mut world = Self {
            random,
            control,
            blogs,
            slots: kinds.into_iter().map(Slot::new).collect(),
            requests: BTreeMap::new(),
            publishers: Vec::new(),
            books: Books::default(),
            now: 0,
            step: 0,
            rough: true,
            taking_over: None,
            nested: 0,
            interruptions: 0,
            trace: DefaultHasher::new(),
            seen: BTreeMap::new(),
            story: tell.then(Vec::new),
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
        Region::from_parts(file(&self.control), self.blogs.iter().map(file).collect())
            .expect("the region was formatted")
    }

    pub fn make_chain(&mut self, chain: (u32, u8)) {
        let order = Order::new(chain.1);
        self.books.chains.insert(chain.0, order);
        for _ in 0..self.plan.publishers {
            let (id, plan) = (self.publishers.len(), &self.plan);
            let mut publisher =
                Publisher::new(id, chain, plan.batches, plan.ahead, &mut self.random);
            publisher.forgettable = plan.limits.session_idle_ns < 1 << 40;
            self.publishers.push(publisher);
        }
    }

    pub fn plan_interruption(&mut self) {
        // Whoever takes over is not left alone: what happens meanwhile matters most.
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
        interrupt_after(after, self.plan.watched, interruption);
    }

    /// At times a candidate takes over in the middle of another's step, and the one that sequenced goes
    /// on as if it had not: those whose turn it is then.
    fn coup(&mut self) -> Vec<usize> {
        if !self.rough || !self.random.one_in(self.plan.usurp.min(COUP_ONE_IN)) {
            return Vec::new();
        }
        let watches = |slot: &Slot| match &slot.actor {
            Some(Actor::Seat(seat)) => seat.watches(),
            _ => false,
        };
        let Some(usurper) = self.slots.iter().position(watches) else {
            return Vec::new();
        };
        if let Some(Actor::Seat(seat)) = &mut self.slots[usurper].actor {
            seat.usurp = true;
        }
        let others = (0..self.slots.len()).filter(|place| *place != usurper);
        let seats = others.filter(|place| matches!(self.slots[*place].kind, Kind::Seat(_)));
        std::iter::once(usurper).chain(seats).collect()
    }

    fn choose(&mut self) -> usize {
        self.random.below(self.slots.len() as u64) as usize
    }

    /// The actor, or that one is to be started.
    fn take_actor(&mut self, chosen: usize) -> Option<(u64, Option<Actor>)> {
        let slot = &mut self.slots[chosen];
        if slot.busy || slot.paused_until > self.step {
            return None;
        }
        if let Some(host) = &slot.host
            && host.power.failed().is_some()
        {
            self.bury(chosen);
            return None;
        }
        if slot.actor.is_none() {
            if self.rough && !self.random.one_in(4) {
                return None;
            }
            slot.begin(&self.control, &self.blogs, &mut self.random);
        }
        let (kind, life, starts) = (slot.kind, slot.life, slot.actor.is_none());
        if starts {
            self.note(|| format!("{kind:?} starts, life {life}"));
        }
        let slot = &mut self.slots[chosen];
        slot.busy = true;
        self.nested += 1;
        (self.step, chosen, slot.life).hash(&mut self.trace);
        Some((slot.life, slot.actor.take()))
    }

    fn put_back(&mut self, chosen: usize, life: u64, actor: Actor) {
        self.nested -= 1;
        let slot = &mut self.slots[chosen];
        assert_eq!(slot.life, life, "harness: it was started twice");
        (slot.busy, slot.actor) = (false, Some(actor));
        if !slot.lives() {
            self.bury(chosen);
        }
    }

    fn bury(&mut self, chosen: usize) {
        let slot = &mut self.slots[chosen];
        let host = slot.host.take().expect("whoever lived had a host");
        let outage = host.power.failed().expect("its power failed");
        // What it still had in its caches settles before anything of it is gone.
        host.end(outage);
        slot.left = Some(host);
        slot.actor = None;
        let row = slot.row();
        let kind = slot.kind;
        if self.taking_over == row && row.is_some() {
            self.taking_over = None;
        }
        self.note(|| format!("{kind:?} is gone: {outage:?}"));
        if let Kind::Broker(row) = kind {
            self.requests.remove(&row);
        }
        self.saw(
            match (kind, outage) {
                (Kind::Broker(_), Outage::Host) => "brokers' hosts failed",
                (Kind::Broker(_), Outage::Process) => "brokers' processes ended",
                (Kind::Seat(_), Outage::Host) => "candidates' hosts failed",
                (Kind::Seat(_), Outage::Process) => "candidates' processes ended",
                (Kind::Reader, _) => "readers ended",
            },
            1,
        );
    }

    pub fn saw(&mut self, what: &'static str, count: u64) {
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

    /// Who is not finished.
    fn state(&self) -> String {
        let publishers = self.publishers.iter().filter(|it| !it.is_done());
        let mut lines: Vec<String> = publishers.map(|it| it.state()).collect();
        for slot in &self.slots {
            lines.push(match slot.actor.as_ref() {
                Some(Actor::Broker(broker)) => format!("{:?}: {}", slot.kind, broker.state()),
                Some(Actor::Reader(reader)) => {
                    let nexts = self.books.chains.keys().map(|it| reader.next(*it));
                    format!("reader: {:?}", nexts.collect::<Vec<_>>())
                }
                Some(Actor::Seat(_)) => format!("{:?}", slot.kind),
                None => format!("{:?} is gone", slot.kind),
            });
        }
        let ends = self.books.chains.iter().map(|(chain, it)| (*chain, it.end));
        lines.push(format!("{:?}\n{:?}", ends.collect::<Vec<_>>(), self.plan));
        lines.join("\n")
    }
}

/// Whether everybody has what he wanted, and everybody has seen all of it.
fn is_finished() -> bool {
    with(|world| {
        let books = &world.books;
        let up_to_date = |next: &dyn Fn(u32) -> u64| {
            books
                .chains
                .iter()
                .all(|(chain, order)| next(*chain) >= order.end)
        };
        world.publishers.iter().all(Publisher::is_done)
            && world.slots.iter().all(|slot| match slot.actor.as_ref() {
                Some(Actor::Broker(broker)) => {
                    !broker.busy() && up_to_date(&|chain| broker.next(chain))
                }
                Some(Actor::Reader(reader)) => up_to_date(&|chain| reader.next(chain)),
                Some(Actor::Seat(_)) => true,
                None => false,
            })
    })
}
