//! One connection of a subscriber to one data broker: subscribing, batches in, and how it ends.
//!
//! Invariants:
//! - `position` is the next offset to deliver, of this broker or in the one order of all of them; it grows by exactly the offsets of each delivered batch.
//! - At most `buffers` payload buffers are with the consumer or being filled. At that limit nothing is read, so the
//!   broker is held back by TCP, and no other broker is.
//! - While the consumer may have bytes of the broker's own memory, the broker's silence says nothing of it: what was lent
//!   holds back all that comes behind it on the connection, heartbeats included.

mod payload;
mod role;

use std::collections::VecDeque;
use std::io;

use embar_frame::{Now, crc32c};
use embar_meter::random::SplitMix64;
use embar_transport::RecvBuf;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{Control, ErrorReply, StartAt, Subscribe, Subscribed};
use embar_wire::share::Share;

use self::payload::last_run;
use self::role::Joins;
pub(super) use self::role::Role;
use super::arriving::{Arriving, PayloadCheck, SMALL_BYTES, begin};
use super::model::{Delivered, Event, SubscriberConfig};
use super::payload::Payload;
use crate::connection::{
    ChannelId, ConnectionAction, ConnectionError, ConnectionSettings, Incoming, Violation,
};
use crate::error::{ClientError, ReadError};
use crate::peer::{Absence, Peer, Phase};

/// Batches that the consumer may have at once where a broker lends them: they take no buffer. The window of the
/// connection bounds them, too.
const LENT_AHEAD_MAX: usize = 16;
/// A batch that arrived damaged is asked for again this often.
const MAX_DAMAGED: u32 = 3;
/// And this often where a broker may send what it finds in another's memory while that is used again.
const MAX_DAMAGED_IN_ORDER: u32 = 8;

/// Why this side ends a connection.
#[derive(Debug)]
pub(super) enum Interruption {
    /// A new connection may serve better.
    Retry(Violation),
    /// No connection will: this ends the subscription.
    Fatal(ReadError),
}

impl From<Violation> for Interruption {
    fn from(violation: Violation) -> Self {
        Self::Retry(violation)
    }
}

#[derive(Debug)]
pub(super) struct SubscribeChannel {
    pub(super) channel: ChannelId,
    pub(super) peer: Peer,
    /// Offsets are places in the one order of all brokers, and any of them may go on with it.
    ordered: bool,
    pub(super) role: Role,
    /// Which batches are asked for.
    share: Share,
    pub(super) joins: Joins,
    /// Answers to come, to questions for another share.
    renewals: u32,
    /// Among brokers that would do the one with the lowest number is chosen.
    pub(super) rank: u64,
    /// Away since. Of an order only that of the channel counts that serves it, or did last.
    pub(super) lost_since: Option<Now>,
    /// A broker answers, and cannot get at what comes next: it is as lost as before.
    pub(super) out_of_reach: bool,
    /// The next offset to deliver, once it is known.
    pub(super) position: Option<u64>,
    /// The end as it was when the channel first subscribed.
    end: Option<u64>,
    start: StartAt,
    /// Once a broker has said it.
    topic_id: Option<u32>,
    /// The next batch may begin before `position`.
    fresh: bool,
    damaged: u32,
    /// Bytes of payloads that were accepted.
    accepted_bytes: u64,
    /// What had come when a count began.
    counted_from: u64,
    arriving: Option<Arriving>,
    /// While no payload is on its way.
    check: PayloadCheck,
    spare: Vec<Vec<u8>>,
    /// Deliveries that the consumer has not given back.
    with_consumer: usize,
    /// Those of them that lie where a broker lends them.
    lent: usize,
}

impl SubscribeChannel {
    /// For one broker among others, missed from now on until it serves.
    pub(super) fn new(
        channel: ChannelId,
        broker: u32,
        start: StartAt,
        settings: ConnectionSettings,
        now: Now,
    ) -> Self {
        let peer = Peer::new(broker, Absence::Retry, settings);
        Self {
            lost_since: Some(now),
            out_of_reach: false,
            ..Self::unused(channel, peer, start)
        }
    }

    /// For a broker that may be chosen to serve all messages in their one order.
    pub(super) fn in_order(
        channel: ChannelId,
        broker: u32,
        start: StartAt,
        settings: ConnectionSettings,
        (rank, large_bytes): (u64, Option<u32>),
    ) -> Self {
        let peer = Peer::new(broker, Absence::Choose, settings);
        Self {
            ordered: true,
            role: Role::Free,
            joins: Joins {
                large_bytes: large_bytes.unwrap_or(u32::MAX),
                sparse: false,
            },
            rank,
            ..Self::unused(channel, peer, start)
        }
    }

