//! A question to one node: how it sees its cluster, and which node serves which slot.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use embar_mux::Call;

use super::answers::Answer;
use super::cluster_info::ClusterInfo;
use super::node::Node;
use super::node_connection::ConnWait;
use super::timers::after;
use crate::command::Class;
use crate::endpoint::Endpoint;
use crate::resp::{ServerError, parse};
use crate::topology::{Topology, TopologyError};

/// How long a node may take to answer, with connecting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// `CLUSTER INFO` first: what it tells may be older than what the slots tell, but never newer.
const QUESTION: &[u8] =
    b"*2\r\n$7\r\nCLUSTER\r\n$4\r\nINFO\r\n*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// A question to one node.
pub(super) struct Question {
    pub node: Arc<Node>,
    /// When it ends without an answer.
    deadline: Instant,
    wait: ConnWait,
    /// How many attempts to connect had failed when it began.
    failures: u32,
    call: Option<Call>,
}

/// Why a node has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server refused to tell, and will again.
    Refused(ServerError),
    /// Something else, in words.
    Failed(String),
}

impl Question {
    pub fn to(node: Arc<Node>) -> Self {
        Self {
            deadline: after(ANSWER_TIMEOUT),
            wait: ConnWait::default(),
            failures: node.connection(0).failures(),
            call: None,
            node,
        }
    }

    /// When to poll it again, although nothing wakes its task: an answer that is late does, but no connection does not.
    pub fn poll_again_at(&self) -> Option<Instant> {
        self.call.is_none().then_some(self.deadline)
    }

    /// Ready when the node has answered, or will not.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, NoAnswer>> {
        let call = match &mut self.call {
            Some(call) => call,
            None => match ready!(self.poll_call(cx)) {
                Ok(call) => self.call.insert(call),
                Err(why) => return Poll::Ready(Err(NoAnswer::Failed(why))),
            },
        };
        let endpoint = &self.node.endpoint;
        let answer = call.poll_reply(cx, |reply| read(reply, endpoint));
        answer.map(|answer| answer.map_err(|error| NoAnswer::Failed(error.to_string()))?)
    }

    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Result<Call, String>> {
        let connection = self.node.connection(0);
        let left = self.deadline.saturating_duration_since(Instant::now());
        if let Poll::Ready(conn) = connection.poll_conn(&mut self.wait, cx) {
            let fill = |out: &mut [u8]| out.copy_from_slice(QUESTION);
            let class = Class::Read as u8;
            let call = conn.submit(QUESTION.len(), 2, class, Some(left), None, fill);
            return Poll::Ready(call.map_err(|error| error.to_string()));
        }
        let failed = connection.failures() != self.failures;
        if failed || left.is_zero() {
            let why = connection.last_failure();
            let why = why.map_or_else(|| "no connection in time".to_owned(), |why| why.to_string());
            return Poll::Ready(Err(why));
        }
        Poll::Pending
    }
}

/// Reads the replies to both commands.
fn read(reply: &[u8], asked: &Endpoint) -> Result<Answer, NoAnswer> {
    let broken = |error: &dyn ToString| NoAnswer::Failed(error.to_string());
    let (info, len) = parse(reply).map_err(|error| broken(&error))?;
    let (slots, _) = parse(&reply[len..]).map_err(|error| broken(&error))?;
    // A user may be allowed to ask for the slots alone.
    let info = ClusterInfo::read(info);
    match Topology::from_slots(slots, asked) {
        Ok(topology) if topology.shards().is_empty() => Err(NoAnswer::Failed(
            "it knows of no node that serves any slot".to_owned(),
        )),
        Ok(topology) => Ok(Answer { topology, info }),
        // As one that loads its data: it will tell later.
        Err(TopologyError::Refused(error)) if error.kind.is_retryable() => Err(broken(&error)),
        Err(TopologyError::Refused(error)) => Err(NoAnswer::Refused(error)),
        Err(error) => Err(broken(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cluster_info::Health;

    const INFO: &str = "$43\r\ncluster_state:ok\r\ncluster_current_epoch:7\r\n\r\n";
    const SLOTS: &str = "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$1\r\na\r\n:1\r\n";
    const REFUSED: &str = "-NOPERM this user may not\r\n";

    fn read_both(info: &str, slots: &str) -> Result<Answer, NoAnswer> {
        read((info.to_owned() + slots).as_bytes(), &Endpoint::tcp("b", 2))
    }

    #[test]
    fn both_replies_are_read() {
        let answer = read_both(INFO, SLOTS).expect("an answer");
        assert_eq!(
            (answer.info.health, answer.info.epoch),
            (Health::Up, Some(7))
        );
        assert_eq!(answer.topology.shards()[0].primary, Endpoint::tcp("a", 1));
    }

    #[test]
    fn what_is_allowed_is_read() {
        let answer = read_both(REFUSED, SLOTS).expect("an answer");
        assert_eq!(answer.info, ClusterInfo::default());
        let error = read_both(INFO, REFUSED).expect_err("it is refused");
        assert!(matches!(error, NoAnswer::Refused(error) if error.text.contains("NOPERM")));
    }

    #[test]
    fn a_node_that_cannot_tell_yet_does_not_refuse() {
        for slots in ["*0\r\n", "+OK\r\n", "-LOADING not yet\r\n"] {
            let error = read_both(INFO, slots).expect_err("it tells nothing");
            assert!(matches!(error, NoAnswer::Failed(_)), "{error:?}");
        }
    }
}
