//! What the admin client's worker thread does for each kind of request: asks the head, one broker, or all of them in
//! turn, and makes the result or the error of what they answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "profile")]
use embar_meter::Snapshot;
use embar_transport::Address;
#[cfg(feature = "profile")]
use embar_wire::control::DISK_PROFILE;
use embar_wire::control::{
    BrokerState, BrokerStatus, ClusterMetadata, Control, CreateTopic, DeleteTopic, DescribeTopic,
    ErrorCode, ErrorReply, ListTopics, Metadata, RemoveBroker, SetMetering, Topic,
    TopicDescription, Welcome,
};

use super::TopicSpec;
use super::blocking::{BlockingConnection, Broken};
use super::request_state::RequestState;
use crate::connection::{ConnectionError, ConnectionSettings, Violation};
use crate::error::{AdminError, ClientError};
use crate::transport::{Routes, Transport, Way, Ways};
use crate::wait::WaitReason;

/// One broker of several that does not let itself be connected must not hide the others. The kernel sends a lost packet of a new connection
/// again after a second (RFC 6298), so this bears one or two of them.
const CONNECT_SHARE: Duration = Duration::from_millis(2500);
/// How long a socket file may refuse connections because its backlog is full, where there is another way.
const ONE_OF_SEVERAL: Duration = Duration::from_millis(100);
/// How often is asked whether a broker has left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The worker thread's state.
pub(super) struct Worker {
    bootstrap: Vec<Address>,
    ways: Ways,
    cluster: Option<ClusterMetadata>,
    connection: ConnectionSettings,
    open: HashMap<Address, BlockingConnection>,
    limit: Duration,
    deadline: Instant,
    /// A connection that is made during the request may take so long.
    connect_share: Duration,
    request_state: Arc<RequestState>,
}

impl Worker {
    pub(super) fn new(bootstrap: Vec<Address>, request_state: Arc<RequestState>) -> Self {
        Self {
            bootstrap,
            ways: Ways::of(Transport::Auto),
            cluster: None,
            connection: ConnectionSettings::control(concat!(
                "embar-admin ",
                env!("CARGO_PKG_VERSION")
            )),
            open: HashMap::new(),
            limit: Duration::ZERO,
            deadline: Instant::now(),
            connect_share: Duration::ZERO,
            request_state,
        }
    }

    /// From now on brokers are connected to by this transport.
    pub(super) fn set_transport(&mut self, transport: Transport) {
        self.ways = Ways::of(transport);
        self.open.clear();
    }

    /// A request begins, and has this much time.
    pub(super) fn begin(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = Instant::now() + limit;
        self.connect_share = limit;
        self.request_state.begin(limit);
    }

    /// It is over.
    pub(super) fn end(&mut self) {
        self.request_state.end();
    }

    /// Asks the bootstrap addresses, then every broker heard of, until one answers.
    pub(super) fn metadata(&mut self) -> Result<ClusterMetadata, AdminError> {
        let mut addresses = self.bootstrap.clone();
        if let Some(cluster) = &self.cluster {
            for broker in &cluster.brokers {
                // The one that leads to it for certain.
                let address = self.ways.to_ask(broker, cluster).addresses().last();
                addresses.extend(address.filter(|address| !addresses.contains(address)));
            }
        }
        // Who answered the last time first, as it will most likely do again.
        addresses.sort_by_key(|address| !self.open.contains_key(address));
        let (mut source, mut refusal) = (ConnectionError::NO_ANSWER, None);
        for (index, address) in addresses.iter().enumerate() {
            // One that is dead, or stands still, must not use up the time that a living one could use.
            let left = self.deadline.saturating_duration_since(Instant::now());
            let share = left / (addresses.len() - index) as u32;
            match self.ask_for_metadata(address, share) {
                Ok(Control::ClusterMetadata(cluster)) => {
                    self.cluster = Some(cluster.clone());
                    return Ok(cluster);
                }
                Ok(Control::Error(why)) => refusal = Some(at(address, why)),
                Ok(other) => {
                    let what = format!("{:?} is no answer to Metadata", other.id());
                    source = Violation::from(what).into();
                }
                Err(Broken {
                    refusal: Some(why), ..
                }) => refusal = Some(at(address, why)),
                Err(why) => source = why.cause,
            }
        }
        // Who answers, and says no, is not one who does not answer.
        if let Some(refusal) = refusal {
            return Err(refused(refusal));
        }
        let addresses: Vec<String> = addresses.iter().map(Address::to_string).collect();
        Err(AdminError::Client(ClientError::Unreachable {
            addresses: addresses.join(", "),
            source,
        }))
    }

