//! Whatever comes in: an error or a page, never a panic, and never markup.

mod common;

use std::fs;
use std::path::Path;

use common::{check, page_of};
use embar_diagnose::observed::{Broker, Connection, Observed, Publisher, Step, Thread};
use embar_diagnose::{diagnose, redis, session};
use embar_report::{BYTES_MAX, Error, read};
use serde_json::{Value, json};

const MARKUP: &str =
    "</style></title></svg><script>alert(1)</script><img src=x onerror=\"alert('1')\">&amp;\u{0}";

/// Every text, and every name of a field that is no part of the format, becomes markup.
fn poisoned(value: &Value) -> Value {
    match value {
        Value::String(_) => json!(MARKUP),
        Value::Array(list) => list.iter().map(poisoned).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| match name.as_str() {
                // What a result is known by, and what has to be one of a few words.
                "bench" | "cause" | "part" | "unit" | "flow" | "verdict" | "outcome"
                | "setting" => (name.clone(), value.clone()),
                "first" | "config" => (name.clone(), json!({MARKUP: 1})),
                _ => (name.clone(), poisoned(value)),
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

fn recorded() -> impl Iterator<Item = Value> {
    let names = [
        "diagnose-matrix",
        "e2e",
        "latency",
        "metering",
        "metering-attached",
        "order-small-batches",
        "publish",
        "read",
        "scale",
        "session-blocking",
        "session-one-way",
        "walls",
    ];
    names.into_iter().map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
        let text = fs::read_to_string(path.join(name).with_extension("json")).expect("recorded");
        serde_json::from_str(&text).expect("JSON")
    })
}

fn redis_bench() -> Value {
    json!({"plan": {"callers": 64},
        "runs": [{"operation": "get", "ops_per_s": 1e6}, {"operation": "get", "ops_per_s": 1e6}],
        "operations": [{"operation": "get", "ops_per_s": 1e6, "p50_ns": 2000, "errors": 1, "wrong": 2}]})
}

#[test]
fn many_operations_of_one_name_cost_no_more_than_their_file() {
    let many = |of: Value| Value::from(vec![of; 12_000]);
    let value = json!({"plan": {},
        "operations": many(json!({"operation": "a", "ops_per_s": 1})),
        "runs": many(json!({"operation": "a", "ops_per_s": 1}))});
    let page = page_of(&value.to_string()).expect("a page");
    assert!(page.len() < 64 << 20, "{}", page.len());
}

#[test]
fn texts_never_become_markup() {
    let mut all: Vec<Value> = recorded().collect();
    all.push(json!({"bench": "publish", "config": {"a": 1}, "note": "x", "reader": "x", "trials": [{"mib_per_s": 1.0}, {"mib_per_s": 2.0}],
        "broker_profile": {"stages": [{"name": "x", "share": 0.5}], "counters": [["x", 1]]}}));
    all.push(json!({"of": "x", "injected": ["x"], "limits": {"uses": []}, "missing": [{"what": "x", "why": "x"}],
        "findings": [{"cause": "hot-broker", "part": "brokers", "confidence": 0.5, "gain_at_most": 0.5, "verified": null,
            "evidence": [{"what": "x", "value": 1e300, "unit": "seconds"}],
            "remedy": {"text": "x", "change": {"setting": "linger", "value": 1e300}}}]}));
    all.push(redis_bench());
    for value in all {
        let page = page_of(&poisoned(&value).to_string())
            .unwrap_or_else(|error| panic!("{error}: {value}"));
        check(&page);
        assert!(page.contains("&lt;script&gt;"), "it is there, as a text");
    }
}

/// Each value in turn becomes another one.
fn changed(value: &Value, with: &Value, place: &mut usize) -> Value {
    if *place == 0 {
        *place = usize::MAX;
        return with.clone();
    }
    *place -= 1;
    match value {
        Value::Array(list) => list.iter().map(|it| changed(it, with, place)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), changed(value, with, place)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// With two entries of each list: others are of the same kind.
fn short(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().take(2).map(short).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), short(value)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// A diagnosis as each of the three commands prints it, and what each of them saves.
fn diagnosed() -> impl Iterator<Item = Value> {
    let thread = |on_cpu| Thread {
        on_cpu,
        ..Thread::default()
    };
    let carried = vec![
        Step {
            seconds: 0.05,
            per_s: 1e9,
        };
        3
    ];
    let log = Observed {
        seconds: 4.0,
        bytes: 8 << 30,
        messages: 8 << 20,
        publisher: Some(Publisher {
            application: vec![thread(0.3)],
            senders: vec![thread(0.2)],
            ..Publisher::default()
        }),
        brokers: vec![Broker {
            network: vec![thread(0.97)],
            takes_data: true,
            ..Broker::default()
        }],
        connections: vec![Connection::default()],
        over_time: carried.clone(),
        ..Observed::default()
    };
    let redis = redis::Observed {
        seconds: 2.0,
        operations: 1000,
        client: Some(redis::observed::Client {
            callers: 64,
            latency_s: 420e-6,
            threads: vec![thread(0.97)],
            ..redis::observed::Client::default()
        }),
        nodes: vec![redis::observed::Node::default(); 2],
        over_time: carried.clone(),
        ..redis::Observed::default()
    };
    let session = session::Observed {
        seconds: 2.0,
        messages: 1000,
        in_flight: Some(64),
        way: session::observed::Way::Echo,
        over_time: carried,
        ..session::Observed::default()
    };
    let json = |it: Result<Value, serde_json::Error>| it.expect("JSON");
    let saved = [
        json(serde_json::to_value(&log)),
        json(serde_json::to_value(&redis)),
        json(serde_json::to_value(&session)),
    ];
    let said = [
        diagnose(&log),
        redis::diagnose(&redis),
        session::diagnose(&session),
    ];
    let rates = ["bytes_per_s", "operations_per_s", "messages_per_s"];
    let printed = said.into_iter().zip(&saved).zip(rates);
    let printed: Vec<Value> = printed
        .map(|((said, saved), rate)| {
            let mut value = json(serde_json::to_value(said));
            value["of"] = json!("x");
            value[rate] = json!(1000.0);
            // What was observed is changed where it is saved, and read here in the same way.
            value["observed"] = match rate {
                "bytes_per_s" => json!(null),
                _ => saved.clone(),
            };
            value["findings"][0]["verified"] = json!({"ratio": {"point": 2.25, "low": 1.42, "high": 2.5, "level": 0.95},
                "verdict": "Faster", "pairs": 8, "as_predicted": true, "outcome": "helped", "others": 0.0});
            value
        })
        .collect();
    printed.into_iter().chain(saved)
}

/// No number of a page is none, and none has more digits than anybody reads.
fn check_numbers(page: &str, of: &str) {
    let shown = page.split_once("</style>").expect("a style sheet").1;
    let words = shown.split(|c: char| !c.is_alphanumeric() && c != '.' && c != ',');
    for word in words {
        let is_none = ["inf", "NaN"]
            .iter()
            .any(|it| word.starts_with(it) && word.len() <= 5);
        assert!(!is_none || word == "info", "{word}: {of}");
        let digits = word.chars().filter(char::is_ascii_digit).count();
        assert!(digits < 40, "{word}: {of}");
    }
}

#[test]
fn values_of_any_type_and_size_give_a_page_or_an_error() {
    change_each_value(recorded().chain([redis_bench()]));
}

#[test]
fn values_of_any_type_and_size_are_diagnosed_or_refused() {
    change_each_value(diagnosed());
}

fn change_each_value(values: impl Iterator<Item = Value>) {
    let odd = [
        json!(null),
        json!("x"),
        json!(-1.0),
        json!(0),
        json!(f64::MAX),
        json!(5e-324),
        json!(u64::MAX),
        json!([]),
        json!({}),
        json!(true),
    ];
    for value in values {
        let value = short(&value);
        for place in 0..count(&value) {
            for with in &odd {
                let text = changed(&value, with, &mut place.clone()).to_string();
                match page_of(&text) {
                    Ok(page) => check_numbers(&page, &text),
                    Err(error) => assert!(error.to_string().len() < 2000, "{error}"),
                }
            }
        }
    }
}

#[test]
fn what_is_no_result_gives_an_error_that_says_what_is() {
    for text in [
        "{}",
        "[]",
        "7",
        "null",
        "\"x\"",
        "{\"bench\":\"another\"}",
        "{\"report\":{},\"command\":7}",
    ] {
        let error = page_of(text).expect_err(text).to_string();
        assert!(
            error.contains("embar diagnose --json") && error.contains("x.json"),
            "{error}"
        );
    }
    for text in [
        "",
        " ",
        "{",
        "NaN",
        "\u{0}",
        "{\"bench\":\"read\",\"median_mib_per_s\":1e999}",
    ] {
        let error = page_of(text).expect_err(text).to_string();
        assert!(error.contains("--json"), "{error}");
    }
    let error =
        page_of("{\"bench\":\"read\",\"trials\":[{\"mib_per_s\":\"1\"}]}").expect_err("a text");
    assert!(
        error.to_string().contains("trials[0].mib_per_s is a text"),
        "{error}"
    );
    let error =
        page_of("{\"findings\":[],\"limits\":{\"uses\":7},\"missing\":[]}").expect_err("no list");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

#[test]
fn what_is_too_large_is_refused_before_it_is_parsed() {
    let long = vec![b'['; BYTES_MAX as usize + 1];
    assert!(matches!(read("x", &long), Err(Error::TooLarge { .. })));
    let many = format!(
        "{{\"bench\":\"read\",\"trials\":[{}0]}}",
        "0,".repeat(1 << 20)
    );
    assert!(matches!(
        read("x", many.as_bytes()),
        Err(Error::TooMany { .. })
    ));
}

#[test]
fn many_trials_stay_a_picture_of_few_marks() {
    let trials: Vec<Value> = (1..=10_000).map(|it| json!({"mib_per_s": it})).collect();
    let page = page_of(&json!({"bench": "read", "trials": trials}).to_string()).expect("a page");
    check(&page);
    assert!(page.matches("class=\"trace\"").count() <= 400);
    assert!(page.contains(">10,000<"));
}
