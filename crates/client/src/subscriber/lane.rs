//! One connection of a subscriber to one data broker: subscribing, batches in, and how it ends.
//!
//! Invariants:
//! - `position` is the next offset to deliver; it grows by exactly the offsets of each delivered batch.
//! - At most `buffers` payload buffers are with the consumer or being filled. At that limit nothing is read, so the
//!   broker is held back by TCP, and no other broker is.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use embar_wire::batch::BatchHeader;
use embar_wire::control::{
    BrokerInfo, BrokerState, Control, ErrorReply, StartAt, Subscribe, Subscribed,
};
use embar_wire::crc::Crc;
use embar_wire::time::Now;

use super::core::{Delivered, Event, SubscriberConfig};
use crate::backoff::{Backoff, BackoffLimits, Random};
use crate::connection::{Incoming, Lane, Link, LinkAction};
use crate::directory::ANSWER_TIMEOUT;
use crate::error::Error;

/// Small batches arrive several at once and are copied out; of a large one this much is copied at most.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// Smallest buffer to allocate: the next batch may be larger.
const MIN_BUFFER_BYTES: usize = 64 << 10;
/// A batch that arrived damaged is asked for again this often.
const MAX_DAMAGED: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The broker is not ready, as far as the cluster says.
    Parked,
    /// Connect at this time.
    Waiting(Now),
    /// Connecting, shaking hands, subscribing; give up at the deadline.
    Opening(Now),
    Open,
    Closing,
    /// Everything wanted was delivered.
    Done,
}

/// Why a connection ends from this side.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Try again later.
    Close(String),
    /// Trying again will not help.
    Fatal(Error),
}

impl From<String> for Trouble {
    fn from(violation: String) -> Self {
        Self::Close(violation)
    }
}

/// A batch whose payload is on its way.
#[derive(Debug)]
struct Arriving {
    header: BatchHeader,
    /// `None` while it is with the driver.
    buffer: Option<Vec<u8>>,
    filled: usize,
    crc: Crc,
}

#[derive(Debug)]
pub(super) struct SubscribeLane {
    pub(super) lane: Lane,
    pub(super) broker: u32,
    pub(super) phase: Phase,
    pub(super) link: Link,
    /// Subscribed, or failed to, at least once.
    pub(super) settled: bool,
    /// Away since.
    pub(super) lost_since: Option<Now>,
    /// Since when the broker does not know the topic.
    pub(super) unknown_since: Option<Now>,
    pub(super) refusal: Option<ErrorReply>,
    pub(super) last_error: Option<String>,
    /// The next offset to deliver, once it is known.
    pub(super) position: Option<u64>,
    /// The end as it was when the lane first subscribed.
    pub(super) end: Option<u64>,
    start: StartAt,
    topic_id: u32,
    /// The next batch may begin before `position`.
    fresh: bool,
    damaged: u32,
    arriving: Option<Arriving>,
    /// The receive with the driver is for the payload.
    payload_with_driver: bool,
    spare: Vec<Vec<u8>>,
    with_consumer: usize,
    state: BrokerState,
    incarnation: u32,
    address: Option<SocketAddr>,
    backoff: Backoff,
}

impl SubscribeLane {
    pub(super) fn new(
        lane: Lane,
        broker: u32,
        start: StartAt,
        config: &SubscriberConfig,
        now: Now,
    ) -> Self {
        Self {
            lane,
            broker,
            phase: Phase::Parked,
            link: Link::new(&config.name, READ_AHEAD_BYTES),
            settled: false,
            lost_since: Some(now),
            unknown_since: None,
            refusal: None,
            last_error: None,
            position: None,
            end: None,
            start,
            topic_id: 0,
            fresh: true,
            damaged: 0,
            arriving: None,
            payload_with_driver: false,
            spare: Vec::new(),
            with_consumer: 0,
            state: BrokerState::Gone,
            incarnation: 0,
            address: None,
            backoff: Backoff::new(BackoffLimits::default()),
        }
    }

    /// The cluster's word about the broker; `None`: it is not in the cluster.
    pub(super) fn heard_of(&mut self, info: Option<&BrokerInfo>, now: Now) {
        let Some(info) = info else {
            self.state = BrokerState::Gone;
            return;
        };
        let address = info.address.parse().ok();
        let renewed = address != self.address || info.incarnation != self.incarnation;
        self.address = address;
        self.incarnation = info.incarnation;
        self.state = info.state;
        match self.phase {
            Phase::Parked if self.is_ready() => self.phase = Phase::Waiting(now),
            Phase::Waiting(_) if renewed => self.phase = Phase::Waiting(now),
            _ => {}
        }
    }

