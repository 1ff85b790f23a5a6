//! The quick ones of the canaries: each rule is broken on purpose, and a seed must notice soon.
//! `cargo xtask sim --canaries` tries all of them.

use embar_memory::canary::Canary;
use embar_sim::canaries;

/// Seeds within which a quick one is noticed.
const SEEDS: u64 = 24;

#[test]
fn the_quick_ones_are_noticed() {
    for canary in canaries::QUICK {
        let noticed = canaries::first_to_notice(*canary, SEEDS);
        assert!(noticed.is_some(), "{}", canary.name());
    }
}

#[test]
fn every_canary_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = Canary::ALL.iter().map(|c| c.name()).collect();
    assert_eq!(names.len(), Canary::ALL.len());
}
