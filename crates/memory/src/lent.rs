//! Payload files that their owner lends to processes of its own user, for reading.
//!
//! Such a file has a name in a directory of its user, and nobody can seal it. So who maps it trusts its owner: not to
//! shorten it, and to keep what it lends as it is until the loan ends ([`Loan`](crate::Loan)). Whether a process may be
//! trusted is found out where its descriptor comes from.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::ProtFlags;

use crate::file_id::FileId;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::memory::Memory;

/// The descriptor of a payload file, for handing it to readers. It was opened for reading only.
#[derive(Debug, Clone)]
pub struct LentFile {
    file: Arc<File>,
    id: FileId,
    len: u64,
}

impl LentFile {
    /// Of a file that was opened for reading, whose length is a multiple of 4096 and will not shrink.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            id: FileId::of(&metadata),
            len: metadata.len() / PAGE_BYTES * PAGE_BYTES,
            file: Arc::new(file),
        })
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

/// Of the same file.
impl PartialEq for LentFile {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for LentFile {}

impl AsFd for LentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A payload file as its readers have it. A process maps each file once, whoever uses it.
///
/// As a [`Memory`] it panics where it would be written.
#[derive(Debug)]
pub struct LentView {
    mapping: Mapping,
    file: FileId,
}

impl LentView {
    /// Maps `len` bytes of a file for reading, none of which is present at first. The process that gave the descriptor is
    /// trusted: if the file is shortened, reads beyond its end end this process by `SIGBUS`.
    ///
    /// # Errors
    /// `InvalidData` if the file is shorter than that, or `len` is no positive multiple of 4096; what the kernel says.
    pub fn map(fd: OwnedFd, len: u64) -> io::Result<Arc<Self>> {
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
        if let Some(view) = found.find(|view| view.file == id && view.len() >= len) {
            return Ok(view);
        }
        let mapping = Mapping::new(&file, len, ProtFlags::READ)?;
        let view = Arc::new(Self { mapping, file: id });
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
    fn a_process_maps_each_file_once() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        let fd = || lent.as_fd().try_clone_to_owned().expect("a descriptor");
        let view = LentView::map(fd(), lent.len()).expect("mapped");
        let again = LentView::map(fd(), lent.len()).expect("mapped");
        assert!(Arc::ptr_eq(&view, &again));
        assert_eq!(view.file(), Some(lent.id()));
        let mut into = [0; 7];
        again.read(4096, &mut into);
        assert_eq!(&into, b"payload");
        let other = LentView::map(file(8192).into(), 4096).expect("mapped");
        assert_ne!(other.file(), view.file());
    }

    #[test]
    fn what_is_not_there_is_not_mapped() {
        for len in [0, 4095, 8193, 12288, u64::MAX] {
            let error = LentView::map(file(8192).into(), len).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
        }
    }
}
