//! Before anything else: the same seed gives the same run.

use embar_sim::{Options, Report, run};

fn report(seed: u64, verbose: bool) -> Report {
    run(Options {
        seed,
        steps: 1000,
        canary: None,
        verbose,
    })
}

#[test]
fn the_same_seed_gives_the_same_run_event_by_event() {
    for seed in 1..=6 {
        let (one, other) = (report(seed, true), report(seed, true));
        for (a, b) in one.lines.iter().zip(&other.lines) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(one.lines.len(), other.lines.len(), "seed {seed}");
        assert_eq!(
            (one.hash, one.figures),
            (other.hash, other.figures),
            "seed {seed}"
        );
        assert_eq!(one.result, other.result, "seed {seed}");
    }
}

#[test]
fn telling_what_happens_changes_nothing() {
    assert_eq!(report(3, true).hash, report(3, false).hash);
}

#[test]
fn another_seed_gives_another_run() {
    assert_ne!(report(1, false).hash, report(2, false).hash);
}
