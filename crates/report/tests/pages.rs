//! Pages of small results of each kind: what they must show.

mod common;

use common::{check, has_cell, page_of, texts};
use embar_diagnose::observed::{Broker, Machine, Missing, Observed, Publisher, Step, Thread};
use embar_diagnose::{Diagnosis, diagnose, redis, session};
use embar_report::{Error, Report, read};
use serde_json::{Value, json};

fn page(value: &Value) -> String {
    let page = page_of(&value.to_string()).unwrap_or_else(|error| panic!("{error}"));
    check(&page);
    page
}

#[test]
fn rates_of_trials_are_in_the_picture_and_in_its_table() {
    let trial =
        |rate: f64| json!({"mib_per_s": rate, "messages_per_s": rate * 1024.0, "seconds": 1.5});
    let stage = |name, share| json!({"name": name, "total_ns": 5_000_000, "count": 10, "avg_ns": 500_000.0, "share": share});
    let page = page(&json!({
        "bench": "publish",
        "config": {"message_bytes": 1024, "batch_bytes": 2_097_152, "receive": "direct", "spin_us": 0},
        "trials": [trial(1000.0), trial(1200.0), trial(1100.0)],
        "median_mib_per_s": 1100.0, "min_mib_per_s": 1000.0, "max_mib_per_s": 1200.0, "messages_per_s": 1_126_400.0,
        "costs": {"client": {"cpu_s_per_gib": 0.25, "cpus": 0.9}, "brokers": {"cpu_s_per_gib": 0.5, "cpus": 1.1}},
        "broker_profile": {"title": "P", "stages": [stage("Drain", 0.8), stage("Check", 0.2)], "counters": [["recv_calls", 12345]]},
        "publisher_profile": null,
        "recv_calls_per_batch": 3.25,
        "wall": {
            "series": [{"name": "bare wall", "median_mib_per_s": 2000.0, "trials_mib_per_s": [2000.0, 2100.0]},
                       {"name": "publish", "median_mib_per_s": 1100.0, "trials_mib_per_s": [1000.0, 1200.0]}],
            "ratio_to_bare": {"baseline": "bare wall", "changed": "publish", "pairs": 8, "verdict": "Slower",
                "ratio": {"point": 0.55, "low": 0.5, "high": 0.6, "level": 0.95}, "loss": {"point": 0.45, "upper": 0.5, "level": 0.95}}
        },
        "note": "a remark"
    }));
    assert_eq!(texts(&page, "h1"), ["Publish"]);
    assert!(page.contains("1,100 MiB/s, median of 3 trials"));
    for cell in [
        "2,000",
        "1,200",
        "0.55 [0.50, 0.60]",
        "below 1",
        "80.0 %",
        "0.25",
        "500 µs",
    ] {
        assert!(has_cell(&page, cell), "{cell}");
    }
    // The picture has the figures of its table.
    let shown = [texts(&page, "text"), texts(&page, "span")].concat();
    for text in ["0.55 [0.50, 0.60]", "80 % ◀ most", "20 %", "median 1,100"] {
        assert!(shown.iter().any(|it| it == text), "{text}: {shown:?}");
    }
    for fact in ["2 MiB", "direct", "12,345", "3.25"] {
        assert!(texts(&page, "dd").iter().any(|it| it == fact), "{fact}");
    }
    assert!(page.contains("Note: a remark."));
}

