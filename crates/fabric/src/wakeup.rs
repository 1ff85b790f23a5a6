//! Waking a thread of another process of this machine: a named pipe in the region's directory.
//!
//! A byte in the pipe makes the descriptor readable, for which the thread waits. A full pipe means that a
//! wake-up is pending already. A wake-up that is lost does no harm: a thread that sleeps looks for work again
//! by itself after a while. [`SleepFlag`](crate::SleepFlag) shows which threads sleep. Between machines there
//! are no wake-ups.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

use crate::error::RegionError;

/// The name of the pipe of thread `number` of a row.
pub(crate) fn wakeup_name(row: u16, number: u16) -> String {
    format!("wakeup-{row}-{number}")
}

/// What others wake a thread of this process with: a descriptor that becomes readable, for a reactor to
/// watch.
///
/// The thread that watches it reads the bytes away, one for each wake-up, and looks for work afterwards.
#[derive(Debug)]
pub struct Wakeup {
    pipe: File,
}

impl Wakeup {
    /// Opens the pipe of thread `number` of a row, which it makes if there is none yet.
    pub(crate) fn open(dir: &Path, row: u16, number: u16) -> Result<Self, RegionError> {
        let path = dir.join(wakeup_name(row, number));
        let mode = Mode::RUSR | Mode::WUSR;
        match mknodat(CWD, &path, FileType::Fifo, mode, 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(RegionError::io("making", path, e.into())),
        }
        let pipe = open_pipe(&path).map_err(|e| RegionError::io("opening", path, e))?;
        Ok(Self { pipe })
    }
}

impl From<Wakeup> for OwnedFd {
    fn from(wakeup: Wakeup) -> Self {
        wakeup.pipe.into()
    }
}

/// Wakes the threads of a region's processes.
#[derive(Debug, Default)]
pub struct Notifier {
    dir: Option<PathBuf>,
    /// By row and number; opened when prepared, or else when first used.
    pipes: Vec<Vec<Option<File>>>,
}

impl Notifier {
    /// For the region in this directory; without one it wakes no thread.
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: dir.map(Path::to_owned),
            pipes: Vec::new(),
        }
    }

    /// Opens what [`Self::notify`] needs for thread `number` of a row, so that it works when this process has no
    /// descriptor left later.
    pub fn prepare(&mut self, row: u16, number: u16) {
        self.pipe(row, number);
    }

    /// Wakes thread `number` of a row; does nothing when it never had a [`Wakeup`].
    pub fn notify(&mut self, row: u16, number: u16) {
        if let Some(pipe) = self.pipe(row, number) {
            // A full pipe wakes as well.
            let _full = pipe.write(&[1]);
        }
    }

    fn pipe(&mut self, row: u16, number: u16) -> Option<&mut File> {
        let dir = self.dir.as_ref()?;
        let (row_at, at) = (usize::from(row), usize::from(number));
        if self.pipes.len() <= row_at {
            self.pipes.resize_with(row_at + 1, Vec::new);
        }
        let pipes = &mut self.pipes[row_at];
        if pipes.len() <= at {
            pipes.resize_with(at + 1, || None);
        }
        if pipes[at].is_none() {
            pipes[at] = open_pipe(&dir.join(wakeup_name(row, number))).ok();
        }
        pipes[at].as_mut()
    }
}

/// For reading and writing, so that it opens without anybody at the other end and never reports one.
fn open_pipe(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(wakeup: &Wakeup) -> bool {
        let mut fds = [PollFd::new(&wakeup.pipe, PollFlags::IN)];
        let time = Timespec::try_from(Duration::ZERO).unwrap();
        poll(&mut fds, Some(&time)).unwrap() == 1
    }

    #[test]
    fn a_wakeup_is_readable_until_its_bytes_are_read_and_many_are_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifier = Notifier::new(Some(dir.path()));
        notifier.notify(1, 0);
        let mut wakeup = Wakeup::open(dir.path(), 1, 0).unwrap();
        assert!(!is_readable(&wakeup), "it was not there yet");
        // More than the pipe holds.
        (0..100_000).for_each(|_| notifier.notify(1, 0));
        assert!(is_readable(&wakeup));
        let rest = wakeup.pipe.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(rest.kind(), io::ErrorKind::WouldBlock);
        assert!(!is_readable(&wakeup));
        notifier.notify(1, 0);
        assert!(is_readable(&wakeup));
    }

    #[test]
    fn a_prepared_notifier_opens_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let wakeup = Wakeup::open(dir.path(), 1, 0).unwrap();
        let mut notifier = Notifier::new(Some(dir.path()));
        notifier.prepare(1, 0);
        std::fs::remove_file(dir.path().join(wakeup_name(1, 0))).unwrap();
        notifier.notify(1, 0);
        assert!(is_readable(&wakeup));
    }
}
