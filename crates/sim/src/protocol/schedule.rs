//! The schedule of a run: chance decides which process takes the next step, also in the middle of another's step.

use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_memory::canary::{inject, without_canary};
use embar_memory::interrupt_after;

use super::broker::Broker;
use super::candidate::Candidate;
use super::check::Checker;
use super::process::{Process, ProcessKind};
use super::reader::Reader;
use super::world::{self, World, with};
use crate::figures::{Damaged, Figures};
use crate::options::Options;
use crate::report::Report;
use crate::violation::Violation;

/// Steps in which everybody must finish once nothing fails any more.
const STEPS_TO_FINISH: u64 = 40_000;
/// Processes in the middle of a step at once.
const NESTED_MAX: usize = 3;

/// Runs a seed to its end.
pub fn run(options: Options) -> Report {
    inject(None);
    let world = World::new(options.seed, options.verbose, interruption);
    let mut checker = Checker::new(world.raw());
    world::enter(world);
    inject(options.canary);
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut checker)));
    interrupt_after(0, 0, || {});
    inject(None);
    let world = world::leave();
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
        if with(|world| world.step.is_multiple_of(16) && world.is_finished()) {
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
        world.count("interruptions", 1);
        world.interruptions += 1;
        let mut others = world.forced_takeover();
        let more = world.random.between(1, 6);
        others.extend((0..more).map(|_| world.choose()));
        others
    });
    others.into_iter().for_each(step);
}

fn step(chosen: usize) {
    let taken = with(|world| world.take_process(chosen));
    let Some((life, process)) = taken else {
        return;
    };
    let mut process = match process {
        Some(process) => process,
        None => start(chosen),
    };
    process.step();
    with(|world| world.put_back(chosen, life, process));
}

fn start(chosen: usize) -> Box<dyn Process> {
    let (kind, host) = with(|world| {
        let slot = &world.slots[chosen];
        (
            slot.kind,
            slot.host.clone().expect("whoever starts has a host"),
        )
    });
    let region = host.region();
    match kind {
        ProcessKind::Broker(row) => Box::new(Broker::start(region, row, host.power)),
        ProcessKind::Candidate(row) => Box::new(Candidate::start(region, row)),
        ProcessKind::Reader => Box::new(Reader::new(region, host.power)),
    }
}
