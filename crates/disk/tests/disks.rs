//! Directories as disks of a log: which are taken, in which order, and what is said of those that are not.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use embar_disk::format::Identity;
use embar_disk::{Disk, DiskError, OpenOptions, RegionName, open_disks};
use tempfile::TempDir;

/// What a head does whose directories are all on one device, as here.
const HEAD: OpenOptions = OpenOptions {
    may_create: true,
    same_device_is_fine: true,
};
const MEMBER: OpenOptions = OpenOptions {
    may_create: false,
    same_device_is_fine: true,
};

fn region(nonce: u32) -> RegionName {
    let path = format!("/dev/shm/region-{nonce}").into();
    RegionName { nonce, path }
}

/// Opens for the region that most tests are about; what is made for that stays.
fn open(paths: &[&Path], options: OpenOptions) -> Result<Vec<Disk>, DiskError> {
    let paths: Vec<PathBuf> = paths.iter().map(|it| it.to_path_buf()).collect();
    let mut disks = open_disks(&paths, &region(1), options)?;
    disks.iter_mut().for_each(Disk::keep);
    Ok(disks)
}

fn refused(paths: &[&Path], options: OpenOptions) -> String {
    open(paths, options).expect_err("refused").to_string()
}

/// Directories `a` to `c` that are not there yet.
fn places() -> (TempDir, [PathBuf; 3]) {
    let dir = tempfile::tempdir().expect("made");
    let places = ["a", "b", "c"].map(|name| dir.path().join(name));
    (dir, places)
}

fn places_of(disks: &[Disk]) -> Vec<(u16, &Path)> {
    let place = |it| (Disk::number(it), it.directory().path());
    disks.iter().map(place).collect()
}

#[test]
fn a_log_begins_in_directories_that_are_made_and_their_order_does_not_matter_later() {
    let (_dir, [a, b, c]) = places();
    let disks = open(&[&a, &b], HEAD).expect("begun");
    assert_eq!(places_of(&disks), [(0, a.as_path()), (1, b.as_path())]);
    let identities: Vec<Identity> = disks.iter().map(|it| *it.identity()).collect();
    assert_eq!(identities[0].log, identities[1].log);
    assert_ne!(identities[0].disk, identities[1].disk);
    drop(disks);
    let again = open(&[&b, &a], MEMBER).expect("there");
    let found: Vec<Identity> = again.iter().map(|it| *it.identity()).collect();
    assert_eq!(found, identities);
    // One that is new joins the log behind them.
    let more = open(&[&c, &b, &a], HEAD).expect("one more");
    assert_eq!(places_of(&more)[2], (2, c.as_path()));
    assert_eq!(more[2].identity().log, identities[0].log);
}

#[test]
fn no_directories_are_no_disks() {
    assert!(open(&[], HEAD).expect("none").is_empty());
}

#[test]
fn only_the_head_makes_directories_and_begins_logs() {
    let (_dir, [a, b, _]) = places();
    let absent = refused(&[&a], MEMBER);
    assert!(absent.contains("start the head first"), "{absent}");
    assert!(!a.exists());
    fs::create_dir(&a).expect("made");
    let empty = refused(&[&a], MEMBER);
    assert!(empty.contains("start the head with it first"), "{empty}");
    assert_eq!(fs::read_dir(&a).expect("there").count(), 0, "untouched");
    let deep = refused(&[&b.join("c")], HEAD);
    assert!(deep.contains("mount its disk, first"), "{deep}");
    assert!(!b.exists(), "a disk that is not mounted is not replaced");
}

#[test]
fn what_is_no_empty_directory_is_left_as_it_is() {
    let (_dir, [a, b, c]) = places();
    fs::write(&a, "text").expect("written");
    let file = refused(&[&a], HEAD);
    assert!(file.contains("is no directory"), "{file}");
    fs::create_dir(&b).expect("made");
    fs::write(b.join("photo.jpg"), "mine").expect("written");
    let full = refused(&[&b], HEAD);
    let says = format!(
        "{} is not empty and no directory of Embarcadero",
        b.display()
    );
    assert!(full.starts_with(&says), "{full}");
    assert_eq!(fs::read_dir(&b).expect("there").count(), 1, "untouched");
    // What file systems and interrupted starts leave is nothing.
    fs::create_dir_all(c.join("lost+found")).expect("made");
    fs::write(c.join("lock"), "00000009 /torn").expect("written");
    fs::write(c.join("identity.new"), "torn").expect("written");
    assert_eq!(open(&[&c], HEAD).expect("empty").len(), 1);
}

