//! Topics on disks: what they survive, and what is read of them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use tempfile::TempDir;

use common::publish::{ends_well, numbers};
use common::{Space, Up, eventually, names_in, text};

/// A place on a disk, gone at the end of the test.
fn disk() -> TempDir {
    tempfile::tempdir().expect("a directory for the test")
}

/// A cluster with two data brokers and 128 MiB of memory, whose log is in these directories of a disk.
fn start(space: &Space, disk: &TempDir, dirs: &[&str], more: &[&str]) -> Up {
    let paths: Vec<String> = dirs
        .iter()
        .map(|dir| shown(&disk.path().join(dir)))
        .collect();
    let mut options = Vec::new();
    options.extend(paths.iter().flat_map(|path| ["--data", path]));
    if dirs.len() > 1 {
        options.push("--same-device-is-fine");
    }
    options.extend(more);
    Up::start(space, &options)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn create(up: &Up, factor: &str) {
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "5",
        "--replication-factor",
        factor,
    ]);
}

/// Publishes numbers at acks 2, and returns once all are acknowledged.
fn produce(up: &Up, range: std::ops::Range<u64>) {
    up.produce_durably("t", &[], numbers(range));
}

fn all(up: &Up, end: u64) {
    assert!(
        up.consume("t").into_iter().eq(0..end),
        "each once, in order"
    );
}

#[test]
fn what_was_acknowledged_survives_all_processes_and_the_region() {
    let (space, disk) = (Space::new(), disk());
    let up = start(&space, &disk, &["d"], &[]);
    create(&up, "2");
    produce(&up, 0..50_000);
    up.lose_memory(&space);
    let up = start(&space, &disk, &["d"], &[]);
    all(&up, 50_000);
    produce(&up, 50_000..60_000);
    all(&up, 60_000);
    up.lose_memory(&space);
    let up = start(&space, &disk, &["d"], &[]);
    all(&up, 60_000);
    up.stop();
}

#[test]
fn the_head_dies_under_load_and_nothing_acknowledged_is_lost() {
    let (space, disk) = (Space::new(), disk());
    let up = start(&space, &disk, &["d"], &[]);
    create(&up, "2");
    let producer = up.producing_durably("t", &[], numbers(0..400_000));
    let head = up.pids()[0];
    eventually("something is on the disk", || up.consume("t").len() > 1000);
    common::signal(head, "KILL");
    ends_well(producer);
    all(&up, 400_000);
    up.lose_memory(&space);
    let up = start(&space, &disk, &["d"], &[]);
    all(&up, 400_000);
    up.stop();
}

#[test]
fn at_order_2_what_was_stored_ahead_of_its_turn_is_there_once_when_all_memory_is_lost() {
    let (space, disk) = (Space::new(), disk());
    // An address of its own, where clients find the next cluster, too.
    let [.., high, low] = std::process::id().to_be_bytes();
    let listen = format!("127.64.{high}.{low}:9400");
    let at_it = ["--listen", &listen];
    let up = start(&space, &disk, &["d"], &at_it);
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "2",
        "--replication-factor",
        "2",
    ]);
    let (go_on, may_go_on) = mpsc::channel();
    let rest = std::iter::once_with(move || may_go_on.recv().map(|()| numbers(5000..200_000)));
    let lines = numbers(0..5000).chain(rest.flatten().flatten());
    let producer = up.producing_durably("t", &["--batch-size", "4KiB"], lines);
    eventually("it has begun", || up.consume("t").len() > 1000);
    // What this broker has from now on gets no place, and what the other one has gets the next.
    common::signal(up.pids()[1], "STOP");
    go_on.send(()).expect("it waits");
    eventually("something is ahead of its turn", || {
        let there = up.consume("t");
        !there.iter().copied().eq(0..there.len() as u64)
    });
    up.lose_memory(&space);
    let up = start(&space, &disk, &["d"], &at_it);
    ends_well(producer);
    all(&up, 200_000);
    up.stop();
}

#[test]
fn a_log_longer_than_memory_is_read_from_its_start_while_it_is_written() {
    let (space, disk) = (Space::new(), disk());
    let up = start(&space, &disk, &["d"], &[]);
    create(&up, "2");
    let line = "x".repeat(1000);
    let lines = 400_000;
    let all = (0..lines).map(move |number| format!("{number}{line}"));
    let producer = up.producing_durably("t", &[], all);
    let count = lines.to_string();
    let read = |more: &[&str]| {
        let options = ["consume", "t", "--from", "start", "--count", &count];
        let output = common::run(up.embar(&options).args(more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let text = text(&output.stdout);
        let numbers = text.lines().map(|line| line.trim_end_matches('x'));
        let numbers: Vec<u64> = numbers.map(|it| it.parse().expect("a number")).collect();
        assert!(numbers.into_iter().eq(0..lines), "each once, in order");
    };
    read(&["--follow"]);
    ends_well(producer);
    read(&[]);
    up.stop();
}

#[test]
fn a_disk_that_lacks_something_gets_it_from_the_other() {
    let (space, disk) = (Space::new(), disk());
    let dirs = ["a", "b"];
    let up = start(&space, &disk, &dirs, &[]);
    create(&up, "3");
    produce(&up, 0..10_000);
    up.lose_memory(&space);
    let old = disk.path().join("old");
    copy(&disk.path().join("b"), &old);
    let up = start(&space, &disk, &dirs, &[]);
    produce(&up, 10_000..20_000);
    up.lose_memory(&space);
    // The second disk goes back in time, and then the first.
    fs::remove_dir_all(disk.path().join("b")).expect("removed");
    fs::rename(&old, disk.path().join("b")).expect("put back");
    let up = start(&space, &disk, &dirs, &[]);
    all(&up, 20_000);
    up.lose_memory(&space);
    for entry in fs::read_dir(disk.path().join("a")).expect("listed") {
        let path = entry.expect("listed").path();
        if path.extension().is_some() {
            fs::remove_file(path).expect("removed");
        }
    }
    let up = start(&space, &disk, &dirs, &[]);
    all(&up, 20_000);
    produce(&up, 20_000..21_000);
    all(&up, 21_000);
    up.stop();
}

fn copy(from: &Path, to: &PathBuf) {
    fs::create_dir(to).expect("made");
    for name in names_in(from) {
        fs::copy(from.join(&name), to.join(&name)).expect("copied");
    }
}

#[test]
fn a_topic_that_is_deleted_and_one_that_is_to_retain_little_free_their_space() {
    let (space, disk) = (Space::new(), disk());
    let up = start(&space, &disk, &["d"], &["--disk-size", "64MiB"]);
    create(&up, "2");
    let line = "y".repeat(60_000);
    up.produce_durably("t", &[], std::iter::repeat_n(line, 6_000));
    // What was published fills more than the first segment.
    eventually("the first segment goes", || {
        first_number(disk.path().join("d").as_path()) > 0
    });
    up.ok(&["topic", "delete", "t"]);
    up.lose_memory(&space);
    let up = start(&space, &disk, &["d"], &[]);
    let listed = up.ok(&["topic", "list"]);
    assert!(listed.contains("there are no topics"), "{listed}");
    up.stop();
}

/// The number of the oldest segment.
fn first_number(dir: &Path) -> u64 {
    let names = names_in(dir);
    let numbers = names
        .iter()
        .filter_map(|name| name.strip_suffix(".segment"));
    let numbers = numbers.map(|number| number.parse().expect("a number"));
    numbers.min().expect("there is one")
}