#[test]
fn a_comparison_says_what_may_be_claimed() {
    let ratio = |changed, low, point, high| {
        json!({"baseline": "order 0", "changed": changed, "pairs": 8,
        "ratio": {"point": point, "low": low, "high": high, "level": 0.95}, "loss": {"point": 0.0, "upper": 0.1, "level": 0.95}})
    };
    let page = page(&json!({
        "bench": "publish", "compare": "order=0,2,5", "rounds": 8, "metric": "throughput", "unit": "MiB/s", "better": "Higher",
        "stopped": {"Spent": {"rounds_needed": 1234}},
        "configurations": [{"name": "order 0", "config": {"batch_bytes": 65536}, "median": 2000.0, "trials": [1900.0, 2000.0, 2100.0],
                    "interval": {"point": 2000.0, "low": 1900.0, "high": 2100.0, "level": 0.75}}],
        "environment": {"kernel": "6.1.0-test", "memory_bytes": 1_073_741_824_u64, "backing": {"dir": "/dev/shm", "free_bytes": 1024}},
        "surroundings": {"others": 0.31, "others_most": 0.42, "steal": 0.0, "steal_most": 0.0},
        "comparisons": [ratio("order 2", 0.7, 0.8, 0.9), ratio("order 5", 0.9, 1.0, 1.1)]
    }));
    assert!(has_cell(&page, "below 1") && has_cell(&page, "inside the noise"));
    assert!(has_cell(&page, "1,900 to 2,100 (75 %)"));
    // Filled and hollow, so that no colour has to be seen.
    assert!(page.contains("class=\"ring\"") && page.contains("class=\"dot\""));
    assert!(texts(&page, "code").iter().any(|it| it == "order=0,2,5"));
    let stands = |text: &str| texts(&page, "dd").iter().any(|it| it.contains(text));
    for text in [
        "1,234 rounds",
        "31 % of the processors, at most 42 %",
        "6.1.0-test",
        "1 GiB",
        "64 KiB",
    ] {
        assert!(stands(text), "{text}");
    }
}

#[test]
fn a_verdict_is_the_one_of_the_command() {
    // The interval of 95 % excludes 1, and the one of 99 % that the verdict is built on does not.
    let doubtful = json!({"baseline": "as it is", "changed": "changed", "pairs": 8, "verdict": "InsideNoise",
        "ratio": {"point": 1.2, "low": 1.1, "high": 1.3, "level": 0.95}});
    let compared = |better: &str, comparison: &Value| {
        page(
            &json!({"bench": "redis", "better": better, "metric": "p50", "unit": "us", "comparisons": [comparison],
            "configurations": [{"name": "as it is", "median": 2.0, "trials": []}]}),
        )
    };
    let shown = compared("Higher", &doubtful);
    assert!(has_cell(&shown, "inside the noise") && !has_cell(&shown, "above 1"));
    assert!(shown.contains("No difference was shown"));
    assert_eq!(shown.matches("class=\"ring\"").count(), 1);

    let mut sure = doubtful.clone();
    sure["verdict"] = json!("Slower");
    sure["ratio_99"] = json!({"point": 1.2, "low": 1.05, "high": 1.4, "level": 0.99});
    let shown = compared("Lower", &sure);
    assert!(has_cell(&shown, "above 1") && has_cell(&shown, "1.20 [1.05, 1.40] (99 %)"));
    assert!(shown.contains("row weak"));
    sure["verdict"] = json!("Better");
    assert!(
        page_of(
            &json!({"bench": "redis", "comparisons": [sure], "configurations": []}).to_string()
        )
        .is_err()
    );

    let mut value = serde_json::to_value(diagnose(&seen())).expect("JSON");
    value["findings"][0]["verified"] = json!({"ratio": doubtful["ratio"], "verdict": "InsideNoise", "pairs": 8,
        "as_predicted": false, "outcome": "not-shown"});
    let shown = page(&value);
    assert!(has_cell(&shown, "inside the noise") && !has_cell(&shown, "above 1"));
}

#[test]
fn what_has_no_figures_is_refused() {
    let refused = |value: &Value| {
        let error = page_of(&value.to_string()).expect_err("nothing to show");
        assert!(matches!(error, Error::Nothing { .. }), "{error}");
        error.to_string()
    };
    for bench in ["publish", "read", "e2e"] {
        for trials in [json!([]), json!([{"mib": 1}]), json!(null)] {
            let error = refused(&json!({"bench": bench, "trials": trials}));
            assert!(error.contains("no trial"), "{error}");
        }
    }
    refused(&json!({"bench": "e2e", "trials": [{"latency_us": {}}]}));
    refused(&json!({"bench": "latency"}));
    refused(&json!({"bench": "latency", "alone": [{"order": 5}], "loaded": []}));
    refused(&json!({"bench": "walls", "rows": [], "times": []}));
    refused(&json!({"bench": "redis", "comparisons": [], "configurations": []}));
    refused(&json!({"findings": [], "limits": {"uses": []}, "missing": []}));
}

