//! What the connections of one network thread share: the broker, and lists of the connections to look at next.
//!
//! The methods of `ShardState`, in most files of this module, are the steps of one connection, and take that
//! connection. [`super::Shard`] looks the connection up once for each event, and removes it when it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use embar_memory::Memory;
use embar_meter::profile::Recorder;
use embar_transport::Token;
use embar_wire::limits::Limits;

use super::disk_piece::DiskRead;
use super::paused_publishers::PausedPublishers;
use super::searching_subscribers::SearchingSubscribers;
use super::staging_memory::StagingMemory;
use super::waiting_subscribers::WaitingSubscribers;
use crate::connection::{Connection, Peer};
use crate::node::Node;
use crate::receive_path::ReceivePath;

/// Buffers of staging memory that a thread keeps if it receives everything there.
const STAGING_BUFFERS: usize = 4;

/// The broker, and the lists of connections that this round or a later one looks at.
pub(super) struct ShardState<M: Memory> {
    pub node: Arc<Node<M>>,
    /// The lane of what this thread submits to the sequencer.
    pub lane: u16,
    pub meter: Recorder,
    pub limits: Limits,
    /// Connections with acknowledgements to send.
    pub ack_due: Vec<Token>,
    /// Publishers that wait for memory.
    pub paused: PausedPublishers,
    /// Subscribers that have everything, by topic.
    pub waiting: WaitingSubscribers,
    /// Publishers whose acknowledgements wait for disks, by topic.
    pub awaiting_disks: BTreeMap<u32, BTreeSet<Token>>,
    /// Subscribers that look for batches of their share, and have not come to one or to the end.
    pub searching: SearchingSubscribers,
    /// Topics appended to in this round.
    pub touched: Vec<u32>,
    /// Connections to look at in this round.
    pub ready: Vec<Token>,
    /// Connections that wait for topics on disks.
    pub creating: Vec<Token>,
    /// Reads to ask the driver for in this round.
    pub disk_reads: Vec<(Token, DiskRead)>,
    /// Subscribers that ask again with the next tick.
    pub disk_retries: Vec<Token>,
    /// Something was submitted to the sequencer in this round.
    pub submitted: bool,
    /// The disks' writer has not been told of all that was appended.
    pub has_grown_for_disks: bool,
    pub draining: bool,
    pub staging_memory: StagingMemory,
    /// The reactor can wait for many bytes without calls.
    pub waits_in_kernel: bool,
}

impl<M: Memory> ShardState<M> {
    pub fn new(node: Arc<Node<M>>, lane: u16, limits: Limits) -> Self {
        let receive = node.config.receive;
        Self {
            meter: node.profile.recorder(),
            limits,
            node,
            lane,
            ack_due: Vec::new(),
            paused: PausedPublishers::default(),
            waiting: WaitingSubscribers::default(),
            awaiting_disks: BTreeMap::new(),
            searching: SearchingSubscribers::default(),
            touched: Vec::new(),
            ready: Vec::new(),
            creating: Vec::new(),
            disk_reads: Vec::new(),
            disk_retries: Vec::new(),
            submitted: false,
            has_grown_for_disks: false,
            draining: false,
            staging_memory: match receive {
                ReceivePath::Staging => StagingMemory::keeping(STAGING_BUFFERS),
                _ => StagingMemory::keeping(0),
            },
            waits_in_kernel: matches!(receive, ReceivePath::Blocking | ReceivePath::Uring),
        }
    }

    /// This round sends the acknowledgements of a connection.
    pub fn owe_acks(&mut self, connection: &mut Connection<M>) {
        if !std::mem::replace(&mut connection.is_ack_due, true) {
            self.ack_due.push(connection.token);
        }
    }

    /// A connection was answered: what waits for disks is looked at when its topic is further on them.
    pub fn await_disks(&mut self, connection: &Connection<M>) {
        if let Peer::Publisher { topic, .. } = connection.peer
            && connection.acks.awaits_disks()
        {
            let tokens = self.awaiting_disks.entry(topic).or_default();
            tokens.insert(connection.token);
        }
    }
}
