//! `embar verify`, small: the faults it is asked for happen, and the log keeps its promises meanwhile.

mod common;

use std::process::Stdio;

use common::{
    Space, embar, end_of, eventually, is_running, names_in, output_of, run, signal, text,
};
use serde_json::Value;

/// A short run with room for everything many times over, which must find nothing.
fn verify(more: &[&str], enough: impl Fn(&Value) -> bool) -> Value {
    let report = verify_in(["128MiB", "4000", "4KiB"], more, enough);
    assert_eq!(report["read_from_the_first"], true);
    report
}

/// Runs, longer each time, of which none may find anything, until enough was tried in one: how long
/// that takes depends on the machine.
fn verify_in(
    [region_size, rate, batch_size]: [&str; 3],
    more: &[&str],
    enough: impl Fn(&Value) -> bool,
) -> Value {
    let mut seconds = 4;
    loop {
        let duration = format!("{seconds}s");
        let mut args = vec![
            "--json",
            "verify",
            "order",
            "--publishers",
            "4",
            "--rate",
            rate,
            "--batch-size",
            batch_size,
            "--region-size",
            region_size,
            "--duration",
            &duration,
        ];
        args.extend(more);
        let output = run(&mut embar(&args));
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
        let nothing_was_tried = output.status.code() == Some(5);
        assert!(output.status.success() || nothing_was_tried, "{said}");
        assert_eq!(report["violations"]["total"], 0, "{said}");
        if !nothing_was_tried {
            assert_eq!(report["kept"], true, "{said}");
            if enough(&report) {
                return report;
            }
        }
        seconds *= 2;
        assert!(seconds <= 32, "not enough was tried: {said}");
    }
}

/// Runs a check that is to succeed; its report.
fn report_of(args: &[&str]) -> Value {
    let output = run(&mut embar(args));
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect(&said)
}

/// What was published, but for what its publisher learned is not stored: one of them gives up soon.
fn stored(report: &Value) -> u64 {
    number(&report["published"]) - number(&report["not_stored"])
}

