//! Directories of a log, looked at and verified: while a cluster uses them, afterwards, and when they are damaged.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use common::publish::numbers;
use common::{Space, Up, embar, eventually, list, reported, run, text};
use serde_json::Value;

const DATA_DAMAGED: i32 = 4;

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn json(args: &[&str]) -> Output {
    run(&mut embar(&[&["--json"], args].concat()))
}

/// Publishes the lines `range`, acknowledged when they are on all disks of the topic.
fn produce(up: &Up, topic: &str, range: std::ops::Range<u64>) {
    up.produce_durably(topic, &["--batch-size", "4KiB"], numbers(range));
}

/// Makes the topic, and waits until the directory has it, so that the facts about it are in a commit of their own.
fn create(up: &Up, dir: &str, replication_factor: &str) {
    let factor = ["--replication-factor", replication_factor];
    up.ok(&[&["topic", "create", "t", "--order", "5"], &factor[..]].concat());
    eventually("the topic is on the disk", || {
        let report = reported(&json(&["data", "show", dir]));
        list(&report, "topics").iter().any(|it| it["name"] == "t")
    });
}

/// A cluster without anybody who takes over when it ends, and begins another segment.
const ALONE: [&str; 4] = ["--brokers", "2", "--standbys", "0"];

/// A directory with 5,000 messages of an order.
fn written(space: &Space) -> (Up, String) {
    let dir = shown(&space.dir.join("a"));
    let up = Up::start(space, &[&ALONE[..], &["--data", &dir]].concat());
    create(&up, &dir, "2");
    produce(&up, "t", 0..5000);
    (up, dir)
}

