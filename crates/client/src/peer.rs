//! What a publisher or subscriber knows of one data broker: whether the broker is ready, when to connect to it, and how
//! a connection to it ended.
//!
//! A channel of either client has one of these. What the client and the broker say to each other once they are
//! connected is in the client's own `channel`.

use std::net::SocketAddr;
use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_session::{CloseReason, Closed, Side};
use embar_transport::Address;
use embar_wire::control::{
    BrokerInfo, BrokerState, ClusterMetadata, ErrorCode, ErrorReply, Welcome,
};
use embar_wire::limits::MAX_BROKERS;

use crate::backoff::{Backoff, BackoffLimits};
use crate::connection::{
    ANSWER_TIMEOUT, Connection, ConnectionError, ConnectionSettings, Violation, refusal_of,
};
use crate::transport::{Routes, Way};
use crate::wait::{Party, WaitReason};

/// A broker may not know a new topic yet; after this long it does not know it at all.
const TOPIC_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The broker is not ready, as far as the cluster says.
    Parked,
    /// Connect at this time.
    Waiting(Now),
    /// Connecting, shaking hands, announcing what is wanted; give up at the deadline.
    Opening(Now),
    Open,
    Closing,
    /// Everything wanted of the broker was had.
    Done,
}

/// What to do about a broker that is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// Leave it alone until the cluster says that it is back: others do as well.
    Avoid,
    /// Look for it again and again, unless it never was there: what it has is nowhere else.
    Retry,
    /// Leave it alone also when it is ready, unless it is [chosen](Peer::choose): one broker does as well as another.
    Choose,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) broker: u32,
    pub(crate) phase: Phase,
    pub(crate) connection: Connection,
    /// Opened, or failed to, at least once.
    pub(crate) settled: bool,
    /// The cluster has changed, as the broker says.
    pub(crate) news: Option<ClusterMetadata>,
    /// Since when the broker does not know the topic.
    unknown_since: Option<Now>,
    /// The head said since then that the topic is there.
    vouched: bool,
    /// Why the broker ends this connection.
    refusal: Option<ErrorReply>,
    /// It has welcomed this client on the connection that is being opened, or was last.
    welcomed: bool,
    /// What it refused with last, if it has done nothing that it was asked to since.
    refused_with: Option<ErrorCode>,
    /// Why it ended the one before, which is the last thing that is known of it.
    refused: Option<ErrorReply>,
    last_error: Option<ConnectionError>,
    absence: Absence,
    /// Not to be chosen before this time.
    not_before: Now,
    state: BrokerState,
    incarnation: u32,
    address: Option<SocketAddr>,
    /// How to get there.
    routes: Routes,
    /// Where this connection goes, or went last.
    taken: Option<Address>,
    /// It led to the broker, which did by it what it was asked for, or said why not.
    arrived: bool,
    /// It did not, and there is another way.
    rerouted: bool,
    backoff: Backoff,
}

impl Peer {
    pub(crate) fn new(broker: u32, absence: Absence, settings: ConnectionSettings) -> Self {
        Self {
            broker,
            phase: Phase::Parked,
            connection: Connection::new(settings),
            settled: false,
            news: None,
            unknown_since: None,
            vouched: false,
            refusal: None,
            welcomed: false,
            refused_with: None,
            refused: None,
            last_error: None,
            absence,
            not_before: Now(0),
            state: BrokerState::Gone,
            incarnation: 0,
            address: None,
            routes: Routes::default(),
            taken: None,
            arrived: false,
            rerouted: false,
            backoff: Backoff::new(BackoffLimits::default()),
        }
    }

    /// The cluster's word about the broker, and the ways to it; `None`: it is not in the cluster.
    pub(crate) fn heard_of(&mut self, found: Option<(&BrokerInfo, Routes)>, now: Now) {
        let mut renewed = false;
        let info = found.as_ref().map(|(info, _)| *info);
        if let Some((info, routes)) = found {
            self.routes = routes;
            let address = info.address.parse().ok();
            renewed = address != self.address || info.incarnation != self.incarnation;
            self.address = address;
            self.incarnation = info.incarnation;
        }
        self.state = info.map_or(BrokerState::Gone, |info| info.state);
        if renewed {
            self.not_before = now;
        }
        match self.phase {
            Phase::Parked if self.is_ready() && self.absence != Absence::Choose => {
                self.phase = Phase::Waiting(now);
            }
            Phase::Waiting(_)
                if self.has_left() || (self.absence != Absence::Retry && !self.is_ready()) =>
            {
                self.phase = Phase::Parked;
            }
            Phase::Waiting(_) if renewed => {
                self.backoff.succeeded();
                self.phase = Phase::Waiting(now);
            }
            _ => {}
        }
    }

