//! What a file says of Redis is diagnosed whatever it says.

mod common;
mod redis_runs;

use common::numbers;
use embar_diagnose::observed::Missing;
use embar_diagnose::picture::Picture;
use embar_diagnose::redis::diagnose;
use embar_diagnose::redis::observed::{Client, Observed, Traffic};
use embar_diagnose::{Cause, Diagnosis};
use redis_runs::*;
use serde_json::Value;

#[test]
fn a_look_that_saw_nothing_says_so() {
    let empty = Observed::default();
    assert_eq!(first(&empty).cause, Cause::NothingFound);
    let mut silent = servers();
    for node in &mut silent.nodes {
        (node.server, node.probe) = (None, None);
    }
    silent.missing.push(Missing {
        what: "INFO of 127.0.0.1:7000".into(),
        why: "NOPERM".into(),
    });
    let diagnosis = diagnose(&silent);
    check(&diagnosis);
    assert_eq!(diagnosis.findings[0].cause, Cause::NothingFound);
    assert_eq!(diagnosis.missing, silent.missing);
    // A client without threads, callers or replies: a run that failed.
    let mut failed = calling(8);
    failed.client = Some(Client::default());
    for node in &mut failed.nodes {
        node.traffic = Some(Traffic::default());
    }
    check(&diagnose(&failed));
}

#[test]
fn no_number_of_a_file_breaks_a_diagnosis() {
    let mut full = calling(8);
    client(&mut full).by_tls = true;
    client(&mut full).in_flight_max = 4;
    let mut blocked = servers();
    let kinds = &mut server(&mut blocked.nodes[2]).by_command;
    kinds.get_or_insert_default().push(command("keys", 20, 2.0));
    for observed in [calling(2), skewed(900_000), full, blocked] {
        let mut document = serde_json::to_value(&observed).expect("JSON");
        let count = numbers(&mut document).len();
        for extreme in ["0", "1", "18446744073709551615", "1e300", "-1.5"] {
            let extreme: Value = serde_json::from_str(extreme).expect("a number");
            for place in 0..count {
                let mut changed = document.clone();
                *numbers(&mut changed)[place] = extreme.clone();
                // A count cannot be negative, nor a fraction: such a file is refused.
                if let Ok(observed) = serde_json::from_value::<Observed>(changed) {
                    sound(&diagnose(&observed));
                }
            }
            let mut changed = document.clone();
            for number in numbers(&mut changed) {
                *number = extreme.clone();
            }
            if let Ok(observed) = serde_json::from_value::<Observed>(changed) {
                sound(&diagnose(&observed));
            }
        }
    }
}

/// What holds whatever a file says.
fn sound(diagnosis: &Diagnosis) {
    assert!(!Picture(diagnosis).to_string().is_empty());
    for finding in &diagnosis.findings {
        assert!(finding.gain_at_most.is_finite(), "{finding:?}");
        assert!(finding.gain_at_most >= 0.0, "{finding:?}");
        assert!((0.0..=1.0).contains(&finding.confidence), "{finding:?}");
        let can_be = |value: f64| value.is_finite() && value >= 0.0;
        let sound = finding.evidence.iter().all(|it| can_be(it.value));
        assert!(sound, "{finding:?}");
        finding.evidence.iter().for_each(|it| drop(it.to_string()));
    }
}

#[test]
fn what_was_seen_can_be_written_down() {
    let observed = skewed(800_000);
    let text = serde_json::to_string(&observed).expect("JSON");
    let again: Observed = serde_json::from_str(&text).expect("JSON");
    assert_eq!(again, observed);
}
