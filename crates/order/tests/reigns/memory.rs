//! Simulated memory that lets others run in the middle of whatever its host does.
//!
//! At accesses that chance chooses, [`interruption`](crate::world::interruption) is called: other
//! actors take steps there, before the one that was interrupted goes on with what it had read.

use std::cell::Cell;

use embar_fabric::{Memory, Simulated};

use crate::world;

thread_local! {
    /// Accesses until the next interruption; 0 = none is planned.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Plans the next interruption: before the access that follows `accesses` more; 0 = none.
pub fn interrupt_after(accesses: u64) {
    LEFT.set(accesses);
}

/// One host's view, with interruptions.
#[derive(Debug)]
pub struct Tapped(pub Simulated);

impl Tapped {
    fn access(&self) -> &Simulated {
        let left = LEFT.get();
        if left > 0 {
            LEFT.set(left - 1);
            if left == 1 {
                world::interruption();
            }
        }
        &self.0
    }
}

impl Memory for Tapped {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn load(&self, at: u64) -> u64 {
        self.access().load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.access().store(at, value);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.access().read(at, into);
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.access().write(at, from);
    }

    fn write_back(&self, at: u64, len: u64) {
        self.access().write_back(at, len);
    }

    fn fence(&self) {
        self.access().fence();
    }

    fn invalidate(&self, at: u64, len: u64) {
        self.access().invalidate(at, len);
    }

    // The trait has the next two unsafe; copies need nothing of what their callers promise.

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        self.access().read(at, &mut bytes);
        f(&bytes)
    }

    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        self.0.read(at, &mut bytes);
        let result = f(&mut bytes);
        self.access().write(at, &bytes);
        result
    }
}
