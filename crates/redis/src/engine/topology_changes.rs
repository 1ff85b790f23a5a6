//! Compares the routes before and after the client asked the cluster for its topology again: logs which nodes came and
//! left and how many slots moved, and counts failovers.

use super::routes::Routes;
use crate::endpoint::Endpoint;
use crate::metrics::ClientCounters;
use crate::slot::SLOTS;

/// Logs what changed from `old` to `new`, and counts replicas that have taken over. Of `one_shard`, whoever is the primary now
/// was a replica, even if the client did not see that one, as of a server that was about to take over.
pub(super) fn log_changes(old: &Routes, new: &Routes, one_shard: bool, counters: &ClientCounters) {
    let only_in = |these: &Routes, others: &Routes| -> Vec<String> {
        let nodes = these.nodes.iter();
        let only = nodes.filter(|node| others.find(&node.endpoint).is_none());
        only.map(|node| node.endpoint.to_string()).collect()
    };
    let (came, left) = (only_in(new, old), only_in(old, new));
    let mut moved = 0;
    let mut failovers: Vec<(&Endpoint, &Endpoint)> = Vec::new();
    for slot in 0..SLOTS {
        let (Some(before), Some(now)) = (old.primary(slot), new.primary(slot)) else {
            // A slot that has no primary now has moved nowhere yet.
            moved += u32::from(new.primary(slot).is_some());
            continue;
        };
        if before.endpoint == now.endpoint {
            continue;
        }
        moved += 1;
        let change = (&before.endpoint, &now.endpoint);
        let mut replicas = old.replicas(slot);
        let took_over = one_shard || replicas.any(|node| node.endpoint == now.endpoint);
        if took_over && !failovers.contains(&change) {
            failovers.push(change);
        }
    }
    if moved > 0 || !came.is_empty() || !left.is_empty() {
        tracing::info!(
            slots_moved = moved,
            ?came,
            ?left,
            "the topology has changed"
        );
    } else {
        tracing::debug!("the topology was read, and is as it was");
    }
    for (from, to) in failovers {
        counters.failovers.add(1);
        tracing::warn!(%from, %to, "a replica has taken over from its primary");
    }
}
