//! Reads the topology: asks nodes one after the other which serves which slot, until one knows all.
//!
//! The manager's thread polls it and never blocks in it: a silent node delays only what waits for the
//! answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::Call;

use super::node::Node;
use super::node_connection::ConnWait;
use super::router::Router;
use super::schedule::{Schedule, Timer};
use super::timers::after;
use crate::command::Class;
use crate::endpoint::Endpoint;
use crate::resp::{ServerError, View, parse};
use crate::topology::Topology;

/// How long a node may take to answer before the refresh asks the next one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

const CLUSTER_SLOTS: &[u8] = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// One reading of the topology.
pub(super) struct Refresh {
    /// The nodes to ask.
    left: std::vec::IntoIter<Arc<Node>>,
    question: Option<Question>,
    /// The answer so far that covers most slots.
    best: Option<Topology>,
}

/// A question to one node.
struct Question {
    node: Arc<Node>,
    deadline: Instant,
    timer: Option<Timer>,
    wait: ConnWait,
    /// How many attempts to connect had failed when it began.
    failures: u32,
    call: Option<Call>,
}

impl Refresh {
    pub fn new(router: &Router) -> Self {
        let mut nodes: Vec<Arc<Node>> = router.routes().nodes.clone();
        // Seeds last: they may have left the cluster, or be the only nodes that are still there.
        for seed in &router.shared.config.seeds {
            if !nodes.iter().any(|node| node.endpoint == *seed) {
                nodes.push(Node::new(seed.clone(), &router.shared));
            }
        }
        // Nodes that could not be reached just now have their turn in another refresh.
        nodes.retain(|node| !node.connection(0).is_backing_off());
        Self {
            left: nodes.into_iter(),
            question: None,
            best: None,
        }
    }

    /// Ready when the refresh is over: whether it found a topology.
    pub fn poll(&mut self, router: &Router, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            if self.question.is_none() {
                self.question = self.left.next().map(Question::to);
            }
            let Some(question) = &mut self.question else {
                return Poll::Ready(self.use_best(router));
            };
            let Poll::Ready(answer) = question.poll(&router.shared.schedule, cx) else {
                return Poll::Pending;
            };
            match answer {
                Ok(topology) if topology.uncovered() == 0 => {
                    router.adopt(&topology);
                    return Poll::Ready(true);
                }
                // A node that was reset, or is cut off from the others, knows little.
                Ok(topology) => {
                    let known = self.best.as_ref().map_or(usize::MAX, Topology::uncovered);
                    if topology.uncovered() < known {
                        self.best = Some(topology);
                    }
                }
                Err(why) => tracing::debug!(node = %question.node.endpoint, "no topology: {why}"),
            }
            self.question = None;
        }
    }

    /// No node knows all slots: takes the best answer.
    fn use_best(&mut self, router: &Router) -> bool {
        match self.best.take() {
            Some(topology) if !topology.shards().is_empty() => {
                router.adopt(&topology);
                true
            }
            _ => {
                tracing::warn!("no node of the cluster tells which serves which slot");
                false
            }
        }
    }
}

impl Question {
    fn to(node: Arc<Node>) -> Self {
        Self {
            deadline: after(ANSWER_TIMEOUT),
            timer: None,
            wait: ConnWait::default(),
            failures: node.connection(0).failures(),
            call: None,
            node,
        }
    }

    fn poll(
        &mut self,
        schedule: &Arc<Schedule>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Topology, String>> {
        let call = match &mut self.call {
            Some(call) => call,
            None => match self.poll_call(schedule, cx) {
                Poll::Ready(Ok(call)) => self.call.insert(call),
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                Poll::Pending => return Poll::Pending,
            },
        };
        let endpoint = &self.node.endpoint;
        let answer = call.poll_reply(cx, |reply| read(reply, endpoint));
        answer.map(|answer| answer.map_err(|error| error.to_string())?)
    }

    fn poll_call(
        &mut self,
        schedule: &Arc<Schedule>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Call, String>> {
        let connection = self.node.connection(0);
        if let Poll::Ready(conn) = connection.poll_conn(&mut self.wait, cx) {
            let fill = |out: &mut [u8]| out.copy_from_slice(CLUSTER_SLOTS);
            let call = conn.submit(
                CLUSTER_SLOTS.len(),
                1,
                Class::Read as u8,
                Some(ANSWER_TIMEOUT),
                None,
                fill,
            );
            return Poll::Ready(call.map_err(|error| error.to_string()));
        }
        let failed = connection.failures() != self.failures;
        if failed || Instant::now() >= self.deadline {
            let why = connection.last_failure();
            let why = why.map_or_else(|| "no connection in time".to_owned(), |why| why.to_string());
            return Poll::Ready(Err(why));
        }
        schedule.wake_at(&mut self.timer, self.deadline, cx.waker());
        Poll::Pending
    }
}

fn read(reply: &[u8], asked: &Endpoint) -> Result<Topology, String> {
    let (view, _) = parse(reply).map_err(|error| error.to_string())?;
    if let View::Error(error) = view {
        return Err(ServerError::from(error).text);
    }
    Topology::from_slots(view, asked).map_err(|error| error.to_string())
}