    fn unused(channel: ChannelId, peer: Peer, start: StartAt) -> Self {
        Self {
            channel,
            peer,
            ordered: false,
            role: Role::Serves,
            share: Share::All,
            joins: Joins {
                large_bytes: u32::MAX,
                sparse: false,
            },
            renewals: 0,
            rank: 0,
            lost_since: None,
            out_of_reach: false,
            position: None,
            end: None,
            start,
            topic_id: None,
            fresh: true,
            damaged: 0,
            accepted_bytes: 0,
            counted_from: 0,
            arriving: None,
            check: PayloadCheck::default(),
            spare: Vec::new(),
            with_consumer: 0,
            lent: 0,
        }
    }

    /// Only this topic is meant, whatever has its name later.
    pub(super) fn expect_topic(&mut self, id: u32) {
        self.topic_id = Some(id);
    }

    /// The topic, once it is known.
    pub(super) fn topic_id(&self) -> Option<u32> {
        self.topic_id
    }

    /// Buffers that were delivered and did not come back.
    pub(super) fn with_consumer(&self) -> usize {
        self.with_consumer
    }

    /// The end as it was when the first channel subscribed.
    pub(super) fn end(&self) -> Option<u64> {
        self.end
    }

    /// The broker that counts the offsets, unless there is one order over all of them.
    pub(super) fn owner(&self) -> Option<u32> {
        (!self.ordered).then_some(self.peer.broker)
    }

    pub(super) fn poll(&mut self) -> Option<ConnectionAction> {
        if let Some(buf) = self.arriving.as_mut().and_then(|batch| batch.buf.take()) {
            return Some(ConnectionAction::Receive(buf));
        }
        self.peer.connection.poll()
    }

    pub(super) fn has_action(&mut self) -> bool {
        self.has_payload_space() || self.peer.connection.has_action()
    }

    pub(super) fn received(
        &mut self,
        buf: RecvBuf,
        result: &io::Result<usize>,
        config: &SubscriberConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        if self.is_payload_with_driver() {
            self.payload_received(buf, result, now, out)?;
        } else {
            self.peer.connection.received(buf, result, now);
        }
        self.read(config, now, out)
    }

    /// The consumer is done with a buffer.
    pub(super) fn returned(
        &mut self,
        buffer: Vec<u8>,
        config: &SubscriberConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        self.with_consumer -= 1;
        self.peer.connection.hold(false, now);
        if !buffer.is_empty() {
            self.spare.push(buffer);
        } else if self.lent > 0 {
            self.lent -= 1;
            // Only now may the broker be able to go on.
            self.forget_silence(config, now);
        }
        self.read(config, now, out)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, config: &SubscriberConfig, now: Now) {
        if self.lent > 0 {
            self.forget_silence(config, now);
        }
        self.peer.tick(now);
    }

    /// Takes in what came, up to the next payload that is not there yet.
    pub(super) fn read(
        &mut self,
        config: &SubscriberConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        while self.arriving.is_none() {
            // A batch needs its buffer at once, so without one not even its header is taken, unless it may have a place
            // behind the last one.
            let starved = self.peer.phase == Phase::Open && self.is_starved(config);
            if starved && last_run(self.channel, out).is_none_or(|run| !run.has_room(0)) {
                self.peer.connection.hold(true, now);
            }
            let message = match self.peer.connection.next(now)? {
                None => {
                    if starved {
                        self.peer.connection.hold(true, now);
                    }
                    break;
                }
                Some(Incoming::Control(message)) => message,
                Some(Incoming::Welcome(welcome)) => {
                    self.peer.check(&welcome)?;
                    self.subscribe(config)?;
                    continue;
                }
                Some(Incoming::Batch { header, early }) if self.peer.phase == Phase::Open => {
                    let (came, len) = (early.len(), header.payload_len() as usize);
                    let run = last_run(self.channel, out).filter(|run| run.has_room(len));
                    // Only the first batch of a run may begin before the position.
                    let joins = |run: &&mut Delivered| self.joins.allow(run, &header);
                    if let Some(run) = run.filter(|_| came == len && !self.fresh).filter(joins) {
                        let crc = crc32c(run.stage(&header, early));
                        self.accept(&header, Some(crc))?;
                        run.push(&header);
                        continue;
                    }
                    if starved {
                        self.peer.connection.put_back();
                        self.peer.connection.hold(true, now);
                        break;
                    }
                    let payload = self.spare.pop().unwrap_or_default();
                    let payload = begin(&header, early, payload, &mut self.check, config.checksums);
                    self.peer.connection.read_ahead(len <= SMALL_BYTES);
                    if came == len {
                        self.arrived(&header, payload.into(), self.check.value(), out)?;
                    } else {
                        self.receive_rest(header, payload, came);
                    }
                    continue;
                }
                Some(Incoming::Closed(closed)) => {
                    self.peer.closed(&closed);
                    continue;
                }
                // It ends the subscription at once: the end of the connection follows, and it is looked for again then.
                Some(Incoming::Goodbye | Incoming::Nothing) => continue,
                Some(Incoming::Ack(_) | Incoming::Batch { .. }) => {
                    return Err(Interruption::Retry("data that was not asked for".into()));
                }
            };
            self.control(message, config, now, out)?;
        }
        Ok(())
    }

