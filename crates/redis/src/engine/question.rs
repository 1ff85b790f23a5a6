//! A question to one server: of a cluster's node how it sees that, and which node serves which slot.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use embar_mux::{Call, ConnectionState};

use super::answers::Answer;
use super::cluster_info::ClusterInfo;
use super::lasting::lasting;
use super::node::Node;
use super::node_connection::ConnWait;
use super::schedule::{Schedule, Timer};
use super::timers::after;
use crate::command::Class;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::resp::{ServerError, View, parse};
use crate::topology::{Topology, TopologyError};

/// How long a node may take to answer, with connecting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// To a node of a cluster. `CLUSTER INFO` first: what it tells may be older than what the slots tell, but never newer.
const QUESTION: &[u8] =
    b"*2\r\n$7\r\nCLUSTER\r\n$4\r\nINFO\r\n*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";

/// A question to one server: commands that go together.
pub(super) struct Question {
    pub node: Arc<Node>,
    bytes: Cow<'static, [u8]>,
    /// How many commands there are.
    replies: u32,
    /// When it ends without an answer.
    deadline: Instant,
    wait: ConnWait,
    /// How many attempts to connect had failed when it began.
    failures: u32,
    call: Option<Call>,
}

/// Why a server has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// It refused to tell, and will again.
    Refused(Error),
    /// Something else, in words.
    Failed(String),
}

impl NoAnswer {
    /// Something went wrong that may go well the next time.
    pub fn failed(error: &dyn ToString) -> Self {
        Self::Failed(error.to_string())
    }

    /// Why connecting to a server fails, if that will not change by itself, or by other credentials of a provider.
    pub fn lasting(node: &Node, has_provider: bool) -> Option<Self> {
        let connection = node.connection(0);
        let failed = connection.failures() > 0;
        let failure = connection.last_failure().filter(|_| failed)?;
        lasting(failure, has_provider).map(Self::Refused)
    }

    /// The server answered with an error. One that loads its data will tell later.
    pub fn error(error: ServerError) -> Self {
        match error.kind.is_retryable() {
            true => Self::failed(&error),
            false => Self::Refused(error.into()),
        }
    }
}

impl Question {
    /// Which node serves which slot.
    pub fn of_cluster(node: Arc<Node>) -> Self {
        Self::new(node, Cow::Borrowed(QUESTION), 2)
    }

    /// Commands, encoded, with so many replies.
    pub fn new(node: Arc<Node>, bytes: Cow<'static, [u8]>, replies: u32) -> Self {
        Self {
            bytes,
            replies,
            deadline: after(ANSWER_TIMEOUT),
            wait: ConnWait::default(),
            failures: node.connection(0).failures(),
            call: None,
            node,
        }
    }

    /// When to poll it again, although nothing wakes its task: an answer that is late does, but no connection does not.
    fn poll_again_at(&self) -> Option<Instant> {
        self.call.is_none().then_some(self.deadline)
    }

    /// Whether it waits for an answer on a connection that stands: the server may be busy.
    pub fn is_with_server(&self) -> bool {
        let conn = self.node.connection(0).current();
        self.call.is_some() && conn.is_some_and(|conn| conn.state() == ConnectionState::Open)
    }

    /// As [`Question::poll`], with the answer of a cluster's node.
    pub fn poll_cluster(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answer, NoAnswer>> {
        self.poll(cx, read)
    }

    /// Ready when the server has answered, which `read` reads, or will not. It gets the replies to all commands, and who was asked.
    pub fn poll<A>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl Fn(&[u8], &Endpoint) -> Result<A, NoAnswer>,
    ) -> Poll<Result<A, NoAnswer>> {
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
            let fill = |out: &mut [u8]| out.copy_from_slice(&self.bytes);
            let (len, class) = (self.bytes.len(), Class::Read as u8);
            let call = conn.submit(len, self.replies, class, Some(left), None, fill);
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

/// Has the task woken when one of these questions is to be polled again, or it is time to decide.
pub(super) fn wake_again<'q>(
    questions: impl Iterator<Item = &'q Question>,
    decide_at: Option<Instant>,
    schedule: &Arc<Schedule>,
    timer: &mut Option<Timer>,
    cx: &Context<'_>,
) {
    let polls = questions.filter_map(Question::poll_again_at);
    if let Some(next) = polls.chain(decide_at).min() {
        schedule.wake_at(timer, next, cx.waker());
    }
}

/// Cuts replies into as many as there are commands.
pub(super) fn cut<const N: usize>(mut reply: &[u8]) -> Result<[View<'_>; N], NoAnswer> {
    let mut views = [View::Null; N];
    for view in &mut views {
        let (found, len) = parse(reply).map_err(|error| NoAnswer::failed(&error))?;
        (*view, reply) = (found, &reply[len..]);
    }
    Ok(views)
}

/// Reads the replies of a cluster's node to both commands.
fn read(reply: &[u8], asked: &Endpoint) -> Result<Answer, NoAnswer> {
    let [info, slots] = cut(reply)?;
    // A user may be allowed to ask for the slots alone.
    let info = ClusterInfo::read(info);
    match Topology::from_slots(slots, asked) {
        Ok(topology) if topology.shards().is_empty() => Err(NoAnswer::Failed(
            "it knows of no node that serves any slot".to_owned(),
        )),
        Ok(topology) => Ok(Answer { topology, info }),
        Err(TopologyError::Refused(error)) => Err(NoAnswer::error(error)),
        Err(error) => Err(NoAnswer::failed(&error)),
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
        assert!(matches!(error, NoAnswer::Refused(error) if error.to_string().contains("NOPERM")));
    }

    #[test]
    fn a_node_that_cannot_tell_yet_does_not_refuse() {
        for slots in ["*0\r\n", "+OK\r\n", "-LOADING not yet\r\n"] {
            let error = read_both(INFO, slots).expect_err("it tells nothing");
            assert!(matches!(error, NoAnswer::Failed(_)), "{error:?}");
        }
    }
}
