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
//!   breaks that, and only if the settings allow it, and it is reported with its size. Topics of order 2 and 5: this holds
//!   for all brokers together, and one of them at a time serves all.
//! - Memory is bounded: `buffers_per_broker` batches of each broker.
//! - A broker that is away or slow holds back no other. One that was removed from the cluster is not waited for; if one
//!   comes in its place, reading goes on where it stood.

mod model;
mod ordered;
mod waits;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::control::{BrokerState, ErrorCode, ErrorReply};

pub use self::model::{Delivered, Event, OnEvicted, Start, SubscriberConfig};

use super::lane::{SubscribeLane, Trouble};
use crate::backoff::Random;
use crate::connection::{Lane, LinkAction, LinkSettings};
use crate::directory::{Directory, Finding};
use crate::error::Error;
use crate::peer::{self, Phase};

/// Between two looks at a cluster that is not complete.
const REFRESH_INCOMPLETE: Duration = Duration::from_millis(250);
/// Between two looks at the cluster: brokers tell who joins and leaves, but not while a connection opens.
const REFRESH: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Debug)]
pub struct SubscriberCore {
    config: SubscriberConfig,
    directory: Directory,
    /// Of every lane.
    link: LinkSettings,
    lanes: Vec<SubscribeLane>,
    /// Whether there is one order over all brokers, once it is known.
    ordered: Option<bool>,
    /// The topic's id, once a broker has told it.
    topic_id: Option<u32>,
    /// If there is one order: the lane that serves, or did last.
    chosen: Option<usize>,
    /// Data brokers that the cluster had when the subscription began, those that were gone included, those that had left not.
    founders: BTreeSet<u32>,
    opened: bool,
    open_by: Option<Now>,
    /// What a broker said that has not seen as much of the order as is asked for.
    behind: Option<Error>,
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
            link: LinkSettings::subscribing(&config.name, config.idle_timeout),
            config,
            directory,
            lanes: Vec::new(),
            ordered: None,
            topic_id: None,
            chosen: None,
            founders: BTreeSet::new(),
            opened: false,
            open_by: None,
            behind: None,
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
    pub fn connected(&mut self, lane: Lane, now: Now) {
        match lane.index().checked_sub(1) {
            None => self.directory.connected(now),
            Some(index) => self.lanes[index].peer.connected(now),
        }
    }

    /// The receive of `lane` is over: so many more bytes are in its buffer, 0 at the end of the stream.
    pub fn received(&mut self, lane: Lane, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.received(buf, result, now);
            self.take_findings(now);
            return;
        };
        let lane = &mut self.lanes[index];
        let result = lane.received(buf, result, &self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// The send of `lane` is over.
    pub fn sent(&mut self, lane: Lane, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.sent(buf, result, now);
            self.take_findings(now);
            return;
        };
        self.lanes[index].peer.link.sent(buf, result, now);
        self.read(index, now);
    }

