//! The lock by which the processes of one region use a directory, and those of no other.
//!
//! All of them hold a shared lock on one file, whose only line names the region. Who finds nobody there writes the line
//! under an exclusive lock, which the kernel exchanges for a shared one in two steps. Another process may come in between, so
//! the line counts as read under the shared lock.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

/// Name of the file.
pub(crate) const LOCK: &str = "lock";
/// Longest path, in bytes, and room for the number before it.
const LINE_BYTES_MAX: usize = 4096 + 16;
/// How long processes that were killed may take to let go of a directory, and others to say who they are.
const ENDING_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Which region the processes belong to that use a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionName {
    /// The region's random number, which tells it from all others.
    pub nonce: u32,
    /// Where it is, for people to read.
    pub path: PathBuf,
}

impl RegionName {
    fn line(&self) -> Vec<u8> {
        let mut line = format!("{:08x} ", self.nonce).into_bytes();
        line.extend(self.path.as_os_str().as_bytes());
        line.push(b'\n');
        line
    }

    /// `None` if the line was not written to its end.
    fn parse(line: &[u8]) -> Option<Self> {
        let (nonce, rest) = line.split_at_checked(8)?;
        let nonce = u32::from_str_radix(str::from_utf8(nonce).ok()?, 16).ok()?;
        let path = rest.strip_prefix(b" ")?.strip_suffix(b"\n")?;
        let path = OsStr::from_bytes(path).into();
        Some(Self { nonce, path })
    }
}

/// Who uses a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryUser {
    /// No process does.
    Nobody,
    /// The processes of a region.
    Region(RegionName),
    /// Processes that do not say of which region.
    Unnamed,
}

impl DirectoryUser {
    /// Who uses the directory now. Whoever is about to use it waits for no longer than this takes.
    pub(crate) fn of(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: File = match rustix::fs::open(dir.join(LOCK), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Self::Nobody),
            opened => opened?.into(),
        };
        if locks(&file, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(Self::Nobody);
        }
        let user = RegionName::parse(&read_line(&file)?);
        Ok(user.map_or(Self::Unnamed, Self::Region))
    }
}

/// Why a directory cannot be used.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Processes of this region use it; `None` if they do not say of which.
    InUse(Option<RegionName>),
    /// What the system says.
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for LockError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Processes of one region use a directory for as long as one of them has this.
#[derive(Debug)]
pub(crate) struct RegionLock {
    file: File,
}

impl RegionLock {
    /// Locks the directory, which is there. Waits for processes of another region that are about to end, for a second.
    pub(crate) fn take(dir: &Path, region: &RegionName) -> Result<Self, LockError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file: File = rustix::fs::open(dir.join(LOCK), flags, mode)?.into();
        let deadline = Instant::now() + ENDING_WITHIN;
        loop {
            if locks(&file, FlockOperation::NonBlockingLockExclusive)? {
                write_line(&file, &region.line())?;
            }
            let is_shared = locks(&file, FlockOperation::NonBlockingLockShared)?;
            let user = RegionName::parse(&read_line(&file)?);
            if is_shared && user.as_ref().is_some_and(|it| it.nonce == region.nonce) {
                return Ok(Self { file });
            }
            if Instant::now() >= deadline {
                return Err(LockError::InUse(user));
            }
            // What this one holds while it waits would keep others out.
            flock(&file, FlockOperation::Unlock)?;
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl RegionLock {
    /// Whether somebody removed it: then another region's processes may use the directory.
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.file)?.st_nlink == 0)
    }
}

/// Whether the file has that lock now. If not, it has none.
fn locks(file: &File, how: FlockOperation) -> Result<bool, Errno> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Over the line before, and shortened then: so a disk that is full has room for it.
fn write_line(file: &File, line: &[u8]) -> io::Result<()> {
    file.write_all_at(line, 0)?;
    file.set_len(line.len() as u64)
}

fn read_line(file: &File) -> io::Result<Vec<u8>> {
    let mut line = vec![0; LINE_BYTES_MAX];
    let mut came = 0;
    loop {
        match file.read_at(&mut line[came..], came as u64) {
            Ok(0) => break,
            Ok(bytes) => came += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    line.truncate(came);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(nonce: u32, path: &str) -> RegionName {
        let path = path.into();
        RegionName { nonce, path }
    }

    #[test]
    fn processes_of_one_region_share_a_directory_and_others_are_named_them() {
        let dir = tempfile::tempdir().expect("made");
        let (ours, theirs) = (region(7, "/a/region with spaces"), region(8, "/b"));
        let first = RegionLock::take(dir.path(), &ours).expect("free");
        let second = RegionLock::take(dir.path(), &ours).expect("shared");
        drop(first);
        match RegionLock::take(dir.path(), &theirs) {
            Err(LockError::InUse(user)) => assert_eq!(user, Some(ours.clone())),
            other => panic!("{other:?}"),
        }
        drop(second);
        assert_eq!(
            DirectoryUser::of(dir.path()).expect("read"),
            DirectoryUser::Nobody
        );
        let third = RegionLock::take(dir.path(), &theirs).expect("free again");
        match RegionLock::take(dir.path(), &ours) {
            Err(LockError::InUse(user)) => assert_eq!(user, Some(theirs.clone())),
            other => panic!("{other:?}"),
        }
        let user = || DirectoryUser::of(dir.path()).expect("read");
        assert_eq!(user(), DirectoryUser::Region(theirs));
        drop(third);
        assert_eq!(user(), DirectoryUser::Nobody);
    }

    #[test]
    fn of_many_regions_that_come_at_once_one_gets_it() {
        let dir = tempfile::tempdir().expect("made");
        let take = |nonce: u32| RegionLock::take(dir.path(), &region(nonce / 3, "/r"));
        let taken: Vec<_> = thread::scope(|scope| {
            let threads = (0..12).map(|nonce| scope.spawn(move || (nonce / 3, take(nonce))));
            let threads: Vec<_> = threads.collect();
            let ends = threads.into_iter().map(|it| it.join().expect("no panic"));
            ends.collect()
        });
        let mut users: Vec<u32> = { taken.iter() }
            .filter(|(_, lock)| lock.is_ok())
            .map(|(nonce, _)| *nonce)
            .collect();
        assert_eq!(users.len(), 3, "all processes of a region: {taken:?}");
        users.dedup();
        assert_eq!(users.len(), 1, "{taken:?}");
    }

    #[test]
    fn who_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().expect("made");
        let before = RegionLock::take(dir.path(), &region(1, "/before")).expect("free");
        thread::scope(|scope| {
            let next = scope.spawn(|| RegionLock::take(dir.path(), &region(2, "/r")));
            drop(before);
            next.join().expect("no panic").expect("free again");
        });
    }

    #[test]
    fn a_line_that_was_torn_names_nobody() {
        let line = region(0x1234, "/dev/shm/r").line();
        assert_eq!(RegionName::parse(&line), Some(region(0x1234, "/dev/shm/r")));
        for end in 0..line.len() {
            assert_eq!(RegionName::parse(&line[..end]), None);
        }
        assert_eq!(RegionName::parse(b"no line of ours\n"), None);
    }
}
