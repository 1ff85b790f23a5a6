//! One connection of a publisher to one data broker: opening it for the topic, what is on it, and how it ends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use embar_wire::control::{
    BrokerInfo, BrokerState, Control, ErrorReply, OpenPublisher, PublisherOpened,
};
use embar_wire::time::Now;

use super::core::{Action, Event, PublisherConfig};
use super::flight::{Batch, Flight};
use crate::backoff::{Backoff, BackoffLimits, Random};
use crate::connection::{Incoming, Link, LinkAction};
use crate::directory::{ANSWER_TIMEOUT, READ_AHEAD_BYTES};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The broker is not ready, as far as the cluster says.
    Parked,
    /// Connect at this time.
    Waiting(Now),
    /// Connecting, or shaking hands; give up at the deadline.
    Opening(Now),
    Open,
    Closing,
}

/// What the frames that came in mean for the core.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    /// The lane takes batches from now on.
    Opened(PublisherOpened),
}

#[derive(Debug)]
pub(super) struct PublishLane {
    pub(super) broker: u32,
    pub(super) phase: Phase,
    pub(super) link: Link,
    pub(super) flight: Flight,
    /// Given to this lane and not yet to the driver.
    pub(super) assigned: Option<Batch>,
    /// The broker said goodbye: nothing new goes here.
    pub(super) draining: bool,
    /// Opened, or failed to, at least once.
    pub(super) settled: bool,
    pub(super) opened_before: bool,
    /// Since when the broker does not know the topic.
    pub(super) unknown_since: Option<Now>,
    /// Why the broker ends this connection.
    pub(super) refusal: Option<ErrorReply>,
    pub(super) last_error: Option<String>,
    state: BrokerState,
    incarnation: u32,
    address: Option<SocketAddr>,
    backoff: Backoff,
}

