//! The subscriber as a state machine.
//!
//! Call order: [`SubscriberCore::start`] once. Then, in any order, the events `connected`, `received`, `sent`,
//! `disconnected` (all per channel), `returned` (a delivered buffer came back) and `tick` (at
//! [`SubscriberCore::next_tick`] or later). After each of them take all of [`SubscriberCore::poll`] for every channel that
//! [`SubscriberCore::has_action`], and all of [`SubscriberCore::next_event`]. The driver has given up every buffer of a
//! channel before it reports it as `disconnected`.
//!
//! Invariants:
//! - What is delivered of one broker is dense: offsets follow one another from where the channel started. Only an eviction
//!   breaks that, and only if the settings allow it, and it is reported with its size. Topics of order 2 and 5: this holds
//!   for all brokers together, and one of them at a time serves all.
//!   While batches are large, others help it.
//! - Memory is bounded: `buffers_per_broker` buffers of each broker, each with a batch or with several small ones, and its
//!   connection's rings.
//! - A broker that is away or slow holds back no other. One that was removed from the cluster is not waited for; if one
//!   comes in its place, reading goes on where it stood.

mod helpers;
mod ordered;
mod refusals;
mod threads;
mod wait;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::control::BrokerState;

use self::helpers::{Ending, Helpers};
use super::channel::{Interruption, SubscribeChannel};
use super::merge::Merge;
use super::model::{Event, SubscriberConfig};
use crate::availability::why_unavailable;
use crate::connection::{ChannelId, ConnectionAction, ConnectionError, ConnectionSettings};
use crate::directory::{Directory, Finding};
use crate::error::{ClientError, ReadError};
use crate::peer::{self, Phase};
use crate::wait::WaitReason;

/// Between two looks at a cluster that is not complete.
const REFRESH_INCOMPLETE: Duration = Duration::from_millis(250);
/// Between two looks at the cluster: brokers tell who joins and leaves, but not while a connection opens.
const REFRESH: Duration = Duration::from_secs(5);

/// Batches of at least so many bytes come from several brokers where these lend their memory. Smaller ones are seldom lent.
const LENT_SHARED_BATCH_BYTES: u32 = 128 << 10;

/// A subscriber without I/O: which broker it reads what from, and what it delivers.
#[derive(Debug)]
pub struct SubscriberCore {
    config: SubscriberConfig,
    directory: Directory,
    /// Of every channel.
    connection: ConnectionSettings,
    channels: Vec<SubscribeChannel>,
    /// Whether there is one order over all brokers, once it is known.
    ordered: Option<bool>,
    /// The topic's id, once a broker has told it.
    topic_id: Option<u32>,
    /// If there is one order: the channel that serves it, or did last.
    chosen: Option<usize>,
    /// And what comes next in it.
    merge: Merge,
    /// Batches of at least so many bytes are shared out among brokers; `None`: none are.
    large_bytes: Option<u32>,
    /// Some data broker was connected to.
    has_connected: bool,
    helpers: Helpers,
    /// Data brokers that the cluster had when the subscription began, those that were gone included, those that had left not.
    initial_brokers: BTreeSet<u32>,
    opened: bool,
    open_by: Option<Now>,
    /// What a broker said that has not seen as much of the order as is asked for.
    behind: Option<ClientError>,
    ended: Option<ReadError>,
    random: SplitMix64,
    events: VecDeque<Event>,
}

