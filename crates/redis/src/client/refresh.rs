//! Asks nodes who serves which slot, one after the other until one knows it all.
//!
//! On the keeper's thread, and without ever blocking it: a node that says nothing holds up nobody
//! but those who wait for the answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::Call;

use super::Inner;
use super::keeper::Keeper;
use super::node::Node;
use super::sleepers::{Nap, after};
use crate::command::Class;
use crate::config::Endpoint;
use crate::resp::{ServerError, View, parse};
use crate::topology::Topology;

/// How long a node may take to answer before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(1);

const QUESTION: &[u8] = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// See the module.
pub(super) struct Refresh {
    left: std::vec::IntoIter<Arc<Node>>,
    question: Option<Question>,
    /// What the node said that knows more than the others asked so far.
    best: Option<Topology>,
}

/// A node that was asked.
struct Question {
    node: Arc<Node>,
    until: Instant,
    nap: Option<Nap>,
    /// As many attempts to connect had failed before.
    failures: u32,
    call: Option<Call>,
}

impl Refresh {
    pub fn new(client: &Inner) -> Self {
        let mut nodes: Vec<Arc<Node>> = client.routes.load().nodes.clone();
        // Seeds last: they may have left, or be the only ones that are still there.
        for seed in &client.config.seeds {
            if !nodes.iter().any(|node| node.endpoint == *seed) {
                nodes.push(client.make(seed.clone()));
            }
        }
        // Those that could not be reached just now have their turn another time.
        nodes.retain(|node| !node.link(0).is_backing_off());
        Self {
            left: nodes.into_iter(),
            question: None,
            best: None,
        }
    }

    /// Whether the client knows more than before, once that is clear.
    pub fn poll(&mut self, client: &Inner, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            if self.question.is_none() {
                self.question = self.left.next().map(Question::to);
            }
            let Some(question) = &mut self.question else {
                return Poll::Ready(self.make_do(client));
            };
            let Poll::Ready(answer) = question.poll(&client.keeper, cx) else {
                return Poll::Pending;
            };
            match answer {
                Ok(topology) if topology.uncovered() == 0 => {
                    client.adopt(&topology);
                    return Poll::Ready(true);
                }
                // A node that was reset, or is cut off, knows little.
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

    /// No node knows all.
    fn make_do(&mut self, client: &Inner) -> bool {
        match self.best.take() {
            Some(topology) if !topology.shards().is_empty() => {
                client.adopt(&topology);
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
            until: after(PATIENCE),
            nap: None,
            failures: node.link(0).failures(),
            call: None,
            node,
        }
    }

    fn poll(
        &mut self,
        keeper: &Arc<Keeper>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Topology, String>> {
        let call = match &mut self.call {
            Some(call) => call,
            None => match self.poll_call(keeper, cx) {
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
        keeper: &Arc<Keeper>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Call, String>> {
        let link = self.node.link(0);
        if let Poll::Ready(conn) = link.poll_conn(cx) {
            let fill = |out: &mut [u8]| out.copy_from_slice(QUESTION);
            let call = conn.submit(
                QUESTION.len(),
                1,
                Class::Read as u8,
                Some(PATIENCE),
                None,
                fill,
            );
            return Poll::Ready(call.map_err(|error| error.to_string()));
        }
        let failed = link.failures() != self.failures;
        if failed || Instant::now() >= self.until {
            let why = link.last_failure();
            let why = why.map_or_else(|| "no connection in time".to_owned(), |why| why.to_string());
            return Poll::Ready(Err(why));
        }
        keeper.wake_at(&mut self.nap, self.until, cx.waker());
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
