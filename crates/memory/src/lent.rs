//! Payload files that their owner lends to processes of its own user, for reading.
//!
//! Such a file has a name in a directory of its user, and nobody can seal it. So who maps it trusts its owner: not to
//! shorten it, and to keep what it lends as it is until the loan ends ([`Loan`](crate::Loan)). Whether a process may be
//! trusted is found out where its descriptor comes from.
//!
//! Neither an owner that dies nor a connection that ends asks a reader whether it is through. So each reader is given an opening of the file of its own
//! ([`LentOpening`]), and by that the owner locks the blocks of which this reader is lent something ([`file_lock`]). The reader's mapping
//! keeps the opening, and with it the locks, for as long as anything of it is read, whatever becomes of the owner. Who owns the
//! file finds those locks, and uses these blocks for nothing new until the reader is gone.

mod left;

pub use left::LEFT_LOCKS_MAX;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::file_id::FileId;
use crate::file_lock::{self, Access};
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::memory::Memory;
use crate::present::Present;
use left::{LIVES, Left};

/// A payload file that is lent to readers, by one owner, which opened it for reading only.
#[derive(Debug, Clone)]
pub struct LentFile {
    file: Arc<File>,
    id: FileId,
    len: u64,
    left: Arc<Left>,
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
            left: Arc::new(Left::new()),
        })
    }

    /// Opens the file once more, for one reader.
    ///
    /// # Errors
    /// What the kernel says, for instance that this process has as many descriptors as it may; that there is no `/proc`.
    /// `QuotaExceeded` while readers that nobody hears of any more keep [too many locks](LEFT_LOCKS_MAX).
    pub fn open(&self) -> io::Result<LentOpening> {
        let file = File::open(path_of(self))?;
        if FileId::of(&file.metadata()?) != self.id {
            return Err(io::ErrorKind::NotFound.into());
        }
        let life = self.left.begin(&file, &self.file)?;
        Ok(LentOpening {
            opened: Self {
                file: Arc::new(file),
                ..self.clone()
            },
            life,
            locked: Mutex::default(),
        })
    }

    /// What openings of the file keep locked, rounded outwards to multiples of `unit`. Takes note of the openings that owners
    /// before left.
    pub(crate) fn find_locked(&self, unit: u64) -> Vec<Range<u64>> {
        self.left.find(self.locked(LIVES, 1));
        self.locked(0..self.len, unit)
    }

    /// What openings keep locked of these bytes, rounded in the same way.
    fn locked(&self, bytes: Range<u64>, unit: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut unknown = vec![bytes];
        while let Some(bytes) = unknown.pop() {
            let looked = self.look(&bytes, unit);
            if let Found::Readers(locked) | Found::Others(locked) = &looked {
                unknown.push(bytes.start..locked.start);
                unknown.push(locked.end..bytes.end);
            }
            if let Found::Readers(locked) = looked {
                found.push(locked);
            }
        }
        found
    }

    /// Looks at one of the locks on these bytes. Its own bytes are rounded in the same way.
    pub(crate) fn look(&self, bytes: &Range<u64>, unit: u64) -> Found {
        look(&self.file, bytes, unit)
    }

    /// Forgets openings whose owner closed them, and whose readers are gone since. Looks at most at `most` of them in one call.
    pub(crate) fn forget_gone(&self, most: usize) {
        self.left.forget_gone(&self.file, most);
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

/// By the descriptor, because the name may be gone, or another file's.
fn path_of(lent: &LentFile) -> String {
    format!("/proc/self/fd/{}", lent.file.as_raw_fd())
}

/// One lock on what was looked at. The kernel tells not the lowest one, so there may be more on both sides of it.
pub(crate) enum Found {
    /// Readers may have these bytes.
    Readers(Range<u64>),
    /// Another program has these bytes locked for itself alone. Readers share, so none has any of them.
    Others(Range<u64>),
    /// Nobody has anything.
    Nothing,
}

/// See [`LentFile::look`]. Where the kernel tells nothing, for instance for want of memory, all may be locked: who asks again learns
/// more.
fn look(file: &File, bytes: &Range<u64>, unit: u64) -> Found {
    if bytes.is_empty() {
        return Found::Nothing;
    }
    let lock = match file_lock::lock_of_others(file, bytes.clone()) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Found::Nothing,
        Err(error) => match Errno::from_io_error(&error) {
            // The kernel has no such locks, so nothing was ever lent.
            Some(Errno::INVAL | Errno::NOSYS) => return Found::Nothing,
            _ => return Found::Readers(bytes.clone()),
        },
    };
    let start = (lock.bytes.start / unit * unit).clamp(bytes.start, bytes.end);
    let end = lock.bytes.end.min(bytes.end).next_multiple_of(unit);
    match lock.access {
        Access::Shared => Found::Readers(start..end),
        Access::Exclusive => Found::Others(start..end),
    }
}

