//! Bytes that were read from a disk and are sent from where they were read to.

use std::ops::Range;
use std::sync::Arc;

use embar_memory::{Buffer, Memory};
use embar_transport::Body;

/// Bytes that were read from a disk, a part of memory that is used again once they are sent.
#[derive(Clone, Debug)]
pub struct DiskBytes {
    memory: Arc<Buffer>,
    range: Range<usize>,
}

impl DiskBytes {
    /// This part of the memory.
    #[must_use]
    pub fn new(memory: Arc<Buffer>, range: Range<usize>) -> Self {
        Self { memory, range }
    }

    /// Whether all batches were of another share.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Bytes of the memory that they hold.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn into_body<M: Memory>(self) -> Body<M> {
        Body::Part(self.memory, self.range)
    }
}

impl From<Vec<u8>> for DiskBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self::new(Arc::new(bytes.into()), range)
    }
}