    /// Asks whoever listens there, within so much of the request's time.
    fn ask_for_metadata(&mut self, address: &Address, share: Duration) -> Result<Control, Broken> {
        let whole = (self.deadline, self.connect_share);
        (self.deadline, self.connect_share) = (Instant::now() + share, share);
        let request = Control::Metadata(Metadata::default());
        let answer = self.ask(None, address, &Routes::default(), &request);
        (self.deadline, self.connect_share) = whole;
        answer
    }

    pub(super) fn create_topic(&mut self, spec: TopicSpec) -> Result<Topic, AdminError> {
        let request = Control::CreateTopic(CreateTopic {
            name: spec.name,
            order: spec.order.into(),
            retention_bytes: spec.retention_bytes,
            // Less than one is not none.
            retention_ms: u64::try_from(spec.retention_age.as_nanos().div_ceil(1_000_000))
                .unwrap_or(u64::MAX),
            max_message_bytes: spec.max_message_bytes,
            replication_factor: spec.replication_factor,
        });
        match self.ask_head(&request)? {
            Control::TopicCreated(created) => Ok(created.topic),
            other => Err(unexpected("the head", &other)),
        }
    }

    pub(super) fn delete_topic(&mut self, name: String) -> Result<(), AdminError> {
        match self.ask_head(&Control::DeleteTopic(DeleteTopic { name }))? {
            Control::TopicDeleted => Ok(()),
            other => Err(unexpected("the head", &other)),
        }
    }

    pub(super) fn list_topics(&mut self) -> Result<Vec<Topic>, AdminError> {
        let (mut topics, mut from) = (Vec::new(), 0);
        loop {
            let list = match self.ask_head(&Control::ListTopics(ListTopics { from }))? {
                Control::Topics(list) => list,
                other => return Err(unexpected("the head", &other)),
            };
            topics.extend(list.topics);
            // Places only grow, or a broker that answers nonsense would be asked for ever.
            if list.next <= from {
                return Ok(topics);
            }
            from = list.next;
        }
    }

