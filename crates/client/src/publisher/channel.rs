//! One connection of a publisher to one data broker: opening it for the topic, what is on it, and how it ends.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use embar_frame::Now;
use embar_meter::random::SplitMix64;
use embar_transport::buffer::PIECES_MAX;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::acks::Acks;
use embar_wire::control::{
    Control, ErrorReply, OpenPublisher, OpenSession, PublisherOpened, SessionHeld, SessionOpened,
};

use super::in_flight::{Batch, InFlight};
use super::model::{Event, PublisherConfig};
use crate::connection::{
    ANSWER_TIMEOUT, ConnectionAction, ConnectionError, ConnectionSettings, Incoming, Violation,
};
use crate::peer::{Absence, Peer, Phase};

/// A send takes no further batch when it has so many bytes. A run of small batches goes by few calls, and none waits
/// long behind the others of its run.
const SEND_BYTES_MAX: u64 = 256 << 10;

/// What a broker answered to a request.
#[derive(Debug)]
pub(super) enum Answer {
    Publisher(PublisherOpened),
    Session(SessionOpened),
    /// Another publisher has the identity and the secret.
    Held(SessionHeld),
}

/// What is settled between the publisher and all its brokers when one of them answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenTerms {
    /// The region of the brokers that answered an announcement before, on whichever channel.
    pub(super) session_region: Option<u64>,
    /// The topic, or 0 before that.
    pub(super) topic_id: u32,
    /// A broker is to take batches of this size.
    pub(super) batch_bytes: u32,
}

impl OpenTerms {
    /// Whether brokers of this region know the publisher's session. Those of another one do not: its cluster has lost its
    /// memory, and what is on the disks may be nothing.
    fn resumes(self, region: u64) -> bool {
        self.session_region
            .is_some_and(|known| !differ(known, region))
    }

    fn check(self, opened: &PublisherOpened, acks: Acks) -> Result<(), Violation> {
        let (most, wanted) = (opened.max_batch_bytes, self.batch_bytes);
        if most < wanted {
            return Err(format!(
                "it takes batches of at most {most} bytes, and this publisher's may have {wanted}: give all brokers the same limit"
            )
            .into());
        }
        if opened.order.is_total() && acks == Acks::None {
            return Err(
                "it takes a publisher without acknowledgements on a topic of order 2 or 5".into(),
            );
        }
        Ok(())
    }
}

/// Whether these are nonces of two regions; 0 says nothing.
pub(super) fn differ(one: u64, other: u64) -> bool {
    one != 0 && other != 0 && one != other
}

/// What is left of a connection that is gone.
#[derive(Debug)]
pub(super) struct LostConnection {
    /// What it carried, in order.
    pub(super) carried: VecDeque<Batch>,
    /// What it was to carry next.
    pub(super) assigned: VecDeque<Batch>,
    /// Why it was refused, if it was.
    pub(super) refusal: Option<ErrorReply>,
    /// That was said in an Error frame, which comes behind all acknowledgements.
    pub(super) by_error: bool,
}

#[derive(Debug)]
pub(super) struct PublishChannel {
    pub(super) peer: Peer,
    pub(super) in_flight: InFlight,
    /// Given to this channel and not yet to the driver. They go by one send.
    assigned: VecDeque<Batch>,
    assigned_bytes: u64,
    pub(super) opened_before: bool,
    /// Of the broker that welcomed it; 0 before.
    pub(super) region: u64,
    /// What was known of the session when this publisher was announced here.
    announced_from: Option<u64>,
    /// Tells this publisher from others with the same producer.
    instance: u64,
    /// The broker said goodbye: nothing new goes here.
    draining: bool,
    /// Asked for the session's next epoch; give up at this time.
    renewing: Option<Now>,
    /// Told that the session ends.
    closing_session: bool,
    /// The broker refused it by an Error frame.
    by_error: bool,
    /// While its connection stands: whether that goes by shared memory.
    shares_memory: Option<bool>,
}

impl PublishChannel {
    pub(super) fn new(
        broker: u32,
        config: &PublisherConfig,
        instance: u64,
        settings: ConnectionSettings,
    ) -> Self {
        Self {
            peer: Peer::new(broker, Absence::Avoid, settings),
            in_flight: InFlight::new(config.acks),
            assigned: VecDeque::new(),
            assigned_bytes: 0,
            opened_before: false,
            region: 0,
            announced_from: None,
            instance,
            draining: false,
            renewing: None,
            closing_session: false,
            by_error: false,
            shares_memory: None,
        }
    }

    /// Its connection stands, and goes by shared memory or not: there the broker computes the checksums.
    pub(super) fn connected(&mut self, shares_memory: bool, now: Now) {
        self.shares_memory = Some(shares_memory);
        self.peer.connected(now);
    }

    /// Whether its connection stands, and goes by shared memory.
    pub(super) fn shares_memory(&self) -> bool {
        self.shares_memory == Some(true)
    }

