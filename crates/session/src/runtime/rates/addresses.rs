//! The buckets of addresses. Who connects again finds its own as it left it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use embar_frame::Now;

use super::{Buckets, Rates};
use crate::runtime::admission::Network;

/// So many addresses are remembered at least.
const FEW: usize = 1024;

/// So many are remembered at most, beside those that have sessions.
const MANY: usize = 65_536;

struct Known {
    buckets: HashMap<Network, Arc<Mutex<Buckets>>>,
    /// At so many it is time to forget some.
    forget_at: usize,
}

/// The buckets of addresses.
pub(in crate::runtime) struct Addresses(Mutex<Known>);

impl Default for Addresses {
    fn default() -> Self {
        Self(Mutex::new(Known {
            buckets: HashMap::new(),
            forget_at: FEW,
        }))
    }
}

impl Addresses {
    /// Those of one address.
    pub(in crate::runtime) fn of(
        &self,
        network: Network,
        rates: &Rates,
        now: Now,
    ) -> Arc<Mutex<Buckets>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.buckets.len() >= known.forget_at && !known.buckets.contains_key(&network) {
            known.forget(now);
        }
        let buckets = known
            .buckets
            .entry(network)
            .or_insert_with(|| Arc::new(Mutex::new(rates.of_address())));
        Arc::clone(buckets)
    }
}

impl Known {
    /// A full bucket is as good as a new one.
    fn forget(&mut self, now: Now) {
        let is_used = |buckets: &Arc<Mutex<Buckets>>| Arc::strong_count(buckets) > 1;
        self.buckets.retain(|_, buckets| {
            is_used(buckets) || {
                let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
                !buckets.are_full(now)
            }
        });
        let unused = self.buckets.values().filter(|it| !is_used(it)).count();
        if unused > MANY {
            self.buckets.retain(|_, buckets| is_used(buckets));
        }
        // So that looking at all of them is rare.
        self.forget_at = (2 * self.buckets.len()).max(FEW);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use embar_transport::Peer;

    use super::*;
    use crate::runtime::rates::Rate;

    fn network(ip: u32) -> Network {
        Network::of(&Peer::Tcp((Ipv4Addr::from_bits(ip), 1).into()))
    }

    #[test]
    fn an_address_is_remembered_until_its_bucket_is_full() {
        let rate = Rate {
            per_second: 1,
            burst: 10,
        };
        let rates = Rates::default().with(|rates| rates.address_messages = Some(rate));
        let addresses = Addresses::default();
        let of = |ip, now| addresses.of(network(ip), &rates, now);
        let left = |ip, now| of(ip, now).lock().unwrap().allowed(now).unwrap().messages;
        of(1, Now(0)).lock().unwrap().take(9, 0, Now(0));
        let held = of(2, Now(0));
        for ip in 10..10 + 2 * FEW as u32 {
            of(ip, Now(0));
        }
        assert_eq!(left(1, Now(0)), 1, "not forgotten");
        assert!(addresses.0.lock().unwrap().buckets.len() <= FEW);
        let later = Now(100_000_000_000);
        for ip in 10..10 + 2 * FEW as u32 {
            of(ip, later);
        }
        let known = addresses.0.lock().unwrap();
        assert!(!known.buckets.contains_key(&network(1)));
        assert!(known.buckets.contains_key(&network(2)));
        drop(held);
    }
}