    fn subscribe(&mut self, config: &SubscriberConfig) -> Result<(), Violation> {
        let start = self.position.map_or(self.start, StartAt::Offset);
        self.peer.connection.send(&Control::Subscribe(Subscribe {
            topic: config.topic.clone(),
            start,
            topic_id: self.topic_id.unwrap_or(0),
            share: self.share,
            isolation: config.isolation,
        }))
    }

    fn control(
        &mut self,
        message: Control,
        config: &SubscriberConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        match message {
            Control::Subscribed(subscribed) if matches!(self.peer.phase, Phase::Opening(_)) => {
                let known = self.topic_id;
                let renewed = known.is_some_and(|known| known != subscribed.topic_id);
                if renewed || subscribed.order.is_total() != self.ordered {
                    let topic = config.topic.clone();
                    if self.share != Share::All {
                        return Err(Interruption::Retry("it has another topic".into()));
                    }
                    return Err(Interruption::Fatal(
                        ClientError::TopicReplaced { topic }.into(),
                    ));
                }
                self.subscribed(&subscribed, out)
            }
            // It may overtake batches that were asked for before. So what it says of positions is not used.
            Control::Subscribed(_) if self.renewals > 0 => {
                self.renewals -= 1;
                Ok(())
            }
            Control::ClusterMetadata(cluster) => {
                self.peer.news = Some(cluster);
                Ok(())
            }
            Control::Error(refusal) => {
                self.peer.refused(refusal, now);
                Ok(())
            }
            other => Err(Interruption::Retry(
                format!("{:?} was not asked for", other.id()).into(),
            )),
        }
    }