    /// A draining broker ends its subscribers at once. It stays a place to look, with a backoff, until it is gone or
    /// back.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, BrokerState::Ready | BrokerState::Draining) && self.address.is_some()
    }

    pub(super) fn poll(&mut self) -> Option<LinkAction> {
        if let Some(action) = self.link.poll() {
            return Some(action);
        }
        let (buffer, space) = self.next_payload_space()?;
        self.payload_with_driver = true;
        Some(LinkAction::Receive(buffer, space))
    }

    pub(super) fn has_action(&self) -> bool {
        self.link.has_action() || self.wants_payload()
    }

    fn wants_payload(&self) -> bool {
        self.link.is_up()
            && self
                .arriving
                .as_ref()
                .is_some_and(|arriving| arriving.buffer.is_some())
    }

    fn next_payload_space(&mut self) -> Option<(Vec<u8>, Range<usize>)> {
        if !self.wants_payload() {
            return None;
        }
        let arriving = self.arriving.as_mut()?;
        let len = arriving.header.payload_len() as usize;
        let space = arriving.filled..len;
        Some((arriving.buffer.take()?, space))
    }

    pub(super) fn received(
        &mut self,
        buffer: Vec<u8>,
        bytes: usize,
        config: &SubscriberConfig,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Trouble> {
        if !std::mem::take(&mut self.payload_with_driver) {
            self.link.received(buffer, bytes);
        } else if let (true, Some(arriving)) = (self.link.is_up(), self.arriving.as_mut()) {
            arriving
                .crc
                .update(&buffer[arriving.filled..arriving.filled + bytes]);
            arriving.filled += bytes;
            arriving.buffer = Some(buffer);
            self.link.payload_received(bytes);
            if self.link.payload_due() > 0 {
                return Ok(());
            }
            self.arrived(out)?;
        }
        self.read_frames(config, out)
    }

    /// The consumer is done with a buffer.
    pub(super) fn returned(
        &mut self,
        buffer: Vec<u8>,
        config: &SubscriberConfig,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Trouble> {
        self.with_consumer -= 1;
        self.spare.push(buffer);
        self.link.hold(false);
        self.read_frames(config, out)
    }

    fn read_frames(
        &mut self,
        config: &SubscriberConfig,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Trouble> {
        while self.arriving.is_none() && self.phase != Phase::Done {
            // A batch needs its buffer at once, so without one not even its header is taken.
            if self.phase == Phase::Open && self.with_consumer >= config.buffers_per_broker {
                self.link.hold(true);
                break;
            }
            let message = match self.link.next_frame()? {
                None => break,
                Some(Incoming::Control(message)) => message,
                Some(Incoming::Welcome(welcome)) => {
                    if welcome.broker_id != self.broker {
                        let other = welcome.broker_id;
                        return Err(Trouble::Close(format!(
                            "broker {other} answers at the address of {}",
                            self.broker
                        )));
                    }
                    self.subscribe(config);
                    continue;
                }
                Some(Incoming::Batch { header, early }) if self.phase == Phase::Open => {
                    let mut buffer = self.spare.pop().unwrap_or_default();
                    let len = (header.payload_len() as usize).max(MIN_BUFFER_BYTES);
                    if buffer.len() < len {
                        buffer.resize(len, 0);
                    }
                    buffer[..early.len()].copy_from_slice(early);
                    let mut crc = Crc::new();
                    crc.update(early);
                    self.arriving = Some(Arriving {
                        filled: early.len(),
                        header,
                        buffer: Some(buffer),
                        crc,
                    });
                    if self.link.payload_due() == 0 {
                        self.arrived(out)?;
                    }
                    continue;
                }
                Some(_) => return Err(Trouble::Close("data that was not asked for".into())),
            };
            self.control(message, out)?;
        }
        Ok(())
    }

    fn subscribe(&mut self, config: &SubscriberConfig) {
        let start = self.position.map_or(self.start, StartAt::Offset);
        self.link.send(&Control::Subscribe(Subscribe {
            topic: config.topic.clone(),
            start,
        }));
    }

    fn control(&mut self, message: Control, out: &mut VecDeque<Event>) -> Result<(), Trouble> {
        match message {
            Control::Subscribed(subscribed) if matches!(self.phase, Phase::Opening(_)) => {
                self.subscribed(&subscribed, out)
            }
            Control::Error(refusal) => {
                let message = refusal.message.clone();
                self.refusal = Some(refusal);
                Err(Trouble::Close(message))
            }
            // It ends the subscription at once: the end of the connection follows, and it is looked for again then.
            Control::Goodbye(_) => Ok(()),
            Control::Ping => {
                self.link.send(&Control::Pong);
                Ok(())
            }
            other => Err(Trouble::Close(format!(
                "{:?} was not asked for",
                other.id()
            ))),
        }
    }

    fn subscribed(
        &mut self,
        subscribed: &Subscribed,
        out: &mut VecDeque<Event>,
    ) -> Result<(), Trouble> {
        let start = subscribed.start;
        if let Some(expected) = self.position.filter(|expected| *expected != start) {
            return Err(Trouble::Fatal(self.broken_order(expected, start)));
        }
        if self.position.is_none() {
            out.push_back(Event::Started {
                broker: self.broker,
                start,
            });
        }
        self.position = Some(start);
        self.end.get_or_insert(subscribed.next);
        self.topic_id = subscribed.topic_id;
        self.fresh = true;
        self.phase = Phase::Open;
        self.settled = true;
        self.lost_since = None;
        self.unknown_since = None;
        self.last_error = None;
        Ok(())
    }

    /// The payload is complete.
    fn arrived(&mut self, out: &mut VecDeque<Event>) -> Result<(), Trouble> {
        let (Some(arriving), Some(position)) = (self.arriving.take(), self.position) else {
            return Ok(());
        };
        let Arriving {
            header,
            buffer: Some(payload),
            crc,
            ..
        } = arriving
        else {
            return Ok(());
        };
        if let Err(damage) = header.check_payload_crc(crc.value()) {
            self.damaged += 1;
            self.spare.push(payload);
            if self.damaged < MAX_DAMAGED {
                return Err(Trouble::Close(damage.to_string()));
            }
            return Err(Trouble::Fatal(Error::Corrupt {
                broker: self.broker,
                offset: position,
                cause: damage.to_string(),
            }));
        }
        if header.topic() != self.topic_id {
            return Err(Trouble::Close(format!(
                "a batch of topic {}, not {}",
                header.topic(),
                self.topic_id
            )));
        }
        let base = header.base_offset();
        let end = base.checked_add(u64::from(header.message_count()));
        let (true, Some(end)) = (
            base == position || (self.fresh && base < position),
            end.filter(|end| *end > position),
        ) else {
            return Err(Trouble::Fatal(self.broken_order(position, base)));
        };
        self.fresh = false;
        self.damaged = 0;
        self.backoff.succeeded();
        self.position = Some(end);
        self.with_consumer += 1;
        out.push_back(Event::Deliver(Delivered {
            lane: self.lane,
            broker: self.broker,
            header,
            payload,
            // Below the count, which is a u32.
            skip: (position - base) as u32,
        }));
        Ok(())
    }

    fn broken_order(&self, expected: u64, found: u64) -> Error {
        Error::BrokenOrder {
            broker: self.broker,
            expected,
            found,
        }
    }

    /// True if no batch buffer is left for this lane.
    pub(super) fn is_starved(&self, config: &SubscriberConfig) -> bool {
        self.with_consumer >= config.buffers_per_broker
    }

    /// True if everything up to the end at subscription was delivered.
    pub(super) fn is_at_end(&self) -> bool {
        matches!((self.position, self.end), (Some(position), Some(end)) if position >= end)
    }

    /// Connects if it is time; closes if time is up.
    pub(super) fn tick(&mut self, now: Now) {
        match self.phase {
            Phase::Waiting(at) if at <= now => {
                if let Some(address) = self.address {
                    self.phase = Phase::Opening(now.after(ANSWER_TIMEOUT));
                    self.link.connect(address);
                }
            }
            Phase::Opening(deadline) if deadline <= now => self.close("no answer in time".into()),
            _ => {}
        }
    }

    pub(super) fn next_tick(&self) -> Option<Now> {
        match self.phase {
            Phase::Waiting(at) | Phase::Opening(at) => Some(at),
            _ => None,
        }
    }

    pub(super) fn close(&mut self, why: String) {
        if matches!(self.phase, Phase::Opening(_) | Phase::Open) {
            self.last_error = Some(why);
            self.phase = Phase::Closing;
            self.link.close();
            if self.link.is_down() {
                // The driver never heard of the attempt, so it will not report its end.
                self.settled = true;
                self.phase = Phase::Parked;
            }
        }
    }

    /// Everything wanted is delivered.
    pub(super) fn finish(&mut self) {
        self.phase = Phase::Done;
        self.lost_since = None;
        self.link.close();
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
        self.phase = Phase::Waiting(now);
    }

    /// The connection is gone.
    pub(super) fn disconnected(
        &mut self,
        cause: &str,
        random: &mut Random,
        now: Now,
    ) -> Option<ErrorReply> {
        let arriving = self.arriving.take().and_then(|arriving| arriving.buffer);
        self.spare.extend(arriving);
        self.payload_with_driver = false;
        self.link.disconnected();
        if self.phase == Phase::Done {
            return None;
        }
        if self.phase != Phase::Closing {
            self.last_error = Some(cause.to_string());
        }
        self.settled = true;
        self.lost_since.get_or_insert(now);
        let wait = self.backoff.failed(random);
        self.phase = Phase::Waiting(now.after(Duration::from_nanos(wait)));
        self.refusal.take()
    }
}
