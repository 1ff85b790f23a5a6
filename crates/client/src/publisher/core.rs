//! The publisher as a state machine.
//!
//! Call order: [`PublisherCore::start`] once. Then, in any order and from whatever drives it, the events `connected`,
//! `received`, `sent`, `disconnected` (all per lane), `submit` (a sealed batch) and `tick` (at
//! [`PublisherCore::next_tick`] or later). After each of them take all of [`PublisherCore::poll`] for every lane that
//! [`PublisherCore::has_action`], and all of [`PublisherCore::next_event`].
//!
//! A driver gives back, or drops, every buffer of a lane *before* it reports the lane as `disconnected`: the core then
//! holds the only reference and may change or reuse the bytes.
//!
//! Invariants:
//! - Each submitted batch is resolved exactly once, and its buffer released exactly once, after that.
//! - A batch that no connection ever carried is never in doubt; one that was carried is sent again only with the
//!   possible-duplicate flag, or not at all, unless each broker that had it said that it is not stored there: by an Error
//!   frame, which comes behind all acknowledgements. Topics of order 2 and 5: it is sent again with the number it has in
//!   the session, and in doubt only if the publisher ends before it is answered.
//! - Memory is bounded by the batches submitted and not released.

mod loss;
mod model;
mod ordered;
mod waits;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::control::{BrokerState, PublisherOpened};
use embar_wire::limits::{MAX_BATCH_BYTES, MIN_BATCH_BYTES};

pub use self::model::{Acks, Event, OnBrokerLoss, PublisherConfig, SealedBatch};

use super::dispatch;
use super::flight::Batch;
use super::lane::{Answer, PublishLane, Terms};
use super::receipt::{Failure, Outcome};
use super::session::Session;
use crate::backoff::{Backoff, Random};
use crate::connection::{Lane, LinkAction, LinkSettings};
use crate::directory::{Directory, Finding};
use crate::error::Error;
use crate::peer::{self, Peer, Phase};

/// Between two looks at a cluster that is not complete.
const REFRESH_INCOMPLETE: Duration = Duration::from_millis(250);
/// Between two looks at the cluster while publishing: brokers tell who joins and leaves, but not while a connection opens.
const REFRESH_ACTIVE: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub struct PublisherCore {
    config: PublisherConfig,
    directory: Directory,
    /// Of every lane.
    link: LinkSettings,
    lanes: Vec<PublishLane>,
    /// Batches that no connection could take yet.
    waiting: VecDeque<Batch>,
    /// Batches with a number that no connection has, by number.
    again: BTreeMap<u64, Batch>,
    again_backoff: Backoff,
    /// On topics with one order over all brokers, once a broker has announced this publisher.
    session: Option<Session>,
    /// Tells this publisher from others with the same producer.
    instance: u64,
    last_choice: usize,
    topic_id: Option<u32>,
    max_batch_bytes: u32,
    max_message_bytes: u32,
    opened: bool,
    /// Give up opening at this time.
    open_by: Option<Now>,
    failed: Option<(Error, Failure)>,
    random: Random,
    events: VecDeque<Event>,
}

impl PublisherCore {
    /// A core that does nothing before [`PublisherCore::start`].
    ///
    /// # Panics
    /// If there is no bootstrap address.
    pub fn new(config: PublisherConfig) -> Self {
        let mut random = Random::new(config.seed);
        let directory = Directory::new(
            &config.name,
            config.bootstrap.clone(),
            &config.topic,
            random.next_bits(),
        );
        Self {
            link: LinkSettings::publishing(&config.name, config.idle_timeout),
            config,
            directory,
            lanes: Vec::new(),
            waiting: VecDeque::new(),
            again: BTreeMap::new(),
            again_backoff: Backoff::new(ordered::AGAIN),
            session: None,
            instance: random.next_bits(),
            last_choice: 0,
            topic_id: None,
            max_batch_bytes: MAX_BATCH_BYTES,
            max_message_bytes: u32::MAX,
            opened: false,
            open_by: None,
            failed: None,
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
        match self.lane(lane) {
            None => self.directory.connected(now),
            Some(lane) => lane.peer.connected(now),
        }
    }

    /// The receive of `lane` is over: so many more bytes are in its buffer, 0 at the end of the stream.
    pub fn received(&mut self, lane: Lane, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.received(buf, result, now);
            self.take_findings(now);
            return;
        };
        self.lanes[index].received(buf, result, now);
        self.read(index, now);
    }

