//! Descriptors that strangers hand over: what is mapped of them, and what is refused.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use embar_memory::{Memory, Sealed, SealedError, SealedView};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

const BYTES: u64 = 8192;

/// What an owner promises.
const ALL: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

fn refused(fd: OwnedFd) -> SealedError {
    SealedView::map(fd, BYTES).expect_err("no such thing is mapped")
}

/// A memfd with all of its bytes, and these seals.
fn memfd(seals: SealFlags) -> OwnedFd {
    let fd = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(fd.try_clone().unwrap());
    file.write_all(&[9; BYTES as usize]).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_reader_sees_what_the_owner_stores() {
    let owner = Sealed::new(BYTES).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&owner.handle()).try_clone_to_owned();
    let view = SealedView::map(fd.unwrap(), BYTES).unwrap();
    view.populate().unwrap();
    assert_eq!(view.file(), owner.file());
    owner.store(64, 7);
    owner.write(128, &[3; 200]);
    let mut into = [0; 199];
    view.copy_to(129, &mut into);
    assert_eq!((view.load(64), into), (7, [3; 199]));
    drop(owner);
    assert_eq!(view.load(64), 7, "it lasts as long as it is mapped");
}

#[test]
#[should_panic(expected = "only its owner writes")]
fn a_reader_writes_nothing() {
    let view = SealedView::map(memfd(ALL), BYTES).unwrap();
    view.store(0, 1);
}

#[test]
fn memory_without_each_of_the_seals_is_refused() {
    SealedView::map(memfd(ALL), BYTES).unwrap();
    for seal in ALL.iter() {
        let error = refused(memfd(ALL.difference(seal)));
        assert!(
            matches!(error, SealedError::NotSealed { has } if has & seal.bits() == 0),
            "{error}"
        );
    }
    let never = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&never, BYTES).unwrap();
    assert!(matches!(refused(never), SealedError::NotSealed { .. }));
}

#[test]
fn memory_of_another_size_is_refused() {
    for said in [4096, BYTES + 4096, 1 << 62] {
        let error = SealedView::map(memfd(ALL), said).unwrap_err();
        assert!(
            matches!(error, SealedError::Size { said: it, is: BYTES } if it == said),
            "{error}"
        );
    }
    for said in [0, 1, BYTES + 1] {
        let error = SealedView::map(memfd(ALL), said).unwrap_err();
        assert!(matches!(error, SealedError::Uneven { .. }), "{error}");
    }
}

/// Reading pages that are not there would take memory, and from this process.
#[test]
fn memory_with_holes_is_refused() {
    let fd = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, BYTES).unwrap();
    rustix::io::pwrite(&fd, b"x", 0).unwrap();
    fcntl_add_seals(&fd, ALL).unwrap();
    let error = refused(fd);
    assert!(
        matches!(error, SealedError::Holes { present } if present < BYTES),
        "{error}"
    );
}

#[test]
fn what_is_no_memory_of_small_pages_is_refused() {
    let directory = std::env::temp_dir().join(format!("embar-sealed-{}", std::process::id()));
    let file = File::create(&directory).unwrap();
    std::fs::remove_file(&directory).unwrap();
    file.set_len(BYTES).unwrap();
    // The folder for temporary files may be memory, too; what is in it has no seals.
    let error = refused(file.into());
    assert!(
        matches!(
            error,
            SealedError::NotTmpfs { .. } | SealedError::NotSealed { .. }
        ),
        "{error}"
    );
    for path in ["/proc/self/stat", "/dev/zero", "/"] {
        refused(File::open(path).unwrap().into());
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    assert!(matches!(
        refused(reader.into()),
        SealedError::NotSealed { .. }
    ));
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    // A kernel without such pages makes none.
    if let Ok(huge) = memfd_create(c"test", huge) {
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&huge, all).unwrap();
        assert!(matches!(refused(huge), SealedError::NotTmpfs { .. }));
    }
}

#[test]
fn blocks_behind_the_end_do_not_stand_for_pages_that_are_missing() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let holes = memfd_create(c"test", flags).unwrap();
    ftruncate(&holes, BYTES).unwrap();
    fallocate(&holes, FallocateFlags::KEEP_SIZE, BYTES, BYTES).unwrap();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&holes, all).unwrap();
    let error = refused(holes);
    assert!(
        matches!(error, SealedError::Holes { present: 0 }),
        "{error}"
    );
}

/// The descriptor that an owner hands over can be opened anew, and lets nobody write all the same.
#[test]
fn a_descriptor_that_is_opened_anew_writes_nothing() {
    let owner = Sealed::new(BYTES).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&owner.handle())
        .try_clone_to_owned()
        .unwrap();
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut anew = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    anew.write_all(b"x").unwrap_err();
    anew.read_exact(&mut [0; 8]).unwrap();
    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    let error = refused(write_only.into());
    assert!(matches!(error, SealedError::Io(_)), "{error}");
}

/// Whatever the owner stores meanwhile, a copy is made of bytes that were there.
#[test]
fn a_copy_beside_a_writer_has_nothing_but_what_was_stored() {
    let owner = Sealed::new(BYTES).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&owner.handle()).try_clone_to_owned();
    let view = SealedView::map(fd.unwrap(), BYTES).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000_u32 {
                let value = if round % 2 == 0 { 0xAA } else { 0x55 };
                owner.write(0, &[value; BYTES as usize]);
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut into = vec![0; 5000];
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            view.copy_to(3, &mut into);
            assert!(into.iter().all(|it| matches!(it, 0 | 0xAA | 0x55)));
        }
    });
}

#[test]
fn what_is_seen_of_bytes_that_change_is_what_was_copied() {
    let owner = Sealed::new(16 * BYTES).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&owner.handle()).try_clone_to_owned();
    let view = SealedView::map(fd.unwrap(), 16 * BYTES).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while !done.load(Ordering::Relaxed) {
                for at in (0..16 * BYTES).step_by(8) {
                    owner.store(at, value);
                    value += 1;
                }
            }
        });
        // Also when this panics: the other thread would go on for ever.
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        for round in 0..200 {
            let (at, len) = (round % 70, 100_000 + round as usize);
            let (mut into, mut seen) = (vec![0; len], Vec::new());
            view.read_seen(at, &mut into, &mut |part| seen.extend_from_slice(part));
            assert!(into == seen, "round {round}");
        }
    });
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}
