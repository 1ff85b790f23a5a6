//! Topics of orders 0 and 1 on a disk: what is acknowledged at acks 2 outlives processes and memory, at the broker that stored it.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use common::{Space, Up, eventually, output_of, run, text, up_command};

/// Publishes messages of so many bytes whose keys are the numbers `range`, and returns once all disks have them.
fn produce(up: &Up, topic: &str, range: std::ops::Range<u64>, bytes: usize) {
    let value = "v".repeat(bytes);
    let lines = range.map(move |number| format!("{number}:{value}"));
    let options = ["--batch-size", "64KiB", "--key-separator", ":"];
    up.produce_durably(topic, &options, lines);
}

/// The keys of all messages of a topic, by broker, in the order of their offsets there.
fn consume(up: &Up, topic: &str) -> BTreeMap<u64, Vec<u64>> {
    let lines = up.ok(&["consume", topic, "--format", "%b %o %k\n"]);
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in lines.lines() {
        let numbers = line.split(' ').map(|part| part.parse().expect("a number"));
        let [broker, offset, key] = numbers.collect::<Vec<u64>>()[..] else {
            panic!("{line}");
        };
        let its = found.entry(broker).or_default();
        assert_eq!(
            offset,
            its.len() as u64,
            "offsets of broker {broker} have no holes"
        );
        its.push(key);
    }
    found
}

fn all(found: &BTreeMap<u64, Vec<u64>>) -> Vec<u64> {
    let mut all: Vec<u64> = found.values().flatten().copied().collect();
    all.sort_unstable();
    all
}

#[test]
fn what_disks_have_outlives_the_memory_of_all_brokers() {
    let space = Space::new();
    let data = space.dir.join("disk").display().to_string();
    let options = ["--brokers", "3", "--data", &data];
    let mut up = Up::start(&space, &options);
    for order in ["0", "1"] {
        up.ok(&[
            "topic",
            "create",
            order,
            "--order",
            order,
            "--replication-factor",
            "2",
        ]);
        produce(&up, order, 0..5000, 10);
    }
    let before = ["0", "1"].map(|topic| consume(&up, topic));
    for found in &before {
        assert_eq!(all(found), (0..5000).collect::<Vec<_>>());
        assert_eq!(found.len(), 2, "both brokers have some");
    }
    for round in 1..3 {
        up.kill_all();
        fs::remove_dir_all(space.region()).expect("nobody uses it");
        up = Up::start(&space, &options);
        for (order, before) in ["0", "1"].iter().zip(&before) {
            let found = consume(&up, order);
            if round == 1 {
                assert_eq!(found, *before);
            }
            let lines = 5000 * round;
            assert_eq!(all(&found), (0..lines).collect::<Vec<_>>());
            produce(&up, order, lines..lines + 5000, 10);
            assert_eq!(
                all(&consume(&up, order)),
                (0..lines + 5000).collect::<Vec<_>>()
            );
        }
    }
    up.stop();
}

#[test]
fn a_topic_larger_than_memory_is_read_from_its_start() {
    let space = Space::new();
    let data = space.dir.join("disk").display().to_string();
    let options = ["--brokers", "2", "--data", &data];
    let up = Up::start(&space, &options);
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "1",
        "--replication-factor",
        "2",
    ]);
    // More than the region has.
    produce(&up, "t", 0..2500, 65_000);
    let expected: Vec<u64> = (0..2500).collect();
    assert_eq!(consume(&up, "t"), BTreeMap::from([(1, expected.clone())]));
    up.kill_all();
    // The memory is taken over.
    let up = Up::start(&space, &options);
    assert_eq!(consume(&up, "t"), BTreeMap::from([(1, expected.clone())]));
    up.kill_all();
    fs::remove_dir_all(space.region()).expect("nobody uses it");
    let up = Up::start(&space, &options);
    assert_eq!(consume(&up, "t"), BTreeMap::from([(1, expected)]));
    up.stop();
}

#[test]
fn subscribers_wait_for_disks_and_hear_of_them() {
    let space = Space::new();
    let data = space.dir.join("disk").display().to_string();
    let up = Up::start(&space, &["--brokers", "2", "--data", &data]);
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "0",
        "--replication-factor",
        "2",
    ]);
    let follows = up
        .embar(&[
            "consume", "t", "--from", "start", "--follow", "--count", "300",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("embar starts");
    for round in 0..3 {
        up.produce("t", round * 100..(round + 1) * 100);
    }
    let output = output_of(follows);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected: String = (0..300).map(|n| format!("{n}\n")).collect();
    assert_eq!(text(&output.stdout), expected);
    up.stop();
}

#[test]
fn a_cluster_without_a_broker_that_stored_messages_does_not_start() {
    let space = Space::new();
    let data = space.dir.join("disk").display().to_string();
    let options = |brokers| ["--brokers", brokers, "--spares", "0", "--data", &data];
    let up = Up::start(&space, &options("4"));
    up.ok(&[
        "topic",
        "create",
        "t",
        "--order",
        "0",
        "--replication-factor",
        "2",
    ]);
    let mut lines = 0;
    eventually("broker 3 has some", || {
        produce(&up, "t", lines..lines + 3000, 1000);
        lines += 3000;
        consume(&up, "t").contains_key(&3)
    });
    up.kill_all();
    fs::remove_dir_all(space.region()).expect("nobody uses it");
    let output = run(&mut up_command(&space, &options("3")));
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    assert!(
        says.contains("messages of topic t that broker 3 stored, and nobody could read them: start with at least --brokers 4"),
        "{says}"
    );
    assert!(!space.region().exists(), "it takes memory for nothing");
    let up = Up::start(&space, &options("4"));
    assert_eq!(all(&consume(&up, "t")), (0..lines).collect::<Vec<_>>());
    up.stop();
}
