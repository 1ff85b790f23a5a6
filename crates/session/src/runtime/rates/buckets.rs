//! The buckets of one session, or of one address.

use embar_frame::Now;

use super::bucket::TokenBucket;
use super::{Rate, RateLimit};

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

    /// How many messages may come now, or the limit that allows none, and until when.
    pub(in crate::runtime) fn allowed(&mut self, now: Now) -> Result<u64, (RateLimit, Now)> {
        let [of_messages, of_bytes] = self.limits;
        let mut left = u64::MAX;
        for (bucket, limit) in [
            (&mut self.messages, of_messages),
            (&mut self.bytes, of_bytes),
        ] {
            if let Some(bucket) = bucket
                && bucket.left(now) == 0
            {
                return Err((limit, bucket.when(bucket.worth_a_wait())));
            }
        }
        if let Some(bucket) = &mut self.messages {
            left = bucket.left(now);
        }
        Ok(left)
    }

    pub(super) fn are_full(&mut self, now: Now) -> bool {
        [&mut self.messages, &mut self.bytes]
            .into_iter()
            .flatten()
            .all(|bucket| bucket.is_full(now))
    }
}
