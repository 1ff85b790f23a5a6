//! What the connections of one network thread share.
//!
//! Its methods are the steps of one connection, and take that connection: [`super::Shard`] looks it up once for
//! each event, and removes it when it is over.

use std::sync::Arc;

use embar_memory::Memory;
use embar_meter::profile::Recorder;
use embar_transport::Token;
use embar_wire::limits::Limits;

use super::paused::Paused;
use super::waiting::Waiting;
use crate::node::Node;

/// The broker, and the lists of connections that this round or a later one looks at.
pub(super) struct ShardState<M: Memory> {
    pub node: Arc<Node<M>>,
    /// The lane of what this thread submits to the sequencer.
    pub lane: u16,
    pub meter: Recorder,
    pub limits: Limits,
    /// Connections with acks to send.
    pub to_flush: Vec<Token>,
    /// Publishers that wait for room.
    pub paused: Paused,
    /// Subscribers that have everything, by topic.
    pub waiting: Waiting,
    /// Topics appended to in this round.
    pub touched: Vec<u32>,
    /// Connections to look at in this round.
    pub ready: Vec<Token>,
    /// Something was submitted to the sequencer in this round.
    pub submitted: bool,
    pub draining: bool,
}

impl<M: Memory> ShardState<M> {
    pub fn new(node: Arc<Node<M>>, lane: u16, limits: Limits) -> Self {
        Self {
            meter: node.profile.recorder(),
            limits,
            node,
            lane,
            to_flush: Vec::new(),
            paused: Paused::default(),
            waiting: Waiting::default(),
            touched: Vec::new(),
            ready: Vec::new(),
            submitted: false,
            draining: false,
        }
    }
}
