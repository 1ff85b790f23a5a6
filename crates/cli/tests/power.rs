//! `embar verify order --cut power`, small: what was acknowledged with acks 2 outlives power cuts, and nothing is left behind. Needs
//! root, and the programs of the packages e2fsprogs, xfsprogs and mount.

mod common;

use std::fs;
use std::process::Stdio;

use common::{
    Space, children_of, embar, end_of, eventually, is_running, names_in, run, signal, text,
};
use serde_json::Value;

const CUT: [&str; 6] = ["verify", "order", "--acks", "2", "--cut", "power"];
const SMALL: [&str; 8] = [
    "--publishers",
    "4",
    "--rate",
    "2000",
    "--batch-size",
    "4KiB",
    "--region-size",
    "96MiB",
];

/// A short run, which must find nothing; its report.
fn cut(more: &[&str]) -> Value {
    let args = [&["--json"][..], &CUT, &SMALL, &["--every", "500ms"], more].concat();
    let output = run(&mut embar(&args));
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("cut 3 of 3"), "progress: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(report["kept"], true, "{said}");
    report
}

/// Whether a file system is mounted in this directory.
fn has_mounts(space: &Space) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("there");
    mounts.contains(&space.dir.display().to_string())
}

fn all_is_on_the_disk(report: &Value) {
    assert_eq!(report["faults"]["cut power"], 3, "{report}");
    let acknowledged = report["acknowledged"].as_u64().expect("a count");
    let on_disk = report["disk"]["messages"].as_u64().expect("a count");
    assert!(acknowledged > 0 && on_disk >= acknowledged, "{report}");
}

#[test]
fn what_was_acknowledged_outlives_power_cuts_on_ext4() {
    all_is_on_the_disk(&cut(&["--cuts", "3"]));
}

#[test]
fn what_was_acknowledged_outlives_power_cuts_on_xfs() {
    all_is_on_the_disk(&cut(&[
        "--cuts",
        "3",
        "--file-system",
        "xfs",
        "--order",
        "2",
    ]));
}

#[test]
fn brokers_die_beside_power_cuts() {
    let faults = ["--kill", "sequencer", "--kill", "broker"];
    all_is_on_the_disk(&cut(&[&faults[..], &["--cuts", "3"]].concat()));
}

#[test]
fn what_cannot_be_cut_is_refused() {
    for (more, says) in [
        (&["--acks", "1", "--cut", "power"][..], "--acks"),
        (&["--acks", "2", "--cut", "power", "--drain"], "--cut"),
        (
            &["--acks", "2", "--cut", "power", "--order", "1"],
            "--order",
        ),
        (
            &["--acks", "2", "--cut", "power", "--subscribers", "1"],
            "--subscribers",
        ),
        (&["--acks", "2", "--cuts", "3"], "--cut"),
    ] {
        let output = run(embar(&["verify", "order"]).args(more));
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        let said = text(&output.stderr);
        assert!(said.contains(says), "{more:?}: {said}");
    }
}

#[test]
fn a_run_that_ends_early_leaves_no_process_and_no_file_system() {
    let space = Space::new();
    let start = || {
        let mut command = embar(&[&CUT[..], &SMALL, &["--cuts", "1000"]].concat());
        command.env("TMPDIR", &space.dir);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("embar starts")
    };
    let publishes = |pid: u32| children_of(pid, "verify-publisher").len() == 4;
    let mut interrupted = start();
    eventually("it publishes", || publishes(interrupted.id()));
    assert!(has_mounts(&space), "where its disk is");
    signal(interrupted.id(), "INT");
    assert_eq!(end_of(&mut interrupted).code(), Some(130));
    assert!(!has_mounts(&space));
    assert_eq!(names_in(&space.dir).len(), 0);

    let mut killed = start();
    eventually("it publishes", || publishes(killed.id()));
    let family = children_of(killed.id(), "");
    signal(killed.id(), "KILL");
    end_of(&mut killed);
    eventually("its processes have ended", || {
        family.iter().all(|pid| !is_running(*pid))
    });
    // The next run unmounts what it left, even one that cannot do anything else.
    let mut next = embar(&["verify", "order", "--message-size", "1"]);
    next.env("TMPDIR", &space.dir).stderr(Stdio::null());
    assert!(!end_of(&mut next.spawn().expect("embar starts")).success());
    assert!(!has_mounts(&space));
    assert_eq!(names_in(&space.dir).len(), 0);
}
