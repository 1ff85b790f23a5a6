//! A short run of seeds, and proof that they get into the states that matter.

use embar_sim::figures::Figures;
use embar_sim::host::Sabotage;
use embar_sim::{Options, run};

const STEPS: u64 = 2500;

fn sweep(seeds: std::ops::Range<u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        let report = run(Options {
            seed,
            steps: STEPS,
            sabotage: Sabotage::default(),
            verbose: false,
        });
        if let Err(violation) = report.result {
            panic!(
                "seed {seed}: {violation}\nrun it again: cargo run -p embar-sim -- --seed {seed} --steps {STEPS}"
            );
        }
        sum += report.figures;
    }
    sum
}

#[test]
fn no_rule_is_broken() {
    let sum = sweep(1..25);
    assert!(sum.batches > 1000, "{sum:?}");
    assert!(sum.evicted > 100, "{sum:?}");
    assert!(sum.host_crashes > 30 && sum.process_crashes > 10, "{sum:?}");
    assert!(sum.crashes_midway > 10, "{sum:?}");
    assert!(sum.cuts > 50 && sum.damaged > 10, "{sum:?}");
    assert!(
        sum.resent > 10 && sum.in_doubt > 10 && sum.overtaken > 0,
        "{sum:?}"
    );
}
