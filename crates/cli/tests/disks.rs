//! Clusters whose logs are on disks: which directories they take, and what they say of others.

mod common;

use std::fs;
use std::path::Path;

use serde_json::Value;

use common::publish::numbers;
use common::{Space, Up, embar, eventually, list, run, text, up_command};

/// What an `embar up` says that is refused.
fn refused(space: &Space, more: &[&str]) -> String {
    let output = run(&mut up_command(space, more));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_cluster_makes_its_directory_and_finds_it_again() {
    let space = Space::new();
    let dir = shown(&space.dir.join("a"));
    let options = ["--brokers", "2", "--data", &dir];
    let up = Up::start(&space, &options);
    up.ok(&["topic", "create", "t"]);
    up.produce("t", 0..100);
    let identity = fs::read(space.dir.join("a/identity")).expect("made");
    up.stop();
    let up = Up::start(&space, &options);
    assert_eq!(
        fs::read(space.dir.join("a/identity")).expect("kept"),
        identity
    );
    // One that joins has to have it, too.
    let join = |more: &[&str]| {
        let join = ["broker", "--follower", up.bootstrap()];
        let mut command = embar(&join);
        command.args(more);
        text(&run(&mut command).stderr)
    };
    let without = join(&[]);
    assert!(
        without.contains("made for 1 disk(s), and 0 were given"),
        "{without}"
    );
    let other = join(&["--data", &shown(&space.dir.join("b"))]);
    assert!(other.contains("start the head first"), "{other}");
    up.stop();
    // The region that is there has a place for the disk.
    let memory = refused(&space, &["--brokers", "2"]);
    assert!(
        memory.contains("and 1 disks: start with these numbers"),
        "{memory}"
    );
}

#[test]
fn one_cluster_at_a_time_uses_a_directory() {
    let (first, second) = (Space::new(), Space::new());
    let dir = shown(&first.dir.join("a"));
    let options = ["--brokers", "2", "--data", &dir];
    let up = Up::start(&first, &options);
    let says = refused(&second, &options);
    let in_use = format!(
        "{dir} is in use by the cluster of region {}: stop that one first",
        first.region().display()
    );
    assert!(says.contains(&in_use), "{says}");
    assert!(!second.region().exists(), "it takes memory for nothing");
    up.stop();
    Up::start(&second, &options).stop();
}

#[test]
fn memory_that_is_older_than_what_a_disk_has_is_not_gone_on_with() {
    let (first, second) = (Space::new(), Space::new());
    let disk = tempfile::tempdir().expect("a directory for the test");
    let dir = shown(disk.path());
    let options = ["--brokers", "2", "--data", &dir];
    let up = Up::start(&first, &options);
    up.ok(&["topic", "create", "t", "--replication-factor", "2"]);
    up.produce_durably("t", &[], numbers(0..100));
    up.stop();
    let up = Up::start(&second, &options);
    up.produce_durably("t", &[], numbers(100..200));
    up.stop();
    // However often it is tried.
    for _ in 0..4 {
        let says = refused(&first, &options);
        assert!(says.contains("what is in memory here is older"), "{says}");
    }
    let fresh = [&options[..], &["--fresh"]].concat();
    let up = Up::start(&first, &fresh);
    assert!(up.consume("t").into_iter().eq(0..200));
    up.stop();
}

/// What the status says of the only disk.
fn disk(up: &Up) -> Value {
    let said = up.ok(&["--json", "status"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    list(&said, "disks")[0].clone()
}

#[test]
fn a_start_that_is_refused_leaves_no_directory_behind() {
    let space = Space::new();
    let (a, new) = (space.dir.join("a"), space.dir.join("new"));
    let (with_a, with_new) = (shown(&a), shown(&new));
    let with_a = ["--brokers", "2", "--data", &with_a];
    let up = Up::start(&space, &with_a);
    eventually("the region knows its disk", || {
        disk(&up)["state"] == "writes"
    });
    up.stop();
    let says = refused(&space, &["--brokers", "2", "--data", &with_new]);
    assert!(says.contains("is another disk 0 than the one"), "{says}");
    assert!(!new.exists());
    Up::start(&space, &with_a).stop();
}

#[test]
fn a_directory_in_memory_is_named_and_one_that_is_removed_has_failed() {
    let space = Space::new();
    let dir = space.dir.join("a");
    let up = Up::start(&space, &["--brokers", "2", "--data", &shown(&dir)]);
    let says = format!(
        "{} is in memory: what is there survives the cluster, and no reboot",
        dir.display()
    );
    eventually("it says so", || {
        let said = fs::read_to_string(space.dir.join("up.err"));
        said.expect("it says something").contains(&says)
    });
    eventually("it is written", || disk(&up)["state"] == "writes");
    let good = disk(&up);
    assert_eq!(good["number"], 0);
    assert_eq!(good["directory"], shown(&dir));
    assert!(good["free_bytes"].as_u64() > Some(0), "{good}");
    assert_eq!(good["what_to_do"], Value::Null);
    fs::remove_dir_all(&dir).expect("removed");
    eventually("it has failed", || disk(&up)["state"] == "failed");
    let advice = disk(&up)["what_to_do"].to_string();
    assert!(advice.contains("replace the disk"), "{advice}");
    let output = run(&mut up.embar(&["status"]));
    let remark = text(&output.stderr);
    assert!(remark.contains("has failed"), "{remark}");
    assert!(text(&output.stdout).contains("failed"), "{output:?}");
    up.stop();
}

/// Another log could begin there.
#[test]
fn a_directory_that_is_emptied_has_failed() {
    let space = Space::new();
    let dir = space.dir.join("a");
    let up = Up::start(&space, &["--brokers", "2", "--data", &shown(&dir)]);
    eventually("it is written", || disk(&up)["state"] == "writes");
    for entry in fs::read_dir(&dir).expect("there") {
        fs::remove_file(entry.expect("there").path()).expect("removed");
    }
    eventually("it has failed", || disk(&up)["state"] == "failed");
    up.stop();
}

#[test]
fn disks_that_would_fail_together_are_for_tests() {
    let space = Space::new();
    let (a, b) = (shown(&space.dir.join("a")), shown(&space.dir.join("b")));
    let options = ["--brokers", "2", "--data", &a, "--data", &b];
    let says = refused(&space, &options);
    assert!(
        says.contains("are on one device: when it fails both are lost"),
        "{says}"
    );
    // With one of them the region has another shape.
    Up::start(&space, &["--brokers", "2", "--data", &a, "--temporary"]).stop();
    let fine = [&options[..], &["--same-device-is-fine"]].concat();
    Up::start(&space, &fine).stop();
    // Numbers are kept, whatever the order.
    let swapped = [
        "--brokers",
        "2",
        "--same-device-is-fine",
        "--data",
        &b,
        "--data",
        &a,
    ];
    Up::start(&space, &swapped).stop();
}
