//! Brokers that join a cluster of real processes, and leave it for good.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use common::{Space, Up, embar, end_of, eventually, run, signal, text};
use serde_json::Value;

/// One more broker of a cluster; the line that it printed when it was ready.
fn join(up: &Up) -> (Child, String) {
    join_with(up, &[])
}

fn join_with(up: &Up, more: &[&str]) -> (Child, String) {
    let mut child = embar(&["broker", "--follower", up.bootstrap()])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    (child, line)
}

fn status(up: &Up) -> Vec<(u64, String)> {
    let status: Value = serde_json::from_str(&up.ok(&["--json", "status"])).expect("JSON");
    let brokers = status["brokers"].as_array().expect("brokers").iter();
    let state =
        |broker: &Value| Some((broker["id"].as_u64()?, broker["state"].as_str()?.to_owned()));
    brokers
        .map(|it| state(it).expect("an id and a state"))
        .collect()
}

fn states(of: &[(u64, &str)]) -> Vec<(u64, String)> {
    of.iter()
        .map(|(id, state)| (*id, (*state).to_owned()))
        .collect()
}

#[test]
fn a_broker_joins_and_another_leaves_and_is_not_started_again() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "0"]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    up.produce("t", 0..1000);
    let before = names(&space);
    let (mut joined, ready) = join(&up);
    assert!(ready.starts_with("ready id=3 "), "{ready}");
    assert!(
        !before.contains(&"payload-3".to_owned())
            && names(&space).contains(&"payload-3".to_owned())
    );
    assert_eq!(
        status(&up),
        states(&[(0, "ready"), (1, "ready"), (2, "ready"), (3, "ready")])
    );
    up.produce("t", 1000..20_000);
    // All places are taken.
    let full = run(&mut embar(&["broker", "--follower", up.bootstrap()]));
    assert_eq!(full.status.code(), Some(1), "the head did answer");
    let said = text(&full.stderr);
    assert!(
        said.contains("embar drain") && said.contains("--spares"),
        "{said}"
    );
    // One that is a child of `embar up` leaves.
    up.ok(&["drain", "1"]);
    up.ok(&["drain", "3"]);
    assert!(end_of(&mut joined).success());
    eventually("its process has ended", || {
        !common::is_running(up.pids()[1])
    });
    assert_eq!(
        status(&up),
        states(&[(0, "ready"), (1, "left"), (2, "ready"), (3, "left")])
    );
    assert_eq!(up.consume("t"), (0..20_000).collect::<Vec<_>>());
    let last = run(&mut up.embar(&["drain", "2"]));
    assert_eq!(last.status.code(), Some(1), "{}", text(&last.stderr));
    up.stop();
    let said = std::fs::read_to_string(space.dir.join("up.err")).expect("its standard error");
    assert!(said.contains("broker 1 has left the cluster"), "{said}");
    assert!(!said.contains("restarted"), "{said}");
}

fn names(space: &Space) -> Vec<String> {
    common::names_in(&space.region())
}

#[test]
fn what_a_broker_that_joined_has_is_found_by_the_next_cluster() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "0"]);
    up.produce("t", 0..100);
    let (mut joined, ready) = join(&up);
    assert!(ready.starts_with("ready id=3 "), "{ready}");
    up.produce("t", 100..50_000);
    let described: Value =
        serde_json::from_str(&up.ok(&["--json", "topic", "describe", "t"])).expect("JSON");
    assert!(
        described["partitions"][2]["next"].as_u64() > Some(0),
        "{described}"
    );
    signal(joined.id(), "TERM");
    assert!(end_of(&mut joined).success());
    up.stop();
    let up = Up::start(&space, &["--standbys", "0"]);
    assert_eq!(
        up.pids().len(),
        4,
        "the place that was taken is taken again"
    );
    assert_eq!(up.consume("t"), (0..50_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_broker_takes_the_place_of_one_that_left_and_outlives_the_others() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "0"]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    up.produce("t", 0..1000);
    up.ok(&["drain", "2"]);
    // The process that left may be about to end.
    let (mut joined, ready) = join_with(&up, &["--id", "2"]);
    assert!(ready.starts_with("ready id=2 "), "{ready}");
    up.stop();
    // The next cluster goes on with it instead of starting another.
    let up = Up::start(&space, &["--standbys", "0"]);
    assert_eq!(up.pids().len(), 2);
    eventually("it says that the other one stays", || {
        let said = std::fs::read_to_string(space.dir.join("up.err"));
        said.expect("its standard error").contains("broker 2 lives")
    });
    let all = [(0, "ready"), (1, "ready"), (2, "ready")];
    assert_eq!(status(&up), states(&all));
    up.produce("t", 1000..20_000);
    assert_eq!(up.consume("t"), (0..20_000).collect::<Vec<_>>());
    signal(joined.id(), "TERM");
    assert!(end_of(&mut joined).success());
    up.stop();
}

#[test]
fn a_broker_that_finds_no_memory_to_join_with_says_so() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "0"]);
    // Where its payload would be made there is something that cannot be written to.
    std::fs::create_dir(space.region().join("payload-3.new")).expect("the region is ours");
    let refused = run(&mut embar(&["broker", "--follower", up.bootstrap()]));
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("payload-3.new"),
        "{}",
        text(&refused.stderr)
    );
    std::fs::remove_dir(space.region().join("payload-3.new")).expect("ours");
    let (mut joined, ready) = join(&up);
    assert!(ready.starts_with("ready id=3 "), "{ready}");
    signal(joined.id(), "TERM");
    assert!(end_of(&mut joined).success());
    up.stop();
}

#[test]
fn one_that_joins_by_a_region_must_say_which_row_it_takes() {
    let refused = run(&mut embar(&[
        "broker",
        "--follower",
        "127.0.0.1:1",
        "--region",
        "/dev/shm/none",
    ]));
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("needs --id"));
}
