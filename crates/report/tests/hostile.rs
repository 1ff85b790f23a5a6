//! Whatever comes in: an error or a page, never a panic, and never markup.

mod common;

use std::fs;
use std::path::Path;

use common::{check, page_of};
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
        "order-small-batches",
        "publish",
        "read",
        "walls",
    ];
    names.into_iter().map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
        let text = fs::read_to_string(path.join(name).with_extension("json")).expect("recorded");
        serde_json::from_str(&text).expect("JSON")
    })
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

#[test]
fn values_of_any_type_and_size_give_a_page_or_an_error() {
    let odd = [
        json!(null),
        json!("x"),
        json!(-1.0),
        json!(0),
        json!(f64::MAX),
        json!(f64::MIN_POSITIVE),
        json!(u64::MAX),
        json!([]),
        json!({}),
        json!(true),
    ];
    for value in recorded() {
        let value = short(&value);
        for place in 0..count(&value) {
            for with in &odd {
                let text = changed(&value, with, &mut place.clone()).to_string();
                match page_of(&text) {
                    Ok(page) => assert!(!page.contains("NaN") && !page.contains("inf%"), "{text}"),
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
        "{\"bench\":\"session\"}",
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
