//! Counts what became of the lines that `embar produce` read: acknowledged, in doubt, or not stored.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use embar_client::{Delivery, PublishError};
use embar_meter::table::grouped;

/// Counted by the publisher's threads, read when they have ended or nothing is on its way.
#[derive(Debug, Default)]
pub struct Tally {
    acknowledged: AtomicU64,
    in_doubt: AtomicU64,
    expired: AtomicBool,
}

impl Tally {
    /// The outcome of a batch.
    pub fn count(&self, delivery: &Delivery) {
        let counter = match &delivery.result {
            Ok(_) => &self.acknowledged,
            Err(PublishError::InDoubt) => &self.in_doubt,
            // It is certain that these are not stored; they are what is left.
            Err(error) => {
                let expired = matches!(error, PublishError::Expired { .. });
                self.expired.fetch_or(expired, Ordering::Relaxed);
                return;
            }
        };
        counter.fetch_add(delivery.messages.into(), Ordering::Relaxed);
    }

    /// Whether no broker took some of them in time.
    pub fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Relaxed)
    }

    /// Of so many lines that were read.
    pub fn of(&self, lines: u64) -> Outcome {
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        let in_doubt = self.in_doubt.load(Ordering::Relaxed);
        Outcome {
            lines,
            acknowledged,
            in_doubt,
            not_stored: lines.saturating_sub(acknowledged + in_doubt),
        }
    }
}

/// What became of all lines that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Outcome {
    /// Read.
    pub lines: u64,
    /// Stored, or with acks 0 handed to the kernel.
    pub acknowledged: u64,
    /// Sent, and not acknowledged: stored or not.
    pub in_doubt: u64,
    /// Certainly not stored.
    pub not_stored: u64,
}

impl Outcome {
    /// Whether all is as it should be.
    pub fn is_whole(&self) -> bool {
        self.acknowledged == self.lines
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} lines were read: {} acknowledged, {} in doubt, {} not stored",
            grouped(self.lines),
            grouped(self.acknowledged),
            grouped(self.in_doubt),
            grouped(self.not_stored)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_counted_once() {
        let tally = Tally::default();
        let of = |messages, result| Delivery {
            batch: 0,
            messages,
            result,
            waited: None,
        };
        tally.count(&of(1000, Ok(None)));
        tally.count(&of(20, Err(PublishError::InDoubt)));
        tally.count(&of(3, Err(embar_client::ClientError::Closed.into())));
        assert!(!tally.has_expired());
        tally.count(&of(
            1,
            Err(PublishError::Expired {
                limit: std::time::Duration::ZERO,
            }),
        ));
        assert!(tally.has_expired());
        let outcome = tally.of(1024);
        assert_eq!(
            outcome.to_string(),
            "1,024 lines were read: 1,000 acknowledged, 20 in doubt, 4 not stored"
        );
        assert!(!outcome.is_whole() && tally.of(1000).is_whole());
    }
}
