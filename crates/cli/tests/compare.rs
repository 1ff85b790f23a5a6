//! `embar bench … --compare` and benches of ordered topics, small.

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
fn values_of_a_setting_are_measured_by_turns_and_compared_with_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let [log, trials] = ["log.md", "trials.csv"].map(|name| dir.path().join(name));
    let report = bench(&[
        "publish",
        "--compare",
        "order=0,5",
        "--rounds",
        "2",
        "--markdown",
        log.to_str().expect("a path"),
        "--trials-csv",
        trials.to_str().expect("a path"),
    ]);
    assert_eq!(report["compare"], "order=0,5");
    let configurations = report["configurations"].as_array().expect("two");
    let orders = configurations
        .iter()
        .map(|of| of["config"]["order"].as_u64());
    assert_eq!(orders.collect::<Vec<_>>(), [Some(0), Some(5)]);
    for of in configurations {
        assert_eq!(of["trials"].as_array().map(Vec::len), Some(2), "{of}");
        assert!(of["median"].as_f64() > Some(0.0), "{of}");
    }
    let comparison = &report["comparisons"][0];
    assert_eq!(comparison["baseline"], "order 0");
    assert_eq!(comparison["changed"], "order 5");
    assert_eq!(
        comparison["verdict"], "InsideNoise",
        "two rounds say nothing"
    );
    assert!(report["environment"]["kernel"].is_string());
    assert!(report["surroundings"]["others"].is_number());
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("order 5 against order 0"), "{log}");
    let trials = std::fs::read_to_string(trials).expect("trials");
    assert_eq!(trials.lines().count(), 1 + 4, "{trials}");
}

#[test]
fn a_bench_beside_itself_runs_until_its_budget_is_spent() {
    let report = bench(&[
        "e2e",
        "--compare",
        "itself",
        "--precision",
        "0.0001%",
        "--budget",
        "1ms",
        "--rounds",
        "1",
        "--metric",
        "p50",
    ]);
    assert_eq!(
        (&report["metric"], &report["better"]),
        (&"p50".into(), &"Lower".into())
    );
    assert_eq!(report["rounds"], 1);
    assert!(report["stopped"]["Spent"].is_object(), "{report}");
    let names = report["configurations"].as_array().expect("two");
    let names: Vec<_> = names.iter().map(|it| it["name"].as_str()).collect();
    assert_eq!(names, [Some("as it is"), Some("the same again")]);
}

#[test]
fn too_few_rounds_are_said_before_and_a_setting_without_effect_ends_it() {
    let mut command = embar(&["bench", "publish", "-s", "1MiB", "--region-size", "128MiB"]);
    // The same size, written in two ways.
    let compare = "batch-size=64KiB,65536";
    let output = run(command.args(["--brokers", "2", "--compare", compare, "--rounds", "3"]));
    let said = text(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("3 rounds support no verdict"), "{said}");
    assert!(said.contains("has no effect"), "{said}");
    assert!(!said.contains("trial 1"), "the warm-up shows it: {said}");
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
        &["publish", "--compare", "order=0"][..],
        &["publish", "--compare", "ackses=0,1"],
        &["publish", "--compare", "acks=0,7"],
        &["publish", "--compare", "acks=1,2"],
        &["publish", "--compare", "order=0,5", "--order", "1"],
        &["publish", "--compare", "order=0,5", "--acks", "0"],
        &["publish", "--compare", "receive=direct,epoll"],
        &["publish", "--compare", "order=0,5", "--metric", "p12"],
        &["publish", "--rounds", "9"],
        &["publish", "--precision", "0%"],
        &["publish", "--budget", "1s"],
        &["walls", "--precision", "1%"],
        &["publish", "--order", "3"],
    ] {
        let output = run(embar(&["bench"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}
