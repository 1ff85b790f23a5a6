//! What a process runs out of: file descriptors, addresses to map memory at, room for files. Each is an
//! error, and nothing is the worse for it.
//!
//! Limits are the whole process's, so each test has a child of its own.
#![cfg(not(loom))]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use embar_fabric::{Geometry, Probe, Region, RegionError};
use embar_memory::{Coherence, Mapped};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Says to a child where its region is.
const REGION: &str = "EMBAR_TEST_REGION";
/// Payload of one broker: more than the child may map, or write.
const PAYLOAD_BYTES: u64 = 32 << 20;
/// What it may, in the blocks of 512 or 1,024 bytes in which a shell counts files.
const FILE_BLOCKS: &str = "8192";
/// The row whose payload file is made when it is claimed first.
const SPARE: u16 = 2;

fn geometry() -> Geometry {
    Geometry {
        disks: 0,
        brokers: 3,
        topics: 1,
        lanes: 1,
        lane_slots: 4,
        index_pages: 4,
        payload_bytes: PAYLOAD_BYTES,
        standbys: 0,
        spares: 1,
        goi_pages: 4,
        sessions: 4,
    }
}

/// A directory in memory where there is one, gone at the end of the test.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let made = match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    };
    made.expect("a directory for the test")
}

fn open(dir: &Path) -> Result<Region<Mapped>, RegionError> {
    Region::open(dir, Coherence::Coherent)
}

/// Runs a child with a region that no process holds. A file that becomes too large is an error to it, as
/// on a file system that is full, and not a signal.
fn with_region(child: &str, file_blocks: &str) {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    drop(Region::create(&dir, &geometry(), Coherence::Coherent).expect("room for a region"));
    let output = Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -S -f "$1"; shift; exec "$@""#])
        .args(["sh", file_blocks])
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", child, "--ignored"])
        .env(REGION, &dir)
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "there is no {child}: {said}");
    // A process that has what the child lacked finds the region whole, and its row free.
    let region = open(&dir).expect("nothing was harmed");
    assert!(matches!(Region::probe(&dir), Probe::Stale { .. }));
    region.claim(SPARE).expect("there is room");
}

/// What the parent made; none if there is no parent.
fn given() -> Option<PathBuf> {
    std::env::var_os(REGION).map(PathBuf::from)
}

/// Does something with less of a resource than it needs.
fn short_of<R>(resource: Resource, most: u64, f: impl FnOnce() -> R) -> R {
    let before = getrlimit(resource);
    let mut less = getrlimit(resource);
    less.current = Some(most);
    setrlimit(resource, less).expect("less is always allowed");
    let result = f();
    setrlimit(resource, before).expect("the hard limit is as it was");
    result
}

/// Addresses that the process uses.
fn mapped_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("there is proc");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a number") << 10
}

#[test]
#[ignore = "run by another test"]
fn child_without_descriptors() {
    let Some(dir) = given() else { return };
    let region = open(&dir).expect("the parent made it");
    let claim = region.claim(1).expect("free");
    let other = open(&dir).expect("once more");
    assert!(other.owner_alive(1).expect("it can be looked at"));
    let (looked, opened, claimed) = short_of(Resource::Nofile, 64, || {
        let mut taken = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            taken.push(file);
        }
        (other.owner_alive(1), open(&dir), other.claim(SPARE))
    });
    assert!(
        looked.is_err(),
        "who lives is not taken for dead: {looked:?}"
    );
    assert!(matches!(opened, Err(RegionError::Io { .. })), "{opened:?}");
    assert!(
        matches!(claimed, Err(RegionError::Io { .. })),
        "{claimed:?}"
    );
    assert!(other.owner_alive(1).expect("descriptors are free again"));
    drop((claim, region));
    assert!(!other.owner_alive(1).expect("as before"));
}

#[test]
fn a_lock_that_cannot_be_looked_at_is_an_error() {
    with_region("child_without_descriptors", "unlimited");
}

#[test]
#[ignore = "run by another test"]
fn child_that_cannot_map() {
    let Some(dir) = given() else { return };
    let most = mapped_bytes() + PAYLOAD_BYTES / 2;
    let refused = short_of(Resource::As, most, || open(&dir));
    let refused = refused.map(drop).expect_err("it does not fit").to_string();
    assert!(refused.contains("mapping"), "{refused}");
    open(&dir).expect("now it does");
}

#[test]
fn a_region_that_cannot_be_mapped_is_told_by_name() {
    with_region("child_that_cannot_map", "unlimited");
}

#[test]
#[ignore = "run by another test"]
fn child_without_room() {
    let Some(dir) = given() else { return };
    let region = open(&dir).expect("the parent made it");
    let refused = region.claim(SPARE).map(drop).expect_err("no room");
    assert!(
        matches!(refused, RegionError::NoSpaceForBroker { row: SPARE, .. }),
        "{refused:?}"
    );
    assert!(!region.owner_alive(SPARE).expect("it can be looked at"));
    let payload_file = dir.join(format!("payload-{SPARE}"));
    assert!(!payload_file.exists() && !payload_file.with_extension("new").exists());
    let elsewhere = dir.with_file_name("elsewhere");
    let refused = Region::create(&elsewhere, &geometry(), Coherence::Coherent);
    let refused = refused.map(drop).expect_err("no room");
    assert!(
        matches!(refused, RegionError::NoSpace { .. }),
        "{refused:?}"
    );
    assert!(!elsewhere.exists(), "nothing is left behind");
}

#[test]
fn a_kernel_that_refuses_memory_is_told_as_no_space() {
    with_region("child_without_room", FILE_BLOCKS);
}
