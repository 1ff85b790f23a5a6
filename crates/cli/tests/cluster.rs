//! `embar up` and the commands that use it, with real processes.

mod common;

use common::{Space, Up, embar, end_of, eventually, is_running, run, signal, text, up_command};

#[test]
fn what_goes_in_comes_out_exactly_once() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("numbers", 0..100_000);
    assert_eq!(up.consume("numbers"), (0..100_000).collect::<Vec<_>>());
    let described: serde_json::Value =
        serde_json::from_str(&up.ok(&["--json", "topic", "describe", "numbers"])).expect("JSON");
    let partitions = described["partitions"].as_array().expect("partitions");
    let messages: u64 = partitions
        .iter()
        .map(|p| p["next"].as_u64().unwrap_or(0) - p["first"].as_u64().unwrap_or(0))
        .sum();
    assert_eq!((partitions.len(), messages), (2, 100_000));
    up.stop();
}

#[test]
fn a_stopped_cluster_keeps_its_data_and_says_where() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("kept", 0..1000);
    let pids = up.pids();
    let stopped = up.stop();
    assert_eq!(stopped["region"].as_str(), space.region().to_str());
    assert!(stopped["region_bytes"].as_u64().expect("a size") > 64 << 20);
    assert!(pids.into_iter().all(|pid| !is_running(pid)));
    let up = Up::start(&space, &[]);
    assert_eq!(up.consume("kept"), (0..1000).collect::<Vec<_>>());
    up.stop();
    let up = Up::start(&space, &["--fresh"]);
    assert_eq!(up.ok(&["--json", "topic", "list"]).trim(), "[]");
    up.stop();
}

#[test]
fn a_temporary_cluster_leaves_nothing() {
    let space = Space::new();
    let up = Up::start(&space, &["--temporary"]);
    assert!(space.region().exists());
    let stopped = up.stop();
    assert!(stopped["region"].is_null() && !space.region().exists());
}

#[test]
fn a_second_cluster_on_the_same_region_or_port_is_refused_at_once() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let same_region = run(&mut up_command(&space, &[]));
    assert!(!same_region.status.success());
    let message = text(&same_region.stderr);
    assert!(
        message.contains("in use") && message.contains("--region"),
        "{message}"
    );
    assert!(
        up.pids()
            .iter()
            .any(|pid| message.contains(&pid.to_string())),
        "it names the processes: {message}"
    );
    let other = Space::new();
    let same_port = run(&mut up_command(&other, &["--listen", up.bootstrap()]));
    assert!(!same_port.status.success());
    let message = text(&same_port.stderr);
    assert!(
        message.contains("in use") && message.contains("choose another"),
        "{message}"
    );
    assert!(
        !other.region().exists(),
        "nothing is left of the one that did not start"
    );
    up.produce("still", 0..10);
    assert_eq!(up.consume("still").len(), 10);
    up.stop();
}

#[test]
fn acknowledged_data_of_a_killed_broker_is_readable_after_its_restart() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("numbers", 0..50_000);
    let victim = up.pids()[1];
    signal(victim, "KILL");
    eventually("the broker serves again", || {
        let status = run(&mut up.embar(&["--json", "status"]));
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&status.stdout) else {
            return false;
        };
        let broker = &status["brokers"][1];
        broker["state"] == "ready" && broker["error"].is_null() && broker["incarnation"] == 2
    });
    assert_eq!(up.consume("numbers"), (0..50_000).collect::<Vec<_>>());
    up.produce("numbers", 50_000..60_000);
    assert_eq!(up.consume("numbers"), (0..60_000).collect::<Vec<_>>());
    up.stop();
    let said = std::fs::read_to_string(space.dir.join("up.err")).expect("its standard error");
    assert!(
        said.contains("SIGKILL") && said.contains("serves again"),
        "{said}"
    );
}

#[test]
fn a_killed_head_is_restarted_where_it_was_while_the_others_go_on() {
    let space = Space::new();
    let up = Up::start(&space, &["--fresh"]);
    up.produce("numbers", 0..10_000);
    signal(up.pids()[0], "KILL");
    eventually("the head serves again", || {
        let status = run(&mut up.embar(&["--json", "status"]));
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&status.stdout) else {
            return false;
        };
        let head = &status["brokers"][0];
        head["state"] == "ready" && head["error"].is_null() && head["incarnation"] == 2
    });
    up.produce("numbers", 10_000..20_000);
    assert_eq!(up.consume("numbers"), (0..20_000).collect::<Vec<_>>());
    up.produce("created-by-its-successor", 0..10);
    up.stop();
}