    /// The send of `lane` is over.
    pub fn sent(&mut self, lane: Lane, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.sent(buf, result, now);
            self.take_findings(now);
            return;
        };
        self.lanes[index].sent(buf, result, now, &mut self.events);
        self.read(index, now);
    }

    fn read(&mut self, index: usize, now: Now) {
        let terms = self.terms();
        let answer = self.lanes[index].read(&self.config, terms, now, &mut self.events);
        self.take_answers(index, now);
        if let Some(cluster) = self.lanes[index].peer.news.take() {
            self.directory.told(cluster, now);
            self.heard_of_cluster(now);
        }
        match answer {
            Some(Answer::Publisher(opened)) => self.lane_opened(index, &opened, now),
            Some(Answer::Session(granted)) => self.session_granted(index, granted, now),
            Some(Answer::Held(held)) => self.session_held(index, &held, now),
            None => {}
        }
        self.pump(now);
    }

    fn terms(&self) -> Terms {
        Terms {
            resumes: self.session.is_some(),
            topic_id: self.topic_id.unwrap_or(0),
            batch_bytes: match self.opened {
                true => self.config.batch_bytes.min(self.max_batch_bytes),
                false => MIN_BATCH_BYTES,
            },
        }
    }

    /// `lane` is closed, or could not be connected, and the driver holds nothing of it.
    pub fn disconnected(&mut self, lane: Lane, cause: &str, now: Now) {
        let Some(index) = lane.index().checked_sub(1) else {
            self.directory.disconnected(cause, now);
            return;
        };
        let link = &mut self.lanes[index];
        let remains = link.disconnected(cause, &mut self.random, now, &mut self.events);
        self.session_unasked(index);
        self.take_answers(index, now);
        let link = &self.lanes[index];
        self.events.push_back(Event::LaneLost {
            lane,
            broker: link.peer.broker,
            cause: link.peer.last_error().unwrap_or_default().to_string(),
        });
        if let Some(refusal) = &remains.refusal {
            let carried = !remains.carried.is_empty();
            self.refused(index, refusal, carried, now);
        }
        self.recover_all(remains, now);
        if self.failed.is_some() {
            self.lanes[index].peer.phase = Phase::Parked;
        } else {
            self.directory.wish_refresh(now);
        }
        self.finish_opening();
        self.pump(now);
    }

    /// Publishes a batch.
    pub fn submit(&mut self, sealed: SealedBatch, now: Now) {
        let batch = Batch {
            number: sealed.number,
            messages: sealed.messages,
            bytes: sealed.bytes,
            sealed_at: now,
            sent_at: now,
            written: false,
            sequence: None,
            again_at: Now(0),
            refusals: 0,
        };
        if let Some((_, failure)) = self.failed {
            batch.finish(Outcome::Failed(failure), &mut self.events);
            return;
        }
        self.waiting.push_back(batch);
        if self
            .directory
            .refreshed_at()
            .is_some_and(|at| at.after(REFRESH_ACTIVE) <= now)
        {
            self.directory.wish_refresh(now);
        }
        self.pump(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if self.open_by.is_some_and(|by| by <= now) {
            self.end_opening(now);
        }
        self.directory.tick(now);
        self.end_waits(now);
        if self.refresh_at().is_some_and(|at| at <= now) {
            self.directory.wish_refresh(now);
        }
        for index in 0..self.lanes.len() {
            self.lanes[index].tick(self.config.ack_timeout, now);
            self.read(index, now);
        }
        while let Some(batch) = self
            .waiting
            .pop_front_if(|batch| self.config.expires(batch) <= now)
        {
            batch.give_up(Failure::TimedOut, &mut self.events);
        }
    }

    /// When to call [`PublisherCore::tick`] at the latest; `None` while there is nothing to wait for.
    pub fn next_tick(&self) -> Option<Now> {
        let lanes = self
            .lanes
            .iter()
            .filter_map(|lane| lane.next_tick(self.config.ack_timeout));
        let batch = self.waiting.front().map(|batch| self.config.expires(batch));
        lanes
            .chain(batch)
            .chain(self.waits_end_at())
            .chain(self.directory.next_tick())
            .chain(self.refresh_at())
            .chain(self.open_by)
            .min()
    }

    /// Whether [`PublisherCore::poll`] would return something for `lane`.
    pub fn has_action(&mut self, lane: Lane) -> bool {
        match self.lane(lane) {
            None => self.directory.has_action(),
            Some(lane) => lane.has_action(),
        }
    }

    /// What to do next on `lane`.
    pub fn poll(&mut self, lane: Lane, now: Now) -> Option<LinkAction> {
        match self.lane(lane) {
            None => self.directory.poll(),
            Some(lane) => lane.poll(now),
        }
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`PublisherCore::next_event`] would return something.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Closes all connections and gives up what is not acknowledged, because of `why`.
    pub fn stop(&mut self, why: Error, now: Now) {
        self.fail(why, Failure::Closed, now);
    }

    /// Why nothing will be delivered any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.failed.as_ref().map(|(error, _)| error.clone())
    }

    /// Why the publisher cannot be opened, or cannot deliver, as far as is known.
    pub fn trouble(&self) -> Error {
        if let Some((error, _)) = &self.failed {
            return error.clone();
        }
        peer::trouble(&self.directory, self.lanes.iter().map(|lane| &lane.peer))
    }

    fn lane(&mut self, lane: Lane) -> Option<&mut PublishLane> {
        let index = lane.index().checked_sub(1)?;
        Some(&mut self.lanes[index])
    }

    fn take_findings(&mut self, now: Now) {
        while let Some(finding) = self.directory.next_finding() {
            match finding {
                Finding::Cluster => self.heard_of_cluster(now),
                Finding::TopicExists => {
                    for lane in &mut self.lanes {
                        lane.peer.topic_exists(now);
                    }
                }
                Finding::TopicMissing => self.fail_unknown_topic(now),
                Finding::TopicRefused(error) => self.fail(error, Failure::Closed, now),
            }
        }
        self.tick(now);
    }

    fn heard_of_cluster(&mut self, now: Now) {
        let Some(cluster) = self.directory.cluster() else {
            return;
        };
        let data = || peer::data_brokers(cluster);
        let is_there = |state| !matches!(state, BrokerState::Gone | BrokerState::Left);
        for info in data().filter(|info| is_there(info.state)) {
            if !self.lanes.iter().any(|lane| lane.peer.broker == info.id) {
                let lane =
                    |_| PublishLane::new(info.id, &self.config, self.instance, self.link.clone());
                self.lanes
                    .extend((0..self.config.lanes_per_broker).map(lane));
            }
        }
        if self.failed.is_none() {
            for lane in &mut self.lanes {
                let info = data().find(|info| info.id == lane.peer.broker);
                lane.peer.heard_of(info, now);
            }
        }
        // It may be gone whom opening waited for.
        self.finish_opening();
    }

    fn lane_opened(&mut self, index: usize, opened: &PublisherOpened, now: Now) {
        if *self.topic_id.get_or_insert(opened.topic_id) != opened.topic_id {
            self.fail_topic_replaced(now);
            return;
        }
        if !self.opened {
            self.max_batch_bytes = self.max_batch_bytes.min(opened.max_batch_bytes);
            self.max_message_bytes = self.max_message_bytes.min(opened.max_message_bytes);
        }
        if opened.order.is_total() {
            self.session_announced(opened, now);
        }
        if std::mem::replace(&mut self.lanes[index].opened_before, true) {
            self.events
                .push_back(Event::Reconnected(Lane(index as u32 + 1)));
        }
        self.finish_opening();
    }

    /// Its time is up: whoever has not answered by now joins later.
    fn end_opening(&mut self, now: Now) {
        match self.topic_id {
            Some(topic_id) if self.lanes.iter().any(PublishLane::takes_requests) => {
                self.open_for(topic_id);
            }
            _ => self.fail(self.trouble(), Failure::Closed, now),
        }
    }

    fn finish_opening(&mut self) {
        let settled = peer::all_settled(self.lanes.iter().map(|lane| &lane.peer));
        if let (Some(topic_id), true, false, None) =
            (self.topic_id, settled, self.opened, &self.failed)
        {
            self.open_for(topic_id);
        }
    }

    fn open_for(&mut self, topic_id: u32) {
        self.opened = true;
        self.open_by = None;
        self.events.push_back(Event::Opened {
            topic_id,
            max_batch_bytes: self.max_batch_bytes,
            max_message_bytes: self.max_message_bytes,
        });
    }

    /// Gives waiting batches to lanes that can write them now.
    fn pump(&mut self, now: Now) {
        self.renew_session(now);
        while !(self.waiting.is_empty() && self.again.is_empty()) {
            // Until what was lost is there, nothing behind it may be stored, and no acknowledgement makes room. There is no
            // more of it than the session's window holds.
            let limit = match self.again.is_empty() {
                true => self.config.batches_in_flight,
                false => usize::MAX,
            };
            let able = self.lanes.iter().enumerate();
            let able = able.filter_map(|(index, lane)| Some((index, lane.load(limit)?)));
            let Some(index) = dispatch::choose(able, self.last_choice) else {
                return;
            };
            let Some(batch) = self.next_batch() else {
                return;
            };
            self.last_choice = index;
            self.lanes[index].assigned = Some(batch);
        }
    }

    fn refresh_at(&self) -> Option<Now> {
        if self.failed.is_some() {
            return None;
        }
        let mut peers = self.lanes.iter().map(|lane| &lane.peer);
        let none_ready = !peers.clone().any(Peer::is_ready);
        let has_work = !(self.waiting.is_empty() && self.again.is_empty());
        let incomplete = none_ready && (!self.opened || has_work);
        let wanted = incomplete || peers.any(Peer::may_return);
        let due = wanted && self.directory.is_idle();
        due.then(|| self.directory.refreshed_at())
            .flatten()
            .map(|at| at.after(REFRESH_INCOMPLETE))
    }
}