#[test]
fn what_is_not_there_is_said_and_not_left_out() {
    let one = |name| json!({"name": name, "median": 2.0, "trials": []});
    let shown =
        page(&json!({"bench": "redis", "comparisons": [], "configurations": [one("a"), one("b")]}));
    assert!(shown.contains("No configurations were compared"));

    let mut value = serde_json::to_value(diagnose(&seen())).expect("JSON");
    value["findings"] = json!([]);
    assert!(texts(&page(&value), "p").contains(&"Nothing was found".to_owned()));
}

#[test]
fn a_matrix_counts_no_more_than_its_runs() {
    let matrix = |field: &str, count: f64| {
        let mut row =
            json!({"injected": "x", "expected": [], "first": {}, "right": 1, "among_three": 2});
        row[field] = json!(count);
        page_of(&json!({"runs": 2, "rows": [row]}).to_string())
    };
    assert!(matrix("right", 2.0).is_ok());
    let first =
        json!({"runs": 2, "rows": [{"injected": "x", "first": {"a": 2, "b": 1}, "right": 1}]});
    assert!(page_of(&first.to_string()).is_err());
    for (field, count) in [("right", 5.0), ("right", -1.0), ("among_three", 3.0)] {
        let error = matrix(field, count).expect_err(field).to_string();
        assert!(error.contains(field) && error.contains("2 runs"), "{error}");
    }
}

#[test]
fn secrets_of_older_files_stay_out_of_a_page() {
    let page = page(
        &json!({"command": "embar bench redis --url redis://me:hunter2@h:1",
        "measured": {"note": "redis://h?password=hunter2"},
        "report": {"bench": "read", "note": "by me:hunter2@h:2", "median_mib_per_s": 1.0}}),
    );
    assert!(!page.contains("hunter2") && page.contains("redis://h:1") && page.contains("by h:2"));
}

#[test]
fn latencies_are_in_their_order() {
    let page = page(
        &json!({"bench": "latency", "config": {"load": 0.5, "duration_s": 2.0}, "alone": [
        {"order": null, "samples": 5000, "latency_us": {"p50": 58.4, "p90": 70.0, "p99": 102.4, "p999": 328.2, "max": 9000.0}},
        {"order": 5, "samples": 5000, "latency_us": {"p50": 162.3, "p90": 200.0, "p99": 288.5, "p999": 602.6, "max": 12_000.0}}],
        "loaded": []}),
    );
    assert_eq!(texts(&page, "h1"), ["Latency"]);
    for cell in ["58.4 µs", "102 µs", "328 µs", "9 ms", "12 ms"] {
        assert!(has_cell(&page, cell), "{cell}");
    }
    assert!(page.contains("bare round trip 58.4 µs, order 5 162 µs"));
}

#[test]
fn walls_have_aims_and_walls_alone_have_none() {
    let page = page(&json!({"bench": "walls", "rows": [
        {"path": "publish_tcp", "order": 0, "batch_bytes": 2_097_152, "message_bytes": 1024, "brokers": 4, "reader": "verifies",
         "wall": "bare", "wall_gb_per_s": 6.0, "ours_gb_per_s": 5.0, "ratio": 0.8, "rounds": 8, "target": 0.85,
         "interval": {"point": 0.8, "low": 0.7, "high": 0.9, "level": 0.95}, "target_gb_per_s": null, "reached": false},
        {"path": "read_shm", "order": 0, "batch_bytes": 262_144, "message_bytes": 64, "brokers": 1, "reader": "touches",
         "wall": "plain pass", "wall_gb_per_s": 20.0, "ours_gb_per_s": null, "ratio": null, "interval": null}],
        "times": [{"path": "ack_shm", "order": 0, "spins": true, "message_bytes": 64, "wall": "hand-over", "wall_p50_ns": 60.0,
         "wall_p99_ns": 120.0, "ours_p50_ns": 29_351.0, "ours_p99_ns": 1_046_527.0, "target_ns": 3000.0,
         "interval": {"point": 509.2, "low": 319.2, "high": 927.3, "level": 0.95}, "reached": null}]}));
    for cell in [
        "order 0",
        "bare",
        "0.80 [0.70, 0.90]",
        "0.85",
        "no",
        "29.4 µs",
        "509 [319, 927]",
        "3 µs",
    ] {
        assert!(page.contains(cell), "{cell}");
    }
    assert!(page.contains("class=\"aim\"") && page.contains("Short stroke: the aim"));
    assert!(has_cell(&page, "plain pass"));
}

