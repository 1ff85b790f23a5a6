//! Regions in directories: each fault has an error of its own, and nothing is left behind.
#![cfg(not(loom))]

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;

use embar_fabric::layout::TableId;
use embar_fabric::{BrokerRow, DiskRow, Frontier, Geometry, Probe, Region, RegionError, Seen};
use embar_memory::{Coherence, Mapped};

fn small() -> Geometry {
    Geometry {
        disks: 0,
        brokers: 3,
        topics: 4,
        lanes: 2,
        lane_slots: 4,
        index_pages: 4,
        payload_bytes: 256 << 10,
        standbys: 0,
        spares: 0,
        goi_pages: 16,
        sessions: 4,
    }
}

/// A directory in memory where there is one, gone at the end of the test.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let made = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    };
    made.expect("a directory for the test")
}

fn create(dir: &Path) -> Region<Mapped> {
    Region::create(dir, &small(), Coherence::Coherent).expect("room for a small region")
}

fn open(dir: &Path) -> Result<Region<Mapped>, RegionError> {
    Region::open(dir, Coherence::Coherent)
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn what_one_process_creates_another_opens() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    assert_eq!(Region::probe(&dir), Probe::Absent);
    let created = create(&dir);
    assert!(
        matches!(Region::probe(&dir), Probe::Stale { .. }),
        "a mapping alone is not use"
    );
    assert_eq!(
        listing(&dir),
        [
            "control",
            "owner-0",
            "owner-1",
            "owner-2",
            "payload-1",
            "payload-2"
        ]
    );
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(
        (
            mode(&dir),
            mode(&dir.join("control")),
            mode(&dir.join("payload-1"))
        ),
        (0o700, 0o600, 0o600)
    );

    let opened = open(&dir).expect("complete");
    assert_eq!(
        (opened.nonce(), opened.geometry()),
        (created.nonce(), created.geometry())
    );
    assert_eq!(opened.layout(), created.layout());
    let claim = created.claim(1).expect("free");
    let mut writer = created.lane_writer(&claim, 1);
    writer.publish(
        0,
        &embar_fabric::PbrRecord {
            sequence: 9,
            ..Default::default()
        },
    );
    assert_eq!(
        opened
            .lane_reader(1, 1)
            .take()
            .found()
            .map(|(_, record)| record.sequence),
        Some(9)
    );
}

#[test]
fn an_empty_directory_is_used_and_made_private() {
    let tmp = scratch();
    fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    assert_eq!(Region::probe(tmp.path()), Probe::Absent);
    create(tmp.path());
    assert_eq!(
        fs::metadata(tmp.path())
            .expect("there")
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
}

#[test]
fn no_space_is_said_before_anything_is_left_behind() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let huge = Geometry {
        payload_bytes: 1 << 44,
        ..small()
    };
    let refused =
        Region::create(&dir, &huge, Coherence::Coherent).expect_err("no machine has that");
    let RegionError::NoSpace {
        needed,
        available,
        dir: named,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert!(*needed > 2 << 44 && available < needed && *named == dir);
    assert!(
        refused.to_string().contains("region in")
            && refused.to_string().contains("MiB are available")
    );
    assert_eq!(listing(tmp.path()), Vec::<String>::new());
}

#[test]
fn nothing_is_created_over_something() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    drop(create(&dir));
    let again = Region::create(&dir, &small(), Coherence::Coherent);
    assert!(matches!(again, Err(RegionError::Exists { .. })));
    assert!(matches!(Region::probe(&dir), Probe::Stale { geometry, .. } if geometry == small()));
    let file = tmp.path().join("file");
    fs::write(&file, "mine").expect("room");
    let over_file = Region::create(&file, &small(), Coherence::Coherent);
    assert!(matches!(over_file, Err(RegionError::Exists { .. })));
    let below_file = Region::create(&file.join("b"), &small(), Coherence::Coherent);
    assert!(below_file.is_err());
    assert_eq!(fs::read(&file).expect("still there"), b"mine");
}

