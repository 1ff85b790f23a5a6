//! Waking a thread of another process of this machine: a named pipe in the region's directory.
//!
//! A byte in the pipe wakes whoever waits for the descriptor to become readable. A full pipe means
//! that a wake is pending already. Nothing depends on a ring that is lost: sleepers look again by
//! themselves after a while. Who sleeps is told by [`Sleeper`](crate::Sleeper); between machines there
//! is no bell.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

use embar_memory::Mapped;

use crate::error::RegionError;
use crate::region::Region;

pub(crate) fn bell_name(row: u16, number: u16) -> String {
    format!("bell-{row}-{number}")
}

/// The end of the thread that is woken: a descriptor that becomes readable, for a reactor to watch.
///
/// Whoever watches it reads the bytes away, one for each ring, and looks for work afterwards.
#[derive(Debug)]
pub struct Bell {
    pipe: File,
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> Self {
        bell.pipe.into()
    }
}

/// Rings the bells of a region's threads.
#[derive(Debug, Default)]
pub struct Ringer {
    dir: Option<PathBuf>,
    /// By row and number; opened when first rung.
    pipes: Vec<Vec<Option<File>>>,
}

impl Ringer {
    /// Wakes a thread; nothing happens when it never had a bell.
    pub fn ring(&mut self, row: u16, number: u16) {
        let Some(dir) = &self.dir else { return };
        let (row_at, at) = (usize::from(row), usize::from(number));
        if self.pipes.len() <= row_at {
            self.pipes.resize_with(row_at + 1, Vec::new);
        }
        let pipes = &mut self.pipes[row_at];
        if pipes.len() <= at {
            pipes.resize_with(at + 1, || None);
        }
        if pipes[at].is_none() {
            pipes[at] = open_pipe(&dir.join(bell_name(row, number))).ok();
        }
        if let Some(pipe) = &mut pipes[at] {
            // A full pipe wakes as well.
            let _full = pipe.write(&[1]);
        }
    }
}

/// For reading and writing, so that it opens without anybody at the other end and never reports one.
fn open_pipe(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

impl Region<Mapped> {
    /// The bell of a thread of this process: a lane's number, or the sequencer's.
    ///
    /// # Errors
    /// When the pipe cannot be made, or the region lives in no directory.
    pub fn bell(&self, row: u16, number: u16) -> Result<Bell, RegionError> {
        let Some(dir) = self.dir() else {
            return Err(RegionError::NotFound {
                dir: PathBuf::new(),
            });
        };
        let path = dir.join(bell_name(row, number));
        let mode = Mode::RUSR | Mode::WUSR;
        match mknodat(CWD, &path, FileType::Fifo, mode, 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(RegionError::io("making", path, e.into())),
        }
        let pipe = open_pipe(&path).map_err(|e| RegionError::io("opening", path, e))?;
        Ok(Bell { pipe })
    }

    /// What wakes other processes' threads.
    pub fn ringer(&self) -> Ringer {
        Ringer {
            dir: self.dir().map(Path::to_owned),
            pipes: Vec::new(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::geometry::Geometry;
    use embar_memory::Coherence;

    fn is_rung(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(&bell.pipe, PollFlags::IN)];
        let time = Timespec::try_from(Duration::ZERO).unwrap();
        poll(&mut fds, Some(&time)).unwrap() == 1
    }

    #[test]
    fn a_ring_is_heard_until_it_is_silenced_and_many_are_one() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("region");
        let geometry = Geometry {
            index_pages: 1,
            blog_bytes: 64 << 10,
            ..Geometry::default()
        };
        let region = Region::create(&dir, &geometry, Coherence::Coherent).unwrap();
        let mut ringer = region.ringer();
        ringer.ring(1, 0);
        let mut bell = region.bell(1, 0).unwrap();
        assert!(!is_rung(&bell), "nobody had a bell");
        // More than the pipe holds.
        (0..100_000).for_each(|_| ringer.ring(1, 0));
        assert!(is_rung(&bell));
        assert!(
            bell.pipe.read_to_end(&mut Vec::new()).is_err(),
            "it would block"
        );
        assert!(!is_rung(&bell));
        ringer.ring(1, 0);
        assert!(is_rung(&bell));
        drop((bell, ringer, region));
        Region::remove(&dir).unwrap();
    }
}
