//! Damaged directories of a log are repaired: from each other, by a command and while a cluster runs; and what none of them has
//! is given up alone.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Space, Up, embar, eventually, list, reported, run, text};
use serde_json::Value;

const DATA_DAMAGED: i32 = 4;
const INDEX: &str = "000000000000.index";
const SEGMENT: &str = "000000000000.segment";

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn json(args: &[&str]) -> Output {
    run(&mut embar(&[&["--json"], args].concat()))
}

/// Two directories, and a cluster that uses them.
struct Disks {
    space: Space,
    dirs: [String; 2],
}

impl Disks {
    fn new() -> Self {
        let space = Space::new();
        let dirs = ["a", "b"].map(|name| shown(&space.dir.join(name)));
        Self { space, dirs }
    }

    fn up(&self, more: &[&str]) -> Up {
        let [a, b] = &self.dirs;
        let args = ["--brokers", "2", "--standbys", "0", "--same-device-is-fine"];
        Up::start(
            &self.space,
            &[&args[..], &["--data", a, "--data", b], more].concat(),
        )
    }

    fn file(&self, disk: usize, name: &str) -> PathBuf {
        Path::new(&self.dirs[disk]).join(name)
    }

    fn repair(&self, more: &[&str]) -> (i32, Value) {
        let [a, b] = &self.dirs;
        let output = json(&[&["data", "repair", a, b], more].concat());
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        (output.status.code().expect("it ends"), report)
    }

    fn damaged(&self) -> Vec<usize> {
        let [a, b] = &self.dirs;
        let output = json(&["data", "verify", a, b]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let places = list(&report, "directories").iter();
        places.map(|it| list(it, "damaged").len()).collect()
    }

    /// A cluster that has all memory anew serves the messages of topic `t` up to `end`, but for these.
    fn serves(&self, end: u64, without: std::ops::Range<u64>) {
        let up = self.up(&["--fresh"]);
        let parts = [0..without.start, without.end..end];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (from, count) = (part.start.to_string(), (part.end - part.start).to_string());
            let read = up.ok(&["consume", "t", "--from", &from, "-c", &count]);
            assert_eq!(read.lines().collect::<Vec<_>>(), lines(part));
        }
        up.stop();
    }
}

/// Publishes lines, acknowledged when they are on all disks of the topic.
fn produce(up: &Up, range: std::ops::Range<u64>) {
    up.produce_durably("t", &["--batch-size", "4KiB"], lines(range).into_iter());
}

fn lines(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| format!("{n:08}")).collect()
}

/// 5,000 messages in several commits, on both disks; then the cluster is stopped.
fn written(disks: &Disks) {
    let up = disks.up(&[]);
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "5",
        "--replication-factor",
        "3",
    ]);
    eventually("the topic is on both disks", || {
        disks.dirs.iter().all(|dir| {
            let report = reported(&json(&["data", "show", dir]));
            list(&report, "topics").iter().any(|it| it["name"] == "t")
        })
    });
    produce(&up, 0..3000);
    produce(&up, 3000..5000);
    up.stop();
}

/// The commits of a disk's first segment that have batches.
fn commits(dir: &str) -> Vec<Value> {
    let output = json(&["data", "show", dir, "--segment", "0", "--batches"]);
    let lines = text(&output.stdout);
    let commits = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let has_batches = |it: &Value| list(it, "contents").iter().any(|it| it["kind"] == "batch");
    commits.filter(has_batches).collect()
}