#[test]
fn a_matrix_marks_what_was_right_and_what_was_not() {
    let page = page(&json!({"runs": 4, "rows": [
        {"injected": "nothing", "options": "", "expected": ["machine-wall", "nothing-found"],
         "first": {"machine-wall": 4}, "right": 4, "among_three": 4, "bytes_per_s": 1_048_576.0},
        {"injected": "few-in-flight=2", "options": "--batch-size 64KiB", "expected": ["too-few-in-flight"],
         "first": {"too-few-in-flight": 3, "nothing-found": 1}, "right": 3, "among_three": 3, "bytes_per_s": 2_097_152.0}]}));
    for cell in ["4 ✓", "3 ✓", "1 ✗", "3 of 4", "--batch-size 64KiB"] {
        assert!(has_cell(&page, cell), "{cell}");
    }
    assert!(page.contains("The right cause came first in 7 of 8 runs"));
    assert!(texts(&page, "span").iter().any(|it| it == "✗ 3 of 4"));
}

/// A look at a broker whose thread works all the time, beside idle processors.
fn seen() -> Observed {
    let thread = |name: &str, on_cpu: f64| Thread {
        name: name.into(),
        on_cpu,
        waiting: 0.02,
        ..Thread::default()
    };
    Observed {
        seconds: 4.0,
        bytes: 8 << 30,
        messages: 8 << 20,
        machine: Machine {
            cores: 8,
            busy: 0.4,
            ours: 0.35,
            ..Machine::default()
        },
        publisher: Some(Publisher {
            application: vec![thread("app", 0.3)],
            senders: vec![thread("send", 0.2)],
            ..Publisher::default()
        }),
        brokers: vec![Broker {
            id: 1,
            network: vec![thread("net", 0.97)],
            takes_data: true,
            ..Broker::default()
        }],
        over_time: [1, 3, 2]
            .map(|gib| Step {
                seconds: 0.05,
                per_s: f64::from(gib) * f64::from(1 << 30),
            })
            .into(),
        missing: vec![Missing {
            what: "steal <time>".into(),
            why: "not a virtual machine & so on".into(),
        }],
        ..Observed::default()
    }
}

#[test]
fn a_diagnosis_marks_the_part_that_limits_and_shows_each_finding() {
    let observed = seen();
    let diagnosis = diagnose(&observed);
    let Diagnosis { findings, .. } = &diagnosis;
    let mut value = serde_json::to_value(&diagnosis).expect("JSON");
    value["of"] = json!("a load of our own");
    value["injected"] = json!(["cpu-hog=2"]);
    value["bytes_per_s"] = json!(observed.bytes_per_s());
    value["observed"] = serde_json::to_value(&observed).expect("JSON");
    value["findings"][0]["verified"] = json!({"ratio": {"point": 2.25, "low": 1.42, "high": 2.5, "level": 0.95},
        "verdict": "Faster", "pairs": 8, "as_predicted": true, "outcome": "helped"});
    let shown = page(&value);
    assert_eq!(texts(&shown, "h3").len(), findings.len());
    let limiting = findings[0].part.name();
    assert!(shown.contains(&format!("What limits: {limiting}.")));
    assert!(
        texts(&shown, "span")
            .iter()
            .any(|it| it.ends_with("◀ limits"))
    );
    for evidence in &findings[0].evidence {
        assert!(shown.contains(&evidence.what), "{evidence}");
    }
    assert!(shown.contains(&findings[0].remedy.text));
    let label = format!("aria-label=\"Evidence: {}\"", findings[0].cause);
    assert!(shown.contains(&label), "{label}");
    assert!(
        shown.contains("it helped: 2.25 [1.42, 2.50] of the rate in 8 pairs, as much as predicted")
    );
    assert!(
        shown.contains("steal &lt;time&gt;")
            && has_cell(&shown, "not a virtual machine &amp; so on")
    );
    assert!(texts(&shown, "dd").iter().any(|it| it == "2,048 MiB/s"));
    // What happened over time.
    assert!(shown.contains("median 2,048, 1,024 to 3,072"));
    assert!(has_cell(&shown, "3,072"));
    assert!(texts(&shown, "th").iter().any(|it| it == "150 ms"));
    assert!(
        texts(&shown, "text").iter().any(|it| it == "100 ms"),
        "the axis"
    );

    value["findings"][0]["verified"]["outcome"] = json!("did-not-help");
    assert!(page(&value).contains("(withdrawn)"));

    // What was saved is diagnosed again, and says the same.
    let again = page(&serde_json::to_value(&observed).expect("JSON"));
    assert!(again.contains(findings[0].cause.sentence()));
}

