//! An extent of payload, and payload of another owner, for tests that receive into the one or send
//! from either.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use embar_memory::{
    Coherence, Extent, Foreign, LINE_BYTES, Mapped, Memory, PayloadFile, Reservation,
};

const EXTENT_BYTES: u32 = 1 << 20;

pub struct Log {
    extent: RefCell<Extent<Mapped>>,
    other: Arc<Mapped>,
    /// Where the other's next payload goes.
    other_end: Cell<u64>,
}

impl Log {
    pub fn new() -> Self {
        let bytes = u64::from(EXTENT_BYTES);
        let own = PayloadFile::anonymous(bytes, Coherence::Coherent).unwrap();
        let other = Mapped::anonymous(bytes, Coherence::Coherent).unwrap();
        Self {
            extent: RefCell::new(own.allocate(EXTENT_BYTES).unwrap()),
            other: Arc::new(other),
            other_end: Cell::new(0),
        }
    }

    pub fn reserve(&self, len: usize) -> Reservation<Mapped> {
        self.extent.borrow_mut().reserve(len as u32).unwrap()
    }

    /// What the other has stored.
    pub fn foreign(&self, bytes: &[u8]) -> Foreign<Mapped> {
        let at = self.other_end.get();
        self.other.write(at, bytes);
        self.other_end
            .set((at + bytes.len() as u64).next_multiple_of(LINE_BYTES));
        Foreign::over(&self.other, at, bytes.len()).unwrap()
    }

    pub fn pins(&self) -> usize {
        self.extent.borrow().pins()
    }
}