#[test]
fn a_standby_is_started_beside_the_brokers_and_restarted_when_it_dies() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "1"]);
    let role = |id: usize| up.ready["brokers"][id]["role"].as_str().map(str::to_owned);
    assert_eq!(role(0).as_deref(), Some("head"));
    assert_eq!(role(3).as_deref(), Some("standby"));
    let status = || -> serde_json::Value {
        let status = run(&mut up.embar(&["--json", "status"]));
        serde_json::from_slice(&status.stdout).unwrap_or_default()
    };
    let standby = |field: &str| status()["brokers"][3][field].clone();
    assert_eq!(standby("role"), "standby");
    signal(up.pids()[3], "KILL");
    eventually("the standby serves again", || {
        standby("incarnation") == 2 && standby("state") == "ready"
    });
    assert_eq!(
        status()["sequencer"],
        0,
        "the head sequences while it lives"
    );
    signal(up.pids()[0], "KILL");
    eventually("the standby sequences", || {
        status()["sequencer"] == standby("id")
    });
    up.stop();
}

#[test]
fn a_head_that_hangs_is_succeeded_by_its_standby_and_does_no_harm_later() {
    let space = Space::new();
    let up = Up::start(&space, &["--standbys", "1"]);
    up.ok(&["topic", "create", "ordered", "--order", "5"]);
    up.produce("ordered", 0..1000);
    let head = up.pids()[0];
    signal(head, "STOP");
    // The head does not answer, so it is asked of a broker that does.
    let broker = up.ready["brokers"][1]["address"]
        .as_str()
        .expect("an address");
    let lines: String = (1000..2000).map(|n| format!("{n}\n")).collect();
    let input = space.dir.join("lines");
    std::fs::write(&input, lines).expect("a file");
    let produced = run(embar(&["produce", "ordered", "--bootstrap", broker])
        .stdin(std::fs::File::open(&input).expect("it is there")));
    signal(head, "CONT");
    assert!(produced.status.success(), "{}", text(&produced.stderr));
    up.produce("ordered", 2000..3000);
    let consumed = up.ok(&["consume", "ordered"]);
    let numbers: Vec<u64> = consumed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    let log = std::fs::read_to_string(space.dir.join("logs/broker-4.log")).expect("its log");
    assert!(log.contains("sequences"), "{log}");
    up.stop();
}

#[test]
fn a_killed_parent_leaves_no_broker_and_the_next_start_finds_the_data() {
    let space = Space::new();
    let mut up = Up::start(&space, &[]);
    up.produce("numbers", 0..10_000);
    let pids = up.pids();
    up.child.kill().expect("our own child");
    end_of(&mut up.child);
    eventually("the brokers are gone", || {
        pids.iter().all(|pid| !is_running(*pid))
    });
    let up = Up::start(&space, &[]);
    assert_eq!(up.consume("numbers"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn after_everything_was_killed_the_next_start_finds_the_data() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("numbers", 0..10_000);
    up.kill_all();
    let up = Up::start(&space, &[]);
    assert_eq!(up.consume("numbers"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn ctrl_c_drains() {
    let space = Space::new();
    let mut up = Up::start(&space, &[]);
    let pids = up.pids();
    // As a terminal does it: to the whole group.
    signal(up.child.id(), "INT");
    assert_eq!(end_of(&mut up.child).code(), Some(0));
    assert!(pids.into_iter().all(|pid| !is_running(pid)));
}

#[test]
fn a_single_broker_says_when_it_is_ready_and_drains_on_sigterm() {
    use std::io::{BufRead, BufReader};
    let space = Space::new();
    let region = space.region().display().to_string();
    let mut broker = embar(&[
        "broker",
        "--head",
        "--brokers",
        "1",
        "--region-size",
        "64MiB",
        "--temporary",
    ])
    .args(["--listen", "127.0.0.1:0", "--region", &region])
    .stdout(std::process::Stdio::piped())
    .stderr(std::process::Stdio::null())
    .spawn()
    .expect("embar starts");
    let mut lines = BufReader::new(broker.stdout.take().expect("a pipe")).lines();
    let ready = lines.next().expect("a line").expect("text");
    assert!(
        ready.starts_with("ready id=0 address=127.0.0.1:"),
        "{ready}"
    );
    let address = ready
        .split("address=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("an address");
    let listed = run(&mut embar(&["topic", "list", "--bootstrap", address]));
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    signal(broker.id(), "TERM");
    assert!(end_of(&mut broker).success());
    assert!(lines.next().is_none() && !space.region().exists());
}
