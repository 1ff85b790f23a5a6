//! The same region on every kind of memory.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use embar_fabric::{Claim, Geometry, Region};
use embar_memory::{Coherence, Device, Mapped, Memory, Simulated};

use crate::common::Cluster;

/// A region that several hosts look at.
pub trait Setup {
    type M: Memory;
    fn new(geometry: &Geometry) -> Self;
    /// The view of one more host.
    fn host(&self) -> Region<Self::M>;
    /// A claim for which there is a payload file.
    fn claim(region: &Region<Self::M>, row: u16) -> Claim;
    /// One more host's view of `len` bytes of garbage of their own, twice.
    fn pair(len: u64) -> (Arc<Self::M>, Arc<Self::M>);
}

pub struct OneMapping<const WRITE_BACK: bool> {
    region: Region<Mapped>,
    _dir: tempfile::TempDir,
}

fn garbage(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8 | 1).collect()
}

fn mapped(len: u64, coherence: Coherence) -> Arc<Mapped> {
    let memory =
        Mapped::anonymous(len.next_multiple_of(4096), coherence).expect("memory for a test");
    memory.write(0, &garbage(memory.len()));
    Arc::new(memory)
}

/// Nothing may rely on fresh payload memory being zero.
fn fill_with_garbage(region: &Region<Mapped>, dir: &Path) {
    let bytes = garbage(region.geometry().payload_bytes);
    for row in region.geometry().data_rows() {
        let file = File::options()
            .write(true)
            .open(dir.join(format!("payload-{row}")));
        let filled = file.expect("it was made").write_all_at(&bytes, 0);
        filled.expect("it is that long");
    }
}

impl<const WRITE_BACK: bool> OneMapping<WRITE_BACK> {
    const COHERENCE: Coherence = if WRITE_BACK {
        Coherence::WriteBack
    } else {
        Coherence::Coherent
    };
}

impl<const WRITE_BACK: bool> Setup for OneMapping<WRITE_BACK> {
    type M = Mapped;

    fn new(geometry: &Geometry) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let region = Region::create(dir.path(), geometry, Self::COHERENCE).expect("room");
        fill_with_garbage(&region, dir.path());
        Self { region, _dir: dir }
    }

    fn host(&self) -> Region<Mapped> {
        self.region.clone()
    }

    fn claim(region: &Region<Mapped>, row: u16) -> Claim {
        region.claim(row).expect("it is free")
    }

    fn pair(len: u64) -> (Arc<Mapped>, Arc<Mapped>) {
        let memory = mapped(len, Self::COHERENCE);
        (Arc::clone(&memory), memory)
    }
}

/// Every host has a cache of its own.
pub struct Hosts {
    cluster: Cluster,
    made: Cell<u64>,
}

impl Setup for Hosts {
    type M = Simulated;

    fn new(geometry: &Geometry) -> Self {
        Self {
            cluster: Cluster::seeded(geometry, 42),
            made: Cell::new(0),
        }
    }

    fn host(&self) -> Region<Simulated> {
        let seed = self.made.get() + 1;
        self.made.set(seed);
        self.cluster.host(seed)
    }

    fn claim(region: &Region<Simulated>, row: u16) -> Claim {
        region.claim_unlocked(row)
    }

    fn pair(len: u64) -> (Arc<Simulated>, Arc<Simulated>) {
        let device = Device::new(len, 9);
        (Arc::new(device.host(1)), Arc::new(device.host(2)))
    }
}
