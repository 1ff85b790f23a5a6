//! Names a chain of batches.

/// A chain of a disk: its topic's id, and the broker's row at orders 0 and 1, or
/// [`Run::ORDERED`](super::Run::ORDERED) at orders 2 and 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    /// The topic's id.
    pub topic: u32,
    /// The row.
    pub row: u16,
}
