//! What a journal needs of the place where its files are.

use std::io;

use crate::aligned::AlignedBuffer;

/// A directory on one disk.
pub trait Storage: Send + Sync {
    /// One of its files.
    type File: StoredFile;

    /// The names of its files, in no order.
    ///
    /// # Errors
    /// What the system says.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes a file and reserves its bytes. Neither it nor its name survives a power cut before the file is synced, and then
    /// the [names](Storage::sync_names).
    ///
    /// # Errors
    /// What the system says: that there is such a file, or that the disk is full.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Removes a file; who has it open may go on reading.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, which no file has. It has one of the two when the power goes, and the new one once the
    /// [names](Storage::sync_names) are synced.
    ///
    /// # Errors
    /// What the system says: that there is such a file, or none to rename.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// On return, files that were made and removed stay so when the power goes.
    ///
    /// # Errors
    /// What the system says.
    fn sync_names(&self) -> io::Result<()>;

    /// On return, all that anybody wrote to its files stays when the power goes.
    ///
    /// # Errors
    /// What the system says.
    fn sync_all(&self) -> io::Result<()>;

    /// Bytes that more files may take.
    ///
    /// # Errors
    /// What the system says.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// A file of a [`Storage`]. Several threads may read and write different parts of it at once.
pub trait StoredFile: Send + Sync {
    /// Writes at `at`, a multiple of [`ALIGN_BYTES`](crate::format::ALIGN_BYTES), as `bytes` is long. On return the bytes stay
    /// when the power goes.
    ///
    /// # Errors
    /// What the system says. Then nobody knows which of the bytes are there, and the file is not to be written again: a
    /// later sync may succeed although they are lost.
    fn write_synced(&self, at: u64, bytes: &AlignedBuffer, len: usize) -> io::Result<()>;

    /// Gives the disk back what lies there: it reads as zeros afterwards, and the file is as long as before. Both are multiples of
    /// [`ALIGN_BYTES`](crate::format::ALIGN_BYTES). When the power goes, any of it may be there again.
    ///
    /// # Errors
    /// What the system says: [`io::ErrorKind::Unsupported`] where the file system cannot.
    fn punch_hole(&self, at: u64, bytes: u64) -> io::Result<()>;

    /// Reads from `at` on, as many bytes as `into` has room for, at most up to the end of the file; returns how many these are.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, at: u64, into: &mut AlignedBuffer) -> io::Result<usize>;

    /// Its bytes.
    ///
    /// # Errors
    /// What the system says.
    fn size(&self) -> io::Result<u64>;
}
