//! Bodies whose bytes lie in payload memory of two owners.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use embar_memory::{Coherence, Extent, Foreign, LINE_BYTES, Mapped, Memory, PayloadFile, Span};
use embar_session::Plain;

const FILE_BYTES: u64 = 1 << 20;

/// Bytes of a head in a piece's header: frame header and length go before it.
pub const HEAD_BYTES: usize = 52;

/// The header of a frame whose body is a payload of `len` bytes.
pub fn piece(len: usize) -> [u8; 64] {
    let mut header = [3; 64];
    let length = 64 - 8 + len as u32;
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..6].copy_from_slice(&9u16.to_le_bytes());
    header[6..8].copy_from_slice(&Plain::BODY.to_le_bytes());
    header[8..12].copy_from_slice(&(HEAD_BYTES as u32).to_le_bytes());
    header
}

/// Payload of this process and of another.
pub struct Logs {
    own: RefCell<Extent<Mapped>>,
    other: Arc<Mapped>,
    /// Where the other's next payload goes.
    other_end: Cell<u64>,
}

impl Logs {
    pub fn new() -> Self {
        let own = PayloadFile::anonymous(FILE_BYTES, Coherence::Coherent).expect("memory");
        let other = Mapped::anonymous(FILE_BYTES, Coherence::Coherent).expect("memory");
        Self {
            own: RefCell::new(own.allocate(FILE_BYTES as u32).expect("all free")),
            other: Arc::new(other),
            other_end: Cell::new(0),
        }
    }

    pub fn own(&self, bytes: &[u8]) -> Span<Mapped> {
        let reservation = self.own.borrow_mut().reserve(bytes.len() as u32);
        let mut reservation = reservation.expect("room");
        reservation.write(0, bytes);
        reservation.commit()
    }

    pub fn foreign(&self, bytes: &[u8]) -> Foreign<Mapped> {
        let at = self.other_end.get();
        self.other.write(at, bytes);
        let end = at + bytes.len() as u64;
        self.other_end.set(end.next_multiple_of(LINE_BYTES));
        Foreign::over(&self.other, at, bytes.len()).expect("it is there")
    }

    /// Spans of the own payload that something still holds.
    pub fn pins(&self) -> usize {
        self.own.borrow().pins()
    }
}