    /// Whether its batches need the publisher's checksums, as far as is known.
    pub(super) fn needs_sums(&self) -> bool {
        self.shares_memory == Some(false)
    }

    /// Bytes in flight and assigned, if the channel can take a batch now.
    pub(super) fn load(&self, limit: usize) -> Option<u64> {
        let able = self.takes_requests()
            && self.assigned_bytes < SEND_BYTES_MAX
            && self.assigned.len() < PIECES_MAX
            && self.may_send()
            && self.in_flight.len() + self.assigned.len() < limit;
        able.then(|| self.in_flight.bytes() + self.assigned_bytes)
    }

    /// Gives it a batch, for its next send.
    pub(super) fn assign(&mut self, batch: Batch) {
        self.assigned_bytes += batch.bytes.len() as u64;
        self.assigned.push_back(batch);
    }

    /// What it was given and has not sent, in order.
    pub(super) fn assigned(&self) -> impl Iterator<Item = &Batch> {
        self.assigned.iter()
    }

    /// Takes back what it was given and has not sent, in order.
    pub(super) fn take_assigned(&mut self) -> VecDeque<Batch> {
        self.assigned_bytes = 0;
        std::mem::take(&mut self.assigned)
    }

    /// Whether the broker does what it is asked for.
    pub(super) fn takes_requests(&self) -> bool {
        self.peer.phase == Phase::Open && !self.draining
    }

    /// Asks for the epoch that follows this one.
    pub(super) fn renew_session(&mut self, gives_up: u32, now: Now) {
        self.renewing = Some(now.after(ANSWER_TIMEOUT));
        let request = Control::OpenSession(OpenSession { gives_up });
        if let Err(violation) = self.peer.connection.send(&request) {
            self.peer.reject(&violation, now);
        }
    }

    /// Says that the session ends for good. Nobody waits for the answer.
    pub(super) fn close_session(&mut self, now: Now) {
        self.closing_session = true;
        if let Err(violation) = self.peer.connection.send(&Control::CloseSession) {
            self.peer.reject(&violation, now);
        }
    }

    /// A batch whose send failed stays among those in flight until the connection has ended.
    fn may_send(&self) -> bool {
        self.peer.connection.may_send_batch() && !self.in_flight.is_sending()
    }

    pub(super) fn poll(&mut self, now: Now) -> Option<ConnectionAction> {
        self.hand_over(now);
        self.peer.connection.poll()
    }

    /// The send of what it was given, if that is at most `most` bytes, and, unless it may be `busy`, nothing is in flight.
    pub(super) fn poll_send(&mut self, most: u64, busy: bool, now: Now) -> Option<SendBuf> {
        let free = (busy || self.in_flight.is_empty()) && self.may_send();
        if !free || self.assigned.is_empty() || self.assigned_bytes > most {
            return None;
        }
        self.hand_over(now);
        self.peer.connection.poll_send()
    }

    /// Lets what it was given go by its next send.
    fn hand_over(&mut self, now: Now) {
        if self.may_send() && !self.assigned.is_empty() {
            self.assigned_bytes = 0;
            let batches = self.assigned.drain(..);
            let frames = batches.map(|mut batch| {
                if self.shares_memory != Some(true) {
                    batch.sum();
                }
                self.in_flight.send(batch, now)
            });
            self.peer.connection.send_batches(frames);
        }
    }

    pub(super) fn has_action(&mut self) -> bool {
        (!self.assigned.is_empty() && self.may_send()) || self.peer.connection.has_action()
    }

