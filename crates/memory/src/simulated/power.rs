//! What makes several simulated memories stop at the same instant.
//!
//! A host has several files mapped, and dies in the middle of whatever it does. All memories made
//! with one [`Power`] count their accesses together; when the planned number is reached, none of
//! them reaches its device any more. The code that was running goes on over its private caches, as
//! if nothing had happened, until its simulator notices and drops it: nothing it does is seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How a simulated process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// The host dies with it: what was neither written back nor evicted is lost, and of the
    /// write-backs that no fence completed, chance decides which still arrive.
    Host,
    /// Only the process dies: what it stored is in its host's caches, and reaches the device.
    Process,
}

/// The power of one host, shared by its memories.
///
/// One thread uses it, as simulations do.
#[derive(Debug, Clone)]
pub struct Power {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Accesses until it fails; `u64::MAX` = it does not.
    left: AtomicU64,
    process_only: AtomicBool,
}

impl Default for Power {
    fn default() -> Self {
        Self {
            state: Arc::new(State {
                left: AtomicU64::new(u64::MAX),
                process_only: AtomicBool::new(false),
            }),
        }
    }
}

impl Power {
    /// Fails before the access that follows `accesses` more; with 0, now.
    pub fn fail_after(&self, accesses: u64, outage: Outage) {
        let process_only = outage == Outage::Process;
        let State {
            left,
            process_only: kind,
        } = &*self.state;
        kind.store(process_only, Ordering::Relaxed);
        left.store(accesses, Ordering::Relaxed);
    }

    /// How it failed, if it has.
    pub fn failed(&self) -> Option<Outage> {
        if self.state.left.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(if self.state.process_only.load(Ordering::Relaxed) {
            Outage::Process
        } else {
            Outage::Host
        })
    }

    /// Counts an access; how it failed, if that access comes too late.
    pub(super) fn spend(&self) -> Option<Outage> {
        let left = self.state.left.load(Ordering::Relaxed);
        match left {
            0 => self.failed(),
            u64::MAX => None,
            _ => {
                self.state.left.store(left - 1, Ordering::Relaxed);
                None
            }
        }
    }
}