#[test]
fn a_missing_parent_is_made_and_is_private() {
    let tmp = scratch();
    let parent = tmp.path().join("a/b");
    drop(create(&parent.join("region")));
    let mode = fs::metadata(&parent)
        .expect("it was made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_parent_that_is_tidied_away_meanwhile_is_made_again() {
    let tmp = scratch();
    let parent = tmp.path().join("root");
    std::thread::scope(|scope| {
        let (over, ended) = std::sync::mpsc::channel::<()>();
        let parent = &parent;
        let tidy = move || {
            let pause = std::time::Duration::from_micros(200);
            while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // Fails whenever a region is in it.
                drop(fs::remove_dir(parent));
            }
        };
        scope.spawn(tidy);
        for round in 0..50 {
            let dir = parent.join(format!("region-{round}"));
            drop(create(&dir));
            Region::remove(&dir).expect("it is free");
        }
        drop(over);
    });
}

#[test]
fn a_region_in_use_is_kept_and_its_holders_are_named() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let region = create(&dir);
    let claim = region.claim(2).expect("free");
    let pid = std::process::id();
    assert_eq!(
        Region::probe(&dir),
        Probe::InUse {
            rows: vec![(2, pid)]
        }
    );
    let other = open(&dir).expect("complete");
    assert_eq!(
        (other.owner_alive(2).ok(), other.owner_alive(1).ok()),
        (Some(true), Some(false))
    );
    for refused in [
        other.claim(2).expect_err("held"),
        Region::remove(&dir).expect_err("held"),
    ] {
        assert!(
            matches!(&refused, RegionError::InUse { rows, .. } if *rows == [(2, pid)]),
            "{refused}"
        );
        let text = refused.to_string();
        assert!(
            text.contains(&format!("row 2 (pid {pid})")) && text.contains("--region"),
            "{text}"
        );
    }
    assert_eq!(listing(&dir).len(), 6);
    drop(claim);
    assert_eq!(other.owner_alive(2).ok(), Some(false));
    assert_eq!(other.claim(2).expect("given up").incarnation(), 2);
    Region::remove(&dir).expect("stale");
    assert_eq!(Region::probe(&dir), Probe::Absent);
    assert!(
        matches!(region.claim(1), Err(RegionError::NotFound { .. })),
        "it was removed"
    );
}

#[test]
fn a_payload_file_holds_its_row_until_its_last_span_is_gone() {
    let tmp = scratch();
    let region = create(tmp.path());
    let claim = region.claim(1).expect("free");
    let payload_file = region.payload_file(&claim);
    let span = payload_file
        .allocate(1)
        .and_then(|mut extent| extent.reserve(64))
        .expect("free")
        .commit();
    drop((claim, payload_file));
    assert!(matches!(region.claim(1), Err(RegionError::InUse { .. })));
    drop(span);
    assert_eq!(region.claim(1).expect("free").incarnation(), 2);
}

#[test]
fn a_payload_file_in_a_directory_needs_a_lock_of_that_region() {
    let (tmp, tmp2) = (scratch(), scratch());
    let (region, stranger) = (create(tmp.path()), create(tmp2.path()));
    let foreign = stranger.claim(1).expect("free");
    for claim in [embar_fabric::Claim::unlocked(1, 1), foreign] {
        let payload_file =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.payload_file(&claim)));
        assert!(payload_file.is_err());
    }
}

