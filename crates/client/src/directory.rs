//! The control connection of a publisher or subscriber, as a state machine: it asks the cluster which brokers there
//! are, and whether the topic exists.
//!
//! It connects only when it has a question. It tries the bootstrap addresses and every broker that it heard of, one
//! after the other and with growing pauses, until one answers. So no dead address stops a client.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_session::Closed;
use embar_transport::{Address, RecvBuf, SendBuf};
use embar_wire::control::{
    BrokerState, ClusterMetadata, Control, CreateTopic, DescribeTopic, ErrorCode, ErrorReply,
    Metadata, Welcome,
};
use embar_wire::topic::Order;

use crate::backoff::{Backoff, BackoffLimits};
use crate::connection::{
    ANSWER_TIMEOUT, Connection, ConnectionAction, ConnectionError, ConnectionSettings, Incoming,
    Violation, refusal_of,
};
use crate::error::ClientError;
use crate::transport::{Routes, Ways};
use crate::wait::{Party, WaitReason};

/// What the directory found out.
#[derive(Debug)]
pub(crate) enum Finding {
    /// [`Directory::cluster`] is fresh.
    Cluster,
    /// The head knows the topic, and says which one of that name it is; `None` if it only refused to
    /// create another.
    TopicExists { id: Option<u32> },
    /// The head does not know the topic.
    TopicMissing,
    /// The head refused to tell of the topic, or to create it.
    TopicRefused(ClientError),
}

/// What the head is asked about the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopicRequest {
    /// What it is.
    Describe,
    /// To create it, of order 0.
    Create { replication_factor: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing to do.
    Idle,
    /// After a failure.
    Waiting(Now),
    /// Asking; give up at the deadline.
    Busy(Now),
    /// Told the connection to close; go on when it is down, elsewhere and after a wait if it failed.
    Ending { failed: bool },
}

#[derive(Debug)]
pub(crate) struct Directory {
    connection: Connection,
    step: Step,
    bootstrap: Vec<Address>,
    ways: Ways,
    cluster: Option<ClusterMetadata>,
    topic_order: Option<Order>,
    refreshed_at: Option<Now>,
    refresh: bool,
    topic: String,
    topic_request: Option<TopicRequest>,
    /// The broker at the other end, once it said so.
    peer: Option<u32>,
    /// Where the attempt goes, if it is one of the ways that the cluster gives to its head.
    to_head: Option<Address>,
    /// The last attempts went there, so many, and failed: there is another way, or another broker may know a new head.
    head_failures: usize,
    /// Counts the others that failed.
    turn: usize,
    backoff: Backoff,
    random: SplitMix64,
    last_error: Option<ConnectionError>,
    /// The last attempt ended with this answer.
    refused: Option<ErrorReply>,
    findings: VecDeque<Finding>,
}

impl Directory {
    /// # Panics
    /// If there is no bootstrap address; builders see to that.
    pub(crate) fn new(
        name: &str,
        bootstrap: Vec<Address>,
        ways: Ways,
        topic: &str,
        seed: u64,
    ) -> Self {
        assert!(
            !bootstrap.is_empty(),
            "a client needs an address to start from"
        );
        Self {
            connection: Connection::new(ConnectionSettings::control(name)),
            step: Step::Idle,
            bootstrap,
            ways,
            cluster: None,
            topic_order: None,
            refreshed_at: None,
            refresh: false,
            topic: topic.to_string(),
            topic_request: None,
            peer: None,
            to_head: None,
            head_failures: 0,
            turn: 0,
            backoff: Backoff::new(BackoffLimits::default()),
            random: SplitMix64::new(seed),
            last_error: None,
            refused: None,
            findings: VecDeque::new(),
        }
    }

    /// The cluster as last heard of.
    pub(crate) fn cluster(&self) -> Option<&ClusterMetadata> {
        self.cluster.as_ref()
    }

    /// The name of the topic.
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    /// The order of the topic, as last heard of.
    pub(crate) fn topic_order(&self) -> Option<Order> {
        self.topic_order
    }

