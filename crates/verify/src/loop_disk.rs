//! A file system that loses its power: in a file, on a loop device, mounted for as long as this lives.
//!
//! The file system itself makes the cut. It stops at once, and what its journal has not written yet is gone, as are all pages that
//! no one synced. What was synced is in the file, and the next mount replays the journal.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use embar_supervise::leftovers;
use rustix::process::geteuid;
use serde::Serialize;
use tempfile::TempDir;

/// All names of directories begin so; the id of the process that made one follows, and a part of its own.
const PREFIX: &str = "embar-disk-";
/// In such a directory: the file with the file system, and where that is mounted.
const IMAGE: &str = "image";
const MOUNTED: &str = "mounted";
/// How long processes that were killed may take to let go of their files.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// Between two tries meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// As most machines have it.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Makes one in a file. Its own journal and tables are small: they are all that takes room at first.
    fn make(self, image: &Path) -> Result<()> {
        let image = image.display().to_string();
        match self {
            Self::Ext4 => Tool::MKFS_EXT4.run(&[
                "-q",
                "-F",
                "-m",
                "0",
                "-J",
                "size=16",
                "-T",
                "largefile4",
                &image,
            ]),
            Self::Xfs => Tool::MKFS_XFS.run(&["-q", "-f", "-K", "-l", "size=64m", &image]),
        }
    }

    /// Least bytes of one that can be made.
    fn bytes_min(self) -> u64 {
        match self {
            Self::Ext4 => 64 << 20,
            Self::Xfs => 320 << 20,
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// A program, and the package that has it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

impl Tool {
    const MKFS_EXT4: Self = Self::new("mkfs.ext4", "e2fsprogs");
    const MKFS_XFS: Self = Self::new("mkfs.xfs", "xfsprogs");
    const XFS_IO: Self = Self::new("xfs_io", "xfsprogs");
    const MOUNT: Self = Self::new("mount", "mount");
    const UMOUNT: Self = Self::new("umount", "mount");

    const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        let Self { program, package } = self;
        let mut command = Command::new(program);
        let said = match command.args(args).stdin(Stdio::null()).output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!(
                    "{program} is missing, and a power cut needs it: install the package {package}"
                )
            }
            said => said.with_context(|| format!("cannot start {program}"))?,
        };
        let why = String::from_utf8_lossy(&said.stderr);
        ensure!(
            said.status.success(),
            "{program} failed ({}): {}",
            said.status,
            why.trim()
        );
        Ok(())
    }
}

/// A file system of its own. Dropping it unmounts it and removes it.
#[derive(Debug)]
pub struct LoopDisk {
    /// `None` once it was removed.
    dir: Option<TempDir>,
    mounted: PathBuf,
    is_cut: bool,
}

impl LoopDisk {
    /// Makes and mounts an empty one in the directory for temporary files. It has `bytes`, which take room only where something is
    /// written.
    pub fn make(file_system: FileSystem, bytes: u64) -> Result<Self> {
        check_rights(geteuid().is_root())?;
        let dir = leftovers::make(&std::env::temp_dir(), PREFIX, std::process::id())
            .context("cannot make a directory for a file system")?;
        let image = dir.path().join(IMAGE);
        let file = File::create(&image).context("cannot make a file for a file system")?;
        file.set_len(bytes.max(file_system.bytes_min()))
            .context("cannot make a file for a file system of this size")?;
        file_system.make(&image)?;
        let mounted = dir.path().join(MOUNTED);
        fs::create_dir(&mounted).context("cannot make a directory to mount a file system in")?;
        let disk = Self {
            dir: Some(dir),
            mounted,
            is_cut: false,
        };
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn mounted(&self) -> &Path {
        &self.mounted
    }

    /// Cuts its power: from now on all that is asked of it fails.
    pub fn cut(&mut self) -> Result<()> {
        if !self.is_cut {
            let mounted = self.mounted.display().to_string();
            Tool::XFS_IO.run(&["-x", "-c", "shutdown", &mounted])?;
            self.is_cut = true;
        }
        Ok(())
    }

    /// The power is back: it has what survived. No process may have a file of it open.
    pub fn power_on(&mut self) -> Result<()> {
        unmount(&self.mounted)?;
        self.mount()?;
        self.is_cut = false;
        Ok(())
    }

    fn mount(&self) -> Result<()> {
        let image = self.mounted.with_file_name(IMAGE).display().to_string();
        let mounted = self.mounted.display().to_string();
        // The loop device goes with the mount.
        Tool::MOUNT.run(&["-o", "loop,nosuid,nodev", &image, &mounted])
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if is_mount(&self.mounted)
            && let Err(why) = unmount(&self.mounted)
            && let Some(dir) = self.dir.take()
        {
            let dir = dir.keep();
            #[allow(
                clippy::print_stderr,
                reason = "it stays mounted, and nobody else hears of it"
            )]
            {
                eprintln!("{} stays: {why:#}", dir.display());
            }
        }
    }
}

fn check_rights(is_root: bool) -> Result<()> {
    ensure!(
        is_root,
        "only root may cut the power of a file system, as it is made on a loop device and mounted: run this as root"
    );
    Ok(())
}

fn unmount(mounted: &Path) -> Result<()> {
    let deadline = Instant::now() + BUSY_MAX;
    loop {
        match Tool::UMOUNT.run(&[&mounted.display().to_string()]) {
            Err(_) if Instant::now() < deadline => thread::sleep(TRY_EVERY),
            done => return done,
        }
    }
}

