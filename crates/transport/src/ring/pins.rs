//! Counts who still holds which part of a receive ring, so that the ring uses no memory again that
//! somebody reads.
//!
//! Each pin has a count of its holders; the places of the counts are used in turn. The owner makes
//! pins, and forgets them from the oldest on once they have no holder. The owner alone raises a
//! count from 0; a holder that lowers it to 0 never touches it again.

use std::cell::Cell;
use std::task::Waker;

use super::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// The holders' side.
pub(super) struct HolderCounts {
    holders: Box<[AtomicU32]>,
    /// The owner waits for the next pin that goes.
    wanted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl HolderCounts {
    /// Counts `len` pins each by itself: a power of two, at least 1.
    pub(super) fn new(len: usize) -> Self {
        assert!(len.is_power_of_two());
        Self {
            holders: (0..len).map(|_| AtomicU32::new(0)).collect(),
            wanted: AtomicBool::new(false),
            waker: Mutex::new(None),
        }
    }

    fn holders(&self, pin: u32) -> &AtomicU32 {
        &self.holders[pin as usize & (self.holders.len() - 1)]
    }

    /// Another holder of a pin that the caller holds, or makes.
    pub(super) fn hold(&self, pin: u32) {
        // Relaxed: its holder gets it from this thread.
        let before = self.holders(pin).fetch_add(1, Ordering::Relaxed);
        // Holders can be forgotten, so any number may come. A count that came to 0 again would free
        // what is still read, and a panic can be caught, to go on: so the process ends, as it does
        // when `Arc` has too many. The other half is for all threads that are between these two
        // lines.
        if before > u32::MAX / 2 {
            std::process::abort();
        }
    }

    pub(super) fn release(&self, pin: u32) {
        // Release: partner of `Pins::oldest`; our reads end before the memory is written again.
        if self.holders(pin).fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // An access that writes: an owner that asks only after it sees the count above.
        if self.wanted.swap(false, Ordering::AcqRel) {
            let waker = lock(&self.waker).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Wakes `waker` once, when the next pin goes.
    pub(super) fn on_release(&self, waker: Waker) {
        *lock(&self.waker) = Some(waker);
        self.wanted.swap(true, Ordering::AcqRel);
    }
}

/// The owner's side: where each pin begins.
pub(super) struct Pins {
    starts: Box<[Cell<u64>]>,
    oldest: Cell<u32>,
    next: Cell<u32>,
}

impl Pins {
    /// For as many counts.
    pub(super) fn new(len: usize) -> Self {
        Self {
            starts: (0..len).map(|_| Cell::new(0)).collect(),
            oldest: Cell::new(0),
            next: Cell::new(0),
        }
    }

    fn start(&self, pin: u32) -> &Cell<u64> {
        &self.starts[pin as usize & (self.starts.len() - 1)]
    }

    /// A pin from `start` on. The caller is its first holder.
    pub(super) fn pin(&self, counts: &HolderCounts, start: u64) -> u32 {
        self.oldest(counts);
        let next = self.next.get();
        let used = next.wrapping_sub(self.oldest.get());
        let pin = if used as usize == self.starts.len() {
            // All are in use: share the last one, which may keep a little more for longer.
            let last = next.wrapping_sub(1);
            let place = self.start(last);
            place.set(place.get().min(start));
            last
        } else {
            self.start(next).set(start);
            self.next.set(next.wrapping_add(1));
            next
        };
        counts.hold(pin);
        pin
    }

    /// Where the first byte is that is kept.
    pub(super) fn oldest(&self, counts: &HolderCounts) -> Option<u64> {
        let next = self.next.get();
        let mut pin = self.oldest.get();
        // Acquire: partner of `HolderCounts::release`.
        while pin != next && counts.holders(pin).load(Ordering::Acquire) == 0 {
            pin = pin.wrapping_add(1);
        }
        self.oldest.set(pin);
        if pin == next {
            return None;
        }
        // Pins of one readable part may have been made in any order.
        let mut first = self.start(pin).get();
        let mut other = pin.wrapping_add(1);
        while other != next {
            first = first.min(self.start(other).get());
            other = other.wrapping_add(1);
        }
        Some(first)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    const MODE: &str = "EMBAR_TEST_PINS";

    #[test]
    #[ignore = "run by another test"]
    fn child_holds_once_too_often() {
        let (counts, pins) = (HolderCounts::new(1), Pins::new(1));
        let pin = pins.pin(&counts, 0);
        counts.holders(pin).store(u32::MAX / 2, Ordering::Relaxed);
        let hold = || match std::env::var(MODE).as_deref() {
            Ok("hold") => counts.hold(pin),
            _ => drop(pins.pin(&counts, 0)),
        };
        hold();
        say("as many as may be");
        // A caller that catches what it can goes on, and on.
        let _caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(hold));
        say("one more, and it goes on");
    }

    fn say(words: &str) {
        std::io::stderr().write_all(words.as_bytes()).unwrap();
    }

    #[test]
    fn too_many_holders_end_the_process_before_the_count_comes_to_nothing() {
        for mode in ["hold", "pin"] {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "ring::pins::tests::child_holds_once_too_often"])
                .args(["--ignored", "--nocapture"])
                .env(MODE, mode)
                .stdout(Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stderr).into_owned();
            assert!(said.contains("as many as may be"), "{mode}: {said}");
            assert!(!said.contains("it goes on"), "{mode}: {said}");
            assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{mode}: {said}");
        }
    }
}