    /// Whether it is worth a connection. A draining broker takes nothing new, but stays a place to look at until it is
    /// gone or back.
    pub(crate) fn is_ready(&self) -> bool {
        let serves = match self.absence {
            Absence::Avoid | Absence::Choose => self.state == BrokerState::Ready,
            Absence::Retry => matches!(self.state, BrokerState::Ready | BrokerState::Draining),
        };
        serves && !self.routes.is_empty()
    }

    /// Whether it was removed from the cluster: nothing of it is waited for.
    pub(crate) fn has_left(&self) -> bool {
        self.state == BrokerState::Left
    }

    /// Connects as soon as it may after the last failure.
    pub(crate) fn choose(&mut self, now: Now) {
        self.phase = Phase::Waiting(self.not_before.max(now));
    }

    /// Its connection ended because this client had no use for it: it may be chosen again at once.
    pub(crate) fn forgive(&mut self, now: Now) {
        self.backoff.succeeded();
        self.not_before = now;
        (self.last_error, self.refused, self.refused_with) = (None, None, None);
    }

    /// When it may be chosen.
    pub(crate) fn not_before(&self) -> Now {
        self.not_before
    }

    /// Parked, but the broker may become ready: ask the cluster again.
    pub(crate) fn may_return(&self) -> bool {
        self.phase == Phase::Parked
            && matches!(self.state, BrokerState::Starting | BrokerState::Draining)
    }

    /// It did what it was asked for.
    pub(crate) fn served(&mut self) {
        self.refused_with = None;
    }

    /// It refused something, and not the connection.
    pub(crate) fn refused_one(&mut self, code: ErrorCode) {
        self.refused_with = Some(code);
    }

    /// What it refused with, if it has done nothing that it was asked to since.
    pub(crate) fn refusal_code(&self) -> Option<ErrorCode> {
        self.refused_with
    }

    /// Why there is no connection that can be used, for whoever waits.
    pub(crate) fn reason(&self) -> WaitReason {
        match (self.refused_with, &self.last_error) {
            (Some(code), _) => WaitReason::of(code),
            (None, Some(cause)) => WaitReason::NoAnswer(cause.to_string()),
            (None, None) if !self.is_ready() => WaitReason::NotReady,
            (None, None) if self.welcomed => WaitReason::Answer,
            (None, None) => WaitReason::Connecting,
        }
    }

    /// It, as one that is waited for.
    pub(crate) fn party(&self, reason: WaitReason) -> Party {
        Party {
            broker: Some(self.broker),
            address: self.address.map(Address::Tcp),
            reason,
        }
    }

    /// Where it is, and which one.
    pub(crate) fn place(&self) -> String {
        match self.address {
            Some(address) => format!("{address} (broker {})", self.broker),
            None => format!("broker {}", self.broker),
        }
    }

    /// Why there is no connection, as far as is known.
    pub(crate) fn last_error(&self) -> Option<&ConnectionError> {
        self.last_error.as_ref()
    }

    /// Why the broker ended the connection before, if that is the last that is known of it.
    pub(crate) fn last_refusal(&self) -> Option<&ErrorReply> {
        self.refused.as_ref()
    }

    pub(crate) fn connected(&mut self, now: Now) {
        if let Err(cause) = self.connection.connected(now) {
            self.ending(cause);
        }
    }

    /// Whether the right broker is at the other end.
    pub(crate) fn check(&mut self, welcome: &Welcome) -> Result<(), Violation> {
        if welcome.broker_id != self.broker {
            let found = welcome.broker_id;
            return Err(format!("broker {found} answers at the address of {}", self.broker).into());
        }
        if let Some(taken) = &self.taken {
            self.routes.check(taken, welcome)?;
        }
        self.welcomed = true;
        Ok(())
    }

