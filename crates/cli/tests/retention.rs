//! How long disks keep batches, and that they get back what deleted topics had.

mod common;

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use common::{Space, Up, embar, eventually, list, reported, run, text};

/// A place on a disk, gone at the end of the test.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory for the test"))
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("d")
    }

    fn shown(&self) -> String {
        self.dir().display().to_string()
    }

    /// What the first segment takes of the device.
    fn first_segment_bytes(&self) -> u64 {
        let said = fs::metadata(self.dir().join("000000000000.segment"));
        said.expect("it is there").blocks() * 512
    }
}

fn start(space: &Space, disk: &Disk, more: &[&str]) -> Up {
    Up::start(space, &[&["--data", &disk.shown()], more].concat())
}

fn create(up: &Up, topic: &str, more: &[&str]) {
    let on_a_disk = ["topic", "create", topic, "--replication-factor", "2"];
    up.ok(&[&on_a_disk, more].concat());
}

/// Publishes numbers, each followed by so many letters, at acks 2; returns once all are acknowledged.
fn produce(up: &Up, topic: &str, range: Range<u64>, letters: usize) {
    let letters = "x".repeat(letters);
    let lines = range.map(move |number| format!("{number}{letters}"));
    up.produce_durably(topic, &[], lines);
}

/// The numbers that can be read of a topic from its start.
fn numbers(up: &Up, topic: &str) -> Vec<u64> {
    let output = run(&mut up.embar(&["consume", topic, "--from", "start"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let numbers = lines.lines().map(|line| line.trim_end_matches('x'));
    numbers.map(|it| it.parse().expect("a number")).collect()
}

/// The first position that disks have of a topic of one order, and the next one.
fn on_disks(up: &Up, topic: &str) -> (u64, u64) {
    let report = reported(&run(&mut up.embar(&["--json", "topic", "describe", topic])));
    let parts = list(&report, "partitions");
    let most = |name: &str| parts.iter().filter_map(|part| part[name].as_u64()).max();
    (most("disk_first").unwrap_or(0), most("next").unwrap_or(0))
}

fn verify(dir: &Path) -> Value {
    let dir = dir.display().to_string();
    let output = run(&mut embar(&["--json", "data", "verify", &dir]));
    assert!(output.status.success(), "{}", text(&output.stdout));
    reported(&output)
}

#[test]
fn a_topic_ages_although_nothing_more_is_written_also_after_a_restart() {
    let (space, disk) = (Space::new(), Disk::new());
    let up = start(&space, &disk, &[]);
    create(&up, "t", &["--order", "5", "--retention-age", "2s"]);
    create(&up, "all", &["--order", "5"]);
    produce(&up, "t", 0..1000, 0);
    eventually("what is too old goes from the disk", || {
        on_disks(&up, "t") == (1000, 1000)
    });
    produce(&up, "all", 0..1000, 0);
    up.lose_memory(&space);

    let up = start(&space, &disk, &[]);
    let listed = reported(&run(&mut up.embar(&["--json", "topic", "describe", "t"])));
    assert_eq!(listed["retention_ms"], 2000, "{listed}");
    assert!(numbers(&up, "t").is_empty(), "what was too old is gone");
    assert_eq!(numbers(&up, "all").len(), 1000, "the other topic has none");
    produce(&up, "t", 1000..1100, 0);
    // Segments go as a whole, and the oldest first: the one with the other topic's messages stays.
    assert_eq!(on_disks(&up, "all").0, 0);
    up.ok(&["topic", "delete", "all"]);
    eventually("it ages in this cluster, too", || {
        on_disks(&up, "t") == (1100, 1100)
    });
    verify(&disk.dir());
    up.stop();
}

#[test]
fn a_disk_keeps_nothing_for_longer_than_it_is_to() {
    let (space, disk) = (Space::new(), Disk::new());
    let up = start(&space, &disk, &["--disk-age", "2s"]);
    create(&up, "t", &["--order", "5", "--retention-age", "7d"]);
    create(&up, "l", &["--order", "1"]);
    produce(&up, "t", 0..1000, 0);
    produce(&up, "l", 0..1000, 0);
    eventually("both go from the disk", || {
        let (first, next) = on_disks(&up, "l");
        on_disks(&up, "t") == (1000, 1000) && first == next && next > 0
    });
    up.stop();
}

#[test]
fn memory_alone_does_not_retain_by_age() {
    let (space, disk) = (Space::new(), Disk::new());
    let up = start(&space, &disk, &[]);
    let refused = |more: &[&str]| {
        let output = run(up
            .embar(&["topic", "create", "m", "--retention-age"])
            .args(more));
        assert!(!output.status.success(), "{more:?}");
        text(&output.stderr)
    };
    let says = refused(&["7d"]);
    assert!(says.contains("--replication-factor 2"), "{says}");
    let says = refused(&["0s", "--replication-factor", "2"]);
    assert!(says.contains("no time at all"), "{says}");
    let says = up.ok(&[
        "topic",
        "create",
        "m",
        "--retention-age",
        "36h",
        "--replication-factor",
        "2",
    ]);
    assert!(says.contains("for 36h on disks"), "{says}");
    up.stop();
}

#[test]
fn the_space_of_a_deleted_topic_comes_back_before_its_segment_is_the_oldest() {
    const LETTERS: usize = 60_000;
    let (space, disk) = (Space::new(), Disk::new());
    let up = start(&space, &disk, &[]);
    // Whoever keeps the first segment.
    create(&up, "kept", &["--order", "5"]);
    create(&up, "gone", &["--order", "5"]);
    for round in 0..4 {
        let some = |each: u64| round * each..(round + 1) * each;
        produce(&up, "gone", some(100), LETTERS);
        produce(&up, "kept", some(10), LETTERS);
    }
    let before = disk.first_segment_bytes();
    up.ok(&["topic", "delete", "gone"]);
    // The next head begins another segment.
    common::signal(up.pids()[0], "KILL");
    eventually("most of what it had comes back", || {
        disk.first_segment_bytes() + 20_000_000 < before
    });
    assert!(numbers(&up, "kept").into_iter().eq(0..40));
    let report = reported(&run(&mut embar(&["--json", "data", "show", &disk.shown()])));
    let first = &list(&report, "segments")[0];
    assert!(
        common::number(&first["device_bytes"]) + 20e6 < common::number(&first["file_bytes"]),
        "{first}"
    );
    verify(&disk.dir());
    up.lose_memory(&space);

    let up = start(&space, &disk, &[]);
    assert!(numbers(&up, "kept").into_iter().eq(0..40));
    produce(&up, "kept", 40..50, LETTERS);
    up.kill_all();
    verify(&disk.dir());
    let up = start(&space, &disk, &[]);
    assert!(numbers(&up, "kept").into_iter().eq(0..50));
    up.stop();
}
