//! The schedule of a run: chance decides which process takes the next step, also in the middle of another's step.

use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_memory::canary::inject;
use embar_memory::interrupt_after;

use super::links::connect_all;
use super::world::{self, World, with};
use crate::figures::{Damaged, Figures};
use crate::options::Options;
use crate::report::Report;
use crate::violation::{Invariant, Violation};

/// Steps in which everybody must finish once nothing fails any more.
const STEPS_TO_FINISH: u64 = 20_000;
/// Processes in the middle of a step at once.
const NESTED_MAX: usize = 3;

/// Runs a seed to its end.
pub fn run(options: Options) -> Report {
    inject(None);
    let mut world = World::new(options.seed, options.verbose, interruption);
    connect_all(&mut world);
    world::enter(world);
    inject(options.canary);
    let played = catch_unwind(AssertUnwindSafe(play));
    interrupt_after(0, 0, || {});
    inject(None);
    let world = world::leave();
    Report {
        hash: world.trace.finish(),
        figures: Figures::default(),
        damaged: Damaged::new(),
        seen: world.seen,
        result: played.unwrap_or_else(|panic| Err(Violation::of_panic(panic))),
        lines: world.story.unwrap_or_default(),
    }
}

fn play() -> Result<(), Violation> {
    for _ in 0..with(|world| world.plan.steps) {
        with(World::strike);
        turn();
    }
    with(World::calm_down);
    for _ in 0..STEPS_TO_FINISH {
        if with(|world| world.is_finished()) {
            return Ok(());
        }
        turn();
    }
    Err(Violation {
        invariant: Invariant::Liveness,
        what: format!("not finished: {}", with(|world| world.state())),
    })
}

fn turn() {
    let chosen = with(|world| {
        world.step += 1;
        if std::mem::take(&mut world.interruptions) > 0 {
            world.plan_interruption();
        }
        world.choose()
    });
    step(chosen);
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
        let more = world.random.between(1, 6);
        (0..more).map(|_| world.choose()).collect()
    });
    others.into_iter().for_each(step);
}

fn step(chosen: usize) {
    let Some(mut process) = with(|world| world.take_process(chosen)) else {
        return;
    };
    let over = process.step();
    let left = (!over).then_some(process);
    with(|world| world.put_back(chosen, left));
}
