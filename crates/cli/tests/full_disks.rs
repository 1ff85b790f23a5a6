//! Disks that are full: file systems of their own, which really fill. Needs root, and the programs of the packages e2fsprogs, xfsprogs
//! and mount.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use embar_verify::loop_disk::{FileSystem, LoopDisk, sweep};

use common::publish::ends_well;
use common::{Space, Up, eventually, signal, text};

/// Bytes of a message, about.
const MESSAGE_BYTES: usize = 1000;
/// Bytes of the file systems; XFS has no smaller ones than its own least.
const DISK_BYTES: u64 = 160 << 20;

/// A cluster's file system, and a file in it that takes all the room that is left.
struct Full {
    // Goes first.
    space: Space,
    disk: LoopDisk,
}

impl Full {
    fn new(file_system: FileSystem) -> Self {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| drop(sweep()));
        Self {
            space: Space::new(),
            disk: LoopDisk::make(file_system, DISK_BYTES).expect("root, and the tools"),
        }
    }

    fn data(&self) -> PathBuf {
        self.disk.mounted().join("data")
    }

    fn start(&self) -> Up {
        let data = self.data().display().to_string();
        Up::start(&self.space, &["--brokers", "2", "--data", &data])
    }

    fn filler(&self) -> PathBuf {
        self.disk.mounted().join("filler")
    }

    /// Nothing more fits, not even a block.
    fn fill(&self) {
        let mut options = File::options();
        options
            .append(true)
            .create(true)
            .custom_flags(libc::O_DSYNC);
        let mut file = options.open(self.filler()).expect("made");
        for bytes in [1 << 20, 4096] {
            let bytes = vec![1; bytes];
            while file.write_all(&bytes).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).expect("removed");
    }

    /// All memory is gone, as after a reboot.
    fn lose_memory(&self) {
        fs::remove_dir_all(self.space.region()).expect("the region was there");
    }
}

/// Publishes padded numbers, with acks 2.
fn producing(up: &Up, topic: &str, range: std::ops::Range<u64>) -> Child {
    up.producing_durably(topic, &[], padded(range))
}

/// Returns once all disks have them.
fn produce(up: &Up, topic: &str, range: std::ops::Range<u64>) {
    up.produce_durably(topic, &[], padded(range));
}

fn padded(range: std::ops::Range<u64>) -> impl Iterator<Item = String> + Send {
    let padding = "x".repeat(MESSAGE_BYTES);
    range.map(move |number| format!("{number}{padding}"))
}

/// The first numbers of a topic are these, each once.
fn has(up: &Up, topic: &str, numbers: u64) {
    let count = numbers.to_string();
    // What the disk does not have yet is not waited for.
    let said = up.ok(&["consume", topic, "--count", &count]);
    let found = said.lines().map(|line| line.trim_end_matches('x'));
    let found = found.map(|it| it.parse::<u64>().expect("a number"));
    assert!(found.eq(0..numbers), "each once, in order");
}

/// As [`has`], and nothing more.
fn has_only(up: &Up, topic: &str, numbers: u64) {
    has(up, topic, numbers);
    assert_eq!(up.ok(&["consume", topic]).lines().count() as u64, numbers);
}

fn create(up: &Up, topic: &str, factor: &str) {
    let create = [
        "topic",
        "create",
        topic,
        "--order",
        "5",
        "--replication-factor",
    ];
    up.ok(&[&create[..], &[factor]].concat());
}

