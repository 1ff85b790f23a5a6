//! Locks on ranges of a file, held by its open file description (`F_OFD_SETLK`).
//!
//! Such a lock is kept by whatever keeps the description: a descriptor, in whichever process it came to be by a fork or
//! by a socket, and a mapping. It ends with the last of these, however they end. Unlike `flock` it can be asked for without being
//! taken. See fcntl(2).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The whole file, however long it is or will be.
pub const WHOLE: Range<u64> = 0..u64::MAX;

/// Who else may hold a lock on the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Others that share. The file is open for reading.
    Shared,
    /// Nobody. The file is open for writing.
    Exclusive,
}

impl Access {
    fn kind(self) -> libc::c_int {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }
}

/// Takes a lock on these bytes, unless another description holds one that is in its way. False: one does.
///
/// # Errors
/// What the kernel says, for instance that it has no more locks.
pub fn try_lock(file: &File, access: Access, bytes: Range<u64>) -> io::Result<bool> {
    match call(file, libc::F_OFD_SETLK, access.kind(), bytes) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        // POSIX lets a kernel say EACCES for "held by another".
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives back what this description holds of these bytes. Needed for a file that is mapped: the mapping keeps the description, and
/// with it the lock, after the descriptor is closed.
///
/// # Errors
/// What the kernel says.
pub fn unlock(file: &File, bytes: Range<u64>) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// A lock that a description has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// On these bytes, which may reach beyond what was asked for.
    pub bytes: Range<u64>,
    /// Who else may have one.
    pub access: Access,
}

/// A lock of another description on some of these bytes, be it shared or not: of the locks there are, one.
///
/// # Errors
/// What the kernel says.
pub fn lock_of_others(file: &File, bytes: Range<u64>) -> io::Result<Option<Lock>> {
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    let access = match libc::c_int::from(found.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => Access::Shared,
        _ => Access::Exclusive,
    };
    let start = found.l_start.cast_unsigned();
    let end = match found.l_len.cast_unsigned() {
        0 => WHOLE.end,
        len => start.saturating_add(len),
    };
    let bytes = start..end;
    Ok(Some(Lock { bytes, access }))
}

/// The bytes of such a lock.
///
/// # Errors
/// What the kernel says.
pub fn locked_by_others(file: &File, bytes: Range<u64>) -> io::Result<Option<Range<u64>>> {
    lock_of_others(file, bytes).map(|found| found.map(|lock| lock.bytes))
}

/// Asks for, or about, a lock; returns what was filled in.
fn call(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    bytes: Range<u64>,
) -> io::Result<libc::flock> {
    let number = |it: u64| {
        libc::off_t::try_from(it).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    };
    // SAFETY: `flock` is plain integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = number(bytes.start)?;
    // No length is up to the end, wherever that is.
    lock.l_len = match bytes.end {
        u64::MAX => 0,
        end => number(end.saturating_sub(bytes.start).max(1))?,
    };
    // SAFETY: the descriptor is open for the borrow's life, and both commands take a pointer to a
    // `flock`, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}
