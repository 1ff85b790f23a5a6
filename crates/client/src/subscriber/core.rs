//! The subscriber as a state machine.
//!
//! Call order: [`SubscriberCore::start`] once. Then, in any order, the events `connected`, `received`, `sent`,
//! `disconnected` (all per lane), `returned` (a delivered buffer came back) and `tick` (at
//! [`SubscriberCore::next_tick`] or later). After each of them take all of [`SubscriberCore::poll`] for every lane that
//! [`SubscriberCore::has_action`], and all of [`SubscriberCore::next_event`]. The driver has given up every buffer of a
//! lane before it reports it as `disconnected`.
//!
//! Invariants:
//! - What is delivered of one broker is dense: offsets follow one another from where the lane started. Only an eviction
//!   breaks that, and only if the settings allow it, and it is reported with its size.
//! - Memory is bounded: `buffers_per_broker` batches of each broker.
//! - A broker that is away or slow holds back no other.

mod model;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use embar_wire::control::{BrokerState, ErrorCode, ErrorReply};
use embar_wire::time::Now;

pub use self::model::{Delivered, Event, OnEvicted, Start, SubscriberConfig};

use super::lane::{Phase, SubscribeLane, Trouble};
use crate::backoff::Random;
use crate::connection::{Lane, LinkAction};
use crate::directory::{Directory, Finding};
use crate::error::Error;

/// A broker may not know a new topic yet; after this long it does not know it at all.
const TOPIC_GRACE: Duration = Duration::from_secs(5);
/// Between two looks at a cluster that is not complete.
const REFRESH_INCOMPLETE: Duration = Duration::from_millis(250);
/// Between two looks at the cluster, to find brokers that joined.
const REFRESH: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Debug)]
pub struct SubscriberCore {
    config: SubscriberConfig,
    directory: Directory,
    lanes: Vec<SubscribeLane>,
    /// Data brokers that the cluster had when the subscription began, those that were gone included.
    founders: BTreeSet<u32>,
    opened: bool,
    open_by: Option<Now>,
    ended: Option<Error>,
    random: Random,
    events: VecDeque<Event>,
}

impl SubscriberCore {
    /// A core that does nothing before [`SubscriberCore::start`].
    ///
    /// # Panics
    /// If there is no bootstrap address.
    pub fn new(config: SubscriberConfig) -> Self {
        let mut random = Random::new(config.seed);
        let directory = Directory::new(
            &config.name,
            config.bootstrap.clone(),
            &config.topic,
            random.next_bits(),
        );
        Self {
            config,
            directory,
            lanes: Vec::new(),
            founders: BTreeSet::new(),
            opened: false,
            open_by: None,
            ended: None,
            random,
            events: VecDeque::new(),
        }
    }

    /// Starts to look for the cluster.
    pub fn start(&mut self, now: Now) {
        self.open_by = Some(now.after(self.config.open_timeout));
        self.directory.wish_refresh(now);
    }

    /// Lanes that exist, the control lane included; they are numbered from 0 and only grow in number.
    pub fn lane_count(&self) -> u32 {
        1 + self.lanes.len() as u32
    }

    /// The driver connected `lane`.
    pub fn connected(&mut self, lane: Lane) {
        match lane.index().checked_sub(1) {
            None => self.directory.connected(),
            Some(index) => self.lanes[index].link.connected(),
        }
    }

