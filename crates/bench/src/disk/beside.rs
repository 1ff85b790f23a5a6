//! The walls of the disks that a bench of the log uses: what they do without the log, in trials beside it.

use std::cmp;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use embar_console::context::Context;
use embar_console::interrupt::Interrupt;
use embar_disk::Storage;

use super::space::Space;
use super::wall::{self, Measured};

/// Bytes of each write and read of a wall of throughput.
pub const IO_BYTES: u32 = 1 << 20;
/// How many of them are on their way at once: the wall is the fastest.
pub const DEPTHS: [u16; 3] = [1, 2, 4];
/// Bytes that a trial of a wall writes or reads, at most and at least.
const BYTES_MAX: u64 = 512 << 20;
const BYTES_MIN: u64 = 4 << 20;

const TO_WRITE: &str = "write";
const TO_READ: &str = "read";

/// Directories on the disks that a bench uses.
pub struct DiskWalls {
    spaces: Vec<Space>,
    bytes: u64,
    interrupt: Interrupt,
}

impl DiskWalls {
    /// Below each of these directories, for trials of about so many bytes.
    ///
    /// # Errors
    /// What the system says of the first directory that cannot be used.
    pub fn new(data: &[PathBuf], bytes: u64, context: &Context) -> Result<Self> {
        let bytes = bytes.clamp(BYTES_MIN, BYTES_MAX);
        let spaces = data.iter().map(|dir| Space::new(dir, 2 * bytes, context));
        Ok(Self {
            spaces: spaces.collect::<Result<_>>()?,
            bytes,
            interrupt: context.interrupt.clone(),
        })
    }

    /// Bytes of a trial.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// MiB per second of each disk when all of them are written at once, in synced writes of [`IO_BYTES`].
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, depth: u16) -> Result<f64> {
        let written = self.write_all(self.bytes, (IO_BYTES, depth))?;
        Ok(written
            .iter()
            .map(Measured::mib_per_s)
            .fold(f64::MAX, f64::min))
    }

    /// What each of `count` synced writes took, one after the other, until all disks had it; in nanoseconds.
    ///
    /// # Errors
    /// What the system says.
    pub fn time_writes(&self, io_bytes: u32, count: u64) -> Result<Vec<u64>> {
        Ok(slowest(
            self.write_all(count * u64::from(io_bytes), (io_bytes, 1))?,
        ))
    }

    /// The same of writes that are due so long after each other, counted from when they are due.
    ///
    /// # Errors
    /// What the system says.
    pub fn time_writes_due(&self, io_bytes: u32, count: u64, every: Duration) -> Result<Vec<u64>> {
        let written = self.on_all(|space| {
            let (directory, writes) = (&space.directory, (io_bytes, count));
            wall::write_when_due(directory, TO_WRITE, writes, every, &self.interrupt)
        })?;
        Ok(slowest(written))
    }

    fn write_all(&self, bytes: u64, how: (u32, u16)) -> Result<Vec<Measured>> {
        self.on_all(|space| wall::write(&space.directory, TO_WRITE, bytes, how, &self.interrupt))
    }

    /// Writes a file on each disk, all at once, and removes it.
    fn on_all(&self, write: impl Fn(&Space) -> Result<Measured> + Sync) -> Result<Vec<Measured>> {
        let write = &write;
        thread::scope(|scope| {
            let threads = self.spaces.iter().map(|space| {
                scope.spawn(move || {
                    let measured = write(space);
                    space.directory.remove(TO_WRITE)?;
                    measured
                })
            });
            let threads: Vec<_> = threads.collect();
            let ends = threads.into_iter().map(|thread| thread.join());
            ends.map(|end| end.map_err(|_| anyhow!("a thread panicked"))?)
                .collect()
        })
    }

    /// Writes what is read later, so that it was not written just before.
    ///
    /// # Errors
    /// What the system says.
    pub fn fill(&self) -> Result<()> {
        let how = (IO_BYTES, 2);
        let Some(space) = self.spaces.first() else {
            return Ok(());
        };
        wall::write(&space.directory, TO_READ, self.bytes, how, &self.interrupt).map(drop)
    }

    /// MiB per second of the first disk, in reads of [`IO_BYTES`] of what [`DiskWalls::fill`] wrote.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, depth: u16) -> Result<f64> {
        let space = self.spaces.first();
        let space = space.ok_or_else(|| anyhow!("there is no disk to read"))?;
        let read = wall::read(
            &space.directory,
            TO_READ,
            (IO_BYTES, depth),
            &self.interrupt,
        )?;
        Ok(read.mib_per_s())
    }
}

/// Of each write what the slowest disk took.
fn slowest(written: Vec<Measured>) -> Vec<u64> {
    let each = written.into_iter().map(|it| it.each_ns);
    let slowest = each.reduce(|one, other| {
        let both = one.into_iter().zip(other);
        both.map(|(one, other)| cmp::max(one, other)).collect()
    });
    slowest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use embar_console::progress::Silent;

    use super::*;

    #[test]
    fn disks_are_written_and_read_and_nothing_stays() {
        let place = tempfile::tempdir().expect("a directory");
        let context = Context {
            progress: Arc::new(Silent),
            interrupt: Interrupt::default(),
            program: PathBuf::new(),
        };
        let data = ["a", "b"].map(|name| place.path().join(name));
        let walls = DiskWalls::new(&data, 1, &context).expect("room");
        assert_eq!(walls.bytes(), BYTES_MIN);
        assert!(walls.write(2).expect("written") > 0.0);
        assert_eq!(walls.time_writes(4096, 10).expect("written").len(), 10);
        let began = std::time::Instant::now();
        let due = walls.time_writes_due(4096, 5, Duration::from_millis(10));
        assert_eq!(due.expect("written").len(), 5);
        assert!(began.elapsed() >= Duration::from_millis(40));
        walls.fill().expect("written");
        assert!(walls.read(1).expect("read") > 0.0);
        drop(walls);
        for dir in data {
            assert_eq!(std::fs::read_dir(dir).map_or(9, Iterator::count), 0);
        }
    }
}
