//! Memory of one side of which ranges are named to its peer. A range that is free is used for something else at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use embar_memory::{Memory, Simulated};

/// Ranges of a pool.
const RANGES: u64 = 6;
/// Bytes of a range.
pub const RANGE_BYTES: u64 = 4096;
/// Bytes of a pool.
pub const POOL_BYTES: u64 = RANGES * RANGE_BYTES;

/// The ranges of one side's memory.
pub struct Pool {
    memory: Arc<Simulated>,
    free: Vec<u64>,
    /// Those that nobody keeps any more, still as they were.
    returned: Rc<RefCell<Vec<u64>>>,
}

/// Keeps a range until the peer is through with it.
pub struct Range {
    at: u64,
    returned: Rc<RefCell<Vec<u64>>>,
}

impl Drop for Range {
    fn drop(&mut self) {
        self.returned.borrow_mut().push(self.at);
    }
}

impl Pool {
    pub fn new(memory: Arc<Simulated>) -> Self {
        Self {
            memory,
            free: (0..RANGES).map(|range| range * RANGE_BYTES).collect(),
            returned: Rc::default(),
        }
    }

    /// A range with these bytes, if one is free: where it lies, and what keeps it.
    pub fn fill(&mut self, bytes: &[u8]) -> Option<(u64, Range)> {
        let at = self.free.pop()?;
        self.write(at, bytes);
        let returned = Rc::clone(&self.returned);
        Some((at, Range { at, returned }))
    }

    /// Uses what came back for something else.
    pub fn use_again(&mut self) {
        loop {
            let Some(at) = self.returned.borrow_mut().pop() else {
                return;
            };
            self.write(at, &[0xDB; RANGE_BYTES as usize]);
            self.free.push(at);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes);
        self.memory.write_back(at, bytes.len() as u64);
        self.memory.fence();
    }
}