#[test]
fn damage_is_told_from_another_version_and_from_absence() {
    type Damage = fn(&Path) -> std::io::Result<()>;
    let damages: [(&str, Damage); 6] = [
        ("creation was interrupted", |dir| {
            fs::write(dir.join("control"), vec![0; 1 << 20])
        }),
        ("cut short", |dir| {
            fs::write(dir.join("control"), b"EMBARREG")
        }),
        ("instead of", |dir| {
            fs::File::options()
                .write(true)
                .open(dir.join("payload-2"))?
                .set_len(4096)
        }),
        ("payload-1 is missing", |dir| {
            fs::remove_file(dir.join("payload-1"))
        }),
        ("checksum", |dir| {
            let mut control = fs::read(dir.join("control"))?;
            control[40] ^= 1;
            control[2048 + 40] ^= 1;
            fs::write(dir.join("control"), control)
        }),
        ("instead of", |dir| {
            let control = fs::read(dir.join("control"))?;
            fs::write(dir.join("control"), &control[..control.len() - 4096])
        }),
    ];
    for (expected, damage) in damages {
        let tmp = scratch();
        let dir = tmp.path().join("region");
        // A process had a row, so there may be data.
        drop(create(&dir).claim(1).expect("free"));
        damage(&dir).expect("damaged");
        let refused = open(&dir).expect_err("damaged");
        assert!(matches!(refused, RegionError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains(expected), "{refused}");
        assert!(matches!(Region::probe(&dir), Probe::Damaged(what) if what.contains(expected)));
        Region::remove(&dir).expect("what is damaged can be removed");
        assert!(!dir.exists());
    }
    assert!(matches!(
        open(Path::new("/nonexistent/region")),
        Err(RegionError::NotFound { .. })
    ));
}

#[test]
fn an_interrupted_creation_is_told_from_damage() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let cut: [fn(&Path) -> std::io::Result<()>; 3] = [
        |dir| fs::write(dir.join("control"), ""),
        |dir| fs::write(dir.join("control"), [0; 100]),
        |dir| {
            fs::write(dir.join("control"), vec![0; 1 << 20])?;
            fs::remove_file(dir.join("payload-2"))
        },
    ];
    for cut in cut {
        drop(create(&dir));
        cut(&dir).expect("ours");
        assert_eq!(Region::probe(&dir), Probe::Unfinished);
        assert!(matches!(open(&dir), Err(RegionError::Damaged { .. })));
        Region::discard(&dir).expect("it is free");
        assert_eq!(Region::probe(&dir), Probe::Absent);
        assert!(dir.exists(), "for a process with a lock on it");
    }
    // What was claimed, or what is not ours, is not made anew by itself.
    drop(create(&dir).claim(2).expect("free"));
    fs::write(dir.join("control"), "").expect("ours");
    assert!(matches!(Region::probe(&dir), Probe::Damaged(_)));
    Region::discard(&dir).expect("it is free");
    fs::write(dir.join("control"), "a user's own").expect("room");
    assert!(matches!(Region::probe(&dir), Probe::Damaged(_)));
    fs::write(dir.join("control"), "").expect("room");
    fs::write(dir.join("precious"), "").expect("room");
    assert!(matches!(Region::probe(&dir), Probe::Damaged(_)));
}

#[test]
fn a_creation_tells_how_far_it_is() {
    let tmp = scratch();
    let reports = std::cell::RefCell::new(Vec::new());
    let report = |done| reports.borrow_mut().push(done);
    let dir = tmp.path().join("region");
    Region::create_with_progress(&dir, &small(), Coherence::Coherent, &report).expect("room");
    let reports = reports.into_inner();
    assert!(reports.is_sorted() && reports.len() >= 3, "{reports:?}");
    assert_eq!(reports.last(), Some(&small().total_bytes()));
}

#[test]
fn another_version_is_refused_and_can_be_removed() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    drop(create(&dir));
    let mut control = fs::read(dir.join("control")).expect("there");
    control[8] = 99;
    control[2048..2056].fill(0);
    fs::write(dir.join("control"), control).expect("ours");
    fs::write(dir.join("takeover"), "").expect("as older versions have it");
    fs::write(dir.join("bell-1-0"), "").expect("as older versions have it");
    for (now, before) in [("payload-1", "blog-1"), ("payload-2", "blog-2.new")] {
        fs::rename(dir.join(now), dir.join(before)).expect("as older versions have it");
    }
    let refused = open(&dir).expect_err("another version");
    assert!(
        matches!(refused, RegionError::OtherVersion { found: 99, .. }),
        "{refused}"
    );
    assert!(matches!(
        Region::probe(&dir),
        Probe::OtherVersion { found: 99, .. }
    ));
    Region::remove(&dir).expect("it is free");
}

#[test]
fn a_directory_with_other_files_is_never_removed() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    drop(create(&dir));
    fs::write(dir.join("precious"), "mine").expect("room");
    let refused = Region::remove(&dir).expect_err("not all of it is ours");
    assert!(refused.to_string().contains("precious"), "{refused}");
    assert_eq!(listing(&dir).len(), 7, "nothing of it is gone");
}

#[test]
fn prefault_reports_every_byte() {
    let tmp = scratch();
    let region = create(tmp.path());
    for (row, payload_file) in [(0, 0), (1, small().payload_bytes)] {
        let expected = region.layout().control_bytes() + payload_file;
        let seen = Mutex::new(Vec::new());
        let report = |done, total| seen.lock().expect("not poisoned").push((done, total));
        region.prefault(row, 4, &report).expect("room");
        let mut seen = seen.into_inner().expect("not poisoned");
        seen.sort_unstable();
        assert_eq!(seen.last(), Some(&(expected, expected)));
    }
}

