//! `embar bench publish --compare` and benches of ordered topics, small.

mod common;

use common::{embar, run, text};
use serde_json::Value;

fn bench(args: &[&str]) -> Value {
    let mut command = embar(&["--json", "bench"]);
    command.args(args).args([
        "--size",
        "1MiB",
        "--brokers",
        "3",
        "--region-size",
        "128MiB",
        "--batch-size",
        "64KiB",
    ]);
    let output = run(&mut command);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

#[test]
fn order_levels_are_measured_by_turns_and_compared_with_the_first() {
    let report = bench(&["publish", "--compare", "order=0,2,5", "--trials", "2"]);
    assert_eq!(report["compare"], "order=0,2,5");
    let orders = report["orders"].as_array().expect("orders");
    let levels: Vec<_> = orders.iter().map(|of| of["order"].as_u64()).collect();
    assert_eq!(levels, [Some(0), Some(2), Some(5)]);
    for of in orders {
        assert_eq!(of["trials"].as_array().map(Vec::len), Some(2), "{of}");
        assert!(of["median_mib_per_s"].as_f64() > Some(0.0), "{of}");
        assert!(
            of["costs"]["client"]["cpu_s_per_gib"].as_f64() >= Some(0.0),
            "{of}"
        );
    }
    let comparisons = report["comparisons"].as_array().expect("comparisons");
    assert_eq!(comparisons.len(), 2);
    assert_eq!(
        (&comparisons[1]["baseline"], &comparisons[1]["changed"]),
        (&"order 0".into(), &"order 5".into())
    );
}

#[test]
fn ways_to_receive_are_measured_by_turns_each_with_brokers_of_its_own() {
    let report = bench(&[
        "publish",
        "--compare",
        "receive=direct,staging",
        "--trials",
        "2",
    ]);
    assert_eq!(report["compare"], "receive=direct,staging");
    let paths = report["paths"].as_array().expect("paths");
    let names: Vec<_> = paths.iter().map(|of| of["receive"].as_str()).collect();
    assert_eq!(names, [Some("direct"), Some("staging")]);
    for of in paths {
        assert_eq!(of["trials"].as_array().map(Vec::len), Some(2), "{of}");
        assert!(of["median_mib_per_s"].as_f64() > Some(0.0), "{of}");
    }
    let comparison = &report["comparisons"][0];
    assert_eq!(
        (&comparison["baseline"], &comparison["changed"]),
        (&"direct".into(), &"staging".into())
    );
}

#[test]
fn latency_of_an_ordered_topic_is_measured() {
    let report = bench(&["e2e", "--order", "5", "--trials", "1", "--warmup", "0"]);
    assert_eq!(report["config"]["order"], 5);
    assert!(report["trials"][0]["latency_us"]["p50"].as_f64() > Some(0.0));
}

#[test]
fn acknowledgements_are_timed_beside_a_bare_round_trip() {
    let report = bench(&[
        "latency",
        "--orders",
        "0,5",
        "--iterations",
        "50",
        "--load",
        "0.25",
        "--duration",
        "300ms",
        "--trials",
        "2",
        "--warmup",
        "0",
    ]);
    let lines = |of: &str| report[of].as_array().expect("lines").clone();
    let orders = |of: &str| -> Vec<_> { lines(of).iter().map(|it| it["order"].as_u64()).collect() };
    assert_eq!(orders("alone"), [None, Some(0), Some(5)]);
    assert_eq!(orders("loaded"), [Some(0), Some(5)]);
    for line in lines("alone") {
        assert_eq!(line["samples"], 100, "{line}");
        assert!(line["latency_us"]["p50"].as_f64() > Some(0.0), "{line}");
    }
    for line in lines("loaded") {
        assert!(line["samples"].as_u64() > Some(0), "{line}");
        assert!(line["messages_per_s"].as_f64() > Some(0.0), "{line}");
    }
    let alone = bench(&[
        "latency",
        "--orders",
        "5",
        "--iterations",
        "10",
        "--load",
        "0",
        "--trials",
        "1",
    ]);
    assert_eq!(alone["loaded"].as_array().map(Vec::len), Some(0));
}

#[test]
fn latencies_that_cannot_be_measured_are_a_matter_of_usage() {
    for wrong in [
        &["--orders", "5,5"][..],
        &["--orders", "3"],
        &["--iterations", "0"],
        &["--load", "1"],
        &["--load", "-0.1"],
        &["--duration", "0s"],
    ] {
        let output = run(embar(&["bench", "latency"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn what_cannot_be_compared_is_a_matter_of_usage() {
    for wrong in [
        &["--compare", "order=0"][..],
        &["--compare", "acks=0,1"],
        &["--compare", "order=0,5", "--order", "1"],
        &["--compare", "order=0,5", "--acks", "0"],
        &["--compare", "receive=direct,epoll"],
        &["--compare", "receive=direct,uring", "--receive", "staging"],
        &["--order", "3"],
    ] {
        let output = run(embar(&["bench", "publish"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}
