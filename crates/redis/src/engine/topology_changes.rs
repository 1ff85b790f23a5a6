//! Logs and counts what a refresh changed in the topology.

use super::routes::Routes;
use crate::endpoint::Endpoint;
use crate::metrics::ClientCounters;
use crate::slot::SLOTS;

/// Logs what changed from `old` to `new`, and counts replicas that have taken over.
pub(super) fn log_changes(old: &Routes, new: &Routes, counters: &ClientCounters) {
    let missing = |there: &Routes, here: &Routes| -> Vec<String> {
        let nodes = there.nodes.iter();
        let gone = nodes.filter(|node| here.find(&node.endpoint).is_none());
        gone.map(|node| node.endpoint.to_string()).collect()
    };
    let (came, left) = (missing(new, old), missing(old, new));
    let mut moved = 0;
    let mut failovers: Vec<(&Endpoint, &Endpoint)> = Vec::new();
    for slot in 0..SLOTS {
        let (Some(before), Some(now)) = (old.primary(slot), new.primary(slot)) else {
            moved += u32::from(new.primary(slot).is_some());
            continue;
        };
        if before.endpoint == now.endpoint {
            continue;
        }
        moved += 1;
        let change = (&before.endpoint, &now.endpoint);
        let mut replicas = old.replicas(slot);
        if !failovers.contains(&change) && replicas.any(|node| node.endpoint == now.endpoint) {
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
