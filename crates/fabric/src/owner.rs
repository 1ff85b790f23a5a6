//! Who owns a row, and whether it still lives.
//!
//! The owner holds a lock on the file `owner-<row>` for as long as it lives; the kernel drops it
//! when the process dies, however it dies, so no reused process id is ever mistaken for the owner.
//! The locks are those of open file descriptions ([`file_lock`]): a look at a region never gets in the way of a claim. A forked
//! child holds its parent's locks too, until it becomes another program (the descriptors close on exec) or ends.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use embar_memory::file_lock::{self, Access, WHOLE};
use embar_memory::{FileId, LentFile};

/// The right to write what belongs to one row, for one incarnation of its owner.
///
/// Dropping it, and every [`PayloadFile`](embar_memory::PayloadFile) had with it, gives the row up.
#[derive(Debug)]
pub struct Claim {
    row: u16,
    incarnation: u32,
    /// The lock, and the control file of the region it belongs to; none for tests and simulations.
    lock: Option<(Arc<File>, FileId)>,
    /// By which its payload is lent, if it takes data.
    lends: Option<LentFile>,
}

impl Claim {
    /// A claim that no lock backs, for simulations and tests of a region without a directory.
    pub fn unlocked(row: u16, incarnation: u32) -> Self {
        Self {
            row,
            incarnation,
            lock: None,
            lends: None,
        }
    }

    pub(crate) fn locked(
        row: u16,
        incarnation: u32,
        lock: File,
        control: FileId,
        lends: Option<File>,
    ) -> io::Result<Self> {
        let lends = lends.map(LentFile::new);
        Ok(Self {
            row,
            incarnation,
            lock: Some((Arc::new(lock), control)),
            lends: lends.transpose()?,
        })
    }

    /// The row's payload file, opened for reading by this incarnation: for processes of this user to whom it is lent.
    pub fn lends(&self) -> Option<&LentFile> {
        self.lends.as_ref()
    }

    /// The row claimed.
    pub fn row(&self) -> u16 {
        self.row
    }

    /// One above that of the owner before, from 1.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The lock, if it is one on the region with this control file. A copy of a region has the same
    /// nonce, and locks of its own.
    pub(crate) fn lock_of(&self, control: Option<FileId>) -> Option<&Arc<File>> {
        let (lock, of) = self.lock.as_ref()?;
        (Some(*of) == control).then_some(lock)
    }
}

/// Takes the exclusive lock of an owner file, unless another descriptor holds it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    file_lock::try_lock(file, Access::Exclusive, WHOLE)
}

/// Whether another descriptor holds the lock.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    file_lock::locked_by_others(file, WHOLE).map(|found| found.is_some())
}

/// Gives the lock back, also of a file that is mapped.
pub(crate) fn unlock(file: &File) -> io::Result<()> {
    file_lock::unlock(file, WHOLE)
}

/// Leaves our process id in the owner file, for messages to people.
pub(crate) fn write_pid(mut file: &File) -> io::Result<()> {
    file.rewind()?;
    // Fixed width, so that a longer id of an earlier owner is fully overwritten.
    writeln!(file, "{:<10}", std::process::id())
}

/// The process id that the last owner left; 0 when there is none.
pub(crate) fn read_pid(mut file: &File) -> u32 {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(16).read_to_string(&mut text));
    read.ok()
        .and_then(|_| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_and_ends_with_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path().join("owner"))
                .unwrap()
        };
        let (holder, other) = (open(), open());
        assert!(!is_locked(&other).unwrap());
        assert!(try_lock(&holder).unwrap());
        assert!(is_locked(&other).unwrap());
        assert!(!try_lock(&other).unwrap());
        write_pid(&holder).unwrap();
        assert_eq!(read_pid(&other), std::process::id());
        drop(holder);
        assert!(!is_locked(&other).unwrap());
        assert!(try_lock(&other).unwrap());
    }
}
