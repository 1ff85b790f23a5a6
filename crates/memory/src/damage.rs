//! How badly records were damaged, and the list of the places where readers of a memory found that.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Most places that a log remembers: where there are more, the first ones are enough to report.
const PLACES_MAX: usize = 1024;

/// How much of a record was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Damage {
    /// One bit: readers put it right.
    Repaired,
    /// More than can be put right.
    Lost,
}

/// The worst that readers found, by offset.
#[derive(Debug, Default)]
pub(crate) struct DamageLog {
    found: Mutex<BTreeMap<u64, Damage>>,
}

impl DamageLog {
    pub fn note(&self, at: u64, damage: Damage) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < PLACES_MAX || found.contains_key(&at) {
            let worst = found.entry(at).or_insert(damage);
            *worst = damage.max(*worst);
        }
    }

    pub fn all(&self) -> Vec<(u64, Damage)> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.iter().map(|(at, damage)| (*at, *damage)).collect()
    }
}
