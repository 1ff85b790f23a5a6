//! What comes of age on a disk, although perhaps nothing is written.

use std::time::Duration;

use embar_disk::Chain as ChainName;
use embar_memory::Memory;

use super::{FACT_BYTES, Writer};
use crate::clock::Timestamp;
use crate::journal::kept::Retention;

/// How often it is looked what has come of age, and what is gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Segments that are ended for their age are at least so far apart: each takes room, and says all facts again.
const END_EVERY: Duration = Duration::from_secs(5);

const NS_PER_MS: u64 = 1_000_000;

impl<M: Memory> Writer<M> {
    /// Looks from time to time what has come of age, and what is kept at all whenever that may have changed.
    pub(super) fn look_at_ages(&mut self, time: Timestamp) {
        let now = self.ages.advance(time);
        let is_due = self
            .looked_at_ages
            .is_none_or(|last| time.now.since(last) >= LOOK_EVERY);
        if is_due {
            self.looked_at_ages = Some(time.now);
            self.looks_what_is_gone = true;
            self.looks_what_is_kept |= self.has_ages();
        }
        let looks = self.is_complete && std::mem::take(&mut self.looks_what_is_kept);
        if looks {
            self.look_what_is_kept();
        }
        let may_end = self
            .ended_for_age
            .is_none_or(|last| time.now.since(last) >= END_EVERY);
        if looks && may_end && self.is_present_too_old(now) {
            self.ended_for_age = Some(time.now);
            self.ends_segment = true;
        }
    }

    /// No other segment can be begun for now. True if the present one goes on, as it was to end for its age alone: that is tried
    /// again later.
    pub fn goes_on(&mut self) -> bool {
        let was_old = std::mem::take(&mut self.ends_segment);
        was_old && self.journal.room() > FACT_BYTES
    }

    fn has_ages(&self) -> bool {
        self.limits.age_ns > 0 || self.topics.iter().any(|topic| topic.retention_ms > 0)
    }

    /// Whether nobody needs the present segment, and something in it has come of age. Then another one is begun, so that it can go.
    /// That one is empty until something is written, so it does not end for its age.
    fn is_present_too_old(&self, now: u64) -> bool {
        let mut has_aged = false;
        let all_needless = self.journal.present().all(|(chain, part)| {
            let its = self.retention(chain);
            let is_too_old = its.is_some_and(|its| its.is_too_old(part, now));
            has_aged |= is_too_old;
            is_too_old || its.is_none()
        });
        all_needless && has_aged
    }

    /// What is to be retained of a chain; nothing of one that does not exist any more.
    pub(super) fn retention(&self, chain: &ChainName) -> Option<Retention> {
        let Some(topic) = self.topics.by_id(chain.topic) else {
            // It may exist although its record cannot be read.
            return (self.topics.damaged() > 0).then(Retention::default);
        };
        let ages = [
            topic.retention_ms.saturating_mul(NS_PER_MS),
            self.limits.age_ns,
        ];
        let shortest = ages.into_iter().filter(|age| *age > 0).min();
        Some(Retention {
            bytes: topic.retention_bytes,
            age_ns: shortest.unwrap_or(0),
        })
    }
}
