//! The recorded results of this repository: each gives a page, or says why not.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{check, page_of, texts};
use embar_report::Error;

/// Comparisons with others' programs, which commands of their own measure.
const NOT_UNDERSTOOD: [&str; 4] = ["log-peers", "redis", "redis-pipelines", "session-peers"];

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results")
}

fn page(name: &str) -> String {
    let path = results().join(name).with_extension("json");
    let text = fs::read_to_string(path).expect("recorded");
    page_of(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn each_recorded_result_gives_a_page_or_a_clear_error() {
    let mut pages = 0;
    for entry in fs::read_dir(results()).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|it| it.to_str()).expect("a name");
        let text = fs::read_to_string(&path).expect("readable");
        match page_of(&text) {
            Ok(page) => {
                pages += 1;
                check(&page);
                for bad in ["http:", "https:", "src=", "javascript"] {
                    assert!(!page.contains(bad), "{name}: {bad}");
                }
                assert!(!NOT_UNDERSTOOD.contains(&name), "{name} is understood");
                assert!(page.contains("embar "), "{name} names its command");
                assert!(page.contains("cores of"), "{name} names its machine");
            }
            Err(error) => {
                assert!(matches!(error, Error::Unknown { .. }), "{name}: {error}");
                assert!(NOT_UNDERSTOOD.contains(&name), "{name}: {error}");
                assert!(error.to_string().contains("embar bench walls"), "{error}");
            }
        }
    }
    assert!(pages >= 15, "{pages}");
}

#[test]
fn recorded_results_say_what_they_are() {
    let titles = [
        ("diagnose-matrix", "Diagnosis: faults on purpose"),
        ("e2e", "Publish and read at once"),
        ("latency", "Latency"),
        ("metering", "What the stage timers cost"),
        ("metering-attached", "What it costs to be looked at"),
        ("order-small-batches", "Publish, compared"),
        ("publish", "Publish"),
        ("read", "Read"),
        ("scale", "What it costs to be larger"),
        ("session-blocking", "Sessions"),
        ("session-one-way", "Sessions"),
        ("walls", "Beside the walls"),
    ];
    for (name, title) in titles {
        assert_eq!(texts(&page(name), "h1"), [title], "{name}");
    }
}

#[test]
fn each_row_of_walls_is_drawn_and_listed() {
    let text = fs::read_to_string(results().join("walls.json")).expect("recorded");
    let recorded: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = recorded["report"]["rows"].as_array().expect("rows");
    let times = recorded["report"]["times"].as_array().expect("times");
    let with = |list: &[serde_json::Value]| {
        let with = list.iter().filter(|row| row["interval"].is_object());
        with.count()
    };
    let all = with(rows) + with(times);
    let page = page("walls");
    assert_eq!(page.matches("class=\"range\"").count(), all);
    let ratios = texts(&page, "td");
    let ratios = ratios.iter().filter(|it| it.ends_with(']')).count();
    assert_eq!(ratios, all);
}