/// Two data rows, the second of them a spare.
fn with_a_spare() -> Geometry {
    Geometry {
        spares: 1,
        ..small()
    }
}

#[test]
fn a_spare_gets_its_payload_file_when_it_is_first_claimed() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let region = Region::create(&dir, &with_a_spare(), Coherence::Coherent).expect("room");
    let other = open(&dir).expect("complete without it");
    assert!(!listing(&dir).contains(&"payload-2".to_owned()));
    assert!(!region.owner_alive(2).expect("ours"));
    assert!(
        other.foreign(2, 0, 64).is_none() && other.foreign(1, 0, 64).is_some(),
        "nothing can be read where there is no file"
    );
    // A process died while making it.
    fs::write(dir.join("payload-2.new"), b"half").expect("ours");
    let claim = region.claim(2).expect("free");
    assert_eq!((claim.incarnation(), region.incarnation(2)), (1, 1));
    let file = fs::metadata(dir.join("payload-2")).expect("there");
    assert_eq!(file.len(), with_a_spare().payload_bytes);
    assert!(!listing(&dir).contains(&"payload-2.new".to_owned()));
    let mut extent = region
        .payload_file(&claim)
        .allocate(64 << 10)
        .expect("all of it is free");
    let mut written = extent.reserve(64).expect("room");
    written.write(0, &[7; 64]);
    let at = written.at();
    let span = written.commit();
    // A process that opened the region before finds it now.
    let foreign = other.foreign(2, at, 64).expect("there");
    let mut bytes = [0; 64];
    foreign.copy_to(0, &mut bytes);
    assert_eq!(bytes, [7; 64]);
    assert!(other.owner_alive(2).expect("ours"));
    // It keeps what it has when it is claimed again.
    drop((span, extent, claim));
    let again = open(&dir).expect("complete").claim(2).expect("free");
    assert_eq!(again.incarnation(), 2);
    drop(again);
    drop((foreign, other, region));
    assert!(matches!(Region::probe(&dir), Probe::Stale { .. }));
    Region::remove(&dir).expect("it is free");
}

#[test]
fn a_payload_file_that_cannot_be_mapped_has_an_error_of_its_own() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let region = Region::create(&dir, &with_a_spare(), Coherence::Coherent).expect("room");
    let claim = open(&dir).expect("whole").claim(2).expect("free");
    let (file, away) = (dir.join("payload-2"), tmp.path().join("away"));
    fs::rename(&file, &away).expect("ours");
    fs::create_dir(&file).expect("ours");
    let refused = region.reach(2).expect_err("the kernel does not open it");
    assert!(matches!(refused, RegionError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains("payload-2"), "{refused}");
    assert!(region.foreign(2, 0, 64).is_none());
    fs::remove_dir(&file).expect("empty");
    fs::rename(&away, &file).expect("ours");
    region.reach(2).expect("it goes well another time");
    assert!(region.foreign(2, 0, 64).is_some());
    // What is mapped stays so, and what has no file has none to map.
    fs::remove_file(&file).expect("ours");
    for row in 0..4 {
        region.reach(row).expect("nothing to do");
    }
    drop(claim);
}

#[test]
fn a_spare_that_finds_no_space_stays_free() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let huge = Geometry {
        brokers: 2,
        spares: 1,
        payload_bytes: 1 << 44,
        ..small()
    };
    let refused = Region::create(&dir, &huge, Coherence::Coherent);
    assert!(refused.is_err(), "a spare without data brokers is refused");
    let region = Region::create(&dir, &with_a_spare(), Coherence::Coherent).expect("room");
    // No name is left for a file that is to be made.
    fs::create_dir(dir.join("payload-2.new")).expect("ours");
    assert!(matches!(region.claim(2), Err(RegionError::Io { .. })));
    assert_eq!(region.incarnation(2), 0);
    fs::remove_dir(dir.join("payload-2.new")).expect("ours");
    region.claim(2).expect("free as before");
}

