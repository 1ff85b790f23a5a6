//! Files in a directory of the machine.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::aligned::AlignedBuffer;
use crate::format::ALIGN_BYTES;
use crate::names::IDENTITY;
use crate::storage::{Storage, StoredFile};

/// A directory. Its files are written and read past the page cache where the file system can.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: OwnedFd,
    is_direct: bool,
    is_read_only: bool,
}

impl Directory {
    /// Opens a directory that is there.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            is_direct: takes_direct(&handle)?,
            is_read_only: false,
            path: path.to_owned(),
            handle,
        })
    }

    /// Opens a directory to read its files: nothing is written to it, and it makes and removes none.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_to_read(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            // Nobody knows before a file was read.
            is_direct: true,
            is_read_only: true,
            path: path.to_owned(),
            handle,
        })
    }

    /// Whether files are written and read past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_to_read_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |more| rustix::fs::openat(&self.handle, name, flags | more, Mode::empty());
        // A read by way of the page cache could fail a writer beside it, so it is the last resort.
        let direct = open(OFlags::DIRECT).and_then(|file| {
            let mut first = AlignedBuffer::new(ALIGN_BYTES);
            rustix::io::pread(&file, &mut first[..], 0)?;
            Ok(file)
        });
        match direct {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(open(OFlags::empty())?.into()),
            // A file whose beginning cannot be read is read as far as it can be.
            Err(Errno::IO) => Ok(open(OFlags::DIRECT)?.into()),
            opened => Ok(opened?.into()),
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.is_read_only {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(()),
        }
    }

    /// Whether what is written there is in memory alone, so that it does not survive a reboot.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_in_memory(&self) -> io::Result<bool> {
        const TMPFS: i64 = 0x0102_1994;
        const RAMFS: i64 = 0x8584_58f6;
        let kind = self.file_system()?;
        Ok(kind == TMPFS || kind == RAMFS)
    }

    /// Whether a synced write over zeros that were written before is known to be faster than one into space that is reserved: not on file
    /// systems that write everything to a new place.
    ///
    /// # Errors
    /// What the system says.
    pub fn gains_by_zeros(&self) -> io::Result<bool> {
        const EXT: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        let kind = self.file_system()?;
        Ok(self.is_direct && (kind == EXT || kind == XFS))
    }

    /// The number by which Linux tells file systems apart (`statfs(2)`).
    fn file_system(&self) -> io::Result<i64> {
        let kind = rustix::fs::fstatfs(&self.handle)?.f_type;
        #[allow(clippy::unnecessary_cast, reason = "its type differs between machines")]
        let kind = kind as i64;
        Ok(kind)
    }

    /// Whether somebody removed it: then what is written goes with the last process that has it open.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.handle)?.st_nlink == 0)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let direct = match self.is_direct {
            true => OFlags::DIRECT,
            false => OFlags::empty(),
        };
        let flags = flags | direct | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.handle, name, flags, mode)?.into())
    }
}

/// Whether a file system has files that are written and read past the page cache: tried with one that is removed at once, or,
/// where there is no room for it, by reading the file that every disk has.
fn takes_direct(directory: &OwnedFd) -> io::Result<bool> {
    const PROBE: &str = ".direct-io";
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, PROBE, flags, Mode::RUSR | Mode::WUSR);
    let written = opened.and_then(|file| {
        let bytes = AlignedBuffer::new(ALIGN_BYTES);
        rustix::io::pwrite(&file, &bytes[..ALIGN_BYTES], 0)
    });
    match rustix::fs::unlinkat(directory, PROBE, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match written {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(full @ (Errno::NOSPC | Errno::DQUOT)) => reads_direct(directory, full),
        Err(error) => Err(error.into()),
    }
}

/// As [`takes_direct`], and changes nothing. Where there is nothing to read, it is `full` that is in the way.
fn reads_direct(directory: &OwnedFd, full: Errno) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(directory, IDENTITY, flags, Mode::empty());
    let read = opened.and_then(|file| {
        let mut first = AlignedBuffer::new(ALIGN_BYTES);
        rustix::io::pread(&file, &mut first[..], 0)
    });
    match read {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(Errno::NOENT) => Err(full.into()),
        Err(error) => Err(error.into()),
    }
}

