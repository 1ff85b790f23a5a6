//! Memory mapped from a file, shared with the other processes that map it.

use std::fs::File;
use std::io;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::ProtFlags;

use crate::cache_line;
use crate::damage::{Damage, DamageLog};
use crate::file_id::FileId;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::memory::{Memory, check_range};
use crate::reserve::reserve;

/// Whether the hosts that share a region see each other's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coherence {
    /// They do (one machine): write-back and invalidate are free, a fence orders stores only.
    Coherent,
    /// They do not (CXL 2.0 between hosts): lines are written back and invalidated by hand.
    WriteBack,
}

/// A file mapped shared and writable for the life of this value.
#[derive(Debug)]
pub struct Mapped {
    mapping: Mapping,
    file: FileId,
    coherence: Coherence,
    damage: DamageLog,
}

impl Mapped {
    /// Maps `len` fresh bytes that no file name leads to.
    ///
    /// `len` is a positive multiple of 4096. Fails when the kernel has no memory or descriptors.
    pub fn anonymous(len: u64, coherence: Coherence) -> io::Result<Self> {
        // The file goes nowhere, so nobody makes another mapping of it.
        Self::anonymous_file(len, coherence).map(|(memory, _)| memory)
    }

    /// As [`Mapped::anonymous`], with the file.
    pub(crate) fn anonymous_file(len: u64, coherence: Coherence) -> io::Result<(Self, File)> {
        let file = File::from(memfd_create(c"embar", MemfdFlags::CLOEXEC)?);
        reserve(&file, len, len, &|_| {})?;
        // SAFETY: no other mapping of this file exists; whoever makes one keeps its promises.
        let memory = unsafe { Self::map(&file, len, coherence)? };
        Ok((memory, file))
    }

    /// Maps the first `len` bytes of `file`, which must be that long and never shrink.
    ///
    /// # Safety
    ///
    /// Every user of the mapping can store into the file. The caller makes sure that none does so, or
    /// loads, by any mapping of it, where a [`PayloadFile`](crate::PayloadFile) of this process may show
    /// a slice.
    pub unsafe fn map(file: &File, len: u64, coherence: Coherence) -> io::Result<Self> {
        assert!(
            len > 0 && len.is_multiple_of(PAGE_BYTES),
            "mapping of {len} bytes"
        );
        Ok(Self {
            file: FileId::of(&file.metadata()?),
            mapping: Mapping::new(file, len, ProtFlags::READ | ProtFlags::WRITE)?,
            coherence,
            damage: DamageLog::default(),
        })
    }

    /// What this mapping does on write-back and invalidate.
    pub fn coherence(&self) -> Coherence {
        self.coherence
    }

    /// Makes the pages of a range present and writable in this process.
    ///
    /// Fails when the kernel is out of memory.
    ///
    /// # Panics
    /// When the range is outside of the file.
    pub fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        self.mapping.populate(at, len, true)
    }

    fn line_pointers(&self, at: u64, len: u64) -> impl Iterator<Item = *mut u8> {
        check_range(at, len, self.len());
        cache_line::lines(at, len).map(|line| self.mapping.pointer(line))
    }

    /// The bytes of a range, for a holder whose lease keeps them still.
    ///
    /// # Safety
    ///
    /// No process writes these bytes while the slice lives.
    pub(crate) unsafe fn slice(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: the caller vouches that the bytes stay still.
        unsafe { self.mapping.slice(at, len) }
    }

    /// The bytes of a range, for its only user.
    ///
    /// # Safety
    ///
    /// No other thread or process reads or writes these bytes while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive use is what the caller vouches for"
    )]
    pub(crate) unsafe fn slice_mut(&self, at: u64, len: usize) -> &mut [u8] {
        // SAFETY: the caller vouches for exclusive use; the mapping is writable.
        unsafe { self.mapping.slice_mut(at, len) }
    }
}

impl Memory for Mapped {
    #[inline]
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn is_coherent(&self) -> bool {
        self.coherence == Coherence::Coherent
    }

    fn file(&self) -> Option<FileId> {
        Some(self.file)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.mapping.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.mapping.word(at).store(value, Ordering::Release);
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        let words = self.mapping.words(at, into.len());
        let (whole, rest) = into.as_chunks_mut::<8>();
        for (bytes, word) in whole.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let Some(last) = words.last()
            && !rest.is_empty()
        {
            let bytes = last.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&bytes[..rest.len()]);
        }
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        let words = self.mapping.words(at, from.len());
        let (whole, rest) = from.as_chunks::<8>();
        for (bytes, word) in whole.iter().zip(words) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if let Some(last) = words.last()
            && !rest.is_empty()
        {
            let mut bytes = last.load(Ordering::Relaxed).to_le_bytes();
            bytes[..rest.len()].copy_from_slice(rest);
            last.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    #[inline]
    fn write_back(&self, at: u64, len: u64) {
        if self.coherence == Coherence::WriteBack {
            // SAFETY: `line_pointers` checked the range and yields addresses in our mapping.
            unsafe { cache_line::write_back(self.line_pointers(at, len)) };
        }
    }

    #[inline]
    fn fence(&self) {
        // Partner: the acquire load of whatever word is stored next.
        fence(Ordering::Release);
        if self.coherence == Coherence::WriteBack {
            cache_line::store_fence();
        }
    }

    #[inline]
    fn invalidate(&self, at: u64, len: u64) {
        if self.coherence == Coherence::WriteBack {
            // SAFETY: `line_pointers` checked the range and yields addresses in our mapping.
            unsafe { cache_line::invalidate(self.line_pointers(at, len)) };
        }
    }

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: our caller vouches that the bytes stay still until `f` returns.
        f(unsafe { self.slice(at, len) })
    }

    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: our caller vouches for exclusive use until `f` returns.
        f(unsafe { self.slice_mut(at, len) })
    }

    fn note_damage(&self, at: u64, damage: Damage) {
        self.damage.note(at, damage);
    }

    fn damage(&self) -> Vec<(u64, Damage)> {
        self.damage.all()
    }
}