/// How often a fault was made.
fn happened(report: &Value, fault: &str) -> u64 {
    report["faults"][fault].as_u64().unwrap_or(0)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn a_killed_sequencer_is_followed_by_another_and_nothing_is_lost() {
    let report = verify(&["--kill", "sequencer", "--every", "1s"], |report| {
        happened(report, "kill sequencer") >= 2
            && number(&report["takeovers"]) >= 2
            && number(&report["published"]) > 1000
    });
    // No publisher was killed, so everything was acknowledged and seen.
    let stored = stored(&report);
    for seen in [
        &report["acknowledged"],
        &report["subscribers"][0]["messages"],
        &report["read_at_the_end"],
    ] {
        assert_eq!(number(seen), stored, "{report}");
    }
    let gap = &report["gaps"][0];
    assert_eq!(gap["fault"], "kill sequencer");
    assert!(
        gap["nobody_ms"]["max"].as_f64().is_some_and(|ms| ms > 1.0),
        "{report}"
    );
}

#[test]
fn killed_and_stopped_brokers_lose_nothing() {
    let faults = ["--kill", "broker", "--pause", "broker"];
    let pauses = ["--pause-for", "100ms..500ms", "--every", "1s"];
    let report = verify(&[faults, pauses].concat(), |report| {
        happened(report, "kill broker") >= 2 && happened(report, "pause broker") >= 2
    });
    assert_eq!(stored(&report), report["read_at_the_end"]);
}

#[test]
fn killed_publishers_break_no_promise_at_order_2() {
    let faults = ["--order", "2", "--kill", "publisher", "--every", "500ms"];
    verify(&faults, |report| happened(report, "kill publisher") >= 2);
}

#[test]
fn a_stopped_publisher_delays_no_other_and_acknowledged_is_readable() {
    let pauses = ["--pause", "publisher", "--pause-for", "300ms..900ms"];
    let report = verify(&[&pauses[..], &["--every", "500ms"]].concat(), |report| {
        happened(report, "pause publisher") > 0 && number(&report["reread"]) > 0
    });
    assert_eq!(stored(&report), report["read_at_the_end"]);
}

#[test]
fn a_cluster_that_was_killed_whole_has_what_it_acknowledged() {
    let report = verify(&["--kill", "cluster", "--every", "1500ms"], |report| {
        happened(report, "kill cluster") > 0
    });
    assert_eq!(report["acknowledged"], report["read_at_the_end"]);
}

#[test]
fn brokers_leave_and_join_and_topics_come_and_go_beside() {
    let faults = ["--drain", "--delete", "--pause-for", "100ms..500ms"];
    let report = verify(&[&faults[..], &["--every", "1s"]].concat(), |report| {
        report["untried"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(stored(&report), report["read_at_the_end"]);
}

#[test]
fn what_no_broker_took_in_time_is_not_stored() {
    let faults = ["--kill", "cluster", "--order", "1"];
    verify(&[&faults[..], &["--every", "1s"]].concat(), |report| {
        number(&report["not_stored"]) > 0
    });
}

#[test]
fn a_full_log_keeps_what_it_has_room_for() {
    // One broker with little memory: it is full before long also where everything is slow.
    let load = ["--message-size", "4KiB", "--brokers", "2"];
    let faults = [
        "--pause",
        "publisher",
        "--kill",
        "sequencer",
        "--every",
        "1s",
    ];
    let args = [&load[..], &faults].concat();
    verify_in(["36MiB", "6000", "16KiB"], &args, |report| {
        report["read_from_the_first"] == false && number(&report["retained"]["looks"]) > 0
    });
}

#[test]
fn hostile_clients_by_shared_memory_change_nothing_for_the_honest_ones() {
    let hostile = ["--hostile", "publisher", "--hostile", "subscriber"];
    let report = verify(
        &[&hostile[..], &["--transport", "shm"]].concat(),
        |report| {
            let attacks = report["attacks"].as_object().expect("a count of each");
            attacks.len() >= 10
        },
    );
    assert_eq!(report["tried"], true);
    assert_eq!(
        report["config"]["hostile"],
        serde_json::json!(["publisher", "subscriber"])
    );
}

#[test]
fn without_a_fault_nothing_was_tried() {
    let args = ["--json", "verify", "order", "--publishers", "2"];
    let output = run(embar(&args).args(["--duration", "300ms", "--region-size", "128MiB"]));
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("nothing was tried"));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let verdict = (
        &report["tried"],
        &report["kept"],
        &report["violations"]["total"],
    );
    assert_eq!(verdict, (&false.into(), &false.into(), &0.into()));
}

#[test]
fn publishers_that_are_killed_keep_no_other_out() {
    let args = [
        "--json",
        "verify",
        "sessions",
        "--killed",
        "60",
        "--at-once",
        "6",
        "--places",
        "16",
        "--session-idle",
        "50ms",
        "--region-size",
        "96MiB",
        // How fast it is, is not what is tested.
        "--within",
        "30s",
    ];
    let report = report_of(&args);
    assert_eq!(
        (&report["lived"], &report["tried"], &report["kept"]),
        (&true.into(), &true.into(), &true.into())
    );
    let config = &report["config"];
    assert_eq!(
        (&config["within_s"], &config["session_idle_s"]),
        (&30.0.into(), &0.05.into())
    );
}

#[test]
fn places_that_were_not_needed_again_verify_nothing() {
    let (_gone, output) = std::io::pipe().expect("a pipe");
    let mut few = embar(&["verify", "sessions", "--killed", "10", "--places", "12"]);
    few.args(["--at-once", "5", "--region-size", "96MiB"]);
    // Also when its output is read by no process.
    few.stdout(output).stderr(Stdio::null());
    let mut few = few.spawn().expect("embar starts");
    assert_eq!(end_of(&mut few).code(), Some(5));
}

#[test]
fn what_is_only_announced_evicts_nothing() {
    let args = [
        "--json",
        "verify",
        "claims",
        "--connections",
        "8",
        "--drip",
        "50ms",
        "--rounds",
        "1",
        "--round",
        "50ms",
        "--region-size",
        "96MiB",
        // How fast it is, is not what is tested.
        "--at-least",
        "0",
    ];
    let report = report_of(&args);
    let seen = (&report["evicted_by_claims"], &report["kept"]);
    assert_eq!(seen, (&0.into(), &true.into()));
    let config = &report["config"];
    assert_eq!(
        (&config["drip_s"], &config["round_s"]),
        (&0.05.into(), &0.05.into())
    );
    assert!(report["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0));
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_starts() {
    for wrong in [
        &["--order", "3"][..],
        &["--acks", "0"],
        &["--acks", "all"],
        &["--message-size", "8"],
        &["--pause", "cluster"],
        &["--kill", "topic"],
        &["--drain", "--brokers", "2"],
        &["--faults", "all", "--drain"],
        &["--pause-for", "3s..1s"],
        &["--rate", "0"],
    ] {
        let output = run(embar(&["verify", "order"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn ctrl_c_leaves_no_process_and_no_memory() {
    let space = Space::new();
    let mut child = embar(&["verify", "order", "--pause", "broker", "--every", "200ms"])
        .args(["--region-size", "128MiB", "--rate", "1000"])
        .env("TMPDIR", &space.dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("embar starts");
    let pid = child.id();
    let mut family = Vec::new();
    // A head, two data brokers, a standby, eight publishers.
    eventually("all of them run", || {
        family = children_of(pid);
        family.len() == 12
    });
    signal(pid, "INT");
    assert_eq!(end_of(&mut child).code(), Some(130));
    assert!(family.into_iter().all(|pid| !is_running(pid)));
    assert!(!is_there(pid));
    assert_eq!(names_in(&space.dir).len(), 0);
}

#[test]
fn after_the_verifier_was_killed_nothing_runs() {
    let space = Space::new();
    let child = embar(&[
        "verify",
        "order",
        "--pause",
        "sequencer",
        "--every",
        "200ms",
    ])
    .args(["--region-size", "128MiB", "--rate", "1000"])
    .env("TMPDIR", &space.dir)
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .expect("embar starts");
    let mut family = Vec::new();
    eventually("all of them run", || {
        family = children_of(child.id());
        family.len() == 12
    });
    let pid = child.id();
    signal(pid, "KILL");
    output_of(child);
    eventually("all have ended", || {
        family.iter().all(|pid| !is_running(*pid))
    });
    assert_eq!(names_in(&space.dir).len(), 1, "its logs");
    // The next run removes the memory and the logs, even one that cannot do anything else.
    let mut next = embar(&["verify", "order", "--message-size", "1"]);
    next.env("TMPDIR", &space.dir).stderr(Stdio::null());
    let mut next = next.spawn().expect("embar starts");
    assert!(!end_of(&mut next).success());
    assert!(!is_there(pid));
    assert_eq!(names_in(&space.dir).len(), 0);
}

/// Whether the region of a verifier is there.
fn is_there(verifier: u32) -> bool {
    let root = format!("/dev/shm/embar-{}", rustix::process::getuid().as_raw());
    let names = names_in(root.as_ref());
    names.contains(&format!("bench-{verifier}"))
}

fn children_of(pid: u32) -> Vec<u32> {
    // Each thread has its own list of the children that it started.
    names_in(format!("/proc/{pid}/task").as_ref())
        .iter()
        .filter_map(|task| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{task}/children")).ok()
        })
        .flat_map(|children| {
            let pids = children.split_whitespace().map(str::to_owned);
            pids.collect::<Vec<_>>()
        })
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