#[test]
fn a_diagnosis_of_redis_has_its_operations_and_servers() {
    let observed = redis::Observed {
        seconds: 2.0,
        operations: 246_912,
        client: Some(redis::observed::Client {
            callers: 64,
            latency_s: 420e-6,
            ..redis::observed::Client::default()
        }),
        nodes: vec![redis::observed::Node::default(); 3],
        ..redis::Observed::default()
    };
    let mut value = serde_json::to_value(redis::diagnose(&observed)).expect("JSON");
    value["operations_per_s"] = json!(observed.operations_per_s());
    value["observed"] = serde_json::to_value(&observed).expect("JSON");
    for value in [value, serde_json::to_value(&observed).expect("JSON")] {
        let page = page(&value);
        assert!(page.contains("Nothing was found that limits."), "{page}");
        assert_eq!(texts(&page, "h1"), ["Diagnosis of Redis"]);
        assert!(
            texts(&page, "dd").iter().any(|it| it == "123,456"),
            "{page}"
        );
    }
}

#[test]
fn a_diagnosis_of_sessions_has_its_messages() {
    let observed = session::Observed {
        seconds: 2.0,
        way: session::observed::Way::Echo,
        messages: 246_912,
        in_flight: Some(64),
        ..session::Observed::default()
    };
    let mut value = serde_json::to_value(session::diagnose(&observed)).expect("JSON");
    value["messages_per_s"] = json!(observed.messages_per_s());
    value["observed"] = serde_json::to_value(&observed).expect("JSON");
    for value in [value, serde_json::to_value(&observed).expect("JSON")] {
        let page = page(&value);
        let facts = texts(&page, "dd");
        assert_eq!(texts(&page, "h1"), ["Diagnosis of sessions"]);
        for fact in ["123,456", "there and back"] {
            assert!(facts.iter().any(|it| it == fact), "{page}");
        }
    }
}

#[test]
fn several_results_make_one_page_with_contents() {
    let one = r#"{"bench":"read","median_mib_per_s":1.5}"#;
    let mut sections = read("a.json", format!("{one}\n{one}\n").as_bytes()).expect("two");
    sections.extend(read("/home/joe/b.json", one.as_bytes()).expect("one"));
    let report = Report {
        title: Some("A <title>".into()),
        made: Some("2026-01-02".into()),
        sections,
    };
    let page = report.to_html();
    check(&page);
    assert_eq!(texts(&page, "h1"), ["A &lt;title&gt;"]);
    let titles = ["Read: a.json, 1", "Read: a.json, 2", "Read: b.json"];
    assert_eq!(texts(&page, "h2"), titles);
    assert_eq!(texts(&page, "a"), titles);
    // Whoever reads it learns nothing of the maker's directories.
    assert!(texts(&page, "dd").contains(&"b.json".to_owned()) && !page.contains("joe"));
    assert!(page.contains("href=\"#s3\"") && page.contains("id=\"s3\""));
    assert!(page.contains("Report made on 2026-01-02"));
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("@media print"));
    assert_eq!(page, report.to_html());
}