    /// The driver received `bytes` more bytes into the buffer of [`LinkAction::Receive`].
    pub fn received(&mut self, lane: Lane, buffer: Vec<u8>, bytes: usize, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.received(buffer, bytes, now);
            self.take_findings(now);
            return;
        };
        if self.ended.is_none() {
            let result = self.lanes[index].received(buffer, bytes, &self.config, &mut self.events);
            self.after(index, result, now);
        }
    }

    /// The driver finished the send of `lane`.
    pub fn sent(&mut self, lane: Lane) {
        match lane.index().checked_sub(1) {
            None => self.directory.sent(),
            Some(index) => self.lanes[index].link.sent(),
        }
    }

    /// The consumer is done with a buffer that was delivered from `lane`.
    pub fn returned(&mut self, lane: Lane, buffer: Vec<u8>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            return;
        };
        let result = self.lanes[index].returned(buffer, &self.config, &mut self.events);
        if self.ended.is_none() {
            self.after(index, result, now);
        }
    }

    /// `lane` is closed, or could not be connected, and the driver holds nothing of it.
    pub fn disconnected(&mut self, lane: Lane, cause: &str, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.disconnected(cause, now);
            return;
        };
        let lane = &mut self.lanes[index];
        let refusal = lane.disconnected(cause, &mut self.random, now);
        if lane.phase == Phase::Done {
            return;
        }
        if self.ended.is_some() {
            lane.phase = Phase::Parked;
            return;
        }
        self.events.push_back(Event::LaneLost {
            broker: lane.broker,
            cause: lane.last_error.clone().unwrap_or_default(),
        });
        if let Some(refusal) = refusal {
            self.refused(index, refusal, now);
        }
        if self.ended.is_none() {
            self.directory.wish_refresh(now);
            self.finish_opening();
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if self.ended.is_some() {
            return;
        }
        if self.open_by.is_some_and(|by| by <= now) {
            self.fail(self.trouble(), now);
            return;
        }
        self.directory.tick(now);
        if self.refresh_at().is_some_and(|at| at <= now) {
            self.directory.wish_refresh(now);
        }
        for lane in &mut self.lanes {
            lane.tick(now);
        }
        let lost = self
            .lanes
            .iter()
            .find(|lane| self.lost_at(lane).is_some_and(|at| at <= now));
        if let Some(lane) = lost {
            let error = Error::BrokerLost {
                broker: lane.broker,
                limit: self.config.loss_timeout,
                cause: lane
                    .last_error
                    .clone()
                    .unwrap_or_else(|| "it is not ready".into()),
            };
            self.fail(error, now);
        }
    }

    /// When to call [`SubscriberCore::tick`] at the latest.
    pub fn next_tick(&self) -> Option<Now> {
        if self.ended.is_some() {
            return None;
        }
        let lanes = self.lanes.iter().filter_map(SubscribeLane::next_tick);
        let lost = self.lanes.iter().filter_map(|lane| self.lost_at(lane));
        lanes
            .chain(lost)
            .chain(self.directory.next_tick())
            .chain(self.refresh_at())
            .chain(self.open_by)
            .min()
    }

    /// Whether [`SubscriberCore::poll`] would return something for `lane`.
    pub fn has_action(&self, lane: Lane) -> bool {
        match lane.index().checked_sub(1) {
            None => self.directory.has_action(),
            Some(index) => self.lanes[index].has_action(),
        }
    }

    /// What to do next on `lane`.
    pub fn poll(&mut self, lane: Lane) -> Option<LinkAction> {
        match lane.index().checked_sub(1) {
            None => self.directory.poll(),
            Some(index) => self.lanes[index].poll(),
        }
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// True if some lane reads nothing before a buffer is returned.
    pub fn is_starved(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_starved(&self.config))
    }

    /// Closes all connections.
    pub fn stop(&mut self, now: Now) {
        self.fail(Error::Closed, now);
    }

    fn after(&mut self, index: usize, result: Result<(), Trouble>, now: Now) {
        match result {
            Ok(()) => {}
            Err(Trouble::Close(why)) => self.lanes[index].close(why),
            Err(Trouble::Fatal(error)) => {
                self.fail(error, now);
                return;
            }
        }
        self.finish_opening();
        self.finish_reading(index, now);
    }

    fn finish_opening(&mut self) {
        let settled = self
            .lanes
            .iter()
            .all(|lane| lane.settled || !lane.is_ready());
        let serving = self.lanes.iter().any(|lane| lane.position.is_some());
        if settled && serving && !self.opened {
            self.opened = true;
            self.open_by = None;
            self.events.push_back(Event::Opened);
        }
    }

    fn finish_reading(&mut self, index: usize, now: Now) {
        if !self.config.until_end || !self.lanes[index].is_at_end() {
            return;
        }
        self.lanes[index].finish();
        if self.opened && self.lanes.iter().all(|lane| lane.phase == Phase::Done) {
            self.events.push_back(Event::End);
            self.close_all(Error::Closed, now);
        }
    }

    fn take_findings(&mut self, now: Now) {
        while let Some(finding) = self.directory.next_finding() {
            match finding {
                Finding::Cluster => self.heard_of_cluster(now),
                Finding::TopicExists => {
                    for lane in &mut self.lanes {
                        if let (Phase::Waiting(_), Some(_)) = (lane.phase, lane.unknown_since) {
                            lane.phase = Phase::Waiting(now);
                        }
                    }
                }
                Finding::TopicMissing => self.fail_unknown_topic(now),
                Finding::TopicRefused(error) => self.fail(error, now),
            }
        }
        self.tick(now);
    }

    fn heard_of_cluster(&mut self, now: Now) {
        let (Some(cluster), None) = (self.directory.cluster(), &self.ended) else {
            return;
        };
        let data = || cluster.brokers.iter().filter(|broker| broker.takes_data);
        for info in data() {
            let gone = info.state == BrokerState::Gone;
            let is_new_founder = !self.opened && self.founders.insert(info.id);
            if self.lanes.iter().any(|lane| lane.broker == info.id) {
                continue;
            }
            if !gone || (is_new_founder && self.config.needs(info.id)) {
                let start = self
                    .config
                    .start_of(info.id, self.founders.contains(&info.id));
                let lane = Lane(self.lanes.len() as u32 + 1);
                self.lanes
                    .push(SubscribeLane::new(lane, info.id, start, &self.config, now));
            }
            if gone && is_new_founder {
                self.events.push_back(Event::LaneLost {
                    broker: info.id,
                    cause: "it was gone when the subscription began; what it has is missing until it returns"
                        .into(),
                });
            }
        }
        for lane in &mut self.lanes {
            lane.heard_of(data().find(|info| info.id == lane.broker), now);
        }
    }

    /// A broker said why it ends the connection.
    fn refused(&mut self, index: usize, refusal: ErrorReply, now: Now) {
        let ErrorReply { code, message, .. } = refusal;
        let lane = &mut self.lanes[index];
        match code {
            ErrorCode::OffsetOutOfRange => {
                let wanted = lane.position.or_else(|| lane.wanted_offset());
                match (wanted, refusal.first_available) {
                    (Some(position), Some(first_available)) if first_available > position => {
                        self.evicted(index, position, first_available, now);
                    }
                    _ => self.fail(Error::Refused { code, message }, now),
                }
            }
            ErrorCode::UnknownTopic => {
                let since = *lane.unknown_since.get_or_insert(now);
                if since.after(TOPIC_GRACE) <= now {
                    self.fail_unknown_topic(now);
                } else {
                    // The broker may be slow to hear of the topic. The head knows.
                    lane.settled = false;
                    self.directory.wish_topic(false, now);
                }
            }
            ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument => {
                self.fail(Error::Refused { code, message }, now);
            }
            _ => {}
        }
    }

    fn evicted(&mut self, index: usize, position: u64, first_available: u64, now: Now) {
        let lane = &mut self.lanes[index];
        let broker = lane.broker;
        if self.config.on_evicted == OnEvicted::Fail {
            let error = Error::Evicted {
                broker,
                position,
                first_available,
            };
            self.fail(error, now);
            return;
        }
        self.events.push_back(Event::Skipped {
            broker,
            to: first_available,
            messages: first_available - position,
        });
        lane.restart_at(first_available, now);
        self.tick(now);
    }

    fn fail_unknown_topic(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(Error::UnknownTopic { topic }, now);
    }

    fn fail(&mut self, error: Error, now: Now) {
        if self.ended.is_none() {
            self.events.push_back(Event::Failed(error.clone()));
            self.close_all(error, now);
        }
    }

    fn close_all(&mut self, why: Error, now: Now) {
        self.ended = Some(why);
        self.open_by = None;
        self.directory.stop(now);
        for lane in &mut self.lanes {
            match lane.phase {
                Phase::Waiting(_) => lane.phase = Phase::Parked,
                _ => lane.close("the subscriber is closed".into()),
            }
        }
    }

    fn trouble(&self) -> Error {
        let refused = self
            .lanes
            .iter()
            .find_map(|lane| Some((lane.broker, lane.last_error.clone()?)));
        match (self.directory.cluster(), refused) {
            (None, _) => self.directory.unreachable(),
            (Some(_), Some((broker, cause))) => Error::Unreachable {
                addresses: format!("data broker {broker}"),
                cause,
            },
            (Some(_), None) => Error::NoDataBrokers,
        }
    }

    fn lost_at(&self, lane: &SubscribeLane) -> Option<Now> {
        let at = lane.lost_since?.after(self.config.loss_timeout);
        self.opened.then_some(at)
    }

    fn refresh_at(&self) -> Option<Now> {
        if !self.directory.is_idle() {
            return None;
        }
        let complete = self.opened && self.lanes.iter().all(|lane| lane.phase != Phase::Parked);
        let wait = if complete {
            REFRESH
        } else {
            REFRESH_INCOMPLETE
        };
        Some(self.directory.refreshed_at()?.after(wait))
    }
}