#[test]
fn a_claim_gives_back_the_memory_of_unfinished_payload_files() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let region = Region::create(&dir, &with_a_spare(), Coherence::Coherent).expect("room");
    let half = || fs::write(dir.join("payload-2.new"), b"half").expect("ours");
    let is_there = || listing(&dir).contains(&"payload-2.new".to_owned());
    half();
    let other = region.claim(1).expect("free");
    assert!(!is_there(), "its maker is dead");
    // The owner of the row may be making it.
    let making = region.claim(2).expect("free");
    half();
    drop(other);
    let other = region.claim(1).expect("free");
    assert!(is_there());
    drop((other, making));
    region.claim(0).expect("free");
    assert!(!is_there());
    region.claim(2).expect("its lock is free");
}

#[test]
fn an_unfinished_payload_file_is_removed_with_its_region() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    drop(Region::create(&dir, &with_a_spare(), Coherence::Coherent).expect("room"));
    fs::write(dir.join("payload-2.new"), b"half").expect("ours");
    Region::remove(&dir).expect("it is free");
    assert!(!dir.exists());
}

#[test]
fn an_owner_whose_number_is_lost_lives_and_its_successor_is_newer() {
    let tmp = scratch();
    let dir = tmp.path().join("region");
    let region = create(&dir);
    let owners = region.layout().tables()[TableId::Owners as usize];
    let overwrite = |line: u64, byte: u8| {
        let control = fs::File::options().write(true).open(dir.join("control"));
        let at = owners.offset + owners.entry_bytes + 64 * line;
        let written = control.expect("there").write_all_at(&[byte; 64], at);
        written.expect("it is that long");
    };
    let claim = |region: &Region<Mapped>| region.claim(1).expect("free");
    (0..3).for_each(|_| drop(claim(&region)));
    let claimed = claim(&region);
    assert_eq!(claimed.incarnation(), 4);
    region.broker_row_writer(&claimed).store(&BrokerRow {
        incarnation: 4,
        ..BrokerRow::default()
    });
    // All that says the number is lost, or half of it as if it had never been written.
    for lines in [&[(0, 0xC3), (1, 0xC3)][..], &[(0, 0)], &[(1, 0xC3)]] {
        lines
            .iter()
            .for_each(|(line, byte)| overwrite(*line, *byte));
        let other = open(&dir).expect("a region");
        assert!(other.owner_alive(1).expect("asked"));
        assert_eq!(other.incarnation(1), 4);
    }
    overwrite(0, 0xC3);
    drop(claimed);
    assert!(!region.owner_alive(1).expect("asked"));
    assert_eq!(claim(&region).incarnation(), 5);
}

#[test]
fn a_candidate_says_how_far_chains_are_on_a_disk_and_a_restarted_one_goes_on() {
    let geometry = Geometry {
        brokers: 4,
        standbys: 1,
        disks: 2,
        ..small()
    };
    let dir = scratch();
    let region = Region::create(dir.path(), &geometry, Coherence::Coherent)
        .expect("room for a small region");
    let claim = region.claim(0).expect("free");
    assert_eq!(geometry.frontiers(), 2);
    assert_eq!(
        (geometry.frontier_of(0), geometry.frontier_of(2)),
        (None, Some(1))
    );
    assert!(region.disk_row(0, 1) == Seen::Nothing && region.frontier(0, 1, 0, 1) == Seen::Nothing);
    for next in 1..4 {
        // As a process that was started again: it goes on behind the versions that are there.
        let mut row = region.disk_row_writer(&claim, 1);
        let mut table = region.frontier_table(&claim, 1);
        row.store(&DiskRow {
            commits: next as u32,
            ..DiskRow::default()
        });
        table.store(
            0,
            1,
            &Frontier {
                next,
                chain: 7,
                epoch: 3,
                ..Frontier::default()
            },
        );
        let said = region.frontier(0, 1, 0, 1).found().expect("stored");
        assert_eq!((said.next, said.chain, said.epoch), (next, 7, 3));
        assert_eq!(
            region.disk_row(0, 1).found().map(|row| row.commits),
            Some(next as u32)
        );
    }
    assert!(region.frontier(0, 0, 0, 1) == Seen::Nothing, "another disk");
    assert!(
        region.frontier(1, 1, 0, 1) == Seen::Nothing,
        "another candidate"
    );
    assert!(
        region.frontier(0, 1, 0, 0) == Seen::Nothing,
        "another broker's"
    );
}
