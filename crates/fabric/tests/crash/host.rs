//! A host that dies in the middle of a call.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embar_memory::{Device, Faults, Memory, ShowsCopies, Simulated};

use crate::common::Cluster;

/// A host that dies after so many stores, write-backs and fences, over all of its files.
pub struct Fused {
    memory: Simulated,
    pub steps_left: Arc<AtomicU64>,
}

/// What its calls unwind with.
pub struct Died;

impl Fused {
    fn step(&self) {
        let left = self.steps_left.load(Ordering::Relaxed);
        if left == 0 {
            resume_unwind(Box::new(Died));
        }
        self.steps_left.store(left - 1, Ordering::Relaxed);
    }
}

// SAFETY: it shows what simulated memory shows.
unsafe impl ShowsCopies for Fused {}

impl Memory for Fused {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn is_coherent(&self) -> bool {
        self.memory.is_coherent()
    }

    fn load(&self, at: u64) -> u64 {
        self.memory.load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.step();
        self.memory.store(at, value);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.memory.read(at, into);
    }

    fn write(&self, at: u64, from: &[u8]) {
        for (i, word) in from.chunks(8).enumerate() {
            self.step();
            self.memory.write(at + 8 * i as u64, word);
        }
    }

    fn write_back(&self, at: u64, len: u64) {
        self.step();
        self.memory.write_back(at, len);
    }

    fn fence(&self) {
        self.step();
        self.memory.fence();
    }

    fn invalidate(&self, at: u64, len: u64) {
        self.memory.invalidate(at, len);
    }

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: passed on from our caller.
        unsafe { self.memory.with_bytes(at, len, f) }
    }

    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        self.step();
        // SAFETY: passed on from our caller.
        unsafe { self.memory.with_bytes_mut(at, len, f) }
    }
}

/// One process of the broker: its memories, and how long it lives.
pub struct Host {
    pub control: Arc<Fused>,
    pub payload_files: Vec<Arc<Fused>>,
}

impl Host {
    pub fn new(cluster: &Cluster, seed: u64, steps: u64, faults: Faults) -> Self {
        let steps_left = Arc::new(AtomicU64::new(steps));
        let fused = |device: &Device| {
            let memory = device.host_with(seed, faults);
            Arc::new(Fused {
                memory,
                steps_left: Arc::clone(&steps_left),
            })
        };
        Self {
            control: fused(&cluster.control),
            payload_files: cluster.payload_files.iter().map(fused).collect(),
        }
    }

    pub fn crash(&self) {
        self.control.memory.crash();
        self.payload_files
            .iter()
            .for_each(|payload_file| payload_file.memory.crash());
    }
}