fn state(up: &Up) -> String {
    let said = up.ok(&["--json", "status"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    said["disks"][0]["state"]
        .as_str()
        .expect("a state")
        .to_owned()
}

fn is_full(up: &Up) {
    eventually("the disk is full", || state(up) == "full");
}

/// Topics in memory alone go on, and what is on the disk is read.
fn serves(up: &Up, topic: &str, numbers: u64) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let memory = format!("memory-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    create(up, &memory, "1");
    up.produce(&memory, 0..1000);
    assert_eq!(up.consume(&memory).len(), 1000);
    has(up, topic, numbers);
}

fn goes_on_when_a_file_is_removed(file_system: FileSystem) {
    let full = Full::new(file_system);
    let up = full.start();
    create(&up, "t", "2");
    produce(&up, "t", 0..1000);
    full.fill();
    let producer = producing(&up, "t", 1000..60_000);
    is_full(&up);
    serves(&up, "t", 1000);
    full.make_room();
    ends_well(producer);
    has_only(&up, "t", 60_000);
    assert_eq!(state(&up), "writes");
    up.kill_all();
    full.lose_memory();
    let up = full.start();
    has_only(&up, "t", 60_000);
    up.stop();
}

#[test]
fn publishers_go_on_when_somebody_makes_room_on_ext4() {
    goes_on_when_a_file_is_removed(FileSystem::Ext4);
}

#[test]
fn publishers_go_on_when_somebody_makes_room_on_xfs() {
    goes_on_when_a_file_is_removed(FileSystem::Xfs);
}

#[test]
fn publishers_go_on_when_another_topic_is_deleted() {
    let full = Full::new(FileSystem::Ext4);
    let up = full.start();
    create(&up, "old", "2");
    produce(&up, "old", 0..40_000);
    create(&up, "t", "2");
    produce(&up, "t", 0..10);
    full.fill();
    let producer = producing(&up, "t", 10..40_000);
    is_full(&up);
    serves(&up, "old", 40_000);
    up.ok(&["topic", "delete", "old"]);
    ends_well(producer);
    has_only(&up, "t", 40_000);
    up.kill_all();
    full.lose_memory();
    let up = full.start();
    assert!(!up.ok(&["topic", "list"]).contains("old"), "it is deleted");
    has_only(&up, "t", 40_000);
    up.stop();
}

#[test]
fn the_only_topic_of_a_full_disk_can_be_deleted() {
    let full = Full::new(FileSystem::Ext4);
    let up = full.start();
    create(&up, "t", "2");
    produce(&up, "t", 0..1000);
    full.fill();
    let mut producer = producing(&up, "t", 1000..60_000);
    is_full(&up);
    producer.kill().expect("it waits");
    producer.wait().expect("it ended");
    up.ok(&["topic", "delete", "t"]);
    eventually("its segment makes room", || state(&up) == "writes");
    create(&up, "next", "2");
    produce(&up, "next", 0..1000);
    has_only(&up, "next", 1000);
    up.stop();
}

/// Processes die again and again while the disk is full, and the memory goes with them or does not.
fn starts_while_full(loses_memory: bool) {
    let full = Full::new(FileSystem::Ext4);
    let mut up = full.start();
    create(&up, "old", "2");
    produce(&up, "old", 0..40_000);
    create(&up, "t", "2");
    produce(&up, "t", 0..1000);
    full.fill();
    let mut producer = producing(&up, "t", 1000..60_000);
    is_full(&up);
    producer.kill().expect("it waits");
    producer.wait().expect("it ended");
    serves(&up, "t", 1000);
    for _ in 0..3 {
        up.kill_all();
        if loses_memory {
            full.lose_memory();
        }
        full.fill();
        up = full.start();
        is_full(&up);
        serves(&up, "t", 1000);
        has_only(&up, "old", 40_000);
    }
    up.ok(&["topic", "delete", "old"]);
    eventually("there is room", || state(&up) == "writes");
    create(&up, "next", "2");
    produce(&up, "next", 0..1000);
    up.kill_all();
    full.lose_memory();
    let up = full.start();
    assert!(!up.ok(&["topic", "list"]).contains("old"), "it is deleted");
    has(&up, "t", 1000);
    has_only(&up, "next", 1000);
    up.stop();
}

#[test]
fn a_cluster_starts_on_a_full_disk() {
    starts_while_full(false);
}

#[test]
fn a_cluster_without_memory_starts_on_a_full_disk() {
    starts_while_full(true);
}

#[test]
fn a_sequencer_dies_while_the_disk_is_full() {
    let full = Full::new(FileSystem::Ext4);
    let up = full.start();
    create(&up, "t", "2");
    produce(&up, "t", 0..1000);
    full.fill();
    let producer = producing(&up, "t", 1000..60_000);
    is_full(&up);
    signal(up.pids()[0], "KILL");
    eventually("another one sequences", || {
        let output = common::run(&mut up.embar(&["--json", "status"]));
        let said = text(&output.stdout);
        said.contains(r#""state":"full""#) && output.status.success()
    });
    serves(&up, "t", 1000);
    full.make_room();
    ends_well(producer);
    has_only(&up, "t", 60_000);
    up.stop();
}
