//! A log on disks that lose their power: brokers, sequencers and disk writers on simulated memory and simulated disks, whose
//! every step is drawn from a seed. What was acknowledged at level 2 is there afterwards, once, in its place.

mod broker;
mod busy;
mod candidate;
mod disks;
mod levelling;
mod memory;
mod oracle;
mod publisher;
mod slow;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use embar_memory::canary::{Canary, inject};
use world::World;

/// What a run went through, and how often.
type Figures = BTreeMap<&'static str, u64>;

/// Those of a usual run.
const SEEDS: Range<u64> = 0..96;
/// Steps before everything heals.
const STEPS: usize = 600;

/// What must happen in all runs together, or they prove little.
const EXPECTED: [&str; 12] = [
    "a broker died",
    "a candidate died",
    "a commit was damaged",
    "a disk failed",
    "a disk that others took the place of was lost",
    "a disk took the place of another",
    "a message was acknowledged",
    "a segment was full",
    "a topic was deleted",
    "a topic's space was given back",
    "memory evicted something",
    "the power was cut",
];

/// What a run went through, or what is wrong with it.
fn run(seed: u64) -> Result<Figures, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed).run(STEPS)));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        text.unwrap_or_default()
    })
}

/// `EMBAR_DURABLE=1000..2000` runs these seeds instead of the usual ones.
fn seeds() -> Range<u64> {
    let asked = std::env::var("EMBAR_DURABLE").ok();
    let asked = asked.as_deref().and_then(|asked| {
        let (from, to) = asked.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    asked.unwrap_or(SEEDS)
}

#[test]
fn what_was_acknowledged_survives_the_loss_of_all_memory() {
    let (seeds, next) = (seeds(), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, sums) = (&next, Mutex::new(Figures::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.clone().nth(next.fetch_add(1, Relaxed) as usize) {
                    let figures = run(seed);
                    let figures = figures.unwrap_or_else(|wrong| {
                        panic!("{wrong}\nrun it again: EMBAR_DURABLE={seed}..{}", seed + 1)
                    });
                    let mut sums = sums.lock().expect("no other thread failed");
                    for (what, count) in figures {
                        *sums.entry(what).or_default() += count;
                    }
                }
            });
        }
    });
    let sums = sums.into_inner().expect("no thread failed");
    let is_missing = |what: &&str| sums.get(what).is_none_or(|count| *count == 0);
    let missing: Vec<_> = EXPECTED.into_iter().filter(is_missing).collect();
    assert!(
        seeds != SEEDS || missing.is_empty(),
        "never happened: {missing:?}"
    );
}

#[test]
fn each_rule_that_is_broken_on_purpose_is_noticed() {
    for canary in Canary::OF_DISKS {
        inject(Some(*canary));
        let mut seeds = SEEDS;
        let noticed = seeds.find_map(|seed| run(seed).err());
        inject(None);
        assert!(noticed.is_some(), "{} is not noticed", canary.name());
    }
}
