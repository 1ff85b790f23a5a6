//! What an entry of the cache depends on besides its key: the connection that reports changes of that, and the
//! node that serves its slot. Both are numbers that an entry remembers and that change when it must not be used
//! any more. So to drop all entries of a connection takes no time, however many there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::slot::SLOTS;

/// What the server said when the connection was opened; before that it is 0.
const TRACKS: u8 = 1;
const REFUSED: u8 = 2;

/// Whether the server reports changes on a connection, and for how long what was read there holds.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// Changes when nothing that was read before holds any more.
    epoch: AtomicU64,
    state: AtomicU8,
}

impl Tracker {
    /// The connection is open; the server `tracks` what is read there, or has refused to.
    pub fn opened(&self, tracks: bool) {
        let state = if tracks { TRACKS } else { REFUSED };
        self.state.store(state, Ordering::Release);
    }

    /// Whether the server refused to track when the connection was opened last.
    pub fn is_refused(&self) -> bool {
        self.state.load(Ordering::Acquire) == REFUSED
    }

    fn tracks(&self) -> bool {
        self.state.load(Ordering::Acquire) == TRACKS
    }

    /// Nothing that was read before holds any more: the connection is over or left for another, or all
    /// keys were changed at once.
    pub fn renew(&self) {
        // Pairs with the load in `Validity::holds`: who knows of the change by another way sees it there, too.
        self.epoch.fetch_add(1, Ordering::Release);
    }
}

/// Until when what is read over a connection from now on holds.
#[derive(Debug, Clone)]
pub(crate) struct Validity {
    tracker: Arc<Tracker>,
    epoch: u64,
}

impl Validity {
    /// Must be taken before the connection that carries the command is chosen: then its end is noticed.
    pub fn of(tracker: &Arc<Tracker>) -> Self {
        Self {
            tracker: Arc::clone(tracker),
            epoch: tracker.epoch.load(Ordering::Acquire),
        }
    }

    /// Whether the connection that was chosen then goes on, and all changes since came as keys.
    #[inline]
    pub fn holds(&self) -> bool {
        self.tracker.epoch.load(Ordering::Acquire) == self.epoch
    }

    /// The server does not let the user have what a cache takes, also if it had seemed so.
    pub fn refuse(&self) {
        self.tracker.opened(false);
    }

    /// Whether the server reports changes of what was read so. To be asked when the reply is there.
    pub fn is_tracked(&self) -> bool {
        self.tracker.tracks() && self.holds()
    }
}

/// A version of each slot, which changes when another node serves it, or when it is not known which of its keys a
/// caller has changed.
#[derive(Debug)]
pub(crate) struct SlotVersions(Box<[AtomicU32]>);

/// A slot and its version at some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotVersion {
    slot: u16,
    version: u32,
}

impl SlotVersions {
    pub fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU32::new(0)).collect())
    }

    pub fn of(&self, slot: u16) -> SlotVersion {
        let version = self.0[usize::from(slot)].load(Ordering::Acquire);
        SlotVersion { slot, version }
    }

    #[inline]
    pub fn is_current(&self, known: SlotVersion) -> bool {
        self.0[usize::from(known.slot)].load(Ordering::Acquire) == known.version
    }

    pub fn renew(&self, slot: u16) {
        self.0[usize::from(slot)].fetch_add(1, Ordering::Release);
    }

    pub fn renew_all(&self) {
        (0..SLOTS).for_each(|slot| self.renew(slot));
    }
}