fn number(of: &Value, name: &str) -> u64 {
    of[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {of}"))
}

fn overwrite(file: &Path, at: u64, len: usize) {
    let file = File::options().write(true).open(file).expect("there");
    file.write_all_at(&vec![0xa5; len], at).expect("written");
}

#[test]
fn a_directory_gets_back_from_the_other_what_it_has_lost() {
    let disks = Disks::new();
    written(&disks);
    let whole = fs::read(disks.file(0, SEGMENT)).expect("there");
    let commit = commits(&disks.dirs[0])[0].clone();
    let (at, bytes) = (number(&commit, "at"), number(&commit, "bytes"));
    // Payload of one, and an identity.
    overwrite(&disks.file(0, SEGMENT), at + 300, 900);
    overwrite(&disks.file(0, "identity"), 20, 1);
    let damaged = fs::read(disks.file(0, SEGMENT)).expect("there");
    let (code, report) = disks.repair(&[]);
    assert_eq!((code, &report["changed"]), (DATA_DAMAGED, &false.into()));
    let repairs = list(&report["directories"][0], "repairs");
    let actions: Vec<_> = repairs.iter().map(|it| it["action"].as_str()).collect();
    assert_eq!(actions, [Some("exact"), Some("identity")], "{report}");
    assert_eq!(fs::read(disks.file(0, SEGMENT)).expect("there"), damaged);
    let [a, b] = &disks.dirs;
    let said = run(&mut embar(&["data", "repair", a, b]));
    assert!(
        text(&said.stdout).contains("can be put back as it was"),
        "{}",
        text(&said.stdout)
    );
    assert!(text(&said.stderr).contains("nothing was changed: --yes writes it"));
    let (code, report) = disks.repair(&["--yes"]);
    assert_eq!((code, &report["changed"]), (0, &true.into()), "{report}");
    assert!(fs::read(disks.file(0, SEGMENT)).expect("there") == whole);
    assert_eq!(disks.damaged(), [0, 0]);
    // All of a commit: other bytes with the same messages.
    overwrite(&disks.file(0, SEGMENT), at, bytes as usize);
    let (code, report) = disks.repair(&["--yes", "--give-up-lost"]);
    assert_eq!(code, 0, "{report}");
    let repair = &report["directories"][0]["repairs"][0];
    assert_eq!(
        (&repair["action"], &repair["lost"]),
        (&"anew".into(), &serde_json::json!([]))
    );
    assert_eq!(disks.damaged(), [0, 0]);
    disks.serves(5000, 0..0);
}

#[test]
fn what_no_directory_has_is_given_up_only_when_that_is_wanted_and_alone() {
    let disks = Disks::new();
    written(&disks);
    let mut gone = 0..0;
    for (disk, dir) in disks.dirs.iter().enumerate() {
        let commits = commits(dir);
        let all = commits.iter().flat_map(|it| list(it, "contents"));
        let mut batches = all.filter(|it| it["kind"] == "batch");
        let batch = batches.find(|it| number(it, "first") > 500);
        let batch = batch.expect("several").clone();
        gone = number(&batch, "first")..number(&batch, "next");
        let at = fs::read(disks.file(disk, SEGMENT)).expect("there");
        let wanted = format!("{:08}", gone.start);
        let place = at
            .windows(8)
            .position(|it| it == wanted.as_bytes())
            .expect("there");
        overwrite(&disks.file(disk, SEGMENT), place as u64, 1);
    }
    assert_eq!(disks.damaged(), [1, 1]);
    let (code, report) = disks.repair(&["--yes"]);
    assert_eq!((code, &report["changed"]), (DATA_DAMAGED, &false.into()));
    let lost = &report["directories"][1]["repairs"][0]["lost"][0];
    assert_eq!(
        (number(lost, "first"), number(lost, "next")),
        (gone.start, gone.end),
        "{report}"
    );
    assert_eq!(lost["topic"], "t");
    let [a, b] = &disks.dirs;
    let said = run(&mut embar(&["data", "repair", a, b, "--yes"]));
    let stdout = text(&said.stdout);
    assert!(
        stdout.contains("if what is lost is given up") && stdout.contains("of t"),
        "{stdout}"
    );
    assert!(
        text(&said.stderr).contains("--give-up-lost"),
        "{}",
        text(&said.stderr)
    );
    let (code, _) = disks.repair(&["--yes", "--give-up-lost"]);
    assert_eq!((code, disks.damaged()), (0, vec![0, 0]));
    disks.serves(5000, gone.clone());
    // Who comes upon them is told, and others go on; so does the log.
    let up = disks.up(&[]);
    let from = gone.start.to_string();
    let refused = run(&mut up.embar(&["consume", "t", "--from", &from, "-c", "1"]));
    let says = text(&refused.stderr);
    assert!(
        says.contains(&format!("{} is the first available", gone.end)),
        "{says}"
    );
    produce(&up, 5000..5100);
    up.stop();
    disks.serves(5100, gone);
}

#[test]
fn a_directory_that_a_cluster_uses_is_left_alone() {
    let disks = Disks::new();
    let up = disks.up(&[]);
    let [a, b] = &disks.dirs;
    for more in [&[][..], &["--yes"]] {
        let output = json(&[&["data", "repair", a, b], more].concat());
        assert_eq!(output.status.code(), Some(1));
        let says = text(&output.stderr);
        assert!(
            says.contains("is in use by the cluster of region") && says.contains("stop it first"),
            "{says}"
        );
    }
    up.stop();
    let (code, report) = disks.repair(&["--yes"]);
    assert_eq!((code, &report["changed"]), (0, &false.into()));
}

/// What all processes of the cluster have written into their logs.
fn logs(disks: &Disks) -> String {
    let files = fs::read_dir(disks.space.dir.join("logs")).expect("listed");
    let logs = files.map(|file| fs::read_to_string(file.expect("listed").path()));
    logs.map(|log| log.expect("text")).collect()
}

/// A cluster whose first segments are over on both disks.
fn with_segments_over(disks: &Disks, more: &[&str]) -> Up {
    written(disks);
    let up = disks.up(more);
    produce(&up, 5000..5100);
    up
}

#[test]
fn a_scrub_puts_back_what_is_damaged_while_the_cluster_runs() {
    let disks = Disks::new();
    let up = with_segments_over(&disks, &["--scrub-rate", "1GiB"]);
    eventually("the scrub has come by, and made the indexes", || {
        (0..2).all(|disk| disks.file(disk, INDEX).exists())
    });
    let whole = fs::read(disks.file(0, SEGMENT)).expect("there");
    let [first, .., last] = &commits(&disks.dirs[0])[..] else {
        panic!("several commits");
    };
    // A payload of one, and all of another; on the other disk, an index.
    overwrite(&disks.file(0, SEGMENT), number(first, "at") + 300, 900);
    let (at, bytes) = (number(last, "at"), number(last, "bytes"));
    overwrite(&disks.file(0, SEGMENT), at, bytes as usize);
    overwrite(&disks.file(1, INDEX), 70, 1);
    assert!(disks.damaged().iter().all(|places| *places > 0));
    eventually("all is put back", || disks.damaged() == [0, 0]);
    let now = fs::read(disks.file(0, SEGMENT)).expect("there");
    assert!(now[..at as usize] == whole[..at as usize], "bit by bit");
    let read = up.ok(&["consume", "t", "--from", "0", "-c", "5100"]);
    assert_eq!(read.lines().collect::<Vec<_>>(), lines(0..5100));
    let profile = text(&run(&mut up.embar(&["--json", "profile"])).stdout);
    assert!(profile.contains("\"repaired\""), "{profile}");
    up.stop();
    disks.serves(5100, 0..0);
}

#[test]
fn a_scrub_that_cannot_put_something_back_says_what_to_do_and_changes_nothing() {
    let disks = Disks::new();
    let up = with_segments_over(&disks, &["--scrub-rate", "1GiB"]);
    eventually("the scrub has come by, and made the indexes", || {
        (0..2).all(|disk| disks.file(disk, INDEX).exists())
    });
    let at = number(&commits(&disks.dirs[0])[0], "at") + 300;
    for disk in 0..2 {
        let commit = &commits(&disks.dirs[disk])[0];
        overwrite(&disks.file(disk, SEGMENT), number(commit, "at") + 300, 1);
    }
    let damaged = fs::read(disks.file(0, SEGMENT)).expect("there");
    assert!(damaged[at as usize] == 0xa5);
    eventually("it is said", || {
        let log = logs(&disks);
        log.contains("damaged places that the scrub cannot put back")
            && log.contains("embar data repair")
    });
    assert!(fs::read(disks.file(0, SEGMENT)).expect("there") == damaged);
    up.stop();
}

#[test]
fn a_scrub_that_is_off_reads_nothing() {
    let disks = Disks::new();
    let up = with_segments_over(&disks, &["--scrub-rate", "0"]);
    let pids = up.pids();
    assert!(!pids.is_empty());
    for pid in pids {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        let names = tasks
            .filter_map(|task| fs::read_to_string(task.expect("listed").path().join("comm")).ok());
        assert!(
            names
                .into_iter()
                .all(|name| !name.starts_with("embar-scrub"))
        );
    }
    up.stop();
}