    /// True if nothing is going on and nothing is asked.
    pub(crate) fn is_idle(&self) -> bool {
        self.step == Step::Idle
    }

    /// When the cluster was last heard of.
    pub(crate) fn refreshed_at(&self) -> Option<Now> {
        self.refreshed_at
    }

    /// A broker reports a change of the cluster on another channel.
    pub(crate) fn updated(&mut self, cluster: ClusterMetadata, now: Now) {
        self.cluster = Some(cluster);
        self.refreshed_at = Some(now);
        if self.topic_request.is_none() {
            self.refused = None;
        }
    }

    /// Asks for the cluster, soon.
    pub(crate) fn request_refresh(&mut self, now: Now) {
        self.refresh = true;
        self.start(now);
    }

    /// Asks the head about the topic.
    pub(crate) fn request_topic(&mut self, request: TopicRequest, now: Now) {
        self.topic_request = Some(request);
        self.start(now);
    }

    pub(crate) fn next_finding(&mut self) -> Option<Finding> {
        self.findings.pop_front()
    }

    /// What was refused last, if that was the answer.
    pub(crate) fn refused(&self) -> Option<ClientError> {
        self.refused.clone().map(ClientError::from)
    }

    /// Why no broker describes the cluster.
    pub(crate) fn why_unknown(&self) -> ClientError {
        self.refused().unwrap_or_else(|| self.unreachable())
    }

    fn unreachable(&self) -> ClientError {
        let addresses: Vec<String> = self.addresses().iter().map(Address::to_string).collect();
        ClientError::Unreachable {
            addresses: addresses.join(", "),
            source: self
                .last_error
                .clone()
                .unwrap_or(ConnectionError::Unfinished(WaitReason::Answer)),
        }
    }

    /// The head, while it is to be asked for the topic, or to create it: nobody else can answer that.
    pub(crate) fn awaited_head(&self) -> Option<Party> {
        self.topic_request?;
        let cluster = self.cluster.as_ref()?;
        let mut brokers = cluster.brokers.iter();
        let head = brokers.find(|broker| broker.id == cluster.head)?;
        Some(Party {
            broker: Some(head.id),
            address: head.address.parse().ok().map(Address::Tcp),
            reason: match &self.last_error {
                Some(cause) => WaitReason::NoAnswer(cause.to_string()),
                None => WaitReason::Answer,
            },
        })
    }

    /// The brokers that may describe the cluster, as the client waits for them.
    pub(crate) fn parties(&self) -> Vec<Party> {
        let reason = match &self.last_error {
            Some(cause) => WaitReason::NoAnswer(cause.to_string()),
            None => WaitReason::Connecting,
        };
        let party = |address| Party {
            broker: None,
            address: Some(address),
            reason: reason.clone(),
        };
        self.addresses().into_iter().map(party).collect()
    }

    pub(crate) fn connected(&mut self, now: Now) {
        if let Err(cause) = self.connection.connected(now) {
            self.fail(cause, now);
        }
    }

    pub(crate) fn sent(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        self.connection.sent(buf, result, now);
        self.read(now);
    }

