//! Damaged directories of a log are repaired: from each other, by a command and while a cluster runs; and what none of them has
//! is given up alone.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::{Space, Up, embar, eventually, list, output_of, reported, run, text};
use serde_json::Value;

const DATA_DAMAGED: i32 = 4;
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

    /// A cluster that has all memory anew serves these messages of topic `t`.
    fn serves(&self, messages: &[String]) {
        let up = self.up(&["--fresh"]);
        let count = messages.len().to_string();
        let read = up.ok(&["consume", "t", "--from", "0", "-n", &count]);
        assert_eq!(read.lines().collect::<Vec<_>>(), messages);
        up.stop();
    }
}

/// Publishes lines, acknowledged when they are on all disks of the topic.
fn produce(up: &Up, range: std::ops::Range<u64>) {
    let mut child = up
        .embar(&["produce", "t", "--acks", "all", "--batch-size", "4KiB"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, (lines(range).join("\n") + "\n").as_bytes())
        .expect("it reads");
    drop(input);
    let output = output_of(child);
    assert!(output.status.success(), "{}", text(&output.stderr));
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
    disks.serves(&lines(0..5000));
}

#[test]
fn what_no_directory_has_is_given_up_only_when_that_is_wanted_and_alone() {
    let disks = Disks::new();
    written(&disks);
    let mut gone = 0..0;
    for (disk, dir) in disks.dirs.iter().enumerate() {
        let commit = commits(dir)[0].clone();
        let batch = { list(&commit, "contents").iter() }
            .find(|it| it["kind"] == "batch" && number(it, "first") > 500)
            .expect("several")
            .clone();
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
    let left = [lines(0..gone.start), lines(gone.end..5000)].concat();
    disks.serves(&left);
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
