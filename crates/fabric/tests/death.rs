//! A process that dies gives up what it held.
//!
//! In a test binary of its own: a fork copies the locks of its process until it becomes another
//! program, which would disturb tests that run beside it.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use embar_fabric::{Geometry, Probe, Region};
use embar_memory::Coherence;

/// Not a test of its own: the process that [`a_killed_holder_is_dead`] kills.
#[test]
#[ignore = "run by another test"]
fn child_holds_a_claim() {
    let Some(dir) = std::env::var_os("EMBAR_TEST_REGION").map(PathBuf::from) else {
        return;
    };
    let region = Region::open(&dir, Coherence::Coherent).expect("the parent made it");
    let claim = region.claim(1).expect("free");
    let mut row = region.control_row_writer(&claim);
    let mut heartbeat = 0;
    loop {
        heartbeat += 1;
        row.store(&embar_fabric::ControlRow {
            heartbeat,
            epoch_seen: heartbeat,
            ..Default::default()
        });
        if heartbeat == 1000 {
            writeln!(std::io::stderr(), "holding").expect("the parent listens");
        }
    }
}

fn spawn_holder(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "child_holds_a_claim", "--ignored", "--nocapture"])
        .env("EMBAR_TEST_REGION", dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test binary runs");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let holding = stderr
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("holding"));
    assert!(holding, "the child died early");
    child
}

#[test]
fn a_killed_holder_is_dead() {
    let shm = Path::new("/dev/shm");
    let tmp = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    };
    let dir = tmp.expect("a directory for the test");
    let dir = dir.path().join("region");
    let geometry = Geometry {
        brokers: 3,
        index_pages: 4,
        payload_bytes: 256 << 10,
        ..Geometry::default()
    };
    let region = Region::create(&dir, &geometry, Coherence::Coherent).expect("room");
    for incarnation in 1..4 {
        let mut child = spawn_holder(&dir);
        assert_eq!(
            Region::probe(&dir),
            Probe::InUse {
                rows: vec![(1, child.id())]
            }
        );
        assert_eq!(region.owner_alive(1).ok(), Some(true));
        child.kill().expect("ours");
        let deadline = Instant::now() + Duration::from_secs(60);
        child.wait().expect("it ends");
        while region.owner_alive(1).expect("the region is there") {
            assert!(Instant::now() < deadline, "the lock outlived its process");
        }
        // Whatever it was storing when it died, one of its rows is whole.
        let row = region
            .control_row(1)
            .found()
            .expect("stored a thousand times");
        assert!(row.heartbeat == row.epoch_seen && row.heartbeat >= 999);
        assert_eq!(region.incarnation(1), incarnation * 2 - 1);
        assert_eq!(
            region.claim(1).expect("free").incarnation(),
            incarnation * 2
        );
    }
    let found = Region::probe(&dir);
    assert!(matches!(found, Probe::Stale { .. }), "{found:?}");
}