    /// The broker does what was asked of it.
    pub(crate) fn opened(&mut self) {
        self.phase = Phase::Open;
        self.arrived = true;
        self.settled = true;
        self.unknown_since = None;
        self.vouched = false;
        self.last_error = None;
        self.refused = None;
    }

    /// The connection is of use: the next failure is a first one again.
    pub(crate) fn succeeded(&mut self) {
        self.backoff.succeeded();
    }

    /// The broker says why it ends the connection.
    pub(crate) fn refused(&mut self, refusal: ErrorReply, now: Now) {
        self.finish((&refusal).into(), now);
        self.arrived |= self.welcomed;
        self.refusal = Some(refusal);
    }

    /// The session is over.
    pub(crate) fn closed(&mut self, closed: &Closed) {
        if self.refusal.is_none() {
            self.refusal = refusal_of(closed);
        }
        self.arrived |= self.refusal.is_some() && self.welcomed;
        self.ending(ConnectionError::Session(closed.clone()));
        let silent = matches!(closed.reason, CloseReason::Idle | CloseReason::FrameTimeout);
        if silent && closed.by == Side::Local {
            // Nobody is there to be polite to.
            self.connection.cut();
        }
    }

    /// Ends the connection in good order.
    pub(crate) fn finish(&mut self, why: ConnectionError, now: Now) {
        self.end(why, |connection| connection.finish(now));
    }

    /// Ends the connection because of what the broker did wrong, and tells it.
    pub(crate) fn reject(&mut self, violation: &Violation, now: Now) {
        let why = ConnectionError::Violation(violation.clone());
        self.end(why, |connection| connection.fail(violation, now));
    }

    /// Ends the connection, in good order if it stands, because this end closes.
    pub(crate) fn leave(&mut self, why: ConnectionError, now: Now) {
        match self.phase {
            Phase::Waiting(_) => self.phase = Phase::Parked,
            Phase::Opening(_) => self.give_up(why),
            _ => self.finish(why, now),
        }
    }

    /// Ends the connection at once: nobody listens at the other end.
    pub(crate) fn give_up(&mut self, why: ConnectionError) {
        self.end(why, Connection::cut);
    }

    fn end(&mut self, why: ConnectionError, end: impl FnOnce(&mut Connection)) {
        if !matches!(self.phase, Phase::Opening(_) | Phase::Open) {
            return;
        }
        self.ending(why);
        end(&mut self.connection);
        if self.connection.is_down() {
            // The driver never heard of the attempt, so it will not report its end.
            self.settled = true;
            self.phase = Phase::Parked;
        }
    }

    /// The first cause counts.
    fn ending(&mut self, cause: ConnectionError) {
        if matches!(self.phase, Phase::Opening(_) | Phase::Open) {
            self.last_error = Some(cause);
            self.phase = Phase::Closing;
        }
    }

    /// Connects if it is time; closes if time is up.
    pub(crate) fn tick(&mut self, now: Now) {
        self.connection.tick(now);
        match self.phase {
            Phase::Waiting(at) if at <= now => {
                if let Some(address) = self.next_address() {
                    self.phase = Phase::Opening(now.after(ANSWER_TIMEOUT));
                    self.welcomed = false;
                    self.arrived = false;
                    self.taken = Some(address.clone());
                    self.connection.connect(address);
                }
            }
            Phase::Opening(deadline) if deadline <= now => self.give_up(ConnectionError::NO_ANSWER),
            _ => {}
        }
    }

    /// Whether the connection that ended took a way that did not lead to the broker: the next takes another, at once. Not
    /// so if nobody answered in time.
    pub(crate) fn is_rerouted(&self) -> bool {
        self.rerouted
    }

    /// Whether one of the ways to it goes through shared memory.
    pub(crate) fn may_share_memory(&self) -> bool {
        self.routes.shm.is_some()
    }

    /// Where to go instead, if the connection before went by a file, and not to the broker.
    fn detour(&self) -> Option<Address> {
        let taken = self.taken.as_ref().filter(|_| !self.arrived)?;
        match Way::of(taken).is_local() {
            true => self.routes.after(taken),
            false => None,
        }
    }