    pub(crate) fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        self.connection.received(buf, result, now);
        self.read(now);
    }

    /// Takes in all that came.
    fn read(&mut self, now: Now) {
        loop {
            let result = match self.connection.next(now) {
                Ok(None) => return,
                Ok(Some(Incoming::Goodbye | Incoming::Nothing)) => Ok(()),
                Ok(Some(Incoming::Welcome(welcome))) => self.welcomed(&welcome),
                Ok(Some(Incoming::Control(message))) => self.answered(message, now),
                Ok(Some(Incoming::Closed(closed))) => {
                    if matches!(self.step, Step::Busy(_)) {
                        self.closed(&closed, now);
                    }
                    Ok(())
                }
                Ok(Some(Incoming::Ack(_) | Incoming::Batch { .. })) => {
                    Err("data on a control connection".into())
                }
                Err(violation) => Err(violation),
            };
            if let Err(violation) = result {
                self.connection.fail(&violation, now);
                self.fail(violation.into(), now);
            }
        }
    }

    fn welcomed(&mut self, welcome: &Welcome) -> Result<(), Violation> {
        self.peer = Some(welcome.broker_id);
        if let (Some(taken), Some(routes)) = (&self.to_head, self.routes_to_head()) {
            routes.check(taken, welcome)?;
        }
        self.connection.send(&Control::Metadata(Metadata {
            topic: Some(self.topic.clone()),
        }))
    }

    /// The end of the session in place of an answer.
    fn closed(&mut self, closed: &Closed, now: Now) {
        match refusal_of(closed) {
            Some(refusal) if self.topic_request.is_some() && is_for_good(refusal.code) => {
                self.topic_is(Finding::TopicRefused(refusal.into()), now);
            }
            Some(refusal) => self.fail_refused(refusal, now),
            None => self.fail(ConnectionError::Session(closed.clone()), now),
        }
    }

    fn answered(&mut self, message: Control, now: Now) -> Result<(), Violation> {
        match message {
            Control::ClusterMetadata(cluster) => return self.learned(cluster, now),
            Control::TopicCreated(created) => {
                let id = Some(created.topic.id);
                self.topic_is(Finding::TopicExists { id }, now);
            }
            Control::TopicDescription(found) => {
                self.topic_order = Some(found.topic.order);
                let id = Some(found.topic.id);
                self.topic_is(Finding::TopicExists { id }, now);
            }
            Control::Error(error) if self.topic_request.is_some() => match error.code {
                ErrorCode::UnknownTopic => self.topic_is(Finding::TopicMissing, now),
                ErrorCode::TopicExists => self.topic_is(Finding::TopicExists { id: None }, now),
                code if error.retryable || code == ErrorCode::NotHead => {
                    self.fail_refused(error, now);
                }
                _ => self.topic_is(Finding::TopicRefused(error.into()), now),
            },
            Control::Error(error) => self.fail_refused(error, now),
            other => return Err(format!("{:?} was not asked for", other.id()).into()),
        }
        Ok(())
    }

    fn learned(&mut self, cluster: ClusterMetadata, now: Now) -> Result<(), Violation> {
        let at_head = self.peer == Some(cluster.head);
        self.topic_order = cluster.topic_order.or(self.topic_order);
        self.cluster = Some(cluster);
        self.refreshed_at = Some(now);
        self.refresh = false;
        self.findings.push_back(Finding::Cluster);
        match self.topic_request {
            Some(TopicRequest::Create { replication_factor }) if at_head => {
                return self.connection.send(&Control::CreateTopic(CreateTopic {
                    name: self.topic.clone(),
                    order: Order::None.into(),
                    retention_bytes: 0,
                    retention_ms: 0,
                    max_message_bytes: 0,
                    replication_factor,
                }));
            }
            Some(TopicRequest::Describe) if at_head => {
                let name = self.topic.clone();
                return self
                    .connection
                    .send(&Control::DescribeTopic(DescribeTopic { name }));
            }
            Some(_) if self.to_head.is_some() => {
                let what = "the address of the head leads to another broker";
                self.fail(ConnectionError::Local(what), now);
            }
            // Only the head can do it, and was not asked.
            Some(_) => self.end(true, now),
            None => self.end(false, now),
        }
        Ok(())
    }

    fn topic_is(&mut self, finding: Finding, now: Now) {
        self.topic_request = None;
        self.refused = None;
        self.findings.push_back(finding);
        self.end(false, now);
    }

    /// The connection is down, on purpose or not.
    pub(crate) fn disconnected(&mut self, cause: ConnectionError, now: Now) {
        self.connection.disconnected();
        let failed = match self.step {
            Step::Busy(_) => {
                self.last_error = Some(cause);
                self.refused = None;
                true
            }
            Step::Ending { failed } => failed,
            Step::Idle | Step::Waiting(_) => return,
        };
        self.settle(failed, now);
    }

    pub(crate) fn tick(&mut self, now: Now) {
        self.connection.tick(now);
        self.read(now);
        match self.step {
            Step::Waiting(until) if until <= now => {
                self.step = Step::Idle;
                self.start(now);
            }
            Step::Busy(deadline) if deadline <= now => {
                self.connection.cut();
                self.fail(ConnectionError::NO_ANSWER, now);
            }
            _ => {}
        }
    }

    /// When [`Directory::tick`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<Now> {
        let own = match self.step {
            Step::Waiting(at) | Step::Busy(at) => Some(at),
            Step::Idle | Step::Ending { .. } => None,
        };
        own.into_iter().chain(self.connection.next_tick()).min()
    }

    pub(crate) fn poll(&mut self) -> Option<ConnectionAction> {
        self.connection.poll()
    }

    pub(crate) fn has_action(&mut self) -> bool {
        self.connection.has_action()
    }

    /// Ends whatever is going on.
    pub(crate) fn stop(&mut self, now: Now) {
        self.refresh = false;
        self.topic_request = None;
        match self.step {
            Step::Busy(_) => self.end(false, now),
            Step::Waiting(_) => self.step = Step::Idle,
            Step::Idle | Step::Ending { .. } => {}
        }
    }

    fn start(&mut self, now: Now) {
        if self.step != Step::Idle || !(self.refresh || self.topic_request.is_some()) {
            return;
        }
        let routes = self.routes_to_head();
        let routes = routes.filter(|_| self.topic_request.is_some());
        self.to_head = routes.and_then(|routes| routes.addresses().nth(self.head_failures));
        let target = self.to_head.clone().unwrap_or_else(|| {
            let mut addresses = self.addresses();
            addresses.swap_remove(self.turn % addresses.len())
        });
        self.peer = None;
        self.step = Step::Busy(now.after(ANSWER_TIMEOUT));
        self.connection.connect(target);
    }

    fn fail(&mut self, cause: ConnectionError, now: Now) {
        self.last_error = Some(cause);
        self.refused = None;
        self.end(true, now);
    }

    fn fail_refused(&mut self, refusal: ErrorReply, now: Now) {
        self.fail((&refusal).into(), now);
        self.refused = Some(refusal);
    }

    fn end(&mut self, failed: bool, now: Now) {
        self.step = Step::Ending { failed };
        self.connection.finish(now);
        if self.connection.is_down() {
            self.settle(failed, now);
        }
    }

    fn settle(&mut self, failed: bool, now: Now) {
        if failed {
            if self.to_head.is_some() {
                self.head_failures += 1;
            } else {
                self.head_failures = 0;
                self.turn = self.turn.wrapping_add(1);
            }
            let wait = self.backoff.failed(&mut self.random);
            self.step = Step::Waiting(now.after(Duration::from_nanos(wait)));
        } else {
            self.head_failures = 0;
            self.backoff.succeeded();
            self.step = Step::Idle;
            self.start(now);
        }
    }

    /// The ways to the head, as the cluster was last heard of.
    fn routes_to_head(&self) -> Option<Routes> {
        let cluster = self.cluster.as_ref()?;
        let mut brokers = cluster.brokers.iter();
        let head = brokers.find(|broker| broker.id == cluster.head)?;
        Some(self.ways.to_ask(head, cluster))
    }

    /// Everyone who may know: the bootstrap addresses, then the brokers heard of, in the way that leads to each for
    /// certain.
    fn addresses(&self) -> Vec<Address> {
        let mut addresses = self.bootstrap.clone();
        let Some(cluster) = &self.cluster else {
            return addresses;
        };
        let brokers = cluster.brokers.iter();
        for broker in brokers.filter(|broker| broker.state != BrokerState::Left) {
            let routes = self.ways.to_ask(broker, cluster);
            if let Some(address) = routes.addresses().last()
                && !addresses.contains(&address)
            {
                addresses.push(address);
            }
        }
        addresses
    }
}

/// Whether the head refuses the topic whenever it is asked.
fn is_for_good(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument
    )
}
