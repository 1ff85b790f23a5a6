//! Checkers that never find anything prove nothing: each rule is broken on purpose, and the
//! checker of that rule must say so soon.

use embar_broker::log::canary::Canary;
use embar_fabric::Faults;
use embar_sim::host::Sabotage;
use embar_sim::violation::Invariant;
use embar_sim::{Options, run};

/// The seed, of the first few, that notices; and what it says is broken.
fn first_to_notice(sabotage: Sabotage, seeds: u64) -> Option<(u64, Invariant)> {
    (1..=seeds).find_map(|seed| {
        let report = run(Options {
            seed,
            steps: 3000,
            sabotage,
            verbose: false,
        });
        report
            .result
            .err()
            .map(|violation| (seed, violation.invariant))
    })
}

fn broken(canary: Canary) -> Sabotage {
    Sabotage {
        canary,
        ..Sabotage::default()
    }
}

#[test]
fn a_host_without_write_backs_is_noticed() {
    let sabotage = Sabotage {
        memory: Faults {
            drop_write_backs: true,
        },
        ..Sabotage::default()
    };
    let (_, invariant) = first_to_notice(sabotage, 3).expect("noticed");
    assert!(
        matches!(invariant, Invariant::I1 | Invariant::I2 | Invariant::I3),
        "{invariant}"
    );
}

#[test]
fn publishing_before_the_payload_is_written_back_is_noticed() {
    let (_, invariant) =
        first_to_notice(broken(Canary::PayloadNotWrittenBack), 3).expect("noticed");
    assert_eq!(invariant, Invariant::I2);
}

#[test]
fn using_memory_again_without_raising_the_window_is_noticed() {
    let (_, invariant) = first_to_notice(broken(Canary::WindowNotRaised), 20).expect("noticed");
    assert_eq!(invariant, Invariant::I7);
}

#[test]
fn silence_is_silence() {
    assert_eq!(first_to_notice(broken(Canary::Silent), 3), None);
}