/// The commits of the first segment, each with all that is in it.
fn commits(dir: &str) -> Vec<Value> {
    let output = json(&["data", "show", dir, "--segment", "0", "--batches"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn flip(file: &Path, at: u64) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(file)
        .expect("there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
}

fn number(of: &Value, name: &str) -> u64 {
    of[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {of}"))
}

#[test]
fn a_directory_is_shown_while_it_is_in_use_and_afterwards() {
    let space = Space::new();
    let (up, dir) = written(&space);
    let report = reported(&json(&["data", "show", &dir]));
    assert_eq!(report["in_use"], true);
    assert_eq!(report["region"], shown(&space.region()));
    assert_eq!(
        (&report["number"], &report["error"]),
        (&Value::from(0), &Value::Null)
    );
    let [topic] = list(&report, "topics") else {
        panic!("{report}");
    };
    assert_eq!((&topic["name"], &topic["order"]), (&"t".into(), &5.into()));
    assert_eq!((number(topic, "first"), number(topic, "next")), (0, 5000));
    let [segment] = list(&report, "segments") else {
        panic!("{report}");
    };
    assert_eq!(
        (&segment["state"], &segment["file"]),
        (&"last".into(), &"000000000000.segment".into())
    );
    let words = text(&run(&mut embar(&["data", "show", &dir])).stdout);
    let used = format!(
        "the cluster of region {} uses it now; reading is fine meanwhile",
        shown(&space.region())
    );
    assert!(words.contains(&used), "{words}");
    let verified = reported(&json(&["data", "verify", &dir]));
    assert_eq!(verified["directories"][0]["damaged"], serde_json::json!([]));
    up.stop();
    File::create(Path::new(&dir).join("000000000001.segment")).expect("made");
    let report = reported(&json(&["data", "show", &dir]));
    assert_eq!(report["segments"][1]["state"], "blank");
    assert_eq!(
        (&report["in_use"], &report["region"]),
        (&false.into(), &Value::Null)
    );
    let words = text(&run(&mut embar(&["data", "show", &dir])).stdout);
    assert!(
        words.contains("disk 0 of its log; no cluster uses it now"),
        "{words}"
    );
    assert!(!words.contains('\u{1b}'), "{words}");
}

#[test]
fn a_segment_is_listed_commit_by_commit() {
    let space = Space::new();
    let (up, dir) = written(&space);
    up.stop();
    let commits = commits(&dir);
    let mut next = 0;
    let mut at = 4096;
    for (place, commit) in (0..).zip(&commits) {
        assert_eq!(
            (number(commit, "commit"), number(commit, "at")),
            (place, at)
        );
        at += number(commit, "bytes");
        for batch in list(commit, "contents")
            .iter()
            .filter(|it| it["kind"] == "batch")
        {
            assert_eq!(batch["topic"], "t");
            assert_eq!(number(batch, "first"), next);
            next = number(batch, "next");
        }
    }
    assert_eq!(next, 5000);
    assert!(commits.iter().all(|commit| commit["counts"] == true));
    let facts = commits.iter().flat_map(|commit| list(commit, "contents"));
    let facts = facts.filter(|it| it["kind"] == "fact");
    let abouts: Vec<&str> = facts.filter_map(|it| it["about"].as_str()).collect();
    assert!(
        ["topic", "session", "topic ids"]
            .iter()
            .all(|it| abouts.contains(it)),
        "{abouts:?}"
    );
    let words = text(&run(&mut embar(&["data", "show", &dir, "--segment", "0"])).stdout);
    assert!(
        words.contains(&format!("{0} commits, of which {0} count", commits.len())),
        "{words}"
    );
    let none = run(&mut embar(&["data", "show", &dir, "--segment", "9"]));
    assert!(
        text(&none.stderr).contains("has no segment 9"),
        "{}",
        text(&none.stderr)
    );
}

#[test]
fn damage_is_named_with_what_is_lost_and_which_copy_has_it() {
    let space = Space::new();
    let (dir, copy) = (shown(&space.dir.join("a")), shown(&space.dir.join("b")));
    let disks = ["--same-device-is-fine", "--data", &dir, "--data", &copy];
    let up = Up::start(&space, &[&ALONE[..], &disks].concat());
    create(&up, &dir, "3");
    // In two commits at least.
    produce(&up, "t", 0..3000);
    produce(&up, "t", 3000..5000);
    up.stop();
    let commits = commits(&dir);
    // The first with batches.
    let commit = commits.iter().find(|commit| {
        list(commit, "contents")
            .iter()
            .any(|it| it["kind"] == "batch")
    });
    let commit = commit.expect("there are batches");
    let batches: Vec<&Value> = { list(commit, "contents").iter() }
        .filter(|it| it["kind"] == "batch")
        .collect();
    let segment = Path::new(&dir).join("000000000000.segment");
    let whole = reported(&json(&["data", "verify", &dir]));
    assert!(number(&whole, "bytes_read") > 0);
    // Its header: all of it is lost.
    flip(&segment, number(commit, "at") + 20);
    let output = json(&["data", "verify", &dir, &copy]);
    assert_eq!(output.status.code(), Some(DATA_DAMAGED));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [damaged, other] = list(&report, "directories") else {
        panic!("{report}");
    };
    assert_eq!(other["damaged"], serde_json::json!([]));
    let [damage] = list(damaged, "damaged") else {
        panic!("{damaged}");
    };
    assert_eq!(
        (&damage["file"], &damage["what"]),
        (&"000000000000.segment".into(), &"commits".into())
    );
    assert_eq!(number(damage, "commit"), number(commit, "commit"));
    let [lost] = list(damage, "lost") else {
        panic!("{damage}");
    };
    let last = batches.last().expect("some");
    assert_eq!(lost["topic"], "t");
    assert_eq!(number(lost, "first"), number(batches[0], "first"));
    assert_eq!(number(lost, "next"), number(last, "next"));
    let elsewhere = &lost["elsewhere"][0];
    assert_eq!(elsewhere["dir"], copy);
    assert_eq!(
        (&elsewhere["first"], &elsewhere["next"]),
        (&lost["first"], &lost["next"])
    );
    let words = run(&mut embar(&["data", "verify", &dir, &copy]));
    let said = text(&words.stdout);
    assert!(
        said.contains("damaged in one place") && said.contains(": whole"),
        "{said}"
    );
    assert!(said.contains(&format!("{copy} has all of that")), "{said}");
    assert!(
        text(&words.stderr).contains("1 of 2 directories damaged: stop the cluster"),
        "{}",
        text(&words.stderr)
    );
    // No cluster starts with it. It is shown as far as it can be read, and the rest is told.
    let output = json(&["data", "show", &dir]);
    assert_eq!(output.status.code(), Some(DATA_DAMAGED));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let error = report["error"].as_str().expect("it is refused");
    assert!(
        error.contains("is damaged, and was whole before"),
        "{error}"
    );
    assert_eq!(number(&report["topics"][0], "next"), 5000);
    let listed = run(&mut embar(&["data", "show", &dir, "--segment", "0"]));
    let note = format!(
        "has no commit {} at byte {} that is whole",
        commit["commit"], commit["at"]
    );
    assert!(
        text(&listed.stderr).contains(&note),
        "{}",
        text(&listed.stderr)
    );
}

#[test]
fn a_header_that_is_damaged_hides_no_segment() {
    let space = Space::new();
    let (up, dir) = written(&space);
    up.stop();
    let whole = reported(&json(&["data", "verify", &dir]));
    flip(&Path::new(&dir).join("000000000000.segment"), 50);
    let output = json(&["data", "verify", &dir]);
    assert_eq!(output.status.code(), Some(DATA_DAMAGED));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (directory, before) = (&report["directories"][0], &whole["directories"][0]);
    assert_eq!(directory["damaged"][0]["what"], "header");
    assert_eq!(number(directory, "batches"), number(before, "batches"));
    let says = text(&json(&["data", "show", &dir]).stderr);
    assert!(
        says.contains("000000000000.segment is missing or its header is damaged"),
        "{says}"
    );
}

#[test]
fn an_end_that_was_torn_is_no_damage_and_a_lost_identity_is() {
    let space = Space::new();
    let (up, dir) = written(&space);
    up.stop();
    let before = reported(&json(&["data", "verify", &dir]));
    let commits = commits(&dir);
    // Nothing calls it synced.
    let last = commits.last().expect("some");
    let file = Path::new(&dir).join("000000000000.segment");
    let file = File::options().write(true).open(file).expect("there");
    file.set_len(number(last, "at") + 512).expect("cut");
    let report = reported(&json(&["data", "verify", &dir]));
    let directory = &report["directories"][0];
    assert_eq!(directory["damaged"], serde_json::json!([]));
    let all = number(&before["directories"][0], "commits");
    assert_eq!(number(directory, "commits"), all - 1);
    let identity = Path::new(&dir).join("identity");
    flip(&identity, 20);
    let output = json(&["data", "verify", &dir]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let damage = &report["directories"][0]["damaged"][0];
    assert_eq!(
        (&damage["file"], output.status.code()),
        (&"identity".into(), Some(DATA_DAMAGED))
    );
    assert!(
        report["directories"][0]["log"].is_string(),
        "the other copy is used"
    );
    fs::remove_file(&identity).expect("there");
    let output = json(&["data", "show", &dir]);
    assert_eq!(output.status.code(), Some(DATA_DAMAGED));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&shown["log"], &shown["topics"][0]["name"]),
        (&Value::Null, &"t".into())
    );
    assert!(
        text(&output.stderr).contains("identity is missing: put back a copy"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_is_no_directory_of_a_log_is_refused() {
    let space = Space::new();
    let file = space.dir.join("file");
    fs::write(&file, "text").expect("written");
    let empty = space.dir.join("empty");
    fs::create_dir(&empty).expect("made");
    for action in ["show", "verify"] {
        for (path, why) in [
            (space.dir.join("none"), "there is no directory"),
            (file.clone(), "is no directory"),
            (empty.clone(), "has no data of a log"),
        ] {
            let output = run(&mut embar(&["data", action, &shown(&path)]));
            let says = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{says}");
            assert!(
                says.contains(why) && says.contains("embar up --data"),
                "{says}"
            );
        }
    }
    assert_eq!(
        common::names_in(&empty),
        Vec::<String>::new(),
        "nothing was made there"
    );
}

#[test]
fn a_log_that_grows_is_whole_whenever_it_is_looked_at() {
    let space = Space::new();
    let (up, dir) = written(&space);
    let mut looks = 0;
    std::thread::scope(|scope| {
        let writes = scope
            .spawn(|| (1..6).for_each(|part| produce(&up, "t", part * 5000..part * 5000 + 5000)));
        eventually("it is written", || {
            let report = reported(&json(&["data", "verify", &dir]));
            assert_eq!(
                report["directories"][0]["damaged"],
                serde_json::json!([]),
                "{report}"
            );
            looks += 1;
            writes.is_finished()
        });
    });
    assert!(looks > 0);
    up.stop();
}
