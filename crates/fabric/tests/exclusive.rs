//! Safe code gets no two views of the same mapped bytes of which one may change: what safe code may ask for
//! and is refused.
#![cfg(not(loom))]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use embar_fabric::{Claim, Geometry, Region, RegionError};
use embar_memory::{Coherence, Extent, Mapped, PayloadFile};

const UNIT: u32 = 64 << 10;

fn small() -> Geometry {
    Geometry {
        brokers: 3,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 4,
        payload_bytes: UNIT.into(),
        ..Geometry::default()
    }
}

struct Dir {
    path: PathBuf,
    scratch: tempfile::TempDir,
}

impl Dir {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a place for files");
        let path = scratch.path().join("region");
        drop(Region::create(&path, &small(), Coherence::Coherent).expect("room"));
        Self { path, scratch }
    }

    fn open(&self) -> Region<Mapped> {
        open(&self.path)
    }

    /// A copy of the directory: all content the same, the nonce included.
    fn copy(&self) -> PathBuf {
        let copy = self.scratch.path().join("copy");
        fs::create_dir(&copy).expect("room");
        for entry in fs::read_dir(&self.path).expect("ours") {
            let from = entry.expect("ours").path();
            fs::copy(&from, copy.join(from.file_name().expect("a file"))).expect("room");
        }
        copy
    }
}

fn open(path: &Path) -> Region<Mapped> {
    Region::open(path, Coherence::Coherent).expect("a whole region")
}

/// What a call that the caller must not make ends with.
fn refusal<R>(call: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(call)) else {
        panic!("it was not refused");
    };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()))
        .expect("a text")
}

fn extent(payload_file: &PayloadFile<Mapped>) -> Extent<Mapped> {
    payload_file.allocate(UNIT).expect("all of it is free")
}

#[test]
fn a_claim_gives_one_payload_file_in_all_of_a_process() {
    let dir = Dir::new();
    let (region, again) = (dir.open(), dir.open());
    let claim = region.claim(1).expect("free");
    let mut first = extent(&region.payload_file(&claim));
    let mut reservation = first.reserve(8).expect("room");
    reservation.write(0, b"AAAAAAAA");
    let span = reservation.commit();
    for other in [&region, &again] {
        let refused = refusal(|| other.payload_file(&claim));
        assert!(refused.contains("in use already"), "{refused}");
    }
    assert_eq!(span.as_slice(), b"AAAAAAAA");
    // Once no view of it is left, it may be had anew, through any of them.
    drop((first, span));
    drop(again.payload_file(&claim));
    drop(region.payload_file(&claim));
}

#[test]
fn the_claim_of_another_region_gives_no_payload_file() {
    let dir = Dir::new();
    let copy = dir.copy();
    let (region, other) = (dir.open(), open(&copy));
    assert_eq!(region.nonce(), other.nonce());
    let refused = refusal(|| other.payload_file(&region.claim(1).expect("free")));
    assert!(refused.contains("a claim made by that region"), "{refused}");
    let refused = refusal(|| region.payload_file(&Claim::unlocked(1, 1)));
    assert!(refused.contains("a claim made by that region"), "{refused}");
}

#[test]
fn a_row_of_ones_own_is_not_foreign() {
    let dir = Dir::new();
    let (region, other) = (dir.open(), dir.open());
    assert!(region.foreign(2, 0, 64).is_some());
    let claim = region.claim(1).expect("free");
    assert!(region.foreign(1, 0, 64).is_none(), "it is claimed");
    let payload_file = region.payload_file(&claim);
    assert!(region.foreign(1, 0, 64).is_none(), "there are slices of it");
    assert!(region.clone().foreign(1, 0, 64).is_none());
    // Where it is mapped another time it is the memory of another, as in another process.
    assert!(other.foreign(1, 0, 64).is_some());
    drop((payload_file, claim));
    assert!(region.foreign(1, 0, 64).is_none());
}

#[test]
fn what_is_read_as_foreign_gives_no_payload_file() {
    let dir = Dir::new();
    let (region, other) = (dir.open(), dir.open());
    let foreign = region.foreign(1, 0, 64).expect("there");
    let claim = region.claim(1).expect("free");
    let refused = refusal(|| region.payload_file(&claim));
    assert!(refused.contains("open the region again"), "{refused}");
    drop(other.payload_file(&claim));
    drop(foreign);
}

#[test]
fn memory_is_made_present_before_its_payload_file_is_had() {
    let dir = Dir::new();
    let (region, other) = (dir.open(), dir.open());
    let claim = region.claim(1).expect("free");
    region.prefault(1, 1, &|_, _| {}).expect("memory");
    let payload_file = region.payload_file(&claim);
    for region in [&region, &other] {
        let refused = refusal(|| region.prefault(1, 1, &|_, _| {}));
        assert!(refused.contains("in use already"), "{refused}");
    }
    drop(payload_file);
    region.prefault(1, 1, &|_, _| {}).expect("memory");
}

#[test]
fn a_payload_file_is_not_another_file_of_the_region() {
    let dir = Dir::new();
    for name in ["control", "payload-2"] {
        let payload_file = dir.path.join("payload-1");
        fs::remove_file(&payload_file).expect("ours");
        fs::hard_link(dir.path.join(name), &payload_file).expect("ours");
        let refused = Region::<Mapped>::open(&dir.path, Coherence::Coherent);
        assert!(
            matches!(refused, Err(RegionError::Damaged { .. })),
            "{name}"
        );
    }
}

#[test]
fn a_row_is_not_claimed_where_another_region_is_by_now() {
    let dir = Dir::new();
    let region = dir.open();
    let before = fs::metadata(dir.path.join("control")).expect("there").ino();
    fs::rename(&dir.path, dir.scratch.path().join("away")).expect("ours");
    drop(Region::create(&dir.path, &small(), Coherence::Coherent).expect("room"));
    assert_ne!(
        before,
        fs::metadata(dir.path.join("control")).expect("there").ino()
    );
    let refused = region.claim(1);
    assert!(
        matches!(refused, Err(RegionError::NotFound { .. })),
        "{refused:?}"
    );
    dir.open().claim(1).expect("it is free");
}
