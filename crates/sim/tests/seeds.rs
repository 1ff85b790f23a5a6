//! A short run of seeds, and proof that they get into the states that matter.

use embar_sim::figures::Figures;
use embar_sim::{Options, run};

const STEPS: u64 = 2000;

fn sweep(seeds: std::ops::Range<u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        let report = run(Options {
            seed,
            steps: STEPS,
            canary: None,
            verbose: false,
        });
        if let Err(violation) = report.result {
            panic!(
                "seed {seed}: {violation}\nrun it again: cargo xtask sim --seed {seed} --steps {STEPS}"
            );
        }
        sum += report.figures;
    }
    sum
}

#[test]
fn no_rule_is_broken() {
    let sum = sweep(1..16);
    assert!(sum.batches > 800 && sum.ordered_batches > 400, "{sum:?}");
    assert!(sum.evicted > 50 && sum.given_up > 10, "{sum:?}");
    let crashes = [sum.broker_host_crashes, sum.broker_process_crashes];
    assert!(crashes.iter().all(|count| *count > 5), "{sum:?}");
    assert!(sum.crashes_midway > 5, "{sum:?}");
    assert!(sum.takeovers > 30 && sum.deposed > 5, "{sum:?}");
    assert!(sum.pauses_midway > 5 && sum.interruptions > 100, "{sum:?}");
    assert!(sum.cuts > 50 && sum.half_open > 5, "{sum:?}");
    assert!(sum.resent > 10 && sum.duplicates > 10, "{sum:?}");
}
