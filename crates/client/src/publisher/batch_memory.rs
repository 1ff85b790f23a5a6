//! The memory of a publisher's batch buffers, if brokers read them where they are: sealed memory, which this process alone
//! writes, and which the broker of each connection by shared memory may map.

use std::sync::{Mutex, PoisonError};

use embar_memory::LINE_BYTES;
use embar_memory::sealed::{SEALED_PAGE_BYTES, Sealed, SealedFile, SealedRange};

/// The buffers of one publisher.
pub(super) struct BatchMemory {
    file: SealedFile,
    /// Until the publisher is open.
    ranges: Mutex<Vec<SealedRange>>,
}

impl BatchMemory {
    /// Memory for so many buffers; `None` if the kernel has none for them: batches are in private memory then, and are
    /// copied for each broker.
    pub(super) fn new(buffer_bytes: usize, buffers: usize) -> Option<Self> {
        let buffer_bytes = buffer_bytes.next_multiple_of(LINE_BYTES as usize);
        let bytes = buffer_bytes as u64 * buffers as u64;
        match Sealed::new(bytes.next_multiple_of(SEALED_PAGE_BYTES)) {
            Ok(sealed) => Some(Self {
                file: sealed.handle(),
                ranges: Mutex::new(sealed.into_ranges(buffer_bytes)),
            }),
            Err(error) => {
                tracing::warn!(
                    bytes,
                    %error,
                    "no memory that brokers can read: batches are copied for them"
                );
                None
            }
        }
    }

    /// For handing it to brokers.
    pub(super) fn file(&self) -> &SealedFile {
        &self.file
    }

    /// All buffers, once.
    pub(super) fn take(&self) -> Vec<SealedRange> {
        std::mem::take(&mut self.ranges.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