    pub(super) fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        self.peer.connection.received(buf, result, now);
    }

    pub(super) fn sent(
        &mut self,
        buf: SendBuf,
        result: &io::Result<()>,
        now: Now,
        out: &mut VecDeque<Event>,
    ) {
        if result.is_err() {
            self.in_flight.cut_short(buf.remaining());
        }
        self.peer.connection.sent(buf, result, now);
        if result.is_ok() && self.in_flight.is_sending() {
            self.in_flight.sent(now, out);
        }
    }

    /// Announces this publisher; `takes_over` is the epoch in which another one has its identity, or 0.
    fn announce(
        &mut self,
        config: &PublisherConfig,
        terms: OpenTerms,
        takes_over: u32,
    ) -> Result<(), Violation> {
        self.announced_from = terms.session_region;
        self.peer
            .connection
            .send(&Control::OpenPublisher(OpenPublisher {
                topic: config.topic.clone(),
                producer: config.producer,
                acks: config.acks.level(),
                instance: self.instance,
                resumes: terms.resumes(self.region),
                topic_id: terms.topic_id,
                secret: config.secret,
                takes_over,
            }))
    }

    /// Asks for an identity that another publisher has in this epoch, or, with 0, that is this one's.
    pub(super) fn take_over(
        &mut self,
        config: &PublisherConfig,
        terms: OpenTerms,
        epoch: u32,
        now: Now,
    ) {
        if let Err(violation) = self.announce(config, terms, epoch) {
            self.peer.reject(&violation, now);
        }
    }

    /// Whether its broker's answer may move the session from this region to the broker's. Not if the session came there
    /// after this publisher was announced here: then this region is the older one.
    pub(super) fn may_move_from(&self, region: u64) -> bool {
        self.announced_from == Some(region)
    }

    /// Ends the connection at once: its broker's region is lost.
    pub(super) fn leave_region(&mut self) {
        let why = "the cluster has lost its memory since";
        self.peer.give_up(ConnectionError::Local(why));
    }

    /// Takes in all that came; the answer to a request is returned.
    pub(super) fn read(
        &mut self,
        config: &PublisherConfig,
        terms: OpenTerms,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Option<Answer> {
        let mut answer = None;
        loop {
            match self.read_one(config, terms, now, out, &mut answer) {
                Ok(true) => {}
                Ok(false) => break,
                // Then the end of the connection is to be read.
                Err(violation) => self.peer.reject(&violation, now),
            }
        }
        if self.draining
            && self.peer.phase == Phase::Open
            && self.in_flight.is_empty()
            && self.assigned.is_empty()
        {
            let why = ConnectionError::Local("the broker is draining");
            self.peer.finish(why, now);
        }
        answer
    }

    fn read_one(
        &mut self,
        config: &PublisherConfig,
        terms: OpenTerms,
        now: Now,
        out: &mut VecDeque<Event>,
        answer: &mut Option<Answer>,
    ) -> Result<bool, Violation> {
        let message = match self.peer.connection.next(now)? {
            None => return Ok(false),
            Some(Incoming::Ack(ack)) => {
                let stored = ack.refused().is_none();
                let acked = self.in_flight.acknowledge(
                    self.peer.broker,
                    ack.first(),
                    ack.refused(),
                    ack.base_offsets(),
                    now,
                    out,
                );
                acked.map_err(|wrong| Violation::from(wrong.to_string()))?;
                if stored {
                    self.peer.served();
                }
                return Ok(true);
            }
            Some(Incoming::Welcome(welcome)) => {
                self.peer.check(&welcome)?;
                self.region = welcome.region;
                self.announce(config, terms, 0)?;
                return Ok(true);
            }
            Some(Incoming::Batch { .. }) => return Err("a batch to a publisher".into()),
            Some(Incoming::Goodbye) => {
                self.draining = true;
                return Ok(true);
            }
            Some(Incoming::Nothing) => return Ok(true),
            Some(Incoming::Closed(closed)) => {
                self.peer.closed(&closed);
                return Ok(true);
            }
            Some(Incoming::Control(message)) => message,
        };
        match message {
            Control::PublisherOpened(opened) if matches!(self.peer.phase, Phase::Opening(_)) => {
                terms.check(&opened, config.acks)?;
                self.peer.opened();
                self.peer.succeeded();
                *answer = Some(Answer::Publisher(opened));
            }
            Control::SessionHeld(held) if matches!(self.peer.phase, Phase::Opening(_)) => {
                *answer = Some(Answer::Held(held));
            }
            Control::SessionOpened(opened) if self.renewing.take().is_some() => {
                *answer = Some(Answer::Session(opened));
            }
            Control::Done if self.closing_session => {}
            Control::ClusterMetadata(cluster) => self.peer.news = Some(cluster),
            Control::Error(refusal) => {
                self.by_error = true;
                self.peer.refused(refusal, now);
            }
            other => return Err(format!("{:?} was not asked for", other.id()).into()),
        }
        Ok(true)
    }

    /// Connects if it is time; closes if time is up.
    pub(super) fn tick(&mut self, ack_timeout: Duration, now: Now) {
        self.peer.tick(now);
        if self.stalled_at(ack_timeout).is_some_and(|at| at <= now) {
            self.peer.give_up(ConnectionError::Stalled(ack_timeout));
        }
        if self.renewing.is_some_and(|until| until <= now) {
            self.renewing = None;
            let missing = "epoch for the session";
            self.peer.give_up(ConnectionError::Late { missing });
        }
    }

    pub(super) fn next_tick(&self, ack_timeout: Duration) -> Option<Now> {
        let stalled = self.stalled_at(ack_timeout);
        let own = stalled.into_iter().chain(self.renewing);
        own.chain(self.peer.next_tick()).min()
    }

    fn stalled_at(&self, ack_timeout: Duration) -> Option<Now> {
        let open = self.peer.phase == Phase::Open;
        let since = self.in_flight.waiting_since().filter(|_| open)?;
        Some(since.after(ack_timeout))
    }

    /// The connection is gone.
    pub(super) fn disconnected(
        &mut self,
        cause: ConnectionError,
        random: &mut SplitMix64,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> LostConnection {
        self.draining = false;
        self.renewing = None;
        self.shares_memory = None;
        self.region = 0;
        LostConnection {
            refusal: self.peer.disconnected(cause, random, now),
            carried: self.in_flight.lost(out),
            assigned: self.take_assigned(),
            by_error: std::mem::take(&mut self.by_error),
        }
    }
}