    fn read(&mut self, index: usize, now: Now) {
        let result = self.lanes[index].read(&self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// The consumer is done with a buffer that was delivered from `lane`.
    pub fn returned(&mut self, lane: Lane, buffer: Vec<u8>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            return;
        };
        let result = self.lanes[index].returned(buffer, &self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// `lane` is closed, or could not be connected, and the driver holds nothing of it.
    pub fn disconnected(&mut self, lane: Lane, cause: &str, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.disconnected(cause, now);
            return;
        };
        let lane = &mut self.lanes[index];
        let refusal = lane.disconnected(cause, &mut self.random, now);
        if lane.peer.phase == Phase::Done {
            return;
        }
        if self.ended.is_some() {
            lane.peer.phase = Phase::Parked;
            return;
        }
        self.events.push_back(Event::LaneLost {
            broker: lane.peer.broker,
            cause: lane.peer.last_error().unwrap_or_default().to_string(),
        });
        if let Some(refusal) = refusal {
            self.refused(index, refusal, now);
        }
        if self.ended.is_none() {
            self.directory.wish_refresh(now);
            self.finish_opening();
            self.choose_broker(now);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if self.open_by.is_some_and(|by| by <= now) {
            self.end_opening(now);
        }
        self.directory.tick(now);
        for index in 0..self.lanes.len() {
            self.lanes[index].peer.tick(now);
            self.read(index, now);
        }
        if self.ended.is_some() {
            return;
        }
        self.choose_broker(now);
        if self.refresh_at().is_some_and(|at| at <= now) {
            self.directory.wish_refresh(now);
        }
        let lost = self
            .lanes
            .iter()
            .find(|lane| self.lost_at(lane).is_some_and(|at| at <= now));
        if let Some(lane) = lost {
            let limit = self.config.loss_timeout;
            let cause = lane.peer.last_error().unwrap_or("it is not ready").into();
            let error = match lane.owner() {
                Some(broker) => Error::BrokerLost {
                    broker,
                    limit,
                    cause,
                },
                None => Error::AllBrokersLost { limit, cause },
            };
            self.fail(error, now);
        }
    }

    /// When to call [`SubscriberCore::tick`] at the latest.
    pub fn next_tick(&self) -> Option<Now> {
        let lanes = self.lanes.iter().filter_map(|lane| lane.peer.next_tick());
        let lost = self.lanes.iter().filter_map(|lane| self.lost_at(lane));
        lanes
            .chain(lost)
            .chain(self.directory.next_tick())
            .chain(self.refresh_at())
            .chain(self.open_by)
            .min()
    }

    /// Whether [`SubscriberCore::poll`] would return something for `lane`.
    pub fn has_action(&mut self, lane: Lane) -> bool {
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
            Err(Trouble::Close(why)) => self.lanes[index].reject(&why, now),
            Err(Trouble::Fatal(error)) => {
                self.fail(error, now);
                return;
            }
        }
        if self.ended.is_some() {
            return;
        }
        self.learn_topic(index);
        if let Some(cluster) = self.lanes[index].peer.news.take() {
            self.directory.told(cluster, now);
            self.heard_of_cluster(now);
        }
        self.finish_opening();
        self.finish_reading(index, now);
    }

    /// What one broker calls the topic it is for all: one that was created anew is not read as if it
    /// were the old one, by any broker.
    fn learn_topic(&mut self, index: usize) {
        if self.topic_id.is_none()
            && let Some(id) = self.lanes[index].topic_id()
        {
            self.topic_id = Some(id);
            self.lanes.iter_mut().for_each(|lane| lane.expect_topic(id));
        }
    }

    /// Its time is up: what brokers have that have not answered by now is missing until they do.
    fn end_opening(&mut self, now: Now) {
        if !self.is_serving() {
            let behind = self.behind.take();
            self.fail(behind.unwrap_or_else(|| self.trouble()), now);
            return;
        }
        self.open();
        let unsettled = self.lanes.iter().filter(|lane| !lane.peer.settled);
        for lane in unsettled.filter(|lane| lane.peer.is_ready()) {
            self.events.push_back(Event::LaneLost {
                broker: lane.peer.broker,
                cause: "it did not answer when the subscription began; what it has is missing until it does".into(),
            });
        }
    }

    fn finish_opening(&mut self) {
        let settled = self.ordered == Some(true)
            || peer::all_settled(self.lanes.iter().map(|lane| &lane.peer));
        if settled && self.is_serving() && !self.opened {
            self.open();
        }
    }

    fn is_serving(&self) -> bool {
        self.lanes.iter().any(|lane| lane.position.is_some())
    }

    fn open(&mut self) {
        self.opened = true;
        self.open_by = None;
        self.events.push_back(Event::Opened);
    }

    fn finish_reading(&mut self, index: usize, now: Now) {
        if !self.config.until_end || !self.lanes[index].is_at_end() {
            return;
        }
        self.lanes[index].finish(now);
        self.end_if_done(now);
    }

    /// Of brokers that left nothing more will come.
    fn end_if_done(&mut self, now: Now) {
        let is_done = |lane: &SubscribeLane| lane.peer.phase == Phase::Done;
        let is_over = match self.ordered {
            Some(true) => self.lanes.iter().any(is_done),
            _ => {
                let mut lanes = self.lanes.iter();
                lanes.all(|lane| is_done(lane) || lane.peer.has_left())
            }
        };
        if self.config.until_end && self.opened && self.ended.is_none() && is_over {
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
                        lane.peer.topic_exists(now);
                    }
                    if self.ordered.is_none() {
                        self.heard_of_cluster(now);
                    }
                }
                Finding::TopicMissing => self.fail_unknown_topic(now),
                Finding::TopicRefused(error) => self.fail(error, now),
            }
        }
        self.tick(now);
    }

    fn heard_of_cluster(&mut self, now: Now) {
        let ordered = self.learn_order(now);
        let (Some(cluster), None, Some(ordered)) = (self.directory.cluster(), &self.ended, ordered)
        else {
            return;
        };
        let data = || peer::data_brokers(cluster);
        for info in data() {
            let gone = info.state == BrokerState::Gone;
            if info.state == BrokerState::Left {
                continue;
            }
            let is_new_founder = !ordered && !self.opened && self.founders.insert(info.id);
            let is_known = self.lanes.iter().any(|lane| lane.peer.broker == info.id);
            if is_known {
                continue;
            }
            if !gone || (is_new_founder && self.config.needs(info.id)) {
                let lane = Lane(self.lanes.len() as u32 + 1);
                let link = self.link.clone();
                let mut lane = if ordered {
                    let (start, rank) = (self.config.start_in_order(), self.random.next_bits());
                    SubscribeLane::in_order(lane, info.id, start, link, rank)
                } else {
                    let was_there = self.founders.contains(&info.id);
                    let start = self.config.start_of(info.id, was_there);
                    SubscribeLane::new(lane, info.id, start, link, now)
                };
                if let Some(id) = self.topic_id {
                    lane.expect_topic(id);
                }
                self.lanes.push(lane);
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
            let info = data().find(|info| info.id == lane.peer.broker);
            lane.peer.heard_of(info, now);
            if !ordered && lane.has_left() {
                let broker = lane.peer.broker;
                self.events.push_back(Event::LaneLeft { broker });
            }
        }
        self.choose_broker(now);
        self.end_if_done(now);
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
                    // It has not yet seen as much of the order as whoever the position is from: it may have come back
                    // a moment ago. Whether nobody has is known when the time to open is over.
                    _ if self.ordered == Some(true) => {
                        self.behind = Some(Error::Refused { code, message });
                    }
                    _ if refusal.retryable => {}
                    _ => self.fail(Error::Refused { code, message }, now),
                }
            }
            // The broker may be slow to hear of the topic. The head knows.
            ErrorCode::UnknownTopic if lane.peer.may_hear_of_topic(now) => {
                self.directory.wish_topic(false, now);
            }
            ErrorCode::UnknownTopic => self.fail_unknown_topic(now),
            // The same: it may know only the one that was before.
            ErrorCode::TopicReplaced if lane.peer.may_hear_of_topic(now) => {
                self.directory.wish_topic(false, now);
            }
            ErrorCode::TopicReplaced => {
                let topic = self.config.topic.clone();
                self.fail(Error::TopicReplaced { topic }, now);
            }
            ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument => {
                self.fail(Error::Refused { code, message }, now);
            }
            ErrorCode::OutOfReach => lane.out_of_reach = true,
            // What comes next is damaged where the broker has it, or something of what was asked for.
            ErrorCode::Damaged => match lane.position {
                Some(position) => {
                    if let Trouble::Fatal(error) = lane.damaged(position, message) {
                        self.fail(error, now);
                    }
                }
                None => self.fail(Error::Refused { code, message }, now),
            },
            _ => {}
        }
    }

    fn evicted(&mut self, index: usize, position: u64, first_available: u64, now: Now) {
        let lane = &mut self.lanes[index];
        let broker = lane.peer.broker;
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
            broker: lane.owner(),
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
            lane.leave("the subscriber is closed", now);
        }
    }

    fn trouble(&self) -> Error {
        if self.lanes.is_empty() && self.ordered.is_none() {
            return self.directory.trouble();
        }
        peer::trouble(&self.directory, self.lanes.iter().map(|lane| &lane.peer))
    }

    fn lost_at(&self, lane: &SubscribeLane) -> Option<Now> {
        let at = lane.lost_since?.after(self.config.loss_timeout);
        (self.opened && self.ended.is_none()).then_some(at)
    }

    fn refresh_at(&self) -> Option<Now> {
        if !self.directory.is_idle() || self.ended.is_some() {
            return None;
        }
        let is_in = |lane: &SubscribeLane, phase| lane.peer.phase == phase;
        let mut lanes = self.lanes.iter();
        let served = match self.ordered {
            Some(true) => lanes.any(|lane| is_in(lane, Phase::Open)),
            _ => lanes.all(|lane| !is_in(lane, Phase::Parked) || lane.peer.has_left()),
        };
        let complete = self.opened && served;
        let wait = if complete {
            REFRESH
        } else {
            REFRESH_INCOMPLETE
        };
        Some(self.directory.refreshed_at()?.after(wait))
    }
}
