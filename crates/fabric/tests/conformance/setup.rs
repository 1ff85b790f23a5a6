//! The same region on every kind of memory.

use std::cell::Cell;
use std::sync::Arc;

use embar_fabric::{Coherence, Device, Geometry, Layout, Mapped, Memory, Region, Simulated};

use crate::common::{Cluster, NONCE};

/// A region that several hosts look at.
pub trait Setup {
    type M: Memory;
    fn new(geometry: &Geometry) -> Self;
    /// The view of one more host.
    fn host(&self) -> Region<Self::M>;
    /// One more host's view of `len` bytes of garbage of their own, twice.
    fn pair(len: u64) -> (Arc<Self::M>, Arc<Self::M>);
}

pub struct OneMapping<const WRITE_BACK: bool>(Region<Mapped>);

fn mapped(len: u64, coherence: Coherence) -> Arc<Mapped> {
    let memory =
        Mapped::anonymous(len.next_multiple_of(4096), coherence).expect("memory for a test");
    // Garbage: nothing may rely on fresh memory being zero.
    let garbage: Vec<u8> = (0..memory.len())
        .map(|i| (i * 31 % 251) as u8 | 1)
        .collect();
    memory.write(0, &garbage);
    Arc::new(memory)
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
        let control = mapped(Layout::new(geometry).control_bytes(), Self::COHERENCE);
        let blogs = geometry
            .data_rows()
            .map(|_| mapped(geometry.blog_bytes, Self::COHERENCE));
        Self(
            Region::format(control, blogs.collect(), geometry, NONCE, 1).expect("a valid geometry"),
        )
    }

    fn host(&self) -> Region<Mapped> {
        self.0.clone()
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
        let blogs = self
            .cluster
            .blogs
            .iter()
            .map(|blog| Arc::new(blog.host(seed)))
            .collect();
        Region::from_parts(Arc::new(self.cluster.control.host(seed)), blogs).expect("formatted")
    }

    fn pair(len: u64) -> (Arc<Simulated>, Arc<Simulated>) {
        let device = Device::new(len, 9);
        (Arc::new(device.host(1)), Arc::new(device.host(2)))
    }
}