    /// Each data broker tells its own part. One that does not know the topic yet has nothing of it; if none knows it,
    /// it does not exist.
    pub(super) fn describe_topic(&mut self, name: &str) -> Result<TopicDescription, AdminError> {
        let cluster = self.metadata()?;
        let serves = |state| matches!(state, BrokerState::Ready | BrokerState::Draining);
        let request = Control::DescribeTopic(DescribeTopic {
            name: name.to_string(),
        });
        let mut merged: Option<TopicDescription> = None;
        let mut asked = false;
        for broker in cluster
            .brokers
            .iter()
            .filter(|broker| broker.takes_data && serves(broker.state))
        {
            asked = true;
            match self.ask_broker(&cluster, broker.id, &request) {
                Ok(Control::TopicDescription(part)) => match &mut merged {
                    None => merged = Some(part),
                    Some(merged) => merged.partitions.extend(part.partitions),
                },
                Ok(other) => return Err(unexpected(&format!("broker {}", broker.id), &other)),
                Err(AdminError::Client(ClientError::UnknownTopic { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let topic = name.to_string();
        let mut merged = merged.ok_or(match asked {
            true => ClientError::UnknownTopic { topic },
            false => ClientError::NoDataBrokers,
        })?;
        merged.partitions.sort_by_key(|partition| partition.broker);
        Ok(merged)
    }

    pub(super) fn describe_topic_on(
        &mut self,
        broker: u32,
        name: String,
    ) -> Result<TopicDescription, AdminError> {
        match self.ask_one(broker, &Control::DescribeTopic(DescribeTopic { name }))? {
            Control::TopicDescription(part) => Ok(part),
            other => Err(unexpected(&format!("broker {broker}"), &other)),
        }
    }

    pub(super) fn status(&mut self, broker: u32) -> Result<BrokerStatus, AdminError> {
        self.connect_share = CONNECT_SHARE;
        match self.ask_one(broker, &Control::Status)? {
            Control::StatusReply(reply) => {
                let own = reply
                    .brokers
                    .into_iter()
                    .find(|status| status.broker == broker);
                own.ok_or_else(|| {
                    let what = "its status says nothing about itself";
                    misbehaved(&format!("broker {broker}"), what.into())
                })
            }
            other => Err(unexpected(&format!("broker {broker}"), &other)),
        }
    }

    #[cfg(feature = "profile")]
    pub(super) fn profile(&mut self, broker: u32) -> Result<Snapshot, AdminError> {
        self.read_profile(broker, serde_json::from_value)
    }

    #[cfg(feature = "profile")]
    pub(super) fn disk_profile(&mut self, broker: u32) -> Result<Option<Snapshot>, AdminError> {
        self.read_profile(broker, |mut json| {
            let disks = json.get_mut(DISK_PROFILE).map(serde_json::Value::take);
            serde_json::from_value(disks.unwrap_or_default())
        })
    }

    #[cfg(feature = "profile")]
    fn read_profile<T>(
        &mut self,
        broker: u32,
        read: impl FnOnce(serde_json::Value) -> serde_json::Result<T>,
    ) -> Result<T, AdminError> {
        match self.ask_one(broker, &Control::Profile)? {
            Control::ProfileReply(reply) => {
                let profile = serde_json::from_slice(&reply.json).and_then(read);
                profile.map_err(|error| {
                    let what = format!("its profile cannot be read: {error}");
                    misbehaved(&format!("broker {broker}"), what)
                })
            }
            other => Err(unexpected(&format!("broker {broker}"), &other)),
        }
    }

    pub(super) fn set_metering(&mut self, broker: u32, on: bool) -> Result<(), AdminError> {
        match self.ask_one(broker, &Control::SetMetering(SetMetering { on }))? {
            Control::Done => Ok(()),
            other => Err(unexpected(&format!("broker {broker}"), &other)),
        }
    }

    pub(super) fn remove_broker(&mut self, broker: u32, force: bool) -> Result<(), AdminError> {
        let request = Control::RemoveBroker(RemoveBroker { broker, force });
        let cluster = self.metadata()?;
        if has_left(&cluster, broker) {
            return Ok(());
        }
        match self.ask_broker(&cluster, broker, &request)? {
            Control::Done => {}
            other => return Err(unexpected(&format!("broker {broker}"), &other)),
        }
        while !has_left(&self.metadata()?, broker) {
            if Instant::now() + LOOK_EVERY >= self.deadline {
                return Err(AdminError::StillLeaving {
                    broker,
                    limit: self.limit,
                });
            }
            self.request_state.departs(broker);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn ask_head(&mut self, request: &Control) -> Result<Control, AdminError> {
        let cluster = self.metadata()?;
        self.ask_broker(&cluster, cluster.head, request)
    }

    fn ask_one(&mut self, broker: u32, request: &Control) -> Result<Control, AdminError> {
        let cluster = self.metadata()?;
        self.ask_broker(&cluster, broker, request)
    }

    fn ask_broker(
        &mut self,
        cluster: &ClusterMetadata,
        broker: u32,
        request: &Control,
    ) -> Result<Control, AdminError> {
        let Some(info) = cluster.brokers.iter().find(|info| info.id == broker) else {
            let known = cluster.brokers.iter().map(|info| info.id).collect();
            return Err(AdminError::UnknownBroker { broker, known });
        };
        let routes = self.ways.to_ask(info, cluster);
        let (address, answer) = self.ask_by(broker, &routes, request).ok_or_else(|| {
            let what = format!(
                "its address is {:?}, and it has no socket here",
                info.address
            );
            misbehaved(&format!("broker {broker}"), what)
        })?;
        match answer {
            Ok(Control::Error(refusal)) => Err(refused(refusal)),
            Ok(answer) => Ok(answer),
            Err(Broken {
                refusal: Some(refusal),
                ..
            }) => Err(refused(at(&address, refusal))),
            Err(Broken { cause, .. }) if Instant::now() >= self.deadline => {
                Err(AdminError::TimedOut {
                    broker: format!("broker {broker} at {address}"),
                    limit: self.limit,
                    source: cause,
                })
            }
            Err(Broken { cause, .. }) => Err(AdminError::Client(ClientError::Unreachable {
                addresses: format!("{address} (broker {broker})"),
                source: cause,
            })),
        }
    }

    /// Asks a broker by the first of the ways to it that leads there: one on which there is a connection, or else the
    /// best. Where the answer came from, or who did not give any; `None` if there is no way.
    fn ask_by(
        &mut self,
        broker: u32,
        routes: &Routes,
        request: &Control,
    ) -> Option<(Address, Result<Control, Broken>)> {
        let mut addresses: Vec<Address> = routes.addresses().collect();
        if let Some(open) = addresses.iter().position(|it| self.open.contains_key(it)) {
            addresses.swap(0, open);
        }
        let last = addresses.pop()?;
        for address in addresses {
            let connected = self.open.contains_key(&address)
                || self.connect(Some(broker), &address, routes, true).is_ok();
            if connected {
                let answer = self.ask(Some(broker), &address, routes, request);
                return Some((address, answer));
            }
        }
        let answer = self.ask(Some(broker), &last, routes, request);
        Some((last, answer))
    }

    /// Asks on a connection that is open, or else on a new one.
    fn ask(
        &mut self,
        broker: Option<u32>,
        address: &Address,
        routes: &Routes,
        request: &Control,
    ) -> Result<Control, Broken> {
        self.request_state.of(broker, address, WaitReason::Answer);
        let answer = self.converse(broker, address, routes, request);
        if let Err(broken) = &answer {
            self.request_state.failed(&broken.cause.to_string());
        }
        answer
    }

    fn converse(
        &mut self,
        broker: Option<u32>,
        address: &Address,
        routes: &Routes,
        request: &Control,
    ) -> Result<Control, Broken> {
        if let Some(mut conversation) = self.open.remove(address)
            && conversation.is_alive(self.deadline)
        {
            match conversation.ask(request, self.deadline) {
                Ok(answer) => return Ok(self.keep(address, conversation, answer)),
                // The broker may have gone and come back since. Asking again is safe only if nothing changes by it.
                Err(broken) if !is_idempotent(request) || Instant::now() >= self.deadline => {
                    return Err(broken);
                }
                Err(_) => {}
            }
        }
        self.connect(broker, address, routes, false)?;
        self.request_state.of(broker, address, WaitReason::Answer);
        let mut conversation = self.open.remove(address).expect("it was just opened");
        let answer = conversation.ask(request, self.deadline)?;
        Ok(self.keep(address, conversation, answer))
    }

    /// Opens a connection. With `or_else` there is another way to the broker, so this one has a moment only.
    fn connect(
        &mut self,
        broker: Option<u32>,
        address: &Address,
        routes: &Routes,
        or_else: bool,
    ) -> Result<(), Broken> {
        self.request_state
            .of(broker, address, WaitReason::Connecting);
        let now = Instant::now();
        let by = self.deadline.min(now + self.connect_share);
        let connect_by = if or_else {
            by.min(now + ONE_OF_SEVERAL)
        } else {
            by
        };
        let is_local = Way::of(address).is_local();
        let check = |welcome: &Welcome| match broker.filter(|it| *it != welcome.broker_id) {
            Some(_) if is_local => Err(Violation::from("another broker answers there")),
            _ => routes.check(address, welcome),
        };
        let opened = BlockingConnection::open(address, &self.connection, connect_by, by, check);
        self.open.insert(address.clone(), opened?);
        Ok(())
    }

    /// A broker may close after an error, so that connection is not used again.
    fn keep(
        &mut self,
        address: &Address,
        conversation: BlockingConnection,
        answer: Control,
    ) -> Control {
        if !matches!(answer, Control::Error(_)) {
            self.open.insert(address.clone(), conversation);
        }
        answer
    }
}

fn has_left(cluster: &ClusterMetadata, broker: u32) -> bool {
    let mut brokers = cluster.brokers.iter();
    brokers.any(|info| info.id == broker && info.state == BrokerState::Left)
}

fn is_idempotent(request: &Control) -> bool {
    !matches!(request, Control::CreateTopic(_) | Control::DeleteTopic(_))
}

/// What the broker at this address said.
fn at(address: &Address, refusal: ErrorReply) -> ErrorReply {
    let message = format!("the broker at {address}: {}", refusal.message);
    ErrorReply { message, ..refusal }
}

fn refused(refusal: ErrorReply) -> AdminError {
    let error = match (refusal.code, &refusal.topic) {
        (ErrorCode::UnknownTopic, Some(topic)) => ClientError::UnknownTopic {
            topic: topic.clone(),
        },
        _ => refusal.into(),
    };
    error.into()
}

fn unexpected(peer: &str, answer: &Control) -> AdminError {
    let what = format!("{:?} is no answer to what was asked", answer.id());
    misbehaved(peer, what)
}

fn misbehaved(peer: &str, what: String) -> AdminError {
    let peer = peer.to_string();
    ClientError::Protocol { peer, what }.into()
}
