//! The publisher as a state machine.
//!
//! Call order: [`PublisherCore::start`] once. Then, in any order and from whatever drives it, the events `connected`,
//! `received`, `sent`, `disconnected` (all per channel), `submit` (a sealed batch) and `tick` (at
//! [`PublisherCore::next_tick`] or later). After each of them take all of [`PublisherCore::poll`] for every channel that
//! [`PublisherCore::has_action`], and all of [`PublisherCore::next_event`].
//!
//! A driver gives back, or drops, every buffer of a channel *before* it reports the channel as `disconnected`: the core then
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
mod ordered;
mod reopening;
mod wait;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::acks::Acks;
use embar_wire::control::{BrokerState, PublisherOpened};
use embar_wire::limits::{MAX_BATCH_BYTES, MIN_BATCH_BYTES};

use super::channel::{Answer, OpenTerms, PublishChannel};
use super::dispatch;
use super::in_flight::Batch;
use super::model::{Event, PublisherConfig, SealedBatch};
use super::receipt::{Failure, Outcome};
use super::session::Session;
use crate::availability::why_unavailable;
use crate::backoff::Backoff;
use crate::connection::{ChannelId, ConnectionAction, ConnectionError, ConnectionSettings};
use crate::directory::{Directory, Finding};
use crate::error::ClientError;
use crate::peer::{self, Peer, Phase};

/// Between two looks at a cluster that is not complete.
const REFRESH_INCOMPLETE: Duration = Duration::from_millis(250);
/// Between two looks at the cluster while publishing: brokers tell who joins and leaves, but not while a connection opens.
const REFRESH_ACTIVE: Duration = Duration::from_secs(10);

/// A publisher without I/O: which batch goes to which broker, and what becomes of it.
#[derive(Debug)]
pub struct PublisherCore {
    config: PublisherConfig,
    directory: Directory,
    /// Of every channel.
    connection: ConnectionSettings,
    channels: Vec<PublishChannel>,
    /// Batches that no connection could take yet.
    queued: VecDeque<Batch>,
    /// Batches that have a number in the session and no connection, by number.
    resend: BTreeMap<u64, Batch>,
    resend_backoff: Backoff,
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
    failed: Option<(ClientError, Failure)>,
    random: SplitMix64,
    events: VecDeque<Event>,
}

