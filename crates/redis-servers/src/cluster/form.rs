//! Single servers become a cluster.

use super::view::{View, view};
use super::{Cluster, ClusterOptions, health};
use crate::error::{CommandError, StartError};
use crate::server::Server;
use std::ops::RangeInclusive;
use std::time::Duration;

/// How many slots there are.
const SLOTS: usize = 16_384;

/// How long each of the two phases (all have met, all is well) may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// Every node meets every other at once, instead of hearing of it by gossip, and gets an epoch of its own, instead of
/// quarrelling about that: both take seconds.
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
    introduce(&cluster)?;
    health::wait(PATIENCE, || unmet(&cluster))?;
    for (replica, node) in cluster.replicas().iter().enumerate() {
        let master = cluster.node_id(replica / options.replicas);
        node.command(&["CLUSTER", "REPLICATE", master])?;
    }
    health::wait(PATIENCE, || roles(&cluster, options.replicas))?;
    health::wait(PATIENCE, || health::problem(&cluster))?;
    Ok(cluster)
}

/// Gives out the slots, and makes each two nodes meet.
fn introduce(cluster: &Cluster) -> Result<(), CommandError> {
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
    // Only now: a node that was met by another one takes no epoch any more.
    for (index, node) in cluster.nodes.iter().enumerate() {
        let mut control = node.control()?;
        for other in &cluster.nodes[index + 1..] {
            let (ip, port) = (other.address().ip(), other.port());
            control.call(&["CLUSTER", "MEET", &ip.to_string(), &port.to_string()])?;
        }
    }
    Ok(())
}

/// The slots of one of several masters, as `redis-cli --cluster create` gives them out.
fn slots_of(master: usize, masters: usize) -> RangeInclusive<usize> {
    let first = |master: usize| (master * SLOTS + masters / 2) / masters;
    first(master)..=first(master + 1) - 1
}

/// A pair of nodes that do not know each other yet.
fn unmet(cluster: &Cluster) -> Result<Option<String>, CommandError> {
    for (index, node) in cluster.nodes.iter().enumerate() {
        let view = view(node)?;
        if let Some(other) = cluster.ids.iter().find(|id| !view.knows(id)) {
            return Ok(Some(format!("node {index} has not met {other}")));
        }
    }
    Ok(None)
}

/// A replica that some node does not know as one of its master.
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
