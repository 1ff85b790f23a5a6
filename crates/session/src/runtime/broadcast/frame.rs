//! A message as a whole frame, encoded once for all who get it.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use buffa::SizeCache;
use embar_frame::{
    CHECKSUM_BYTES, FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, write_checksum,
};

use crate::SendError;
use crate::sender::{Bounded, with_sizes};

/// Memory that a thread keeps from one frame to the next, at most.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    /// So that frames of the usual lengths are made without an allocation.
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A frame in both forms: with a checksum, and without.
pub(super) struct Frame {
    header: FrameHeader,
    plain: Vec<u8>,
    checked: OnceCell<Vec<u8>>,
    /// What waits outside of the rings of several sessions is one copy for all.
    shared: [OnceCell<Arc<[u8]>>; 2],
}

impl Frame {
    pub(super) fn encode(
        id: u16,
        size: impl FnOnce(&mut SizeCache) -> u32,
        write: impl FnOnce(&mut SizeCache, &mut Bounded<'_>),
    ) -> Result<Self, SendError> {
        with_sizes(|sizes| {
            let len = size(sizes) as usize;
            Self::fill(id, len, |content| {
                Bounded::fill(content, |out| write(sizes, out))
            })
        })
    }

    pub(super) fn copy(id: u16, content: &[u8]) -> Result<Self, SendError> {
        Self::fill(id, content.len(), |to| {
            to.copy_from_slice(content);
            Ok(())
        })
    }

    fn fill(
        id: u16,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), SendError>,
    ) -> Result<Self, SendError> {
        if id >= FIRST_RESERVED_ID {
            return Err(SendError::ReservedId { id });
        }
        let Ok(length) = u32::try_from(len) else {
            return Err(SendError::TooLong {
                bytes: len,
                max: u32::MAX,
            });
        };
        let header = FrameHeader {
            length,
            id,
            flags: 0,
        };
        let mut plain = KEPT.try_with(Cell::take).unwrap_or_default();
        plain.clear();
        plain.extend_from_slice(&header.to_bytes());
        plain.resize(FRAME_HEADER_BYTES + len, 0);
        write(&mut plain[FRAME_HEADER_BYTES..])?;
        Ok(Self {
            header,
            plain,
            checked: OnceCell::new(),
            shared: [const { OnceCell::new() }; 2],
        })
    }

    pub(super) fn id(&self) -> u16 {
        self.header.id
    }

    /// Bytes of its content.
    pub(super) fn content_len(&self) -> usize {
        self.header.length as usize
    }

    /// All of it.
    #[inline]
    pub(super) fn bytes(&self, checked: bool) -> &[u8] {
        match checked {
            false => &self.plain,
            true => self.checked.get_or_init(|| self.with_checksum()),
        }
    }

    fn with_checksum(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.plain.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(&self.header.with_checksum().to_bytes());
        bytes.extend_from_slice(&self.plain[FRAME_HEADER_BYTES..]);
        bytes.resize(self.plain.len() + CHECKSUM_BYTES, 0);
        write_checksum(&mut bytes);
        bytes
    }

    /// All of it, in memory of its own.
    pub(super) fn shared(&self, checked: bool) -> Arc<[u8]> {
        let shared = &self.shared[usize::from(checked)];
        Arc::clone(shared.get_or_init(|| self.bytes(checked).into()))
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.plain);
        if memory.capacity() <= KEPT_BYTES {
            let _ = KEPT.try_with(|kept| kept.set(memory));
        }
    }
}
