//! `embar up` keeps its brokers going, also those that an earlier `embar up` left behind.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Space, Up, embar, end_of, eventually, is_running, run, signal, state_of, up_command};
use embar_fabric::records::BrokerState;
use embar_fabric::region::Region;
use embar_memory::{Coherence, Mapped};
use serde_json::Value;

fn said(space: &Space) -> String {
    std::fs::read_to_string(space.dir.join("up.err")).unwrap_or_default()
}

/// The process that serves as broker `id` after `times` restarts, as `up` reports it.
fn successor(space: &Space, id: u16, times: usize) -> u32 {
    let mut pid = None;
    eventually("it serves again", || {
        let said = said(space);
        let line = said
            .lines()
            .filter(|line| line.starts_with(&format!("broker {id} serves again")))
            .nth(times - 1);
        pid = line.and_then(|line| {
            let (_, rest) = line.split_once("(pid ")?;
            rest.split(')').next()?.parse().ok()
        });
        pid.is_some()
    });
    pid.expect("it was found")
}

fn broker(up: &Up, id: u64) -> Value {
    let status = run(&mut up.embar(&["--json", "status"]));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    let brokers = status["brokers"].as_array().cloned().unwrap_or_default();
    let mut brokers = brokers.into_iter();
    brokers.find(|it| it["id"] == id).unwrap_or_default()
}

fn serves(up: &Up, id: u64) -> bool {
    let broker = broker(up, id);
    broker["state"] == "ready" && broker["error"].is_null()
}

/// `up` and all its brokers are gone, but for one that is stopped.
fn leave_behind(mut up: Up, row: usize) -> u32 {
    // Without a parent in the same session the kernel would end it: it sends SIGHUP to stopped processes
    // that no process can resume. In a container, or under a service manager, there is such a parent.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("ours to say");
    let mut pids = up.pids();
    let stopped = pids.remove(row);
    signal(stopped, "STOP");
    up.child.kill().expect("our own child");
    end_of(&mut up.child);
    eventually("the others are gone", || {
        pids.iter().all(|pid| !is_running(*pid))
    });
    stopped
}

#[test]
fn a_head_that_dies_again_and_again_ends_nothing() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.ok(&["topic", "create", "t", "--order", "5"]);
    up.produce("t", 0..100);
    let mut head = up.pids()[0];
    for times in 1..=6 {
        signal(head, "KILL");
        if times < 6 {
            head = successor(&space, 0, times);
        }
    }
    eventually("the wait has grown", || {
        said(&space).contains("broker 0 is restarted in 3.2s")
    });
    // A standby sequences meanwhile.
    let others = format!(
        "{},{}",
        up.ready["brokers"][1]["address"]
            .as_str()
            .expect("an address"),
        up.ready["brokers"][2]["address"]
            .as_str()
            .expect("an address"),
    );
    up.ok(&["consume", "t", "--bootstrap", &others]);
    assert!(is_running(up.child.id()));
    successor(&space, 0, 6);
    up.produce("t", 100..200);
    assert_eq!(up.consume("t"), (0..200).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_broker_that_dies_while_the_head_stands_still_serves_again() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("t", 0..10_000);
    let [head, victim] = [0, 2].map(|row| up.pids()[row]);
    signal(head, "STOP");
    signal(victim, "KILL");
    successor(&space, 2, 1);
    let other = up.ready["brokers"][1]["address"].as_str();
    let read = run(embar(&["consume", "t", "--bootstrap"]).arg(other.expect("an address")));
    assert!(read.status.success(), "{}", common::text(&read.stderr));
    assert_eq!(common::text(&read.stdout).lines().count(), 10_000);
    // The head finds it when it goes on, and it is as any other.
    signal(head, "CONT");
    eventually("the head sees it", || serves(&up, 2));
    assert_eq!(broker(&up, 2)["incarnation"], 2);
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_broker_that_was_killed_once_it_had_left_is_not_started_again() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    signal(up.child.id(), "STOP");
    eventually("it is stopped", || state_of(up.child.id()) == Some('T'));
    signal(up.pids()[1], "KILL");
    let region: Region<Mapped> =
        Region::open(&space.region(), Coherence::Coherent).expect("it is there");
    let mut claim = None;
    eventually("its row is free", || {
        claim = region.claim(1).ok();
        claim.is_some()
    });
    let claim = claim.expect("it was claimed");
    let mut row = region.broker_row(1).found().expect("its row");
    row.set_broker_state(BrokerState::Left);
    region.broker_row_writer(&claim).store(&row);
    drop(claim);
    signal(up.child.id(), "CONT");
    eventually("it says so", || {
        said(&space).contains("broker 1 has left the cluster")
    });
    up.stop();
    assert!(!said(&space).contains("restarted"), "{}", said(&space));
}