    fn subscribed(
        &mut self,
        subscribed: &Subscribed,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Interruption> {
        let start = subscribed.start;
        if let Some(expected) = self.position.filter(|expected| *expected != start) {
            return Err(self.out_of_place(expected, start));
        }
        if self.position.is_none() {
            out.push_back(Event::Started {
                broker: self.owner(),
                start,
            });
        }
        self.position = Some(start);
        self.end.get_or_insert(subscribed.next);
        self.topic_id = Some(subscribed.topic_id);
        self.fresh = true;
        if !self.out_of_reach {
            self.lost_since = None;
        }
        self.peer.opened();
        Ok(())
    }

    /// Whether this is the batch that comes next, undamaged; then the next one is expected. Returns how many of its
    /// messages were not asked for.
    fn accept(&mut self, header: &BatchHeader, crc: Option<u32>) -> Result<u32, Interruption> {
        let Some(position) = self.position else {
            return Err(Interruption::Retry(
                "a batch before its place is known".into(),
            ));
        };
        if let Some(Err(damage)) = crc.map(|crc| header.check_payload_crc(crc)) {
            return Err(self.damaged(position, damage.to_string()));
        }
        if self.topic_id != Some(header.topic()) {
            let found = header.topic();
            return Err(Interruption::Retry(
                format!("a batch of topic {found}").into(),
            ));
        }
        let base = header.base_offset();
        let end = base.checked_add(u64::from(header.message_count()));
        let (true, Some(end)) = (
            base == position
                || (self.fresh && base < position)
                || (self.joins.sparse && base > position),
            end.filter(|end| *end > position),
        ) else {
            return Err(self.out_of_place(position, base));
        };
        self.fresh = false;
        self.damaged = 0;
        self.accepted_bytes += u64::from(header.payload_len());
        self.peer.succeeded();
        self.peer.served();
        if std::mem::take(&mut self.out_of_reach) {
            self.lost_since = None;
        }
        self.position = Some(end);
        // Below the count, which is a u32.
        Ok(position.saturating_sub(base) as u32)
    }

    /// What comes at `offset` cannot be used: it is asked for again, for some time.
    pub(super) fn damaged(&mut self, offset: u64, cause: String) -> Interruption {
        self.damaged += 1;
        let most = if self.ordered {
            MAX_DAMAGED_IN_ORDER
        } else {
            MAX_DAMAGED
        };
        // Of several brokers that serve together none has the last word.
        if self.damaged < most || self.share != Share::All {
            return Interruption::Retry(cause.into());
        }
        Interruption::Fatal(ReadError::Corrupt {
            broker: self.peer.broker,
            offset,
            cause,
        })
    }

    /// Of its own offsets a broker is sure. Bytes of another's memory may have changed on the way.
    fn out_of_place(&mut self, expected: u64, found: u64) -> Interruption {
        if self.ordered {
            return self.damaged(expected, format!("{found} came in place of {expected}"));
        }
        Interruption::Fatal(ReadError::BrokenOrder {
            broker: self.peer.broker,
            expected,
            found,
        })
    }

    /// True if no batch buffer is left for this channel, or the consumer has as many batches as a broker lends ahead.
    pub(super) fn is_starved(&self, config: &SubscriberConfig) -> bool {
        let most = config.buffers_per_broker;
        self.with_consumer - self.lent >= most || self.lent >= most.max(LENT_AHEAD_MAX)
    }

    /// True if nothing may come because of what the consumer has: there is no buffer left, or what was lent fills the window
    /// of the connection. Nobody here knows how much of that window is left.
    pub(super) fn may_wait_for_consumer(&self, config: &SubscriberConfig) -> bool {
        self.is_starved(config) || self.lent > 0
    }

    /// True if everything up to the end at subscription was delivered.
    pub(super) fn is_at_end(&self) -> bool {
        matches!((self.position, self.end), (Some(position), Some(end)) if position >= end)
    }

    /// The subscription cannot go on like this.
    pub(super) fn reject(&mut self, violation: &Violation, now: Now) {
        self.peer.reject(violation, now);
        self.drop_arriving(now);
    }

    /// The broker left the cluster, with what is not read of it; true if that was not known.
    pub(super) fn has_left(&mut self) -> bool {
        self.peer.has_left() && self.lost_since.take().is_some()
    }

    /// Nothing is wanted any more.
    pub(super) fn leave(&mut self, why: ConnectionError, now: Now) {
        self.peer.leave(why, now);
        self.drop_arriving(now);
    }

    /// Everything wanted is delivered.
    pub(super) fn finish(&mut self, now: Now) {
        self.leave(ConnectionError::Local("everything is delivered"), now);
        self.peer.phase = Phase::Done;
        self.lost_since = None;
    }

    /// A connection sees its end only behind the payload at hand.
    fn drop_arriving(&mut self, now: Now) {
        if self.is_payload_with_driver() {
            return;
        }
        let buf = self.arriving.take().and_then(|batch| batch.buf);
        if let Some(buf) = buf {
            if let Some(payload) = Payload::of(buf.into_store()) {
                self.give_up(payload);
            }
            self.peer.connection.discard_payload(now);
        }
    }

    /// The offset it was told to start at, if it was told one.
    pub(super) fn wanted_offset(&self) -> Option<u64> {
        match self.start {
            StartAt::Offset(offset) => Some(offset),
            StartAt::Earliest | StartAt::Latest => None,
        }
    }

    /// Goes on from another offset, at once.
    pub(super) fn restart_at(&mut self, position: u64, now: Now) {
        self.position = Some(position);
        self.peer.phase = Phase::Waiting(now);
    }

    /// The connection is gone.
    pub(super) fn disconnected(
        &mut self,
        cause: ConnectionError,
        random: &mut SplitMix64,
        now: Now,
    ) -> Option<ErrorReply> {
        self.arriving = None;
        self.renewals = 0;
        let refusal = self.peer.disconnected(cause, random, now);
        if self.peer.phase != Phase::Done {
            self.lost_since.get_or_insert(now);
        }
        refusal
    }
}
