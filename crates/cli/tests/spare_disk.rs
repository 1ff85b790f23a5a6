//! A disk fails while the cluster runs, and another that is there takes its place.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use common::{Space, Up, eventually, names_in, text};

/// Directories that are taken for disks, gone at the end of the test.
struct Disks {
    space: TempDir,
    names: Vec<&'static str>,
}

impl Disks {
    fn new(names: &[&'static str]) -> Self {
        Self {
            space: tempfile::tempdir().expect("a directory for the test"),
            names: names.to_vec(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.space.path().join(name)
    }

    /// A cluster with two data brokers and 128 MiB of memory.
    fn start(&self, space: &Space) -> Up {
        let paths = self.names.iter().map(|name| self.path(name));
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        let mut options: Vec<&str> = paths.iter().flat_map(|path| ["--data", path]).collect();
        options.push("--same-device-is-fine");
        Up::start(space, &options)
    }

    /// The disk fails: its directory is gone. Somebody has its files in the directory that is returned.
    fn fail(&self, space: &Space, name: &str) -> PathBuf {
        let taken = self.path("taken");
        fs::create_dir(&taken).expect("made");
        move_files(&self.path(name), &taken);
        fs::remove_dir(self.path(name)).expect("it is empty");
        eventually("another disk takes its place", || {
            let log = fs::read_to_string(space.dir.join("logs").join("broker-0.log"));
            log.expect("there").contains("another takes its place")
        });
        taken
    }
}

fn move_files(from: &Path, to: &Path) {
    for name in names_in(from) {
        fs::rename(from.join(&name), to.join(&name)).expect("moved");
    }
}

fn create(up: &Up, order: &str, factor: &str) {
    let to = ["--order", order, "--replication-factor", factor];
    up.ok(&[&["topic", "create", "t"][..], &to].concat());
}

/// Publishes numbers at acks 2, each followed by `more`, and returns once all are acknowledged.
fn produce(up: &Up, range: std::ops::Range<u64>, more: &str) {
    let more = more.to_owned();
    let lines = range.map(move |number| format!("{number}{more}"));
    up.produce_durably("t", &[], lines);
}

/// All that a subscriber reads, from the start, in its order.
fn read(up: &Up) -> Vec<u64> {
    let output = common::run(&mut up.embar(&["consume", "t", "--from", "start"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    let numbers = text.lines().map(|line| line.trim_end_matches('x'));
    numbers.map(|it| it.parse().expect("a number")).collect()
}

/// Whether each number up to `end` is there once. Brokers of orders 0 and 1 have an order each.
#[track_caller]
fn has_all(up: &Up, order: &str, end: u64) {
    let mut numbers = read(up);
    if order != "5" {
        numbers.sort_unstable();
    }
    let other = numbers.iter().zip(0..).find(|(number, at)| **number != *at);
    assert_eq!(
        (other, numbers.len() as u64),
        (None, end),
        "each once, in order"
    );
}

/// The disk that has a segment with batches.
fn has_batches(disks: &Disks, name: &str) -> bool {
    let dir = disks.path(name);
    let output = common::run(&mut common::embar(&[
        "--json",
        "data",
        "show",
        &dir.display().to_string(),
    ]));
    text(&output.stdout).contains("\"t\"")
}

fn another_takes_the_place_of_a_failed_one(order: &str) {
    let (space, disks) = (Space::new(), Disks::new(&["a", "b"]));
    let up = disks.start(&space);
    create(&up, order, "2");
    produce(&up, 0..1000, "");
    assert!(has_batches(&disks, "a") && !has_batches(&disks, "b"));
    let taken = disks.fail(&space, "a");
    produce(&up, 1000..2000, "");
    has_all(&up, order, 2000);
    up.lose_memory(&space);
    // Of the one that failed there is nothing but which it is.
    fs::create_dir(disks.path("a")).expect("made");
    fs::copy(taken.join("identity"), disks.path("a").join("identity")).expect("copied");
    let up = disks.start(&space);
    has_all(&up, order, 2000);
    produce(&up, 2000..3000, "");
    has_all(&up, order, 3000);
    up.stop();
}

#[test]
fn another_takes_the_place_of_a_failed_one_at_order_5() {
    another_takes_the_place_of_a_failed_one("5");
}

#[test]
fn another_takes_the_place_of_a_failed_one_at_order_2() {
    another_takes_the_place_of_a_failed_one("2");
}

#[test]
fn another_takes_the_place_of_a_failed_one_at_order_1() {
    another_takes_the_place_of_a_failed_one("1");
}

#[test]
fn what_memory_had_evicted_is_read_from_the_one_that_failed_when_it_is_back() {
    let (space, disks) = (Space::new(), Disks::new(&["a", "b"]));
    let up = disks.start(&space);
    create(&up, "5", "2");
    let line = "x".repeat(1000);
    produce(&up, 0..200_000, &line);
    let taken = disks.fail(&space, "a");
    produce(&up, 200_000..210_000, &line);
    up.kill_all();
    // Another term of the same memory, in which the disk is there again.
    fs::create_dir(disks.path("a")).expect("made");
    move_files(&taken, &disks.path("a"));
    let up = disks.start(&space);
    has_all(&up, "5", 210_000);
    produce(&up, 210_000..211_000, &line);
    up.lose_memory(&space);
    let up = disks.start(&space);
    has_all(&up, "5", 211_000);
    up.stop();
}

#[test]
fn two_copies_are_two_again_and_each_is_enough() {
    let (space, disks) = (Space::new(), Disks::new(&["a", "b", "c"]));
    let up = disks.start(&space);
    create(&up, "5", "3");
    produce(&up, 0..1000, "");
    let taken = disks.fail(&space, "b");
    produce(&up, 1000..2000, "");
    eventually("the third has it", || has_batches(&disks, "c"));
    up.lose_memory(&space);
    // Now the first is lost, too.
    fs::create_dir(disks.path("b")).expect("made");
    for name in ["a", "b"] {
        let dir = disks.path(name);
        let identity = match name {
            "a" => fs::read(dir.join("identity")).expect("there"),
            _ => fs::read(taken.join("identity")).expect("there"),
        };
        fs::remove_dir_all(&dir).expect("removed");
        fs::create_dir(&dir).expect("made");
        fs::write(dir.join("identity"), identity).expect("written");
    }
    let up = disks.start(&space);
    has_all(&up, "5", 2000);
    up.stop();
}