impl PublisherCore {
    /// A core that does nothing before [`PublisherCore::start`].
    ///
    /// # Panics
    /// If there is no bootstrap address.
    pub fn new(config: PublisherConfig) -> Self {
        let mut random = SplitMix64::new(config.seed);
        let directory = Directory::new(
            &config.name,
            config.bootstrap.clone(),
            config.ways,
            &config.topic,
            random.next_u64(),
        );
        Self {
            connection: ConnectionSettings::publishing(&config.name, config.idle_timeout),
            config,
            directory,
            channels: Vec::new(),
            queued: VecDeque::new(),
            resend: BTreeMap::new(),
            resend_backoff: Backoff::new(ordered::AGAIN),
            session: None,
            instance: random.next_u64(),
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
        self.directory.request_refresh(now);
    }

    /// Channels that exist, the control channel included; they are numbered from 0 and only grow in number.
    pub fn channel_count(&self) -> u32 {
        1 + self.channels.len() as u32
    }

    /// Whether a data channel may go through shared memory, where its broker reads batches where they lie. Without
    /// acknowledgements nobody says when it has, so they are copied for it.
    pub fn names_batches(&self, channel: ChannelId) -> bool {
        let index = channel.data_index();
        let may = index.is_some_and(|index| self.channels[index].peer.may_share_memory());
        may && self.config.acks != Acks::None
    }

    /// Whether publishers compute checksums themselves: some connection goes by a socket. One that comes late to that sums what was
    /// sealed without.
    pub fn needs_sums(&self) -> bool {
        self.channels.iter().any(PublishChannel::needs_sums)
    }

    /// The driver connected `channel`, by shared memory or by a socket.
    pub fn connected(&mut self, channel: ChannelId, shares_memory: bool, now: Now) {
        match self.channel(channel) {
            None => self.directory.connected(now),
            Some(channel) => channel.connected(shares_memory, now),
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
        self.channels[index].received(buf, result, now);
        self.read(index, now);
    }

    /// The send of `channel` is over.
    pub fn sent(&mut self, channel: ChannelId, buf: SendBuf, result: &io::Result<()>, now: Now) {
        let Some(index) = channel.data_index() else {
            self.directory.sent(buf, result, now);
            self.take_findings(now);
            return;
        };
        self.channels[index].sent(buf, result, now, &mut self.events);
        self.read(index, now);
    }

    /// The connection of `channel` ends, and so does this send of it, of which some was left. To be said before
    /// `disconnected`; a driver that drops the buffer instead leaves more batches in doubt.
    pub fn cut_short(&mut self, channel: ChannelId, buf: &SendBuf) {
        if let Some(channel) = self.channel(channel) {
            channel.in_flight.cut_short(buf.remaining());
        }
    }

    fn read(&mut self, index: usize, now: Now) {
        let terms = self.terms();
        let answer = self.channels[index].read(&self.config, terms, now, &mut self.events);
        self.take_answers(index, now);
        if let Some(cluster) = self.channels[index].peer.news.take() {
            self.directory.updated(cluster, now);
            self.cluster_changed(now);
        }
        match answer {
            Some(Answer::Publisher(opened)) => self.channel_opened(index, &opened, now),
            Some(Answer::Session(granted)) => self.session_granted(index, granted, now),
            Some(Answer::Held(held)) => self.session_held(index, &held, now),
            None => {}
        }
        self.pump(now);
    }

    fn terms(&self) -> OpenTerms {
        OpenTerms {
            session_region: self.session.as_ref().map(Session::region),
            topic_id: self.topic_id.unwrap_or(0),
            batch_bytes: match self.opened {
                true => self.config.batch_bytes.min(self.max_batch_bytes),
                false => MIN_BATCH_BYTES,
            },
        }
    }

    /// `channel` is closed, or could not be connected, and the driver holds nothing of it.
    pub fn disconnected(&mut self, channel: ChannelId, cause: ConnectionError, now: Now) {
        let Some(index) = channel.data_index() else {
            self.directory.disconnected(cause, now);
            return;
        };
        let data = &mut self.channels[index];
        let lost = data.disconnected(cause, &mut self.random, now, &mut self.events);
        self.session_unasked(index);
        self.take_answers(index, now);
        let peer = &self.channels[index].peer;
        if !peer.is_rerouted() {
            self.events.push_back(Event::ChannelLost {
                channel,
                broker: peer.broker,
                cause: peer
                    .last_error()
                    .map_or_else(String::new, ConnectionError::to_string),
            });
        }
        if let Some(refusal) = &lost.refusal {
            let carried = !lost.carried.is_empty();
            self.refused(index, refusal, carried, now);
        }
        self.recover_all(lost, now);
        if self.failed.is_some() {
            self.channels[index].peer.phase = Phase::Parked;
        } else {
            self.directory.request_refresh(now);
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
            resend_at: Now(0),
            refusals: 0,
            was_beyond: false,
        };
        if let Some((_, failure)) = self.failed {
            batch.finish(Outcome::Failed(failure), &mut self.events);
            return;
        }
        self.queued.push_back(batch);
        if self
            .directory
            .refreshed_at()
            .is_some_and(|at| at.after(REFRESH_ACTIVE) <= now)
        {
            self.directory.request_refresh(now);
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
            self.directory.request_refresh(now);
        }
        for index in 0..self.channels.len() {
            self.channels[index].tick(self.config.ack_timeout, now);
            self.read(index, now);
        }
        while let Some(batch) = self
            .queued
            .pop_front_if(|batch| self.config.expires(batch.sealed_at) <= now)
        {
            batch.give_up(Failure::TimedOut, &mut self.events);
        }
    }

    /// When to call [`PublisherCore::tick`] at the latest; `None` while there is nothing to wait for.
    pub fn next_tick(&self) -> Option<Now> {
        let channels = self
            .channels
            .iter()
            .filter_map(|channel| channel.next_tick(self.config.ack_timeout));
        let batch = self
            .queued
            .front()
            .map(|batch| self.config.expires(batch.sealed_at));
        channels
            .chain(batch)
            .chain(self.waits_end_at())
            .chain(self.directory.next_tick())
            .chain(self.refresh_at())
            .chain(self.open_by)
            .min()
    }

    /// Whether [`PublisherCore::poll`] would return something for `channel`.
    pub fn has_action(&mut self, channel: ChannelId) -> bool {
        match self.channel(channel) {
            None => self.directory.has_action(),
            Some(channel) => channel.has_action(),
        }
    }

    /// What to do next on `channel`.
    pub fn poll(&mut self, channel: ChannelId, now: Now) -> Option<ConnectionAction> {
        match self.channel(channel) {
            None => self.directory.poll(),
            Some(channel) => channel.poll(now),
        }
    }

    /// The channel that a batch was given to last.
    pub fn last_channel(&self) -> ChannelId {
        ChannelId::of_data(self.last_choice)
    }

    /// The channel that carries this batch, if it is the last one there.
    pub fn carrier(&self, batch: u64) -> Option<ChannelId> {
        let mut channels = self.channels.iter();
        let index = channels.position(|channel| channel.in_flight.last() == Some(batch))?;
        Some(ChannelId::of_data(index))
    }

    /// The channel by which most is on its way, of those by shared memory.
    pub fn fullest(&self) -> Option<ChannelId> {
        let channels = self.channels.iter().enumerate();
        let channels = channels.filter(|(_, channel)| channel.shares_memory());
        let fullest = channels.max_by_key(|(_, channel)| channel.in_flight.bytes());
        fullest.map(|(index, _)| ChannelId::of_data(index))
    }

    /// Whether several batches are on their way by `channel`.
    pub fn is_busy(&self, channel: ChannelId) -> bool {
        let channel = channel.data_index().and_then(|it| self.channels.get(it));
        channel.is_some_and(|channel| channel.in_flight.len() > 1)
    }

    /// The send that [`PublisherCore::poll`] would ask for on `channel`, sooner or later, if it carries batches of at most
    /// `most` bytes in all and, unless the connection may be `busy`, none is in flight there. For another thread than the one that does everything else for that
    /// channel; it calls [`PublisherCore::sent`] as ever.
    pub fn poll_send(
        &mut self,
        channel: ChannelId,
        most: u64,
        busy: bool,
        now: Now,
    ) -> Option<SendBuf> {
        self.channel(channel)?.poll_send(most, busy, now)
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
    pub fn stop(&mut self, why: ClientError, now: Now) {
        self.fail(why, Failure::Closed, now);
    }

    /// Why nothing will be delivered any more, if so.
    pub fn failure(&self) -> Option<ClientError> {
        self.failed.as_ref().map(|(error, _)| error.clone())
    }

    /// Why the publisher cannot be opened, or cannot deliver, as far as is known.
    pub fn why_unavailable(&self) -> ClientError {
        if let Some((error, _)) = &self.failed {
            return error.clone();
        }
        why_unavailable(
            &self.directory,
            self.channels.iter().map(|channel| &channel.peer),
        )
    }

    fn channel(&mut self, channel: ChannelId) -> Option<&mut PublishChannel> {
        let index = channel.data_index()?;
        Some(&mut self.channels[index])
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
                }
                Finding::TopicMissing => self.fail_unknown_topic(now),
                Finding::TopicRefused(error) => self.fail(error, Failure::Closed, now),
            }
        }
        self.tick(now);
    }

