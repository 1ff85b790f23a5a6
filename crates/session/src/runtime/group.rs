//! What the sessions of one server or client share: settings, memory, limits and counters.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_frame::{FrameError, FrameHeader, Shape};
use embar_transport::MemoryBudget;
use embar_transport::tls::Acceptor;

use super::admission::{Network, Places};
use super::body_budget::{BodyBudget, BodyShare};
use super::priority::{Priority, Reserve};
use super::rates::{Addresses, RateCounters};
use super::refusal::RefusalCounters;
use super::settings::Settings;
use super::stats::Counter;
use crate::{CloseReason, RingPools};

/// The shape of a frame by its header, as the protocol of the group says.
pub(super) type ShapeOf = dyn Fn(FrameHeader) -> Result<Shape, FrameError> + Send + Sync;

/// What the sessions of one server or client share.
pub(super) struct Group {
    pub(super) settings: Settings,
    reserve: Reserve,
    pub(super) rings: RingPools,
    pub(super) budget: MemoryBudget,
    bodies: Arc<BodyBudget>,
    pub(super) shape: Box<ShapeOf>,
    /// Accepts encrypted sessions only.
    pub(super) acceptor: Option<Acceptor>,
    pub(super) places: Arc<Places>,
    /// Connections that have not become sessions.
    pub(super) arrivals: AtomicUsize,
    /// For each worker how many of them one address has at most.
    pub(super) crowds: Box<[AtomicUsize]>,
    /// Listeners that are accepted from.
    pub(super) listening: AtomicUsize,
    /// What each address may still send.
    pub(super) addresses: Addresses,
    pub(super) counters: GroupCounters,
}

impl Group {
    pub(super) fn new(
        settings: Settings,
        reserve: Reserve,
        rings: RingPools,
        budget: MemoryBudget,
        shape: Box<ShapeOf>,
        acceptor: Option<Acceptor>,
    ) -> Self {
        let per_address = settings.admission.max_body_bytes_per_address;
        Self {
            bodies: BodyBudget::new(settings.body_limit(), per_address, reserve),
            places: Places::new(settings.max_sessions, reserve, settings.admission.clone()),
            crowds: (0..settings.workers.max(1))
                .map(|_| AtomicUsize::new(0))
                .collect(),
            listening: AtomicUsize::new(0),
            settings,
            reserve,
            rings,
            budget,
            shape,
            acceptor,
            arrivals: AtomicUsize::new(0),
            addresses: Addresses::default(),
            counters: GroupCounters::default(),
        }
    }

    /// Whether the rings of one more session of `priority` leave the memory that is kept for higher ones.
    pub(super) fn has_memory_for_session(&self, priority: Priority) -> bool {
        let rings = self.settings.send_ring_bytes + self.settings.recv_ring_bytes;
        self.has_memory_for(priority, rings)
    }

    /// Whether `bytes` for a session of `priority` leave the memory that is kept for higher ones. Where nothing is in use they do:
    /// what a small budget keeps would otherwise keep everybody out.
    fn has_memory_for(&self, priority: Priority, bytes: usize) -> bool {
        let open = self.reserve.open_to(priority, self.budget.limit());
        if open == self.budget.limit() {
            // The budget itself says so, when it is asked.
            return true;
        }
        let in_use = self.budget.used().saturating_sub(self.budget.idle());
        in_use == 0 || in_use.saturating_add(bytes) <= open
    }

    /// Counts `bytes` of a body of a session of `priority` whose peer counts as `network`.
    pub(super) fn reserve_body(
        &self,
        network: Option<Network>,
        priority: Priority,
        bytes: usize,
    ) -> Result<BodyShare, String> {
        let reserve = || {
            if !self.has_memory_for(priority, bytes) {
                return Err(format!(
                    "{bytes} bytes exceed what the memory budget has left for sessions like this one: send it later, or enlarge it"
                ));
            }
            self.budget
                .try_reserve(bytes)
                .map_err(|error| error.to_string())
        };
        self.bodies.try_reserve(network, priority, bytes, reserve)
    }
}

/// What sessions of a group did; the registry adds the counts of a session when it ends.
#[derive(Default)]
pub(super) struct GroupCounters {
    pub(super) opened: Counter,
    pub(super) closed: Counter,
    pub(super) refusals: RefusalCounters,
    pub(super) rates: RateCounters,
    pub(super) left_early: Counter,
    pub(super) adopted: Counter,
    pub(super) redirected: Counter,
    pub(super) idle_kicks: Counter,
    pub(super) malformed: Counter,
    pub(super) panics: Counter,
    pub(super) messages_received: Counter,
    pub(super) messages_sent: Counter,
    pub(super) bytes_received: Counter,
    pub(super) bytes_sent: Counter,
    by_reason: Mutex<BTreeMap<&'static str, u64>>,
}

impl GroupCounters {
    pub(super) fn count_reason(&self, reason: CloseReason) {
        *self.by_reason().entry(reason.name()).or_default() += 1;
        match reason {
            CloseReason::Idle => self.idle_kicks.add(1),
            CloseReason::HandlerPanicked => self.panics.add(1),
            CloseReason::UnknownFrame
            | CloseReason::TooLarge
            | CloseReason::BadFrame
            | CloseReason::BadMessage
            | CloseReason::NotSession => self.malformed.add(1),
            _ => {}
        }
    }

    fn by_reason(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.by_reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How often sessions closed for each reason, by its name.
    pub(super) fn reasons(&self) -> BTreeMap<&'static str, u64> {
        self.by_reason().clone()
    }
}
