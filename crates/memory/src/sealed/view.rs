//! Sealed memory as its readers have it: mapped from a descriptor that another process gave them.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstatfs};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use super::{SEALED_PAGE_BYTES, SEALS};
use crate::file_id::FileId;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::reserve::TMPFS_MAGIC;

/// Bytes of the unit in which the kernel counts what a file takes.
const BLOCK_BYTES: u64 = 512;

/// Why a descriptor is not mapped.
#[derive(Debug)]
#[non_exhaustive]
pub enum SealedError {
    /// The file lacks seals: its owner could write it by other ways, shorten it, or punch holes into it.
    NotSealed {
        /// The seals that it has, as the kernel counts them.
        has: u32,
    },
    /// It is no file in the kernel's own memory of small pages.
    NotTmpfs {
        /// What the kernel says of its file system.
        kind: u64,
    },
    /// Its size is not the one that its owner said.
    Size {
        /// What its owner said, in bytes.
        said: u64,
        /// What it is, in bytes.
        is: u64,
    },
    /// The size is zero, or no multiple of [`SEALED_PAGE_BYTES`].
    Uneven {
        /// The size that its owner said, in bytes.
        said: u64,
    },
    /// Some of its pages are not there: this process would pay for them.
    Holes {
        /// Bytes that are there.
        present: u64,
    },
    /// The kernel refuses.
    Io(io::Error),
}

impl fmt::Display for SealedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSealed { has } => write!(
                f,
                "the descriptor has the seals {has:#x}, and lacks some of {:#x} (shrink, grow, future write, seal)",
                SEALS.bits()
            ),
            Self::NotTmpfs { kind } => write!(
                f,
                "the descriptor is of a file system of kind {kind:#x}, and not of a memfd with small pages"
            ),
            Self::Size { said, is } => {
                write!(f, "the memory has {is} bytes, and its owner said {said}")
            }
            Self::Uneven { said } => write!(
                f,
                "memory of {said} bytes: expected a multiple of {SEALED_PAGE_BYTES} above zero"
            ),
            Self::Holes { present } => {
                write!(f, "only {present} bytes of the memory are present")
            }
            Self::Io(error) => write!(f, "the descriptor cannot be used: {error}"),
        }
    }
}

impl std::error::Error for SealedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SealedError> for io::Error {
    /// `InvalidData`, or what the kernel said.
    fn from(error: SealedError) -> Self {
        let kind = match &error {
            SealedError::Io(error) => error.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl From<Errno> for SealedError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<io::Error> for SealedError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Memory that another process owns and may change at any time. It can be read only.
///
/// As a [`Memory`] it panics where it would be written.
#[derive(Debug)]
pub struct SealedView {
    mapping: Mapping,
    file: FileId,
}

impl SealedView {
    /// Maps memory by a descriptor that may be of anything. Whoever gave it says that it is of `len` bytes; the caller has
    /// found that to be no more than it wants to map. The descriptor stays the caller's, to be closed where that may take
    /// long: only of what was mapped it does not.
    ///
    /// # Errors
    /// [`SealedError`] says what is wrong with the descriptor.
    pub fn map(fd: impl AsFd, len: u64) -> Result<Self, SealedError> {
        if len == 0 || !len.is_multiple_of(SEALED_PAGE_BYTES) {
            return Err(SealedError::Uneven { said: len });
        }
        // First, because it asks no file system, which may be one that never answers.
        let seals = fcntl_get_seals(&fd).or_else(|error| match error {
            // What cannot be sealed has no seals.
            Errno::INVAL => Ok(SealFlags::empty()),
            other => Err(other),
        })?;
        if !seals.contains(SEALS) {
            let has = seals.bits();
            return Err(SealedError::NotSealed { has });
        }
        let kind = fstatfs(&fd)?.f_type.cast_unsigned();
        if kind != TMPFS_MAGIC {
            return Err(SealedError::NotTmpfs { kind });
        }
        // With these seals none of what follows can change any more.
        let metadata = File::from(fd.as_fd().try_clone_to_owned()?).metadata()?;
        let is = metadata.len();
        if is != len {
            return Err(SealedError::Size { said: len, is });
        }
        let present = std::os::unix::fs::MetadataExt::blocks(&metadata) * BLOCK_BYTES;
        // Blocks may lie behind the end, too, so what is there is not told by their number.
        let hole = rustix::fs::seek(&fd, SeekFrom::Hole(0))?;
        if present < len || hole < len {
            let present = present.min(hole);
            return Err(SealedError::Holes { present });
        }
        let mapping = Mapping::new(&fd, len, ProtFlags::READ)?;
        let file = FileId::of(&metadata);
        Ok(Self { mapping, file })
    }

    /// Makes all pages present in this process, so that no later read takes a fault.
    ///
    /// # Errors
    /// When the kernel is out of memory.
    pub fn populate(&self) -> io::Result<()> {
        self.mapping.populate(0, self.mapping.len(), false)
    }

    /// Copies the bytes from `at` on, as many as `into` holds, while their owner may be writing them. `at` may be any place.
    ///
    /// # Panics
    /// When they do not end within the memory.
    #[inline]
    pub fn copy_to(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }
}

impl Memory for SealedView {
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
        panic!("only its owner writes sealed memory");
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }

    #[inline]
    fn read_seen(&self, at: u64, into: &mut [u8], see: &mut dyn FnMut(&[u8])) {
        self.mapping.copy_out_seen(at, into, see);
    }

    fn write(&self, _at: u64, _from: &[u8]) {
        panic!("only its owner writes sealed memory");
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
        panic!("only its owner writes sealed memory");
    }
}
