//! Whether a session keeps to its rates. One that does not is held, and its bodies are not received either, until it may
//! send again.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_frame::{Now, Protocol};
use embar_transport::RecvBuf;

use super::SessionDriver;
use crate::CloseReason;
use crate::runtime::clock;
use crate::runtime::rates::{Allowed, Beyond, Buckets, RateLimit};
use crate::runtime::session::Session;

/// So many bytes are received ahead for each message that may come.
const BYTES_AHEAD: u64 = 64;

/// A session that is held again and again goes beyond its rate once in so long: its pauses are short, and say nothing each.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// The rates of one session, and what of it was counted.
pub(super) struct Pace {
    own: Buckets,
    address: Option<Arc<Mutex<Buckets>>>,
    messages: u64,
    bytes: u64,
    /// Datagrams since it was asked last, and their bytes.
    datagrams: (u64, u64),
    /// What may come before it is asked again.
    may_come: Allowed,
    /// Until then nothing is received.
    until: Option<Now>,
    /// When it counted last as one that goes beyond its rate.
    counted_at: Option<Now>,
}

impl Pace {
    /// `None`: there are no limits.
    pub(super) fn of(session: &Session) -> Option<Box<Self>> {
        let group = &session.0.group;
        let rates = &group.settings.rates;
        if rates.are_off() {
            return None;
        }
        let network = group.settings.admission.network_of(session.peer());
        let now = clock::now();
        let address = |network| group.addresses.of(network, rates, now);
        let mut pace = Box::new(Self {
            own: rates.of_session(),
            address: network.map(address),
            messages: 0,
            bytes: 0,
            datagrams: (0, 0),
            may_come: Allowed::ALL,
            until: None,
            counted_at: None,
        });
        if rates.beyond == Beyond::Delay {
            let least = Allowed {
                messages: 1,
                bytes: 1,
            };
            let allowed = allowed(
                &mut pace.own,
                lock(pace.address.as_deref()).as_deref_mut(),
                now,
            );
            pace.may_come = allowed.unwrap_or(least);
        }
        Some(pace)
    }

    /// Bytes beyond the frame at hand that may be received, of a session that would otherwise receive so many. A ring full
    /// of messages takes long to hand over at a low rate, and nothing more is received meanwhile: see [`Pace::bound`].
    pub(super) fn read_ahead(&self, usual: usize) -> usize {
        let ahead = self.may_come.messages.saturating_mul(BYTES_AHEAD);
        usual.min(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// Whether it may be received.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_none()
    }

    /// Whether the bytes that may come are not used up by datagrams: the next one may be handed over.
    pub(super) fn has_bytes(&self) -> bool {
        self.datagrams.1 < self.may_come.bytes
    }

    /// Counts a datagram that the handler gets.
    pub(super) fn count_datagram(&mut self, bytes: usize) {
        self.datagrams.0 += 1;
        self.datagrams.1 += bytes as u64;
    }

    /// No receive brings more than the rates allow: what is beyond them would make the pause after it so long that an
    /// honest peer takes this end for one that does not read.
    pub(super) fn bound(&self, buf: RecvBuf) -> RecvBuf {
        buf.at_most(usize::try_from(self.may_come.bytes).unwrap_or(usize::MAX))
    }

    /// Takes what came since it was asked last. The limit that this went beyond, and what may come now, or until when
    /// nothing.
    fn look(
        &mut self,
        (messages, bytes): (u64, u64),
        now: Now,
    ) -> (Option<RateLimit>, Result<Allowed, (RateLimit, Now)>) {
        let datagrams = mem::take(&mut self.datagrams);
        // A message that a handler put back is counted when it comes again.
        let new_messages = messages.saturating_sub(self.messages) + datagrams.0;
        let new_bytes = bytes.saturating_sub(self.bytes) + datagrams.1;
        self.messages = self.messages.max(messages);
        self.bytes = bytes;
        // Locked once, as all sessions of the address do this in each of their turns.
        let mut address = lock(self.address.as_deref());
        let of_own = self.own.take(new_messages, new_bytes, now);
        let of_all = address
            .as_mut()
            .and_then(|address| address.take(new_messages, new_bytes, now));
        let allowed = allowed(&mut self.own, address.as_deref_mut(), now);
        (of_own.or(of_all), allowed)
    }

    /// Whether it counts that the session goes beyond its rate now.
    fn counts(&mut self, now: Now) -> bool {
        let counts = self
            .counted_at
            .is_none_or(|at| now.since(at) >= COUNTED_EVERY);
        if counts {
            self.counted_at = Some(now);
        }
        counts
    }
}

fn lock(address: Option<&Mutex<Buckets>>) -> Option<MutexGuard<'_, Buckets>> {
    Some(address?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What may come of one session, and of all of its address, or the limit that allows nothing, and until when.
fn allowed(
    own: &mut Buckets,
    address: Option<&mut Buckets>,
    now: Now,
) -> Result<Allowed, (RateLimit, Now)> {
    let own = own.allowed(now);
    let Some(address) = address else {
        return own;
    };
    match (own, address.allowed(now)) {
        (Ok(own), Ok(all)) => Ok(own.min(all)),
        (Err((limit, own)), Err((_, all))) => Err((limit, own.max(all))),
        (Err(none), _) | (_, Err(none)) => Err(none),
    }
}

impl<P: Protocol> SessionDriver<P> {
    /// When it is received again, if it is not.
    pub(super) fn paced_until(&self) -> Option<Now> {
        self.pace.as_ref()?.until
    }

    /// Where there are rates: lets the session have as much as it may now.
    #[inline]
    pub(super) fn keep_pace(&mut self, now: Now) {
        if self.pace.is_some() {
            self.look_at_pace(now);
        }
    }

    #[cold]
    fn look_at_pace(&mut self, now: Now) {
        let counted = self.core.received_so_far();
        let Some(pace) = self.pace.as_mut() else {
            return;
        };
        if !self.core.is_open() {
            // A body that is held must come to its end, too.
            pace.until = None;
            if self.core.is_ending() {
                pace.may_come = Allowed::ALL;
            }
            return;
        }
        let (beyond, allowed) = pace.look(counted, now);
        let group = &self.session.0.group;
        let rates = &group.settings.rates;
        if rates.beyond == Beyond::Close {
            if let Some(limit) = beyond {
                group.counters.rates.count(limit);
                let text = format!("too many {limit}");
                self.core.fail(CloseReason::RateLimited, &text, now);
            }
            return;
        }
        let was_held = pace.until.is_some();
        match allowed {
            Ok(allowed) => {
                pace.until = None;
                pace.may_come = allowed;
                let ahead = pace.read_ahead(group.settings.session.read_ahead);
                self.core.set_read_ahead(ahead);
                self.share.limit(allowed.messages);
                if was_held {
                    self.core.hold(self.paused, now);
                }
            }
            Err((limit, until)) => {
                pace.until = Some(until);
                if !was_held {
                    if pace.counts(now) {
                        group.counters.rates.count(limit);
                    }
                    self.core.hold(true, now);
                }
            }
        }
    }
}