#[test]
fn an_identity_that_cannot_be_read_is_not_replaced() {
    let (_dir, [a, _, _]) = places();
    drop(open(&[&a], HEAD).expect("begun"));
    let file = a.join("identity");
    let whole = fs::read(&file).expect("there");
    fs::write(&file, vec![0; whole.len()]).expect("written");
    let damaged = refused(&[&a], HEAD);
    assert!(damaged.contains("both copies are damaged"), "{damaged}");
    let mut newer = whole.clone();
    for copy in newer.chunks_mut(whole.len() / 2) {
        copy[8] = 99;
    }
    fs::write(&file, &newer).expect("written");
    let other = refused(&[&a], HEAD);
    assert!(other.contains("version 99"), "{other}");
    fs::write(&file, &whole).expect("written");
    assert_eq!(open(&[&a], HEAD).expect("whole again").len(), 1);
}

#[test]
fn directories_that_do_not_belong_together_are_refused() {
    let (_dir, [a, b, c]) = places();
    drop(open(&[&a], HEAD).expect("begun"));
    drop(open(&[&b], HEAD).expect("begun"));
    let other_log = refused(&[&a, &b], HEAD);
    assert!(other_log.contains("belongs to another log"), "{other_log}");
    let twice = refused(&[&a, &a.join("../a")], HEAD);
    assert!(twice.contains("are the same directory"), "{twice}");
    fs::create_dir(&c).expect("made");
    fs::copy(a.join("identity"), c.join("identity")).expect("copied");
    let copy = refused(&[&a, &c], HEAD);
    assert!(copy.contains("both say that they are disk 0"), "{copy}");
    let many: Vec<PathBuf> = (0..9).map(|it| a.join(it.to_string())).collect();
    let many = open_disks(&many, &region(1), HEAD).expect_err("refused");
    assert!(many.to_string().contains("at most 8"), "{many}");
}

#[test]
fn a_disk_that_is_missing_is_named_and_not_replaced() {
    let (_dir, [a, b, c]) = places();
    drop(open(&[&a, &b], HEAD).expect("begun"));
    for paths in [vec![b.as_path()], vec![&b, &c]] {
        let missing = refused(&paths, HEAD);
        assert!(
            missing.starts_with("disk 0 of the log is missing"),
            "{missing}"
        );
    }
    assert!(!c.exists(), "it was made for a start that is refused");
}

#[test]
fn disks_that_would_fail_together_are_refused() {
    let (_dir, [a, b, _]) = places();
    let apart = OpenOptions {
        same_device_is_fine: false,
        ..HEAD
    };
    let together = refused(&[&a, &b], apart);
    assert!(together.contains("on one device"), "{together}");
    assert!(!a.exists() && !b.exists(), "made for nothing");
    drop(open(&[&a], apart).expect("one is alone"));
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("made");
    let both = open(&[&a, elsewhere.path()], apart).expect("on two devices");
    assert_eq!(both.len(), 2);
}

#[test]
fn another_region_is_refused_by_name_for_as_long_as_a_disk_is_open() {
    let (_dir, [a, b, _]) = places();
    let head = open(&[&a, &b], HEAD).expect("begun");
    let member = open(&[&a, &b], MEMBER).expect("of the same region");
    drop(head);
    let other = || open_disks(std::slice::from_ref(&b), &region(2), MEMBER);
    let refused = other().expect_err("in use").to_string();
    let says = format!(
        "{} is in use by the cluster of region /dev/shm/region-1",
        b.display()
    );
    assert!(refused.starts_with(&says), "{refused}");
    drop(member);
    // It is free; but it is the second of two.
    let free = other().expect_err("not alone").to_string();
    assert!(free.contains("disk 0 of the log is missing"), "{free}");
}

#[test]
fn a_start_that_fails_later_takes_back_what_it_made() {
    let (_dir, [a, b, c]) = places();
    fs::create_dir(&b).expect("made");
    let all = [&a, &b, &c].map(Clone::clone);
    let disks = open_disks(&all, &region(1), HEAD).expect("begun");
    assert!(b.join("identity").exists());
    fs::write(c.join("000000000000.segment"), "begun").expect("written");
    drop(disks);
    assert!(!a.exists(), "made for nothing");
    assert!(b.exists() && !b.join("identity").exists(), "as before");
    assert!(c.join("identity").exists(), "its segments need it");
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    let (_dir, [a, _, _]) = places();
    fs::create_dir(&a).expect("made");
    fs::set_permissions(&a, Permissions::from_mode(0o500)).expect("ours");
    // Root may write all the same.
    match open(&[&a], HEAD) {
        Ok(_) => assert!(rustix::process::geteuid().is_root()),
        Err(error) => assert!(error.to_string().contains("cannot be written"), "{error}"),
    }
}

#[test]
fn a_lock_that_leads_elsewhere_is_not_followed() {
    let (dir, [a, _, _]) = places();
    drop(open(&[&a], HEAD).expect("begun"));
    let victim = dir.path().join("victim");
    fs::write(&victim, "mine").expect("written");
    fs::remove_file(a.join("lock")).expect("there");
    symlink(&victim, a.join("lock")).expect("made");
    let link = refused(&[&a], HEAD);
    assert!(
        link.starts_with(&format!("cannot use {}", a.display())),
        "{link}"
    );
    assert_eq!(fs::read(&victim).expect("there"), b"mine");
}
