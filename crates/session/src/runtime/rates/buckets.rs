//! The buckets of one session, or of one address.

use embar_frame::Now;

use super::bucket::TokenBucket;
use super::{Rate, RateLimit};

/// A message at a time is worth a turn.
const MESSAGES_WORTH_A_WAIT: u64 = 1;

/// Fewer bytes than this are not worth a turn and a read, unless they take long to come.
const BYTES_WORTH_A_WAIT: u64 = 4096;

/// What may come now, at least one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct Allowed {
    pub(in crate::runtime) messages: u64,
    pub(in crate::runtime) bytes: u64,
}

impl Allowed {
    pub(in crate::runtime) const ALL: Self = Self {
        messages: u64::MAX,
        bytes: u64::MAX,
    };

    pub(in crate::runtime) fn min(self, other: Self) -> Self {
        Self {
            messages: self.messages.min(other.messages),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// One for messages and one for bytes, if they are limited.
pub(in crate::runtime) struct Buckets {
    limits: [RateLimit; 2],
    messages: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl Buckets {
    pub(super) fn new(limits: [RateLimit; 2], messages: Option<Rate>, bytes: Option<Rate>) -> Self {
        Self {
            limits,
            messages: messages.map(TokenBucket::new),
            bytes: bytes.map(TokenBucket::new),
        }
    }

    /// Takes what was received. The limit that this went beyond, if it did.
    pub(in crate::runtime) fn take(
        &mut self,
        messages: u64,
        bytes: u64,
        now: Now,
    ) -> Option<RateLimit> {
        let [of_messages, of_bytes] = self.limits;
        let beyond = |bucket: &mut Option<TokenBucket>, count, limit| {
            let bucket = bucket.as_mut()?;
            if count == 0 {
                // Who sends nothing goes beyond nothing, also where others of its address did.
                return None;
            }
            (!bucket.take(count, now)).then_some(limit)
        };
        let first = beyond(&mut self.messages, messages, of_messages);
        let second = beyond(&mut self.bytes, bytes, of_bytes);
        first.or(second)
    }

    /// What may come now, or the limit that allows nothing, and until when.
    pub(in crate::runtime) fn allowed(&mut self, now: Now) -> Result<Allowed, (RateLimit, Now)> {
        let [of_messages, of_bytes] = self.limits;
        for (bucket, limit, least) in [
            (&mut self.messages, of_messages, MESSAGES_WORTH_A_WAIT),
            (&mut self.bytes, of_bytes, BYTES_WORTH_A_WAIT),
        ] {
            if let Some(bucket) = bucket
                && bucket.left(now) == 0
            {
                return Err((limit, bucket.when(bucket.worth_a_wait(least))));
            }
        }
        let left = |bucket: &mut Option<TokenBucket>| {
            let bucket = bucket.as_mut();
            bucket.map_or(u64::MAX, |bucket| bucket.left(now))
        };
        Ok(Allowed {
            messages: left(&mut self.messages),
            bytes: left(&mut self.bytes),
        })
    }

    pub(super) fn are_full(&mut self, now: Now) -> bool {
        [&mut self.messages, &mut self.bytes]
            .into_iter()
            .flatten()
            .all(|bucket| bucket.is_full(now))
    }
}
