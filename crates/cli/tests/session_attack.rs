//! `bench session --attack` and `--idle-sessions`, small: honest sessions lose nothing, and the report says what the
//! server counted.

mod common;

use common::{embar, run, text};
use serde_json::Value;

const ALL: [&str; 11] = [
    "silent",
    "churn",
    "half-open-tls",
    "slow-greeting",
    "tiny-frames",
    "no-reading",
    "slow-writer",
    "garbage",
    "pings",
    "big-announcements",
    "status-flood",
];

/// A drill that is no measurement: how slow honest round trips become says nothing on a machine with other work.
const SMALL: [&str; 12] = [
    "--connections",
    "150",
    "--sessions",
    "2",
    "--runs",
    "1",
    "--duration",
    "300ms",
    "--max-ratio",
    "1e9",
    "--timeout",
    "60s",
];

fn drill(args: &[&str]) -> Value {
    let args = [&["--json", "bench", "session"], args, &SMALL].concat();
    let output = run(&mut embar(&args));
    let said = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}{}", said.0, said.1);
    serde_json::from_str(&said.0).expect("one JSON object and nothing else")
}

fn count(attack: &Value, what: &str) -> u64 {
    attack["counted"][what].as_u64().unwrap_or(0)
}

#[test]
fn honest_sessions_lose_nothing_whatever_the_attack() {
    let report = drill(&["--attack", "all"]);
    let attacks = report["attacks"].as_array().expect("attacks");
    let names: Vec<&str> = attacks
        .iter()
        .filter_map(|it| it["attack"].as_str())
        .collect();
    assert_eq!(names, ALL);
    assert_eq!(report["is_harmed"], false);
    for attack in attacks {
        let harm = &attack["harm"];
        for what in ["lost", "wrong", "sessions_ended", "newcomers_failed"] {
            assert_eq!(harm[what], 0, "{what}: {attack}");
        }
        let after = &attack["server_after"];
        for what in ["sessions", "arrivals", "panics"] {
            assert_eq!(after[what], 0, "{what} afterwards: {attack}");
        }
        let round = &attack["rounds"][0];
        assert!(round["attacker"]["connects"].as_u64() > Some(0), "{attack}");
        for part in ["before", "during"] {
            let trips = round[part]["round_trips"].as_u64();
            assert!(trips > Some(0), "{part}: {attack}");
        }
    }
    let of = |name: &str| &attacks[ALL.iter().position(|it| *it == name).expect("an attack")];
    // Connections that were there when the server was asked, of those that stay.
    for name in ["silent", "slow-greeting", "half-open-tls"] {
        let arrivals = of(name)["rounds"][0]["server"]["arrivals"].as_u64();
        assert!(arrivals >= Some(100), "{name}: {}", of(name));
    }
    for name in ["slow-writer", "no-reading"] {
        let sessions = of(name)["rounds"][0]["server"]["sessions"].as_u64();
        assert!(sessions >= Some(100), "{name}: {}", of(name));
    }
    for name in ["tiny-frames", "pings", "status-flood"] {
        let sent = of(name)["rounds"][0]["attacker"]["sent_bytes"].as_u64();
        assert!(sent > Some(10_000), "{name}: {}", of(name));
    }
    let garbage = of("garbage");
    assert!(count(garbage, "refused: NotSession") > 0, "{garbage}");
}

#[test]
fn one_address_has_no_more_sessions_than_one_may_have() {
    // Each body that is announced ends its session when there is no memory for it, and another session comes.
    let report = drill(&[
        "--attack",
        "slow-writer,big-announcements",
        "--addresses",
        "3",
    ]);
    let attacks = report["attacks"].as_array().expect("attacks");
    assert_eq!(attacks.len(), 2);
    assert_eq!(report["config"]["addresses"], 3);
}

#[test]
fn slower_than_allowed_ends_in_an_error() {
    let args = ["bench", "session", "--attack", "tiny-frames"];
    let small = ["--runs", "1", "--duration", "200ms", "--max-ratio", "1.0"];
    let output = run(&mut embar(&[&args[..], &small].concat()));
    let said = text(&output.stderr);
    // That such a flood on two sides of the same processors costs nothing is not to be expected.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("harmed by tiny-frames"), "{said}");
}

#[test]
fn what_says_nothing_about_a_drill_is_refused() {
    for wrong in [
        &["--attack", "silent", "--iterations", "5"][..],
        &["--attack", "silent", "--csv"],
        &["--connections", "5"],
        &["--attack", "silent", "--max-ratio", "0.5"],
        &["--attack", "loud"],
        &["--attack", "silent", "--idle-sessions", "5"],
    ] {
        let args = [&["bench", "session"], wrong].concat();
        let output = run(&mut embar(&args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn idle_sessions_are_measured() {
    let args = ["--json", "bench", "session", "--idle-sessions", "300"];
    let output = run(&mut embar(&args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["sessions"], 300);
    let each = |name: &str| report[name].as_f64().expect("a number");
    assert!(each("open_bytes_each") > 1000.0, "{report}");
    assert!(
        each("used_bytes_each") >= each("open_bytes_each"),
        "{report}"
    );
}
