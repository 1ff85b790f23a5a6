//! What the thread with the right to send a ring knows, and how others read what it has counted.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// No thread without the right writes here; it is in atomics because that thread changes.
pub(super) struct SenderFields {
    /// The first ticket not looked at.
    pub ticket: AtomicU32,
    /// The end of the committed run that begins at the tail.
    pub end: AtomicU32,
    /// A whole capacity was sent, so every byte of the ring may have been written.
    pub wrapped: AtomicU32,
    /// Ranges that count, of the tickets looked at.
    counted: AtomicU64,
    /// Odd while `ticket` and `counted`, which belong together, change.
    version: AtomicU32,
}

impl SenderFields {
    pub fn new() -> Self {
        Self {
            ticket: AtomicU32::new(0),
            end: AtomicU32::new(0),
            wrapped: AtomicU32::new(0),
            counted: AtomicU64::new(0),
            version: AtomicU32::new(0),
        }
    }

    /// All before `ticket` was looked at, and of that, `counted` more ranges count.
    pub fn looked(&self, ticket: u32, counted: u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Partner of the fence in `committed`.
        fence(Ordering::Release);
        let before = self.counted.load(Ordering::Relaxed);
        self.ticket.store(ticket, Ordering::Relaxed);
        self.counted.store(before + counted, Ordering::Relaxed);
        // Release: partner of the acquire in `committed`.
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// For any thread: the ranges that count, of the tickets looked at, and of those from the first other on, which
    /// `count_from` counts.
    pub fn committed(&self, count_from: impl Fn(u32) -> u64) -> u64 {
        loop {
            // Acquire: partner of the release in `looked`.
            let version = self.version.load(Ordering::Acquire);
            let counted = self.counted.load(Ordering::Relaxed);
            let more = count_from(self.ticket.load(Ordering::Relaxed));
            // Partner of the fence in `looked`: if one of the loads above saw a later store, so does this one.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return counted + more;
            }
            spin_loop();
        }
    }
}