/// The same file.
impl PartialEq for LentFile {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for LentFile {}

/// A payload file as its owner opened it for one reader, to whom it hands the descriptor over.
///
/// The owner drops this value when it lends the reader nothing more. What it did not [end](crate::Loan) of its loans is locked from then on until the
/// reader has unmapped the file.
#[derive(Debug)]
pub struct LentOpening {
    opened: LentFile,
    /// Where its life byte is.
    life: u64,
    /// Loans on each block, by where it begins.
    locked: Mutex<BTreeMap<u64, usize>>,
}

impl LentOpening {
    /// The file, as it was opened for the reader.
    pub fn file(&self) -> &LentFile {
        &self.opened
    }

    /// Tells owners to come that the reader may be reading this block. False if the kernel has no more locks.
    pub(crate) fn lock(&self, block: Range<u64>) -> bool {
        let mut locked = self.locked();
        let loans = locked.entry(block.start).or_default();
        if *loans == 0
            && !file_lock::try_lock(&self.opened.file, Access::Shared, block.clone())
                .unwrap_or(false)
        {
            locked.remove(&block.start);
            return false;
        }
        *loans += 1;
        true
    }

    /// The reader is through with one of the loans on the block.
    pub(crate) fn unlock(&self, block: Range<u64>) {
        let mut locked = self.locked();
        let Some(loans) = locked.get_mut(&block.start) else {
            return;
        };
        *loans -= 1;
        if *loans == 0 {
            locked.remove(&block.start);
            // A lock that stays keeps the block from being used again until this reader is gone.
            let _ = file_lock::unlock(&self.opened.file, block);
        }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        // No step leaves it half-done when it panics.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LentOpening {
    fn drop(&mut self) {
        let blocks = self.locked().len();
        self.opened.left.add(self.life, blocks + 1);
    }
}

impl AsFd for LentOpening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.file.as_fd()
    }
}

/// A payload file as one of its readers has it: an opening of its own, which this mapping keeps.
///
/// As a [`Memory`] it panics where it would be written.
#[derive(Debug)]
pub struct LentView {
    mapping: Mapping,
    present: Present,
    file: FileId,
}