    fn cluster_changed(&mut self, now: Now) {
        let Some(cluster) = self.directory.cluster() else {
            return;
        };
        let data = || peer::data_brokers(cluster);
        let is_there = |state| !matches!(state, BrokerState::Gone | BrokerState::Left);
        for info in data().filter(|info| is_there(info.state)) {
            if !self
                .channels
                .iter()
                .any(|channel| channel.peer.broker == info.id)
            {
                let channel = |_| {
                    PublishChannel::new(
                        info.id,
                        &self.config,
                        self.instance,
                        self.connection.clone(),
                    )
                };
                self.channels
                    .extend((0..self.config.channels_per_broker).map(channel));
            }
        }
        if self.failed.is_none() {
            for channel in &mut self.channels {
                let info = data().find(|info| info.id == channel.peer.broker);
                let routes = info.map(|info| self.config.ways.to(info, cluster));
                channel.peer.heard_of(info.zip(routes), now);
            }
        }
        // It may be gone whom opening waited for.
        self.finish_opening();
    }

    fn channel_opened(&mut self, index: usize, opened: &PublisherOpened, now: Now) {
        if *self.topic_id.get_or_insert(opened.topic_id) != opened.topic_id {
            self.fail_topic_replaced(now);
            return;
        }
        if !self.opened {
            self.max_batch_bytes = self.max_batch_bytes.min(opened.max_batch_bytes);
            self.max_message_bytes = self.max_message_bytes.min(opened.max_message_bytes);
        }
        if opened.order.is_total() {
            self.session_announced(index, opened, now);
        }
        if std::mem::replace(&mut self.channels[index].opened_before, true) {
            self.events
                .push_back(Event::Reconnected(ChannelId::of_data(index)));
        }
        self.finish_opening();
    }

