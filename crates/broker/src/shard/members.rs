//! Which brokers the cluster has: answers to requests, announcements to streams, and brokers that join and leave.

use embar_fabric::records::BrokerState as RowState;
use embar_memory::Memory;
use embar_session::SendError;
use embar_wire::control::{
    BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply, Joined,
    RemoveBroker,
};

use super::Shard;
use super::refusals::Reply;
use crate::clock::Timestamp;
use crate::connection::{Connection, NotSent, Peer};
use crate::node::{LeaveRefused, Node, Retained};
use crate::places::{FreePlace, HEAD, NoPlace};

/// Topics that a refusal names, at most.
const TOPICS_NAMED: usize = 8;

impl<M: Memory> Shard<M> {
    /// Sends publishers and subscribers the list of brokers and the sequencer, if it has changed since they last
    /// got it. A connection whose ring is full gets it with a later tick.
    pub(super) fn announce_membership(&mut self, at: Timestamp) {
        let node = &*self.state.node;
        let membership = node.membership();
        let is_outdated = |c: &Connection<M>| {
            let is_stream = !matches!(c.peer, Peer::Client);
            is_stream
                && c.known_membership != membership
                && c.core.is_open()
                && c.long_reply.is_none()
        };
        let mut outdated = self
            .connections
            .values_mut()
            .filter(|c| is_outdated(c))
            .peekable();
        if outdated.peek().is_none() {
            return;
        }
        let news = metadata(node, None);
        if node.membership() != membership {
            // It has changed again: the next tick sends it.
            return;
        }
        for connection in outdated {
            let sent = connection.reply(&news, at.now);
            // A peer that accepts no frame of this length asks for the list itself.
            if !matches!(sent, Err(NotSent::Session(SendError::Full))) {
                connection.known_membership = membership;
                self.state.ready.push(connection.token);
            }
        }
    }
}

/// Refuses what only the head does, and names its address.
pub(super) fn must_be_head<M: Memory>(node: &Node<M>) -> Result<(), ErrorReply> {
    if node.is_head() {
        return Ok(());
    }
    let head = node
        .region
        .broker_row(HEAD)
        .found()
        .and_then(|row| row.address());
    let place = head.map_or_else(String::new, |a| format!(" at {a}"));
    Err(ErrorReply::new(
        ErrorCode::NotHead,
        format!("only the head{place} does this: ask it"),
    ))
}

pub(super) fn join<M: Memory>(node: &Node<M>, takes_data: bool) -> Reply {
    if node.takes_data() {
        // A standby knows as much as the head, and a data broker is busy.
        must_be_head(node)?;
    }
    // A free row. The first broker to claim it gets it.
    let geometry = node.region.geometry();
    let free = if takes_data {
        let free = geometry.data_rows().filter(|row| !node.alive(*row));
        free.min_by_key(|row| FreePlace::of(&node.region, *row))
    } else {
        let mut standbys = geometry.candidates().skip(1);
        standbys.find(|row| !node.alive(*row))
    };
    let free = free.ok_or_else(|| {
        let why = NoPlace::in_cluster(geometry, takes_data);
        ErrorReply::new(ErrorCode::ClusterFull, why.to_string())
    })?;
    Ok(Control::Joined(Joined {
        broker_id: free.into(),
        region_dir: node.region_dir().to_string_lossy().into_owned(),
        nonce: node.region.nonce().into(),
    }))
}

/// Lets this broker leave. From then on it takes no batch that only it would have.
pub(super) fn remove<M: Memory>(node: &Node<M>, asked: &RemoveBroker) -> Reply {
    let refused = |what: String| Err(ErrorReply::new(ErrorCode::InvalidArgument, what));
    if asked.broker != u32::from(node.id) {
        let (here, there) = (node.id, asked.broker);
        return refused(format!(
            "this is broker {here}: ask broker {there} itself to leave"
        ));
    }
    if node.is_head() || !node.takes_data() {
        return refused(format!(
            "broker {} takes no data: only those that do can leave a cluster that runs",
            node.id
        ));
    }
    node.refresh_topics();
    match node.leave(asked.force) {
        Ok(()) => {
            tracing::info!(id = node.id, force = asked.force, "leaves the cluster");
            Ok(Control::Done)
        }
        Err(LeaveRefused::Retains(retained)) => Err(retains(node.id, &retained)),
        Err(LeaveRefused::Last) => refused(format!(
            "broker {id} is the last one that takes data, or the others are just leaving, too: add another first (`embar broker --follower HEAD`), or force it to leave (`embar drain {id} --force`)",
            id = node.id
        )),
    }
}

fn retains(id: u16, retained: &[Retained]) -> ErrorReply {
    let mut named: Vec<String> = retained
        .iter()
        .take(TOPICS_NAMED)
        .map(|it| {
            format!(
                "{} messages of {} (order {})",
                it.messages, it.topic, it.order
            )
        })
        .collect();
    if retained.len() > named.len() {
        named.push(format!("{} more topics", retained.len() - named.len()));
    }
    let what = format!(
        "broker {id} retains what no other broker has: {}; delete these topics if they are read, or force it (`embar drain {id} --force`): then they cannot be read before a broker takes its place again (`embar broker --follower HEAD --id {id}`)",
        named.join(", ")
    );
    ErrorReply::new(ErrorCode::RetainsData, what)
}

/// The brokers of all rows that were ever claimed, with their states, and who sequences.
pub(super) fn metadata<M: Memory>(node: &Node<M>, topic: Option<&str>) -> Control {
    let topic_order = topic.and_then(|name| {
        node.refresh_topics();
        node.topics().by_name(name).map(|topic| topic.order)
    });
    let brokers = (0..node.region.geometry().brokers).filter_map(|id| {
        let found = node.region.broker_row(id).found();
        let state = match found.map(|row| row.broker_state()) {
            Some(state) => match state? {
                RowState::Free => return None,
                RowState::Left => BrokerState::Left,
                _ if !node.alive(id) => BrokerState::Gone,
                RowState::Starting => BrokerState::Starting,
                RowState::Ready => BrokerState::Ready,
                RowState::Draining => BrokerState::Draining,
                RowState::Gone => BrokerState::Gone,
            },
            // A row that was claimed, and that memory has lost. Whoever reads all brokers is to miss it.
            None if node.region.incarnation(id) == 0 => return None,
            None if node.alive(id) => BrokerState::Starting,
            None => BrokerState::Gone,
        };
        let row = found.unwrap_or_default();
        Some(BrokerInfo {
            id: id.into(),
            state,
            address: row.address().map_or_else(String::new, |a| a.to_string()),
            incarnation: found.map_or_else(|| node.region.incarnation(id), |row| row.incarnation),
            role: if id == HEAD {
                BrokerRole::Head
            } else {
                BrokerRole::Member
            },
            takes_data: node.region.geometry().takes_data(id),
            socket_machine: row.socket_machine,
        })
    });
    Control::ClusterMetadata(ClusterMetadata {
        head: HEAD.into(),
        brokers: brokers.collect(),
        topic_order,
        sequencer: node
            .sequencer()
            .filter(|row| node.alive(*row))
            .map(u32::from),
        region: node.region.nonce().into(),
        socket_dir: node.socket_dir(),
    })
}