/// To call after a sync, before its success is believed: what is in a file that somebody removed is gone at the next start. An XFS that shuts down because its log cannot be written drops what waits
/// for the log, and a sync of another thread that finds nothing to wait for any more succeeds (seen with Linux 6.18). It has
/// noted before that it is shut down, and then says nothing about its files but that.
fn check_works(file: impl AsFd) -> io::Result<()> {
    match rustix::fs::fstat(file)?.st_nlink {
        0 => Err(io::Error::other("somebody removed it")),
        _ => Ok(()),
    }
}

/// Whether a process has as many open files as it may have, or was interrupted: nothing is wrong with the disk, and it passes.
#[must_use]
pub fn is_scarce(error: &io::Error) -> bool {
    let scarce = [Errno::MFILE, Errno::NFILE, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|error| scarce.contains(&error))
}

impl Storage for Directory {
    type File = DirectoryFile;

    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        // What is no text is no file of ours.
        Ok(names
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<DirectoryFile> {
        self.check_writable()?;
        let file = self.open_file(name, OFlags::CREATE | OFlags::EXCL)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            // Then the space is taken as it is written.
            Err(Errno::OPNOTSUPP) => file.set_len(bytes)?,
            Err(error) => {
                self.remove(name)?;
                return Err(error.into());
            }
        }
        Ok(DirectoryFile { file })
    }

    fn open(&self, name: &str) -> io::Result<DirectoryFile> {
        let file = match self.is_read_only {
            true => self.open_to_read_file(name)?,
            false => self.open_file(name, OFlags::empty())?,
        };
        Ok(DirectoryFile { file })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        let flags = rustix::fs::AtFlags::empty();
        Ok(rustix::fs::unlinkat(&self.handle, name, flags)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        let flags = RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(
            &self.handle,
            from,
            &self.handle,
            to,
            flags,
        )?)
    }

    fn sync_names(&self) -> io::Result<()> {
        rustix::fs::fsync(&self.handle)?;
        check_works(&self.handle)
    }

    fn sync_all(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.handle)?;
        check_works(&self.handle)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let said = rustix::fs::fstatvfs(&self.handle)?;
        Ok(said.f_bavail.saturating_mul(said.f_frsize))
    }
}

/// A file of a [`Directory`].
#[derive(Debug)]
pub struct DirectoryFile {
    file: File,
}

