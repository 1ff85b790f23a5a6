//! A part of a file in memory, moved along as the file is read.

use std::io;

use crate::aligned::AlignedBuffer;
use crate::storage::StoredFile;

/// A part of a file.
pub(crate) struct Window {
    buffer: AlignedBuffer,
    at: u64,
    len: usize,
}

impl Window {
    /// Reads so many bytes at once, or more where more are asked for.
    pub fn new(bytes: usize) -> Self {
        Self {
            buffer: AlignedBuffer::new(bytes),
            at: 0,
            len: 0,
        }
    }

    /// The next bytes are read anew: the file may have changed.
    pub fn forget(&mut self) {
        self.len = 0;
    }

    /// `len` bytes from `at` on, a multiple of [`ALIGN_BYTES`](crate::format::ALIGN_BYTES); fewer at the end of the file.
    pub fn load(&mut self, file: &impl StoredFile, at: u64, len: usize) -> io::Result<&[u8]> {
        let is_there = at >= self.at && at + len as u64 <= self.at + self.len as u64;
        if !is_there {
            if self.buffer.len() < len {
                self.buffer = AlignedBuffer::new(len);
            }
            self.len = file.read(at, &mut self.buffer)?;
            self.at = at;
        }
        let from = (at - self.at) as usize;
        Ok(&self.buffer[from..self.len.min(from + len)])
    }
}
