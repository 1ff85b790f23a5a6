//! Openings that their owner closed while their readers still had something of what they were lent, and how many locks those
//! keep.
//!
//! The kernel looks at every lock on a file when it is asked for one. So the owner knows of each lock that it can take back no more,
//! and makes no new openings while they are many. Each opening has a lock of its own on its *life byte*, which lies beyond all
//! that is read: it tells whether that reader lives, whoever else has locked the same blocks.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Found, look};
use crate::file_lock::{self, Access};

/// While so many locks are left, a file is opened for no reader more: it takes 10 us then to lock a block and to unlock it again.
pub const LEFT_LOCKS_MAX: usize = 1024;

/// How many are looked at for each new one.
const LOOKS: usize = 2;

/// Where life bytes are.
pub(super) const LIVES: Range<u64> = 1 << 62..1 << 63;

/// What was left of one file, by this owner and those before.
#[derive(Debug)]
pub(super) struct Left {
    /// The next life byte.
    next: AtomicU64,
    /// Life bytes of those whose readers may live, and how many locks each keeps.
    openings: Mutex<VecDeque<(u64, usize)>>,
}

impl Left {
    pub fn new() -> Self {
        Self {
            next: AtomicU64::new(LIVES.start),
            openings: Mutex::default(),
        }
    }

    /// Takes note of the life bytes that owners before left locked. What each keeps besides is not known.
    pub fn find(&self, lives: Vec<Range<u64>>) {
        for life in lives {
            // Who locks more than a byte is no reader.
            if life.end - life.start == 1 {
                self.next.fetch_max(life.end, Ordering::Relaxed);
            }
            self.add(life.start, 1);
        }
    }

    /// Locks the life byte of an opening, if there may be one more; returns where it is. `file` is another opening.
    pub fn begin(&self, opened: &File, file: &File) -> io::Result<u64> {
        // As many as come go, so that those that end in good order are never many.
        self.forget_gone(file, LOOKS);
        if self.locks() >= LEFT_LOCKS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // Relaxed: no other opening gets the same number, and that is all.
        let life = self.next.fetch_add(1, Ordering::Relaxed);
        match file_lock::try_lock(opened, Access::Shared, life..life + 1)? {
            true => Ok(life),
            false => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// An opening is closed, and its reader keeps so many locks if it lives.
    pub fn add(&self, life: u64, locks: usize) {
        self.openings().push_back((life, locks));
    }

    /// Forgets openings whose readers are gone. Looks at most at `most` of them, and at the others in the next calls.
    pub fn forget_gone(&self, file: &File, most: usize) {
        let most = self.openings().len().min(most);
        for _ in 0..most {
            let Some((life, locks)) = self.openings().pop_front() else {
                return;
            };
            if let Found::Readers(_) = look(file, &(life..life + 1), 1) {
                self.add(life, locks);
            }
        }
    }

    /// Locks that are left.
    pub fn locks(&self) -> usize {
        self.openings().iter().map(|(_, locks)| locks).sum()
    }

    fn openings(&self) -> MutexGuard<'_, VecDeque<(u64, usize)>> {
        // No step leaves it half-done when it panics.
        self.openings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