impl PublishLane {
    pub(super) fn new(broker: u32, config: &PublisherConfig) -> Self {
        Self {
            broker,
            phase: Phase::Parked,
            link: Link::new(&config.name, READ_AHEAD_BYTES),
            flight: Flight::new(config.acks),
            assigned: None,
            draining: false,
            settled: false,
            opened_before: false,
            unknown_since: None,
            refusal: None,
            last_error: None,
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
            if let Phase::Waiting(_) = self.phase {
                self.phase = Phase::Parked;
            }
            return;
        };
        let address = info.address.parse().ok();
        let renewed = address != self.address || info.incarnation != self.incarnation;
        self.address = address;
        self.incarnation = info.incarnation;
        self.state = info.state;
        match self.phase {
            Phase::Parked if self.is_ready() => self.phase = Phase::Waiting(now),
            Phase::Waiting(_) if !self.is_ready() => self.phase = Phase::Parked,
            Phase::Waiting(_) if renewed => {
                self.backoff.succeeded();
                self.phase = Phase::Waiting(now);
            }
            _ => {}
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == BrokerState::Ready && self.address.is_some()
    }

    /// Parked, but the broker may become ready: ask the cluster again.
    pub(super) fn may_return(&self) -> bool {
        self.phase == Phase::Parked
            && matches!(self.state, BrokerState::Starting | BrokerState::Draining)
    }

    /// Bytes in flight, if the lane can take a batch now.
    pub(super) fn load(&self, limit: usize) -> Option<u64> {
        let able = self.phase == Phase::Open
            && !self.draining
            && self.assigned.is_none()
            && self.link.may_send()
            && self.flight.len() < limit;
        able.then(|| self.flight.bytes())
    }

    pub(super) fn poll(&mut self, now: Now) -> Option<Action> {
        if let Some(action) = self.link.poll() {
            return Some(match action {
                LinkAction::Connect(address) => Action::Connect(address),
                LinkAction::Send(bytes) => Action::Send(bytes),
                LinkAction::Receive(buffer, space) => Action::Receive(buffer, space),
                LinkAction::Close => Action::Close,
            });
        }
        if !self.link.may_send() {
            return None;
        }
        let batch = self.assigned.take()?;
        self.link.start_send();
        Some(Action::SendBatch(self.flight.send(batch, now)))
    }

    pub(super) fn has_action(&self) -> bool {
        self.link.has_action() || (self.assigned.is_some() && self.link.may_send())
    }

    pub(super) fn sent(&mut self, now: Now, out: &mut VecDeque<Event>) {
        self.link.sent();
        if self.flight.is_sending() {
            self.flight.sent(now, out);
        }
        self.close_when_drained();
    }

    pub(super) fn received(
        &mut self,
        buffer: Vec<u8>,
        bytes: usize,
        config: &PublisherConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Turn {
        self.link.received(buffer, bytes);
        let mut turn = Turn::Nothing;
        loop {
            match self.next_frame(config, now, out) {
                Ok(None) => break,
                Ok(Some(Turn::Nothing)) => {}
                Ok(Some(opened)) => turn = opened,
                Err(violation) => {
                    self.close(violation);
                    break;
                }
            }
        }
        self.close_when_drained();
        turn
    }

    fn next_frame(
        &mut self,
        config: &PublisherConfig,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> Result<Option<Turn>, String> {
        let message = match self.link.next_frame()? {
            None => return Ok(None),
            Some(Incoming::Welcome(welcome)) => {
                if welcome.broker_id != self.broker {
                    return Err(format!(
                        "broker {} answers at the address of {}",
                        welcome.broker_id, self.broker
                    ));
                }
                self.link.send(&Control::OpenPublisher(OpenPublisher {
                    topic: config.topic.clone(),
                    producer: config.producer,
                    acks: config.acks.level(),
                }));
                return Ok(Some(Turn::Nothing));
            }
            Some(Incoming::Ack(ack)) => {
                self.flight
                    .acknowledge(
                        self.broker,
                        ack.first(),
                        ack.refused(),
                        ack.base_offsets(),
                        now,
                        out,
                    )
                    .map_err(|wrong| wrong.to_string())?;
                return Ok(Some(Turn::Nothing));
            }
            Some(Incoming::Batch { .. }) => return Err("a batch to a publisher".into()),
            Some(Incoming::Control(message)) => message,
        };
        match message {
            Control::PublisherOpened(opened) if matches!(self.phase, Phase::Opening(_)) => {
                self.opened();
                return Ok(Some(Turn::Opened(opened)));
            }
            Control::Error(refusal) => {
                let message = refusal.message.clone();
                self.refusal = Some(refusal);
                return Err(message);
            }
            Control::Goodbye(_) => self.draining = true,
            Control::Ping => self.link.send(&Control::Pong),
            other => return Err(format!("{:?} was not asked for", other.id())),
        }
        Ok(Some(Turn::Nothing))
    }

    fn opened(&mut self) {
        self.phase = Phase::Open;
        self.settled = true;
        self.unknown_since = None;
        self.last_error = None;
        self.backoff.succeeded();
    }

    /// Connects if it is time; closes if time is up.
    pub(super) fn tick(&mut self, ack_timeout: Duration, now: Now) {
        match self.phase {
            Phase::Waiting(at) if at <= now => {
                if let Some(address) = self.address {
                    self.phase = Phase::Opening(now.after(ANSWER_TIMEOUT));
                    self.link.connect(address);
                }
            }
            Phase::Opening(deadline) if deadline <= now => self.close("no answer in time".into()),
            Phase::Open if self.stalled_at(ack_timeout).is_some_and(|at| at <= now) => {
                self.close(format!("no progress for {ack_timeout:?}"));
            }
            _ => {}
        }
    }

    pub(super) fn next_tick(&self, ack_timeout: Duration) -> Option<Now> {
        match self.phase {
            Phase::Waiting(at) | Phase::Opening(at) => Some(at),
            Phase::Open => self.stalled_at(ack_timeout),
            Phase::Parked | Phase::Closing => None,
        }
    }

    fn stalled_at(&self, ack_timeout: Duration) -> Option<Now> {
        Some(self.flight.waiting_since()?.after(ack_timeout))
    }

    fn close_when_drained(&mut self) {
        if self.draining
            && self.phase == Phase::Open
            && self.flight.is_empty()
            && self.assigned.is_none()
        {
            self.close("the broker is draining".into());
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

    /// The connection is gone: what it carried, in order, and why it was refused, if it was.
    pub(super) fn disconnected(
        &mut self,
        cause: &str,
        random: &mut Random,
        now: Now,
        out: &mut VecDeque<Event>,
    ) -> (VecDeque<Batch>, Option<ErrorReply>) {
        if self.phase != Phase::Closing {
            self.last_error = Some(cause.to_string());
        }
        self.link.disconnected();
        let mut lost = self.flight.lost(out);
        lost.extend(self.assigned.take());
        self.settled = true;
        self.draining = false;
        self.phase = if self.is_ready() {
            let wait = self.backoff.failed(random);
            Phase::Waiting(now.after(Duration::from_nanos(wait)))
        } else {
            Phase::Parked
        };
        (lost, self.refusal.take())
    }
}
