//! The place of one producer's bytes in a send ring.

/// A range of one producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub number: u32,
    pub start: u32,
    pub end: u32,
}

impl Ticket {
    /// Where its bytes begin, and how many they are.
    #[inline]
    pub fn range(&self) -> (usize, usize) {
        let len = self.end.wrapping_sub(self.start);
        (self.start as usize, len as usize)
    }
}
