//! Bytes that are read where the peer lends them, instead of being received into memory of the reader's own.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use embar_memory::{LentView, Memory};

use super::{RecvBuf, Store};

/// Hears when bytes are not read any more, on whichever thread that is.
pub(crate) trait Lessor: Send + Sync {
    /// One lease on this record has ended.
    fn end_lease(&self, record: u64);
}

/// Bytes of a file that the peer lends, where they lie. They stand still as long as this value lives, whatever becomes of the connection
/// and of the peer.
pub struct LentBytes {
    view: Arc<LentView>,
    at: u64,
    len: usize,
    record: u64,
    lessor: Arc<dyn Lessor>,
}

impl LentBytes {
    /// The bytes `at` and `len` of `view`, named by a record on which a lease has begun.
    ///
    /// # Safety
    /// The owner of `view` is trusted: it keeps these bytes as they are until the lease ends, and, when it does
    /// not hear of that any more, until the mapping is gone.
    ///
    /// # Panics
    /// If they are not within the view.
    #[allow(
        unsafe_code,
        reason = "whoever makes one vouches for the owner of the file"
    )]
    pub(crate) unsafe fn new(
        view: Arc<LentView>,
        (at, len): (u64, usize),
        record: u64,
        lessor: Arc<dyn Lessor>,
    ) -> Self {
        let end = at.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= view.len()), "bytes {at}+{len}");
        Self {
            view,
            at,
            len,
            record,
            lessor,
        }
    }
}

impl Deref for LentBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        #[allow(unsafe_code, reason = "a slice of what is lent")]
        // SAFETY: the caller of `new` vouches for the owner; the lease lasts until this value is dropped; the mapping is ours.
        unsafe {
            self.view.slice(self.at, self.len)
        }
    }
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        self.lessor.end_lease(self.record);
    }
}

impl fmt::Debug for LentBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBytes({} at {})", self.len, self.at)
    }
}

impl<M: Memory> RecvBuf<M> {
    /// Lets a reactor put bytes in place of the memory to fill that lie together where the peer lends them, if there are at least
    /// `least`. The store is [`Store::Lent`] then, and the buffer is full, whatever its range was. Others take no notice.
    ///
    /// # Panics
    /// Unless it is of private memory, to be filled from its start, and nothing is.
    pub fn or_lent(mut self, least: usize) -> Self {
        let is_new = (self.start, self.cursor) == (0, 0) && matches!(self.store, Store::Heap(_));
        assert!(
            is_new,
            "only a buffer of which nothing is filled becomes another"
        );
        self.lent_least = Some(least);
        self
    }

    /// Whether what it holds lies where the peer lends it.
    pub fn is_lent(&self) -> bool {
        matches!(self.store, Store::Lent(..))
    }

    /// How many bytes that are lent it takes, at least and at most, if it takes any.
    pub(crate) fn takes_lent(&self) -> Option<(usize, usize)> {
        let least = self.lent_least.filter(|_| self.cursor == self.start)?;
        Some((least, self.remaining()))
    }

    /// The buffer becomes what is lent.
    pub(crate) fn become_lent(&mut self, bytes: LentBytes) {
        let space = match std::mem::replace(&mut self.store, Store::Heap(Vec::new())) {
            Store::Heap(space) => space,
            _ => Vec::new(),
        };
        (self.cursor, self.end) = (bytes.len(), bytes.len());
        self.store = Store::Lent(bytes, space);
    }
}