    /// Where to connect next: not twice in a row to a file that does not lead to the broker.
    fn next_address(&self) -> Option<Address> {
        self.detour().or_else(|| self.routes.addresses().next())
    }

    pub(crate) fn next_tick(&self) -> Option<Now> {
        let own = match self.phase {
            // There is nothing to do before the cluster says where it is.
            Phase::Waiting(at) => (!self.routes.is_empty()).then_some(at),
            Phase::Opening(at) => Some(at),
            _ => None,
        };
        own.into_iter().chain(self.connection.next_tick()).min()
    }

    /// The connection is gone, and nothing of it is with the driver; why it was refused, if it was.
    pub(crate) fn disconnected(
        &mut self,
        cause: ConnectionError,
        random: &mut SplitMix64,
        now: Now,
    ) -> Option<ErrorReply> {
        self.ending(cause);
        self.connection.disconnected();
        // Who does not answer is stopped or busy, and answers nowhere else either: the next way has its turn later.
        let is_silent = matches!(self.last_error, Some(ConnectionError::NO_ANSWER));
        let other_way = self.detour();
        let is_tried = other_way.is_none();
        let detour = other_way.filter(|_| self.phase != Phase::Done && !is_silent);
        self.rerouted = detour.is_some();
        if let Some(next) = detour {
            let broker = self.broker;
            let why = self.last_error.as_ref().map(ToString::to_string);
            let taken = self.taken.as_ref().map(ToString::to_string);
            tracing::info!(broker, why, taken, %next, "one way to it cannot be used: the next one is");
            self.refusal = None;
            self.phase = match self.absence == Absence::Avoid && !self.is_ready() {
                true => Phase::Parked,
                false => Phase::Waiting(now),
            };
            return None;
        }
        let refusal = self.refusal.take();
        self.refused_with = refusal.as_ref().map(|it| it.code);
        self.refused.clone_from(&refusal);
        if self.phase == Phase::Done {
            return None;
        }
        self.settled |= is_tried;
        self.phase = Phase::Parked;
        if !self.has_left() && (self.absence != Absence::Avoid || self.is_ready()) {
            let wait = self.backoff.failed(random);
            self.not_before = now.after(Duration::from_nanos(wait));
            if self.absence != Absence::Choose {
                self.phase = Phase::Waiting(self.not_before);
            }
        }
        refusal
    }

    /// The broker does not know the topic; false if it had its time to hear of it.
    pub(crate) fn may_learn_topic(&mut self, now: Now) -> bool {
        let since = *self.unknown_since.get_or_insert(now);
        if since.after(TOPIC_GRACE) <= now {
            return false;
        }
        self.settled = false;
        true
    }

    /// The head knows the topic, which the client uses or wants to use: a broker that does not is slow to
    /// hear of it, has its time anew, and is asked again; at once for the first time, and then as often as
    /// one that fails.
    pub(crate) fn topic_exists(&mut self, now: Now) {
        if self.unknown_since.is_none() {
            return;
        }
        self.unknown_since = Some(now);
        if let (Phase::Waiting(_), false) = (self.phase, self.vouched) {
            self.phase = Phase::Waiting(now);
            self.vouched = true;
        }
    }
}

/// The brokers that take data. Others than a cluster can have are left out: each that is heard of costs memory.
pub(crate) fn data_brokers(cluster: &ClusterMetadata) -> impl Iterator<Item = &BrokerInfo> {
    let brokers = cluster.brokers.iter();
    brokers.filter(|broker| broker.takes_data && (broker.id as usize) < MAX_BROKERS)
}

/// Whether the head knows another topic by the name of the one that the client uses.
pub(crate) fn is_another_topic(used: Option<u32>, known: Option<u32>) -> bool {
    matches!((used, known), (Some(used), Some(known)) if used != known)
}

/// Whether every broker that is ready was tried.
pub(crate) fn all_settled<'a>(mut peers: impl Iterator<Item = &'a Peer>) -> bool {
    peers.all(|peer| peer.settled || !peer.is_ready())
}