    /// Its time is up: whoever has not answered by now joins later.
    fn end_opening(&mut self, now: Now) {
        match self.topic_id {
            Some(topic_id) if self.channels.iter().any(PublishChannel::takes_requests) => {
                self.open_for(topic_id);
            }
            _ => self.fail(self.why_unavailable(), Failure::Closed, now),
        }
    }

    fn finish_opening(&mut self) {
        let settled = peer::all_settled(self.channels.iter().map(|channel| &channel.peer));
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

    /// Gives waiting batches to channels that can write them now.
    fn pump(&mut self, now: Now) {
        self.renew_session(now);
        while !(self.queued.is_empty() && self.resend.is_empty()) {
            // Until what was lost is there, nothing behind it may be stored, and no acknowledgement makes room. There is no
            // more of it than the session's window holds.
            let limit = match self.resend.is_empty() {
                true => self.config.batches_in_flight,
                false => usize::MAX,
            };
            let able = self.channels.iter().enumerate();
            let able = able.filter_map(|(index, channel)| Some((index, channel.load(limit)?)));
            let Some(index) = dispatch::choose(able, self.last_choice) else {
                return;
            };
            let Some(batch) = self.next_batch() else {
                return;
            };
            self.last_choice = index;
            self.channels[index].assign(batch);
        }
    }

    fn refresh_at(&self) -> Option<Now> {
        if self.failed.is_some() {
            return None;
        }
        let mut peers = self.channels.iter().map(|channel| &channel.peer);
        let none_ready = !peers.clone().any(Peer::is_ready);
        let has_work = !(self.queued.is_empty() && self.resend.is_empty());
        let incomplete = none_ready && (!self.opened || has_work);
        let wanted = incomplete || peers.any(Peer::may_return);
        let due = wanted && self.directory.is_idle();
        due.then(|| self.directory.refreshed_at())
            .flatten()
            .map(|at| at.after(REFRESH_INCOMPLETE))
    }
}