#[test]
fn a_region_whose_head_another_command_has_just_started_is_refused() {
    let space = Space::new();
    let mut first = up_command(&space, &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    let control = space.region().join("control");
    eventually("the region is being made", || control.exists());
    // It does not see that its head serves.
    signal(first.id(), "STOP");
    eventually("the head serves", || {
        let region = Region::<Mapped>::open(&space.region(), Coherence::Coherent);
        let head = region.ok().and_then(|it| it.broker_row(0).found());
        head.and_then(|it| it.broker_state()) == Some(BrokerState::Ready)
    });
    let second = run(&mut up_command(&space, &[]));
    let said = common::text(&second.stderr);
    assert!(
        !second.status.success() && said.contains("in use"),
        "{said}"
    );
    signal(first.id(), "CONT");
    let mut ready = String::new();
    BufReader::new(first.stdout.take().expect("a pipe"))
        .read_line(&mut ready)
        .expect("a line");
    assert!(ready.contains("bootstrap"), "{ready}");
    signal(first.id(), "TERM");
    assert!(end_of(&mut first).success());
}

#[test]
fn an_interrupted_start_leaves_nothing_in_the_way_of_the_next() {
    let space = Space::new();
    let mut first = up_command(&space, &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    let control = space.region().join("control");
    eventually("the region is being made", || control.exists());
    signal(first.id(), "INT");
    end_of(&mut first);
    // It may have been whole by then.
    if control.exists() {
        std::fs::remove_dir_all(space.region()).expect("no process uses it");
    }
    // So it looks when all of them were killed at once.
    std::fs::create_dir_all(space.region()).expect("room");
    std::fs::write(&control, [0; 8192]).expect("room");
    std::fs::write(space.region().join("owner-0"), "").expect("room");
    let up = Up::start(&space, &[]);
    assert!(
        said(&space).contains("was interrupted before it held anything"),
        "{}",
        said(&space)
    );
    up.produce("t", 0..100);
    assert_eq!(up.consume("t"), (0..100).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_stopped_broker_of_an_earlier_up_is_taken_over_when_it_runs_again() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("t", 0..10_000);
    let stopped = leave_behind(up, 1);
    let up = Up::start(&space, &[]);
    assert!(!up.pids().contains(&stopped));
    eventually("it says that the other one stays", || {
        said(&space).contains(&format!("broker 1 lives (pid {stopped})"))
    });
    // It finds that its supervisor is gone, and ends.
    signal(stopped, "CONT");
    let pid = successor(&space, 1, 1);
    eventually("it serves", || serves(&up, 1));
    assert_eq!(broker(&up, 1)["incarnation"], 2);
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    // From now on it is as any other.
    signal(pid, "KILL");
    successor(&space, 1, 2);
    eventually("it serves", || serves(&up, 1));
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_stopped_broker_of_an_earlier_up_is_taken_over_when_it_dies() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("t", 0..10_000);
    let stopped = leave_behind(up, 2);
    let up = Up::start(&space, &[]);
    signal(stopped, "KILL");
    successor(&space, 2, 1);
    eventually("it serves", || serves(&up, 2));
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_stopped_head_of_an_earlier_up_is_waited_for() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    up.produce("t", 0..10_000);
    let stopped = leave_behind(up, 0);
    // A command that asks for another cluster than the one that is there fails without a wait.
    let other = run(&mut up_command(&space, &["--brokers", "2"]));
    assert!(!other.status.success());
    assert!(
        common::text(&other.stderr).contains("3 brokers"),
        "{}",
        common::text(&other.stderr)
    );
    let up = std::thread::scope(|scope| {
        let up = scope.spawn(|| Up::start(&space, &[]));
        eventually("it says whom it waits for", || {
            said(&space).contains(&format!("(pid {stopped}) lives, does not answer"))
        });
        signal(stopped, "CONT");
        up.join().expect("it starts")
    });
    assert!(!up.pids().contains(&stopped));
    for id in 0..3 {
        eventually("all serve", || serves(&up, id));
    }
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_head_that_was_started_by_hand_is_joined_and_followed() {
    let space = Space::new();
    let region = space.region().display().to_string();
    let mut head = embar(&[
        "broker",
        "--head",
        "--listen",
        "127.0.0.1:0",
        "--region",
        &region,
    ])
    .args([
        "--region-size",
        "128MiB",
        "--brokers",
        "3",
        "--spares",
        "1",
        "--standbys",
        "1",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .expect("embar starts");
    let mut ready = String::new();
    BufReader::new(head.stdout.take().expect("a pipe"))
        .read_line(&mut ready)
        .expect("a line");
    let up = Up::start(&space, &[]);
    assert!(
        ready.contains(&format!("address={} ", up.bootstrap())),
        "{ready}"
    );
    up.produce("t", 0..1000);
    head.kill().expect("our own child");
    end_of(&mut head);
    successor(&space, 0, 1);
    up.produce("t", 1000..2000);
    assert_eq!(up.consume("t"), (0..2000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn an_up_after_a_killed_one_waits_until_its_brokers_have_ended() {
    let space = Space::new();
    let mut up = Up::start(&space, &[]);
    up.produce("t", 0..10_000);
    up.child.kill().expect("our own child");
    end_of(&mut up.child);
    let up = Up::start(&space, &[]);
    for id in 0..3 {
        eventually("all serve", || serves(&up, id));
    }
    assert_eq!(up.consume("t"), (0..10_000).collect::<Vec<_>>());
    up.stop();
}

#[test]
fn a_wait_for_a_head_that_does_not_answer_ends_by_a_signal() {
    let space = Space::new();
    let up = Up::start(&space, &[]);
    let stopped = leave_behind(up, 0);
    let mut waiting = up_command(&space, &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    // Its handlers are there before it looks at the region.
    eventually("it runs", || {
        std::fs::read_to_string(format!("/proc/{}/status", waiting.id()))
            .is_ok_and(|status| status.contains("SigCgt:") && threads(&status) > 1)
    });
    signal(waiting.id(), "TERM");
    assert_eq!(end_of(&mut waiting).code(), Some(130));
    assert!(is_running(stopped), "it is not ours to end");
    signal(stopped, "KILL");
}

fn threads(status: &str) -> u32 {
    let line = status.lines().find(|line| line.starts_with("Threads:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
