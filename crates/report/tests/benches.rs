//! Pages of what benches of sessions, of Redis, of costs and of sizes print: what they must show.

mod common;

use common::{check, has_cell, page_of, texts};
use serde_json::{Value, json};

fn page(value: &Value) -> String {
    let page = page_of(&value.to_string()).unwrap_or_else(|error| panic!("{error}"));
    check(&page);
    page
}

fn error(value: &Value) -> String {
    page_of(&value.to_string())
        .expect_err("it has no figure")
        .to_string()
}

#[test]
fn what_metering_costs_is_said_with_its_bound() {
    let interval = json!({"point": 0.99, "low": 0.98, "high": 1.0, "level": 0.95});
    let mut value = json!({
        "bench": "metering", "config": {"batch_bytes": 2_097_152},
        "series": [{"name": "alone", "median_mib_per_s": 4000.0, "trials_mib_per_s": [3900.0, 4100.0]},
                   {"name": "looked at", "median_mib_per_s": 3960.0, "trials_mib_per_s": [3860.0, 4060.0]}],
        "metering_cost": {"baseline": "alone", "changed": "looked at", "pairs": 60, "ratio": interval,
            "verdict": "InsideNoise", "loss": {"point": 0.0123, "upper": 0.0456, "level": 0.95}}});
    let shown = page(&value);
    assert_eq!(texts(&shown, "h1"), ["What it costs to be looked at"]);
    assert!(shown.contains("1.2 % of the rate, at most 4.6 %"));
    for cell in ["inside the noise", "60", "4.6 %", "3,960"] {
        assert!(has_cell(&shown, cell), "{cell}");
    }
    value["series"][1]["name"] = json!("metering on");
    assert_eq!(texts(&page(&value), "h1"), ["What the stage timers cost"]);
    value["metering_cost"] = json!({"pairs": 60});
    assert!(error(&value).contains("no loss"));
}

#[test]
fn phases_of_sessions_stand_beside_the_wall() {
    let phase = |p50: f64, rate: f64| {
        json!({"p50_ns": p50, "p99_ns": p50 * 3.0, "p999_ns": p50 * 9.0, "messages_per_s": rate,
        "interval": {"messages_per_s": {"point": rate, "low": rate * 0.9, "high": rate * 1.1, "level": 0.95}}})
    };
    let ratio = |metric: &str, point: f64, verdict: &str| {
        json!({"metric": metric, "baseline": "wall", "changed": "zero-copy send", "pairs": 8, "verdict": verdict,
        "ratio": {"point": point, "low": point * 0.95, "high": point * 1.05, "level": 0.95}})
    };
    let shown = page(&json!({
        "bench": "session", "config": {"in_flight": 1}, "lost": 3, "wrong": 0,
        "median": {"baseline": phase(20_000.0, 40_000.0), "zero-copy send": phase(15_000.0, 60_000.0)},
        "wall": {"median": phase(12_000.0, 70_000.0)},
        "comparisons": [ratio("p50_ns", 1.25, "Slower"), ratio("messages_per_s", 0.8, "Slower")]}));
    assert!(
        shown.contains("zero-copy send: p50 15 µs"),
        "the fastest that is ours"
    );
    for cell in [
        "36 µs",
        "45 µs",
        "70,000",
        "1.25 [1.19, 1.31]",
        "above 1",
        "0.80 [0.76, 0.84]",
        "below 1",
    ] {
        assert!(has_cell(&shown, cell), "{cell}");
    }
    // More latency is worse, and so is a lower rate.
    assert_eq!(shown.matches("row weak").count(), 2);
    assert!(
        texts(&shown, "dd").iter().any(|it| it == "3"),
        "messages lost"
    );

    let one_way = page(&json!({"bench": "session wall", "comparisons": [],
        "median": {"wall": {"messages_per_s": 9e6}}}));
    assert!(one_way.contains("wall: 9,000,000 messages/s"));
    let with_runs = page(&json!({"bench": "session wall", "comparisons": [],
        "wall": {"median": {"messages_per_s": 9e6}, "runs": []},
        "median": {"wall": {"messages_per_s": 9e6}}}));
    assert_eq!(with_runs, one_way, "the wall alone is there once");
    assert!(error(&json!({"bench": "session", "median": {}})).contains("no phase"));
}

#[test]
fn curves_show_their_cliffs_and_what_could_not_be_run() {
    let shown = page(&json!({"bench": "scale", "curves": [{"curve": "brokers",
        "points": [{"value": 1, "mb_per_s": 3000.0, "cpu_s_per_gib": 0.25},
                   {"value": 2, "mb_per_s": 2000.0, "cpu_s_per_gib": 0.75},
                   {"value": 4, "failed": "too many <open> files"}],
        "cpu_cliffs": [{"from": 1, "to": 2, "factor": 3.0}], "time_cliffs": []},
        {"curve": "batches", "points": [{"value": 65536, "mb_per_s": 3000.0, "cpu_s_per_gib": 0.25}]}]}));
    assert!(shown.contains("Costs jump at 1 point(s)"));
    for cell in [
        "3,000",
        "0.75",
        "CPU time",
        "64 KiB",
        "too many &lt;open&gt; files",
    ] {
        assert!(has_cell(&shown, cell), "{cell}");
    }
    let nothing = json!({"bench": "scale", "curves": [{"curve": "brokers", "points": [{"value": 1, "failed": "x"}]}]});
    assert!(error(&nothing).contains("no point"));
}

#[test]
fn operations_of_redis_have_rates_latencies_and_costs() {
    let run = |run: u32, rate: f64| json!({"operation": "get", "run": run, "ops_per_s": rate});
    let mut value = json!({"plan": {"callers": 64, "server": "redis://user:secret@h/0"},
        "operations": [{"operation": "get", "runs": 2, "ops_per_s": 500_000.0, "p50_ns": 120_000, "p99_ns": 400_000,
            "p999_ns": 900_000, "client_cpu_us_per_op": 1.75, "errors": 0, "wrong": 0}],
        "runs": [run(1, 490_000.0), run(2, 510_000.0)]});
    let shown = page(&value);
    assert!(shown.contains("get: 500,000 operations/s"));
    for cell in ["120 µs", "400 µs", "1.75", "490,000", "510,000"] {
        assert!(has_cell(&shown, cell), "{cell}");
    }
    assert!(!shown.contains("secret"));
    value["operations"][0]["ops_per_s"] = json!("many");
    assert!(error(&value).contains("operations[0].ops_per_s is a text"));
}
