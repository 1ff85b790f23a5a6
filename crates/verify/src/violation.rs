//! What the verifier reports when the log broke one of its promises: the kinds of violations, how many of each a run
//! had, and the first of them in words.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Serialize;

/// How many violations of a run, of all kinds together, keep a description. All of them are counted.
pub const FIRST_MAX: usize = 10;

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two readers saw different messages at one position.
    Disagreement,
    /// A reader did not get the next position.
    Hole,
    /// A publisher's messages came in another order than they were published in.
    OutOfOrder,
    /// A message came twice.
    Duplicate,
    /// Two processes published with one identity, one after the other, and a message of the older one came after a
    /// message of the newer one.
    Deposed,
    /// What was acknowledged is not at its position, or was acknowledged twice.
    Acknowledgement,
    /// What was acknowledged, or published to the end, is not there.
    Lost,
    /// What was acknowledged could not be read at once.
    Stale,
    /// What its publisher learned is not stored is there.
    NotStored,
    /// A message is damaged, or is none of this run.
    Damaged,
    /// A message that was never published.
    NeverSent,
    /// A client or broker ended with an error that no fault explains.
    Failure,
    /// A part of the run made no progress for too long.
    Liveness,
}

/// All violations of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Violations {
    /// How many in all.
    pub total: u64,
    /// How many of which kind.
    pub by_kind: BTreeMap<Kind, u64>,
    /// The first of them in words.
    pub first: Vec<String>,
}

impl Violations {
    /// Adds one.
    pub fn add(&mut self, kind: Kind, text: impl Display) {
        self.total += 1;
        *self.by_kind.entry(kind).or_default() += 1;
        if self.first.len() < FIRST_MAX {
            self.first.push(text.to_string());
        }
    }

    /// Adds all of `other` behind these.
    pub fn absorb(&mut self, other: Self) {
        self.total += other.total;
        for (kind, count) in other.by_kind {
            *self.by_kind.entry(kind).or_default() += count;
        }
        let room = FIRST_MAX - self.first.len();
        self.first.extend(other.first.into_iter().take(room));
    }

    /// How many of this kind.
    #[cfg(test)]
    pub fn of(&self, kind: Kind) -> u64 {
        self.by_kind.get(&kind).copied().unwrap_or(0)
    }
}
