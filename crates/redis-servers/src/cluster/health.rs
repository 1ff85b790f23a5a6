//! Checks whether a cluster is well, and waits until it is: every running node says so, all agree on slots and roles,
//! and replicas have the data of their masters.

use super::Cluster;
use super::view::{Node, View, view};
use crate::error::{CommandError, WaitError};
use crate::server::Server;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// How often to check. Nodes do most of what this waits for ten times a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `problem` finds none. A node that does not answer is a problem.
pub fn wait(
    timeout: Duration,
    mut problem: impl FnMut() -> Result<Option<String>, CommandError>,
) -> Result<(), WaitError> {
    let begin = Instant::now();
    loop {
        let problem = match problem() {
            Ok(None) => return Ok(()),
            Ok(Some(problem)) => problem,
            Err(error) => error.to_string(),
        };
        let after = begin.elapsed();
        if after > timeout {
            return Err(WaitError { after, problem });
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// The first condition of [`Cluster::wait_ok`] that does not hold.
pub fn problem(cluster: &Cluster) -> Result<Option<String>, CommandError> {
    let mut agreed: Option<Shape> = None;
    for index in cluster.running() {
        let node = &cluster.nodes[index];
        let info = node.command(&["CLUSTER", "INFO"])?;
        if !info
            .lines()
            .any(|line| line.trim_end() == "cluster_state:ok")
        {
            return Ok(Some(format!(
                "node {index} says that the cluster is not well"
            )));
        }
        let view = view(node)?;
        if let Some(problem) = unknown(cluster, &view).or_else(|| unsettled(cluster, &view)) {
            return Ok(Some(format!("node {index}: {problem}")));
        }
        let shape = shape(cluster, &view);
        if agreed.get_or_insert_with(|| shape.clone()) != &shape {
            return Ok(Some(format!(
                "node {index} sees other slots or roles than another"
            )));
        }
        if let Some(problem) = out_of_sync(cluster, node, &view)? {
            return Ok(Some(format!("node {index}: {problem}")));
        }
    }
    Ok(None)
}

/// Each running node's master and slots, by the node's name.
type Shape = BTreeMap<String, (Option<String>, Vec<(u16, u16)>)>;

fn shape(cluster: &Cluster, view: &View) -> Shape {
    let running = view
        .nodes
        .iter()
        .filter(|node| is_running(cluster, &node.id));
    let of = |node: &Node| {
        let slots = node
            .slots
            .iter()
            .map(|slots| (*slots.start(), *slots.end()));
        (node.id.clone(), (node.master.clone(), slots.collect()))
    };
    running.map(of).collect()
}

fn is_running(cluster: &Cluster, id: &str) -> bool {
    cluster.running().any(|index| cluster.ids[index] == id)
}

/// A running node that the view does not have as one.
fn unknown(cluster: &Cluster, view: &View) -> Option<String> {
    let other = cluster
        .running()
        .find(|other| !view.knows(&cluster.ids[*other]))?;
    Some(format!("does not know node {other}"))
}

/// A master that does not run and still has slots, unless the view has it as failed and no replica can take over.
fn unsettled(cluster: &Cluster, view: &View) -> Option<String> {
    let can_take_over = |gone: &Node| {
        let mut nodes = view
            .nodes
            .iter()
            .filter(|node| is_running(cluster, &node.id));
        nodes.any(|node| node.master.as_ref() == Some(&gone.id))
    };
    let settled = |node: &Node| {
        node.slots.is_empty()
            || is_running(cluster, &node.id)
            || (node.is("fail") && !can_take_over(node))
    };
    let node = view.nodes.iter().find(|node| !settled(node))?;
    Some(format!("{} does not run and still has slots", node.id))
}

/// Whether the node is a replica without all data of its master, or a master that misses a replica.
fn out_of_sync(
    cluster: &Cluster,
    node: &Server,
    view: &View,
) -> Result<Option<String>, CommandError> {
    let info = node.command(&["INFO", "replication"])?;
    let myself = view.myself()?;
    if let Some(master) = &myself.master {
        let is_up = info
            .lines()
            .any(|line| line.trim_end() == "master_link_status:up");
        let waits = is_running(cluster, master) && !is_up;
        return Ok(waits.then(|| "is not in sync with its master".to_owned()));
    }
    let online = info.lines().filter(|line| is_online_replica(line)).count();
    let is_mine =
        |node: &&Node| node.master.as_ref() == Some(&myself.id) && is_running(cluster, &node.id);
    let expected = view.nodes.iter().filter(is_mine).count();
    let waits = online < expected;
    Ok(waits.then(|| format!("has {online} replicas in sync of {expected}")))
}

/// `slave0:ip=127.0.0.1,port=7003,state=online,...`
fn is_online_replica(line: &str) -> bool {
    line.starts_with("slave") && line.split(',').any(|part| part == "state=online")
}
