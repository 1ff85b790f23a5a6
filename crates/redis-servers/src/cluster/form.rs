//! Starts Redis servers and makes one cluster of them.

use super::view::{View, view};
use super::{Cluster, ClusterOptions, health};
use crate::error::{CommandError, StartError};
use crate::server::Server;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How many slots there are.
const SLOTS: usize = 16_384;

/// How long each of the two phases (all nodes have met, the cluster is well) may take on a busy machine.
const PHASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the servers and forms the cluster. Every node meets every other at once, instead of learning of it by gossip,
/// and gets an epoch of its own, instead of settling that with the others: both would take seconds.
pub fn start(options: &ClusterOptions) -> Result<Cluster, StartError> {
    if !(1..=SLOTS).contains(&options.masters) {
        let why = format!(
            "a cluster has 1 to {SLOTS} masters, not {}",
            options.masters
        );
        return Err(StartError::Options(why));
    }
    let count = options.masters * (1 + options.replicas);
    let mut nodes = Vec::new();
    for index in 0..count {
        nodes.push(Server::start(&options.of_node(index)?)?);
    }
    let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"]));
    let cluster = Cluster {
        ids: ids.collect::<Result<_, _>>()?,
        nodes,
        masters: options.masters,
        password: options.password.clone(),
    };
    assign_slots(&cluster)?;
    meet(&cluster, options.node_timeout_ms)?;
    for (replica, node) in cluster.replicas().iter().enumerate() {
        let master = cluster.node_id(replica / options.replicas);
        node.command(&["CLUSTER", "REPLICATE", master])?;
    }
    health::wait(PHASE_TIMEOUT, || roles(&cluster, options.replicas))?;
    health::wait(PHASE_TIMEOUT, || health::problem(&cluster))?;
    Ok(cluster)
}

/// Gives each node an epoch, and each master its slots.
fn assign_slots(cluster: &Cluster) -> Result<(), CommandError> {
    for (index, node) in cluster.nodes.iter().enumerate() {
        let mut control = node.control()?;
        let epoch = (index + 1).to_string();
        control.call(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
        if index < cluster.masters {
            let slots = slots_of(index, cluster.masters);
            let (first, last) = (slots.start().to_string(), slots.end().to_string());
            control.call(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
        }
    }
    Ok(())
}

/// Makes each two nodes meet. They need their epochs before: a node that another one has met takes none any more.
fn meet(cluster: &Cluster, node_timeout_ms: u32) -> Result<(), StartError> {
    // A node forgets another one that is too busy to answer for so long, so nodes meet until they know each other.
    let forgotten_after = 2 * Duration::from_millis(node_timeout_ms.max(1000).into());
    let mut met: Option<Instant> = None;
    health::wait(PHASE_TIMEOUT, || {
        let unmet = unmet(cluster)?;
        if met.is_none_or(|met| met.elapsed() > forgotten_after) {
            // At first only one node of each two sends the command, which makes both meet.
            let to_meet = unmet
                .iter()
                .filter(|(node, other)| met.is_some() || node < other);
            for (node, other) in to_meet {
                let other = &cluster.nodes[*other];
                let (ip, port) = (other.address().ip().to_string(), other.port().to_string());
                cluster.nodes[*node].call(&["CLUSTER", "MEET", &ip, &port])?;
            }
            met = Some(Instant::now());
        }
        let problem = |(node, other)| format!("node {node} has not met node {other}");
        Ok(unmet.first().copied().map(problem))
    })?;
    Ok(())
}

/// The slots of one of several masters, as `redis-cli --cluster create` assigns them.
fn slots_of(master: usize, masters: usize) -> RangeInclusive<usize> {
    let first = |master: usize| (master * SLOTS + masters / 2) / masters;
    first(master)..=first(master + 1) - 1
}

/// Pairs of a node and another one that it does not know yet.
fn unmet(cluster: &Cluster) -> Result<Vec<(usize, usize)>, CommandError> {
    let mut unmet = Vec::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let view = view(node)?;
        let others = cluster.ids.iter().enumerate();
        let unknown = others.filter(|(_, id)| !view.knows(id));
        unmet.extend(unknown.map(|(other, _)| (index, other)));
    }
    Ok(unmet)
}

/// A replica that some node does not know as a replica of its master.
fn roles(cluster: &Cluster, replicas: usize) -> Result<Option<String>, CommandError> {
    let is_known = |view: &View, replica: usize| {
        let master = cluster.node_id(replica / replicas);
        let node = view.node(cluster.node_id(cluster.masters + replica));
        node.is_some_and(|node| node.master.as_deref() == Some(master))
    };
    for (index, node) in cluster.nodes.iter().enumerate() {
        let view = view(node)?;
        let mut all = 0..cluster.replicas().len();
        if let Some(replica) = all.find(|replica| !is_known(&view, *replica)) {
            let replica = cluster.masters + replica;
            return Ok(Some(format!(
                "node {index} does not see whose replica node {replica} is"
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, slots_of};

    #[test]
    fn each_slot_has_one_master() {
        for masters in [1, 3, 5, 1000, SLOTS] {
            let all = (0..masters).flat_map(|master| slots_of(master, masters));
            assert!(all.eq(0..SLOTS), "{masters}");
        }
    }
}
