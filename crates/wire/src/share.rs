//! Which batches of an ordered topic a connection brings, so that several brokers can send one subscriber its order
//! together.
//!
//! One connection brings all batches, *without* the large ones that some brokers store. Each of these brokers sends them by
//! a connection of its own. What a share has is a function of what the order says of a batch, so each batch is in exactly
//! one of such shares, whichever broker sends it.

use crate::limits::MAX_BROKERS;

const _: () = assert!(MAX_BROKERS <= u128::BITS as usize);

/// Some brokers of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerSet(u128);

impl BrokerSet {
    /// Adds a broker. False if there is no broker of this number in any cluster.
    pub fn insert(&mut self, broker: u32) -> bool {
        let is_possible = (broker as usize) < MAX_BROKERS;
        if is_possible {
            self.0 |= 1 << broker;
        }
        is_possible
    }

    /// Whether the broker is among them.
    #[must_use]
    pub fn contains(&self, broker: u32) -> bool {
        (broker as usize) < MAX_BROKERS && self.0 & (1 << broker) != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The brokers, lowest number first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let all = *self;
        (0..MAX_BROKERS as u32).filter(move |broker| all.contains(*broker))
    }
}

/// Which batches a connection brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All.
    #[default]
    All,
    /// Those that the broker stores which is asked, of at least so many bytes (frame header included).
    Own {
        /// At least 1.
        large_bytes: u32,
    },
    /// All, without those that these brokers store, of at least so many bytes.
    Without {
        /// Not empty.
        brokers: BrokerSet,
        /// At least 1.
        large_bytes: u32,
    },
}

impl Share {
    /// Whether another broker serves the rest.
    #[must_use]
    pub fn is_help(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    /// Whether it has a batch of `frame_bytes` that broker `stored_by` stores, when broker `asked` sends it.
    #[must_use]
    pub fn has(&self, asked: u32, stored_by: u32, frame_bytes: u32) -> bool {
        match self {
            Self::All => true,
            Self::Own { large_bytes } => stored_by == asked && frame_bytes >= *large_bytes,
            Self::Without {
                brokers,
                large_bytes,
            } => frame_bytes < *large_bytes || !brokers.contains(stored_by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(brokers: &[u32]) -> BrokerSet {
        let mut set = BrokerSet::default();
        assert!(brokers.iter().all(|broker| set.insert(*broker)));
        set
    }

    #[test]
    fn each_batch_is_in_one_share() {
        let (large_bytes, main) = (1000, 3);
        for helpers in [&[1][..], &[1, 2], &[2, 127]] {
            let brokers = set(helpers);
            let rest = Share::Without {
                brokers,
                large_bytes,
            };
            for (stored_by, bytes) in [0, 1, 2, 3, 127]
                .into_iter()
                .flat_map(|row| [64, 999, 1000, 1 << 20].map(|bytes| (row, bytes)))
            {
                let own = Share::Own { large_bytes };
                let of_helpers = helpers.iter().filter(|it| own.has(**it, stored_by, bytes));
                let shares = of_helpers.count() + usize::from(rest.has(main, stored_by, bytes));
                assert_eq!(shares, 1, "{bytes} bytes of {stored_by}, {helpers:?} help");
            }
        }
    }

    #[test]
    fn a_set_has_what_was_added_and_no_broker_that_no_cluster_has() {
        let mut brokers = set(&[127, 0, 5]);
        assert!(!brokers.insert(128) && !brokers.insert(u32::MAX));
        assert_eq!(brokers.iter().collect::<Vec<_>>(), [0, 5, 127]);
        assert!(!brokers.contains(1) && !brokers.contains(128) && !brokers.is_empty());
        assert!(BrokerSet::default().is_empty());
    }
}
