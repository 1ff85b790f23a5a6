//! A file that is read to its end, whatever cannot be read of it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::aligned::AlignedBuffer;
use crate::format::ALIGN_BYTES;
use crate::storage::StoredFile;

use super::damage::Wrong;

/// A file whose unreadable pages end a read, and are noted, instead of failing it.
pub(super) struct Reading<'a, F> {
    file: F,
    /// Is called with the bytes of each read.
    on_read: &'a (dyn Fn(u64) + Sync),
    bad: Mutex<Bad>,
}

/// What could not be read.
#[derive(Debug, Default)]
struct Bad {
    pages: u64,
    /// Where the first one is, and what the system says of it.
    first: Option<(u64, String)>,
    last: Option<u64>,
}

impl<'a, F: StoredFile> Reading<'a, F> {
    pub fn new(file: F, on_read: &'a (dyn Fn(u64) + Sync)) -> Self {
        let bad = Mutex::default();
        Self { file, on_read, bad }
    }

    /// What could not be read so far.
    pub fn unreadable(&self) -> Option<Wrong> {
        let bad = self.lock();
        let (at, why) = bad.first.clone()?;
        let pages = bad.pages;
        Some(Wrong::Unreadable { pages, at, why })
    }

    fn lock(&self) -> MutexGuard<'_, Bad> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, at: u64, error: &io::Error) {
        let mut bad = self.lock();
        // A page may be tried more than once, but the place only moves on.
        if bad.last.is_none_or(|last| last < at) {
            bad.last = Some(at);
            bad.pages += 1;
        }
        bad.first.get_or_insert_with(|| (at, error.to_string()));
    }

    /// Up to the first page that cannot be read.
    fn read_by_pages(&self, at: u64, into: &mut AlignedBuffer) -> usize {
        let mut page = AlignedBuffer::new(ALIGN_BYTES);
        let mut came = 0;
        while came < into.len() {
            let place = at + came as u64;
            match self.file.read(place, &mut page) {
                Ok(bytes) => {
                    into[came..came + bytes].copy_from_slice(&page[..bytes]);
                    came += bytes;
                    if bytes < ALIGN_BYTES {
                        break;
                    }
                }
                Err(error) => {
                    self.note(place, &error);
                    break;
                }
            }
        }
        came
    }
}

impl<F: StoredFile> StoredFile for Reading<'_, F> {
    fn write_synced(&self, _at: u64, _bytes: &AlignedBuffer, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn punch_hole(&self, _at: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, at: u64, into: &mut AlignedBuffer) -> io::Result<usize> {
        let read = self.file.read(at, into);
        let came = read.unwrap_or_else(|_| self.read_by_pages(at, into));
        (self.on_read)(came as u64);
        Ok(came)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}
