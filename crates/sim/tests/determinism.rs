//! Before anything else: the same seed gives the same run.

use embar_sim::{Options, Part, Report, run};

fn report(part: Part, seed: u64, verbose: bool) -> Report {
    run(Options {
        seed,
        part,
        steps: 1000,
        canary: None,
        verbose,
    })
}

#[test]
fn the_same_seed_gives_the_same_run_event_by_event() {
    for part in Part::ALL {
        for seed in 1..=6 {
            let (one, other) = (report(part, seed, true), report(part, seed, true));
            for (a, b) in one.lines.iter().zip(&other.lines) {
                assert_eq!(a, b, "seed {seed}");
            }
            assert_eq!(one.lines.len(), other.lines.len(), "seed {seed}");
            assert_eq!(one.hash, other.hash, "seed {seed}");
            assert_eq!(one.figures, other.figures, "seed {seed}");
            assert_eq!(one.seen, other.seen, "seed {seed}");
            assert_eq!(one.result, other.result, "seed {seed}");
        }
    }
}

#[test]
fn telling_what_happens_changes_nothing() {
    for part in Part::ALL {
        assert_eq!(report(part, 3, true).hash, report(part, 3, false).hash);
    }
}

#[test]
fn another_seed_gives_another_run() {
    for part in Part::ALL {
        assert_ne!(report(part, 1, false).hash, report(part, 2, false).hash);
    }
}
