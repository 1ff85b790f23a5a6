//! A short run of seeds, and proof that they get into the states that matter.

use embar_sim::search::{Search, Sums};
use embar_sim::{Part, protocol, streams};

const STEPS: u64 = 2000;

fn sweep(part: &'static [Part], seeds: u64) -> Sums {
    let search = Search {
        from: 1,
        seeds,
        parts: part,
        steps: STEPS,
        canary: None,
        keeps_going: false,
    };
    let (sums, failures) = search.run(|_, _| {});
    if let Some(failure) = failures.first() {
        let (seed, part) = (failure.options.seed, failure.options.part.name());
        panic!(
            "seed {seed}: {}\nrun it again: cargo xtask sim --only {part} --seed {seed} --steps {STEPS}",
            failure.violation
        );
    }
    sums
}

#[test]
fn no_rule_is_broken_in_a_cluster() {
    let sum = sweep(&[Part::Cluster], 16).figures;
    assert!(sum.batches > 800 && sum.ordered_batches > 400, "{sum:?}");
    assert!(sum.evicted > 50 && sum.given_up > 10, "{sum:?}");
    let crashes = [sum.broker_host_crashes, sum.broker_process_crashes];
    assert!(crashes.iter().all(|count| *count > 5), "{sum:?}");
    assert!(sum.crashes_midway > 5 && sum.warm_starts > 5, "{sum:?}");
    assert!(sum.takeovers > 30 && sum.deposed > 5, "{sum:?}");
    assert!(sum.pauses_midway > 5 && sum.interruptions > 100, "{sum:?}");
    assert!(sum.cuts > 50 && sum.half_open > 5, "{sum:?}");
    assert!(sum.damaged > 5 && sum.damaged_frames > 5, "{sum:?}");
    assert!(sum.resent > 10 && sum.duplicates > 10, "{sum:?}");
}

#[test]
fn there_is_one_order_whoever_sequences() {
    all_happened(&sweep(&[Part::Protocol], 120), protocol::EXPECTED);
}

#[test]
fn streams_by_shared_memory_bring_what_was_sent_whoever_leaves_or_lies() {
    all_happened(&sweep(&[Part::Streams], 300), streams::EXPECTED);
}

fn all_happened(sums: &Sums, expected: &[&str]) {
    for what in expected {
        let count = sums.seen.get(what).copied().unwrap_or_default();
        assert!(count > 0, "{what}: {:?}", sums.seen);
    }
}
