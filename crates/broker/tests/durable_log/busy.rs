//! A disk on which others write while one reads it.

use std::io;
use std::sync::{Mutex, PoisonError};

use embar_disk::{Simulated as Disk, SimulatedFile, Storage};
use fastrand::Rng;

use super::candidate::Write;

/// Between any two operations commits of a deposed writer may come further.
pub struct Busy<'a> {
    disk: &'a Disk,
    others: Mutex<(Vec<&'a mut Write>, Rng)>,
}

impl<'a> Busy<'a> {
    pub fn new(disk: &'a Disk, writes: Vec<&'a mut Write>, random: Rng) -> Self {
        Self {
            disk,
            others: Mutex::new((writes, random)),
        }
    }

    fn pass(&self) {
        let others = self.others.lock();
        let mut others = others.unwrap_or_else(PoisonError::into_inner);
        let (writes, random) = &mut *others;
        for write in writes {
            if random.bool() {
                write.step();
            }
        }
    }
}

impl Storage for Busy<'_> {
    type File = SimulatedFile;

    fn names(&self) -> io::Result<Vec<String>> {
        self.pass();
        self.disk.names()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimulatedFile> {
        self.disk.create(name, bytes)
    }

    fn open(&self, name: &str) -> io::Result<SimulatedFile> {
        self.pass();
        self.disk.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.pass();
        self.disk.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
}
