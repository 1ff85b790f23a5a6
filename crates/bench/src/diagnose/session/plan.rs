//! What a diagnosed run of sessions is: sizes, threads, a span, and faults.

use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_diagnose::finding::Change;
use embar_diagnose::session::observed::Way;

use super::inject::Fault;
use super::messages::Shape;
use crate::diagnose::fault::each_once;
use crate::session::payloads::PAYLOAD_BYTES_MAX;
use crate::session::plan::Transport;

/// Rings are a power of two of at least these bytes.
const RING_MIN: u32 = 4096;
/// And of at most these.
const RING_MAX: u32 = 256 << 20;
/// They hold as much unless told otherwise, bytes.
pub(super) const RING_BYTES: usize = 256 << 10;

/// Sessions to be diagnosed.
#[derive(Clone, Debug)]
pub struct SessionLoad {
    /// Which way messages go.
    pub way: Way,
    /// Bytes of the payload of a message.
    pub payload: u32,
    /// Sessions; one way each has a thread that sends.
    pub sessions: u32,
    /// Messages of each session that may be on their way, if they are answered.
    pub in_flight: u32,
    /// Threads of the server that serve sessions, and as many of the client.
    pub workers: u16,
    /// Bytes of each send ring of the client; the library's own choice without it.
    pub ring: Option<u32>,
    /// What sessions run on.
    pub transport: Transport,
    /// Whether they are encrypted.
    pub by_tls: bool,
    /// `SO_RCVBUF` of the server.
    pub recv_buffer: Option<u32>,
    /// `SO_SNDBUF` of the client.
    pub send_buffer: Option<u32>,
    /// How long it is looked at.
    pub span: Duration,
    /// How long it runs before.
    pub warm_up: Duration,
    /// Messages after which a thread that sends waits until they have left; without it, none does.
    pub waits_after: Option<u32>,
    /// Payload of one message of 61; without it, of none.
    pub big: Option<u32>,
    /// Small fields that each message has besides.
    pub fields: u32,
    /// What is injected.
    pub faults: Vec<Fault>,
}

impl SessionLoad {
    /// The plan with what its faults change in settings; what they do to applications and the machine is for the load.
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Result<Self, BadSetting> {
        each_once(faults.iter().map(|it| it.name()))?;
        for fault in &faults {
            fault.must_act(self.way, self.payload, self.transport)?;
            match *fault {
                Fault::SmallRing(size) => self.ring = Some(to_u32(size)?),
                Fault::SmallRcvbuf(size) => self.recv_buffer = Some(to_u32(size)?),
                Fault::SmallSndbuf(size) => self.send_buffer = Some(to_u32(size)?),
                Fault::FewInFlight(messages) => self.in_flight = messages,
                Fault::Tls => self.by_tls = true,
                Fault::BigMessage(size) => self.big = Some(to_u32(size)?),
                Fault::ManyFields(number) => self.fields = number,
                Fault::SmallWrites(messages) => self.waits_after = Some(messages),
                Fault::SlowSender(rate) => rate.must_be_found(self.warm_up)?,
                Fault::SlowHandler(_)
                | Fault::CpuHog(_)
                | Fault::CpuQuota(_)
                | Fault::Network(_) => {}
            }
        }
        self.faults = faults;
        self.validate()?;
        // A ring that held no two messages would hold up everybody for ever.
        if let Some(asked) = self.ring
            && self.ring_bytes() > asked as usize
        {
            let why = format!("two messages need a ring of {} bytes", self.ring_bytes());
            return Err(BadSetting::new(&["ring", "inject", "payload"], why));
        }
        Ok(self)
    }

    /// What is sent.
    pub(super) fn messages(&self) -> Shape {
        Shape {
            payload: self.payload,
            big: self.big,
            fields: self.fields,
        }
    }

    /// Bytes of each send ring of the client.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_of(self.ring.map_or(RING_BYTES, |it| it as usize))
    }

    /// Bytes of a send ring that was asked for: each holds two messages.
    pub(super) fn ring_of(&self, asked: usize) -> usize {
        asked
            .max(2 * self.messages().frame_bytes())
            .next_power_of_two()
    }

    /// Refuses what cannot be run.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let wrong = |settings, why: String| Err(BadSetting::new(settings, why));
        if self.payload > PAYLOAD_BYTES_MAX {
            return wrong(&["payload"], format!("at most {PAYLOAD_BYTES_MAX} bytes"));
        }
        if self.big.is_some_and(|it| it > PAYLOAD_BYTES_MAX) {
            return wrong(&["inject"], format!("at most {PAYLOAD_BYTES_MAX} bytes"));
        }
        let range = RING_MIN..=RING_MAX;
        if let Some(ring) = self.ring
            && (!ring.is_power_of_two() || !range.contains(&ring))
        {
            let why = format!("a ring is a power of two from {RING_MIN} to {RING_MAX} bytes");
            return wrong(&["ring", "inject"], why);
        }
        if self.by_tls && self.transport != Transport::Tcp {
            return wrong(&["tls", "transport"], "TLS is for --transport tcp".into());
        }
        Ok(())
    }

    /// The plan with a remedy; `None` if that cannot be applied here.
    pub fn with(&self, change: &Change) -> Option<Self> {
        let mut plan = self.clone();
        match *change {
            Change::ReceiveBufferTuned => plan.recv_buffer = None,
            Change::SendBufferTuned => plan.send_buffer = None,
            Change::SendRing(bytes) => plan.ring = Some(u32::try_from(bytes).ok()?),
            Change::InFlight(messages) => plan.in_flight = u32::try_from(messages).ok()?,
            Change::Workers(workers) => plan.workers = u16::try_from(workers).ok()?,
            Change::MessagesTogether(messages) => {
                plan.waits_after = Some(u32::try_from(messages).ok()?);
            }
            Change::PlainConnections if plan.by_tls => plan.by_tls = false,
            _ => return None,
        }
        plan.validate().ok()?;
        Some(plan)
    }
}

fn to_u32(size: embar_console::size::Size) -> Result<u32, BadSetting> {
    let too_large = || BadSetting::new(&["inject"], format!("{size} is too large"));
    size.to_u32().ok_or_else(too_large)
}
