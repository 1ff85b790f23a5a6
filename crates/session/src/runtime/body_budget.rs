//! What bodies that come in may take of the memory budget, in all and for each address.
//!
//! A peer that announces a body has its memory counted before it sent a byte of it. So bodies never
//! take what rings of other sessions need, nor those of one address what others' need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_transport::BudgetShare;

use super::admission::Network;
use super::priority::{Priority, Reserve};

#[derive(Default)]
struct Counts {
    all: usize,
    by_network: HashMap<Network, usize>,
}

/// The bytes of bodies that a server or client has.
pub(super) struct BodyBudget {
    limit: usize,
    per_address: usize,
    reserve: Reserve,
    counts: Mutex<Counts>,
}

impl BodyBudget {
    pub(super) fn new(limit: usize, per_address: usize, reserve: Reserve) -> Arc<Self> {
        Arc::new(Self {
            limit,
            per_address,
            reserve,
            counts: Mutex::default(),
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `bytes`, which `reserve` takes of the budget of all memory. An address that has no
    /// body may always have one.
    pub(super) fn try_reserve(
        self: &Arc<Self>,
        network: Option<Network>,
        priority: Priority,
        bytes: usize,
        reserve: impl FnOnce() -> Result<BudgetShare, String>,
    ) -> Result<BodyShare, String> {
        let mut counts = self.counts();
        let limit = self.reserve.open_to(priority, self.limit);
        let left = limit.saturating_sub(counts.all);
        if bytes > left {
            return Err(format!(
                "{bytes} bytes exceed what is left of the memory budget for bodies, {left} of {limit}: send it later, or raise body_budget_bytes"
            ));
        }
        let its = network.and_then(|it| counts.by_network.get(&it).copied());
        let its = its.unwrap_or(0);
        if network.is_some() && its > 0 && its.saturating_add(bytes) > self.per_address {
            let limit = self.per_address;
            return Err(format!(
                "your address has {its} bytes of the memory budget for bodies, and may have {limit}: send it later"
            ));
        }
        let share = reserve()?;
        counts.all += bytes;
        if let Some(network) = network.filter(|_| bytes > 0) {
            counts.by_network.insert(network, its + bytes);
        }
        Ok(BodyShare {
            budget: Arc::clone(self),
            network,
            share,
        })
    }
}

/// Bytes of bodies that are in use; dropped, others may have them.
pub(super) struct BodyShare {
    budget: Arc<BodyBudget>,
    network: Option<Network>,
    share: BudgetShare,
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let bytes = self.share.bytes();
        let mut counts = self.budget.counts();
        counts.all -= bytes;
        if let Some(network) = self.network
            && let Some(its) = counts.by_network.get_mut(&network)
        {
            *its -= bytes;
            if *its == 0 {
                counts.by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use embar_transport::{MemoryBudget, Peer};

    use super::*;

    #[test]
    fn no_address_takes_all_and_each_may_have_one_body() {
        let memory = MemoryBudget::new(1000);
        let budget = BodyBudget::new(100, 30, Reserve::NONE);
        let reserve = |address: u32, bytes: usize| {
            let peer = Peer::Tcp((Ipv4Addr::from_bits(address), 1).into());
            let network = (address > 0).then(|| Network::of(&peer));
            budget.try_reserve(network, Priority::Normal, bytes, || {
                memory.try_reserve(bytes).map_err(|error| error.to_string())
            })
        };
        let first = reserve(1, 50).ok().unwrap();
        assert!(reserve(1, 1).err().unwrap().contains("your address"));
        let others: Vec<_> = (2..5).map(|it| reserve(it, 10).ok().unwrap()).collect();
        let more = reserve(2, 20).ok().unwrap();
        assert!(reserve(0, 1).err().unwrap().contains("memory budget"));
        assert_eq!(memory.used(), 100);
        drop((first, more));
        let unnamed = reserve(0, 70).ok().unwrap();
        drop((others, unnamed));
        assert_eq!((budget.counts().all, memory.used()), (0, 0));
        assert!(budget.counts().by_network.is_empty());
    }
}
