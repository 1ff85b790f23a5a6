//! Payload files that their owner lends to processes of its own user, for reading.
//!
//! Such a file has a name in a directory of its user, and nobody can seal it. So who maps it trusts its owner: not to
//! shorten it, and to keep what it lends as it is until the loan ends ([`Loan`](crate::Loan)). Whether a process may be
//! trusted is found out where its descriptor comes from.
//!
//! An owner that dies ends no loan. So it locks the blocks of which it lends something, by the very opening of the file that its readers map
//! ([`file_lock`]). Their mappings keep the opening, and with it the locks, whatever becomes of the owner. Who owns the
//! file next finds those locks, and uses these blocks for nothing new until the readers are gone.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::ProtFlags;

use crate::file_id::FileId;
use crate::file_lock::{self, Access};
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::memory::Memory;

/// The descriptor of a payload file, for handing it to readers. It was opened for reading only, by one owner for all its
/// life.
#[derive(Debug, Clone)]
pub struct LentFile {
    file: Arc<File>,
    id: FileId,
    len: u64,
    opening: u32,
}

impl LentFile {
    /// Of a file that was opened for reading, whose length is a multiple of 4096 and will not shrink. `opening` is another number
    /// for each opening of the same file: readers map each of them once.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(file: File, opening: u32) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            id: FileId::of(&metadata),
            len: metadata.len() / PAGE_BYTES * PAGE_BYTES,
            file: Arc::new(file),
            opening,
        })
    }

    /// Which of the openings of the file it is.
    pub fn opening(&self) -> u32 {
        self.opening
    }

    /// Tells owners to come that readers may be reading these bytes. False if the kernel has no more locks.
    pub(crate) fn lock(&self, bytes: Range<u64>) -> bool {
        file_lock::try_lock(&self.file, Access::Shared, bytes).unwrap_or(false)
    }

    /// Nobody reads these bytes any more.
    pub(crate) fn unlock(&self, bytes: Range<u64>) {
        // A lock that stays costs an owner to come some memory while these readers live.
        let _ = file_lock::unlock(&self.file, bytes);
    }

    /// What other openings of the file keep locked, rounded outwards to multiples of `unit`.
    pub(crate) fn locked_by_others(&self, unit: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        // The kernel tells one of the locks, and not the lowest one: there may be more on both sides of it.
        #[expect(
            clippy::single_range_in_vec_init,
            reason = "the first range to be asked for"
        )]
        let mut unknown = vec![0..self.len];
        while let Some(bytes) = unknown.pop() {
            if bytes.is_empty() {
                continue;
            }
            // Where the kernel has no such locks nothing was ever lent.
            let Ok(Some(locked)) = file_lock::locked_by_others(&self.file, bytes.clone()) else {
                continue;
            };
            let start = (locked.start / unit * unit).clamp(bytes.start, bytes.end);
            let end = locked.end.min(bytes.end).next_multiple_of(unit);
            unknown.push(bytes.start..start);
            unknown.push(end..bytes.end);
            found.push(start..end);
        }
        found
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Bytes that readers map.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Of the same opening of the same file.
impl PartialEq for LentFile {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.opening) == (other.id, other.opening)
    }
}

impl Eq for LentFile {}

impl AsFd for LentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A payload file as its readers have it. A process maps each opening of a file once, whoever uses it.
///
/// As a [`Memory`] it panics where it would be written.
#[derive(Debug)]
pub struct LentView {
    mapping: Mapping,
    file: FileId,
    opening: u32,
}

impl LentView {
    /// Maps `len` bytes of an opening of a file for reading, none of which is present at first. The process that gave the descriptor is
    /// trusted: if the file is shortened, reads beyond its end end this process by `SIGBUS`.
    ///
    /// # Errors
    /// `InvalidData` if the file is shorter than that, or `len` is no positive multiple of 4096; what the kernel says.
    pub fn map(fd: OwnedFd, len: u64, opening: u32) -> io::Result<Arc<Self>> {
        static VIEWS: Mutex<Vec<Weak<LentView>>> = Mutex::new(Vec::new());
        let file = File::from(fd);
        let metadata = file.metadata()?;
        let is = metadata.len();
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || is < len {
            let text = format!("{len} bytes of a file of {is} bytes are lent");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let id = FileId::of(&metadata);
        // A step that panics leaves the list as it was.
        let mut views = VIEWS.lock().unwrap_or_else(PoisonError::into_inner);
        views.retain(|view| view.strong_count() > 0);
        // The number is this file's as long as a mapping keeps it.
        let mut found = views.iter().filter_map(Weak::upgrade);
        let is_it = |view: &Arc<Self>| (view.file, view.opening) == (id, opening);
        if let Some(view) = found.find(|view| is_it(view) && view.len() >= len) {
            return Ok(view);
        }
        let mapping = Mapping::new(&file, len, ProtFlags::READ)?;
        let view = Arc::new(Self {
            mapping,
            file: id,
            opening,
        });
        views.push(Arc::downgrade(&view));
        Ok(view)
    }
}

impl Memory for LentView {
    #[inline]
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn file(&self) -> Option<FileId> {
        Some(self.file)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.mapping.word(at).load(Ordering::Acquire)
    }

    fn store(&self, _at: u64, _value: u64) {
        panic!("only its owner writes a payload file");
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }

    fn write(&self, _at: u64, _from: &[u8]) {
        panic!("only its owner writes a payload file");
    }

    #[inline]
    fn write_back(&self, _at: u64, _len: u64) {}

    #[inline]
    fn fence(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn invalidate(&self, _at: u64, _len: u64) {}

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: our caller vouches that the bytes stay still until `f` returns.
        f(unsafe { self.mapping.slice(at, len) })
    }

    unsafe fn with_bytes_mut<R>(
        &self,
        _at: u64,
        _len: usize,
        _f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        panic!("only its owner writes a payload file");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn file(bytes: u64) -> File {
        let made = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file"));
        made.set_len(bytes).expect("room");
        made.write_all_at(b"payload", 4096).expect("room");
        made
    }

    #[test]
    fn a_process_maps_each_opening_of_a_file_once() {
        let lent = LentFile::new(file(8192), 1).expect("metadata");
        let fd = || lent.as_fd().try_clone_to_owned().expect("a descriptor");
        let view = LentView::map(fd(), lent.len(), 1).expect("mapped");
        let again = LentView::map(fd(), lent.len(), 1).expect("mapped");
        assert!(Arc::ptr_eq(&view, &again));
        assert_eq!(view.file(), Some(lent.id()));
        let mut into = [0; 7];
        again.read(4096, &mut into);
        assert_eq!(&into, b"payload");
        let other = LentView::map(file(8192).into(), 4096, 1).expect("mapped");
        assert_ne!(other.file(), view.file());
        let later = LentView::map(fd(), lent.len(), 2).expect("mapped");
        assert!(!Arc::ptr_eq(&view, &later), "another owner's");
    }

    #[test]
    fn what_is_not_there_is_not_mapped() {
        for len in [0, 4095, 8193, 12288, u64::MAX] {
            let error = LentView::map(file(8192).into(), len, 1).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
        }
    }
}