impl LentView {
    /// Maps `len` bytes of an opening of a file for reading, none of which is present at first. The process that gave the descriptor is
    /// trusted: if the file is shortened, reads beyond its end end this process by `SIGBUS`.
    /// A process that this one forks does not have the mapping.
    ///
    /// # Errors
    /// `InvalidData` if the file is shorter than that, or `len` is no positive multiple of 4096; what the kernel says.
    pub fn map(fd: OwnedFd, len: u64) -> io::Result<Arc<Self>> {
        let file = File::from(fd);
        let metadata = file.metadata()?;
        let is = metadata.len();
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || is < len {
            let text = format!("{len} bytes of a file of {is} bytes are lent");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mapping = Mapping::new(&file, len, ProtFlags::READ)?;
        // The owner keeps what is lent for as long as anybody maps this opening, and a child would do so for as long as it lives.
        mapping.stay_here()?;
        Ok(Arc::new(Self {
            mapping,
            present: Present::none(len),
            file: FileId::of(&metadata),
        }))
    }

    /// Makes the pages of a range present, which are about to be read, and those around them, once.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    #[inline]
    pub fn make_present(&self, at: u64, len: usize) {
        self.present.make(&self.mapping, at, len as u64);
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// They stand still while the slice lives: they are lent, the loan has not ended, and the owner keeps what it lends as it is.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    #[inline]
    pub unsafe fn slice(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: our caller vouches that the bytes stand still; the range is checked there.
        unsafe { self.mapping.slice(at, len) }
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
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    use super::*;

    fn file(bytes: u64) -> File {
        let made = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file"));
        made.set_len(bytes).expect("room");
        made.write_all_at(b"payload", 4096).expect("room");
        made
    }

    fn only(ranges: &[Range<u64>]) -> Range<u64> {
        assert_eq!(ranges.len(), 1, "{ranges:?}");
        ranges[0].clone()
    }

    #[test]
    fn a_reader_maps_an_opening_of_its_own() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        let opening = lent.open().expect("a descriptor");
        let fd = opening.as_fd().try_clone_to_owned().expect("a descriptor");
        let view = LentView::map(fd, lent.len()).expect("mapped");
        assert_eq!(
            (view.file(), opening.file().id()),
            (Some(lent.id()), lent.id())
        );
        let mut into = [0; 7];
        view.read(4096, &mut into);
        assert_eq!(&into, b"payload");
        assert!(opening.lock(0..4096));
        assert_eq!(only(&lent.find_locked(4096)), 0..4096);
        // The owner is through with the reader, and the reader is not through.
        drop(opening);
        assert_eq!(only(&lent.find_locked(4096)), 0..4096);
        drop(view);
        assert!(lent.find_locked(4096).is_empty());
    }

    #[test]
    fn a_block_is_locked_from_its_first_loan_to_its_last() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        let opening = lent.open().expect("a descriptor");
        assert!(opening.lock(0..4096) && opening.lock(0..4096) && opening.lock(4096..8192));
        opening.unlock(0..4096);
        assert_eq!(only(&lent.find_locked(8192)), 0..8192);
        opening.unlock(0..4096);
        assert_eq!(only(&lent.find_locked(4096)), 4096..8192);
        opening.unlock(0..4096);
        opening.unlock(4096..8192);
        assert!(lent.find_locked(4096).is_empty());
    }

    /// What is found locked by a thread whose every `fcntl` ends like this.
    fn locked_where_asking_ends(lent: LentFile, errno: Errno) -> Vec<Range<u64>> {
        let asking = move || {
            let refused = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
            let rules = [(libc::SYS_fcntl, Vec::new())].into();
            let arch = std::env::consts::ARCH.try_into().expect("a known one");
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
            let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
            apply_filter(&program).expect("it is of this thread alone");
            lent.find_locked(4096)
        };
        std::thread::spawn(asking).join().expect("an answer")
    }

    #[test]
    fn readers_that_are_not_heard_any_more_keep_no_more_locks_than_may_be_left() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        let mapped = |opening: &LentOpening| {
            let fd = opening.as_fd().try_clone_to_owned().expect("a descriptor");
            LentView::map(fd, lent.len()).expect("mapped")
        };
        let mut views = Vec::new();
        let refused = loop {
            assert!(views.len() < LEFT_LOCKS_MAX, "it goes on for ever");
            match lent.open() {
                Ok(opening) => {
                    assert!(opening.lock(0..4096));
                    views.push(mapped(&opening));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert_eq!(views.len(), LEFT_LOCKS_MAX / 2, "a block and a life byte");
        // The next owner learns of them.
        let next = LentFile::new(File::open(path_of(&lent)).expect("open")).expect("metadata");
        assert_eq!(only(&next.find_locked(4096)), 0..4096);
        assert_eq!(next.left.locks(), LEFT_LOCKS_MAX / 2);
        // Some are gone, and others have the same block still.
        views.truncate(10);
        for of in [&lent, &next] {
            of.forget_gone(views.len());
            of.forget_gone(LEFT_LOCKS_MAX);
            of.open().expect("there is room again");
        }
        assert_eq!(lent.left.locks(), 10 * 2 + 1, "and the last opening");
    }

    #[test]
    fn readers_that_end_leave_nothing_however_many_come() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        for _ in 0..2 * LEFT_LOCKS_MAX {
            lent.open().expect("a descriptor");
        }
        assert!(lent.left.locks() < 4);
    }

    #[test]
    fn what_the_kernel_does_not_tell_counts_as_locked() {
        let lent = LentFile::new(file(8192)).expect("metadata");
        let found = locked_where_asking_ends(lent.clone(), Errno::NOMEM);
        assert_eq!(only(&found), 0..8192);
        for missing in [Errno::INVAL, Errno::NOSYS] {
            let found = locked_where_asking_ends(lent.clone(), missing);
            assert!(found.is_empty(), "a kernel without such locks");
        }
    }

    #[test]
    fn what_is_not_there_is_not_mapped() {
        for len in [0, 4095, 8193, 12288, u64::MAX] {
            let error = LentView::map(file(8192).into(), len).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
        }
    }
}