impl SubscriberCore {
    /// A core that does nothing before [`SubscriberCore::start`].
    ///
    /// # Panics
    /// If there is no bootstrap address.
    pub fn new(config: SubscriberConfig) -> Self {
        let mut random = SplitMix64::new(config.seed);
        let directory = Directory::new(
            &config.name,
            config.bootstrap.clone(),
            config.ways,
            &config.topic,
            random.next_u64(),
        );
        Self {
            connection: ConnectionSettings::subscribing(&config.name, config.idle_timeout),
            merge: Merge::new(config.shared_batch_bytes.unwrap_or(u32::MAX)),
            large_bytes: config.shared_batch_bytes,
            has_connected: false,
            helpers: Helpers::default(),
            config,
            directory,
            channels: Vec::new(),
            ordered: None,
            topic_id: None,
            chosen: None,
            initial_brokers: BTreeSet::new(),
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
        self.directory.request_refresh(now);
    }

    /// Channels that exist, the control channel included; they are numbered from 0 and only grow in number.
    pub fn channel_count(&self) -> u32 {
        1 + self.channels.len() as u32
    }

    /// The driver connected `channel`, by memory that both sides share or by a socket.
    pub fn connected(&mut self, channel: ChannelId, shares_memory: bool, now: Now) {
        match channel.data_index() {
            None => self.directory.connected(now),
            Some(index) => {
                if !std::mem::replace(&mut self.has_connected, true) && shares_memory {
                    self.share_smaller_batches();
                }
                self.channels[index].peer.connected(now);
            }
        }
    }

    /// Brokers lend their memory: what each of them stores is read there, and what it sends of others' memory is copied. It
    /// is decided once, because all that share an order must have the same in mind.
    fn share_smaller_batches(&mut self) {
        if let Some(large) = &mut self.large_bytes {
            *large = LENT_SHARED_BATCH_BYTES.min(*large);
            self.merge.set_large(*large);
            for channel in &mut self.channels {
                channel.set_large(*large);
            }
        }
    }

    /// The receive of `channel` is over: so many more bytes are in its buffer, 0 at the end of the stream.
    pub fn received(
        &mut self,
        channel: ChannelId,
        buf: RecvBuf,
        result: &io::Result<usize>,
        now: Now,
    ) {
        let Some(index) = channel.data_index() else {
            self.directory.received(buf, result, now);
            self.take_findings(now);
            return;
        };
        let channel = &mut self.channels[index];
        let result = channel.received(buf, result, &self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// The send of `channel` is over.
    pub fn sent(&mut self, channel: ChannelId, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let Some(index) = channel.data_index() else {
            self.directory.sent(buf, result, now);
            self.take_findings(now);
            return;
        };
        self.channels[index].peer.connection.sent(buf, result, now);
        self.read(index, now);
    }

    fn read(&mut self, index: usize, now: Now) {
        let result = self.channels[index].read(&self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// The consumer is done with a buffer that was delivered from `channel`.
    pub fn returned(&mut self, channel: ChannelId, buffer: Vec<u8>, now: Now) {
        let Some(index) = channel.data_index() else {
            return;
        };
        let result = self.channels[index].returned(buffer, &self.config, now, &mut self.events);
        self.after(index, result, now);
    }

    /// `channel` is closed, or could not be connected, and the driver holds nothing of it.
    pub fn disconnected(&mut self, channel: ChannelId, cause: ConnectionError, now: Now) {
        let Some(index) = channel.data_index() else {
            self.directory.disconnected(cause, now);
            return;
        };
        let channel = &mut self.channels[index];
        let refusal = channel.disconnected(cause, &mut self.random, now);
        if channel.peer.phase == Phase::Done {
            return;
        }
        if self.ended.is_some() {
            channel.peer.phase = Phase::Parked;
            return;
        }
        if self.helper_gone(index, refusal.as_ref(), now) {
            return;
        }
        let channel = &self.channels[index];
        if !channel.peer.is_rerouted() {
            self.events.push_back(Event::ChannelLost {
                broker: channel.peer.broker,
                cause: channel
                    .peer
                    .last_error()
                    .map_or_else(String::new, ConnectionError::to_string),
            });
        }
        if let Some(refusal) = refusal.filter(|_| !self.is_shared()) {
            self.refused(index, refusal, now);
        }
        if self.ended.is_none() {
            self.end_help(Ending::Trouble, now);
            self.directory.request_refresh(now);
            self.finish_opening();
            self.choose_broker(now);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if self.open_by.is_some_and(|by| by <= now) {
            self.end_opening(now);
        }
        if self.next_tick().is_some_and(|due| Self::is_late(due, now)) {
            self.stood_still(now);
        }
        self.directory.tick(now);
        for index in 0..self.channels.len() {
            self.channels[index].tick(&self.config, now);
            self.read(index, now);
        }
        if self.ended.is_some() {
            return;
        }
        self.choose_broker(now);
        self.share_out(now);
        if self.refresh_at().is_some_and(|at| at <= now) {
            self.directory.request_refresh(now);
        }
        let lost = self
            .channels
            .iter()
            .find(|channel| self.lost_at(channel).is_some_and(|at| at <= now));
        if let Some(channel) = lost {
            let limit = self.config.loss_timeout;
            let source = channel
                .peer
                .last_error()
                .cloned()
                .unwrap_or(ConnectionError::Unfinished(WaitReason::NotReady));
            let error = match channel.owner() {
                Some(broker) => ReadError::BrokerLost {
                    broker,
                    limit,
                    source,
                },
                None => ReadError::AllBrokersLost { limit, source },
            };
            self.fail(error, now);
        }
    }

    /// When to call [`SubscriberCore::tick`] at the latest.
    pub fn next_tick(&self) -> Option<Now> {
        let channels = self
            .channels
            .iter()
            .filter_map(|channel| channel.peer.next_tick());
        let lost = self
            .channels
            .iter()
            .filter_map(|channel| self.lost_at(channel));
        channels
            .chain(lost)
            .chain(self.directory.next_tick())
            .chain(self.refresh_at())
            .chain(self.open_by)
            .chain(self.share_at())
            .min()
    }

    /// Whether [`SubscriberCore::poll`] would return something for `channel`.
    pub fn has_action(&mut self, channel: ChannelId) -> bool {
        match channel.data_index() {
            None => self.directory.has_action(),
            Some(index) => self.channels[index].has_action(),
        }
    }

    /// What to do next on `channel`.
    pub fn poll(&mut self, channel: ChannelId) -> Option<ConnectionAction> {
        match channel.data_index() {
            None => self.directory.poll(),
            Some(index) => self.channels[index].poll(),
        }
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.ordered == Some(true) {
            self.merge.take(&mut self.events);
            return self.merge.next_event();
        }
        self.events.pop_front()
    }

    /// True if some channel reads nothing before a buffer is returned.
    pub fn is_starved(&self) -> bool {
        let mut channels = self.channels.iter();
        // What is ahead waits for a broker, and not for the consumer.
        let out: usize = self.channels.iter().map(|it| it.with_consumer()).sum();
        out > self.merge.ahead() && channels.any(|channel| channel.is_starved(&self.config))
    }

    /// Closes all connections.
    pub fn stop(&mut self, now: Now) {
        self.fail(ClientError::Closed, now);
    }

    fn after(&mut self, index: usize, result: Result<(), Interruption>, now: Now) {
        match result {
            Ok(()) => {}
            Err(Interruption::Retry(violation)) => self.channels[index].reject(&violation, now),
            Err(Interruption::Fatal(error)) => {
                self.fail(error, now);
                return;
            }
        }
        self.put_in_order(now);
        if self.ended.is_some() {
            return;
        }
        self.learn_topic(index);
        if let Some(cluster) = self.channels[index].peer.news.take() {
            self.directory.updated(cluster, now);
            self.cluster_changed(now);
        }
        self.finish_opening();
        self.finish_reading(index, now);
        self.share_out(now);
    }

    /// What one broker calls the topic it is for all: one that was created anew is not read as if it
    /// were the old one, by any broker.
    fn learn_topic(&mut self, index: usize) {
        if self.topic_id.is_none()
            && let Some(id) = self.channels[index].topic_id()
        {
            self.topic_id = Some(id);
            self.channels
                .iter_mut()
                .for_each(|channel| channel.expect_topic(id));
        }
    }

    /// Its time is up: what brokers have that have not answered by now is missing until they do.
    fn end_opening(&mut self, now: Now) {
        if !self.is_serving() {
            let behind = self.behind.take();
            self.fail(behind.unwrap_or_else(|| self.why_unavailable()), now);
            return;
        }
        self.open();
        let unsettled = self.channels.iter().filter(|channel| !channel.peer.settled);
        for channel in unsettled.filter(|channel| channel.peer.is_ready()) {
            self.events.push_back(Event::ChannelLost {
                broker: channel.peer.broker,
                cause: "it did not answer when the subscription began; what it has is missing until it does".into(),
            });
        }
    }

    fn finish_opening(&mut self) {
        let settled = self.ordered == Some(true)
            || peer::all_settled(self.channels.iter().map(|channel| &channel.peer));
        if settled && self.is_serving() && !self.opened {
            self.open();
        }
    }

    fn is_serving(&self) -> bool {
        self.channels
            .iter()
            .any(|channel| channel.position.is_some())
    }

    fn open(&mut self) {
        self.opened = true;
        self.open_by = None;
        self.events.push_back(Event::Opened);
    }

    fn finish_reading(&mut self, index: usize, now: Now) {
        let (index, is_at_end) = match self.chosen {
            Some(chosen) => {
                let ends = (self.merge.next(), self.channels[chosen].end());
                (
                    chosen,
                    matches!(ends, (Some(next), Some(end)) if next >= end),
                )
            }
            None => (index, self.channels[index].is_at_end()),
        };
        if !self.config.until_end || !is_at_end {
            return;
        }
        self.channels[index].finish(now);
        self.end_if_done(now);
    }

    /// Of brokers that left nothing more will come.
    fn end_if_done(&mut self, now: Now) {
        let is_done = |channel: &SubscribeChannel| channel.peer.phase == Phase::Done;
        let is_over = match self.ordered {
            Some(true) => self.channels.iter().any(is_done),
            _ => {
                let mut channels = self.channels.iter();
                channels.all(|channel| is_done(channel) || channel.peer.has_left())
            }
        };
        if self.config.until_end && self.opened && self.ended.is_none() && is_over {
            self.events.push_back(Event::End);
            self.close_all(ClientError::Closed.into(), now);
        }
    }

    fn take_findings(&mut self, now: Now) {
        while let Some(finding) = self.directory.next_finding() {
            match finding {
                Finding::Cluster => self.cluster_changed(now),
                Finding::TopicExists { id } => {
                    if peer::is_another_topic(self.topic_id, id) {
                        self.fail_topic_replaced(now);
                    }
                    for channel in &mut self.channels {
                        channel.peer.topic_exists(now);
                    }
                    if self.ordered.is_none() {
                        self.cluster_changed(now);
                    }
                }
                Finding::TopicMissing => self.fail_unknown_topic(now),
                Finding::TopicRefused(error) => self.fail(error, now),
            }
        }
        self.tick(now);
    }

    fn cluster_changed(&mut self, now: Now) {
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
            let is_new_initial = !ordered && !self.opened && self.initial_brokers.insert(info.id);
            let is_known = self
                .channels
                .iter()
                .any(|channel| channel.peer.broker == info.id);
            if is_known {
                continue;
            }
            if !gone || (is_new_initial && self.config.needs(info.id)) {
                let channel = ChannelId::of_data(self.channels.len());
                let connection = self.connection.clone();
                let mut channel = if ordered {
                    let (start, rank) = (self.config.start_in_order(), self.random.next_u64() >> 1);
                    let choice = (rank, self.large_bytes);
                    SubscribeChannel::in_order(channel, info.id, start, connection, choice)
                } else {
                    let was_there = self.initial_brokers.contains(&info.id);
                    let start = self.config.start_of(info.id, was_there);
                    SubscribeChannel::new(channel, info.id, start, connection, now)
                };
                if let Some(id) = self.topic_id {
                    channel.expect_topic(id);
                }
                self.channels.push(channel);
            }
            if gone && is_new_initial {
                self.events.push_back(Event::ChannelLost {
                    broker: info.id,
                    cause: "it was gone when the subscription began; what it has is missing until it returns"
                        .into(),
                });
            }
        }
        for channel in &mut self.channels {
            let info = data().find(|info| info.id == channel.peer.broker);
            let routes = info.map(|info| self.config.ways.to(info, cluster));
            channel.peer.heard_of(info.zip(routes), now);
            if !ordered && channel.has_left() {
                let broker = channel.peer.broker;
                self.events.push_back(Event::BrokerLeft { broker });
            }
        }
        self.choose_broker(now);
        self.end_if_done(now);
    }

    fn fail(&mut self, error: impl Into<ReadError>, now: Now) {
        if self.ended.is_none() {
            let error = error.into();
            self.events.push_back(Event::Failed(error.clone()));
            self.close_all(error, now);
        }
    }

    fn close_all(&mut self, why: ReadError, now: Now) {
        self.ended = Some(why);
        self.open_by = None;
        self.helpers = Helpers::default();
        self.directory.stop(now);
        for channel in &mut self.channels {
            channel.leave(ConnectionError::Local("the subscriber is closed"), now);
        }
    }

    fn why_unavailable(&self) -> ClientError {
        if self.channels.is_empty() && self.ordered.is_none() {
            return self.directory.why_unknown();
        }
        why_unavailable(
            &self.directory,
            self.channels.iter().map(|channel| &channel.peer),
        )
    }

    /// Since when nobody serves what the channel is for.
    fn lost_since(&self, channel: &SubscribeChannel) -> Option<Now> {
        let is_chosen = self.chosen == channel.channel.data_index();
        let counts = self.ordered != Some(true) || is_chosen;
        channel.lost_since.filter(|_| counts)
    }

    fn lost_at(&self, channel: &SubscribeChannel) -> Option<Now> {
        let at = self.lost_since(channel)?.after(self.config.loss_timeout);
        (self.opened && self.ended.is_none()).then_some(at)
    }

    fn refresh_at(&self) -> Option<Now> {
        if !self.directory.is_idle() || self.ended.is_some() {
            return None;
        }
        let is_in = |channel: &SubscribeChannel, phase| channel.peer.phase == phase;
        let mut channels = self.channels.iter();
        let served = match self.ordered {
            Some(true) => channels.any(|channel| is_in(channel, Phase::Open)),
            _ => channels.all(|channel| !is_in(channel, Phase::Parked) || channel.peer.has_left()),
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