fn is_mount(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|it| it.dev()).ok();
    let parent = path.parent().and_then(device);
    // One that was cut says nothing about itself.
    path.exists() && device(path) != parent || fs::metadata(path).is_err_and(is_cut)
}

fn is_cut(error: std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Unmounts and removes the file systems of commands that were killed. Returns what it removed.
pub fn sweep() -> Vec<PathBuf> {
    let left = leftovers::find(&std::env::temp_dir(), PREFIX).into_iter();
    left.filter(|dir| {
        let mounted = dir.join(MOUNTED);
        if is_mount(&mounted) && unmount(&mounted).is_err() {
            return false;
        }
        fs::remove_dir_all(dir).is_ok()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicU64, Ordering};

    use embar_disk::format::ALIGN_BYTES;
    use embar_disk::{AlignedBuffer, Directory, Storage, StoredFile};
    use embar_meter::random::SplitMix64;

    use super::*;

    fn write(path: &Path, text: &str) -> File {
        let mut file = File::create(path).expect("made");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn is_mounted(mounted: &Path) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("there");
        mounts.contains(&mounted.display().to_string())
    }

    fn a_cut_keeps_what_was_synced_and_nothing_else(file_system: FileSystem) {
        let mut disk = LoopDisk::make(file_system, 0).expect("root, and the tools");
        let path = |name: &str| disk.mounted().join(name);
        let [kept, lost, late] = ["kept", "lost", "late"].map(path);
        write(&kept, "synced").sync_all().expect("synced");
        let dir = File::open(disk.mounted()).expect("there");
        dir.sync_all().expect("synced");
        drop(dir);
        drop(write(&lost, "not synced"));
        disk.cut().expect("cut");
        assert!(File::create(&late).is_err(), "nothing works any more");
        disk.cut().expect("it is cut already");
        disk.power_on().expect("its journal is replayed");
        assert_eq!(fs::read_to_string(&kept).expect("kept"), "synced");
        assert!(!lost.exists());
        write(&late, "again").sync_all().expect("it works again");
        let mounted = disk.mounted().to_owned();
        disk.cut().expect("cut");
        drop(disk);
        assert!(!is_mounted(&mounted), "also while the power is off");
        assert!(!mounted.exists());
    }

    #[test]
    fn a_cut_of_ext4_keeps_what_was_synced_and_nothing_else() {
        a_cut_keeps_what_was_synced_and_nothing_else(FileSystem::Ext4);
    }

    #[test]
    fn a_cut_of_xfs_keeps_what_was_synced_and_nothing_else() {
        a_cut_keeps_what_was_synced_and_nothing_else(FileSystem::Xfs);
    }

    /// Two threads write, as a journal does, while the power goes. What was called synced has to be there.
    fn what_is_called_synced_is_there(file_system: FileSystem) {
        const ROUNDS: u64 = 24;
        const BLOCKS: u64 = 4096;
        const NAME: &str = "blocks";
        let block = ALIGN_BYTES as u64;
        let mut disk = LoopDisk::make(file_system, 0).expect("root, and the tools");
        let mut random = SplitMix64::new(1);
        for round in 1..=ROUNDS {
            let directory = Directory::open(disk.mounted()).expect("it is there");
            let file = { directory.create(NAME, BLOCKS * block) }.expect("room");
            directory.sync_all().expect("synced");
            let synced = AtomicU64::new(0);
            let write_some = |first: u64| {
                let mut bytes = AlignedBuffer::new(ALIGN_BYTES);
                bytes[..8].copy_from_slice(&round.to_le_bytes());
                let mine = (first..BLOCKS).step_by(2);
                mine.take_while(|at| {
                    let written = file.write_synced(at * block, &bytes, ALIGN_BYTES);
                    synced.fetch_add(written.is_ok().into(), Ordering::Relaxed);
                    written.is_ok()
                })
                .last()
            };
            let before_the_cut = random.below(64);
            let ends = thread::scope(|scope| {
                let threads = [0, 1].map(|first| scope.spawn(move || write_some(first)));
                while synced.load(Ordering::Relaxed) < before_the_cut {
                    thread::yield_now();
                }
                disk.cut().expect("cut");
                threads.map(|thread| thread.join().expect("no panic"))
            });
            drop((file, directory));
            disk.power_on().expect("its log is replayed");
            let directory = Directory::open(disk.mounted()).expect("it is there");
            let file = directory.open(NAME).expect("its name was synced");
            for (first, end) in (0..).zip(ends) {
                let blocks = end.map(|end| (first..=end).step_by(2));
                for at in blocks.into_iter().flatten() {
                    let mut bytes = AlignedBuffer::new(ALIGN_BYTES);
                    file.read(at * block, &mut bytes).expect("read");
                    assert_eq!(
                        bytes[..8],
                        round.to_le_bytes(),
                        "block {at} of round {round}"
                    );
                }
            }
            drop(file);
            directory.remove(NAME).expect("removed");
        }
    }

    #[test]
    fn what_ext4_calls_synced_is_there() {
        what_is_called_synced_is_there(FileSystem::Ext4);
    }

    #[test]
    fn what_xfs_calls_synced_is_there() {
        what_is_called_synced_is_there(FileSystem::Xfs);
    }

    #[test]
    fn what_is_needed_is_said() {
        let error = check_rights(false).expect_err("refused").to_string();
        assert!(error.contains("run this as root"), "{error}");
        let missing = Tool::new("mkfs.no-such", "no-such-progs").run(&[]);
        let error = missing.expect_err("it is not there").to_string();
        assert!(
            error.contains("install the package no-such-progs"),
            "{error}"
        );
    }
}