impl StoredFile for DirectoryFile {
    fn write_synced(&self, at: u64, bytes: &AlignedBuffer, len: usize) -> io::Result<()> {
        let mut rest = &bytes[..len];
        let mut at = at;
        while !rest.is_empty() {
            let slices = [IoSlice::new(rest)];
            let flags = ReadWriteFlags::DSYNC;
            match rustix::io::pwritev2(self.file.as_fd(), &slices, at, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    rest = &rest[written..];
                }
                Err(Errno::INTR) => {}
                // The flag is not known there: sync the file instead.
                Err(Errno::OPNOTSUPP) => {
                    self.file.write_all_at(rest, at)?;
                    self.file.sync_data()?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        check_works(&self.file)
    }

    fn punch_hole(&self, at: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, at, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
            punched => Ok(punched?),
        }
    }

    fn read(&self, at: u64, into: &mut AlignedBuffer) -> io::Result<usize> {
        let mut came = 0;
        while came < into.len() {
            match self.file.read_at(&mut into[came..], at + came as u64) {
                Ok(0) => break,
                Ok(bytes) => came += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // Behind a part that is no multiple there is nothing, and a read from there on would be refused.
            if !came.is_multiple_of(ALIGN_BYTES) {
                break;
            }
        }
        Ok(came)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory, where nothing is written past the page cache on older kernels, and on whatever disk temporary files are.
    fn directories() -> Vec<tempfile::TempDir> {
        let in_memory = tempfile::tempdir_in("/dev/shm");
        let elsewhere = tempfile::tempdir();
        vec![in_memory.expect("made"), elsewhere.expect("made")]
    }

    #[test]
    fn what_is_written_is_read_and_names_are_what_was_made() {
        for dir in directories() {
            let directory = Directory::open(dir.path()).expect("there");
            let file = directory.create("a", 3 * ALIGN_BYTES as u64).expect("room");
            let again = directory.create("a", 1).expect_err("it is there");
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
            let mut bytes = AlignedBuffer::new(2 * ALIGN_BYTES);
            bytes.fill(7);
            file.write_synced(ALIGN_BYTES as u64, &bytes, ALIGN_BYTES)
                .expect("written");
            directory.sync_names().expect("synced");
            assert_eq!(
                directory.names().expect("listed"),
                ["a"],
                "no probe is left"
            );
            let file = directory.open("a").expect("there");
            assert_eq!(file.size().expect("known"), 3 * ALIGN_BYTES as u64);
            let mut read = AlignedBuffer::new(4 * ALIGN_BYTES);
            assert_eq!(file.read(0, &mut read).expect("read"), 3 * ALIGN_BYTES);
            let page = |n: usize| &read[n * ALIGN_BYTES..(n + 1) * ALIGN_BYTES];
            assert!(page(0).iter().all(|it| *it == 0) && page(1).iter().all(|it| *it == 7));
            directory.remove("a").expect("removed");
            assert!(directory.names().expect("listed").is_empty());
            assert!(directory.free_bytes().expect("known") > 0);
        }
    }

    #[test]
    fn who_only_reads_changes_nothing() {
        for dir in directories() {
            let writer = Directory::open(dir.path()).expect("there");
            let file = writer.create("a", ALIGN_BYTES as u64).expect("room");
            let mut bytes = AlignedBuffer::new(ALIGN_BYTES);
            bytes.fill(7);
            file.write_synced(0, &bytes, ALIGN_BYTES).expect("written");
            let reader = Directory::open_to_read(dir.path()).expect("there");
            let file = reader.open("a").expect("there");
            let mut read = AlignedBuffer::new(2 * ALIGN_BYTES);
            assert_eq!(file.read(0, &mut read).expect("read"), ALIGN_BYTES);
            assert!(read[..ALIGN_BYTES].iter().all(|it| *it == 7));
            assert!(file.write_synced(0, &bytes, ALIGN_BYTES).is_err());
            assert!(reader.create("b", 1).is_err() && reader.remove("a").is_err());
            assert_eq!(writer.names().expect("listed"), ["a"]);
        }
    }

    #[test]
    fn a_hole_reads_as_zeros_and_takes_no_room() {
        use std::os::unix::fs::MetadataExt;
        const PAGE: u64 = ALIGN_BYTES as u64;
        for dir in directories() {
            let directory = Directory::open(dir.path()).expect("there");
            let file = directory.create("a", 64 * PAGE).expect("room");
            let mut bytes = AlignedBuffer::new(64 * ALIGN_BYTES);
            bytes.fill(7);
            file.write_synced(0, &bytes, bytes.len()).expect("written");
            let blocks = || fs::metadata(dir.path().join("a")).expect("there").blocks();
            let before = blocks();
            file.punch_hole(2 * PAGE, 60 * PAGE).expect("both can");
            assert!(
                blocks() <= before - 60 * PAGE / 512,
                "{before}, {}",
                blocks()
            );
            assert_eq!(file.size().expect("known"), 64 * PAGE, "as long as before");
            let mut read = AlignedBuffer::new(64 * ALIGN_BYTES);
            assert_eq!(file.read(0, &mut read).expect("read"), read.len());
            for (number, page) in read.chunks(ALIGN_BYTES).enumerate() {
                let expected = if (2..62).contains(&number) { 0 } else { 7 };
                assert!(page.iter().all(|it| *it == expected), "page {number}");
            }
            let reader = Directory::open_to_read(dir.path()).expect("there");
            let file = reader.open("a").expect("there");
            assert!(file.punch_hole(0, PAGE).is_err(), "it only reads");
        }
    }

    #[test]
    fn a_file_that_finds_no_room_leaves_no_name() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("made");
        let directory = Directory::open(dir.path()).expect("there");
        assert!(directory.create("a", 1 << 50).is_err());
        assert!(directory.names().expect("listed").is_empty());
    }
}
